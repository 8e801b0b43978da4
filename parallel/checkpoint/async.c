/* The rank's side of an asynchronous save. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "comm/watch/watch.h"
#include "core/clock.h"
#include "parallel/checkpoint/keeper.h"
#include "parallel/checkpoint/writer_internal.h"

/* --- the process --------------------------------------------------------------------------- */

/* In the child. Signals that ask a run to stop reach all of its processes: the rank goes on until
 * its saves are done, and this one with it. */
static void become_writer(pid_t parent, int socket, int memory)
{
    static const int ignored[] = {SIGINT, SIGHUP, SIGTERM, SIGUSR1, SIGPIPE, SIGALRM};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++)
        signal(ignored[i], SIG_IGN);
    int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (nothing >= 0) {
        dup2(nothing, STDIN_FILENO);
        dup2(nothing, STDOUT_FILENO);
    }
    prctl(PR_SET_NAME, "weft writer");
    weft_writer_serve(socket, memory);
    _exit(0);
}

static weft_status start(weft_checkpoint_writer *w)
{
    int ends[2];
    pid_t self = getpid();
    w->memory = memfd_create("weft staging", MFD_CLOEXEC);
    if (w->memory < 0 || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
        return WEFT_ERROR(WEFT_MEMORY, "cannot start the writer of checkpoints: %s",
                          strerror(errno));
    w->pid = fork();
    if (w->pid == 0) {
        close(ends[0]);
        become_writer(self, ends[1], w->memory);
    }
    int reason = errno;
    close(ends[1]);
    w->socket = ends[0];
    if (w->pid > 0)
        return WEFT_OK;
    w->pid = 0;
    return WEFT_ERROR(WEFT_MEMORY, "cannot start the writer of checkpoints: %s", strerror(reason));
}

weft_status weft_checkpoint_writer_create(weft_checkpoint_writer **out)
{
    weft_checkpoint_writer *w = calloc(1, sizeof *w);
    if (!w)
        return WEFT_ERROR(WEFT_MEMORY, "no memory for the writer of checkpoints");
    w->socket = w->memory = -1;
    weft_status status = start(w);
    if (status != WEFT_OK) {
        weft_checkpoint_writer_destroy(w);
        return status;
    }
    *out = w;
    return WEFT_OK;
}

/* By a signal; one that a debugger holds is not. */
static bool is_stopped(pid_t pid)
{
    char path[32], text[512] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "r");
    const size_t bytes = file ? fread(text, 1, sizeof text - 1, file) : 0;
    const char *after = bytes > 0 ? strrchr(text, ')') : NULL;
    if (file)
        fclose(file);
    return after && strncmp(after, ") T", 3) == 0;
}

void weft_checkpoint_writer_destroy(weft_checkpoint_writer *w)
{
    if (!w)
        return;
    if (w->socket >= 0)
        close(w->socket);
    if (w->pid > 0 && (w->phase != WEFT_WRITER_IDLE || is_stopped(w->pid)))
        kill(w->pid, SIGKILL);
    while (w->pid > 0 && waitpid(w->pid, NULL, 0) < 0 && errno == EINTR)
        continue;
    if (w->memory >= 0)
        close(w->memory);
    weft_staging_release(&w->ring);
    weft_save_release(&w->save, false);
    weft_arena_release(&w->copies.arena);
    free(w);
}

/* --- what it answers ----------------------------------------------------------------------- */

static void lose(weft_checkpoint_writer *w)
{
    char how[64] = "";
    int status = 0;
    w->lost = true;
    /* It has closed its socket: it has ended, or is about to. */
    if (w->pid > 0 && waitpid(w->pid, &status, 0) == w->pid) {
        w->pid = 0;
        if (WIFSIGNALED(status))
            snprintf(how, sizeof how, ", killed by signal %d (%s)", WTERMSIG(status),
                     strsignal(WTERMSIG(status)));
    }
    (void)WEFT_ERROR(WEFT_FILE,
                     "the process that writes checkpoints has ended%s; from now on training waits "
                     "for its saves%s",
                     how, w->copies.on ? ", and no copies are made in other nodes' memory" : "");
    weft_error_take(&w->error);
}

/* SIGKILL ends what is stopped; one that hangs in a call of a dead disk ends when that returns. */
static void end_hung(weft_checkpoint_writer *w)
{
    const struct timespec pause = {.tv_nsec = 10000000};
    kill(w->pid, SIGKILL);
    for (int i = 0; i < 100 && waitpid(w->pid, NULL, WNOHANG) == 0; i++)
        nanosleep(&pause, NULL);
    w->pid = 0;
}

