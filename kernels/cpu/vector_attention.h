/* What attention's forward and backward share: cutting the problem into blocks, and loading them.
 *
 * Attention runs in blocks (Dao et al. 2022, FlashAttention; Dao 2023, FlashAttention-2): a block
 * of queries meets one block of keys after the other, and no matrix is larger than a pair of
 * blocks.
 *
 * Scores stand transposed, [keys][queries] in panels of queries. The softmax over keys runs down
 * the rows, a vector of queries at a time. The same panels are the left operand of every later
 * product: down their columns for the output and dQ, along their rows for dK and dV. So only
 * queries and dout are ever transposed, once a block.
 *
 * All sums are fp32 and add up block by block in one order, so results have the same bits at any
 * number of threads. */
#ifndef WEFT_KERNELS_CPU_VECTOR_ATTENTION_H
#define WEFT_KERNELS_CPU_VECTOR_ATTENTION_H

#include <math.h>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/vector_random.h"
#include "kernels/cpu/vector_tile.h"
#include "kernels/flops.h"

enum {
    QUERIES = 128, /* of a block: with more, keys and values are loaded fewer times */
    PANELS = QUERIES / WEFT_PANEL,
    KEYS = 112 / WEFT_TILE_ROWS * WEFT_TILE_ROWS, /* whole tiles */
    SCORES = KEYS * WEFT_PANEL,                   /* of one panel of queries with a block's keys */
};

/* A call's arguments, and what follows from them. */
typedef struct problem {
    weft_attention_shape s;
    weft_dtype dtype;
    const void *q, *k, *v;
    const int32_t *first_seen; /* or NULL */
    size_t first_key;
    weft_attention_variant variant;
    ptrdiff_t ahead;    /* of key 0's position: query 0's */
    size_t dim, chunks; /* of a query and a key: numbers, and panels that they fill */
    size_t value_dim, value_chunks;
    size_t heads_each; /* of a group */
    float scale, kept_factor;
    uint32_t keep_from; /* a 24-bit number from here on keeps its element */
} problem;

static inline problem make_problem(const weft_attention_shape *s, weft_dtype dtype, const void *q,
                                   const void *k, const void *v, size_t first_key,
                                   const int32_t *first_seen, size_t value_dim,
                                   const weft_attention_variant *variant)
{
    const size_t value = weft_value_dim(s, value_dim);
    return (problem){
        .s = *s,
        .dtype = dtype,
        .q = q,
        .k = k,
        .v = v,
        .first_seen = first_seen,
        .first_key = first_key,
        .variant = *variant,
        .ahead = (ptrdiff_t)s->first_query - (ptrdiff_t)first_key,
        .dim = s->head_dim,
        .chunks = (s->head_dim + WEFT_PANEL - 1) / WEFT_PANEL,
        .value_dim = value,
        .value_chunks = (value + WEFT_PANEL - 1) / WEFT_PANEL,
        .heads_each = s->heads / s->groups,
        .scale = s->scale != 0 ? s->scale : 1.0f / sqrtf((float)s->head_dim),
        .kept_factor = 1.0f / (1.0f - s->dropout),
        .keep_from = (uint32_t)ceilf(s->dropout * 0x1p24f),
    };
}

static inline size_t blocks_of(size_t count, size_t size)
{
    return (count + size - 1) / size;
}

/* Elements before query i of sample b and head h, and before key j of its group. */
static inline size_t query_at(const problem *p, size_t b, size_t h, size_t i)
{
    return (i * p->s.batch + b) * p->s.q_token_stride + h / p->heads_each * p->s.q_group_stride +
           h % p->heads_each * p->dim;
}

static inline size_t key_at(const problem *p, size_t b, size_t g, size_t j)
{
    return (j * p->s.batch + b) * p->s.k_token_stride + g * p->s.k_group_stride;
}

static inline size_t out_at(const problem *p, size_t b, size_t h, size_t i)
{
    return ((i * p->s.batch + b) * p->s.heads + h) * p->value_dim;
}

static inline size_t stat_at(const problem *p, size_t b, size_t h, size_t i)
{
    return (b * p->s.heads + h) * p->s.seq_q + i;
}

