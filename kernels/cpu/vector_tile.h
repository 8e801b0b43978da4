/* Products of small matrices whose operands lie in cache as panels.
 *
 * A matrix of any width is stored in fp32 as panels [rows][WEFT_PANEL] of neighbouring columns
 * (packing widens bf16). This format serves every role in a product. As the right operand, a row of
 * a panel is two vectors. As the left operand, the panel's elements are broadcast one by one, along
 * its rows or, for the transpose, down its columns. A product's rows are again a panel's. Sums stay
 * in registers while the inner dimension runs (Goto and van de Geijn 2008). An element's additions
 * come in the order of the inner dimension, however the rows are cut. */
#ifndef WEFT_KERNELS_CPU_VECTOR_TILE_H
#define WEFT_KERNELS_CPU_VECTOR_TILE_H

#include "kernels/cpu/vector_math.h"

#ifdef __AVX512F__
#include <immintrin.h>
#endif

/* As many sums as the register file holds beside two vectors of B and one of A. */
#if defined(__AVX512F__)
enum { WEFT_LANES = 16, WEFT_TILE_ROWS = 14 };
#elif defined(__AVX2__)
enum { WEFT_LANES = 8, WEFT_TILE_ROWS = 6 };
#else
enum { WEFT_LANES = 4, WEFT_TILE_ROWS = 6 };
#endif
enum { WEFT_PANEL = 2 * WEFT_LANES };

/* A vector, whose loads and stores may be unaligned. */
typedef float weft_vec __attribute__((vector_size(4 * WEFT_LANES), aligned(4), may_alias));

/* Before a loop over rows that must be unrolled, so that the sums stay in registers. */
#ifdef __clang__
#define WEFT_UNROLL _Pragma("clang loop unroll(full)")
#else
#define WEFT_UNROLL _Pragma("GCC unroll 16")
#endif

/* c[rows][WEFT_PANEL] (+)= A[rows][k] * b[k][WEFT_PANEL]. along: A's rows are rows of panels that
 * stand `a_jump` elements apart; else A's rows are columns of the one panel at `a`. rows and along
 * are constants after inlining. */
WEFT_INLINE void weft_tile(const int rows, const bool along, size_t k, const float *a,
                           size_t a_jump, const float *b, float *c, bool add)
{
    weft_vec sum[WEFT_TILE_ROWS][2];
    if (add) {
        WEFT_UNROLL
        for (int i = 0; i < rows; i++) {
            sum[i][0] = *(const weft_vec *)(c + i * WEFT_PANEL);
            sum[i][1] = *(const weft_vec *)(c + i * WEFT_PANEL + WEFT_LANES);
        }
    } else {
        WEFT_UNROLL
        for (int i = 0; i < rows; i++)
            sum[i][0] = sum[i][1] = (weft_vec){0};
    }
    const size_t a_row = along ? WEFT_PANEL : 1, a_step = along ? 1 : WEFT_PANEL;
    for (size_t done = 0; done < k; done += WEFT_PANEL) {
        const size_t num = weft_vector_min(k - done, WEFT_PANEL);
        const float *element = a;
        for (size_t p = 0; p < num; p++) {
            const weft_vec b0 = *(const weft_vec *)b, b1 = *(const weft_vec *)(b + WEFT_LANES);
            WEFT_UNROLL
            for (int i = 0; i < rows; i++) {
                sum[i][0] += element[(size_t)i * a_row] * b0;
                sum[i][1] += element[(size_t)i * a_row] * b1;
            }
            element += a_step;
            b += WEFT_PANEL;
        }
        a += along ? a_jump : (size_t)WEFT_PANEL * WEFT_PANEL;
    }
    WEFT_UNROLL
    for (int i = 0; i < rows; i++) {
        *(weft_vec *)(c + i * WEFT_PANEL) = sum[i][0];
        *(weft_vec *)(c + i * WEFT_PANEL + WEFT_LANES) = sum[i][1];
    }
}

#ifdef __AVX512F__
#define WEFT_TILE_CASES(X)                                                                         \
    X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14)
#else
#define WEFT_TILE_CASES(X) X(1) X(2) X(3) X(4) X(5) X(6)
#endif

WEFT_INLINE void weft_tiles(const bool along, size_t rows, size_t k, const float *a, size_t a_jump,
                            const float *b, float *c, bool add)
{
    size_t tiles = (rows + WEFT_TILE_ROWS - 1) / WEFT_TILE_ROWS;
    for (; tiles > 0; tiles--) {
        const size_t num = (rows + tiles - 1) / tiles; /* tiles of about the same height */
        switch (num) {
#define WEFT_TILE_CASE(n)                                                                          \
    case n:                                                                                        \
        weft_tile(n, along, k, a, a_jump, b, c, add);                                              \
        break;
            WEFT_TILE_CASES(WEFT_TILE_CASE)
#undef WEFT_TILE_CASE
        }
        rows -= num;
        a += num * (along ? WEFT_PANEL : 1);
        c += num * WEFT_PANEL;
    }
}

/* c[rows][WEFT_PANEL] (+)= A[rows][k] * b[k][WEFT_PANEL]; A in panels `a_jump` elements apart. */
static inline void weft_tiles_along(size_t rows, size_t k, const float *a, size_t a_jump,
                                    const float *b, float *c, bool add)
{
    weft_tiles(true, rows, k, a, a_jump, b, c, add);
}

/* c[columns][WEFT_PANEL] (+)= A[k][columns]^T * b[k][WEFT_PANEL]; A lies within one panel. */
static inline void weft_tiles_across(size_t columns, size_t k, const float *a, const float *b,
                                     float *c, bool add)
{
    weft_tiles(false, columns, k, a, 0, b, c, add);
}

