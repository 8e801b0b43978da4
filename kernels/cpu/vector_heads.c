/* Norms of heads in packed rows. */
#include "kernels/cpu/cpu.h"

#include <math.h>

#include "kernels/cpu/vector_math.h"

enum { BLOCK_TOKENS = 32 }; /* whose weight gradients are summed before they meet the others' */

WEFT_INLINE size_t place_of(const weft_heads_shape *s, size_t token, size_t head)
{
    return token * s->token_stride + head / s->heads * s->group_stride +
           head % s->heads * s->head_dim;
}

typedef struct moments {
    float mean, rstd;
} moments;

WEFT_INLINE moments moments_of(const void *x, size_t num, const weft_norm_kind kind, float epsilon,
                               const weft_dtype dtype)
{
    float mean = 0.0f, square = 0.0f;
    if (kind == WEFT_NORM_LAYER) {
#pragma omp simd reduction(+ : mean)
        for (size_t c = 0; c < num; c++)
            mean += weft_vector_load(x, c, dtype);
        mean /= (float)num;
    }
#pragma omp simd reduction(+ : square)
    for (size_t c = 0; c < num; c++) {
        float centred = weft_vector_load(x, c, dtype) - mean;
        square += centred * centred;
    }
    return (moments){mean, 1.0f / sqrtf(square / (float)num + epsilon)};
}

/* Of all of a token's heads together. */
WEFT_INLINE moments moments_together(const float *sums, size_t token, size_t whole, float epsilon)
{
    return (moments){0.0f, 1.0f / sqrtf(sums[token] / (float)whole + epsilon)};
}

WEFT_INLINE void forward_head(const weft_heads_norm_forward_args *a, size_t token, size_t head,
                              const weft_norm_kind kind, const weft_dtype dtype)
{
    const size_t num = a->shape.head_dim, at = place_of(&a->shape, token, head);
    const void *x = weft_vector_from(a->x, at, dtype), *bias = a->bias;
    const void *weight = weft_vector_from(a->weight, a->sums ? head * num : 0, dtype);
    void *y = weft_vector_at(a->y, at, dtype);
    const moments m = a->sums ? moments_together(a->sums, token, a->whole, a->epsilon)
                              : moments_of(x, num, kind, a->epsilon, dtype);
    if (bias) {
#pragma omp simd
        for (size_t c = 0; c < num; c++)
            weft_vector_store(y, c,
                              (weft_vector_load(x, c, dtype) - m.mean) * m.rstd *
                                      (weft_vector_load(weight, c, dtype) + a->weight_offset) +
                                  weft_vector_load(bias, c, dtype),
                              dtype);
    } else {
#pragma omp simd
        for (size_t c = 0; c < num; c++)
            weft_vector_store(y, c,
                              (weft_vector_load(x, c, dtype) - m.mean) * m.rstd *
                                  (weft_vector_load(weight, c, dtype) + a->weight_offset),
                              dtype);
    }
}

weft_status WEFT_VECTOR(heads_norm_forward)(const weft_heads_norm_forward_args *args)
{
    const size_t heads = args->shape.groups * args->shape.heads;
#pragma omp parallel for schedule(static) if (args->shape.tokens * heads * args->shape.head_dim >  \
                                              WEFT_VECTOR_SERIAL)
    for (size_t t = 0; t < args->shape.tokens; t++) {
        for (size_t h = 0; h < heads; h++) {
            if (args->kind == WEFT_NORM_LAYER && args->dtype == WEFT_F32)
                forward_head(args, t, h, WEFT_NORM_LAYER, WEFT_F32);
            else if (args->kind == WEFT_NORM_LAYER)
                forward_head(args, t, h, WEFT_NORM_LAYER, WEFT_BF16);
            else if (args->dtype == WEFT_F32)
                forward_head(args, t, h, WEFT_NORM_RMS, WEFT_F32);
            else
                forward_head(args, t, h, WEFT_NORM_RMS, WEFT_BF16);
        }
    }
    return WEFT_OK;
}

/* With h = (x - mean) rstd and g = dy weight: dx = rstd (g - mean(g) - h mean(g h)), where RMSNorm
 * has neither mean. */
