#include "kernels/cpu/cpu.h"

#include <math.h>

#include "kernels/cpu/vector_math.h"

typedef struct adamw_constants {
    float grad_scale, beta1, beta2, epsilon, decay, rate, second_scale;
} adamw_constants;

/* With bias corrections c1 = 1 / (1 - b1^t) and c2 = 1 / (1 - b2^t):
 * rate = lr c1, second_scale = sqrt(c2), decay = 1 - lr weight_decay. */
WEFT_INLINE void update(const weft_adamw_args *a, size_t first, size_t num, adamw_constants k,
                        const weft_dtype dtype, const bool has_weight)
{
    float *restrict master = a->master + first, *restrict m = a->m + first;
    float *restrict v = a->v + first;
    const float *restrict grad = a->grad + first;
    void *weight = has_weight ? weft_vector_at(a->weight, first, dtype) : NULL;
#pragma omp simd
    for (size_t i = 0; i < num; i++) {
        float g = grad[i] * k.grad_scale;
        float m_new = k.beta1 * m[i] + (1.0f - k.beta1) * g;
        float v_new = k.beta2 * v[i] + (1.0f - k.beta2) * g * g;
        float step = k.rate * m_new / (sqrtf(v_new) * k.second_scale + k.epsilon);
        float p = master[i] * k.decay - step;
        m[i] = m_new;
        v[i] = v_new;
        master[i] = p;
        if (has_weight)
            weft_vector_store(weight, i, p, dtype);
    }
}

weft_status WEFT_VECTOR(adamw)(const weft_adamw_args *args)
{
    const double first_rest = 1.0 - pow((double)args->beta1, (double)args->step);
    const double second_rest = 1.0 - pow((double)args->beta2, (double)args->step);
    const adamw_constants k = {
        .grad_scale = args->grad_scale ? *args->grad_scale : 1.0f,
        .beta1 = args->beta1,
        .beta2 = args->beta2,
        .epsilon = args->epsilon,
        .decay = 1.0f - args->lr * args->weight_decay,
        .rate = (float)((double)args->lr / first_rest),
        .second_scale = (float)sqrt(1.0 / second_rest),
    };
    const bool has_weight = args->weight && args->weight != (void *)args->master;
#pragma omp parallel for schedule(static) if (args->count > WEFT_VECTOR_SERIAL)
    for (size_t first = 0; first < args->count; first += WEFT_VECTOR_CHUNK) {
        const size_t num = weft_vector_min(WEFT_VECTOR_CHUNK, args->count - first);
        if (!has_weight)
            update(args, first, num, k, WEFT_F32, false);
        else if (args->dtype == WEFT_BF16)
            update(args, first, num, k, WEFT_BF16, true);
        else if (args->dtype == WEFT_F32)
            update(args, first, num, k, WEFT_F32, true);
        else
            update(args, first, num, k, WEFT_F16, true);
    }
    return WEFT_OK;
}

weft_status WEFT_VECTOR(sum_squares)(const weft_sum_squares_args *args)
{
    enum { BLOCKS = 256, LANES = 32 };
    double sums[BLOCKS]; /* of a fixed cut: the total does not depend on the number of threads */
    const size_t cut = (args->count / BLOCKS + 1024) / 1024 * 1024;
#pragma omp parallel for schedule(static) if (args->count > WEFT_VECTOR_SERIAL)
    for (size_t block = 0; block < BLOCKS; block++) {
        const size_t begin = weft_vector_min(args->count, block * cut);
        const size_t num = weft_vector_min(args->count - begin, cut);
        const float *x = args->x + begin;
        double lanes[LANES] = {0}; /* several chains of additions hide their latency */
        size_t i = 0;
        for (; i + LANES <= num; i += LANES) {
#pragma omp simd
            for (size_t l = 0; l < LANES; l++)
                lanes[l] += (double)x[i + l] * (double)x[i + l];
        }
        for (size_t l = 0; i < num; i++, l++)
            lanes[l] += (double)x[i] * (double)x[i];
        sums[block] = 0.0;
        for (size_t l = 0; l < LANES; l++)
            sums[block] += lanes[l];
    }
    double total = 0.0;
    for (size_t block = 0; block < BLOCKS; block++)
        total += sums[block];
    *args->sum += total;
    return WEFT_OK;
}
