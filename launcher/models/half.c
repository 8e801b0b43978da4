#include "launcher/models/half.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Scaling by 2^112 moves fp16's exponent to fp32's place, of subnormals too. */
static float from_fp16(uint16_t x)
{
    const uint32_t magnitude = (uint32_t)(x & 0x7fffu) << 13;
    const uint32_t scaled = magnitude >= 0x0f800000u ? magnitude | 0x7f800000u
                                                     : bits_of(from_bits(magnitude) * 0x1p112f);
    return from_bits(scaled | (uint32_t)(x & 0x8000u) << 16);
}

static uint16_t to_bf16(float x)
{
    const uint32_t bits = bits_of(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

static uint16_t to_fp16(float x)
{
    const uint32_t bits = bits_of(x), magnitude = bits & 0x7fffffffu;
    const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000u);
    if (magnitude > 0x7f800000u)
        return sign | 0x7e00u;
    if (magnitude >= 0x477ff000u)
        return sign | 0x7c00u;
    if (magnitude >= 0x38800000u)
        return (uint16_t)(sign | (magnitude + 0xfffu + (magnitude >> 13 & 1u) - 0x38000000u) >> 13);
    /* 0.5 has the place value of fp16's subnormals in its last bit: the sum rounds as wanted */
    return (uint16_t)(sign | (bits_of(from_bits(magnitude) + 0.5f) - 0x3f000000u));
}

/* Loops of a fixed length, which compilers turn into vector instructions. */
enum { BLOCK = 4096 };

static void widen_block(const uint16_t *from, float *to)
{
    for (size_t i = 0; i < BLOCK; i++)
        to[i] = from_bits((uint32_t)from[i] << 16);
}

/* Rounds all but NaNs as to_bf16 does; false: some exponents are all ones, where the sum carries
 * into the sign's place. */
static bool round_block(const float *restrict from, uint16_t *restrict to)
{
    uint32_t found = 0;
    for (size_t i = 0; i < BLOCK; i++) {
        const uint32_t bits = bits_of(from[i]);
        found |= (bits & 0x7f800000u) + 0x00800000u;
        to[i] = (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
    }
    return found >> 31 == 0;
}

static void widen_bf16(const uint16_t *from, size_t count, float *to)
{
    size_t i = 0;
    for (; i + BLOCK <= count; i += BLOCK)
        widen_block(from + i, to + i);
    for (; i < count; i++)
        to[i] = from_bits((uint32_t)from[i] << 16);
}

static void round_bf16(const float *from, size_t count, uint16_t *to)
{
    for (size_t i = 0; i < count;) {
        const size_t end = count - i < BLOCK ? count : i + BLOCK;
        if (end - i == BLOCK && round_block(from + i, to + i))
            i = end;
        for (; i < end; i++)
            to[i] = to_bf16(from[i]);
    }
}

void weft_half_widen(const void *from, weft_dtype dtype, size_t count, float *to)
{
    const uint16_t *halves = from;
    if (dtype == WEFT_F32)
        memcpy(to, from, count * sizeof *to);
    else if (dtype == WEFT_BF16)
        widen_bf16(halves, count, to);
    else
        for (size_t i = 0; i < count; i++)
            to[i] = from_fp16(halves[i]);
}

void weft_half_round(const float *from, size_t count, weft_dtype dtype, void *to)
{
    uint16_t *halves = to;
    if (dtype == WEFT_F32)
        memcpy(to, from, count * sizeof *from);
    else if (dtype == WEFT_BF16)
        round_bf16(from, count, halves);
    else
        for (size_t i = 0; i < count; i++)
            halves[i] = to_fp16(from[i]);
}
