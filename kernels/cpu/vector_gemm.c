/* What stands before and after a GEMM: conversion of its operands, and of its result together with
 * the bias and what C held before. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vector_math.h"

weft_status WEFT_VECTOR(matrix_widen)(const weft_matrix_widen_args *args)
{
    const size_t cols = args->cols;
#pragma omp parallel for schedule(static) if (args->rows * cols > WEFT_VECTOR_SERIAL)
    for (size_t row = 0; row < args->rows; row++) {
        const uint16_t *restrict from = (const uint16_t *)args->from + row * args->ld_from;
        float *restrict to = args->to + row * args->ld_to;
#pragma omp simd
        for (size_t i = 0; i < cols; i++)
            to[i] = weft_vector_from_bf16(from[i]);
    }
    return WEFT_OK;
}

WEFT_INLINE void add_scaled(float *restrict sum, const void *x, size_t first, size_t num,
                            float factor, const weft_dtype dtype)
{
#pragma omp simd
    for (size_t i = 0; i < num; i++)
        sum[i] += factor * weft_vector_load(x, first + i, dtype);
}

static void add_any(float *restrict sum, const void *x, size_t first, size_t num, float factor,
                    weft_dtype dtype)
{
    if (dtype == WEFT_F32)
        add_scaled(sum, x, first, num, factor, WEFT_F32);
    else
        add_scaled(sum, x, first, num, factor, WEFT_BF16);
}

static void store_any(void *to, size_t first, size_t num, const float *restrict sum,
                      weft_dtype dtype)
{
    if (dtype == WEFT_F32) {
        memcpy((float *)to + first, sum, num * sizeof *sum);
        return;
    }
#pragma omp simd
    for (size_t i = 0; i < num; i++)
        weft_vector_store(to, first + i, sum[i], WEFT_BF16);
}

weft_status WEFT_VECTOR(matrix_finish)(const weft_matrix_finish_args *args)
{
    enum { PIECE = 1024 }; /* its sums stay in the first-level cache */
    const size_t cols = args->cols;
#pragma omp parallel for schedule(static) if (args->rows * cols > WEFT_VECTOR_SERIAL)
    for (size_t row = 0; row < args->rows; row++) {
        void *c = weft_vector_at(args->c, row * args->ldc, args->c_dtype);
        for (size_t first = 0; first < cols; first += PIECE) {
            const size_t num = weft_vector_min(PIECE, cols - first);
            float sum[PIECE];
            if (args->product)
                memcpy(sum, args->product + row * args->ld_product + first, num * sizeof *sum);
            else
                memset(sum, 0, num * sizeof *sum);
            if (args->beta != 0)
                add_any(sum, c, first, num, args->beta, args->c_dtype);
            if (args->bias)
                add_any(sum, args->bias, first, num, 1, args->bias_dtype);
            store_any(c, first, num, sum, args->c_dtype);
        }
    }
    return WEFT_OK;
}
