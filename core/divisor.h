/* What numbers have in common. */
#ifndef WEFT_CORE_DIVISOR_H
#define WEFT_CORE_DIVISOR_H

#include <stdint.h>

/* The greatest number that divides both, from 0; of a and 0 it is a. */
static inline int64_t weft_common_divisor(int64_t a, int64_t b)
{
    while (b != 0) {
        const int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

#endif
