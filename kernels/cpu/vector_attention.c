/* Attention in blocks (Dao et al. 2022, FlashAttention; Dao 2023, FlashAttention-2): a block of
 * queries meets one block of keys after the other, and no matrix is larger than a pair of blocks.
 *
 * Scores are held transposed, [keys][queries] in panels of queries: the softmax over keys then runs
 * down the rows, a vector of queries at a time, and the same panels are the left operand of every
 * later product, down their columns for the output and dQ, along their rows for dK and dV. So only
 * queries and dout are ever transposed, once a block.
 *
 * All sums are fp32 and are added up block by block in one order, whatever the number of threads,
 * so that results are the same to the bit. */
#include "kernels/cpu/cpu.h"

#include <math.h>
#include <string.h>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "kernels/cpu/scratch.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/cpu/vector_random.h"
#include "kernels/cpu/vector_tile.h"

enum {
    QUERIES = 128, /* a block's: the more, the fewer times keys and values are loaded */
    PANELS = QUERIES / WEFT_PANEL,
    KEYS = 8 * WEFT_TILE_ROWS < 64 ? 16 * WEFT_TILE_ROWS : 8 * WEFT_TILE_ROWS,
    SCORES = KEYS * WEFT_PANEL, /* of one panel of queries with a block's keys */
};

/* What all blocks share. */
typedef struct problem {
    weft_attention_shape s;
    weft_dtype dtype;
    const void *q, *k, *v;
    size_t dim, chunks; /* panels that head_dim fills */
    size_t heads_each;  /* of a group */
    float scale, kept_factor;
    uint32_t keep_from; /* a 24-bit number from here on keeps its element */
} problem;

static problem make_problem(const weft_attention_shape *s, weft_dtype dtype, const void *q,
                            const void *k, const void *v)
{
    return (problem){
        .s = *s,
        .dtype = dtype,
        .q = q,
        .k = k,
        .v = v,
        .dim = s->head_dim,
        .chunks = (s->head_dim + WEFT_PANEL - 1) / WEFT_PANEL,
        .heads_each = s->heads / s->groups,
        .scale = s->scale != 0 ? s->scale : 1.0f / sqrtf((float)s->head_dim),
        .kept_factor = 1.0f / (1.0f - s->dropout),
        .keep_from = (uint32_t)ceilf(s->dropout * 0x1p24f),
    };
}

static size_t blocks_of(size_t count, size_t size)
{
    return (count + size - 1) / size;
}

/* Elements before query i of sample b and head h, and before key j of its group. */
static size_t query_at(const problem *p, size_t b, size_t h, size_t i)
{
    return (i * p->s.batch + b) * p->s.q_token_stride + h / p->heads_each * p->s.q_group_stride +
           h % p->heads_each * p->dim;
}

static size_t key_at(const problem *p, size_t b, size_t g, size_t j)
{
    return (j * p->s.batch + b) * p->s.k_token_stride + g * p->s.k_group_stride;
}

static size_t out_at(const problem *p, size_t b, size_t h, size_t i)
{
    return ((i * p->s.batch + b) * p->s.heads + h) * p->dim;
}

static size_t stat_at(const problem *p, size_t b, size_t h, size_t i)
{
    return (b * p->s.heads + h) * p->s.seq_q + i;
}

/* How many of the keys j .. j + num the query i sees. */
static size_t seen(const problem *p, size_t i, size_t j, size_t num)
{
    const size_t end = p->s.first_query + i + 1;
    if (!p->s.causal || end >= j + num)
        return num;
    return end > j ? end - j : 0;
}

/* A block of queries of one head, and one of keys. */
typedef struct query_block {
    size_t b, h, first, num;
} query_block;

typedef struct key_block {
    size_t first, num;
} key_block;

static query_block query_block_at(const problem *p, size_t b, size_t h, size_t index)
{
    const size_t first = index * QUERIES;
    return (query_block){b, h, first, weft_vector_min(QUERIES, p->s.seq_q - first)};
}

