#include "kernels/cpu/vector_attention.h"

#include <string.h>

typedef struct backward_scratch {
    float *qt, *dout_t;     /* [PANELS][dim][WEFT_PANEL]; qt scaled; of dout the value's dim, */
    float *q, *dout, *dq;   /* [chunks][QUERIES][WEFT_PANEL]; and the value's chunks */
    float *lse, *delta;     /* [QUERIES] */
    float *probabilities;   /* [PANELS][KEYS][WEFT_PANEL], after dropout */
    float *dscores;         /* alike */
    float *rows, *keep;     /* [KEYS][WEFT_PANEL] */
    float *k, *v, *dk, *dv; /* [key blocks held][chunks][KEYS][WEFT_PANEL]; of v alike */
} backward_scratch;

static size_t backward_floats(const problem *p, size_t key_blocks)
{
    const size_t width = p->chunks * WEFT_PANEL, value_width = p->value_chunks * WEFT_PANEL;
    return QUERIES * (p->dim + p->value_dim) + QUERIES * (2 * width + value_width) + 2 * QUERIES +
           (2 * PANELS + 2) * SCORES + 2 * key_blocks * KEYS * (width + value_width);
}

static backward_scratch backward_cut(const problem *p, size_t key_blocks, float *memory)
{
    const size_t width = p->chunks * WEFT_PANEL, value_width = p->value_chunks * WEFT_PANEL;
    backward_scratch w;
    w.qt = cut(&memory, QUERIES * p->dim);
    w.dout_t = cut(&memory, QUERIES * p->value_dim);
    w.q = cut(&memory, QUERIES * width);
    w.dout = cut(&memory, QUERIES * value_width);
    w.dq = cut(&memory, QUERIES * width);
    w.lse = cut(&memory, QUERIES);
    w.delta = cut(&memory, QUERIES);
    w.probabilities = cut(&memory, PANELS * SCORES);
    w.dscores = cut(&memory, PANELS * SCORES);
    w.rows = cut(&memory, SCORES);
    w.keep = cut(&memory, SCORES);
    w.k = cut(&memory, key_blocks * KEYS * width);
    w.v = cut(&memory, key_blocks * KEYS * value_width);
    w.dk = cut(&memory, key_blocks * KEYS * width);
    w.dv = cut(&memory, key_blocks * KEYS * value_width);
    return w;
}

static void load_queries(const problem *p, const weft_attention_backward_args *a,
                         const query_block *q, const backward_scratch *w)
{
    load_query_rows(p, q, w->q, w->qt);
    load_rows(p, weft_vector_from(a->dout, out_at(p, q->b, q->h, q->first), p->dtype),
              p->s.batch * p->s.heads * p->value_dim, q->num, p->value_dim, w->dout, w->dout_t);
    const size_t stat = stat_at(p, q->b, q->h, q->first);
    for (size_t i = 0; i < QUERIES; i++) {
        w->lse[i] = i < q->num ? a->lse[stat + i] : INFINITY; /* no query, no probability */
        w->delta[i] = i < q->num ? a->delta[stat + i] : 0.0f;
    }
}

/* In: scores and the products of dout with the values. Out: probabilities after dropout, and the
 * gradient of the scores before scaling. keep: optional. */
static void score_gradients(float *restrict scores, float *restrict dscores, size_t num_keys,
                            const float *restrict keep, const float *restrict lse,
                            const float *restrict delta)
{
    for (size_t j = 0; j < num_keys; j++) {
        float *restrict x = scores + j * WEFT_PANEL, *restrict dx = dscores + j * WEFT_PANEL;
        if (keep) {
#pragma omp simd
            for (int i = 0; i < WEFT_PANEL; i++) {
                const float e = weft_vector_exp(x[i] - lse[i]);
                const float factor = keep[j * WEFT_PANEL + (size_t)i];
                x[i] = e * factor;
                dx[i] = e * (dx[i] * factor - delta[i]);
            }
        } else {
#pragma omp simd
            for (int i = 0; i < WEFT_PANEL; i++) {
                const float e = weft_vector_exp(x[i] - lse[i]);
                x[i] = e;
                dx[i] = e * (dx[i] - delta[i]);
            }
        }
    }
}

/* Caps scores, and says by what their gradients shrink. */
static void cap_and_slope(float softcap, float *restrict scores, float *restrict slopes,
                          size_t count)
{
    const float inverse = 1.0f / softcap;
    cap_scores(softcap, scores, count);
#pragma omp simd
    for (size_t i = 0; i < count; i++)
        slopes[i] = 1.0f - scores[i] * inverse * (scores[i] * inverse);
}

