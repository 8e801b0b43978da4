/* Philox 4x32-10 for many counters at once: the words of core/rng.h, a vector at a time. */
#ifndef WEFT_KERNELS_CPU_VECTOR_RANDOM_H
#define WEFT_KERNELS_CPU_VECTOR_RANDOM_H

#include "kernels/cpu/vector_math.h"

#ifdef __AVX512F__
#include <immintrin.h>
#endif

enum { WEFT_RANDOM_SLACK = 36 }; /* words that a buffer needs beyond those asked for */

/* Writes the words of blocks first .. first + num, four each, in plain C. */
WEFT_INLINE void weft_random_blocks(uint64_t seed, uint64_t stream, uint64_t first, size_t num,
                                    uint32_t *buffer)
{
    const uint32_t low = (uint32_t)first, high = (uint32_t)(first >> 32);
#pragma omp simd
    for (uint32_t block = 0; block < (uint32_t)num; block++) {
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
}

#ifdef __AVX512F__
/* The same, eight blocks at a time (rounding `num` up). Every word is the lower half of a 64-bit
 * lane, where one instruction makes the whole product. The upper halves do not matter until the
 * words are joined. */
WEFT_INLINE void weft_random_blocks_avx512(uint64_t seed, uint64_t stream, uint64_t first,
                                           size_t num, uint32_t *buffer)
{
    const __m512i multiply_a = _mm512_set1_epi64(0xd2511f53), low = _mm512_set1_epi64(0xffffffff);
    const __m512i multiply_b = _mm512_set1_epi64(0xcd9e8d57);
    const __m512i join_low = _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11);
    const __m512i join_high = _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15);
    __m512i counter = _mm512_add_epi64(_mm512_set1_epi64((long long)first),
                                       _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7));
    for (size_t block = 0; block < num; block += 8) {
        __m512i c0 = counter, c1 = _mm512_srli_epi64(counter, 32);
        __m512i c2 = _mm512_set1_epi64((long long)stream);
        __m512i c3 = _mm512_set1_epi64((long long)(stream >> 32));
        uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
        for (int round = 0; round < 10; round++) {
            __m512i a = _mm512_mul_epu32(c0, multiply_a), b = _mm512_mul_epu32(c2, multiply_b);
            c0 = _mm512_ternarylogic_epi64(_mm512_srli_epi64(b, 32), c1, _mm512_set1_epi64(k0),
                                           0x96);
            c2 = _mm512_ternarylogic_epi64(_mm512_srli_epi64(a, 32), c3, _mm512_set1_epi64(k1),
                                           0x96);
            c1 = b;
            c3 = a;
            k0 += 0x9e3779b9u;
            k1 += 0xbb67ae85u;
        }
        __m512i first_pair = _mm512_or_si512(_mm512_and_si512(c0, low), _mm512_slli_epi64(c1, 32));
        __m512i second_pair = _mm512_or_si512(_mm512_and_si512(c2, low), _mm512_slli_epi64(c3, 32));
        _mm512_storeu_si512(buffer + 4 * block,
                            _mm512_permutex2var_epi64(first_pair, join_low, second_pair));
        _mm512_storeu_si512(buffer + 4 * block + 16,
                            _mm512_permutex2var_epi64(first_pair, join_high, second_pair));
        counter = _mm512_add_epi64(counter, _mm512_set1_epi64(8));
    }
}
#endif

/* Writes the words of elements first .. first + num of (seed, stream) into `buffer` (num +
 * WEFT_RANDOM_SLACK words) and returns where the first one stands. weft_rng_uniform(seed, stream,
 * first + i) takes its 24 bits from word i. */
WEFT_INLINE const uint32_t *weft_random_words(uint64_t seed, uint64_t stream, uint64_t first,
                                              size_t num, uint32_t *buffer)
{
    const size_t num_blocks = (first % 4 + num + 3) / 4;
#ifdef __AVX512F__
    weft_random_blocks_avx512(seed, stream, first / 4, num_blocks, buffer);
#else
    weft_random_blocks(seed, stream, first / 4, num_blocks, buffer);
#endif
    return buffer + first % 4;
}

#endif
