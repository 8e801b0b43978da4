#include "launcher/jobs/jobs.h"

#include <errno.h>
#include <spawn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/file.h"
#include "core/text.h"
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

static weft_status job_print(const weft_job *job, int file, FILE *out)
{
    if (job->kind == WEFT_JOB_KUBERNETES)
        return weft_job_print_kubernetes(job, out);
    if (job->kind == WEFT_JOB_SLURM)
        weft_job_print_slurm(job, out);
    else if (file == 0)
        weft_job_print_hosts(job, out);
    else
        weft_job_print_mpirun(job, out);
    return WEFT_OK;
}

/* --- what launchers take ------------------------------------------------------------------- */

static weft_status check_hosts(const weft_job *job)
{
    const int count = job->hosts.count, slots = job->hosts.least_slots;
    if (!job->hosts.names)
        return WEFT_OK;
    if (count != job->num_nodes + job->num_spares && job->num_spares > 0)
        return WEFT_ERROR(WEFT_CONFIG,
                          "--%s: names %d, where the job has %s and %d to spare: %d names",
                          job->hosts.option, count, weft_count_text(job->num_nodes, "node").text,
                          job->num_spares, job->num_nodes + job->num_spares);
    if (count != job->num_nodes + job->num_spares)
        return WEFT_ERROR(WEFT_CONFIG, "--%s: names %d, where the job has %s", job->hosts.option,
                          count, weft_count_text(job->num_nodes, "node").text);
    if (slots > 0 && slots < job->ranks_per_node)
        return WEFT_ERROR(WEFT_CONFIG,
                          "--hostfile: a node has %d slots, and the job %d ranks on each node",
                          slots, job->ranks_per_node);
    return WEFT_OK;
}

static const char *first(const weft_string_list *list)
{
    return list->count > 0 ? list->values[0] : NULL;
}

/* An option that the kind of job has no use for. */
static weft_status check_unused(const weft_job *job)
{
    const struct {
        const char *name, *value;
        weft_job_kind kind;
    } options[] = {{job->hosts.option, job->hosts.names, WEFT_JOB_MPIRUN},
                   {"spares", job->num_spares > 0 ? "" : NULL, WEFT_JOB_MPIRUN},
                   {"time", job->slurm.time, WEFT_JOB_SLURM},
                   {"account", job->slurm.account, WEFT_JOB_SLURM},
                   {"partition", job->slurm.partition, WEFT_JOB_SLURM},
                   {"qos", job->slurm.qos, WEFT_JOB_SLURM},
                   {"sbatch", first(&job->slurm.sbatch), WEFT_JOB_SLURM},
                   {"container-image", job->container.image, WEFT_JOB_SLURM},
                   {"container-mounts", job->container.mounts, WEFT_JOB_SLURM},
                   {"image", job->kubernetes.image, WEFT_JOB_KUBERNETES},
                   {"claim", job->kubernetes.claim, WEFT_JOB_KUBERNETES},
                   {"namespace", job->kubernetes.name_space, WEFT_JOB_KUBERNETES},
                   {"queue", job->kubernetes.queue, WEFT_JOB_KUBERNETES},
                   {"resource", first(&job->kubernetes.resources), WEFT_JOB_KUBERNETES},
                   {"pod", first(&job->kubernetes.pod), WEFT_JOB_KUBERNETES},
                   {"user", job->kubernetes.user >= 0 ? "" : NULL, WEFT_JOB_KUBERNETES}};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        if (options[i].value && options[i].kind != job->kind)
            return WEFT_ERROR(WEFT_CONFIG, "--%s: of %s jobs; this one is for %s: leave it out",
                              options[i].name, weft_job_text(options[i].kind),
                              weft_job_text(job->kind));
    return WEFT_OK;
}

static weft_status check_spares(const weft_job *job)
{
    if (job->num_spares > 0 && !job->hosts.names)
        return WEFT_ERROR(WEFT_CONFIG, "--spares %d: --hosts has to name them", job->num_spares);
    if (job->num_spares > 0 && job->restarts.max == 0)
        return WEFT_ERROR(WEFT_CONFIG,
                          "--spares %d: nothing starts again on them; set reliability.max_restarts",
                          job->num_spares);
    return WEFT_OK;
}

static bool is_program(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISREG(info.st_mode) && access(path, X_OK) == 0;
}

static bool is_on_path(const char *name)
{
    const char *folder = getenv("PATH");
    for (; folder && *folder; folder += *folder == ':') {
        const int length = (int)strcspn(folder, ":");
        char path[4096];
        snprintf(path, sizeof path, "%.*s/%s", length, folder, name);
        if (is_program(path))
            return true;
        folder += length;
    }
    return false;
}

