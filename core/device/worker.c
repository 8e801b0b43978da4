#include "core/device/worker.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/device/device.h"
#include "core/device/ops.h"

enum { MAX_SPIN_US = 50, MIN_SPIN_US = 2 };

static void counter_init(weft_counter *counter)
{
    atomic_init(&counter->value, 0);
    atomic_init(&counter->wake_at, UINT64_MAX);
    pthread_mutex_init(&counter->mutex, NULL);
    pthread_cond_init(&counter->reached, NULL);
}

static void counter_release(weft_counter *counter)
{
    pthread_mutex_destroy(&counter->mutex);
    pthread_cond_destroy(&counter->reached);
}

static uint64_t counter_value(const weft_counter *counter)
{
    return atomic_load(&counter->value);
}

/* The store and the load of wake_at here, and a sleeper's store of wake_at and load of value, are
 * sequentially consistent: one of the two sees the other. */
static void counter_raise(weft_counter *counter, uint64_t value)
{
    atomic_store(&counter->value, value);
    if (value < atomic_load(&counter->wake_at))
        return;
    pthread_mutex_lock(&counter->mutex);
    atomic_store(&counter->wake_at, UINT64_MAX);
    pthread_cond_broadcast(&counter->reached);
    pthread_mutex_unlock(&counter->mutex);
}

static void pause_briefly(void)
{
#if defined(__x86_64__) || defined(__i386__)
    for (int i = 0; i < 16; i++)
        __builtin_ia32_pause();
#else
    sched_yield();
#endif
}

/* A hand-off through a sleeping thread costs tens of microseconds, so a waiter first looks for a
 * while. How long is learnt, a thread for itself: looking that paid off makes it look longer, and
 * looking in vain (idle lanes, more ranks than cores) soon makes it hardly look at all. */
static bool spin(weft_counter *counter, uint64_t target)
{
    static _Thread_local int spin_us = MAX_SPIN_US;
    double start = weft_now_us(), spent = 0;
    while (spent < spin_us) {
        if (spent < MIN_SPIN_US)
            pause_briefly();
        else
            sched_yield();
        if (atomic_load(&counter->value) >= target) {
            spin_us = spin_us * 2 < MAX_SPIN_US ? spin_us * 2 : MAX_SPIN_US;
            return true;
        }
        spent = weft_now_us() - start;
    }
    spin_us = spin_us / 2 > MIN_SPIN_US ? spin_us / 2 : MIN_SPIN_US;
    return false;
}

void weft_counter_wait(weft_counter *counter, uint64_t target)
{
    if (atomic_load(&counter->value) >= target || spin(counter, target))
        return;
    pthread_mutex_lock(&counter->mutex);
    for (;;) {
        if (target < atomic_load(&counter->wake_at))
            atomic_store(&counter->wake_at, target);
        if (atomic_load(&counter->value) >= target)
            break;
        pthread_cond_wait(&counter->reached, &counter->mutex);
    }
    pthread_mutex_unlock(&counter->mutex);
}

static _Thread_local int64_t waited_ns; /* by the function that runs */

void weft_busy_note_waited(int64_t ns)
{
    waited_ns += ns;
}

/* On a lane's thread, after a function that ran from start_us to end_us (core/clock.h): adds what
 * of it was computing. */
static void busy_add(weft_lane *lane, double start_us, double end_us)
{
    const int64_t busy_ns = (int64_t)(1e3 * (end_us - start_us)) - waited_ns;
    lane->ended_us = end_us;
    if (busy_ns > 0)
        atomic_fetch_add(&lane->busy_ns, busy_ns);
    waited_ns = 0;
}

double weft_lane_ended_us(const weft_lane *lane)
{
    return lane->ended_us;
}

double weft_lane_take_busy(weft_lane *lane)
{
    return (double)atomic_exchange(&lane->busy_ns, 0) * 1e-9;
}

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
    counter_init(&line->done);
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
    counter_release(&line->done);
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
    return counter_value(&line->done) >= point && !failed(line);
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
        busy_add(worker->lane, start_us, weft_now_us());
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
        counter_raise(&line->done, n + 1);
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
    counter_init(&worker->pushed);
    int error = start_thread(worker);
    if (error) {
        counter_release(&worker->pushed);
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
    counter_release(&worker->pushed);
    free(worker);
}

/* --- its ring ------------------------------------------------------------------------------ */

uint64_t weft_worker_pushed(const weft_worker *worker)
{
    return worker ? counter_value(&worker->pushed) : 0;
}

bool weft_worker_is_full(const weft_worker *worker)
{
    const uint64_t pushed = counter_value(&worker->pushed);
    return pushed - counter_value(&worker->line->done) >= WEFT_WORKER_SLOTS;
}

void weft_worker_push(weft_worker *worker, const char *label, weft_lane_function function,
                      const void *args, size_t num_bytes)
{
    uint64_t n = counter_value(&worker->pushed);
    if (n >= WEFT_WORKER_SLOTS)
        weft_counter_wait(&worker->line->done, n - WEFT_WORKER_SLOTS + 1);
    slot *s = &worker->slots[n % WEFT_WORKER_SLOTS];
    s->function = function;
    s->label = label;
    if (num_bytes > 0)
        memcpy(s->args, args, num_bytes);
    counter_raise(&worker->pushed, n + 1);
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