WEFT_INLINE void backward_head(const weft_heads_norm_backward_args *a, size_t token, size_t head,
                               float *restrict dweight, float *restrict dbias,
                               const weft_norm_kind kind, const weft_dtype dtype)
{
    const size_t num = a->shape.head_dim, at = place_of(&a->shape, token, head);
    const void *x = weft_vector_from(a->x, at, dtype);
    const void *weight = weft_vector_from(a->weight, a->sums ? head * num : 0, dtype);
    void *dx = weft_vector_at(a->dx, at, dtype);
    const moments m = a->sums ? moments_together(a->sums, token, a->whole, a->epsilon)
                              : moments_of(x, num, kind, a->epsilon, dtype);
    const float mean = m.mean, rstd = m.rstd;
    float sum = 0.0f, along = 0.0f;
    if (a->sums) {
        along = a->along[token] / (float)a->whole;
    } else {
#pragma omp simd reduction(+ : sum, along)
        for (size_t c = 0; c < num; c++) {
            float g = weft_vector_load(dx, c, dtype) *
                      (weft_vector_load(weight, c, dtype) + a->weight_offset);
            sum += g;
            along += g * (weft_vector_load(x, c, dtype) - mean);
        }
        sum = kind == WEFT_NORM_LAYER ? sum / (float)num : 0.0f;
        along /= (float)num;
    }
    along *= rstd;
#pragma omp simd
    for (size_t c = 0; c < num; c++) {
        float d = weft_vector_load(dx, c, dtype);
        float h = (weft_vector_load(x, c, dtype) - mean) * rstd;
        dweight[c] += d * h;
        if (kind == WEFT_NORM_LAYER)
            dbias[c] += d;
        weft_vector_store(
            dx, c,
            rstd * (d * (weft_vector_load(weight, c, dtype) + a->weight_offset) - sum - h * along),
            dtype);
    }
}

/* Heads [first, end) of tokens [token, stop), which have one weight. */
static void backward_block(const weft_heads_norm_backward_args *args, size_t token, size_t stop,
                           size_t first, size_t end, float *dweight, float *dbias)
{
    for (; token < stop; token++) {
        for (size_t h = first; h < end; h++) {
            if (args->kind == WEFT_NORM_LAYER && args->dtype == WEFT_F32)
                backward_head(args, token, h, dweight, dbias, WEFT_NORM_LAYER, WEFT_F32);
            else if (args->kind == WEFT_NORM_LAYER)
                backward_head(args, token, h, dweight, dbias, WEFT_NORM_LAYER, WEFT_BF16);
            else if (args->dtype == WEFT_F32)
                backward_head(args, token, h, dweight, dbias, WEFT_NORM_RMS, WEFT_F32);
            else
                backward_head(args, token, h, dweight, dbias, WEFT_NORM_RMS, WEFT_BF16);
        }
    }
}

static void join(float *restrict to, const float *restrict from, size_t num, bool overwrite)
{
    for (size_t c = 0; c < num; c++)
        to[c] = from[c] + (overwrite ? 0.0f : to[c]);
}

static void backward_heads(const weft_heads_norm_backward_args *args, size_t first, size_t end,
                           float *to_weight, float *to_bias)
{
    const size_t num = args->shape.head_dim, tokens = args->shape.tokens;
    const size_t num_blocks = (tokens + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
    if (num_blocks == 0 && args->overwrite) {
        memset(to_weight, 0, num * sizeof *to_weight);
        if (to_bias)
            memset(to_bias, 0, num * sizeof *to_bias);
    }
    /* Blocks of tokens are fixed and joined in order: the sums do not depend on the threads. */
#pragma omp parallel for ordered schedule(static, 1) if (tokens * (end - first) * num >            \
                                                         WEFT_VECTOR_SERIAL)
    for (size_t block = 0; block < num_blocks; block++) {
        float dweight[WEFT_MAX_NORMED_HEAD_DIM] = {0}, dbias[WEFT_MAX_NORMED_HEAD_DIM] = {0};
        backward_block(args, block * BLOCK_TOKENS,
                       weft_vector_min(tokens, (block + 1) * BLOCK_TOKENS), first, end, dweight,
                       dbias);
#pragma omp ordered
        {
            const bool overwrite = args->overwrite && block == 0;
            join(to_weight, dweight, num, overwrite);
            if (to_bias)
                join(to_bias, dbias, num, overwrite);
        }
    }
}