static key_block key_block_at(const problem *p, size_t index)
{
    const size_t first = index * KEYS;
    return (key_block){first, weft_vector_min(KEYS, p->s.seq_k - first)};
}

/* Key blocks of which the last query of a block sees something. */
static size_t key_blocks_seen(const problem *p, const query_block *q)
{
    return blocks_of(seen(p, q->first + q->num - 1, 0, p->s.seq_k), KEYS);
}

static size_t panel_queries(const query_block *q, size_t panel)
{
    return weft_vector_min(WEFT_PANEL, q->num - panel * WEFT_PANEL);
}

/* Rows of a panel's scores that any of its queries sees. */
static size_t panel_keys(const problem *p, const query_block *q, size_t panel, const key_block *k)
{
    const size_t last = q->first + panel * WEFT_PANEL + panel_queries(q, panel) - 1;
    return seen(p, last, k->first, k->num);
}

/* Writes `value` where a query of the panel does not see a key. */
static void hide(const problem *p, const query_block *q, size_t panel, const key_block *k,
                 size_t num_keys, float *scores, float value)
{
    const size_t first = q->first + panel * WEFT_PANEL;
    for (size_t j = seen(p, first, k->first, num_keys); j < num_keys; j++) {
        const size_t num = k->first + j - (p->s.first_query + first);
        for (size_t i = 0; i < num; i++)
            scores[j * WEFT_PANEL + i] = value;
    }
}

/* keep[num_keys][WEFT_PANEL]: what dropout multiplies the panel's probabilities by. `rows` is
 * scratch of the same size. */
static void dropout_factors(const problem *p, const query_block *q, size_t panel,
                            const key_block *k, size_t num_keys, float *rows, float *keep)
{
    uint32_t buffer[KEYS + WEFT_RANDOM_SLACK];
    const weft_attention_shape *s = &p->s;
    const size_t num = panel_queries(q, panel);
    for (size_t i = 0; i < num; i++) {
        const uint64_t query =
            ((s->first_sample + q->b) * s->total_heads + s->first_head + q->h) * s->total_seq +
            s->first_query + q->first + panel * WEFT_PANEL + i;
        const uint32_t *words = weft_random_words(
            s->seed, s->stream, query * s->total_seq + k->first, num_keys, buffer);
        float *row = rows + i * KEYS;
#pragma omp simd
        for (size_t j = 0; j < num_keys; j++)
            row[j] = words[j] >> 8 >= p->keep_from ? p->kept_factor : 0.0f;
    }
    weft_panel_load_transposed(keep, rows, KEYS, num, num_keys, WEFT_F32);
}

static int thread_number(void)
{
#ifdef _OPENMP
    return omp_get_thread_num();
#else
    return 0;
#endif
}

/* Cuts `count` floats from scratch whose first free one is *next. */
static float *cut(float **next, size_t count)
{
    float *out = *next;
    *next += count;
    return out;
}

static weft_status out_of_scratch(size_t floats)
{
    return WEFT_ERROR(WEFT_MEMORY, "attention: no memory for %zu bytes of scratch a thread",
                      floats * sizeof(float));
}

/* ---- forward ---- */

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

static void scale_all(float *x, size_t count, float by)
{
#pragma omp simd
    for (size_t i = 0; i < count; i++)
        x[i] *= by;
}

static void load_keys(const problem *p, size_t b, size_t g, const key_block *block, float *k,
                      float *v)
{
    const size_t at = key_at(p, b, g, block->first), stride = p->s.batch * p->s.k_token_stride;
    weft_panel_load(k, SCORES, weft_vector_from(p->k, at, p->dtype), stride, block->num, p->dim,
                    p->dtype);
    weft_panel_load(v, SCORES, weft_vector_from(p->v, at, p->dtype), stride, block->num, p->dim,
                    p->dtype);
}

