#include "kernels/cpu/cpu.h"

#include <math.h>

#include "kernels/cpu/vector_math.h"

/* The weight of a master, its low bits, and back: weft_split_master_args. */
WEFT_INLINE uint16_t weight_of(float master)
{
    uint32_t rounded = (weft_vector_bits(master) + 0x8000u) >> 16;
    return (uint16_t)(master == master ? rounded : 0x7fc0u);
}

WEFT_INLINE uint16_t low_of(float master)
{
    return (uint16_t)(master == master ? weft_vector_bits(master) : 0u);
}

WEFT_INLINE float master_of(uint16_t weight, uint16_t low)
{
    return weft_vector_from_bits(((uint32_t)weight << 16) + (uint32_t)(int32_t)(int16_t)low);
}

/* Where the masters are. */
typedef enum master_form {
    MASTER_ALONE,  /* they are the weights */
    MASTER_BESIDE, /* the weights */
    MASTER_SPLIT
} master_form;

typedef struct adamw_constants {
    float grad_scale, beta1, beta2, epsilon, decay, rate, second_scale;
} adamw_constants;

/* With bias corrections c1 = 1 / (1 - b1^t) and c2 = 1 / (1 - b2^t):
 * rate = lr c1, second_scale = sqrt(c2), decay = 1 - lr weight_decay. */
WEFT_INLINE void update_by(const weft_adamw_args *a, size_t first, size_t num, adamw_constants k,
                           const weft_dtype dtype, const master_form form, const bool moments)
{
    float *restrict master = form != MASTER_SPLIT ? a->master + first : NULL;
    uint16_t *restrict low = form == MASTER_SPLIT ? a->low + first : NULL;
    float *restrict m = moments ? a->m + first : NULL, *restrict v = moments ? a->v + first : NULL;
    const float *restrict grad = a->grad + first;
    void *restrict weight = form != MASTER_ALONE ? weft_vector_at(a->weight, first, dtype) : NULL;
    uint16_t *restrict bf16 = weight;
#pragma omp simd
    for (size_t i = 0; i < num; i++) {
        float g = grad[i] * k.grad_scale;
        float step = k.rate * g;
        if (moments) {
            float m_new = k.beta1 * m[i] + (1.0f - k.beta1) * g;
            float v_new = k.beta2 * v[i] + (1.0f - k.beta2) * g * g;
            step = k.rate * m_new / (sqrtf(v_new) * k.second_scale + k.epsilon);
            m[i] = m_new;
            v[i] = v_new;
        }
        float p = (form == MASTER_SPLIT ? master_of(bf16[i], low[i]) : master[i]) * k.decay - step;
        if (form == MASTER_SPLIT)
            low[i] = low_of(p);
        else
            master[i] = p;
        if (form != MASTER_ALONE && dtype == WEFT_BF16)
            bf16[i] = weight_of(p);
        else if (form != MASTER_ALONE)
            weft_vector_store(weight, i, p, dtype);
    }
}

WEFT_INLINE void update(const weft_adamw_args *a, size_t first, size_t num, adamw_constants k,
                        const weft_dtype dtype, const master_form form)
{
    if (a->m)
        update_by(a, first, num, k, dtype, form, true);
    else
        update_by(a, first, num, k, dtype, form, false);
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
        .rate = args->m ? (float)((double)args->lr / first_rest) : args->lr,
        .second_scale = (float)sqrt(1.0 / second_rest),
    };
    const bool has_weight = args->weight && args->weight != (void *)args->master;
#pragma omp parallel for schedule(static) if (args->count > WEFT_VECTOR_SERIAL)
    for (size_t first = 0; first < args->count; first += WEFT_VECTOR_CHUNK) {
        const size_t num = weft_vector_min(WEFT_VECTOR_CHUNK, args->count - first);
        if (!has_weight)
            update(args, first, num, k, WEFT_F32, MASTER_ALONE);
        else if (args->low)
            update(args, first, num, k, WEFT_BF16, MASTER_SPLIT);
        else if (args->dtype == WEFT_BF16)
            update(args, first, num, k, WEFT_BF16, MASTER_BESIDE);
        else if (args->dtype == WEFT_F32)
            update(args, first, num, k, WEFT_F32, MASTER_BESIDE);
        else
            update(args, first, num, k, WEFT_F16, MASTER_BESIDE);
    }
    return WEFT_OK;
}

weft_status WEFT_VECTOR(momentum)(const weft_momentum_args *args)
{
    const float scale = args->grad_scale ? *args->grad_scale : 1.0f, b = args->momentum;
    const float again = args->nesterov ? b : 1.0f;
    float *restrict m = args->m, *restrict grad = args->grad;
#pragma omp parallel for schedule(static) if (args->count > WEFT_VECTOR_SERIAL)
    for (size_t first = 0; first < args->count; first += WEFT_VECTOR_CHUNK) {
        const size_t end = first + weft_vector_min(WEFT_VECTOR_CHUNK, args->count - first);
#pragma omp simd
        for (size_t i = first; i < end; i++) {
            const float g = (1.0f - b) * (grad[i] * scale), m_new = b * m[i] + g;
            m[i] = m_new;
            grad[i] = again * m_new + (args->nesterov ? g : 0.0f);
        }
    }
    return WEFT_OK;
}

