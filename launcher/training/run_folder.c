#include "launcher/training/run_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/file.h"
#include "core/log.h"
#include "core/text.h"
#include "launcher/planning/step.h"
#include "launcher/training/ledger.h"
#include "parallel/checkpoint/checkpoint.h"

/* --- where it starts ----------------------------------------------------------------------- */

/* The checkpoints of a run. */
typedef struct found {
    const char *folder; /* RUN/checkpoints */
    int64_t *steps;     /* steps of whole checkpoints, rising */
    size_t count;
    bool has_latest;
    int64_t last; /* the step in `latest`; later checkpoints are of abandoned steps */
} found;

static weft_status read_last(const char *latest, weft_arena *arena, int64_t *out)
{
    char *text;
    WEFT_TRY(weft_file_read_text(latest, arena, &text, NULL));
    if (sscanf(text, "step-%" SCNd64, out) != 1)
        *out = INT64_MAX;
    return WEFT_OK;
}

static weft_status find(const char *run, weft_arena *arena, found *out)
{
    const char *latest;
    WEFT_TRY(weft_arena_printf(arena, &out->folder, "%s/checkpoints", run));
    WEFT_TRY(weft_arena_printf(arena, &latest, "%s/latest", out->folder));
    out->has_latest = access(latest, F_OK) == 0;
    out->last = INT64_MAX;
    if (out->has_latest && read_last(latest, arena, &out->last) != WEFT_OK)
        weft_error_clear(); /* an unreadable `latest` counts as missing */
    return weft_checkpoint_list(out->folder, arena, &out->steps, &out->count);
}

static weft_status find_step(const found *f, size_t i, weft_arena *arena, const char **out)
{
    const char *folder;
    WEFT_TRY(weft_arena_printf(arena, &folder, "%s/step-%" PRId64, f->folder, f->steps[i]));
    return weft_checkpoint_resolve(folder, arena, out);
}

static weft_status refuse_to_start_over(const weft_run_folder *folder, const found *f)
{
    char which[64] = "";
    if (f->count > 0)
        snprintf(which, sizeof which, " (the newest: step-%" PRId64 ")", f->steps[f->count - 1]);
    return WEFT_ERROR(WEFT_CONFIG,
                      "%s: holds checkpoints already%s; give --resume to go on, or another --out",
                      folder->path, which);
}

/* A run that has saved and has no checkpoint has lost them. */
static weft_status check_lost(const weft_run_folder *folder, weft_arena *arena)
{
    const char *path;
    weft_ledger_account account = {0};
    WEFT_TRY(weft_arena_printf(arena, &path, "%s/ledger.jsonl", folder->path));
    weft_status status = weft_ledger_read(path, &account);
    if (status == WEFT_OK && account.saved > 0)
        status = WEFT_ERROR(WEFT_FILE,
                            "%s/checkpoints: has no checkpoint, but the run has saved step %" PRId64
                            ": restore them to go on, or start anew without --resume or with "
                            "another --out",
                            folder->path, account.saved);
    weft_ledger_account_release(&account);
    return status;
}

static weft_status find_named(const weft_run_folder *folder, const found *f, weft_arena *arena,
                              weft_run_start *out)
{
    char name[32], list[160] = "";
    size_t used = 0;
    if (!*folder->from)
        return WEFT_ERROR(WEFT_CONFIG, "--resume-from: names no checkpoint; step-400 is one");
    for (size_t i = f->count; i-- > 0;) {
        snprintf(name, sizeof name, "step-%" PRId64, f->steps[i]);
        if (strcmp(name, folder->from) == 0 || strcmp(name + strlen("step-"), folder->from) == 0)
            return find_step(f, i, arena, &out->checkpoint);
        if (used + 32 < sizeof list)
            used +=
                (size_t)snprintf(list + used, sizeof list - used, "%s%s", used ? ", " : "", name);
    }
    return WEFT_ERROR(WEFT_CONFIG, "--resume-from %s: %s has no such checkpoint%s%s", folder->from,
                      folder->path, used ? "; it has " : "", list);
}

