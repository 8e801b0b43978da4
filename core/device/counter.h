/* A number that rises, and threads that wait until it reaches their target. Lanes are made of it.
 *
 * One thread at a time raises it; any number wait. Where nobody sleeps, a raise is one store and
 * one load. */
#ifndef WEFT_CORE_DEVICE_COUNTER_H
#define WEFT_CORE_DEVICE_COUNTER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

enum { WEFT_CACHE_LINE = 64 };

typedef struct weft_counter {
    _Alignas(WEFT_CACHE_LINE) atomic_uint_least64_t value;
    atomic_uint_least64_t wake_at; /* the lowest target of a sleeper; UINT64_MAX: nobody sleeps */
    pthread_mutex_t mutex;
    pthread_cond_t reached;
} weft_counter;

void weft_counter_init(weft_counter *counter); /* at 0 */
void weft_counter_release(weft_counter *counter);
uint64_t weft_counter_value(const weft_counter *counter);
/* A thread that sees the value also sees what happened before the raise. */
void weft_counter_raise(weft_counter *counter, uint64_t value);
/* Returns once the value is at least `target`. Polls for up to some 50 microseconds, then sleeps.
 */
void weft_counter_wait(weft_counter *counter, uint64_t target);

#endif
