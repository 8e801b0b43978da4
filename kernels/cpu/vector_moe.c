#include "kernels/cpu/cpu.h"

#include <math.h>

#include "kernels/cpu/vector_math.h"

enum {
    BLOCK_TOKENS = 64,  /* tokens whose router statistics are summed before they meet the others' */
    MAX_EXPERTS = 4096, /* scratch that such a sum needs on the stack */
};

/* The k largest logits, largest first, ties to the lower index; NaN counts as -infinity. Leaves
 * the logits themselves in top_value. */
static void select_top(const float *logits, size_t num_experts, size_t k, int32_t *top_index,
                       float *top_value)
{
    size_t num = 0;
    for (size_t e = 0; e < num_experts; e++) {
        float value = logits[e] == logits[e] ? logits[e] : -INFINITY;
        if (num == k && !(value > top_value[k - 1]))
            continue;
        size_t at = num < k ? num++ : k - 1;
        for (; at > 0 && value > top_value[at - 1]; at--) {
            top_value[at] = top_value[at - 1];
            top_index[at] = top_index[at - 1];
        }
        top_value[at] = value;
        top_index[at] = (int32_t)e;
    }
}

/* Routes one token; returns log sum exp of its logits. */
static float route_token(const weft_route_args *a, size_t t)
{
    const size_t num_experts = a->num_experts, k = a->topk;
    const float *logits = a->logits + t * num_experts;
    float *scores = a->scores + t * num_experts, *top_prob = a->top_prob + t * k;
    int32_t *top_index = a->top_index + t * k;
    select_top(logits, num_experts, k, top_index, top_prob);
    const float max = top_prob[0];
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (size_t e = 0; e < num_experts; e++) {
        scores[e] = weft_vector_exp(logits[e] - max);
        sum += scores[e];
    }
    const float inverse = 1.0f / sum;
#pragma omp simd
    for (size_t e = 0; e < num_experts; e++)
        scores[e] *= inverse;
    if (a->pre_softmax) {
        for (size_t i = 0; i < k; i++)
            top_prob[i] = scores[top_index[i]];
    } else {
        float top_sum = 0.0f;
        for (size_t i = 0; i < k; i++) {
            top_prob[i] = weft_vector_exp(top_prob[i] - max);
            top_sum += top_prob[i];
        }
        for (size_t i = 0; i < k; i++)
            top_prob[i] /= top_sum;
    }
    return max + logf(sum);
}

weft_status WEFT_VECTOR(route)(const weft_route_args *args)
{
    const size_t num_experts = args->num_experts;
    if (num_experts > MAX_EXPERTS)
        return WEFT_ERROR(WEFT_CONFIG, "%zu experts: the router handles at most %d", num_experts,
                          MAX_EXPERTS);
    const size_t num_blocks = (args->num_tokens + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
    /* Blocks of tokens are fixed and joined in order: sums do not depend on the threads. */
#pragma omp parallel for ordered schedule(static, 1) if (args->num_tokens * num_experts >          \
                                                         WEFT_VECTOR_SERIAL)
    for (size_t block = 0; block < num_blocks; block++) {
        const size_t begin = block * BLOCK_TOKENS;
        const size_t end = weft_vector_min(args->num_tokens, begin + BLOCK_TOKENS);
        float score_sums[MAX_EXPERTS];
        memset(score_sums, 0, num_experts * sizeof(float));
        float z_sum = 0.0f;
        for (size_t t = begin; t < end; t++) {
            float z = route_token(args, t);
            z_sum += z * z;
            const float *restrict scores = args->scores + t * num_experts;
#pragma omp simd
            for (size_t e = 0; e < num_experts; e++)
                score_sums[e] += scores[e];
        }
#pragma omp ordered
        {
            for (size_t i = begin * args->topk; i < end * args->topk; i++)
                args->counts[args->top_index[i]] += 1.0f;
            for (size_t e = 0; e < num_experts; e++)
                args->score_sums[e] += score_sums[e];
            *args->z_sum += z_sum;
        }
    }
    return WEFT_OK;
}

