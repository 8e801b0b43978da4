#include "kernels/cpu/cpu.h"

#include <math.h>

#include "kernels/cpu/vector_math.h"
#include "kernels/rope.h"

/* GELU's tanh form: 0.5 x (1 + tanh u) = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3). */
static const float gelu_slope = 1.5957691216f; /* 2 sqrt(2 / pi) */
static const float gelu_cubic = 1.5957691216f * 0.044715f;
static const float quick_slope = 1.702f;

WEFT_INLINE float activate(float x, const weft_activation_kind kind)
{
    switch (kind) {
    case WEFT_ACTIVATION_GELU:
    case WEFT_ACTIVATION_GEGLU:
        return x * weft_vector_sigmoid(x * (gelu_slope + gelu_cubic * x * x));
    case WEFT_ACTIVATION_QUICK_GEGLU:
        return x * weft_vector_sigmoid(quick_slope * x);
    case WEFT_ACTIVATION_RELU:
        return x > 0.0f ? x : 0.0f;
    case WEFT_ACTIVATION_SILU:
    case WEFT_ACTIVATION_SWIGLU:
        return x * weft_vector_sigmoid(x);
    case WEFT_ACTIVATION_CAP: /* cap() */
        break;
    }
    return NAN;
}

WEFT_INLINE float slope_of(float x, const weft_activation_kind kind)
{
    switch (kind) {
    case WEFT_ACTIVATION_GELU:
    case WEFT_ACTIVATION_GEGLU: {
        float s = weft_vector_sigmoid(x * (gelu_slope + gelu_cubic * x * x));
        return s + x * s * (1.0f - s) * (gelu_slope + 3.0f * gelu_cubic * x * x);
    }
    case WEFT_ACTIVATION_QUICK_GEGLU: {
        float s = weft_vector_sigmoid(quick_slope * x);
        return s + quick_slope * x * s * (1.0f - s);
    }
    case WEFT_ACTIVATION_RELU:
        return x > 0.0f ? 1.0f : 0.0f;
    case WEFT_ACTIVATION_SILU:
    case WEFT_ACTIVATION_SWIGLU: {
        float s = weft_vector_sigmoid(x);
        return s + x * s * (1.0f - s);
    }
    case WEFT_ACTIVATION_CAP: /* has no backward */
        break;
    }
    return NAN;
}

WEFT_INLINE void forward(const void *x, void *y, size_t num, const weft_activation_kind kind,
                         const weft_dtype dtype)
{
#pragma omp simd
    for (size_t i = 0; i < num; i++)
        weft_vector_store(y, i, activate(weft_vector_load(x, i, dtype), kind), dtype);
}

/* `top` above all numbers where there is no limit. */
WEFT_INLINE void forward_gated(const void *gate, const void *up, void *y, size_t num, float top,
                               float offset, const weft_activation_kind kind,
                               const weft_dtype dtype)
{
#pragma omp simd
    for (size_t i = 0; i < num; i++) {
        float g = weft_vector_load(gate, i, dtype), u = weft_vector_load(up, i, dtype);
        g = g > top ? top : g;
        u = u > top ? top : u < -top ? -top : u;
        weft_vector_store(y, i, activate(g, kind) * (u + offset), dtype);
    }
}

WEFT_INLINE void backward(const void *x, const void *dy, void *dx, size_t num,
                          const weft_activation_kind kind, const weft_dtype dtype)
{
#pragma omp simd
    for (size_t i = 0; i < num; i++)
        weft_vector_store(
            dx, i, weft_vector_load(dy, i, dtype) * slope_of(weft_vector_load(x, i, dtype), kind),
            dtype);
}

WEFT_INLINE void backward_gated(const void *gate, const void *up, const void *dy, void *dgate,
                                void *dup, size_t num, float top, float offset,
                                const weft_activation_kind kind, const weft_dtype dtype)
{
#pragma omp simd
    for (size_t i = 0; i < num; i++) {
        const float g = weft_vector_load(gate, i, dtype), u = weft_vector_load(up, i, dtype);
        const float d = weft_vector_load(dy, i, dtype);
        const float g_in = g > top ? top : g, u_in = u > top ? top : u < -top ? -top : u;
        const float slope = g > top ? 0.0f : slope_of(g_in, kind);
        weft_vector_store(dgate, i, d * (u_in + offset) * slope, dtype);
        weft_vector_store(dup, i, u > top || u < -top ? 0.0f : d * activate(g_in, kind), dtype);
    }
}

WEFT_INLINE void cap(const void *x, void *y, size_t num, float limit, const weft_dtype dtype)
{
#pragma omp simd
    for (size_t i = 0; i < num; i++) {
        const float s = weft_vector_sigmoid(2.0f * weft_vector_load(x, i, dtype) / limit);
        weft_vector_store(y, i, limit * (2.0f * s - 1.0f), dtype);
    }
}

