#include "launcher/jobs/jobs.h"

#include <ctype.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/file.h"
#include "launcher/jobs/internal.h"

static const struct {
    const char *text, *starter;
} kinds[WEFT_NUM_JOBS] = {
#define ROW(name, text, starter) {text, starter},
    WEFT_JOB_LIST(ROW)
#undef ROW
};

const char *weft_job_text(int kind)
{
    return kinds[kind].text;
}

static void job_print(const weft_job *job, int file, FILE *out)
{
    if (job->kind == WEFT_JOB_KUBERNETES)
        weft_job_print_kubernetes(job, out);
    else if (job->kind == WEFT_JOB_SLURM)
        weft_job_print_slurm(job, out);
    else if (file == 0)
        weft_job_print_hosts(job, out);
    else
        weft_job_print_mpirun(job, out);
}

/* --- what launchers take ------------------------------------------------------------------- */

static bool is_of(const char *text, const char *marks)
{
    for (const unsigned char *c = (const unsigned char *)text; *c; c++)
        if (*c >= 128 || (!isalnum(*c) && !strchr(marks, *c)))
            return false;
    return *text != '\0';
}

/* A node twice would get the ranks of two. */
static weft_status check_new_host(const char *hosts, const char *name)
{
    const size_t length = strcspn(name, ",");
    for (const char *other = hosts; other < name; other += strcspn(other, ",") + 1)
        if (strcspn(other, ",") == length && strncasecmp(other, name, length) == 0)
            return WEFT_ERROR(WEFT_CONFIG, "--hosts: %.*s is there twice", (int)length, name);
    return WEFT_OK;
}

static weft_status check_hosts(const weft_job *job)
{
    int count = 0;
    if (!job->hosts)
        return WEFT_OK;
    for (const char *name = job->hosts; name; count++) {
        const int length = (int)strcspn(name, ",");
        char copy[256];
        if (length < (int)sizeof copy)
            snprintf(copy, sizeof copy, "%.*s", length, name);
        if (length >= (int)sizeof copy || !is_of(copy, "._-") || *copy == '-')
            return WEFT_ERROR(WEFT_CONFIG, "--hosts: \"%.*s\" is no name of a host",
                              length > 80 ? 80 : length, name);
        name = name[length] ? name + length + 1 : NULL;
    }
    for (const char *name = strchr(job->hosts, ','); name; name = strchr(name + 1, ','))
        WEFT_TRY(check_new_host(job->hosts, name + 1));
    if (count != job->num_nodes + job->num_spares && job->num_spares > 0)
        return WEFT_ERROR(WEFT_CONFIG,
                          "--hosts: names %d, where the job has %d nodes and %d to spare", count,
                          job->num_nodes, job->num_spares);
    if (count != job->num_nodes + job->num_spares)
        return WEFT_ERROR(WEFT_CONFIG, "--hosts: names %d, where the job has %d nodes", count,
                          job->num_nodes);
    return WEFT_OK;
}

/* Two digits below `end`, and `after` behind them. */
static bool read_pair(const char **text, int end, char after, int64_t *out)
{
    const char *at = *text;
    if (!isdigit((unsigned char)at[0]) || !isdigit((unsigned char)at[1]) || at[2] != after)
        return false;
    *out = 10 * (at[0] - '0') + (at[1] - '0');
    *text = at + 3;
    return *out < end;
}

/* HH:MM:SS, where hours may be many, or DAYS-HH:MM:SS. */
static bool read_time(const char *text, int64_t *out_s)
{
    int64_t days = 0, hours, minutes, seconds;
    const size_t digits = strspn(text, "0123456789");
    if (digits == 0 || digits > 6)
        return false;
    if (text[digits] == '-') {
        days = atoi(text);
        text += digits + 1;
        if (!read_pair(&text, 24, ':', &hours))
            return false;
    } else {
        hours = atoi(text);
        text += digits + (text[digits] == ':');
    }
    if (!read_pair(&text, 60, ':', &minutes) || !read_pair(&text, 60, '\0', &seconds))
        return false;
    *out_s = ((days * 24 + hours) * 60 + minutes) * 60 + seconds;
    return true;
}

/* Slurm signals up to a minute early. A job without time to train would queue itself for ever. */
static weft_status check_time(const weft_job *job)
{
    int64_t s;
    if (!job->time)
        return WEFT_OK;
    if (!read_time(job->time, &s))
        return WEFT_ERROR(WEFT_CONFIG, "--time %.60s: expected HH:MM:SS or DAYS-HH:MM:SS",
                          job->time);
    if (s <= job->stop_s + 60)
        return WEFT_ERROR(WEFT_CONFIG,
                          "--time %.60s: too short: it stops %d s before its end "
                          "(train.stop_timeout_s), which Slurm may say 60 s early",
                          job->time, job->stop_s);
    return WEFT_OK;
}

