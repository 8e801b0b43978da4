/* Random numbers that come again; a file begins them: static uint64_t random_state = 77; */
#ifndef WEFT_TESTS_CORE_RANDOM_H
#define WEFT_TESTS_CORE_RANDOM_H

#include <stdint.h>

static uint64_t random_state;

/* Below `limit`. */
static inline uint32_t next_random(uint32_t limit)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(((random_state >> 32) * limit) >> 32);
}

#endif
