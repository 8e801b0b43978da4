#ifndef WEFT_CORE_CLOCK_H
#define WEFT_CORE_CLOCK_H

#include <time.h>

/* Microseconds on the monotonic clock. */
static inline double weft_now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

#endif