/* A loaded block of queries meets the block of keys held at `slot`: adds to dq, and to that slot's
 * dk and dv, where wanted. */
static void backward_pair(const problem *p, const backward_scratch *w, const query_block *q,
                          const key_block *k, size_t slot, bool wants_dq, bool wants_dkv)
{
    const size_t held = slot * p->chunks * SCORES, held_value = slot * p->value_chunks * SCORES;
    const size_t panels = blocks_of(q->num, WEFT_PANEL);
    size_t begin[PANELS], end[PANELS]; /* rows of the block, that a panel sees */
    for (size_t panel = 0; panel < panels; panel++) {
        const key_block keys = panel_keys(p, q, panel, k);
        begin[panel] = keys.first - k->first;
        end[panel] = begin[panel] + keys.num;
        if (keys.num == 0)
            continue;
        const size_t row = begin[panel] * WEFT_PANEL, at = panel * SCORES + row;
        float *scores = w->probabilities + at, *dscores = w->dscores + at;
        weft_tiles_along(keys.num, p->dim, w->k + held + row, SCORES,
                         w->qt + panel * WEFT_PANEL * p->dim, scores, false);
        weft_tiles_along(keys.num, p->value_dim, w->v + held_value + row, SCORES,
                         w->dout_t + panel * WEFT_PANEL * p->value_dim, dscores, false);
        if (p->s.dropout > 0)
            dropout_factors(p, q, panel, &keys, w->rows, w->keep);
        if (p->variant.softcap > 0)
            cap_and_slope(p->variant.softcap, scores, w->rows, keys.num * WEFT_PANEL);
        score_gradients(scores, dscores, keys.num, p->s.dropout > 0 ? w->keep : NULL,
                        w->lse + panel * WEFT_PANEL, w->delta + panel * WEFT_PANEL);
        if (p->variant.softcap > 0)
            multiply(dscores, w->rows, keys.num * WEFT_PANEL);
        hide(p, q, panel, &keys, scores, 0.0f);
        hide(p, q, panel, &keys, dscores, 0.0f);
        for (size_t c = 0; wants_dq && c < p->chunks; c++)
            weft_tiles_across(panel_queries(q, panel), keys.num, dscores,
                              w->k + held + c * SCORES + row,
                              w->dq + (c * QUERIES + panel * WEFT_PANEL) * WEFT_PANEL, true);
    }
    /* Keys that the panels low .. high see go together. */
    size_t low = 0, high = 0;
    for (size_t row = 0, next; wants_dkv && row < end[panels - 1]; row = next) {
        for (; low < panels && end[low] <= row;)
            low++;
        for (; high < panels && begin[high] <= row;)
            high++;
        next = high < panels ? weft_vector_min(end[low], begin[high]) : end[low];
        if (low >= high)
            continue;
        const size_t at = low * SCORES + row * WEFT_PANEL;
        const size_t queries = weft_vector_min(q->num, high * WEFT_PANEL) - low * WEFT_PANEL;
        for (size_t c = 0; c < p->chunks || c < p->value_chunks; c++) {
            const size_t from = (c * QUERIES + low * WEFT_PANEL) * WEFT_PANEL;
            const size_t to = c * SCORES + row * WEFT_PANEL;
            if (c < p->chunks)
                weft_tiles_along(next - row, queries, w->dscores + at, SCORES, w->q + from,
                                 w->dk + held + to, true);
            if (c < p->value_chunks)
                weft_tiles_along(next - row, queries, w->probabilities + at, SCORES, w->dout + from,
                                 w->dv + held_value + to, true);
        }
    }
}

static void clear(float *x, size_t count)
{
    memset(x, 0, count * sizeof *x);
}

/* Adds rows of panels, times factor, to rows `stride` apart. */
static void panel_add(float *to, size_t stride, const float *from, size_t jump, size_t rows,
                      size_t cols, float factor)
{
    for (size_t row = 0; row < rows; row++)
        for (size_t col = 0; col < cols; col += WEFT_PANEL) {
            const float *x = from + col / WEFT_PANEL * jump + row * WEFT_PANEL;
            float *y = to + row * stride + col;
            const size_t num = weft_vector_min(WEFT_PANEL, cols - col);
#pragma omp simd
            for (size_t i = 0; i < num; i++)
                y[i] += factor * x[i];
        }
}

