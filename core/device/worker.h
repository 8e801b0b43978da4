/* What the lanes of all devices are made of: a timeline, which events point to, and a worker thread
 * that runs the functions submitted to the lane.
 *
 * A ring of fixed slots, with one producer and one consumer, feeds the worker. Both ends are
 * counters that only rise: the slots pushed, and the timeline's `done`. A point on a lane, hence an
 * event, is a value of `done`. Waits for work, for room and for a point are waits for a counter to
 * reach a value. After the first function that fails, the worker skips all later slots. */
#ifndef WEFT_CORE_DEVICE_WORKER_H
#define WEFT_CORE_DEVICE_WORKER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include <weft/device.h>

enum { WEFT_CACHE_LINE = 64 };

/* A number that rises, and threads that wait until it reaches their target. One thread at a time
 * raises it; any number wait. Where nobody sleeps, a raise is one store and one load. */
typedef struct weft_counter {
    _Alignas(WEFT_CACHE_LINE) atomic_uint_least64_t value;
    atomic_uint_least64_t wake_at; /* the lowest target of a sleeper; UINT64_MAX: nobody sleeps */
    pthread_mutex_t mutex;
    pthread_cond_t reached;
} weft_counter;

/* Returns once the value is at least `target`. Polls for up to some 50 microseconds, then sleeps.
 */
void weft_counter_wait(weft_counter *counter, uint64_t target);

/* Its owners are counted: an event or another lane's wait may outlive the lane. */
typedef struct weft_timeline {
    weft_counter done;
    atomic_int num_owners;
    atomic_uint_least64_t failed_at; /* points from here on failed; UINT64_MAX: none did */
    weft_error error;                /* written once, before failed_at */
} weft_timeline;

weft_timeline *weft_timeline_create(void);       /* one owner; NULL: out of memory */
void weft_timeline_release(weft_timeline *line); /* NULL is legal */
/* The lane's first error as this thread's own, WEFT_OK when there is none. */
weft_status weft_timeline_status(const weft_timeline *line) WEFT_CHECKED;
/* True where the point has passed and the lane has not failed: then nobody needs to wait. */
bool weft_timeline_passed(const weft_timeline *line, uint64_t point);

typedef struct weft_worker weft_worker;

/* A point on a lane, what an event is on every device. Zero is valid: never recorded. */
typedef struct weft_mark {
    weft_timeline *line; /* owned; NULL: never recorded */
    uint64_t point;
} weft_mark;

/* Sets the mark to the newest point of the lane with that timeline and worker (may be NULL). */
void weft_mark_record(weft_mark *mark, weft_timeline *line, const weft_worker *worker);

/* A copy in host memory, as a lane's function. */
typedef struct weft_copy_args {
    void *to;
    const void *from;
    size_t bytes;
} weft_copy_args;
weft_status weft_run_copy(const void *args) WEFT_CHECKED; /* of a weft_copy_args */

enum { WEFT_WORKER_SLOTS = 1024 };

/* What a device does on the worker's thread around the function in slot n, counted from 0 without
 * end. Both may be NULL. */
typedef struct weft_worker_hooks {
    weft_status (*before)(weft_lane *lane, uint64_t n); /* its error is the function's */
    void (*after)(weft_lane *lane, uint64_t n);         /* after every slot, also a skipped one */
} weft_worker_hooks;

/* Starts the thread, with the lane's name and a nice value `nice` above the caller's. Errors:
 * WEFT_MEMORY, WEFT_DEVICE (no thread). */
weft_status weft_worker_create(weft_lane *lane, weft_timeline *line, int nice,
                               weft_worker_hooks hooks, weft_worker **out) WEFT_CHECKED;
/* Lets the thread run what was pushed, then ends it. NULL is legal. */
void weft_worker_destroy(weft_worker *worker);

/* Number of slots pushed so far, hence the lane's newest point; 0 for NULL. */
uint64_t weft_worker_pushed(const weft_worker *worker);
/* True where the next push would wait for a slot. */
bool weft_worker_is_full(const weft_worker *worker);
/* Waits for the next slot to be free and copies the work into it. */
void weft_worker_push(weft_worker *worker, const char *label, weft_lane_function function,
                      const void *args, size_t num_bytes);
/* Makes the worker wait for another lane's point. If that failed, this lane fails with its error.
 */
void weft_worker_push_wait(weft_worker *worker, weft_timeline *line, uint64_t point);

#endif
