#include "kernels/cpu/vector_attention.h"

#include <string.h>

typedef struct forward_scratch {
    float *qt;          /* [PANELS][dim][WEFT_PANEL], scaled */
    float *k, *v;       /* [key blocks held][chunks][KEYS][WEFT_PANEL] */
    float *out;         /* [chunks][QUERIES][WEFT_PANEL] */
    float *scores;      /* [KEYS][WEFT_PANEL] */
    float *rows, *keep; /* alike, for dropout */
    float *top, *sum;   /* [QUERIES] */
} forward_scratch;

static size_t forward_floats(const problem *p, size_t key_blocks)
{
    return QUERIES * p->dim + p->chunks * WEFT_PANEL * (2 * key_blocks * KEYS + QUERIES) +
           3 * SCORES + 2 * QUERIES;
}

static forward_scratch forward_cut(const problem *p, size_t key_blocks, float *memory)
{
    const size_t width = p->chunks * WEFT_PANEL;
    forward_scratch w;
    w.qt = cut(&memory, QUERIES * p->dim);
    w.k = cut(&memory, key_blocks * KEYS * width);
    w.v = cut(&memory, key_blocks * KEYS * width);
    w.out = cut(&memory, QUERIES * width);
    w.scores = cut(&memory, SCORES);
    w.rows = cut(&memory, SCORES);
    w.keep = cut(&memory, SCORES);
    w.top = cut(&memory, QUERIES);
    w.sum = cut(&memory, QUERIES);
    return w;
}

/* Scores become exp(score - top) with the new maxima. Returns in `factor` what sums over earlier
 * keys are worth beside these. */
static void online_softmax(float *restrict scores, size_t num_keys, float *restrict top,
                           float *restrict sum, float *restrict factor)
{
    float high[WEFT_PANEL], base[WEFT_PANEL], total[WEFT_PANEL];
    memcpy(high, top, sizeof high);
    for (size_t j = 0; j < num_keys; j++) {
#pragma omp simd
        for (int i = 0; i < WEFT_PANEL; i++)
            high[i] = scores[j * WEFT_PANEL + (size_t)i] > high[i]
                          ? scores[j * WEFT_PANEL + (size_t)i]
                          : high[i];
    }
#pragma omp simd
    for (int i = 0; i < WEFT_PANEL; i++) {
        const float from = high[i] == -INFINITY ? 0.0f : high[i]; /* it has seen no key yet */
        factor[i] = weft_vector_exp(top[i] - from);
        total[i] = sum[i] * factor[i];
        base[i] = from;
    }
    for (size_t j = 0; j < num_keys; j++) {
#pragma omp simd
        for (int i = 0; i < WEFT_PANEL; i++) {
            const float e = weft_vector_exp(scores[j * WEFT_PANEL + (size_t)i] - base[i]);
            scores[j * WEFT_PANEL + (size_t)i] = e;
            total[i] += e;
        }
    }
    memcpy(top, high, sizeof high);
    memcpy(sum, total, sizeof total);
}

static void multiply(float *restrict x, const float *restrict by, size_t count)
{
#pragma omp simd
    for (size_t i = 0; i < count; i++)
        x[i] *= by[i];
}

/* A panel of queries meets a block of keys, k and v. starts: nothing is in `out` yet. */
static void forward_panel(const problem *p, const forward_scratch *w, const query_block *q,
                          size_t panel, const key_block *block, const float *k, const float *v,
                          bool starts)
{
    const size_t num_keys = panel_keys(p, q, panel, block), num_queries = panel_queries(q, panel);
    if (num_keys == 0)
        return;
    float factor[WEFT_PANEL];
    weft_tiles_along(num_keys, p->dim, k, SCORES, w->qt + panel * WEFT_PANEL * p->dim, w->scores,
                     false);
    hide(p, q, panel, block, num_keys, w->scores, -INFINITY);
    online_softmax(w->scores, num_keys, w->top + panel * WEFT_PANEL, w->sum + panel * WEFT_PANEL,
                   factor);
    if (p->s.dropout > 0) {
        dropout_factors(p, q, panel, block, num_keys, w->rows, w->keep);
        multiply(w->scores, w->keep, num_keys * WEFT_PANEL);
    }
    for (size_t c = 0; c < p->chunks; c++) {
        float *out = w->out + (c * QUERIES + panel * WEFT_PANEL) * WEFT_PANEL;
        for (size_t i = 0; !starts && i < num_queries; i++)
            scale_all(out + i * WEFT_PANEL, WEFT_PANEL, factor[i]);
        weft_tiles_across(num_queries, num_keys, w->scores, v + c * SCORES, out, !starts);
    }
}

/* Where the running softmax starts: from nothing, or from what out and lse hold. Returns whether
 * w->out holds anything. */