/* A path that a volume is mounted at. */
static weft_status check_mount(const char *path)
{
    const size_t bytes = strlen(path);
    if (strchr(path, ':'))
        return WEFT_ERROR(WEFT_CONFIG, "%.300s: Kubernetes mounts no path with a colon", path);
    if (strstr(path, "/../") || (bytes >= 3 && strcmp(path + bytes - 3, "/..") == 0))
        return WEFT_ERROR(WEFT_CONFIG, "%.300s: Kubernetes mounts no path with ..", path);
    return WEFT_OK;
}

/* The API server takes no larger ConfigMap. */
enum { MOST_CONFIG_BYTES = 1000000 };

static weft_status check_kubernetes(const weft_job *job)
{
    if (!job->image)
        return WEFT_ERROR(WEFT_CONFIG,
                          "--image IMAGE is missing: the image of a container that has %s, "
                          "mpirun and sshd",
                          job->program);
    if (!is_of(job->image, "._-/:@"))
        return WEFT_ERROR(WEFT_CONFIG, "--image %.100s: no name of an image", job->image);
    if (job->claim && (!is_of(job->claim, ".-") || strlen(job->claim) > 253))
        return WEFT_ERROR(WEFT_CONFIG, "--claim %.100s: no name of a volume claim", job->claim);
    if (strlen(job->config_text) > MOST_CONFIG_BYTES)
        return WEFT_ERROR(WEFT_CONFIG, "%.300s: larger than the %d bytes of a ConfigMap",
                          job->config, MOST_CONFIG_BYTES);
    const char *texts[] = {job->program, job->folder, job->run, job->config_text};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (!weft_is_utf8(texts[i]))
            return WEFT_ERROR(WEFT_CONFIG, "%.300s: not UTF-8, which YAML is",
                              i == 3 ? job->config : texts[i]);
    WEFT_TRY(check_mount(job->run));
    for (size_t i = 0; i < job->settings.count; i++)
        if (!weft_is_utf8(job->settings.values[i]))
            return WEFT_ERROR(WEFT_CONFIG, "%.300s: not UTF-8, which YAML is",
                              job->settings.values[i]);
    for (size_t i = 0; i < job->mounts.count; i++) {
        WEFT_TRY(check_mount(job->mounts.values[i]));
        if (!weft_is_utf8(job->mounts.values[i]))
            return WEFT_ERROR(WEFT_CONFIG, "%.300s: not UTF-8, which YAML is",
                              job->mounts.values[i]);
    }
    return WEFT_OK;
}

/* An option that the kind of job has no use for. */
static weft_status check_unused(const weft_job *job)
{
    const struct {
        const char *name, *value;
        weft_job_kind kind;
    } options[] = {{"hosts", job->hosts, WEFT_JOB_MPIRUN},
                   {"spares", job->num_spares > 0 ? "" : NULL, WEFT_JOB_MPIRUN},
                   {"time", job->time, WEFT_JOB_SLURM},
                   {"container-image", job->container_image, WEFT_JOB_SLURM},
                   {"container-mounts", job->container_mounts, WEFT_JOB_SLURM},
                   {"image", job->image, WEFT_JOB_KUBERNETES},
                   {"claim", job->claim, WEFT_JOB_KUBERNETES}};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        if (options[i].value && options[i].kind != job->kind)
            return WEFT_ERROR(WEFT_CONFIG, "--%s: of %s jobs; this one is for %s", options[i].name,
                              weft_job_text(options[i].kind), weft_job_text(job->kind));
    return WEFT_OK;
}

static weft_status check_spares(const weft_job *job)
{
    if (job->num_spares > 0 && !job->hosts)
        return WEFT_ERROR(WEFT_CONFIG, "--spares %d: --hosts has to name them", job->num_spares);
    if (job->num_spares > 0 && job->max_restarts == 0)
        return WEFT_ERROR(WEFT_CONFIG,
                          "--spares %d: nothing starts again on them; set reliability.max_restarts",
                          job->num_spares);
    return WEFT_OK;
}

weft_status weft_job_check(const weft_job *job)
{
    WEFT_TRY(check_unused(job));
    WEFT_TRY(check_spares(job));
    WEFT_TRY(check_hosts(job));
    WEFT_TRY(check_time(job));
    WEFT_TRY(weft_job_check_container(job));
    return job->kind == WEFT_JOB_KUBERNETES ? check_kubernetes(job) : WEFT_OK;
}

weft_status weft_job_command(const weft_job *job, weft_arena *arena,
                             const char *out[WEFT_JOB_MAX_WORDS])
{
    int last = 0, n = 0;
    const char *file;
    while (weft_job_file_name(job->kind, last + 1))
        last++;
    WEFT_TRY(
        weft_arena_printf(arena, &file, "%s/%s", job->run, weft_job_file_name(job->kind, last)));
    out[n++] = kinds[job->kind].starter;
    if (job->kind == WEFT_JOB_KUBERNETES) {
        out[n++] = "apply";
        out[n++] = "-f";
    }
    out[n++] = file;
    out[n] = NULL;
    return WEFT_OK;
}

