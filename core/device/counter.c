#include "core/device/counter.h"

#include <sched.h>
#include <stdbool.h>

#include "core/clock.h"

enum { MAX_SPIN_US = 50, MIN_SPIN_US = 2 };

void weft_counter_init(weft_counter *counter)
{
    atomic_init(&counter->value, 0);
    atomic_init(&counter->wake_at, UINT64_MAX);
    pthread_mutex_init(&counter->mutex, NULL);
    pthread_cond_init(&counter->reached, NULL);
}

void weft_counter_release(weft_counter *counter)
{
    pthread_mutex_destroy(&counter->mutex);
    pthread_cond_destroy(&counter->reached);
}

uint64_t weft_counter_value(const weft_counter *counter)
{
    return atomic_load(&counter->value);
}

/* The store and the load of wake_at here, and a sleeper's store of wake_at and load of value, are
 * sequentially consistent: one of the two sees the other. */
void weft_counter_raise(weft_counter *counter, uint64_t value)
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
