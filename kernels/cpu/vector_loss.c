#include "kernels/cpu/cpu.h"

#include <math.h>

#include "kernels/cpu/vector_math.h"

enum { LANES = 64, COLS = 4096 }; /* a chunk of logits stays in the first-level cache */

/* Compilers do not vectorise a floating-point maximum written as one scalar: NaN would not stay
 * where it was. LANES separate maxima have no such question. */
WEFT_INLINE float largest(const void *x, size_t num, const weft_dtype dtype)
{
    float lanes[LANES];
    for (size_t l = 0; l < LANES; l++)
        lanes[l] = -INFINITY;
    size_t i = 0;
    for (; i + LANES <= num; i += LANES) {
#pragma omp simd
        for (size_t l = 0; l < LANES; l++) {
            float value = weft_vector_load(x, i + l, dtype);
            lanes[l] = value > lanes[l] ? value : lanes[l];
        }
    }
    for (size_t l = 0; i < num; i++, l++) {
        float value = weft_vector_load(x, i, dtype);
        lanes[l] = value > lanes[l] ? value : lanes[l];
    }
    for (size_t half = LANES / 2; half > 0; half /= 2)
        for (size_t l = 0; l < half; l++)
            lanes[l] = lanes[l + half] > lanes[l] ? lanes[l + half] : lanes[l];
    return lanes[0];
}

WEFT_INLINE float sum_exp(const void *x, size_t num, float shift, const weft_dtype dtype)
{
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < num; i++)
        sum += weft_vector_exp(weft_vector_load(x, i, dtype) - shift);
    return sum;
}

WEFT_INLINE void stats_row(const weft_cross_entropy_stats_args *a, size_t row,
                           const weft_dtype dtype)
{
    const void *logits = weft_vector_from(a->logits, row * a->cols, dtype);
    float max = a->pass == WEFT_CROSS_ENTROPY_SUM ? a->row_max[row] : -INFINITY, sum = 0.0f;
    for (size_t first = 0; first < a->valid_cols; first += COLS) {
        const void *x = weft_vector_from(logits, first, dtype);
        const size_t num = weft_vector_min(COLS, a->valid_cols - first);
        if (a->pass != WEFT_CROSS_ENTROPY_SUM) {
            float here = largest(x, num, dtype);
            if (here > max) {
                sum *= weft_vector_exp(max - here);
                max = here;
            }
        }
        if (a->pass != WEFT_CROSS_ENTROPY_MAX)
            sum += sum_exp(x, num, max > -INFINITY ? max : 0.0f, dtype);
    }
    a->row_max[row] = max;
    if (a->pass == WEFT_CROSS_ENTROPY_MAX)
        return;
    a->row_sum[row] = sum;
    const int64_t label = (int64_t)a->labels[row] - (int64_t)a->first_col;
    const bool is_here = label >= 0 && label < (int64_t)a->valid_cols;
    a->target[row] = is_here ? weft_vector_load(logits, (size_t)label, dtype) : 0.0f;
}

weft_status WEFT_VECTOR(cross_entropy_stats)(const weft_cross_entropy_stats_args *args)
{
#pragma omp parallel for schedule(static) if (args->rows * args->cols > WEFT_VECTOR_SERIAL)
    for (size_t row = 0; row < args->rows; row++) {
        if (args->dtype == WEFT_F32)
            stats_row(args, row, WEFT_F32);
        else
            stats_row(args, row, WEFT_BF16);
    }
    return WEFT_OK;
}

weft_status WEFT_VECTOR(cross_entropy_loss)(const weft_cross_entropy_loss_args *args)
{
    double total = 0.0;
    for (size_t row = 0; row < args->rows; row++) {
        double loss = log((double)args->row_sum[row]) + (double)args->row_max[row] -
                      (double)args->target[row];
        if (args->mask) /* a masked row may hold anything, even infinities */
            loss = args->mask[row] != 0.0f ? loss * (double)args->mask[row] : 0.0;
        if (args->loss)
            args->loss[row] = (float)loss;
        total += loss;
    }
    *args->loss_sum += total;
    return WEFT_OK;
}

WEFT_INLINE void backward_row(const weft_cross_entropy_backward_args *a, size_t row,
                              const weft_dtype dtype)
{
    void *x = weft_vector_at(a->logits, row * a->cols, dtype);
    const float weight = a->scale * (a->mask ? a->mask[row] : 1.0f);
    if (weight == 0.0f) {
        memset(x, 0, a->cols * weft_vector_bytes(dtype));
        return;
    }
    const float max = a->row_max[row], factor = weight / a->row_sum[row];
    const int64_t label = (int64_t)a->labels[row] - (int64_t)a->first_col;
    const bool is_here = label >= 0 && label < (int64_t)a->valid_cols;
    const float target = is_here ? weft_vector_load(x, (size_t)label, dtype) : 0.0f;
    if (a->softcap > 0) {
        const float inverse = 1.0f / a->softcap;
#pragma omp simd
        for (size_t c = 0; c < a->valid_cols; c++) {
            const float logit = weft_vector_load(x, c, dtype), t = logit * inverse;
            const float gradient =
                weft_vector_exp(logit - max) * factor - ((int64_t)c == label ? weight : 0.0f);
            weft_vector_store(x, c, gradient * (1.0f - t * t), dtype);
        }
        memset(weft_vector_at(x, a->valid_cols, dtype), 0,
               (a->cols - a->valid_cols) * weft_vector_bytes(dtype));
        return;
    }
#pragma omp simd
    for (size_t c = 0; c < a->valid_cols; c++)
        weft_vector_store(x, c, weft_vector_exp(weft_vector_load(x, c, dtype) - max) * factor,
                          dtype);
    if (is_here)
        weft_vector_store(x, (size_t)label, weft_vector_exp(target - max) * factor - weight, dtype);
    memset(weft_vector_at(x, a->valid_cols, dtype), 0,
           (a->cols - a->valid_cols) * weft_vector_bytes(dtype));
}

weft_status WEFT_VECTOR(cross_entropy_backward)(const weft_cross_entropy_backward_args *args)
{
#pragma omp parallel for schedule(static) if (args->rows * args->cols > WEFT_VECTOR_SERIAL)
    for (size_t row = 0; row < args->rows; row++) {
        if (args->dtype == WEFT_F32)
            backward_row(args, row, WEFT_F32);
        else
            backward_row(args, row, WEFT_BF16);
    }
    return WEFT_OK;
}