static void lose_hung(weft_checkpoint_writer *w, const char *how)
{
    char node[256] = "";
    gethostname(node, sizeof node - 1);
    w->lost = true;
    if (w->pid > 0)
        end_hung(w);
    (void)WEFT_ERROR(WEFT_FILE,
                     "the writer of rank %d (%s) %s; from now on training waits for its saves%s",
                     weft_comm_rank(w->world), node, how,
                     w->copies.on ? ", and no copies are made in other nodes' memory" : "");
    weft_error_take(&w->error);
}

static void expect_progress(weft_checkpoint_writer *w)
{
    w->silent_s = w->stopped_s = 0;
    w->looked_us = weft_now_us();
}

/* No look counts for more than a quarter of a limit: the rank itself may have been stopped.
 * Copies may wait for another node's writer, which the one that sends finds first. */
static void look_for_progress(weft_checkpoint_writer *w)
{
    enum { STOPPED_LIMIT_S = 10 };
    char how[80];
    const double now_us = weft_now_us(), past_s = (now_us - w->looked_us) / 1e6;
    const uint64_t taken = atomic_load(&w->ring.shared->taken);
    const double least_s = w->phase == WEFT_WRITER_COPYING ? 1.1 * WEFT_COPY_TIMEOUT_S : 0;
    const double limit_s = w->limit_s > least_s ? w->limit_s : least_s;
    if (w->limit_s <= 0 || w->lost)
        return;
    w->looked_us = now_us;
    w->silent_s = taken != w->taken ? 0 : w->silent_s;
    w->taken = taken;
    w->silent_s += past_s < limit_s / 4 ? past_s : limit_s / 4;
    const bool stopped = w->silent_s > 1 && w->pid > 0 && is_stopped(w->pid);
    w->stopped_s = stopped ? w->stopped_s + fmin(past_s, STOPPED_LIMIT_S / 4.0) : 0;
    if (w->silent_s > limit_s) {
        snprintf(how, sizeof how, "has made no progress for %.3g s (reliability.save_limit_s)",
                 w->silent_s);
        lose_hung(w, how);
    } else if (w->stopped_s > STOPPED_LIMIT_S) {
        snprintf(how, sizeof how, "has been stopped by a signal for %.3g s", w->stopped_s);
        lose_hung(w, how);
    }
}

static void take_hashes(weft_checkpoint_writer *w, const weft_writer_answer *a)
{
    for (int i = 0; i < a->count && w->num_hashes < w->save.shards.count; i++)
        w->save.shards.items[w->num_hashes++].hash = a->of.hashes[i];
}

static void take_answer(weft_checkpoint_writer *w, const weft_writer_answer *a)
{
    if (a->kind == WEFT_WRITER_DROPPED) {
        w->answered = true;
    } else if (w->phase == WEFT_WRITER_DROPPING) {
        return; /* of before */
    } else if (a->kind == WEFT_WRITER_HASHES) {
        take_hashes(w, a);
    } else if (a->kind == WEFT_WRITER_DONE) {
        w->answered = true;
        w->count = a->count;
        if (w->phase == WEFT_WRITER_WRITING || w->phase == WEFT_WRITER_COPYING)
            w->report.written_us = a->us;
        else if (w->phase == WEFT_WRITER_VERIFYING)
            w->report.verified_us = a->us;
        if (a->status != WEFT_OK) {
            (void)WEFT_ERROR((weft_status)a->status, "%s", a->of.text);
            weft_error_take(&w->error);
        }
    }
}

/* All that is there. */
static void take_answers(weft_checkpoint_writer *w)
{
    weft_writer_answer a;
    weft_error before;
    weft_error_take(&before); /* what another's words are made in */
    while (!w->lost) {
        ssize_t got = recv(w->socket, &a, sizeof a, MSG_DONTWAIT);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            break;
        w->silent_s = 0;
        if (got != (ssize_t)sizeof a)
            lose(w);
        else
            take_answer(w, &a);
    }
    if (w->phase != WEFT_WRITER_IDLE && !w->answered)
        look_for_progress(w);
    weft_error_put(&before);
}

