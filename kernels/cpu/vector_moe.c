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

/* What a token adds to the sums. */
typedef struct route_sums {
    float lse;   /* log sum exp of its logits */
    float share; /* by which its scores count */
} route_sums;

/* Leaves the values of the best groups alone. */
static void keep_groups(const weft_route_args *a, float *values)
{
    const size_t each = a->num_experts / a->num_groups;
    const size_t num = a->topk > a->group_topk ? a->topk / a->group_topk : 1;
    float sums[WEFT_MAX_EXPERT_GROUPS], top[MAX_EXPERTS], kept[WEFT_MAX_EXPERT_GROUPS];
    int32_t index[MAX_EXPERTS], chosen[WEFT_MAX_EXPERT_GROUPS];
    bool keeps[WEFT_MAX_EXPERT_GROUPS] = {false};
    for (size_t g = 0; g < a->num_groups; g++) {
        const size_t most = weft_vector_min(num, each);
        select_top(values + g * each, each, most, index, top);
        sums[g] = 0.0f;
        for (size_t i = 0; i < most; i++)
            sums[g] += top[i];
    }
    select_top(sums, a->num_groups, a->group_topk, chosen, kept);
    for (size_t i = 0; i < a->group_topk; i++)
        keeps[chosen[i]] = true;
    for (size_t e = 0; e < a->num_experts; e++)
        values[e] = keeps[e / each] ? values[e] : -INFINITY;
}

/* Scores of one token, softmax's or sigmoids, from its logits. */
static route_sums score(const weft_route_args *a, const float *logits, float *scores)
{
    const size_t num_experts = a->num_experts;
    float max = -INFINITY, sum = 0.0f, total = 0.0f;
    for (size_t e = 0; e < num_experts; e++)
        max = logits[e] > max ? logits[e] : max;
#pragma omp simd reduction(+ : sum)
    for (size_t e = 0; e < num_experts; e++) {
        scores[e] = weft_vector_exp(logits[e] - max);
        sum += scores[e];
    }
    const float inverse = 1.0f / sum;
#pragma omp simd reduction(+ : total)
    for (size_t e = 0; e < num_experts; e++) {
        scores[e] = a->sigmoid ? weft_vector_sigmoid(logits[e]) : scores[e] * inverse;
        total += scores[e];
    }
    return (route_sums){max + logf(sum), a->sigmoid ? 1.0f / (total + 1e-20f) : 1.0f};
}

/* With sigmoids, a bias or groups. */
static route_sums route_token_by_scores(const weft_route_args *a, size_t t)
{
    const size_t num_experts = a->num_experts, k = a->topk;
    float *scores = a->scores + t * num_experts, *top_prob = a->top_prob + t * k;
    int32_t *top_index = a->top_index + t * k;
    float values[MAX_EXPERTS], chosen = 0.0f;
    const route_sums sums = score(a, a->logits + t * num_experts, scores);
    for (size_t e = 0; e < num_experts; e++)
        values[e] = scores[e] + (a->bias ? a->bias[e] : 0.0f);
    if (a->num_groups > 0)
        keep_groups(a, values);
    select_top(values, num_experts, k, top_index, top_prob);
    for (size_t i = 0; i < k; i++) {
        top_prob[i] = scores[top_index[i]];
        chosen += top_prob[i];
    }
    for (size_t i = 0; i < k && !a->pre_softmax && !(a->sigmoid && k == 1); i++)
        top_prob[i] /= chosen + 1e-20f;
    return sums;
}

/* Routes one token by its logits. */
static route_sums route_token(const weft_route_args *a, size_t t)
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
    return (route_sums){max + logf(sum), 1.0f};
}

weft_status WEFT_VECTOR(route)(const weft_route_args *args)
{
    const size_t num_experts = args->num_experts;
    if (num_experts > MAX_EXPERTS)
        return WEFT_ERROR(WEFT_CONFIG, "%zu experts: the router handles at most %d", num_experts,
                          MAX_EXPERTS);
    const size_t sequences = args->num_sequences > 0 ? args->num_sequences : 1;
    const size_t length = args->num_tokens / sequences;
    const size_t num_blocks = (length + BLOCK_TOKENS - 1) / BLOCK_TOKENS; /* of a sequence */
    const bool by_scores = args->sigmoid || args->bias || args->num_groups > 0;
    /* Blocks of tokens are fixed and joined in order: sums do not depend on the threads. */
#pragma omp parallel for ordered schedule(static, 1) if (args->num_tokens * num_experts >          \
                                                         WEFT_VECTOR_SERIAL)
    for (size_t block = 0; block < sequences * num_blocks; block++) {
        const size_t sequence = block / num_blocks, begin = block % num_blocks * BLOCK_TOKENS;
        const size_t end = weft_vector_min(length, begin + BLOCK_TOKENS);
        float score_sums[MAX_EXPERTS];
        memset(score_sums, 0, num_experts * sizeof(float));
        float z_sum = 0.0f;
        for (size_t i = begin; i < end; i++) {
            const size_t t = i * sequences + sequence;
            const route_sums sums =
                by_scores ? route_token_by_scores(args, t) : route_token(args, t);
            z_sum += sums.lse * sums.lse;
            const float *restrict scores = args->scores + t * num_experts;
#pragma omp simd
            for (size_t e = 0; e < num_experts; e++)
                score_sums[e] += scores[e] * sums.share;
            for (size_t k = 0; k < args->topk && args->scale > 0; k++)
                args->top_prob[t * args->topk + k] *= args->scale;
        }
#pragma omp ordered
        {
            float *counts = args->counts + sequence * num_experts,
                  *all_scores = args->score_sums + sequence * num_experts;
            for (size_t i = begin; i < end; i++)
                for (size_t k = 0; k < args->topk; k++)
                    counts[args->top_index[(i * sequences + sequence) * args->topk + k]] += 1.0f;
            for (size_t e = 0; e < num_experts; e++)
                all_scores[e] += score_sums[e];
            args->z_sum[sequence] += z_sum;
        }
    }
    return WEFT_OK;
}