static void store_dq(const problem *p, const weft_attention_backward_args *a, const query_block *q,
                     const float *dq)
{
    if (a->piece == WEFT_ATTENTION_WHOLE) {
        weft_panel_store(weft_vector_at(a->dq, query_at(p, q->b, q->h, q->first), p->dtype),
                         p->s.batch * p->s.q_token_stride, dq, QUERIES * WEFT_PANEL, q->num, p->dim,
                         &p->scale, 0, p->dtype);
        return;
    }
    problem to = *p;
    to.s.q_token_stride = a->dq_token_stride;
    to.s.q_group_stride = a->dq_group_stride;
    panel_add((float *)a->dq + query_at(&to, q->b, q->h, q->first), p->s.batch * a->dq_token_stride,
              dq, QUERIES * WEFT_PANEL, q->num, p->dim, p->scale);
}

static void store_dkv(const problem *p, const weft_attention_backward_args *a, size_t b, size_t g,
                      const key_block *k, const float *dk, const float *dv)
{
    const float one = 1.0f;
    if (a->piece != WEFT_ATTENTION_WHOLE) {
        problem to = *p;
        to.s.k_token_stride = a->dk_token_stride;
        to.s.k_group_stride = a->dk_group_stride;
        const size_t from = key_at(&to, b, g, k->first), step = p->s.batch * a->dk_token_stride;
        panel_add((float *)a->dk + from, step, dk, SCORES, k->num, p->dim, p->scale);
        panel_add((float *)a->dv + from, step, dv, SCORES, k->num, p->value_dim, one);
        return;
    }
    const size_t at = key_at(p, b, g, k->first), stride = p->s.batch * p->s.k_token_stride;
    weft_panel_store(weft_vector_at(a->dk, at, p->dtype), stride, dk, SCORES, k->num, p->dim,
                     &p->scale, 0, p->dtype);
    weft_panel_store(weft_vector_at(a->dv, at, p->dtype), stride, dv, SCORES, k->num, p->value_dim,
                     &one, 0, p->dtype);
}

/* One sample and group as a whole: every pair of blocks once. */
static void backward_group(const problem *p, const weft_attention_backward_args *a, size_t item,
                           float *memory)
{
    const size_t b = item / p->s.groups, g = item % p->s.groups;
    const size_t blocks = blocks_of(p->s.seq_k, KEYS), size = p->chunks * SCORES;
    const size_t value_size = p->value_chunks * SCORES;
    const backward_scratch w = backward_cut(p, blocks, memory);
    clear(w.dk, blocks * size);
    clear(w.dv, blocks * value_size);
    for (size_t j = 0; j < blocks; j++) {
        const key_block k = key_block_at(p, j);
        load_keys(p, b, g, &k, w.k + j * size, w.v + j * value_size);
    }
    for (size_t h = g * p->heads_each; h < (g + 1) * p->heads_each; h++) {
        for (size_t i = 0; i < blocks_of(p->s.seq_q, QUERIES); i++) {
            const query_block q = query_block_at(p, b, h, i);
            load_queries(p, a, &q, &w);
            clear(w.dq, p->chunks * QUERIES * WEFT_PANEL);
            for (size_t j = first_key_block(p, &q); j < end_of_key_blocks(p, &q); j++) {
                const key_block k = key_block_at(p, j);
                backward_pair(p, &w, &q, &k, j, true, true);
            }
            store_dq(p, a, &q, w.dq);
        }
    }
    for (size_t j = 0; j < blocks; j++) {
        const key_block k = key_block_at(p, j);
        store_dkv(p, a, b, g, &k, w.dk + j * size, w.dv + j * value_size);
    }
}

/* dq of one block of queries. */
static void backward_queries(const problem *p, const weft_attention_backward_args *a, size_t item,
                             float *memory)
{
    const size_t blocks = blocks_of(p->s.seq_q, QUERIES), head = item / blocks;
    const query_block q =
        query_block_at(p, head / p->s.heads, head % p->s.heads, blocks - 1 - item % blocks);
    const backward_scratch w = backward_cut(p, 1, memory);
    load_queries(p, a, &q, &w);
    clear(w.dq, p->chunks * QUERIES * WEFT_PANEL);
    for (size_t j = first_key_block(p, &q); j < end_of_key_blocks(p, &q); j++) {
        const key_block k = key_block_at(p, j);
        load_keys(p, q.b, q.h / p->heads_each, &k, w.k, w.v);
        backward_pair(p, &w, &q, &k, 0, true, false);
    }
    store_dq(p, a, &q, w.dq);
}

