#include "core/device/worker.h"

#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/device/busy.h"
#include "core/clock.h"
#include "core/device/ops.h"

typedef struct slot {
    weft_lane_function function; /* NULL ends the thread */
    const char *label;
    _Alignas(16) unsigned char args[WEFT_LANE_MAX_ARGS_BYTES];
} slot;

struct weft_worker {
    weft_lane *lane;
    weft_timeline *line; /* the lane's */
    weft_worker_hooks hooks;
    pthread_t thread;
    int nice;
    weft_counter pushed;
    slot slots[WEFT_WORKER_SLOTS];
};

static _Thread_local weft_device *current_device;

weft_device *weft_lane_current_device(void)
{
    return current_device;
}

/* --- timelines ----------------------------------------------------------------------------- */

weft_timeline *weft_timeline_create(void)
{
    weft_timeline *line = aligned_alloc(WEFT_CACHE_LINE, sizeof *line);
    if (!line)
        return NULL;
    memset(line, 0, sizeof *line);
    weft_counter_init(&line->done);
    atomic_init(&line->num_owners, 1);
    atomic_init(&line->failed_at, UINT64_MAX);
    return line;
}

static weft_timeline *timeline_retain(weft_timeline *line)
{
    atomic_fetch_add(&line->num_owners, 1);
    return line;
}

void weft_timeline_release(weft_timeline *line)
{
    if (!line || atomic_fetch_sub(&line->num_owners, 1) > 1)
        return;
    weft_counter_release(&line->done);
    free(line);
}

static bool failed(const weft_timeline *line)
{
    return atomic_load(&line->failed_at) != UINT64_MAX;
}

weft_status weft_timeline_status(const weft_timeline *line)
{
    return failed(line) ? weft_error_put(&line->error) : WEFT_OK;
}

bool weft_timeline_passed(const weft_timeline *line, uint64_t point)
{
    return weft_counter_value(&line->done) >= point && !failed(line);
}

void weft_mark_record(weft_mark *mark, weft_timeline *line, const weft_worker *worker)
{
    if (mark->line != line) {
        weft_timeline_release(mark->line);
        mark->line = timeline_retain(line);
    }
    mark->point = weft_worker_pushed(worker);
}

/* --- the thread ---------------------------------------------------------------------------- */

typedef struct wait_args {
    weft_timeline *line; /* owned by the slot */
    uint64_t point;
} wait_args;

static weft_status run_wait(const void *args)
{
    const wait_args *a = args;
    weft_status status = WEFT_OK;
    weft_counter_wait(&a->line->done, a->point);
    if (atomic_load(&a->line->failed_at) <= a->point)
        status = weft_error_put(&a->line->error);
    weft_timeline_release(a->line);
    return status;
}

static weft_status run_slot(const weft_worker *worker, const slot *s, uint64_t n)
{
    if (s->function == run_wait) /* the error handed on already tells where it comes from */
        return run_wait(s->args);
    weft_error_clear();
    weft_status status = worker->hooks.before ? worker->hooks.before(worker->lane, n) : WEFT_OK;
    if (status == WEFT_OK)
        status = s->function(s->args);
    if (status == WEFT_OK)
        return WEFT_OK;
    if (weft_error_get()->status != status)
        (void)WEFT_ERROR(status, "%s", weft_status_text(status));
    return weft_error_context(status, "lane %s, %s", worker->lane->name, s->label);
}

static weft_status run_and_count(const weft_worker *worker, const slot *s, uint64_t n)
{
    const double start_us = weft_now_us();
    weft_status status = run_slot(worker, s, n);
    if (s->function != run_wait)
        weft_busy_add(worker->lane, start_us, weft_now_us());
    return status;
}

static void skip_slot(const slot *s)
{
    if (s->function == run_wait)
        weft_timeline_release(((const wait_args *)s->args)->line);
}