/* The newest checkpoint that is older than `below` and not beyond `latest`; -1: none. */
static int64_t older(const found *f, int64_t below)
{
    for (size_t i = f->count; i-- > 0;)
        if (f->steps[i] < below && f->steps[i] <= f->last)
            return (int64_t)i;
    return -1;
}

/* The checkpoint in `latest`; if that is missing, the newest one not beyond it. A single checkpoint
 * without `latest` comes from a first save that was killed before its last rename. */
static weft_status find_newest(const found *f, weft_arena *arena, weft_run_start *out,
                               int64_t *out_step)
{
    *out_step = f->last;
    if (f->has_latest) {
        weft_status status = weft_checkpoint_resolve(f->folder, arena, &out->checkpoint);
        if (status == WEFT_OK || f->count == 0)
            return status;
    }
    out->latest_is_lost = f->has_latest || f->count > 1;
    int64_t i = older(f, INT64_MAX);
    if (i < 0)
        i = (int64_t)f->count - 1;
    *out_step = f->steps[i];
    return find_step(f, (size_t)i, arena, &out->checkpoint);
}

/* The checkpoint's step, unless it is damaged. */
static weft_status look_at(weft_run_start *start)
{
    weft_checkpoint_info info;
    WEFT_TRY(weft_checkpoint_read_info(start->checkpoint, &info));
    start->step = info.step;
    return WEFT_OK;
}

/* The newest checkpoint below folder->below with undamaged texts; without one, the first error. */
static weft_status find_whole(const weft_run_folder *folder, const found *f, weft_arena *arena,
                              weft_run_start *out)
{
    int64_t step = folder->below;
    if (step == 0) {
        WEFT_TRY(find_newest(f, arena, out, &step));
        if (look_at(out) == WEFT_OK)
            return WEFT_OK;
        WEFT_TRY(weft_run_pass_over(out));
    }
    for (int64_t i; (i = older(f, step)) >= 0; step = f->steps[i]) {
        WEFT_TRY(find_step(f, (size_t)i, arena, &out->checkpoint));
        if (look_at(out) == WEFT_OK)
            return WEFT_OK;
        WEFT_TRY(weft_run_pass_over(out));
    }
    out->checkpoint = out->damaged;
    return out->num_damaged > 0 ? weft_run_name_whole(folder, out, weft_error_put(&out->damage))
                                : WEFT_ERROR(WEFT_FILE, "%s: no checkpoint before step %" PRId64,
                                             folder->path, folder->below);
}

weft_status weft_run_pass_over(weft_run_start *start)
{
    weft_error error;
    weft_error_take(&error);
    if (error.status != WEFT_FILE)
        return weft_error_put(&error);
    if (start->num_damaged++ == 0) {
        start->damaged = start->checkpoint;
        start->damage = error;
    }
    return WEFT_OK;
}

/* Refuses checkpoints of later steps by a newer Weft, which would block this run's saves. */
static weft_status check_later(const found *f, const weft_run_start *start, weft_arena *arena)
{
    for (size_t i = 0; i < f->count; i++) {
        const char *checkpoint;
        if (f->steps[i] <= start->step)
            continue;
        WEFT_TRY(find_step(f, i, arena, &checkpoint));
        WEFT_TRY(weft_checkpoint_check_format(checkpoint));
    }
    return WEFT_OK;
}