/* How many of the keys j .. j + num the query i sees, those before its first one aside. */
static inline size_t seen(const problem *p, size_t i, size_t j, size_t num)
{
    const ptrdiff_t end = p->ahead + (ptrdiff_t)i + 1, from = (ptrdiff_t)j;
    if (!p->s.causal || end >= from + (ptrdiff_t)num)
        return num;
    return end > from ? (size_t)(end - from) : 0;
}

/* The first key that the query i of sample b sees; it may lie behind the last one. */
static inline size_t first_key_seen(const problem *p, size_t b, size_t i)
{
    const size_t document = p->first_seen ? (size_t)p->first_seen[i * p->s.batch + b] : 0;
    const size_t start = weft_attention_start(&p->variant, p->s.first_query + i);
    const size_t position = document > start ? document : start;
    return position > p->first_key ? position - p->first_key : 0;
}

/* A block of queries of one head, and one of keys. */
typedef struct query_block {
    size_t b, h, first, num;
} query_block;

typedef struct key_block {
    size_t first, num;
} key_block;

static inline query_block query_block_at(const problem *p, size_t b, size_t h, size_t index)
{
    const size_t first = index * QUERIES;
    return (query_block){b, h, first, weft_vector_min(QUERIES, p->s.seq_q - first)};
}

static inline key_block key_block_at(const problem *p, size_t index)
{
    const size_t first = index * KEYS;
    return (key_block){first, weft_vector_min(KEYS, p->s.seq_k - first)};
}

/* The first block of keys that a block of queries may see, and the end of those that it sees. */
static inline size_t first_key_block(const problem *p, const query_block *q)
{
    return first_key_seen(p, q->b, q->first) / KEYS;
}

static inline size_t end_of_key_blocks(const problem *p, const query_block *q)
{
    return blocks_of(seen(p, q->first + q->num - 1, 0, p->s.seq_k), KEYS);
}

static inline size_t panel_queries(const query_block *q, size_t panel)
{
    return weft_vector_min(WEFT_PANEL, q->num - panel * WEFT_PANEL);
}

/* The keys of a block that any query of the panel sees. Along the panels both ends rise. */
static inline key_block panel_keys(const problem *p, const query_block *q, size_t panel,
                                   const key_block *k)
{
    const size_t from = q->first + panel * WEFT_PANEL;
    const size_t start = first_key_seen(p, q->b, from), end = k->first + k->num;
    const size_t first = weft_vector_min(start > k->first ? start : k->first, end);
    return (key_block){first, seen(p, from + panel_queries(q, panel) - 1, first, end - first)};
}

/* Writes `value` where a query of the panel does not see a key. */
static inline void hide(const problem *p, const query_block *q, size_t panel, const key_block *k,
                        float *scores, float value)
{
    const size_t first = q->first + panel * WEFT_PANEL, queries = panel_queries(q, panel);
    for (size_t j = seen(p, first, k->first, k->num); j < k->num; j++) {
        const ptrdiff_t unseen = (ptrdiff_t)(k->first + j) - (p->ahead + (ptrdiff_t)first);
        const size_t num = weft_vector_min((size_t)unseen, queries);
        for (size_t i = 0; i < num; i++)
            scores[j * WEFT_PANEL + i] = value;
    }
    if (first_key_seen(p, q->b, first + queries - 1) <= k->first)
        return;
    for (size_t i = 0; i < queries; i++) {
        const size_t start = first_key_seen(p, q->b, first + i);
        for (size_t j = 0; j < k->num && k->first + j < start; j++)
            scores[j * WEFT_PANEL + i] = value;
    }
}

/* keep[num_keys][WEFT_PANEL]: dropout's factors for the panel's probabilities. `rows` is scratch
 * for KEYS x WEFT_PANEL. */
