#include "comm/mpi/engine.h"
#include "core/clock.h"

#include <sched.h>
#include <stdint.h>
#include <time.h>

/* How the driver waits while nothing moves. At first it yields between polls: that answers fastest
 * while the peers run. Then it naps, for a share of the time already waited, so that a wait grows
 * by little and a long one leaves the cores to those that compute. Polls are counted, not timed:
 * where ranks outnumber cores a yield may take long, and a nap would take longer. */
enum { NUM_YIELDS = 100, MIN_NAP_NS = 20000, MAX_NAP_NS = 500000, NAP_SHARE = 16 };

static weft_status cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attributes;
    int error = pthread_condattr_init(&attributes);
    if (error)
        return WEFT_ERROR(WEFT_MEMORY, "no condition variable (error %d)", error);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    error = pthread_cond_init(cond, &attributes);
    pthread_condattr_destroy(&attributes);
    return error ? WEFT_ERROR(WEFT_MEMORY, "no condition variable (error %d)", error) : WEFT_OK;
}

weft_status weft_engine_init(weft_engine *engine)
{
    *engine = (weft_engine){0};
    int error = pthread_mutex_init(&engine->lock, NULL);
    if (error)
        return WEFT_ERROR(WEFT_MEMORY, "no mutex (error %d)", error);
    weft_status status = cond_init(&engine->nap);
    if (status != WEFT_OK)
        pthread_mutex_destroy(&engine->lock);
    return status;
}

void weft_engine_release(weft_engine *engine)
{
    pthread_cond_destroy(&engine->nap);
    pthread_mutex_destroy(&engine->lock);
}

/* Moves what arrived into the active list, behind its equals. Locked. */
static void take_incoming(weft_engine *engine)
{
    weft_engine_item *oldest_first = NULL;
    while (engine->incoming) {
        weft_engine_item *item = engine->incoming;
        engine->incoming = item->next;
        item->next = oldest_first;
        oldest_first = item;
    }
    while (oldest_first) {
        weft_engine_item *item = oldest_first;
        oldest_first = item->next;
        weft_engine_item **at = &engine->active;
        while (*at && (*at)->priority <= item->priority)
            at = &(*at)->next;
        item->next = *at;
        *at = item;
    }
}

/* Advances every active operation once. Unlocked. */
static bool advance_all(weft_engine *engine)
{
    bool any_moved = false;
    weft_engine_item **at = &engine->active;
    while (*at) {
        weft_engine_item *item = *at;
        bool moved = false, done = false;
        weft_status status = item->advance(item->operation, &moved, &done);
        any_moved |= moved;
        if (status == WEFT_OK && !done) {
            at = &item->next;
            continue;
        }
        any_moved = true;
        *at = item->next;
        if (status != WEFT_OK)
            weft_error_take(&item->error);
        item->error.status = status;
        /* The item lives on its thread's stack: it is gone once the lock is released. */
        pthread_mutex_lock(&engine->lock);
        item->done = true;
        pthread_cond_signal(&item->wake);
        pthread_mutex_unlock(&engine->lock);
    }
    return any_moved;
}

/* Sleeps until a new operation arrives or the nap ends. Locked. */
static void nap(weft_engine *engine, int64_t until_ns)
{
    struct timespec until = {.tv_sec = until_ns / 1000000000, .tv_nsec = until_ns % 1000000000};
    pthread_cond_timedwait(&engine->nap, &engine->lock, &until);
}

/* Drives until `mine` is complete. Locked on entry and exit. */
static void drive(weft_engine *engine, const weft_engine_item *mine)
{
    int num_yields = 0;
    int64_t idle_since_ns = 0;
    while (!mine->done) {
        take_incoming(engine);
        pthread_mutex_unlock(&engine->lock);
        bool moved = advance_all(engine);
        if (moved) {
            num_yields = 0;
        } else if (num_yields < NUM_YIELDS) {
            if (num_yields++ == 0)
                idle_since_ns = weft_now_ns();
            sched_yield();
        }
        pthread_mutex_lock(&engine->lock);
        if (mine->done || engine->incoming || num_yields < NUM_YIELDS)
            continue;
        int64_t now = weft_now_ns(), nap_ns = (now - idle_since_ns) / NAP_SHARE;
        nap_ns = nap_ns < MIN_NAP_NS ? MIN_NAP_NS : nap_ns > MAX_NAP_NS ? MAX_NAP_NS : nap_ns;
        nap(engine, now + nap_ns);
    }
}

weft_status weft_engine_run(weft_engine *engine, int priority, weft_engine_advance advance,
                            void *operation)
{
    weft_engine_item item = {.advance = advance, .operation = operation, .priority = priority};
    WEFT_TRY(cond_init(&item.wake));
    pthread_mutex_lock(&engine->lock);
    item.next = engine->incoming;
    engine->incoming = &item;
    if (engine->driven)
        pthread_cond_signal(&engine->nap);
    while (!item.done) {
        if (engine->driven) {
            pthread_cond_wait(&item.wake, &engine->lock);
            continue;
        }
        engine->driven = true;
        drive(engine, &item);
        engine->driven = false;
        take_incoming(engine);
        if (engine->active)
            pthread_cond_signal(&engine->active->wake);
    }
    pthread_mutex_unlock(&engine->lock);
    pthread_cond_destroy(&item.wake);
    return item.error.status == WEFT_OK ? WEFT_OK : weft_error_put(&item.error);
}
