#include "kernels/cpu/vector_attention.h"

#include <string.h>

/* Blocks of queries, of one group, that meet a block of keys while it is loaded: at most so many,
 * and with so many columns together, which stay in the second-level cache. */
enum { MOST_TOGETHER = 4, TOGETHER_DIM = 256 };

typedef struct forward_scratch {
    float *qt;          /* [PANELS][dim][WEFT_PANEL], scaled */
    float *out;         /* [chunks][QUERIES][WEFT_PANEL], at first of queries, then of values */
    float *top, *sum;   /* [QUERIES] */
    float *k, *v;       /* [chunks][KEYS][WEFT_PANEL], of all blocks of queries, as what follows */
    float *scores;      /* [KEYS][WEFT_PANEL] */
    float *rows, *keep; /* alike, for dropout */
} forward_scratch;

/* Of a row of forward_scratch.out, which queries pass through. */
static size_t out_width(const problem *p)
{
    return (p->chunks > p->value_chunks ? p->chunks : p->value_chunks) * WEFT_PANEL;
}

static size_t forward_floats(const problem *p, size_t together)
{
    return together * QUERIES * (p->dim + out_width(p) + 2) +
           KEYS * (p->chunks + p->value_chunks) * WEFT_PANEL + 3 * SCORES;
}