weft_status WEFT_VECTOR(heads_norm_backward)(const weft_heads_norm_backward_args *args)
{
    const size_t heads = args->shape.groups * args->shape.heads;
    if (!args->sums) {
        backward_heads(args, 0, heads, args->dweight, args->dbias);
        return WEFT_OK;
    }
    for (size_t h = 0; h < heads; h++)
        backward_heads(args, h, h + 1, args->dweight + h * args->shape.head_dim, NULL);
    return WEFT_OK;
}

WEFT_INLINE float sum_of_head(const weft_heads_sums_args *args, size_t token, size_t head,
                              const weft_dtype dtype)
{
    const size_t num = args->shape.head_dim, at = place_of(&args->shape, token, head);
    const void *a = weft_vector_from(args->a, at, dtype);
    const void *b = weft_vector_from(args->b, at, dtype);
    float sum = 0.0f;
    if (args->weight) {
        const void *weight = weft_vector_from(args->weight, head * num, dtype);
#pragma omp simd reduction(+ : sum)
        for (size_t c = 0; c < num; c++)
            sum += weft_vector_load(a, c, dtype) * weft_vector_load(b, c, dtype) *
                   (weft_vector_load(weight, c, dtype) + args->weight_offset);
    } else {
#pragma omp simd reduction(+ : sum)
        for (size_t c = 0; c < num; c++)
            sum += weft_vector_load(a, c, dtype) * weft_vector_load(b, c, dtype);
    }
    return sum;
}

weft_status WEFT_VECTOR(heads_sums)(const weft_heads_sums_args *args)
{
    const size_t heads = args->shape.groups * args->shape.heads;
#pragma omp parallel for schedule(static) if (args->shape.tokens * heads * args->shape.head_dim >  \
                                              WEFT_VECTOR_SERIAL)
    for (size_t t = 0; t < args->shape.tokens; t++) {
        float sum = 0.0f;
        for (size_t h = 0; h < heads; h++)
            sum += args->dtype == WEFT_F32 ? sum_of_head(args, t, h, WEFT_F32)
                                           : sum_of_head(args, t, h, WEFT_BF16);
        args->sums[t] = sum;
    }
    return WEFT_OK;
}

WEFT_INLINE void spread_token(const weft_heads_share_args *a, size_t token, const weft_dtype dtype)
{
    const size_t num = a->shape.head_dim, heads = a->shape.groups * a->shape.heads;
    const void *one = weft_vector_from(a->one, token * num, dtype);
    for (size_t h = 0; h < heads; h++)
        memcpy(weft_vector_at(a->heads, place_of(&a->shape, token, h), dtype), one,
               num * weft_dtype_bytes(dtype));
}

WEFT_INLINE void gather_token(const weft_heads_share_args *a, size_t token, const weft_dtype dtype)
{
    const size_t num = a->shape.head_dim, heads = a->shape.groups * a->shape.heads;
    void *one = weft_vector_at(a->one, token * num, dtype);
    for (size_t c = 0; c < num; c++) {
        float sum = 0.0f;
        for (size_t h = 0; h < heads; h++)
            sum += weft_vector_load(a->heads, place_of(&a->shape, token, h) + c, dtype);
        weft_vector_store(one, c, sum, dtype);
    }
}

weft_status WEFT_VECTOR(heads_share)(const weft_heads_share_args *args)
{
    const weft_heads_shape *s = &args->shape;
#pragma omp parallel for schedule(static) if (s->tokens * s->groups * s->heads * s->head_dim >     \
                                              WEFT_VECTOR_SERIAL)
    for (size_t t = 0; t < s->tokens; t++) {
        if (!args->inverse && args->dtype == WEFT_F32)
            spread_token(args, t, WEFT_F32);
        else if (!args->inverse)
            spread_token(args, t, WEFT_BF16);
        else if (args->dtype == WEFT_F32)
            gather_token(args, t, WEFT_F32);
        else
            gather_token(args, t, WEFT_BF16);
    }
    return WEFT_OK;
}