static bool start_softmax(const problem *p, const weft_attention_forward_args *a,
                          const forward_scratch *w, const query_block *q, const float *lse,
                          const float *out, size_t out_stride)
{
    const bool goes_on = a->piece == WEFT_ATTENTION_NEXT;
    for (size_t i = 0; i < QUERIES; i++) {
        w->top[i] = goes_on && i < q->num ? lse[i] : -INFINITY;
        w->sum[i] = w->top[i] == -INFINITY ? 0.0f : 1.0f;
    }
    if (goes_on)
        weft_panel_load(w->out, QUERIES * WEFT_PANEL, out, out_stride, q->num, p->dim, WEFT_F32);
    else if (seen(p, q->first, 0, p->s.seq_k) > 0 &&
             first_key_block(p, q) < end_of_key_blocks(p, q))
        return false; /* every query meets the first block of keys, which writes */
    else
        memset(w->out, 0, p->chunks * QUERIES * WEFT_PANEL * sizeof *w->out);
    return true;
}

/* One block of queries. holds_keys: all key blocks stand in scratch; otherwise one at a time. */
static void forward_block(const problem *p, const weft_attention_forward_args *a,
                          const forward_scratch *w, const query_block *q, bool holds_keys)
{
    const weft_dtype out_dtype = a->piece == WEFT_ATTENTION_WHOLE ? p->dtype : WEFT_F32;
    const size_t out_stride = p->s.batch * p->s.heads * p->dim;
    void *out = weft_vector_at(a->out, out_at(p, q->b, q->h, q->first), out_dtype);
    float *lse = a->lse + stat_at(p, q->b, q->h, q->first);
    load_query_rows(p, q, w->out, w->qt); /* the output's place is free yet */
    bool holds = start_softmax(p, a, w, q, lse, out, out_stride);
    for (size_t j = first_key_block(p, q); j < end_of_key_blocks(p, q); j++) {
        const key_block block = key_block_at(p, j);
        float *k = w->k + (holds_keys ? j : 0) * p->chunks * SCORES;
        float *v = w->v + (holds_keys ? j : 0) * p->chunks * SCORES;
        if (!holds_keys)
            load_keys(p, q->b, q->h / p->heads_each, &block, k, v);
        for (size_t panel = 0; panel * WEFT_PANEL < q->num; panel++)
            forward_panel(p, w, q, panel, &block, k, v, !holds);
        holds = true;
    }
    for (size_t i = 0; i < q->num; i++) {
        lse[i] = w->top[i] + logf(w->sum[i]); /* of no key: minus infinity */
        w->sum[i] = w->sum[i] > 0 ? 1.0f / w->sum[i] : 0.0f;
    }
    weft_panel_store(out, out_stride, w->out, QUERIES * WEFT_PANEL, q->num, p->dim, w->sum, 1,
                     out_dtype);
}

/* One sample and group as a whole: every key is loaded once. */
static void forward_group(const problem *p, const weft_attention_forward_args *a, size_t item,
                          float *memory)
{
    const size_t b = item / p->s.groups, g = item % p->s.groups;
    const size_t key_blocks = blocks_of(p->s.seq_k, KEYS), blocks = blocks_of(p->s.seq_q, QUERIES);
    const forward_scratch w = forward_cut(p, key_blocks, memory);
    const query_block last = query_block_at(p, b, g * p->heads_each, blocks - 1);
    for (size_t j = 0; j < end_of_key_blocks(p, &last); j++) {
        const key_block k = key_block_at(p, j);
        load_keys(p, b, g, &k, w.k + j * p->chunks * SCORES, w.v + j * p->chunks * SCORES);
    }
    for (size_t h = g * p->heads_each; h < (g + 1) * p->heads_each; h++) {
        for (size_t i = 0; i < blocks; i++) {
            const query_block q = query_block_at(p, b, h, i);
            forward_block(p, a, &w, &q, true);
        }
    }
}

/* One block of queries of one head. */
static void forward_queries(const problem *p, const weft_attention_forward_args *a, size_t item,
                            float *memory)
{
    /* causal: the last blocks are the longest and come first */
    const size_t all_heads = p->s.batch * p->s.heads, head = item % all_heads;
    const query_block q = query_block_at(p, head / p->s.heads, head % p->s.heads,
                                         blocks_of(p->s.seq_q, QUERIES) - 1 - item / all_heads);
    const forward_scratch w = forward_cut(p, 1, memory);
    forward_block(p, a, &w, &q, false);
}

weft_status WEFT_VECTOR(attention_forward)(const weft_attention_forward_args *a)
{
    const problem p =
        make_problem(&a->shape, a->dtype, a->q, a->k, a->v, a->first_key, a->first_seen);
    const size_t groups = p.s.batch * p.s.groups, threads = max_threads();
    if (p.s.seq_q == 0)
        return WEFT_OK;
    /* Whole groups save about an eighth, but may leave threads idle. */
    const bool by_group = blocks_of(groups, threads) * threads * 8 <= groups * 9;
    const size_t items = by_group ? groups : p.s.batch * p.s.heads * blocks_of(p.s.seq_q, QUERIES);
    const size_t floats = forward_floats(&p, by_group ? blocks_of(p.s.seq_k, KEYS) : 1);
    int failed = 0;
#pragma omp parallel reduction(|| : failed)
    {
        const weft_scratch scratch = weft_scratch_take(thread_number(), floats * sizeof(float));
        failed = !scratch.memory;
#pragma omp for schedule(dynamic)
        for (size_t item = 0; item < items; item++)
            if (!failed)
                (by_group ? forward_group : forward_queries)(&p, a, item, scratch.memory);
        weft_scratch_give(scratch);
    }
    return failed ? out_of_scratch(floats) : WEFT_OK;
}