weft_status weft_run_find_start(const weft_run_folder *folder, weft_arena *arena,
                                weft_run_start *out)
{
    found f = {0};
    weft_run_start start = {0};
    struct stat info;
    if (stat(folder->path, &info) == 0 && !S_ISDIR(info.st_mode))
        return WEFT_ERROR(WEFT_FILE, "%s: a file, and a run takes a folder: give another --out",
                          folder->path);
    WEFT_TRY(find(folder->path, arena, &f));
    bool has_any = f.has_latest || f.count > 0;
    if (!folder->resume && has_any)
        return refuse_to_start_over(folder, &f);
    if (folder->from) {
        WEFT_TRY(find_named(folder, &f, arena, &start));
        WEFT_TRY(weft_run_name_whole(folder, &start, look_at(&start)));
    } else if (has_any) {
        WEFT_TRY(find_whole(folder, &f, arena, &start));
    } else if (folder->resume) {
        WEFT_TRY(check_lost(folder, arena));
    }
    WEFT_TRY(check_later(&f, &start, arena));
    *out = start;
    return WEFT_OK;
}

int64_t weft_run_fallback(const weft_config *config)
{
    const int64_t most = config->checkpoint.fallback;
    return most > 0 && config->reliability.max_restarts > 0 ? INT64_MAX : most;
}

weft_status weft_run_check_fallback(const weft_run_folder *folder, const weft_run_start *start,
                                    int64_t most)
{
    weft_run_start newest = {.checkpoint = start->damaged};
    if (start->num_damaged <= most)
        return WEFT_OK;
    return weft_run_name_whole(folder, &newest, weft_error_put(&start->damage));
}

void weft_run_tell_damage(const weft_run_start *start, const char *when)
{
    const weft_error *damage = &start->damage;
    char others[64] = "";
    if (start->num_damaged == 0)
        return;
    if (start->num_damaged > 1)
        snprintf(others, sizeof others, ", and %s",
                 weft_count_text(start->num_damaged - 1, "more checkpoint").text);
    weft_log(WEFT_LOG_WARN, "%s: %s is taken: %s is damaged%s: %s", when, start->checkpoint,
             start->damaged, others,
             damage->text + (damage->found_by == 0 ? damage->own_at : 0)); /* rank 0's own line */
}

/* The newest whole checkpoint but the start's, not beyond `latest`; NULL: none. */
static weft_status find_other(const weft_run_folder *folder, const weft_run_start *start,
                              weft_arena *arena, const char **out)
{
    found f = {0};
    *out = NULL;
    WEFT_TRY(find(folder->path, arena, &f));
    for (size_t i = f.count; i-- > 0;) {
        const char *checkpoint;
        if (f.steps[i] > f.last)
            continue;
        WEFT_TRY(find_step(&f, i, arena, &checkpoint));
        if (strcmp(checkpoint, start->checkpoint) != 0 &&
            weft_checkpoint_verify(checkpoint) == WEFT_OK)
            return weft_arena_printf(arena, out, "step-%" PRId64, f.steps[i]);
    }
    return WEFT_OK;
}

static void append(weft_error *error, const char *text)
{
    const size_t room = sizeof error->text - strlen(text) - 1, kept = strlen(error->text);
    snprintf(error->text + (kept < room ? kept : room), strlen(text) + 1, "%s", text);
}

weft_status weft_run_name_whole(const weft_run_folder *folder, const weft_run_start *start,
                                weft_status status)
{
    weft_arena arena = {0};
    weft_error error;
    const char *other = NULL;
    if (status != WEFT_FILE || !start->checkpoint)
        return status;
    weft_error_take(&error);
    bool damaged = weft_checkpoint_verify(start->checkpoint) != WEFT_OK;
    if (damaged && find_other(folder, start, &arena, &other) == WEFT_OK) {
        char add[128] = "; no other checkpoint there is whole";
        if (other)
            snprintf(add, sizeof add, "; %s is whole: go on from it with --resume-from %s", other,
                     other);
        append(&error, add);
    }
    weft_arena_release(&arena);
    weft_error_put(&error);
    return status;
}