/* dk and dv of one block of keys. */
static void backward_keys(const problem *p, const weft_attention_backward_args *a, size_t item,
                          float *memory)
{
    const size_t blocks = blocks_of(p->s.seq_k, KEYS), j = item % blocks;
    const size_t b = item / blocks / p->s.groups, g = item / blocks % p->s.groups;
    const backward_scratch w = backward_cut(p, 1, memory);
    const key_block k = key_block_at(p, j);
    clear(w.dk, p->chunks * SCORES);
    clear(w.dv, p->value_chunks * SCORES);
    load_keys(p, b, g, &k, w.k, w.v);
    for (size_t h = g * p->heads_each; h < (g + 1) * p->heads_each; h++) {
        for (size_t i = 0; i < blocks_of(p->s.seq_q, QUERIES); i++) {
            const query_block q = query_block_at(p, b, h, i);
            if (j < first_key_block(p, &q) || j >= end_of_key_blocks(p, &q))
                continue;
            load_queries(p, a, &q, &w);
            backward_pair(p, &w, &q, &k, 0, false, true);
        }
    }
    store_dkv(p, a, b, g, &k, w.dk, w.dv);
}

WEFT_INLINE float dot(const void *x, const void *y, size_t num, const weft_dtype dtype)
{
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < num; i++)
        sum += weft_vector_load(x, i, dtype) * weft_vector_load(y, i, dtype);
    return sum;
}

/* delta = the sum over d of out and dout: what the softmax's gradient subtracts from every column
 * (FlashAttention, Algorithm 4, line 4, holds with dropout, too). */
static void compute_delta(const problem *p, const weft_attention_backward_args *a)
{
    const size_t rows = p->s.seq_q * p->s.batch;
#pragma omp parallel for schedule(static)
    for (size_t row = 0; row < rows; row++) {
        for (size_t h = 0; h < p->s.heads; h++) {
            const size_t at = (row * p->s.heads + h) * p->value_dim;
            const void *out = weft_vector_from(a->out, at, p->dtype);
            const void *dout = weft_vector_from(a->dout, at, p->dtype);
            a->delta[stat_at(p, row % p->s.batch, h, row / p->s.batch)] =
                p->dtype == WEFT_F32 ? dot(out, dout, p->value_dim, WEFT_F32)
                                     : dot(out, dout, p->value_dim, WEFT_BF16);
        }
    }
}

typedef void (*backward_part)(const problem *, const weft_attention_backward_args *, size_t,
                              float *);

static weft_status run_backward(const problem *p, const weft_attention_backward_args *a,
                                backward_part part, size_t items, size_t floats)
{
    int failed = 0;
#pragma omp parallel reduction(|| : failed)
    {
        const weft_scratch scratch = weft_scratch_take(thread_number(), floats * sizeof(float));
        failed = !scratch.memory;
#pragma omp for schedule(dynamic)
        for (size_t item = 0; item < items; item++)
            if (!failed)
                part(p, a, item, scratch.memory);
        weft_scratch_give(scratch);
    }
    return failed ? out_of_scratch(floats) : WEFT_OK;
}

weft_status WEFT_VECTOR(attention_backward)(const weft_attention_backward_args *a)
{
    const problem p = make_problem(&a->shape, a->dtype, a->q, a->k, a->v, a->first_key,
                                   a->first_seen, a->value_dim, &a->variant);
    const size_t key_blocks = blocks_of(p.s.seq_k, KEYS), groups = p.s.batch * p.s.groups;
    const size_t threads = max_threads();
    if (!a->dk || !a->dv) /* only where there is nothing to do */
        return WEFT_OK;
    if (a->piece != WEFT_ATTENTION_NEXT)
        compute_delta(&p, a);
    /* Whole groups take 5 products a pair of blocks, but may leave threads idle; a pass for dq and
     * one for dk and dv take 7 and split finely. Sums come in the same order. */
    if (blocks_of(groups, threads) * threads * 5 <= groups * 7)
        return run_backward(&p, a, backward_group, groups, backward_floats(&p, key_blocks));
    WEFT_TRY(run_backward(&p, a, backward_queries,
                          p.s.batch * p.s.heads * blocks_of(p.s.seq_q, QUERIES),
                          backward_floats(&p, 1)));
    return run_backward(&p, a, backward_keys, groups * key_blocks, backward_floats(&p, 1));
}

weft_status WEFT_VECTOR(attention_sinks)(const weft_attention_sinks_args *a)
{
    for (size_t h = 0; h < a->heads; h++) {
        const float sink = weft_vector_load(a->sinks, h, a->dtype);
        double sum = a->overwrite ? 0 : (double)a->dsinks[h];
        for (size_t b = 0; b < a->batch; b++) {
            const size_t at = (b * a->heads + h) * a->seq;
            for (size_t i = at; i < at + a->seq; i++)
                sum -= (double)(weft_vector_exp(sink - a->lse[i]) * a->delta[i]);
        }
        a->dsinks[h] = (float)sum;
    }
    return WEFT_OK;
}
