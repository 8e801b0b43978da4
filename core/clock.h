#ifndef WEFT_CORE_CLOCK_H
#define WEFT_CORE_CLOCK_H

#include <stdint.h>
#include <time.h>

/* Microseconds on the monotonic clock. */
static inline double weft_now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

/* Nanoseconds on it. */
static inline int64_t weft_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

#endif