/* The formula of a kind, or of its gate. CAP has others. */
#define BY_KIND(call, kind, dtype, ...)                                                            \
    switch (kind) {                                                                                \
    case WEFT_ACTIVATION_GELU:                                                                     \
    case WEFT_ACTIVATION_GEGLU:                                                                    \
        call(__VA_ARGS__, WEFT_ACTIVATION_GELU, dtype);                                            \
        break;                                                                                     \
    case WEFT_ACTIVATION_RELU:                                                                     \
        call(__VA_ARGS__, WEFT_ACTIVATION_RELU, dtype);                                            \
        break;                                                                                     \
    case WEFT_ACTIVATION_QUICK_GEGLU:                                                              \
        call(__VA_ARGS__, WEFT_ACTIVATION_QUICK_GEGLU, dtype);                                     \
        break;                                                                                     \
    case WEFT_ACTIVATION_SILU:                                                                     \
    case WEFT_ACTIVATION_SWIGLU:                                                                   \
        call(__VA_ARGS__, WEFT_ACTIVATION_SILU, dtype);                                            \
        break;                                                                                     \
    case WEFT_ACTIVATION_CAP:                                                                      \
        break;                                                                                     \
    }
#define BY_KIND_AND_DTYPE(call, kind, dtype, ...)                                                  \
    do {                                                                                           \
        if ((dtype) == WEFT_F32) {                                                                 \
            BY_KIND(call, kind, WEFT_F32, __VA_ARGS__)                                             \
        } else {                                                                                   \
            BY_KIND(call, kind, WEFT_BF16, __VA_ARGS__)                                            \
        }                                                                                          \
    } while (0)

weft_status WEFT_VECTOR(activation_forward)(const weft_activation_forward_args *args)
{
    const size_t count = args->rows * args->cols, cols = args->cols;
    const weft_dtype dtype = args->dtype;
    const float top = args->limit > 0 ? args->limit : INFINITY;
    if (weft_activation_is_gated(args->kind)) {
#pragma omp parallel for schedule(static) if (count > WEFT_VECTOR_SERIAL)
        for (size_t row = 0; row < args->rows; row++) {
            const void *gate = weft_vector_from(args->x, 2 * row * cols, dtype);
            const void *up = weft_vector_from(gate, cols, dtype);
            void *y = weft_vector_at(args->y, row * cols, dtype);
            BY_KIND_AND_DTYPE(forward_gated, args->kind, dtype, gate, up, y, cols, top,
                              args->offset);
        }
        return WEFT_OK;
    }
#pragma omp parallel for schedule(static) if (count > WEFT_VECTOR_SERIAL)
    for (size_t first = 0; first < count; first += WEFT_VECTOR_CHUNK) {
        const size_t num = weft_vector_min(WEFT_VECTOR_CHUNK, count - first);
        const void *x = weft_vector_from(args->x, first, dtype);
        void *y = weft_vector_at(args->y, first, dtype);
        if (args->kind == WEFT_ACTIVATION_CAP && dtype == WEFT_F32)
            cap(x, y, num, args->limit, WEFT_F32);
        else if (args->kind == WEFT_ACTIVATION_CAP)
            cap(x, y, num, args->limit, WEFT_BF16);
        else
            BY_KIND_AND_DTYPE(forward, args->kind, dtype, x, y, num);
    }
    return WEFT_OK;
}

weft_status WEFT_VECTOR(activation_backward)(const weft_activation_backward_args *args)
{
    const size_t count = args->rows * args->cols, cols = args->cols;
    const weft_dtype dtype = args->dtype;
    const float top = args->limit > 0 ? args->limit : INFINITY;
    if (weft_activation_is_gated(args->kind)) {
#pragma omp parallel for schedule(static) if (count > WEFT_VECTOR_SERIAL)
        for (size_t row = 0; row < args->rows; row++) {
            const void *gate = weft_vector_from(args->x, 2 * row * cols, dtype);
            const void *up = weft_vector_from(gate, cols, dtype);
            const void *dy = weft_vector_from(args->dy, row * cols, dtype);
            void *dgate = weft_vector_at(args->dx, 2 * row * cols, dtype);
            void *dup = weft_vector_at(dgate, cols, dtype);
            BY_KIND_AND_DTYPE(backward_gated, args->kind, dtype, gate, up, dy, dgate, dup, cols,
                              top, args->offset);
        }
        return WEFT_OK;
    }
#pragma omp parallel for schedule(static) if (count > WEFT_VECTOR_SERIAL)
    for (size_t first = 0; first < count; first += WEFT_VECTOR_CHUNK) {
        const size_t num = weft_vector_min(WEFT_VECTOR_CHUNK, count - first);
        const void *x = weft_vector_from(args->x, first, dtype);
        const void *dy = weft_vector_from(args->dy, first, dtype);
        void *dx = weft_vector_at(args->dx, first, dtype);
        BY_KIND_AND_DTYPE(backward, args->kind, dtype, x, dy, dx, num);
    }
    return WEFT_OK;
}