static void forward_cut(const problem *p, size_t together, float *memory, forward_scratch *w)
{
    w[0].k = cut(&memory, KEYS * p->chunks * WEFT_PANEL);
    w[0].v = cut(&memory, KEYS * p->value_chunks * WEFT_PANEL);
    w[0].scores = cut(&memory, SCORES);
    w[0].rows = cut(&memory, SCORES);
    w[0].keep = cut(&memory, SCORES);
    for (size_t i = 0; i < together; i++) {
        w[i] = w[0];
        w[i].qt = cut(&memory, QUERIES * p->dim);
        w[i].out = cut(&memory, QUERIES * out_width(p));
        w[i].top = cut(&memory, QUERIES);
        w[i].sum = cut(&memory, QUERIES);
    }
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

/* A panel of queries meets the loaded block of keys. starts: nothing is in `out` yet. */
static void forward_panel(const problem *p, const forward_scratch *w, const query_block *q,
                          size_t panel, const key_block *block, bool starts)
{
    const key_block keys = panel_keys(p, q, panel, block);
    const size_t num_queries = panel_queries(q, panel);
    const size_t at = (keys.first - block->first) * WEFT_PANEL;
    float factor[WEFT_PANEL], *out = w->out + panel * WEFT_PANEL * WEFT_PANEL;
    if (keys.num == 0) {
        for (size_t c = 0; starts && c < p->value_chunks; c++)
            memset(out + c * QUERIES * WEFT_PANEL, 0, sizeof *out * WEFT_PANEL * WEFT_PANEL);
        return;
    }
    weft_tiles_along(keys.num, p->dim, w->k + at, SCORES, w->qt + panel * WEFT_PANEL * p->dim,
                     w->scores, false);
    if (p->variant.softcap > 0)
        cap_scores(p->variant.softcap, w->scores, keys.num * WEFT_PANEL);
    hide(p, q, panel, &keys, w->scores, -INFINITY);
    online_softmax(w->scores, keys.num, w->top + panel * WEFT_PANEL, w->sum + panel * WEFT_PANEL,
                   factor);
    if (p->s.dropout > 0) {
        dropout_factors(p, q, panel, &keys, w->rows, w->keep);
        multiply(w->scores, w->keep, keys.num * WEFT_PANEL);
    }
    for (size_t c = 0; c < p->value_chunks; c++, out += QUERIES * WEFT_PANEL) {
        for (size_t i = 0; !starts && i < num_queries; i++)
            scale_all(out + i * WEFT_PANEL, WEFT_PANEL, factor[i]);
        weft_tiles_across(num_queries, keys.num, w->scores, w->v + c * SCORES + at, out, !starts);
    }
}

/* Where the running softmax starts: from nothing, or from what out and lse hold. Returns whether
 * w->out holds anything. */
static bool start_softmax(const problem *p, const weft_attention_forward_args *a,
                          const forward_scratch *w, const query_block *q)
{
    const bool goes_on = a->piece == WEFT_ATTENTION_NEXT;
    const float *lse = a->lse + stat_at(p, q->b, q->h, q->first);
    const float sink =
        p->variant.sinks ? weft_vector_load(p->variant.sinks, q->h, p->dtype) : -INFINITY;
    load_query_rows(p, q, w->out, w->qt); /* the output's place is free yet */
    for (size_t i = 0; i < QUERIES; i++) {
        w->top[i] = !goes_on ? sink : i < q->num ? lse[i] : -INFINITY;
        w->sum[i] = w->top[i] == -INFINITY ? 0.0f : 1.0f;
    }
    if (goes_on)
        weft_panel_load(w->out, QUERIES * WEFT_PANEL,
                        (const float *)a->out + out_at(p, q->b, q->h, q->first),
                        p->s.batch * p->s.heads * p->value_dim, q->num, p->value_dim, WEFT_F32);
    else if (seen(p, q->first, 0, p->s.seq_k) > 0 &&
             first_key_block(p, q) < end_of_key_blocks(p, q))
        return false; /* every query meets the first block of keys, which writes */
    else
        memset(w->out, 0, p->value_chunks * QUERIES * WEFT_PANEL * sizeof *w->out);
    return true;
}

static void end_softmax(const problem *p, const weft_attention_forward_args *a,
                        const forward_scratch *w, const query_block *q)
{
    const weft_dtype dtype = a->piece == WEFT_ATTENTION_WHOLE ? p->dtype : WEFT_F32;
    float *lse = a->lse + stat_at(p, q->b, q->h, q->first);
    for (size_t i = 0; i < q->num; i++) {
        lse[i] = w->top[i] + logf(w->sum[i]); /* of no key: minus infinity */
        w->sum[i] = w->sum[i] > 0 ? 1.0f / w->sum[i] : 0.0f;
    }
    weft_panel_store(weft_vector_at(a->out, out_at(p, q->b, q->h, q->first), dtype),
                     p->s.batch * p->s.heads * p->value_dim, w->out, QUERIES * WEFT_PANEL, q->num,
                     p->value_dim, w->sum, 1, dtype);
}

/* Some blocks of queries of one group go over the keys together. The blocks stand in the order of
 * the queries, heads beside each other; causal: the last ones are the longest and come first. */
static void forward_item(const problem *p, const weft_attention_forward_args *a, size_t item,
                         size_t together, float *memory)
{
    const size_t groups = p->s.batch * p->s.groups, b = item % groups / p->s.groups;
    const size_t g = item % p->s.groups;
    const size_t all = p->heads_each * blocks_of(p->s.seq_q, QUERIES);
    const size_t first = (blocks_of(all, together) - 1 - item / groups) * together;
    const size_t num = weft_vector_min(together, all - first);
    forward_scratch w[MOST_TOGETHER];
    query_block q[MOST_TOGETHER];
    bool holds[MOST_TOGETHER];
    size_t begin = SIZE_MAX, end = 0;
    forward_cut(p, together, memory, w);
    for (size_t i = 0; i < num; i++) {
        q[i] = query_block_at(p, b, g * p->heads_each + (first + i) % p->heads_each,
                              (first + i) / p->heads_each);
        holds[i] = start_softmax(p, a, &w[i], &q[i]);
        begin = weft_vector_min(begin, first_key_block(p, &q[i]));
        if (end < end_of_key_blocks(p, &q[i]))
            end = end_of_key_blocks(p, &q[i]);
    }
    for (size_t j = begin; j < end; j++) {
        const key_block block = key_block_at(p, j);
        load_keys(p, b, g, &block, w[0].k, w[0].v);
        for (size_t i = 0; i < num; i++) {
            if (j < first_key_block(p, &q[i]) || j >= end_of_key_blocks(p, &q[i]))
                continue;
            for (size_t panel = 0; panel * WEFT_PANEL < q[i].num; panel++)
                forward_panel(p, &w[i], &q[i], panel, &block, !holds[i]);
            holds[i] = true;
        }
    }
    for (size_t i = 0; i < num; i++)
        end_softmax(p, a, &w[i], &q[i]);
}

/* Keys are loaded once for the blocks of queries that run together, but threads must have work. */
static size_t choose_together(const problem *p, size_t blocks)
{
    const size_t threads = max_threads(), fit = TOGETHER_DIM / p->dim;
    size_t together = fit < 1 ? 1 : fit < MOST_TOGETHER ? fit : MOST_TOGETHER;
    while (together > 1 && threads > 1 &&
           p->s.batch * p->s.groups * blocks_of(blocks, together) < 4 * threads)
        together /= 2;
    return together;
}

weft_status WEFT_VECTOR(attention_forward)(const weft_attention_forward_args *a)
{
    const problem p = make_problem(&a->shape, a->dtype, a->q, a->k, a->v, a->first_key,
                                   a->first_seen, a->value_dim, &a->variant);
    const size_t blocks = p.heads_each * blocks_of(p.s.seq_q, QUERIES);
    const size_t together = choose_together(&p, blocks);
    const size_t items = p.s.batch * p.s.groups * blocks_of(blocks, together);
    const size_t floats = forward_floats(&p, together);
    int failed = 0;
#pragma omp parallel reduction(|| : failed)
    {
        const weft_scratch scratch = weft_scratch_take(thread_number(), floats * sizeof(float));
        failed = !scratch.memory;
#pragma omp for schedule(dynamic)
        for (size_t item = 0; item < items; item++)
            if (!failed)
                forward_item(&p, a, item, together, scratch.memory);
        weft_scratch_give(scratch);
    }
    return failed ? out_of_scratch(floats) : WEFT_OK;
}