static void *worker_main(void *arg)
{
    weft_worker *worker = arg;
    weft_timeline *line = worker->line;
    char name[16];
    snprintf(name, sizeof name, "%s", worker->lane->name);
    pthread_setname_np(pthread_self(), name);
    if (worker->nice > 0) { /* a wish: a refusal changes speed, never results */
        id_t thread = (id_t)syscall(SYS_gettid);
        setpriority(PRIO_PROCESS, thread, getpriority(PRIO_PROCESS, thread) + worker->nice);
    }
    current_device = worker->lane->device;

    for (uint64_t n = 0;; n++) {
        weft_counter_wait(&worker->pushed, n + 1);
        const slot *s = &worker->slots[n % WEFT_WORKER_SLOTS];
        if (!s->function)
            return NULL;
        if (failed(line)) {
            skip_slot(s);
        } else if (run_and_count(worker, s, n) != WEFT_OK) {
            weft_error_take(&line->error);
            atomic_store(&line->failed_at, n + 1);
        }
        if (worker->hooks.after)
            worker->hooks.after(worker->lane, n);
        weft_counter_raise(&line->done, n + 1);
    }
}

/* Signals go to the threads the program made: a handler must not run amid a kernel. */
static int start_thread(weft_worker *worker)
{
    sigset_t blocked, before;
    sigfillset(&blocked);
    for (size_t i = 0; i < 6; i++)
        sigdelset(&blocked, (const int[]){SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGPROF}[i]);
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    int error = pthread_create(&worker->thread, NULL, worker_main, worker);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

weft_status weft_worker_create(weft_lane *lane, weft_timeline *line, int nice,
                               weft_worker_hooks hooks, weft_worker **out)
{
    weft_worker *worker = aligned_alloc(WEFT_CACHE_LINE, sizeof *worker);
    if (!worker)
        return WEFT_ERROR(WEFT_MEMORY, "out of host memory: lane %s", lane->name);
    memset(worker, 0, offsetof(weft_worker, slots));
    worker->lane = lane;
    worker->line = line;
    worker->nice = nice;
    worker->hooks = hooks;
    weft_counter_init(&worker->pushed);
    int error = start_thread(worker);
    if (error) {
        weft_counter_release(&worker->pushed);
        free(worker);
        return WEFT_ERROR(WEFT_DEVICE, "lane %s: no thread: %s", lane->name, strerror(error));
    }
    *out = worker;
    return WEFT_OK;
}

void weft_worker_destroy(weft_worker *worker)
{
    if (!worker)
        return;
    weft_worker_push(worker, "end", NULL, NULL, 0);
    pthread_join(worker->thread, NULL);
    weft_counter_release(&worker->pushed);
    free(worker);
}

/* --- its ring ------------------------------------------------------------------------------ */

uint64_t weft_worker_pushed(const weft_worker *worker)
{
    return worker ? weft_counter_value(&worker->pushed) : 0;
}

bool weft_worker_is_full(const weft_worker *worker)
{
    const uint64_t pushed = weft_counter_value(&worker->pushed);
    return pushed - weft_counter_value(&worker->line->done) >= WEFT_WORKER_SLOTS;
}

void weft_worker_push(weft_worker *worker, const char *label, weft_lane_function function,
                      const void *args, size_t num_bytes)
{
    uint64_t n = weft_counter_value(&worker->pushed);
    if (n >= WEFT_WORKER_SLOTS)
        weft_counter_wait(&worker->line->done, n - WEFT_WORKER_SLOTS + 1);
    slot *s = &worker->slots[n % WEFT_WORKER_SLOTS];
    s->function = function;
    s->label = label;
    if (num_bytes > 0)
        memcpy(s->args, args, num_bytes);
    weft_counter_raise(&worker->pushed, n + 1);
}

void weft_worker_push_wait(weft_worker *worker, weft_timeline *line, uint64_t point)
{
    wait_args args = {.line = timeline_retain(line), .point = point};
    weft_worker_push(worker, "wait", run_wait, &args, sizeof args);
}

weft_status weft_run_copy(const void *args)
{
    const weft_copy_args *a = args;
    memcpy(a->to, a->from, a->bytes);
    return WEFT_OK;
}
