#include "tests/cuda/cublas_emulated.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cuda/emulate_runtime.h"

enum { BLOCK_ROWS = 8, BLOCK_COLS = 4 }; /* of d */

static float from_bf16(uint16_t x)
{
    const uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint16_t to_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (isnan(x))
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float from_half(uint16_t x)
{
    const int exponent = x >> 10 & 31, mantissa = x & 1023;
    const float size = exponent == 0    ? ldexpf((float)mantissa, -24)
                       : exponent == 31 ? (mantissa ? NAN : INFINITY)
                                        : ldexpf((float)(mantissa | 1024), exponent - 25);
    return x >> 15 ? -size : size;
}

static uint16_t to_half(float x)
{
    const unsigned sign = signbit(x) ? 0x8000 : 0;
    const float size = fabsf(x);
    int exponent;
    if (isnan(x))
        return (uint16_t)(sign | 0x7e00);
    if (size >= 65520.0f)
        return (uint16_t)(sign | 0x7c00);
    if (size < 0x1p-14f)
        return (uint16_t)(sign | (unsigned)nearbyintf(ldexpf(size, 24)));
    frexpf(size, &exponent);
    const unsigned digits = (unsigned)nearbyintf(ldexpf(size, 11 - exponent));
    return (uint16_t)(sign | (((unsigned)(exponent + 14) << 10) + (digits - 1024)));
}

static float load(const void *x, size_t i, cudaDataType_t type)
{
    return type == CUDA_R_32F    ? ((const float *)x)[i]
           : type == CUDA_R_16BF ? from_bf16(((const uint16_t *)x)[i])
                                 : from_half(((const uint16_t *)x)[i]);
}

static void store(void *x, size_t i, cudaDataType_t type, float value)
{
    if (type == CUDA_R_32F)
        ((float *)x)[i] = value;
    else
        ((uint16_t *)x)[i] = type == CUDA_R_16BF ? to_bf16(value) : to_half(value);
}

static size_t round_up(size_t x, size_t step)
{
    return (x + step - 1) / step * step;
}

static float *allocate(size_t count)
{
    float *out = calloc(count, sizeof *out);
    if (!out)
        weft_emulate_die("cuBLAS: out of memory");
    return out;
}

/* op(x)[rows, cols] to fp32 in panels of `width` rows, zeros below the last: each has its first
 * column, then its second. */
static float *pack(const void *x, cudaDataType_t type, bool transposed, size_t rows, size_t cols,
                   size_t stride, size_t width)
{
    float *out = allocate(round_up(rows, width) * cols);
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < cols; j++)
            out[(i / width * cols + j) * width + i % width] =
                load(x, transposed ? j + i * stride : i + j * stride, type);
    return out;
}

/* out[i][j] = a's column i times b's row j, of one panel each. */
static void multiply_block(const float *restrict a, const float *restrict b, size_t k,
                           float out[BLOCK_COLS][BLOCK_ROWS])
{
    float sum[BLOCK_COLS][BLOCK_ROWS] = {{0}};
    for (size_t p = 0; p < k; p++)
        for (int i = 0; i < BLOCK_COLS; i++)
            for (int j = 0; j < BLOCK_ROWS; j++)
                sum[i][j] += b[p * BLOCK_COLS + (size_t)i] * a[p * BLOCK_ROWS + (size_t)j];
    memcpy(out, sum, sizeof sum);
}

/* GELU's tanh form. */
static float gelu(float x)
{
    return 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
}

static float gelu_slope(float x)
{
    const float t = tanhf(0.79788456f * (x + 0.044715f * x * x * x));
    return 0.5f * (1.0f + t) +
           0.5f * x * (1.0f - t * t) * 0.79788456f * (1.0f + 3.0f * 0.044715f * x * x);
}

static float finish(const emulated_product *t, size_t row, size_t col, float value)
{
    const size_t at = row + col * t->stride_aux;
    if (t->epilogue == EMULATED_GELU) {
        store(t->aux, at, t->d_type, value);
        return gelu(value);
    }
    return t->epilogue == EMULATED_GELU_BACKWARD ? value * gelu_slope(load(t->aux, at, t->d_type))
                                                 : value;
}

static void write_block(const emulated_product *t, size_t row, size_t col,
                        float sum[BLOCK_COLS][BLOCK_ROWS])
{
    for (size_t j = col; j < col + BLOCK_COLS && j < t->n; j++)
        for (size_t i = row; i < row + BLOCK_ROWS && i < t->m; i++) {
            const size_t at = i + j * t->stride_d;
            float value = t->alpha * sum[j - col][i - row];
            if (t->beta != 0)
                value += t->beta * load(t->d, at, t->d_type);
            if (t->bias)
                value += load(t->bias, i, t->d_type);
            store(t->d, at, t->d_type, finish(t, i, j, value));
        }
}

void emulated_product_run(const emulated_product *t)
{
    float *a = pack(t->a, t->type, t->transpose_a, t->m, t->k, t->stride_a, BLOCK_ROWS);
    float *b = pack(t->b, t->type, !t->transpose_b, t->n, t->k, t->stride_b, BLOCK_COLS);
    float sum[BLOCK_COLS][BLOCK_ROWS];
    for (size_t col = 0; col < t->n; col += BLOCK_COLS)
        for (size_t row = 0; row < t->m; row += BLOCK_ROWS) {
            multiply_block(a + row * t->k, b + col * t->k, t->k, sum);
            write_block(t, row, col, sum);
        }
    free(a);
    free(b);
}