weft_status WEFT_VECTOR(matrix_copy)(const weft_matrix_copy_args *args)
{
    const double norm = args->squares ? fmax(sqrt(*args->squares), 1e-7) : 1.0;
    const float factor = (float)((double)args->factor / norm);
    const size_t chunks = (args->cols + WEFT_VECTOR_CHUNK - 1) / WEFT_VECTOR_CHUNK;
#pragma omp parallel for schedule(static) if (args->rows * args->cols > WEFT_VECTOR_SERIAL)
    for (size_t i = 0; i < args->rows * chunks; i++) {
        const size_t row = i / chunks, first = i % chunks * WEFT_VECTOR_CHUNK;
        const size_t num = weft_vector_min(WEFT_VECTOR_CHUNK, args->cols - first);
        const float *restrict from = args->from + row * args->ld_from + first;
        float *restrict to = args->to + row * args->ld_to + first;
#pragma omp simd
        for (size_t c = 0; c < num; c++)
            to[c] = factor * from[c];
    }
    return WEFT_OK;
}

weft_status WEFT_VECTOR(split_master)(const weft_split_master_args *args)
{
    const float *restrict master = args->master;
    uint16_t *restrict weight = args->weight, *restrict low = args->low;
#pragma omp parallel for schedule(static) if (args->count > WEFT_VECTOR_SERIAL)
    for (size_t first = 0; first < args->count; first += WEFT_VECTOR_CHUNK) {
        const size_t end = first + weft_vector_min(WEFT_VECTOR_CHUNK, args->count - first);
#pragma omp simd
        for (size_t i = first; i < (weight ? end : first); i++)
            weight[i] = weight_of(master[i]);
#pragma omp simd
        for (size_t i = first; i < (low ? end : first); i++)
            low[i] = low_of(master[i]);
    }
    return WEFT_OK;
}

weft_status WEFT_VECTOR(join_master)(const weft_join_master_args *args)
{
    const uint16_t *restrict weight = args->weight, *restrict low = args->low;
    float *restrict master = args->master;
#pragma omp parallel for schedule(static) if (args->count > WEFT_VECTOR_SERIAL)
    for (size_t first = 0; first < args->count; first += WEFT_VECTOR_CHUNK) {
        const size_t end = first + weft_vector_min(WEFT_VECTOR_CHUNK, args->count - first);
#pragma omp simd
        for (size_t i = first; i < end; i++)
            master[i] = master_of(weight[i], low[i]);
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

WEFT_INLINE int is_not_finite(float x)
{
    return (weft_vector_bits(x) & 0x7f800000u) == 0x7f800000u;
}

/* The first part that ends behind an element, else the last. */
static size_t part_of(const uint64_t *ends, size_t num_parts, size_t at)
{
    size_t low = 0, high = num_parts - 1;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (ends[middle] <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void mark_part(const weft_find_not_finite_args *args, size_t at)
{
    const size_t part = part_of(args->ends, args->num_parts, at);
#pragma omp atomic write
    args->found[part] = 1;
}

weft_status WEFT_VECTOR(find_not_finite)(const weft_find_not_finite_args *args)
{
    const float *restrict x = args->x;
#pragma omp parallel for schedule(static) if (args->count > WEFT_VECTOR_SERIAL)
    for (size_t first = 0; first < args->count; first += WEFT_VECTOR_CHUNK) {
        const size_t end = first + weft_vector_min(WEFT_VECTOR_CHUNK, args->count - first);
        int bad = 0;
#pragma omp simd reduction(| : bad)
        for (size_t i = first; i < end; i++)
            bad |= is_not_finite(x[i]);
        for (size_t i = first; bad && i < end; i++)
            if (is_not_finite(x[i]))
                mark_part(args, i);
    }
    return WEFT_OK;
}

WEFT_INLINE uint64_t hash_weight(size_t i)
{
    return (2 * (uint32_t)i + 1) * 0x9e3779b1u;
}

static uint64_t hash_of(const weft_hash_args *args, size_t first, size_t end)
{
    uint64_t sum = 0;
    if (args->element_bytes == 2) {
        const uint16_t *x = args->x;
#pragma omp simd reduction(+ : sum)
        for (size_t i = first; i < end; i++)
            sum += x[i] * hash_weight(i);
    } else {
        const float *x = args->x;
#pragma omp simd reduction(+ : sum)
        for (size_t i = first; i < end; i++)
            sum += weft_vector_bits(x[i]) * hash_weight(i);
    }
    return sum;
}

weft_status WEFT_VECTOR(hash)(const weft_hash_args *args)
{
#pragma omp parallel for schedule(static) if (args->count > WEFT_VECTOR_SERIAL)
    for (size_t first = 0; first < args->count; first += WEFT_VECTOR_CHUNK) {
        const size_t end = first + weft_vector_min(WEFT_VECTOR_CHUNK, args->count - first);
        size_t part = part_of(args->ends, args->num_parts, first);
        for (size_t at = first; at < end; part++) {
            const bool is_last = part + 1 == args->num_parts;
            const size_t stop = is_last ? end : weft_vector_min(args->ends[part], end);
            const uint64_t sum = hash_of(args, at, stop);
#pragma omp atomic
            args->hashes[part] += sum;
            at = stop;
        }
    }
    return WEFT_OK;
}
