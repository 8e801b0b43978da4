#include "core/rng.h"

#include <assert.h>
#include <math.h>

#include <Random123/philox.h>

/* The finaliser of SplitMix64: a bijection in which every input bit reaches every output bit. */
static uint64_t scramble(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

uint64_t weft_rng_stream_of(const char *name)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325); /* FNV-1a */
    for (const char *c = name; *c; c++)
        hash = (hash ^ (unsigned char)*c) * UINT64_C(0x100000001b3);
    return scramble(hash);
}

uint64_t weft_rng_stream_mix(uint64_t stream, uint64_t value)
{
    /* Scrambled twice so that mixing a then b differs from b then a. */
    return scramble(stream ^ scramble(value));
}

void weft_rng_block(uint64_t seed, uint64_t stream, uint64_t counter, uint32_t out[4])
{
    philox4x32_ctr_t block = {
        {(uint32_t)counter, (uint32_t)(counter >> 32), (uint32_t)stream, (uint32_t)(stream >> 32)}};
    philox4x32_key_t key = {{(uint32_t)seed, (uint32_t)(seed >> 32)}};
    block = philox4x32_R(10, block, key);
    for (int i = 0; i < 4; i++)
        out[i] = block.v[i];
}

float weft_rng_uniform(uint64_t seed, uint64_t stream, uint64_t index)
{
    uint32_t words[4];
    weft_rng_block(seed, stream, index / 4, words);
    return (float)(words[index % 4] >> 8) * 0x1p-24f;
}

float weft_rng_normal(uint64_t seed, uint64_t stream, uint64_t index)
{
    const double two_pi = 6.283185307179586476925286766559;
    uint32_t words[4];
    weft_rng_block(seed, stream, index / 4, words);
    const uint32_t *pair = words + (index % 4 / 2) * 2;
    double radius = sqrt(-2.0 * log(((double)pair[0] + 1.0) * 0x1p-32)); /* of (0, 1] */
    double angle = two_pi * ((double)pair[1] * 0x1p-32);
    return (float)(radius * (index % 2 ? sin(angle) : cos(angle)));
}

uint64_t weft_rng_permute(uint64_t seed, uint64_t stream, uint64_t n, uint64_t index)
{
    assert(n >= 1 && index < n);
    /* The network permutes [0, 4^half_bits), at most four times n except for a small n, where a
     * larger domain mixes better. Values that land outside [0, n) go round again, which ends,
     * since the cycle leads back to `index` itself. */
    unsigned half_bits = 3;
    while (half_bits < 32 && n > UINT64_C(1) << (2 * half_bits))
        half_bits++;
    uint64_t mask = (UINT64_C(1) << half_bits) - 1;
    uint64_t own = weft_rng_stream_mix(stream, n);
    do {
        uint64_t left = index >> half_bits, right = index & mask;
        for (uint64_t round = 0; round < 8; round++) {
            uint32_t words[4];
            weft_rng_block(seed, own, round << 32 | right, words);
            uint64_t next = left ^ (words[0] & mask);
            left = right;
            right = next;
        }
        index = left << half_bits | right;
    } while (index >= n);
    return index;
}
