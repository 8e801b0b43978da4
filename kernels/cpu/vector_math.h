/* Inline arithmetic for loops that the compiler turns into vectors.
 *
 * Everything is branch-free on plain scalars, so a `#pragma omp simd` loop that calls it vectorises
 * at the width the file is compiled for. Loads and stores take the element type as an argument that
 * is a constant after inlining: one source serves fp32, bf16 and fp16. */
#ifndef WEFT_KERNELS_CPU_VECTOR_MATH_H
#define WEFT_KERNELS_CPU_VECTOR_MATH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <weft/tensor.h>

enum {
    /* Elements a thread works on at a time. Fixed: the boundary between vectors and remainder, and
     * with it every rounding, does not depend on the number of threads. */
    WEFT_VECTOR_CHUNK = 8192,
    /* Below this many elements, waking threads costs more than it saves. */
    WEFT_VECTOR_SERIAL = 2 * WEFT_VECTOR_CHUNK,
};

#define WEFT_INLINE static inline __attribute__((always_inline))

WEFT_INLINE size_t weft_vector_min(size_t a, size_t b)
{
    return a < b ? a : b;
}

WEFT_INLINE uint32_t weft_vector_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

WEFT_INLINE float weft_vector_from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

WEFT_INLINE float weft_vector_from_bf16(uint16_t x)
{
    return weft_vector_from_bits((uint32_t)x << 16);
}

/* Rounds to nearest, ties to even; a NaN stays one. */
WEFT_INLINE uint16_t weft_vector_to_bf16(float x)
{
    uint32_t bits = weft_vector_bits(x);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return (uint16_t)(x == x ? rounded : 0x7fc0u);
}

WEFT_INLINE float weft_vector_from_fp16(uint16_t x)
{
    uint32_t magnitude = (uint32_t)(x & 0x7fffu) << 13;
    float scaled = weft_vector_from_bits(magnitude) * 0x1p112f; /* right for subnormals, too */
    uint32_t bits = weft_vector_bits(scaled);
    bits = magnitude >= 0x0f800000u ? magnitude | 0x7f800000u : bits;
    return weft_vector_from_bits(bits | (uint32_t)(x & 0x8000u) << 16);
}

/* Rounds to nearest, ties to even; overflow is infinity, a NaN stays one. */
WEFT_INLINE uint16_t weft_vector_to_fp16(float x)
{
    uint32_t bits = weft_vector_bits(x), magnitude = bits & 0x7fffffffu;
    uint32_t normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
    /* 0.5 has the place value of fp16's subnormals in its last bit: the sum rounds as wanted */
    float shifted = weft_vector_from_bits(magnitude < 0x38800000u ? magnitude : 0u) + 0.5f;
    uint32_t half = magnitude < 0x38800000u ? weft_vector_bits(shifted) - 0x3f000000u : normal;
    half = magnitude >= 0x477ff000u ? 0x7c00u : half;
    half = magnitude > 0x7f800000u ? 0x7e00u : half;
    return (uint16_t)(half | (bits >> 16 & 0x8000u));
}

WEFT_INLINE float weft_vector_load(const void *from, size_t index, weft_dtype dtype)
{
    if (dtype == WEFT_BF16)
        return weft_vector_from_bf16(((const uint16_t *)from)[index]);
    if (dtype == WEFT_F16)
        return weft_vector_from_fp16(((const uint16_t *)from)[index]);
    return ((const float *)from)[index];
}

WEFT_INLINE void weft_vector_store(void *to, size_t index, float x, weft_dtype dtype)
{
    if (dtype == WEFT_BF16)
        ((uint16_t *)to)[index] = weft_vector_to_bf16(x);
    else if (dtype == WEFT_F16)
        ((uint16_t *)to)[index] = weft_vector_to_fp16(x);
    else
        ((float *)to)[index] = x;
}