weft_writer_word weft_checkpoint_writer_word(weft_checkpoint_writer *w)
{
    if (w->off)
        return WEFT_WRITER_READY;
    take_answers(w);
    if (w->lost)
        return WEFT_WRITER_LOST;
    if (w->phase == WEFT_WRITER_IDLE)
        return WEFT_WRITER_READY;
    if (w->phase != WEFT_WRITER_DROPPING && w->error.status != WEFT_OK)
        return WEFT_WRITER_FAILED;
    return w->answered ? WEFT_WRITER_READY : WEFT_WRITER_BUSY;
}

/* --- what it is told ----------------------------------------------------------------------- */

/* A wake that does not fit comes after many others. */
weft_status weft_writer_show(weft_checkpoint_writer *w)
{
    const char wake = 0;
    if (w->save.lane)
        WEFT_TRY(weft_lane_sync(w->save.lane));
    if (weft_staging_show(&w->ring))
        send(w->socket, &wake, sizeof wake, MSG_NOSIGNAL | MSG_DONTWAIT);
    return WEFT_OK;
}

/* In a loop of waits, which the writer's own limit ends. */
static void wait_for_writer(weft_checkpoint_writer *w)
{
    weft_error before;
    weft_error_take(&before);
    look_for_progress(w);
    weft_error_put(&before);
    weft_watch_go_on();
}

weft_status weft_writer_wait(weft_checkpoint_writer *w)
{
    w->answered = false;
    WEFT_TRY(weft_writer_show(w));
    while (!w->answered && !w->lost) {
        struct pollfd fd = {.fd = w->socket, .events = POLLIN};
        poll(&fd, 1, 100);
        take_answers(w);
    }
    return w->lost ? WEFT_OK : weft_error_put(&w->error);
}

/* Room in the ring, waiting for the writer; its memory is to be filled before the next show. A
 * writer that is lost takes no more: *out is NULL. */
static weft_status put_entry(weft_checkpoint_writer *w, weft_writer_entry kind, size_t bytes,
                             void **out)
{
    double start = 0;
    *out = w->lost ? NULL : weft_staging_put(&w->ring, kind, bytes);
    if (*out || w->lost)
        return WEFT_OK;
    WEFT_TRY(weft_writer_show(w));
    start = weft_now_us();
    expect_progress(w);
    while (!*out && !w->lost) {
        weft_staging_wait_for_room(&w->ring);
        *out = weft_staging_put(&w->ring, kind, bytes);
        if (*out)
            break;
        struct pollfd fd = {.fd = w->socket, .events = POLLIN};
        poll(&fd, 1, 100);
        take_answers(w);
        wait_for_writer(w);
    }
    w->report.waited_us += weft_now_us() - start;
    return WEFT_OK;
}

weft_status weft_writer_put_bytes(weft_checkpoint_writer *w, weft_writer_entry kind,
                                  const void *bytes, size_t count)
{
    void *room;
    WEFT_TRY(put_entry(w, kind, count, &room));
    if (room && count > 0)
        memcpy(room, bytes, count);
    return WEFT_OK;
}

weft_status weft_writer_put_list(weft_checkpoint_writer *w, weft_writer_entry kind,
                                 const void *items, size_t count, size_t item_bytes)
{
    const size_t most = WEFT_WRITER_LIST_BYTES / item_bytes;
    for (size_t at = 0; at < count; at += most) {
        const size_t some = count - at < most ? count - at : most;
        WEFT_TRY(weft_writer_put_bytes(w, kind, (const char *)items + at * item_bytes,
                                       some * item_bytes));
    }
    return WEFT_OK;
}

weft_status weft_writer_put_text(weft_checkpoint_writer *w, weft_writer_entry kind,
                                 const char *text)
{
    return text ? weft_writer_put_list(w, kind, text, strlen(text), 1) : WEFT_OK;
}

/* --- a save -------------------------------------------------------------------------------- */

void weft_checkpoint_writer_limit(weft_checkpoint_writer *w, double seconds)
{
    w->limit_s = seconds;
}

bool weft_checkpoint_writer_is_busy(const weft_checkpoint_writer *w)
{
    return w->phase != WEFT_WRITER_IDLE;
}

bool weft_checkpoint_writer_is_off(const weft_checkpoint_writer *w)
{
    return w->off;
}

weft_writer_report weft_checkpoint_writer_report(const weft_checkpoint_writer *w)
{
    return w->report;
}

typedef struct snapshot {
    weft_save_run run;
    weft_checkpoint_writer *writer;
} snapshot;