enum { ROPE_PAIRS = 256 }; /* rotated pairs of a head whose angles are kept on the stack */

WEFT_INLINE void rotate(void *first, void *second, size_t num, const float *restrict sine,
                        const float *restrict cosine, const weft_dtype dtype)
{
#pragma omp simd
    for (size_t i = 0; i < num; i++) {
        float a = weft_vector_load(first, i, dtype), b = weft_vector_load(second, i, dtype);
        weft_vector_store(first, i, a * cosine[i] - b * sine[i], dtype);
        weft_vector_store(second, i, b * cosine[i] + a * sine[i], dtype);
    }
}

WEFT_INLINE void rotate_neighbours(void *x, size_t num, const float *restrict sine,
                                   const float *restrict cosine, const weft_dtype dtype)
{
#pragma omp simd
    for (size_t i = 0; i < num; i++) {
        float a = weft_vector_load(x, 2 * i, dtype), b = weft_vector_load(x, 2 * i + 1, dtype);
        weft_vector_store(x, 2 * i, a * cosine[i] - b * sine[i], dtype);
        weft_vector_store(x, 2 * i + 1, b * cosine[i] + a * sine[i], dtype);
    }
}

/* `num` pairs from `first` on of a head at x. */
WEFT_INLINE void rotate_head(const weft_rope_args *args, void *x, size_t first, size_t num,
                             const float *restrict sine, const float *restrict cosine,
                             const weft_dtype dtype)
{
    const size_t half = args->rotary_dim / 2;
    if (args->interleaved)
        rotate_neighbours(weft_vector_at(x, 2 * first, dtype), num, sine, cosine, dtype);
    else
        rotate(weft_vector_at(x, first, dtype), weft_vector_at(x, first + half, dtype), num, sine,
               cosine, dtype);
}

static double frequency_of(const weft_rope_args *args, size_t pair)
{
    const size_t half = args->rotary_dim / 2;
    const double frequency = pow((double)args->base, -(double)pair / (double)half);
    return frequency * weft_rope_scale(&args->scaling, (double)pair, frequency);
}

weft_status WEFT_VECTOR(rope)(const weft_rope_args *args)
{
    const size_t half = args->rotary_dim / 2;
    const size_t heads = args->heads * (args->groups ? args->groups : 1);
    const size_t together = args->index_by_sample ? 1 : args->batch; /* tokens of one position */
    const size_t positions = args->seq * args->batch / (together ? together : 1);
    const weft_dtype dtype = args->dtype;
    for (size_t first = 0; first < half; first += ROPE_PAIRS) {
        const size_t num = weft_vector_min(ROPE_PAIRS, half - first);
        double frequency[ROPE_PAIRS];
        for (size_t i = 0; i < num; i++) {
            frequency[i] = frequency_of(args, first + i);
            if (args->inverse)
                frequency[i] = -frequency[i];
        }
#pragma omp parallel for schedule(static) if (args->seq * args->batch * heads * half >             \
                                              WEFT_VECTOR_SERIAL)
        for (size_t s = 0; s < positions; s++) {
            const double position =
                (double)(args->index ? (size_t)args->index[s] : args->first_position + s);
            float sine[ROPE_PAIRS], cosine[ROPE_PAIRS];
#pragma omp simd
            for (size_t i = 0; i < num; i++)
                weft_vector_sincos(position * frequency[i], &sine[i], &cosine[i]);
            for (size_t i = 0; i < num && args->magnitude > 0; i++) {
                sine[i] *= args->magnitude;
                cosine[i] *= args->magnitude;
            }
            for (size_t b = 0; b < together; b++) {
                for (size_t h = 0; h < heads; h++) {
                    void *x = weft_vector_at(args->x,
                                             (s * together + b) * args->token_stride +
                                                 h / args->heads * args->group_stride +
                                                 h % args->heads * args->head_stride,
                                             dtype);
                    if (dtype == WEFT_F32)
                        rotate_head(args, x, first, num, sine, cosine, WEFT_F32);
                    else
                        rotate_head(args, x, first, num, sine, cosine, WEFT_BF16);
                }
            }
        }
    }
    return WEFT_OK;
}