/* The newest whole checkpoint in `folder` but `checkpoint` (NULL: any); NULL: none. */
static weft_status find_beside(const char *folder, const char *checkpoint, weft_arena *arena,
                               const char **out)
{
    found f = {.folder = folder};
    *out = NULL;
    WEFT_TRY(weft_checkpoint_list(folder, arena, &f.steps, &f.count));
    for (size_t i = f.count; i-- > 0;) {
        const char *other;
        WEFT_TRY(find_step(&f, i, arena, &other));
        if ((checkpoint && strcmp(other, checkpoint) == 0) ||
            weft_checkpoint_verify(other) != WEFT_OK)
            continue;
        *out = other;
        break;
    }
    return WEFT_OK;
}

weft_status weft_run_name_beside(const char *given, const char *checkpoint, weft_status status)
{
    const char *slash = checkpoint ? strrchr(checkpoint, '/') : NULL, *folder, *other = NULL;
    weft_arena arena = {0};
    weft_error error;
    char add[300];
    if (status != WEFT_FILE)
        return status;
    weft_error_take(&error);
    const bool damaged = !checkpoint || weft_checkpoint_verify(checkpoint) != WEFT_OK;
    weft_status looked =
        slash ? weft_arena_printf(&arena, &folder, "%.*s", (int)(slash - checkpoint), checkpoint)
              : weft_arena_printf(&arena, &folder, "%s%s", checkpoint ? "." : given,
                                  checkpoint ? "" : "/checkpoints");
    if (damaged && looked == WEFT_OK)
        looked = find_beside(folder, checkpoint, &arena, &other);
    if (other && strlen(other) < sizeof add / 2) {
        snprintf(add, sizeof add, "; %s is whole: give that", other);
        append(&error, add);
    }
    weft_arena_release(&arena);
    weft_error_put(&error);
    return status;
}

/* --- who works in it ----------------------------------------------------------------------- */

static weft_status lock_path(const weft_run_folder *folder, char out[4096])
{
    return weft_path_print(out, 4096, "%s/.lock", folder->path);
}

/* The holder of the lock has written its name into the file. */
static weft_status refuse_second(const weft_run_folder *folder, int fd)
{
    char who[300] = "";
    ssize_t length = pread(fd, who, sizeof who - 1, 0);
    who[length > 0 ? length : 0] = '\0';
    who[strcspn(who, "\n")] = '\0';
    return WEFT_ERROR(WEFT_CONFIG,
                      "%s: another training is at work there%s%s; wait for its end, "
                      "or give another --out",
                      folder->path, who[0] ? ": " : "", who);
}

/* Waits up to a second for a training that is ending: a killed process releases its lock shortly
 * after its parent has noticed. */
static int lock_within_a_second(int fd)
{
    struct timespec pause = {.tv_nsec = 20000000};
    int failed = -1;
    for (int tries = 0; tries < 50; tries++) {
        failed = flock(fd, LOCK_EX | LOCK_NB);
        if (!failed || (errno != EWOULDBLOCK && errno != EINTR))
            return failed;
        nanosleep(&pause, NULL);
    }
    errno = EWOULDBLOCK;
    return failed;
}

