/* Philox 4x32-10 for many counters at once: the words of core/rng.h, a vector at a time. */
#ifndef WEFT_KERNELS_CPU_VECTOR_RANDOM_H
#define WEFT_KERNELS_CPU_VECTOR_RANDOM_H

#include "kernels/cpu/vector_math.h"

enum { WEFT_RANDOM_SLACK = 8 }; /* words that a buffer needs beyond those asked for */

/* Writes the words of elements first .. first + num of (seed, stream) into `buffer` (num +
 * WEFT_RANDOM_SLACK words) and returns where the first one stands. Word i is the one that
 * weft_rng_uniform(seed, stream, first + i) takes its 24 bits from. */
WEFT_INLINE const uint32_t *weft_random_words(uint64_t seed, uint64_t stream, uint64_t first,
                                              size_t num, uint32_t *buffer)
{
    const uint32_t low = (uint32_t)(first / 4), high = (uint32_t)(first / 4 >> 32);
    const uint32_t num_blocks = (uint32_t)((first % 4 + num + 3) / 4);
#pragma omp simd
    for (uint32_t block = 0; block < num_blocks; block++) {
        uint32_t c0 = low + block, c1 = high + (c0 < low);
        uint32_t c2 = (uint32_t)stream, c3 = (uint32_t)(stream >> 32);
        uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
        for (int round = 0; round < 10; round++) {
            uint64_t a = (uint64_t)c0 * 0xd2511f53u, b = (uint64_t)c2 * 0xcd9e8d57u;
            c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
            c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
            c1 = (uint32_t)b;
            c3 = (uint32_t)a;
            k0 += 0x9e3779b9u;
            k1 += 0xbb67ae85u;
        }
        buffer[4 * block] = c0;
        buffer[4 * block + 1] = c1;
        buffer[4 * block + 2] = c2;
        buffer[4 * block + 3] = c3;
    }
    return buffer + first % 4;
}

#endif