static weft_status copy_slab(void *context, const weft_slab *slab)
{
    snapshot *c = context;
    weft_checkpoint_writer *w = c->writer;
    weft_save *s = &w->save;
    const weft_stored_shard shard = weft_save_shard(&c->run, slab);
    const size_t bytes = weft_writer_slab_bytes(slab, c->run.piece.placed->box.num_dims);
    void *room;
    WEFT_TRY(weft_shard_append(&s->shards, &s->arena, &shard));
    WEFT_TRY(put_entry(w, WEFT_WRITER_SLAB, bytes, &room));
    if (!room)
        return WEFT_OK;
    memcpy(room, &shard, sizeof shard);
    w->report.bytes += bytes - sizeof shard;
    return weft_lane_copy(s->lane, (char *)room + sizeof shard,
                          c->run.data + (slab->local_offset - c->run.piece.first),
                          bytes - sizeof shard);
}

static weft_status copy_run(void *context, size_t first, size_t count)
{
    snapshot *c = context;
    return weft_box_visit(&c->run.piece.placed->box, first, count, copy_slab, c);
}

weft_status weft_writer_put_state(weft_checkpoint_writer *w)
{
    snapshot c = {.writer = w};
    return weft_save_visit(&w->save, &c.run, copy_run);
}

static weft_status take_snapshot(weft_checkpoint_writer *w, const weft_checkpoint_keep *keep)
{
    weft_save *s = &w->save;
    weft_writer_open open = {
        .info = s->info, .keep = *keep, .leads = weft_comm_rank(s->world) == 0};
    snprintf(open.dir, sizeof open.dir, "%s", s->dir);
    WEFT_TRY(weft_writer_put_bytes(w, WEFT_WRITER_OPEN, &open, sizeof open));
    WEFT_TRY(weft_writer_put_list(w, WEFT_WRITER_DATASETS, s->datasets.items,
                                  (size_t)s->datasets.count, sizeof *s->datasets.items));
    WEFT_TRY(weft_writer_put_state(w));
    WEFT_TRY(weft_writer_put_bytes(w, WEFT_WRITER_FLUSH, NULL, 0));
    return weft_writer_show(w);
}

void weft_writer_enter(weft_checkpoint_writer *w, weft_writer_phase next, bool takes_part)
{
    w->phase = next;
    w->answered = !takes_part;
    expect_progress(w);
}

static void end_save(weft_checkpoint_writer *w)
{
    weft_save_release(&w->save, false);
    weft_error_clear();
    w->error = (weft_error){.status = WEFT_OK};
    w->phase = WEFT_WRITER_IDLE;
}

weft_status weft_writer_drop(weft_checkpoint_writer *w, weft_status status)
{
    weft_error error;
    weft_error_take(&error);
    weft_lane_destroy(w->save.lane); /* whose copies may have failed */
    w->save.lane = NULL;
    weft_writer_enter(w, WEFT_WRITER_DROPPING, true);
    if (weft_writer_put_bytes(w, WEFT_WRITER_DROP, NULL, 0) != WEFT_OK ||
        weft_writer_show(w) != WEFT_OK)
        weft_error_clear();
    weft_error_put(&error);
    return status;
}

static weft_status fill(weft_checkpoint_writer *w, const char *dir, const char *config_text,
                        const char *tokenizer_text)
{
    weft_arena *arena = &w->save.arena;
    if (strlen(dir) >= sizeof((weft_writer_open *)NULL)->dir)
        return WEFT_ERROR(WEFT_FILE, "%.200s...: the path is too long", dir);
    WEFT_TRY(weft_arena_strdup(arena, dir, &w->save.dir));
    WEFT_TRY(weft_arena_strdup(arena, config_text, &w->config_text));
    w->tokenizer_text = NULL;
    return tokenizer_text ? weft_arena_strdup(arena, tokenizer_text, &w->tokenizer_text) : WEFT_OK;
}

weft_status weft_checkpoint_begin(weft_checkpoint_writer *w, const char *dir,
                                  const weft_checkpoint_info *info,
                                  const weft_checkpoint_keep *keep,
                                  const weft_parameters *parameters,
                                  const weft_optimizer *optimizer, const char *config_text,
                                  const char *tokenizer_text)
{
    const double start = weft_now_us();
    w->save = (weft_save){
        .info = *info, .parameters = parameters, .optimizer = optimizer, .world = w->world};
    w->report = (weft_writer_report){.step = info->step};
    w->num_hashes = 0;
    weft_status status = weft_save_open(&w->save, fill(w, dir, config_text, tokenizer_text));
    if (status != WEFT_OK) {
        weft_save_release(&w->save, true);
        return status;
    }
    status = weft_comm_agree(w->world, take_snapshot(w, keep));
    w->report.stalled_us = weft_now_us() - start;
    if (status != WEFT_OK)
        return weft_writer_drop(w, status);
    weft_writer_enter(w, WEFT_WRITER_WRITING, true);
    return WEFT_OK;
}