WEFT_INLINE size_t weft_vector_bytes(weft_dtype dtype)
{
    return dtype == WEFT_F32 ? 4 : 2;
}

/* The address of element `index`. */
WEFT_INLINE const void *weft_vector_from(const void *base, size_t index, weft_dtype dtype)
{
    return (const char *)base + index * weft_vector_bytes(dtype);
}

WEFT_INLINE void *weft_vector_at(void *base, size_t index, weft_dtype dtype)
{
    return (char *)base + index * weft_vector_bytes(dtype);
}

/* e^x within 1.4 ulp for x <= 88, 0 below -87.3 (so e^-inf is 0), NaN for NaN, undefined above 88.
 * x = n ln 2 + r with |r| <= ln 2 / 2; e^r by a minimax polynomial of degree 6. */
WEFT_INLINE float weft_vector_exp(float x)
{
    const float magic = 0x1.8p23f; /* adding it leaves the nearest integer in the low bits */
    float shifted = x * 0x1.715476p0f + magic;
    float n = shifted - magic;
    float r = x - n * 0x1.62e4p-1f; /* n times the upper part of ln 2 is exact */
    r = r - n * 0x1.7f7d1cp-20f;
    float p = 0x1.6a23dp-10f;
    p = p * r + 0x1.123a2p-7f;
    p = p * r + 0x1.5558f2p-5f;
    p = p * r + 0x1.555492p-3f;
    p = p * r + 0x1.fffffcp-2f;
    p = p * (r * r) + r + 1.0f;
    /* n goes into the exponent; what the bits hold where n is out of range is not looked at */
    float power = weft_vector_from_bits((weft_vector_bits(shifted) + 127u) << 23);
    return x < -87.3f ? 0.0f : p * power;
}

/* 1 / x within 1 ulp for 2^-124 <= x <= 2^124. The difference of the bits is right to 5 %; three
 * Newton steps do the rest, and cost less than a vector division. */
WEFT_INLINE float weft_vector_reciprocal(float x)
{
    float y = weft_vector_from_bits(0x7ef311c7u - weft_vector_bits(x));
    y = y * (2.0f - x * y);
    y = y * (2.0f - x * y);
    return y * (1.0f - x * y) + y;
}

/* 1 / (1 + e^-x). */
WEFT_INLINE float weft_vector_sigmoid(float x)
{
    return weft_vector_reciprocal(1.0f + weft_vector_exp(x < -80.0f ? 80.0f : -x));
}

/* Sine and cosine of an angle in radians, |angle| < 2^30, absolute error below 1e-7. The quadrant
 * is taken off in fp64, because positions of long contexts make angles that fp32 cannot hold. */
WEFT_INLINE void weft_vector_sincos(double angle, float *sine, float *cosine)
{
    const double magic = 0x1.8p52;
    double shifted = angle * 0x1.45f306dc9c883p-1 + magic; /* 2 / pi */
    double n = shifted - magic;
    float r = (float)(angle - n * 0x1.921fb54442d18p0 - n * 0x1.1a62633145c07p-54);
    uint64_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    uint32_t quadrant = (uint32_t)bits;
    float z = r * r;
    float s = -0x1.994cfap-13f;
    s = s * z + 0x1.11075cp-7f;
    s = s * z - 0x1.555546p-3f;
    s = s * (z * r) + r;
    float c = 0x1.9a00ccp-16f;
    c = c * z - 0x1.6c0c86p-10f;
    c = c * z + 0x1.55554ap-5f;
    c = c * (z * z) - 0.5f * z + 1.0f;
    float swapped_s = quadrant & 1u ? c : s;
    float swapped_c = quadrant & 1u ? s : c;
    *sine = weft_vector_from_bits(weft_vector_bits(swapped_s) ^ ((quadrant & 2u) << 30));
    *cosine = weft_vector_from_bits(weft_vector_bits(swapped_c) ^ (((quadrant + 1u) & 2u) << 30));
}

#endif
