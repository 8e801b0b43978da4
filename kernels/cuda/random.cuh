/* Philox 4x32-10 on the device: the words of core/rng.h. */
#ifndef WEFT_KERNELS_CUDA_RANDOM_CUH
#define WEFT_KERNELS_CUDA_RANDOM_CUH

#include "kernels/cuda/cuda.cuh"

/* The four words of block `counter` of (seed, stream), as weft_rng_block gives them. */
static __device__ inline void random_block(uint64_t seed, uint64_t stream, uint64_t counter,
                                           uint32_t (&words)[4])
{
    uint32_t c0 = uint32_t(counter), c1 = uint32_t(counter >> 32);
    uint32_t c2 = uint32_t(stream), c3 = uint32_t(stream >> 32);
    uint32_t k0 = uint32_t(seed), k1 = uint32_t(seed >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const uint64_t a = uint64_t(c0) * 0xd2511f53u, b = uint64_t(c2) * 0xcd9e8d57u;
        c0 = uint32_t(b >> 32) ^ c1 ^ k0;
        c2 = uint32_t(a >> 32) ^ c3 ^ k1;
        c1 = uint32_t(b);
        c3 = uint32_t(a);
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    words[0] = c0;
    words[1] = c1;
    words[2] = c2;
    words[3] = c3;
}

/* Dropout keeps an element whose draw k of 24 bits is at least this: for an integer k, k / 2^24 < p
 * is k < ceil(p 2^24), and both sides are exact. */
static inline uint32_t keep_from(float p)
{
    return static_cast<uint32_t>(ceil(static_cast<double>(p) * 0x1p24));
}

#endif