/* All have written: who verifies what. */
static weft_status verify(weft_checkpoint_writer *w)
{
    weft_save *s = &w->save;
    weft_status status = weft_comm_agree(s->world, weft_save_gather(s));
    if (status == WEFT_OK && weft_comm_rank(s->world) == 0)
        status = weft_shards_check_cover(s->model, &s->datasets, &s->shards);
    if (status == WEFT_OK)
        status = weft_writer_put_list(w, WEFT_WRITER_SHARDS, s->dealt.items, s->dealt.count,
                                      sizeof *s->dealt.items);
    if (status == WEFT_OK)
        status = weft_writer_put_bytes(w, WEFT_WRITER_VERIFY, NULL, 0);
    if (status == WEFT_OK)
        status = weft_writer_show(w);
    status = weft_comm_agree(s->world, status);
    if (status != WEFT_OK)
        return weft_writer_drop(w, status);
    weft_writer_enter(w, WEFT_WRITER_VERIFYING, true);
    return WEFT_OK;
}

static weft_status tell_publish(weft_checkpoint_writer *w)
{
    const weft_save *s = &w->save;
    WEFT_TRY(weft_writer_put_list(w, WEFT_WRITER_SHARDS, s->shards.items, s->shards.count,
                                  sizeof *s->shards.items));
    WEFT_TRY(weft_writer_put_text(w, WEFT_WRITER_CONFIG, w->config_text));
    WEFT_TRY(weft_writer_put_text(w, WEFT_WRITER_TOKENIZER, w->tokenizer_text));
    WEFT_TRY(weft_writer_put_bytes(w, WEFT_WRITER_PUBLISH, NULL, 0));
    return weft_writer_show(w);
}

static weft_status publish(weft_checkpoint_writer *w)
{
    const bool leads = weft_comm_rank(w->save.world) == 0;
    WEFT_TRY(leads ? tell_publish(w) : WEFT_OK);
    weft_writer_enter(w, WEFT_WRITER_PUBLISHING, leads);
    return WEFT_OK;
}

/* The error of whoever has one. Without its writer a rank cannot go on so. */
static weft_status give_up(weft_checkpoint_writer *w, weft_writer_word word)
{
    weft_status status = weft_comm_agree(w->world, weft_error_put(&w->error));
    if (word == WEFT_WRITER_FAILED)
        return weft_writer_drop(w, status);
    weft_error error;
    weft_error_take(&error);
    w->off = true;
    weft_save_release(&w->save, true);
    end_save(w);
    return weft_error_put(&error);
}

weft_status weft_checkpoint_advance(weft_checkpoint_writer *w, weft_writer_word word,
                                    bool *out_published)
{
    *out_published = false;
    if (word == WEFT_WRITER_BUSY || w->off)
        return WEFT_OK;
    if (word != WEFT_WRITER_READY)
        return give_up(w, word);
    switch (w->phase) {
    case WEFT_WRITER_IDLE:
        return WEFT_OK;
    case WEFT_WRITER_WRITING:
        return verify(w);
    case WEFT_WRITER_VERIFYING:
        return publish(w);
    case WEFT_WRITER_PUBLISHING:
        *out_published = true;
        break;
    case WEFT_WRITER_COPYING:
        w->copies.turn = (w->copies.turn + 1) % WEFT_COPY_SLOTS;
        break;
    case WEFT_WRITER_DROPPING:
        break;
    }
    end_save(w);
    return WEFT_OK;
}

weft_status weft_checkpoint_finish(weft_checkpoint_writer *w, bool *out_published)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    *out_published = false;
    while (w->phase != WEFT_WRITER_IDLE) {
        int64_t word = weft_checkpoint_writer_word(w);
        WEFT_TRY(weft_comm_all_reduce_host(w->world, &word, 1, WEFT_I64, WEFT_REDUCE_MAX));
        weft_watch_go_on(); /* the ranks get on; a writer has a limit of its own */
        if (word == WEFT_WRITER_BUSY)
            nanosleep(&pause, NULL);
        WEFT_TRY(weft_checkpoint_advance(w, (weft_writer_word)word, out_published));
    }
    return WEFT_OK;
}