weft_status weft_job_make_folder(const char *run, weft_arena *arena, const char **out)
{
    if (mkdir(run, 0777) != 0 && errno != EEXIST)
        return WEFT_ERROR(WEFT_FILE, "%s: cannot make the folder: %s", run, strerror(errno));
    char *path = realpath(run, NULL);
    struct stat info;
    if (!path || stat(path, &info) != 0 || !S_ISDIR(info.st_mode)) {
        free(path);
        return WEFT_ERROR(WEFT_FILE, "%s: not a folder", run);
    }
    weft_status status = weft_arena_strdup(arena, path, out);
    free(path);
    return status;
}

typedef struct job_file {
    const char *path;
    char *text; /* malloc'd */
    bool is_there;
    weft_new_file new;
} job_file;

static weft_status render(const weft_job *job, int number, weft_arena *arena, job_file *f)
{
    size_t bytes;
    WEFT_TRY(weft_arena_printf(arena, &f->path, "%s/%s", job->run,
                               weft_job_file_name(job->kind, number)));
    FILE *out = open_memstream(&f->text, &bytes);
    if (!out)
        return WEFT_ERROR(WEFT_MEMORY, "%s: no memory for its text", f->path);
    job_print(job, number, out);
    if (fclose(out) != 0)
        return WEFT_ERROR(WEFT_MEMORY, "%s: no memory for its text", f->path);
    return WEFT_OK;
}

/* A file with this very text is this job's. */
static weft_status check_own(job_file *f, bool force, weft_arena *arena)
{
    char *text;
    if (access(f->path, F_OK) != 0)
        return WEFT_OK;
    if (!force)
        WEFT_TRY(weft_file_read_text(f->path, arena, &text, NULL));
    if (!force && strcmp(text, f->text) != 0)
        return WEFT_ERROR(WEFT_CONFIG,
                          "%s: there already, of another job; give --force to replace it, or "
                          "another --out",
                          f->path);
    f->is_there = !force;
    return WEFT_OK;
}

/* All are whole beside their places before the first takes its own. */
static weft_status write_all(job_file *files, int count)
{
    weft_status status = WEFT_OK;
    for (int i = 0; i < count && status == WEFT_OK; i++) {
        job_file *f = &files[i];
        if (f->is_there)
            continue;
        status = weft_new_file_open(f->path, &f->new);
        if (status != WEFT_OK)
            continue;
        fputs(f->text, f->new.file);
        struct stat info;
        if (i + 1 == count && fstat(fileno(f->new.file), &info) == 0) /* whoever reads may start */
            (void)fchmod(fileno(f->new.file), info.st_mode | (info.st_mode & 0444) >> 2);
        if (fflush(f->new.file) != 0)
            status = WEFT_ERROR(WEFT_FILE, "%s: cannot write: %s", f->path, strerror(errno));
    }
    for (int i = 0; i < count; i++)
        if (files[i].new.file)
            status = weft_new_file_close(&files[i].new, status);
    return status;
}

weft_status weft_job_write(const weft_job *job, bool force, weft_arena *arena)
{
    job_file files[WEFT_JOB_MAX_FILES] = {0};
    int count = 0;
    weft_status status = WEFT_OK;
    while (weft_job_file_name(job->kind, count))
        count++;
    for (int i = 0; i < count && status == WEFT_OK; i++) {
        status = render(job, i, arena, &files[i]);
        if (status == WEFT_OK)
            status = check_own(&files[i], force, arena);
    }
    if (status == WEFT_OK)
        status = write_all(files, count);
    for (int i = 0; i < count; i++)
        free(files[i].text);
    return status;
}

/* --- starting ------------------------------------------------------------------------------ */

static bool is_on_path(const char *name)
{
    const char *folder = getenv("PATH");
    for (; folder && *folder; folder += *folder == ':') {
        const int length = (int)strcspn(folder, ":");
        char path[4096];
        struct stat info;
        snprintf(path, sizeof path, "%.*s/%s", length, folder, name);
        if (stat(path, &info) == 0 && S_ISREG(info.st_mode) && access(path, X_OK) == 0)
            return true;
        folder += length;
    }
    return false;
}

weft_status weft_job_start(const weft_job *job, weft_arena *arena)
{
    const char *words[WEFT_JOB_MAX_WORDS];
    const bool by_mpirun = job->kind == WEFT_JOB_MPIRUN;
    if (by_mpirun && job->num_nodes > 1 && !job->hosts)
        return WEFT_ERROR(WEFT_CONFIG, "--run on %d nodes: --hosts names them", job->num_nodes);
    WEFT_TRY(weft_job_command(job, arena, words));
    const char *needed[] = {words[0], by_mpirun ? "mpirun" : words[0]};
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        if (!is_on_path(needed[i]))
            return WEFT_ERROR(WEFT_COMM, "cannot start %s: %s is not on PATH",
                              words[by_mpirun ? 1 : 0], needed[i]);
    fflush(stdout);
    execvp(words[0], (char **)(uintptr_t)words);
    return WEFT_ERROR(WEFT_COMM, "cannot start %s: %s", words[0], strerror(errno));
}