/* Locks the file; *busy: another process has the lock. *fd -1: the file system has no locks. */
static weft_status take(const char *path, int flags, int *fd, bool *busy)
{
    *busy = false;
    *fd = open(path, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
    if (*fd < 0 && errno == ELOOP)
        return WEFT_ERROR(WEFT_FILE, "%s: a symbolic link, which is not followed: remove it", path);
    if (*fd < 0)
        return WEFT_ERROR(WEFT_FILE, "%s: %s", path, strerror(errno));
    int failed = lock_within_a_second(*fd);
    *busy = failed && errno == EWOULDBLOCK;
    if (failed && !*busy) {
        close(*fd);
        *fd = -1;
    }
    return WEFT_OK;
}

weft_status weft_run_check_free(const weft_run_folder *folder)
{
    char path[4096];
    int fd;
    bool busy;
    WEFT_TRY(lock_path(folder, path));
    if (access(path, F_OK) != 0)
        return WEFT_OK;
    WEFT_TRY(take(path, O_RDWR, &fd, &busy));
    weft_status status = busy ? refuse_second(folder, fd) : WEFT_OK;
    if (fd >= 0)
        close(fd);
    return status;
}

/* Finds the start again under the lock: another training may have run in between. */
static weft_status look_again(const weft_run_folder *folder, const weft_run_start *start)
{
    weft_arena arena = {0};
    weft_run_start now;
    weft_status status = weft_run_find_start(folder, &arena, &now);
    bool same = status == WEFT_OK && !start->checkpoint == !now.checkpoint &&
                start->step == now.step &&
                (!now.checkpoint || strcmp(start->checkpoint, now.checkpoint) == 0);
    weft_arena_release(&arena);
    if (status == WEFT_OK && !same)
        return WEFT_ERROR(WEFT_CONFIG,
                          "%s: another training has worked there just now: start again",
                          folder->path);
    return status;
}

weft_status weft_run_lock(const weft_run_folder *folder, const weft_run_start *start, int *out_lock)
{
    char path[4096], host[256] = "", who[300];
    bool busy;
    int fd;
    WEFT_TRY(lock_path(folder, path));
    WEFT_TRY(take(path, O_RDWR | O_CREAT, &fd, &busy));
    weft_status status = busy ? refuse_second(folder, fd) : look_again(folder, start);
    if (status != WEFT_OK) {
        if (fd >= 0)
            close(fd);
        return status;
    }
    if (fd < 0) {
        weft_log(WEFT_LOG_WARN, "%s: no locks on this file system; let one training at a time in",
                 folder->path);
    } else {
        gethostname(host, sizeof host - 1);
        int length = snprintf(who, sizeof who, "pid %d on %s\n", (int)getpid(), host);
        errno = ENOSPC; /* of a part that is written */
        if (ftruncate(fd, 0) != 0 || pwrite(fd, who, (size_t)length, 0) != length) {
            status = WEFT_ERROR(WEFT_FILE, "%s: cannot write: %s", path, strerror(errno));
            unlink(path);
            close(fd);
            return status;
        }
    }
    *out_lock = fd;
    return WEFT_OK;
}

/* Of a checkpoint: each parameter with its moments. */
static weft_status find_bytes(const weft_config *config, weft_arena *arena, uint64_t *out)
{
    const weft_moe_options moe = {.pipeline = {.num_partitions = 1}};
    const weft_model_setup setup = weft_step_setup(config, &moe);
    weft_listed_parameter *listed;
    uint64_t elements = 0;
    size_t count, datasets = 0;
    WEFT_TRY(weft_model_list_parameters(&setup, weft_config_build(config), arena, &listed, &count));
    for (size_t i = 0; i < count; i++) {
        const int kinds = WEFT_NUM_STATES - (setup.muon && listed[i].is_matrix);
        uint64_t each = 1;
        for (int d = 0; d < listed[i].num_dims; d++)
            each *= listed[i].dims[d];
        elements += each * (uint64_t)kinds;
        datasets += (size_t)kinds;
    }
    *out = weft_checkpoint_file_bytes(elements, datasets);
    return WEFT_OK;
}

weft_status weft_run_check_room(const weft_run_folder *folder, const weft_config *config,
                                bool writes, weft_arena *arena)
{
    weft_status status = WEFT_OK;
    uint64_t bytes = 0;
    char all[4096], trial[4096 + 8];
    if (config->checkpoint.no_save)
        return WEFT_OK;
    WEFT_TRY(find_bytes(config, arena, &bytes));
    WEFT_TRY(weft_path_print(all, sizeof all, "%s/checkpoints", folder->path));
    if (!writes)
        return weft_file_ask_room(all, "a checkpoint", bytes);
    snprintf(trial, sizeof trial, "%s/.trial", all);
    const bool is_new = mkdir(all, 0777) == 0;
    FILE *file = weft_file_create(trial);
    if (!file)
        status =
            WEFT_ERROR(WEFT_FILE, "%s: no checkpoint can be saved there: %s", all, strerror(errno));
    else
        status = weft_file_reserve(fileno(file), all, "a checkpoint", bytes);
    if (file) {
        fclose(file);
        unlink(trial);
    }
    if (is_new)
        rmdir(all);
    return status;
}

/* What the lock's holder wrote; "" where there is no such file. */
static void read_lock(const char *path, char who[300])
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    ssize_t length = fd < 0 ? 0 : pread(fd, who, 299, 0);
    if (fd >= 0)
        close(fd);
    who[length > 0 ? length : 0] = '\0';
}

