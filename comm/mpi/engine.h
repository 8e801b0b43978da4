/* The progress engine: one thread at a time drives everything that is in flight.
 *
 * A thread that waits for its own operation becomes the driver when there is none. It advances
 * every operation of the process, in order of priority, until its own is complete, and hands the
 * role to another waiting thread. So MPI makes progress whenever a thread waits, a lone small
 * operation costs no thread switch, and operations of different groups never block each other.
 *
 * The driver polls, yields the core when nothing moves, and after a while sleeps in short naps,
 * which a new operation ends at once. The engine knows nothing of MPI. */
#ifndef WEFT_COMM_MPI_ENGINE_H
#define WEFT_COMM_MPI_ENGINE_H

#include <pthread.h>
#include <stdbool.h>

#include <weft/status.h>

/* Moves an operation on without blocking; the first call starts it. Sets *out_moved when something
 * happened and *out_done when it is complete. Called by one thread at a time, not always the same.
 * An error completes the operation too. */
typedef weft_status (*weft_engine_advance)(void *operation, bool *out_moved, bool *out_done);

typedef struct weft_engine_item {
    struct weft_engine_item *next;
    weft_engine_advance advance;
    void *operation;
    int priority; /* smallest first; equal ones in order of arrival */
    bool done;
    weft_error error;
    pthread_cond_t wake; /* wakes its thread: complete, or its turn to drive */
} weft_engine_item;

typedef struct weft_engine {
    pthread_mutex_t lock;
    pthread_cond_t nap;         /* the driver, asleep */
    weft_engine_item *incoming; /* newest first; guarded by lock */
    weft_engine_item *active;   /* in priority order; the driver's alone */
    bool driven;
} weft_engine;

weft_status weft_engine_init(weft_engine *engine) WEFT_CHECKED;
void weft_engine_release(weft_engine *engine);
/* Runs an operation to its end on the calling thread, which may serve others meanwhile. Any thread.
 * Returns the operation's status; its error record is then this thread's. */
weft_status weft_engine_run(weft_engine *engine, int priority, weft_engine_advance advance,
                            void *operation) WEFT_CHECKED;

#endif