/* Whether it is here, where no image and no PATH of another place brings it. */
static weft_status check_program(const weft_job *job)
{
    const bool is_path = strchr(job->program, '/') != NULL;
    if (*job->program == '-') /* an option of what starts it */
        return WEFT_ERROR(WEFT_CONFIG, "--program %.300s: no program's name", job->program);
    if (!job->has_program || weft_job_is_contained(job) ||
        (!is_path && (job->kind == WEFT_JOB_SLURM || job->setup)))
        return WEFT_OK;
    if (is_path ? is_program(job->program) : is_on_path(job->program))
        return WEFT_OK;
    return WEFT_ERROR(WEFT_CONFIG, "--program %.300s: %s", job->program,
                      is_path ? "no program that can be started here" : "not on PATH");
}

weft_status weft_job_check(const weft_job *job)
{
    WEFT_TRY(check_unused(job));
    WEFT_TRY(check_program(job));
    WEFT_TRY(check_spares(job));
    WEFT_TRY(check_hosts(job));
    WEFT_TRY(weft_job_check_site(job));
    WEFT_TRY(weft_job_check_slurm(job));
    WEFT_TRY(weft_job_check_container(job));
    return job->kind == WEFT_JOB_KUBERNETES ? weft_job_check_kubernetes(job) : WEFT_OK;
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
    const char *text;
    bool is_there;
    weft_new_file new;
} job_file;

static weft_status render(const weft_job *job, int number, weft_arena *arena, job_file *f)
{
    weft_new_text text;
    WEFT_TRY(weft_arena_printf(arena, &f->path, "%s/%s", job->run,
                               weft_job_file_name(job->kind, number)));
    WEFT_TRY(weft_new_text_open(&text));
    return weft_new_text_close(&text, job_print(job, number, text.file), arena, &f->text);
}

weft_status weft_job_show(const weft_job *job, FILE *out)
{
    for (int i = 0; weft_job_file_name(job->kind, i); i++) {
        if (weft_job_file_name(job->kind, 1)) /* of several */
            fprintf(out, "# %s/%s\n", job->run, weft_job_file_name(job->kind, i));
        WEFT_TRY(job_print(job, i, out));
    }
    return ferror(out) ? WEFT_ERROR(WEFT_FILE, "cannot write the job's files") : WEFT_OK;
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

weft_status weft_job_write(const weft_job *job, bool force, weft_arena *arena, unsigned *written)
{
    job_file files[WEFT_JOB_MAX_FILES] = {0};
    int count = 0;
    *written = 0;
    while (weft_job_file_name(job->kind, count))
        count++;
    for (int i = 0; i < count; i++) {
        WEFT_TRY(render(job, i, arena, &files[i]));
        WEFT_TRY(check_own(&files[i], force, arena));
    }
    WEFT_TRY(write_all(files, count));
    for (int i = 0; i < count; i++)
        *written |= files[i].is_there ? 0 : 1u << i;
    return WEFT_OK;
}

void weft_job_remove(const weft_job *job, unsigned written)
{
    char path[4096];
    for (int i = 0; weft_job_file_name(job->kind, i); i++)
        if (written >> i & 1 && (size_t)snprintf(path, sizeof path, "%s/%s", job->run,
                                                 weft_job_file_name(job->kind, i)) < sizeof path)
            unlink(path);
}

/* --- starting ------------------------------------------------------------------------------ */

weft_status weft_job_check_start(const weft_job *job)
{
    const char *needed[] = {kinds[job->kind].starter,
                            job->kind == WEFT_JOB_MPIRUN ? "mpirun" : kinds[job->kind].starter};
    if (job->kind == WEFT_JOB_MPIRUN && job->num_nodes > 1 && !job->hosts.names)
        return WEFT_ERROR(WEFT_CONFIG, "--run on %d nodes: --hosts names them", job->num_nodes);
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        if (!is_on_path(needed[i]))
            return WEFT_ERROR(WEFT_CONFIG,
                              "--run: %s is not on PATH; without --run the job is written alone",
                              needed[i]);
    return WEFT_OK;
}

/* What hands a job over is waited for: it ends as soon as the job is taken, or refused. */
weft_status weft_job_start(const weft_job *job, weft_arena *arena, int *exit_code)
{
    const char *words[WEFT_JOB_MAX_WORDS];
    pid_t child;
    int code = 0, failed;
    WEFT_TRY(weft_job_command(job, arena, words));
    fflush(stdout);
    if (job->kind == WEFT_JOB_MPIRUN) {
        execvp(words[0], (char **)(uintptr_t)words);
        return WEFT_ERROR(WEFT_COMM, "cannot start %s: %s", words[0], strerror(errno));
    }
    failed = posix_spawnp(&child, words[0], NULL, NULL, (char **)(uintptr_t)words, environ);
    if (failed)
        return WEFT_ERROR(WEFT_COMM, "cannot start %s: %s", words[0], strerror(failed));
    while (waitpid(child, &code, 0) != child)
        if (errno != EINTR)
            return WEFT_ERROR(WEFT_COMM, "cannot wait for %s: %s", words[0], strerror(errno));
    *exit_code = WIFEXITED(code) ? WEXITSTATUS(code) : 128 + WTERMSIG(code);
    return WEFT_OK;
}