/* Those of the token's sequence. */
static const float *fraction_of(const weft_route_backward_args *a, size_t t)
{
    return a->num_sequences > 1 ? a->fraction + t % a->num_sequences * a->num_experts : a->fraction;
}

/* Through q = s / sum of s, of which the auxiliary loss is, and p = scale s / sum of the chosen s;
 * then through the sigmoid, and logsumexp. */
static void route_backward_sigmoids(const weft_route_backward_args *a, size_t t)
{
    const size_t num_experts = a->num_experts, k = a->topk;
    const float *logits = a->logits + t * num_experts, *scores = a->scores + t * num_experts;
    const int32_t *top_index = a->top_index + t * k;
    const float *top_prob = a->top_prob + t * k, *dtop_prob = a->dtop_prob + t * k;
    const float scale = a->scale > 0 ? a->scale : 1.0f;
    const bool divided = !a->pre_softmax && k > 1;
    float *dlogits = a->dlogits + t * num_experts;
    const float *fraction = fraction_of(a, t);
    float total = 1e-20f, along = 0.0f, chosen = 1e-20f, from_chosen = 0.0f, max = -INFINITY;
    for (size_t e = 0; e < num_experts && a->aux_scale != 0.0f; e++) {
        total += scores[e];
        along += a->aux_scale * fraction[e] * scores[e];
    }
    for (size_t i = 0; i < k; i++) {
        chosen += scores[top_index[i]];
        from_chosen += top_prob[i] * dtop_prob[i];
    }
    for (size_t e = 0; e < num_experts; e++)
        dlogits[e] =
            a->aux_scale != 0.0f ? (a->aux_scale * fraction[e] - along / total) / total : 0.0f;
    for (size_t i = 0; i < k; i++)
        dlogits[top_index[i]] +=
            divided ? (scale * dtop_prob[i] - from_chosen) / chosen : scale * dtop_prob[i];
    for (size_t e = 0; e < num_experts; e++)
        dlogits[e] *= scores[e] * (1.0f - scores[e]);
    if (a->z_scale == 0.0f)
        return;
    float sum = 0.0f;
    for (size_t e = 0; e < num_experts; e++)
        max = logits[e] > max ? logits[e] : max;
    for (size_t e = 0; e < num_experts; e++)
        sum += weft_vector_exp(logits[e] - max);
    const float each = 2.0f * a->z_scale * (max + logf(sum)) / sum;
    for (size_t e = 0; e < num_experts; e++)
        dlogits[e] += each * weft_vector_exp(logits[e] - max);
}

static size_t largest_score(const weft_route_backward_args *a, size_t t)
{
    const float *scores = a->scores + t * a->num_experts;
    size_t best = (size_t)a->top_index[t * a->topk];
    for (size_t e = 0; e < a->num_experts && a->biased; e++)
        best = scores[e] > scores[best] ? e : best;
    return best;
}

/* The softmax's Jacobian is diag(s) - s s^T; logsumexp's gradient is s. */
static void route_backward_token(const weft_route_backward_args *a, size_t t)
{
    const size_t num_experts = a->num_experts, k = a->topk;
    const float *logits = a->logits + t * num_experts, *scores = a->scores + t * num_experts;
    const int32_t *top_index = a->top_index + t * k;
    const float *top_prob = a->top_prob + t * k, *dtop_prob = a->dtop_prob + t * k;
    float *dlogits = a->dlogits + t * num_experts;
    const float *fraction = fraction_of(a, t);
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
        const size_t top = largest_score(a, t); /* at least 1 / E: a safe logarithm */
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
    if (a->scale > 0)
        chosen /= a->scale;
    for (size_t i = 0; i < k; i++)
        dlogits[top_index[i]] += top_prob[i] * (dtop_prob[i] - (a->pre_softmax ? 0.0f : chosen));
}

weft_status WEFT_VECTOR(route_backward)(const weft_route_backward_args *args)
{
#pragma omp parallel for schedule(static) if (args->num_tokens * args->num_experts >               \
                                              WEFT_VECTOR_SERIAL)
    for (size_t t = 0; t < args->num_tokens; t++)
        (args->sigmoid ? route_backward_sigmoids : route_backward_token)(args, t);
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
