#include "launcher/jobs/job.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "launcher/jobs/job_internal.h"
#include "launcher/jobs/quote.h"

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

void weft_job_print(const weft_job *job, int file, FILE *out)
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
