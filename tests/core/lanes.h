/* Small lane functions and a device with two lanes, for the lane tests. */
#ifndef WEFT_TESTS_CORE_LANES_H
#define WEFT_TESTS_CORE_LANES_H

#include <stdatomic.h>
#include <time.h>

#include <weft/device.h>

#include "tests/core/check.h"
#include "tests/core/device_under_test.h"

typedef struct bench {
    weft_device *device;
    weft_lane *a, *b;
    weft_event *x, *y;
} bench;

static inline int bench_open(void **state)
{
    static bench shared;
    shared = (bench){0};
    OK(device_under_test(3, 0, &shared.device));
    OK(weft_lane_create(shared.device, 0, "alpha", &shared.a));
    OK(weft_lane_create(shared.device, 1, "beta", &shared.b));
    OK(weft_event_create(shared.device, &shared.x));
    OK(weft_event_create(shared.device, &shared.y));
    *state = &shared;
    return 0;
}

static inline int bench_close(void **state)
{
    bench *t = *state;
    weft_lane_destroy(t->a);
    weft_lane_destroy(t->b);
    weft_event_destroy(t->x);
    weft_event_destroy(t->y);
    weft_device_destroy(t->device);
    weft_error_clear();
    return 0;
}

static inline void sleep_us(long us)
{
    nanosleep(&(struct timespec){.tv_nsec = us * 1000}, NULL);
}

/* Holds its lane until the gate opens, at most for half a minute of looks: a lane that never lets
 * the other one run makes a failure, not a hang. */
static inline weft_status lane_gate(const void *args)
{
    atomic_bool *gate = *(atomic_bool *const *)args;
    for (int i = 0; i < 300000; i++) {
        if (atomic_load(gate))
            return WEFT_OK;
        sleep_us(100);
    }
    return WEFT_ERROR(WEFT_DEVICE, "the gate never opened");
}

static inline weft_status lane_open(const void *args)
{
    atomic_store(*(atomic_bool *const *)args, true);
    return WEFT_OK;
}

/* Adds one, without any lock: only the lanes' order makes this right. */
static inline weft_status lane_count(const void *args)
{
    ++**(int *const *)args;
    return WEFT_OK;
}

static inline weft_status lane_fail(const void *args)
{
    return WEFT_ERROR(WEFT_FILE, "shard %d is torn", *(const int *)args);
}

#define SUBMIT(lane, function, value)                                                              \
    weft_lane_submit((lane), #function, (function), &(value), sizeof(value))

#endif
