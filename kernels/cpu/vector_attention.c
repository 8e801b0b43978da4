#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vector_math.h"

#include <math.h>

#include "core/rng.h"

static bool kept(const weft_attention_shape *s, size_t b, size_t h, size_t i, size_t j)
{
    uint64_t index = (((s->first_sample + b) * s->total_heads + s->first_head + h) * s->total_seq +
                      s->first_query + i) *
                         s->total_seq +
                     j;
    return s->dropout == 0 || weft_rng_uniform(s->seed, s->stream, index) >= s->dropout;
}

static float scale_of(const weft_attention_shape *s)
{
    return s->scale != 0 ? s->scale : 1.0f / sqrtf((float)s->head_dim);
}

static size_t query_at(const weft_attention_shape *s, size_t b, size_t h, size_t i)
{
    size_t each = s->heads / s->groups;
    return (i * s->batch + b) * s->q_token_stride + h / each * s->q_group_stride +
           h % each * s->head_dim;
}

static size_t key_at(const weft_attention_shape *s, size_t b, size_t h, size_t j)
{
    return (j * s->batch + b) * s->k_token_stride + h / (s->heads / s->groups) * s->k_group_stride;
}

static size_t keys_of(const weft_attention_shape *s, size_t i)
{
    size_t last = s->first_query + i + 1;
    return s->causal && last < s->seq_k ? last : s->seq_k;
}

static float dot(const void *a, size_t at, const void *b, size_t bt, size_t n, weft_dtype dtype)
{
    float sum = 0;
    for (size_t d = 0; d < n; d++)
        sum += weft_vector_load(a, at + d, dtype) * weft_vector_load(b, bt + d, dtype);
    return sum;
}

static void add(void *y, size_t yt, float f, const void *x, size_t xt, size_t n, weft_dtype dtype)
{
    for (size_t d = 0; d < n; d++)
        weft_vector_store(
            y, yt + d, weft_vector_load(y, yt + d, dtype) + f * weft_vector_load(x, xt + d, dtype),
            dtype);
}

static void clear(void *y, size_t yt, size_t n, weft_dtype dtype)
{
    for (size_t d = 0; d < n; d++)
        weft_vector_store(y, yt + d, 0, dtype);
}

weft_status WEFT_VECTOR(attention_forward)(const weft_attention_forward_args *a)
{
    const weft_attention_shape *s = &a->shape;
    float scale = scale_of(s);
#pragma omp parallel for collapse(3)
    for (size_t b = 0; b < s->batch; b++)
        for (size_t h = 0; h < s->heads; h++)
            for (size_t i = 0; i < s->seq_q; i++) {
                size_t q = query_at(s, b, h, i), n = keys_of(s, i);
                size_t o = ((i * s->batch + b) * s->heads + h) * s->head_dim;
                float top = -INFINITY, sum = 0;
                for (size_t j = 0; j < n; j++)
                    top = fmaxf(
                        top, scale * dot(a->q, q, a->k, key_at(s, b, h, j), s->head_dim, a->dtype));
                for (size_t j = 0; j < n; j++)
                    sum +=
                        expf(scale * dot(a->q, q, a->k, key_at(s, b, h, j), s->head_dim, a->dtype) -
                             top);
                clear(a->out, o, s->head_dim, a->dtype);
                for (size_t j = 0; j < n; j++) {
                    size_t k = key_at(s, b, h, j);
                    float p =
                        expf(scale * dot(a->q, q, a->k, k, s->head_dim, a->dtype) - top) / sum;
                    if (kept(s, b, h, i, j))
                        add(a->out, o, p / (1 - s->dropout), a->v, k, s->head_dim, a->dtype);
                }
                a->lse[(b * s->heads + h) * s->seq_q + i] = top + logf(sum);
            }
    return WEFT_OK;
}

weft_status WEFT_VECTOR(attention_backward)(const weft_attention_backward_args *a)
{
    const weft_attention_shape *s = &a->shape;
    size_t each = s->heads / s->groups, dim = s->head_dim;
    float scale = scale_of(s);
#pragma omp parallel for collapse(2)
    for (size_t b = 0; b < s->batch; b++)
        for (size_t g = 0; g < s->groups; g++) {
            for (size_t j = 0; j < s->seq_k; j++) {
                clear(a->dk, key_at(s, b, g * each, j), dim, a->dtype);
                clear(a->dv, key_at(s, b, g * each, j), dim, a->dtype);
            }
            for (size_t h = g * each; h < (g + 1) * each; h++)
                for (size_t i = 0; i < s->seq_q; i++) {
                    size_t q = query_at(s, b, h, i), o = ((i * s->batch + b) * s->heads + h) * dim;
                    float delta = dot(a->out, o, a->dout, o, dim, a->dtype);
                    a->delta[(b * s->heads + h) * s->seq_q + i] = delta;
                    clear(a->dq, q, dim, a->dtype);
                    for (size_t j = 0; j < keys_of(s, i); j++) {
                        size_t k = key_at(s, b, h, j);
                        float p = expf(scale * dot(a->q, q, a->k, k, dim, a->dtype) -
                                       a->lse[(b * s->heads + h) * s->seq_q + i]);
                        float keep = kept(s, b, h, i, j) ? 1 / (1 - s->dropout) : 0;
                        float dp = keep * dot(a->dout, o, a->v, k, dim, a->dtype);
                        float ds = scale * p * (dp - delta);
                        add(a->dv, k, keep * p, a->dout, o, dim, a->dtype);
                        add(a->dq, q, ds, a->k, k, dim, a->dtype);
                        add(a->dk, k, ds, a->q, q, dim, a->dtype);
                    }
                }
        }
    return WEFT_OK;
}