weft_status weft_run_check_shared(const weft_run_folder *folder, weft_comm *world)
{
    const struct timespec pause = {.tv_nsec = 100000000};
    char path[4096], said[300] = "", seen[300] = "";
    WEFT_TRY(lock_path(folder, path));
    read_lock(path, said);
    WEFT_TRY(weft_comm_broadcast_host(world, said, sizeof said, 0));
    for (int tries = 0; tries < 300; tries++) {
        read_lock(path, seen);
        if (strcmp(seen, said) == 0 && access(path, F_OK) == 0)
            return WEFT_OK;
        nanosleep(&pause, NULL);
    }
    return WEFT_ERROR(WEFT_FILE,
                      "%s: what rank 0 made there is not seen here: a run needs a folder that all "
                      "nodes share",
                      folder->path);
}

/* --- what was imported --------------------------------------------------------------------- */

static weft_status copy_text(const char *from, const char *to, const char *name)
{
    weft_arena arena = {0};
    const char *source, *target = NULL;
    char *text = NULL;
    size_t bytes = 0;
    weft_new_file file;
    weft_status status = weft_arena_printf(&arena, &source, "%s/%s", from, name);
    if (status == WEFT_OK)
        status = weft_arena_printf(&arena, &target, "%s/%s", to, name);
    if (status == WEFT_OK)
        status = weft_file_read_text(source, &arena, &text, &bytes);
    if (status == WEFT_OK)
        status = weft_new_file_open(target, &file);
    if (status == WEFT_OK) {
        fwrite(text, 1, bytes, file.file); /* the stream keeps its error */
        status = weft_new_file_close(&file, WEFT_OK);
    }
    weft_arena_release(&arena);
    return status;
}

/* config.json goes last: a folder without it is none. */
static weft_status copy_source(const char *from, const char *to)
{
    DIR *folder = opendir(from);
    weft_status status = WEFT_OK;
    if (!folder || (mkdir(to, 0777) != 0 && errno != EEXIST))
        status = WEFT_ERROR(WEFT_FILE, "%s: cannot be copied to %s: %s", from, to, strerror(errno));
    for (const struct dirent *entry; status == WEFT_OK && (entry = readdir(folder));)
        if (entry->d_name[0] != '.' && strcmp(entry->d_name, "config.json") != 0)
            status = copy_text(from, to, entry->d_name);
    if (folder)
        closedir(folder);
    return status == WEFT_OK ? copy_text(from, to, "config.json") : status;
}

weft_status weft_run_keep_source(const char *run, const char *from)
{
    weft_arena arena = {0};
    const char *source, *target = NULL, *config = NULL;
    weft_status status = weft_checkpoint_run(from, &arena, &source);
    if (status == WEFT_OK)
        status = weft_arena_printf(&arena, &source, "%s/source", source);
    if (status == WEFT_OK)
        status = weft_arena_printf(&arena, &target, "%s/source", run);
    if (status == WEFT_OK)
        status = weft_arena_printf(&arena, &config, "%s/config.json", source);
    if (status == WEFT_OK && access(config, F_OK) == 0)
        status = copy_source(source, target);
    weft_arena_release(&arena);
    return status;
}