static inline void dropout_factors(const problem *p, const query_block *q, size_t panel,
                                   const key_block *k, float *rows, float *keep)
{
    uint32_t buffer[KEYS + WEFT_RANDOM_SLACK];
    const weft_attention_shape *s = &p->s;
    const size_t num = panel_queries(q, panel);
    for (size_t i = 0; i < num; i++) {
        const uint64_t query =
            ((s->first_sample + q->b) * s->total_heads + s->first_head + q->h) * s->total_seq +
            s->first_query + q->first + panel * WEFT_PANEL + i;
        const uint32_t *words = weft_random_words(
            s->seed, s->stream, query * s->total_seq + p->first_key + k->first, k->num, buffer);
        float *row = rows + i * KEYS;
#pragma omp simd
        for (size_t j = 0; j < k->num; j++)
            row[j] = words[j] >> 8 >= p->keep_from ? p->kept_factor : 0.0f;
    }
    weft_panel_load_transposed(keep, rows, KEYS, num, k->num);
}

static inline int thread_number(void)
{
#ifdef _OPENMP
    return omp_get_thread_num();
#else
    return 0;
#endif
}

static inline size_t max_threads(void)
{
#ifdef _OPENMP
    return (size_t)omp_get_max_threads();
#else
    return 1;
#endif
}

/* Takes `count` floats of scratch, of which *next is the first free one. */
static inline float *cut(float **next, size_t count)
{
    float *out = *next;
    *next += count;
    return out;
}

static inline weft_status out_of_scratch(size_t floats)
{
    return WEFT_ERROR(WEFT_MEMORY, "attention: no memory for %zu bytes of scratch a thread",
                      floats * sizeof(float));
}

/* Scaled scores become softcap * tanh(score / softcap). */
static inline void cap_scores(float softcap, float *scores, size_t count)
{
    const float inverse = 1.0f / softcap;
#pragma omp simd
    for (size_t i = 0; i < count; i++)
        scores[i] = softcap * (2.0f * weft_vector_sigmoid(2.0f * scores[i] * inverse) - 1.0f);
}

static inline void multiply(float *restrict x, const float *restrict by, size_t count)
{
#pragma omp simd
    for (size_t i = 0; i < count; i++)
        x[i] *= by[i];
}

static inline void scale_all(float *x, size_t count, float by)
{
#pragma omp simd
    for (size_t i = 0; i < count; i++)
        x[i] *= by;
}

/* Into panels [chunks][KEYS] each. */
static inline void load_keys(const problem *p, size_t b, size_t g, const key_block *block, float *k,
                             float *v)
{
    const size_t at = key_at(p, b, g, block->first), stride = p->s.batch * p->s.k_token_stride;
    weft_panel_load(k, SCORES, weft_vector_from(p->k, at, p->dtype), stride, block->num, p->dim,
                    p->dtype);
    weft_panel_load(v, SCORES, weft_vector_from(p->v, at, p->dtype), stride, block->num,
                    p->value_dim, p->dtype);
}

/* Loads query rows, num x dim of any tensor at `from`, into panels [chunks][QUERIES], and from
 * there into transposed ones, [PANELS][dim]: rows far apart in memory are read once. */
static inline void load_rows(const problem *p, const void *from, size_t stride, size_t num,
                             size_t dim, float *rows, float *transposed)
{
    weft_panel_load(rows, QUERIES * WEFT_PANEL, from, stride, num, dim, p->dtype);
    for (size_t first = 0; first < num; first += WEFT_PANEL)
        for (size_t c = 0; c * WEFT_PANEL < dim; c++)
            weft_panel_load_transposed(transposed + first * dim + c * WEFT_PANEL * WEFT_PANEL,
                                       rows + (c * QUERIES + first) * WEFT_PANEL, WEFT_PANEL,
                                       weft_vector_min(num - first, WEFT_PANEL),
                                       weft_vector_min(dim - c * WEFT_PANEL, WEFT_PANEL));
}

/* Also scales the transposed form, so that its products with keys are scores. */
static inline void load_query_rows(const problem *p, const query_block *q, float *rows,
                                   float *transposed)
{
    load_rows(p, weft_vector_from(p->q, query_at(p, q->b, q->h, q->first), p->dtype),
              p->s.batch * p->s.q_token_stride, q->num, p->dim, rows, transposed);
    scale_all(transposed, blocks_of(q->num, WEFT_PANEL) * WEFT_PANEL * p->dim, p->scale);
}

#endif