/* The softmax's Jacobian is diag(s) - s s^T; logsumexp's gradient is s. */
static void route_backward_token(const weft_route_backward_args *a, size_t t)
{
    const size_t num_experts = a->num_experts, k = a->topk;
    const float *logits = a->logits + t * num_experts, *scores = a->scores + t * num_experts;
    const int32_t *top_index = a->top_index + t * k;
    const float *top_prob = a->top_prob + t * k, *dtop_prob = a->dtop_prob + t * k;
    float *dlogits = a->dlogits + t * num_experts;
    const float *fraction = a->fraction;
    /* dscores . scores: what the chosen experts and the auxiliary loss put on the scores */
    float along = 0.0f, chosen = 0.0f;
    for (size_t i = 0; i < k; i++)
        chosen += top_prob[i] * dtop_prob[i];
    if (a->aux_scale != 0.0f) {
#pragma omp simd reduction(+ : along)
        for (size_t e = 0; e < num_experts; e++)
            along += scores[e] * fraction[e];
        along *= a->aux_scale;
    }
    float uniform = -along;
    if (a->pre_softmax)
        uniform -= chosen;
    if (a->z_scale != 0.0f) {
        const size_t top = (size_t)top_index[0]; /* its score is at least 1 / E: a safe logarithm */
        uniform += 2.0f * a->z_scale * (logits[top] - logf(scores[top]));
    }
    if (a->aux_scale != 0.0f) {
#pragma omp simd
        for (size_t e = 0; e < num_experts; e++)
            dlogits[e] = scores[e] * (a->aux_scale * fraction[e] + uniform);
    } else {
#pragma omp simd
        for (size_t e = 0; e < num_experts; e++)
            dlogits[e] = scores[e] * uniform;
    }
    for (size_t i = 0; i < k; i++)
        dlogits[top_index[i]] += top_prob[i] * (dtop_prob[i] - (a->pre_softmax ? 0.0f : chosen));
}

weft_status WEFT_VECTOR(route_backward)(const weft_route_backward_args *args)
{
#pragma omp parallel for schedule(static) if (args->num_tokens * args->num_experts >               \
                                              WEFT_VECTOR_SERIAL)
    for (size_t t = 0; t < args->num_tokens; t++)
        route_backward_token(args, t);
    return WEFT_OK;
}

weft_status WEFT_VECTOR(permute)(const weft_permute_args *args)
{
    const size_t row_bytes = args->cols * weft_vector_bytes(args->dtype);
#pragma omp parallel for schedule(static) if (args->num_rows * args->cols > WEFT_VECTOR_SERIAL)
    for (size_t row = 0; row < args->num_rows; row++)
        memcpy((char *)args->rows + row * row_bytes,
               (const char *)args->x + (size_t)args->token_of[row] * row_bytes, row_bytes);
    return WEFT_OK;
}

enum { GATHER_COLS = 1024 }; /* columns summed on the stack at a time */

/* y[t] = (accumulate: y[t]) + sum over k of weight[t,k] * rows[row_of[t,k]]; no weights: all 1. */
WEFT_INLINE void gather_token(const void *rows, const int32_t *row_of, const float *weights,
                              size_t topk, size_t cols, void *y, bool accumulate,
                              const weft_dtype dtype)
{
    float sum[GATHER_COLS];
    for (size_t first = 0; first < cols; first += GATHER_COLS) {
        const size_t num = weft_vector_min(GATHER_COLS, cols - first);
        void *to = weft_vector_at(y, first, dtype);
        if (accumulate) {
#pragma omp simd
            for (size_t c = 0; c < num; c++)
                sum[c] = weft_vector_load(to, c, dtype);
        } else {
            memset(sum, 0, num * sizeof(float));
        }
        for (size_t k = 0; k < topk; k++) {
            if (row_of[k] < 0)
                continue;
            const void *row = weft_vector_from(rows, (size_t)row_of[k] * cols + first, dtype);
            const float weight = weights ? weights[k] : 1.0f;
#pragma omp simd
            for (size_t c = 0; c < num; c++)
                sum[c] += weight * weft_vector_load(row, c, dtype);
        }
#pragma omp simd
        for (size_t c = 0; c < num; c++)
            weft_vector_store(to, c, sum[c], dtype);
    }
}