static void load_queries_transposed(const problem *p, const query_block *q, float *qt)
{
    const size_t stride = p->s.batch * p->s.q_token_stride;
    for (size_t panel = 0; panel * WEFT_PANEL < q->num; panel++)
        weft_panel_load_transposed(
            qt + panel * WEFT_PANEL * p->dim,
            weft_vector_from(p->q, query_at(p, q->b, q->h, q->first + panel * WEFT_PANEL),
                             p->dtype),
            stride, panel_queries(q, panel), p->dim, p->dtype);
    scale_all(qt, blocks_of(q->num, WEFT_PANEL) * WEFT_PANEL * p->dim, p->scale);
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
    load_queries_transposed(p, q, w.qt);
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

/* ---- backward ---- */

typedef struct backward_scratch {
    float *qt, *dout_t;   /* [PANELS][dim][WEFT_PANEL]; qt scaled */
    float *q, *dout, *dq; /* [chunks][QUERIES][WEFT_PANEL] */
    float *lse, *delta;   /* [QUERIES] */
    float *k, *v;         /* [chunks][KEYS][WEFT_PANEL] */
    float *probabilities; /* [PANELS][KEYS][WEFT_PANEL], after dropout */
    float *dscores;       /* alike */
    float *rows, *keep;   /* [KEYS][WEFT_PANEL] */
    float *dk, *dv;       /* [key blocks held][chunks][KEYS][WEFT_PANEL] */
} backward_scratch;

static size_t backward_floats(const problem *p, size_t key_blocks)
{
    const size_t width = p->chunks * WEFT_PANEL;
    return 2 * QUERIES * p->dim + 3 * QUERIES * width + 2 * QUERIES +
           2 * (1 + key_blocks) * KEYS * width + (2 * PANELS + 2) * SCORES;
}

static backward_scratch backward_cut(const problem *p, size_t key_blocks, float *memory)
{
    const size_t width = p->chunks * WEFT_PANEL;
    backward_scratch w;
    w.qt = cut(&memory, QUERIES * p->dim);
    w.dout_t = cut(&memory, QUERIES * p->dim);
    w.q = cut(&memory, QUERIES * width);
    w.dout = cut(&memory, QUERIES * width);
    w.dq = cut(&memory, QUERIES * width);
    w.lse = cut(&memory, QUERIES);
    w.delta = cut(&memory, QUERIES);
    w.k = cut(&memory, KEYS * width);
    w.v = cut(&memory, KEYS * width);
    w.probabilities = cut(&memory, PANELS * SCORES);
    w.dscores = cut(&memory, PANELS * SCORES);
    w.rows = cut(&memory, SCORES);
    w.keep = cut(&memory, SCORES);
    w.dk = cut(&memory, key_blocks * KEYS * width);
    w.dv = cut(&memory, key_blocks * KEYS * width);
    return w;
}

static void load_queries(const problem *p, const weft_attention_backward_args *a,
                         const query_block *q, const backward_scratch *w)
{
    const size_t jump = QUERIES * WEFT_PANEL, out_stride = p->s.batch * p->s.heads * p->dim;
    load_queries_transposed(p, q, w->qt);
    weft_panel_load(w->q, jump, weft_vector_from(p->q, query_at(p, q->b, q->h, q->first), p->dtype),
                    p->s.batch * p->s.q_token_stride, q->num, p->dim, p->dtype);
    weft_panel_load(w->dout, jump,
                    weft_vector_from(a->dout, out_at(p, q->b, q->h, q->first), p->dtype),
                    out_stride, q->num, p->dim, p->dtype);
    for (size_t panel = 0; panel * WEFT_PANEL < q->num; panel++)
        weft_panel_load_transposed(
            w->dout_t + panel * WEFT_PANEL * p->dim,
            weft_vector_from(a->dout, out_at(p, q->b, q->h, q->first + panel * WEFT_PANEL),
                             p->dtype),
            out_stride, panel_queries(q, panel), p->dim, p->dtype);
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

/* A loaded block of queries meets a loaded block of keys: adds to dq, and to dk and dv, where
 * given ([chunks][KEYS][WEFT_PANEL]). */
static void backward_pair(const problem *p, const backward_scratch *w, const query_block *q,
                          const key_block *k, float *dq, float *dk, float *dv)
{
    const size_t panels = blocks_of(q->num, WEFT_PANEL);
    for (size_t panel = 0; panel < panels; panel++) {
        const size_t num_keys = panel_keys(p, q, panel, k);
        if (num_keys == 0)
            continue;
        float *scores = w->probabilities + panel * SCORES, *dscores = w->dscores + panel * SCORES;
        weft_tiles_along(num_keys, p->dim, w->k, SCORES, w->qt + panel * WEFT_PANEL * p->dim,
                         scores, false);
        weft_tiles_along(num_keys, p->dim, w->v, SCORES, w->dout_t + panel * WEFT_PANEL * p->dim,
                         dscores, false);
        if (p->s.dropout > 0)
            dropout_factors(p, q, panel, k, num_keys, w->rows, w->keep);
        score_gradients(scores, dscores, num_keys, p->s.dropout > 0 ? w->keep : NULL,
                        w->lse + panel * WEFT_PANEL, w->delta + panel * WEFT_PANEL);
        hide(p, q, panel, k, num_keys, scores, 0.0f);
        hide(p, q, panel, k, num_keys, dscores, 0.0f);
        for (size_t c = 0; dq && c < p->chunks; c++)
            weft_tiles_across(panel_queries(q, panel), num_keys, dscores, w->k + c * SCORES,
                              dq + (c * QUERIES + panel * WEFT_PANEL) * WEFT_PANEL, true);
    }
    /* The keys that no panel before this one saw; the later panels see them, too. */
    size_t known = 0;
    for (size_t panel = 0; dk && panel < panels; panel++) {
        const size_t num_keys = panel_keys(p, q, panel, k);
        if (num_keys == known)
            continue;
        const size_t left = q->num - panel * WEFT_PANEL;
        const size_t at = panel * SCORES + known * WEFT_PANEL;
        for (size_t c = 0; c < p->chunks; c++) {
            const size_t from = (c * QUERIES + panel * WEFT_PANEL) * WEFT_PANEL;
            const size_t to = c * SCORES + known * WEFT_PANEL;
            weft_tiles_along(num_keys - known, left, w->dscores + at, SCORES, w->q + from, dk + to,
                             true);
            weft_tiles_along(num_keys - known, left, w->probabilities + at, SCORES, w->dout + from,
                             dv + to, true);
        }
        known = num_keys;
    }
}

static void clear(float *x, size_t count)
{
    memset(x, 0, count * sizeof *x);
}

static void store_dq(const problem *p, const weft_attention_backward_args *a, const query_block *q,
                     const float *dq)
{
    weft_panel_store(weft_vector_at(a->dq, query_at(p, q->b, q->h, q->first), p->dtype),
                     p->s.batch * p->s.q_token_stride, dq, QUERIES * WEFT_PANEL, q->num, p->dim,
                     &p->scale, 0, p->dtype);
}

static void store_dkv(const problem *p, const weft_attention_backward_args *a, size_t b, size_t g,
                      const key_block *k, const float *dk, const float *dv)
{
    const float one = 1.0f;
    const size_t at = key_at(p, b, g, k->first), stride = p->s.batch * p->s.k_token_stride;
    weft_panel_store(weft_vector_at(a->dk, at, p->dtype), stride, dk, SCORES, k->num, p->dim,
                     &p->scale, 0, p->dtype);
    weft_panel_store(weft_vector_at(a->dv, at, p->dtype), stride, dv, SCORES, k->num, p->dim, &one,
                     0, p->dtype);
}

/* One sample and group as a whole: every pair of blocks once. */
static void backward_group(const problem *p, const weft_attention_backward_args *a, size_t item,
                           float *memory)
{
    const size_t b = item / p->s.groups, g = item % p->s.groups;
    const size_t blocks = blocks_of(p->s.seq_k, KEYS), size = p->chunks * SCORES;
    const backward_scratch w = backward_cut(p, blocks, memory);
    clear(w.dk, blocks * size);
    clear(w.dv, blocks * size);
    for (size_t h = g * p->heads_each; h < (g + 1) * p->heads_each; h++) {
        for (size_t i = 0; i < blocks_of(p->s.seq_q, QUERIES); i++) {
            const query_block q = query_block_at(p, b, h, i);
            load_queries(p, a, &q, &w);
            clear(w.dq, p->chunks * QUERIES * WEFT_PANEL);
            for (size_t j = 0; j < key_blocks_seen(p, &q); j++) {
                const key_block k = key_block_at(p, j);
                load_keys(p, b, g, &k, w.k, w.v);
                backward_pair(p, &w, &q, &k, w.dq, w.dk + j * size, w.dv + j * size);
            }
            store_dq(p, a, &q, w.dq);
        }
    }
    for (size_t j = 0; j < blocks; j++) {
        const key_block k = key_block_at(p, j);
        store_dkv(p, a, b, g, &k, w.dk + j * size, w.dv + j * size);
    }
}

/* dq of one block of queries. */
static void backward_queries(const problem *p, const weft_attention_backward_args *a, size_t item,
                             float *memory)
{
    const size_t blocks = blocks_of(p->s.seq_q, QUERIES), head = item / blocks;
    const query_block q =
        query_block_at(p, head / p->s.heads, head % p->s.heads, blocks - 1 - item % blocks);
    const backward_scratch w = backward_cut(p, 0, memory);
    load_queries(p, a, &q, &w);
    clear(w.dq, p->chunks * QUERIES * WEFT_PANEL);
    for (size_t j = 0; j < key_blocks_seen(p, &q); j++) {
        const key_block k = key_block_at(p, j);
        load_keys(p, q.b, q.h / p->heads_each, &k, w.k, w.v);
        backward_pair(p, &w, &q, &k, w.dq, NULL, NULL);
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
    clear(w.dv, p->chunks * SCORES);
    load_keys(p, b, g, &k, w.k, w.v);
    for (size_t h = g * p->heads_each; h < (g + 1) * p->heads_each; h++) {
        for (size_t i = 0; i < blocks_of(p->s.seq_q, QUERIES); i++) {
            const query_block q = query_block_at(p, b, h, i);
            if (j >= key_blocks_seen(p, &q))
                continue;
            load_queries(p, a, &q, &w);
            backward_pair(p, &w, &q, &k, NULL, w.dk, w.dv);
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
            const size_t at = (row * p->s.heads + h) * p->dim;
            const void *out = weft_vector_from(a->out, at, p->dtype);
            const void *dout = weft_vector_from(a->dout, at, p->dtype);
            a->delta[stat_at(p, row % p->s.batch, h, row / p->s.batch)] =
                p->dtype == WEFT_F32 ? dot(out, dout, p->dim, WEFT_F32)
                                     : dot(out, dout, p->dim, WEFT_BF16);
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
    const problem p = make_problem(&a->shape, a->dtype, a->q, a->k, a->v);
    const size_t key_blocks = blocks_of(p.s.seq_k, KEYS), groups = p.s.batch * p.s.groups;
#ifdef _OPENMP
    const size_t threads = (size_t)omp_get_max_threads();
#else
    const size_t threads = 1;
#endif
    if (!a->dk || !a->dv) /* only where there is nothing to do */
        return WEFT_OK;
    compute_delta(&p, a);
    /* Whole groups take 5 products a pair of blocks, but may leave threads idle; a pass for dq and
     * one for dk and dv take 7 and split finely. Sums come in the same order. */
    if (blocks_of(groups, threads) * threads * 5 <= groups * 7)
        return run_backward(&p, a, backward_group, groups, backward_floats(&p, key_blocks));
    WEFT_TRY(run_backward(&p, a, backward_queries,
                          p.s.batch * p.s.heads * blocks_of(p.s.seq_q, QUERIES),
                          backward_floats(&p, 0)));
    return run_backward(&p, a, backward_keys, groups * key_blocks, backward_floats(&p, 1));
}
