/* A job's files in the run's folder, and starting it. */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/file.h"
#include "launcher/jobs/job_internal.h"

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
    weft_job_print(job, number, out);
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