weft_status WEFT_VECTOR(permute_backward)(const weft_permute_backward_args *args)
{
    const size_t cols = args->cols, topk = args->topk;
#pragma omp parallel for schedule(static) if (args->num_tokens * cols > WEFT_VECTOR_SERIAL)
    for (size_t t = 0; t < args->num_tokens; t++) {
        void *dx = weft_vector_at(args->dx, t * cols, args->dtype);
        const int32_t *row_of = args->row_of + t * topk;
        if (args->dtype == WEFT_F32)
            gather_token(args->drows, row_of, NULL, topk, cols, dx, args->accumulate, WEFT_F32);
        else
            gather_token(args->drows, row_of, NULL, topk, cols, dx, args->accumulate, WEFT_BF16);
    }
    return WEFT_OK;
}

weft_status WEFT_VECTOR(combine)(const weft_combine_args *args)
{
    const size_t cols = args->cols, topk = args->topk;
#pragma omp parallel for schedule(static) if (args->num_tokens * cols > WEFT_VECTOR_SERIAL)
    for (size_t t = 0; t < args->num_tokens; t++) {
        void *y = weft_vector_at(args->y, t * cols, args->dtype);
        const int32_t *row_of = args->row_of + t * topk;
        const float *prob = args->top_prob + t * topk;
        if (args->dtype == WEFT_F32)
            gather_token(args->rows, row_of, prob, topk, cols, y, false, WEFT_F32);
        else
            gather_token(args->rows, row_of, prob, topk, cols, y, false, WEFT_BF16);
    }
    return WEFT_OK;
}

/* drow = prob * dy (drow may be row itself); returns <row, dy>. */
WEFT_INLINE float combine_backward_row(const void *dy, const void *row, void *drow, float prob,
                                       size_t cols, const weft_dtype dtype)
{
    float dot = 0.0f;
#pragma omp simd reduction(+ : dot)
    for (size_t c = 0; c < cols; c++) {
        float d = weft_vector_load(dy, c, dtype);
        dot += d * weft_vector_load(row, c, dtype);
        weft_vector_store(drow, c, prob * d, dtype);
    }
    return dot;
}

weft_status WEFT_VECTOR(combine_backward)(const weft_combine_backward_args *args)
{
    const size_t cols = args->cols, topk = args->topk;
    const weft_dtype dtype = args->dtype;
#pragma omp parallel for schedule(static) if (args->num_tokens * cols > WEFT_VECTOR_SERIAL)
    for (size_t t = 0; t < args->num_tokens; t++) {
        const void *dy = weft_vector_from(args->dy, t * cols, dtype);
        for (size_t k = t * topk; k < (t + 1) * topk; k++) {
            if (args->row_of[k] < 0) {
                args->dtop_prob[k] = 0.0f;
                continue;
            }
            const size_t at = (size_t)args->row_of[k] * cols;
            const void *row = weft_vector_from(args->rows, at, dtype);
            void *drow = weft_vector_at(args->drows, at, dtype);
            args->dtop_prob[k] =
                dtype == WEFT_F32
                    ? combine_backward_row(dy, row, drow, args->top_prob[k], cols, WEFT_F32)
                    : combine_backward_row(dy, row, drow, args->top_prob[k], cols, WEFT_BF16);
        }
    }
    return WEFT_OK;
}