/* Loads a row of `cols` elements into panels `jump` elements apart; zeros fill the last one. */
WEFT_INLINE void weft_panel_load_row(float *to, size_t jump, const void *from, size_t cols,
                                     const weft_dtype dtype)
{
    size_t col = 0;
    for (; col + WEFT_PANEL <= cols; col += WEFT_PANEL, to += jump) {
#pragma omp simd
        for (int i = 0; i < WEFT_PANEL; i++)
            to[i] = weft_vector_load(from, col + (size_t)i, dtype);
    }
    for (size_t i = 0; col < cols && i < WEFT_PANEL; i++)
        to[i] = col + i < cols ? weft_vector_load(from, col + i, dtype) : 0.0f;
}

/* Loads rows x cols, rows `stride` elements apart in `from`, into panels `jump` elements apart. */
static inline void weft_panel_load(float *to, size_t jump, const void *from, size_t stride,
                                   size_t rows, size_t cols, weft_dtype dtype)
{
    for (size_t row = 0; row < rows; row++, to += WEFT_PANEL) {
        const void *line = weft_vector_from(from, row * stride, dtype);
        if (dtype == WEFT_F32)
            weft_panel_load_row(to, jump, line, cols, WEFT_F32);
        else
            weft_panel_load_row(to, jump, line, cols, WEFT_BF16);
    }
}

WEFT_INLINE void weft_panel_store_row(void *to, const float *from, size_t jump, size_t cols,
                                      float factor, const weft_dtype dtype)
{
    size_t col = 0;
    for (; col + WEFT_PANEL <= cols; col += WEFT_PANEL, from += jump) {
#pragma omp simd
        for (int i = 0; i < WEFT_PANEL; i++)
            weft_vector_store(to, col + (size_t)i, factor * from[i], dtype);
    }
    for (size_t i = 0; col + i < cols; i++)
        weft_vector_store(to, col + i, factor * from[i], dtype);
}

/* Stores panels as rows x cols, each row times factor[row * factor_step]. */
static inline void weft_panel_store(void *to, size_t stride, const float *from, size_t jump,
                                    size_t rows, size_t cols, const float *factor,
                                    size_t factor_step, weft_dtype dtype)
{
    for (size_t row = 0; row < rows; row++, from += WEFT_PANEL) {
        void *line = weft_vector_at(to, row * stride, dtype);
        if (dtype == WEFT_F32)
            weft_panel_store_row(line, from, jump, cols, factor[row * factor_step], WEFT_F32);
        else
            weft_panel_store_row(line, from, jump, cols, factor[row * factor_step], WEFT_BF16);
    }
}

/* weft_panel_load_transposed loads the transpose of rows x cols (at most WEFT_PANEL rows) into one
 * panel [cols][WEFT_PANEL]; zeros stand for missing rows. */
#ifdef __AVX512F__

WEFT_INLINE void weft_panel_transpose_16(__m512i r[16])
{
    __m512i t[16];
    WEFT_UNROLL
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    WEFT_UNROLL
    for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    /* r[4 a + b] now holds, in its quarter q, column 4 q + b of rows 4 a .. 4 a + 3. */
    WEFT_UNROLL
    for (int b = 0; b < 4; b++) {
        t[b] = _mm512_shuffle_i32x4(r[b], r[4 + b], 0x88);
        t[4 + b] = _mm512_shuffle_i32x4(r[b], r[4 + b], 0xdd);
        t[8 + b] = _mm512_shuffle_i32x4(r[8 + b], r[12 + b], 0x88);
        t[12 + b] = _mm512_shuffle_i32x4(r[8 + b], r[12 + b], 0xdd);
    }
    WEFT_UNROLL
    for (int b = 0; b < 4; b++) {
        r[b] = _mm512_shuffle_i32x4(t[b], t[8 + b], 0x88);
        r[8 + b] = _mm512_shuffle_i32x4(t[b], t[8 + b], 0xdd);
        r[4 + b] = _mm512_shuffle_i32x4(t[4 + b], t[12 + b], 0x88);
        r[12 + b] = _mm512_shuffle_i32x4(t[4 + b], t[12 + b], 0xdd);
    }
}

static inline void weft_panel_load_transposed(float *to, const float *from, size_t stride,
                                              size_t rows, size_t cols)
{
    for (size_t first = 0; first < WEFT_PANEL; first += 16) {
        const size_t num = rows > first ? rows - first : 0;
        for (size_t col = 0; col < cols; col += 16) {
            const uint32_t left = (uint32_t)weft_vector_min(cols - col, 16);
            const __mmask16 there = (__mmask16)((1u << left) - 1u);
            __m512i r[16];
            WEFT_UNROLL
            for (size_t i = 0; i < 16; i++)
                r[i] = i < num ? _mm512_maskz_loadu_epi32(there, from + (first + i) * stride + col)
                               : _mm512_setzero_si512();
            weft_panel_transpose_16(r);
            WEFT_UNROLL
            for (size_t i = 0; i < 16; i++)
                if (i < left)
                    _mm512_storeu_si512(to + (col + i) * WEFT_PANEL + first, r[i]);
        }
    }
}

#else

static inline void weft_panel_load_transposed(float *to, const float *from, size_t stride,
                                              size_t rows, size_t cols)
{
    for (size_t i = 0; i < WEFT_PANEL; i++)
        for (size_t col = 0; col < cols; col++)
            to[col * WEFT_PANEL + i] = i < rows ? from[i * stride + col] : 0.0f;
}

#endif

#endif
