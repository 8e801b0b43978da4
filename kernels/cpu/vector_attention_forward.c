#include "kernels/cpu/vector_attention.h"

#include <string.h>

typedef struct forward_scratch {
    float *qt;          /* [PANELS][dim][WEFT_PANEL], scaled */
    float *k, *v;       /* [chunks][KEYS][WEFT_PANEL] */
    float *out;         /* [chunks][QUERIES][WEFT_PANEL] */
    float *scores;      /* [KEYS][WEFT_PANEL] */
    float *rows, *keep; /* alike, for dropout */
    float *top, *sum;   /* [QUERIES] */
} forward_scratch;

static size_t forward_floats(const problem *p)
{
    return QUERIES * p->dim + p->chunks * WEFT_PANEL * (2 * KEYS + QUERIES) + 3 * SCORES +
           2 * QUERIES;
}

static forward_scratch forward_cut(const problem *p, float *memory)
{
    const size_t width = p->chunks * WEFT_PANEL;
    forward_scratch w;
    w.qt = cut(&memory, QUERIES * p->dim);
    w.k = cut(&memory, KEYS * width);
    w.v = cut(&memory, KEYS * width);
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
    float high[WEFT_PANEL], total[WEFT_PANEL];
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
        factor[i] = weft_vector_exp(top[i] - high[i]);
        total[i] = sum[i] * factor[i];
    }
    for (size_t j = 0; j < num_keys; j++) {
#pragma omp simd
        for (int i = 0; i < WEFT_PANEL; i++) {
            const float e = weft_vector_exp(scores[j * WEFT_PANEL + (size_t)i] - high[i]);
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

/* A panel of queries meets a block of keys. */
static void forward_panel(const problem *p, const forward_scratch *w, const query_block *q,
                          size_t panel, const key_block *k, bool is_first)
{
    const size_t num_keys = panel_keys(p, q, panel, k), num_queries = panel_queries(q, panel);
    if (num_keys == 0)
        return;
    float factor[WEFT_PANEL];
    weft_tiles_along(num_keys, p->dim, w->k, SCORES, w->qt + panel * WEFT_PANEL * p->dim, w->scores,
                     false);
    hide(p, q, panel, k, num_keys, w->scores, -INFINITY);
    online_softmax(w->scores, num_keys, w->top + panel * WEFT_PANEL, w->sum + panel * WEFT_PANEL,
                   factor);
    if (p->s.dropout > 0) {
        dropout_factors(p, q, panel, k, num_keys, w->rows, w->keep);
        multiply(w->scores, w->keep, num_keys * WEFT_PANEL);
    }
    for (size_t c = 0; c < p->chunks; c++) {
        float *out = w->out + (c * QUERIES + panel * WEFT_PANEL) * WEFT_PANEL;
        for (size_t i = 0; !is_first && i < num_queries; i++)
            scale_all(out + i * WEFT_PANEL, WEFT_PANEL, factor[i]);
        weft_tiles_across(num_queries, num_keys, w->scores, w->v + c * SCORES, out, !is_first);
    }
}

static void forward_block(const problem *p, const weft_attention_forward_args *a,
                          const query_block *q, float *memory)
{
    const forward_scratch w = forward_cut(p, memory);
    load_query_rows(p, q, w.out, w.qt); /* the output's place is free yet */
    for (size_t i = 0; i < QUERIES; i++) {
        w.top[i] = -INFINITY;
        w.sum[i] = 0.0f;
    }
    for (size_t j = 0; j < key_blocks_seen(p, q); j++) {
        const key_block k = key_block_at(p, j);
        load_keys(p, q->b, q->h / p->heads_each, &k, w.k, w.v);
        for (size_t panel = 0; panel * WEFT_PANEL < q->num; panel++)
            forward_panel(p, &w, q, panel, &k, j == 0);
    }
    float *lse = a->lse + stat_at(p, q->b, q->h, q->first);
    for (size_t i = 0; i < q->num; i++) {
        lse[i] = w.top[i] + logf(w.sum[i]);
        w.sum[i] = 1.0f / w.sum[i];
    }
    weft_panel_store(weft_vector_at(a->out, out_at(p, q->b, q->h, q->first), p->dtype),
                     p->s.batch * p->s.heads * p->dim, w.out, QUERIES * WEFT_PANEL, q->num, p->dim,
                     w.sum, 1, p->dtype);
}

weft_status WEFT_VECTOR(attention_forward)(const weft_attention_forward_args *a)
{
    const problem p = make_problem(&a->shape, a->dtype, a->q, a->k, a->v);
    const size_t blocks = blocks_of(p.s.seq_q, QUERIES), floats = forward_floats(&p);
    const size_t items = p.s.batch * p.s.heads * blocks;
    int failed = 0;
#pragma omp parallel reduction(|| : failed)
    {
        const weft_scratch scratch = weft_scratch_take(thread_number(), floats * sizeof(float));
        failed = !scratch.memory;
#pragma omp for schedule(dynamic)
        for (size_t item = 0; item < items; item++) {
            /* causal: the last blocks are the longest and come first */
            const size_t head = item % (p.s.batch * p.s.heads);
            const query_block q = query_block_at(&p, head / p.s.heads, head % p.s.heads,
                                                 blocks - 1 - item / (p.s.batch * p.s.heads));
            if (!failed)
                forward_block(&p, a, &q, scratch.memory);
        }
        weft_scratch_give(scratch);
    }
    return failed ? out_of_scratch(floats) : WEFT_OK;
}
