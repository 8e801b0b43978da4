/* Attention against fp64 with whole matrices, and its gradients against finite differences. */
#include "probe.h"

#include <math.h>
#include <stdio.h>

#include "core/rng.h"
#include "kernels/cpu/scratch.h"
#include "kernels/flops.h"

/* Queries, keys and values as fp64, with the strides of the kernel's. */
typedef struct operands {
    weft_attention_shape s;
    const double *q, *k, *v, *dout;
    const int32_t *first_seen; /* or NULL */
    size_t value_dim;
    weft_attention_variant variant;
    const double *sink; /* or NULL */
} operands;

static size_t query_index(const weft_attention_shape *s, size_t b, size_t h, size_t i)
{
    const size_t each = s->heads / s->groups;
    return (i * s->batch + b) * s->q_token_stride + h / each * s->q_group_stride +
           h % each * s->head_dim;
}

static size_t key_index(const weft_attention_shape *s, size_t b, size_t h, size_t j)
{
    return (j * s->batch + b) * s->k_token_stride + h / (s->heads / s->groups) * s->k_group_stride;
}

static double scale_of(const weft_attention_shape *s)
{
    return s->scale != 0 ? (double)s->scale : 1 / sqrt((double)s->head_dim);
}

static double sum_of_products(const double *x, const double *y, size_t num)
{
    double sum = 0;
    for (size_t d = 0; d < num; d++)
        sum += x[d] * y[d];
    return sum;
}

/* By the definition: a window counts the query's own position. */
static bool is_seen(const operands *o, size_t b, size_t i, size_t j)
{
    const weft_attention_shape *s = &o->s;
    const size_t query = s->first_query + i;
    if (o->first_seen && j < (size_t)o->first_seen[i * s->batch + b])
        return false;
    if (o->variant.window > 0 && j + o->variant.window <= query)
        return false;
    if (o->variant.chunk > 0 && j / o->variant.chunk != query / o->variant.chunk)
        return false;
    return !s->causal || j <= query;
}

/* A score, and the slope of its cap. */
static double score_of(const operands *o, size_t b, size_t h, size_t i, size_t j, double *slope)
{
    const weft_attention_shape *s = &o->s;
    const double cap = (double)o->variant.softcap;
    const double x = scale_of(s) * sum_of_products(o->q + query_index(s, b, h, i),
                                                   o->k + key_index(s, b, h, j), s->head_dim);
    const double t = cap > 0 ? tanh(x / cap) : 0;
    *slope = 1 - t * t;
    return cap > 0 ? cap * t : x;
}

/* A query's probabilities before dropout, and what dropout multiplies each by. Returns its lse. */
static double probabilities(const operands *o, size_t b, size_t h, size_t i, double *p,
                            double *keep)
{
    const weft_attention_shape *s = &o->s;
    double top = o->sink ? o->sink[h] : -INFINITY, sum = 0, slope;
    for (size_t j = 0; j < s->seq_k; j++) {
        p[j] = is_seen(o, b, i, j) ? score_of(o, b, h, i, j, &slope) : -INFINITY;
        top = fmax(top, p[j]);
        uint64_t element = s->first_sample + b;
        element = element * s->total_heads + s->first_head + h;
        element = element * s->total_seq + s->first_query + i;
        element = element * s->total_seq + j;
        keep[j] = 1;
        if (s->dropout > 0)
            keep[j] = weft_rng_uniform(s->seed, s->stream, element) < s->dropout
                          ? 0
                          : 1 / (1 - (double)s->dropout);
    }
    sum = o->sink ? exp(o->sink[h] - top) : 0;
    for (size_t j = 0; j < s->seq_k; j++)
        sum += p[j] = exp(p[j] - top);
    for (size_t j = 0; j < s->seq_k; j++)
        p[j] /= sum;
    return top + log(sum);
}

enum { MAX_KEYS = 1024 };
static double p[MAX_KEYS], keep[MAX_KEYS], dp[MAX_KEYS];

static void reference_forward(const operands *o, double *out, double *lse)
{
    const weft_attention_shape *s = &o->s;
    for (size_t b = 0; b < s->batch; b++)
        for (size_t h = 0; h < s->heads; h++)
            for (size_t i = 0; i < s->seq_q; i++) {
                double *row = out + ((i * s->batch + b) * s->heads + h) * o->value_dim;
                lse[(b * s->heads + h) * s->seq_q + i] = probabilities(o, b, h, i, p, keep);
                for (size_t d = 0; d < o->value_dim; d++)
                    row[d] = 0;
                for (size_t j = 0; j < s->seq_k; j++)
                    for (size_t d = 0; d < o->value_dim; d++)
                        row[d] += p[j] * keep[j] * o->v[key_index(s, b, h, j) + d];
            }
}

/* dq, dk, dv, dsinks start as zeros; dsinks NULL: none. */
static void reference_backward(const operands *o, double *dq, double *dk, double *dv,
                               double *dsinks)
{
    const weft_attention_shape *s = &o->s;
    for (size_t b = 0; b < s->batch; b++)
        for (size_t h = 0; h < s->heads; h++)
            for (size_t i = 0; i < s->seq_q; i++) {
                const size_t query = query_index(s, b, h, i);
                const double *dout = o->dout + ((i * s->batch + b) * s->heads + h) * o->value_dim;
                double mean = 0, slope;
                const double lse = probabilities(o, b, h, i, p, keep);
                for (size_t j = 0; j < s->seq_k; j++) {
                    dp[j] =
                        keep[j] * sum_of_products(dout, o->v + key_index(s, b, h, j), o->value_dim);
                    mean += p[j] * dp[j];
                }
                if (dsinks)
                    dsinks[h] -= exp(o->sink[h] - lse) * mean;
                for (size_t j = 0; j < s->seq_k; j++) {
                    const size_t key = key_index(s, b, h, j);
                    (void)score_of(o, b, h, i, j, &slope);
                    const double ds = scale_of(s) * p[j] * (dp[j] - mean) * slope;
                    for (size_t d = 0; d < o->value_dim; d++)
                        dv[key + d] += p[j] * keep[j] * dout[d];
                    for (size_t d = 0; d < s->head_dim; d++) {
                        dq[query + d] += ds * o->k[key + d];
                        dk[key + d] += ds * o->q[query + d];
                    }
                }
            }
}

/* Where the parts of a test's tensors stand. Packed: one row a token holds [q..., k, v] a group, as
 * the attention layer has it. Otherwise three tensors whose rows end in a gap. */
typedef struct layout {
    bool is_packed;
    size_t num_q, num_k; /* elements of q, and of k and v; packed: num_q is all */
    size_t k_offset, v_offset;
} layout;

enum { GAP = 3 };

static layout lay_out(weft_attention_shape *s, size_t value_dim, bool is_packed)
{
    const size_t each = s->heads / s->groups;
    if (is_packed) {
        s->q_group_stride = s->k_group_stride = (each + 1) * s->head_dim + value_dim;
        s->q_token_stride = s->k_token_stride = s->groups * s->q_group_stride;
        return (layout){.is_packed = true,
                        .num_q = s->seq_q * s->batch * s->q_token_stride,
                        .k_offset = each * s->head_dim,
                        .v_offset = (each + 1) * s->head_dim};
    }
    s->q_group_stride = each * s->head_dim;
    s->k_group_stride = s->head_dim > value_dim ? s->head_dim : value_dim;
    s->q_token_stride = s->heads * s->head_dim + GAP;
    s->k_token_stride = s->groups * s->k_group_stride + GAP;
    return (layout){.num_q = s->seq_q * s->batch * s->q_token_stride,
                    .num_k = s->seq_k * s->batch * s->k_token_stride};
}

/* Three tensors, or three places in the first. */
typedef struct tensors {
    void *q, *k, *v;
} tensors;

static tensors place(const layout *l, void *q, void *k, void *v, size_t bytes)
{
    if (l->is_packed)
        return (tensors){q, (char *)q + l->k_offset * bytes, (char *)q + l->v_offset * bytes};
    return (tensors){q, k, v};
}

/* The gaps hold what they held: the poison that all results start as. */
static void check_gaps(const weft_attention_shape *s, const void *x, size_t tokens, size_t stride,
                       weft_dtype dtype)
{
    static const unsigned char poison[GAP * sizeof(float)] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
                                                              0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
    const size_t bytes = weft_dtype_bytes(dtype);
    for (size_t t = 0; t < tokens; t++)
        if (memcmp((const char *)x + ((t + 1) * stride - GAP) * bytes, poison, GAP * bytes))
            fail_msg("head_dim %zu: token %zu was written beyond its end", s->head_dim, t);
}

/* Compares gradients without the gaps, which are NaN: the reference's are 0. */
static void close_gradient(double *got, const double *expected, size_t tokens, size_t stride,
                           size_t gap, double tolerance, const char *what)
{
    for (size_t t = 0; t < tokens; t++)
        for (size_t i = stride - gap; i < stride; i++)
            got[t * stride + i] = 0;
    probe_close(got, expected, tokens * stride, tolerance, what);
}

typedef struct attention_case {
    weft_attention_shape s;
    bool is_packed;
    size_t value_dim;         /* 0: head_dim */
    int num_pieces;           /* that the keys come in; 0: as a whole */
    size_t document;          /* tokens; 0: one for all */
    double spread;            /* of queries and keys; 0: 1 */
    bool is_large;            /* too much for the emulation of a GPU */
    weft_attention_variant v; /* without sinks */
    bool has_sinks;
} attention_case;

/* The variant with sinks, and these as fp64. */
static weft_attention_variant variant_of(const attention_case *c, weft_dtype dtype,
                                         const double **sinks)
{
    weft_attention_variant v = c->v;
    if (c->has_sinks)
        v.sinks = probe_random(c->s.heads, dtype, 2, 9);
    *sinks = v.sinks ? probe_read(v.sinks, c->s.heads, dtype) : NULL;
    return v;
}

/* The sinks' gradient added to two, or written. */
static void check_sinks(const attention_case *c, const operands *o, weft_dtype dtype,
                        const weft_attention_variant *v, const float *lse, const float *delta,
                        double *expected, double tolerance, const char *what)
{
    for (int overwrite = 0; overwrite < 2 && c->has_sinks; overwrite++) {
        float *dsinks = probe_constant(o->s.heads, 2.0f);
        PROBE_RUN(attention_sinks, .seq = o->s.seq_q, .batch = o->s.batch, .heads = o->s.heads,
                  .dtype = dtype, .sinks = v->sinks, .lse = lse, .delta = delta, .dsinks = dsinks,
                  .overwrite = overwrite);
        for (size_t h = 0; h < o->s.heads; h++)
            expected[h] += overwrite ? -2 : 2;
        probe_close(probe_read(dsinks, o->s.heads, WEFT_F32), expected, o->s.heads, tolerance,
                    what);
    }
}

static double *out_of_loss, *lse_of_loss;

static double attention_loss(const void *context)
{
    const operands *o = context;
    reference_forward(o, out_of_loss, lse_of_loss);
    return sum_of_products(out_of_loss, o->dout,
                           o->s.seq_q * o->s.batch * o->s.heads * o->value_dim);
}

static size_t value_dim_of(const attention_case *c)
{
    return c->value_dim ? c->value_dim : c->s.head_dim;
}

/* Position of the first token of each query's document; other samples' begin elsewhere. */
static int32_t *starts_of_documents(const attention_case *c)
{
    const weft_attention_shape *s = &c->s;
    if (c->document == 0)
        return NULL;
    int32_t *out = probe_alloc(s->seq_q * s->batch * sizeof *out);
    for (size_t i = 0; i < s->seq_q; i++)
        for (size_t b = 0; b < s->batch; b++) {
            const size_t shift = 5 * b % c->document, at = s->first_query + i + shift;
            const size_t start = at / c->document * c->document;
            out[i * s->batch + b] = (int32_t)(start > shift ? start - shift : 0);
        }
    return out;
}

/* `count` zeros. */
static float *zeros(size_t count)
{
    return probe_constant(count, 0.0f);
}

/* Rows of x, `from` apart, as rows `to` apart. */
static double *spread_rows(const double *x, size_t rows, size_t width, size_t from, size_t to)
{
    double *out = probe_doubles(rows * to);
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < width; i++)
            out[r * to + i] = x[r * from + i];
    return out;
}

/* The keys come in pieces, those in the middle first; the results are those of the whole. */
static void check_pieces(const attention_case *c, weft_dtype dtype)
{
    probe_start(NULL);
    weft_attention_shape s = c->s;
    const size_t value = value_dim_of(c);
    const layout l = lay_out(&s, value, false);
    const size_t bytes = weft_dtype_bytes(dtype), tokens_q = s.seq_q * s.batch;
    const size_t num_out = tokens_q * s.heads * value, num_lse = tokens_q * s.heads;
    const size_t tokens_k = s.seq_k * s.batch, wide_q = s.q_token_stride + 2;
    const size_t wide_k = s.k_token_stride + 4, num = (size_t)c->num_pieces;
    const char *const q = probe_random(l.num_q, dtype, 1, 1);
    const char *const k = probe_random(l.num_k, dtype, 1, 2);
    const char *const v = probe_random(l.num_k, dtype, 1, 3);
    void *dout = probe_random(num_out, dtype, 1, 4), *rounded = probe_alloc(num_out * bytes);
    const int32_t *first_seen = starts_of_documents(c);
    float *out = probe_alloc(num_out * sizeof *out), *lse = probe_alloc(num_lse * sizeof *lse);
    float *delta = probe_alloc(num_lse * sizeof *delta), *dq = zeros(tokens_q * wide_q);
    float *dk = zeros(tokens_k * wide_k), *dv = zeros(tokens_k * wide_k);
    const double *sinks;
    const weft_attention_variant variant = variant_of(c, dtype, &sinks);
    for (int backward = 0; backward < 2; backward++) {
        for (size_t n = 0; n < num; n++) {
            const size_t piece = (n + num / 2) % num;
            const size_t first = piece * s.seq_k / num, end = (piece + 1) * s.seq_k / num;
            const size_t at = first * s.batch * s.k_token_stride * bytes;
            const size_t to = first * s.batch * wide_k;
            weft_attention_shape part = s;
            part.seq_k = end - first;
            if (backward)
                PROBE_RUN(attention_backward, .shape = part, .dtype = dtype, .q = q, .k = k + at,
                          .v = v + at, .out = rounded, .dout = dout, .lse = lse, .delta = delta,
                          .dq = dq, .dk = dk + to, .dv = dv + to, .first_seen = first_seen,
                          .first_key = first, .value_dim = c->value_dim, .dq_token_stride = wide_q,
                          .dq_group_stride = s.q_group_stride, .dk_token_stride = wide_k,
                          .dk_group_stride = s.k_group_stride, .variant = variant,
                          .piece = n == 0 ? WEFT_ATTENTION_FIRST : WEFT_ATTENTION_NEXT);
            else
                PROBE_RUN(attention_forward, .shape = part, .dtype = dtype, .q = q, .k = k + at,
                          .v = v + at, .out = out, .lse = lse, .first_seen = first_seen,
                          .first_key = first, .value_dim = c->value_dim, .variant = variant,
                          .piece = n == 0 ? WEFT_ATTENTION_FIRST : WEFT_ATTENTION_NEXT);
        }
        if (!backward)
            PROBE_RUN(cast, .count = num_out, .from_dtype = WEFT_F32, .to_dtype = dtype,
                      .from = out, .to = rounded);
    }
    char what[128];
    snprintf(what, sizeof what, "%zu x %zu in %d pieces, documents of %zu, heads %zu / %zu, %s",
             s.seq_q, s.seq_k, c->num_pieces, c->document, s.heads, s.groups,
             weft_dtype_text(dtype));
    const operands o = {s,
                        probe_read(q, l.num_q, dtype),
                        probe_read(k, l.num_k, dtype),
                        probe_read(v, l.num_k, dtype),
                        probe_read(dout, num_out, dtype),
                        first_seen,
                        value,
                        variant,
                        sinks};
    double *expected = probe_doubles(num_out), *expected_lse = probe_doubles(num_lse);
    double *eq = probe_doubles(l.num_q), *ek = probe_doubles(l.num_k), *ev = probe_doubles(l.num_k);
    double *esinks = probe_doubles(s.heads);
    reference_forward(&o, expected, expected_lse);
    reference_backward(&o, eq, ek, ev, sinks ? esinks : NULL);
    const double tolerance = probe_tolerance(dtype, 5e-6);
    check_sinks(c, &o, dtype, &variant, lse, delta, esinks, tolerance, what);
    probe_close(probe_read(out, num_out, WEFT_F32), expected, num_out, tolerance, what);
    probe_close(probe_read(lse, num_lse, WEFT_F32), expected_lse, num_lse,
                probe_tolerance(WEFT_F32, 5e-6), what);
    probe_close(probe_read(dq, tokens_q * wide_q, WEFT_F32),
                spread_rows(eq, tokens_q, s.q_token_stride - GAP, s.q_token_stride, wide_q),
                tokens_q * wide_q, tolerance, what);
    const size_t width = s.k_token_stride - GAP;
    probe_close(probe_read(dk, tokens_k * wide_k, WEFT_F32),
                spread_rows(ek, tokens_k, width, s.k_token_stride, wide_k), tokens_k * wide_k,
                tolerance, what);
    probe_close(probe_read(dv, tokens_k * wide_k, WEFT_F32),
                spread_rows(ev, tokens_k, width, s.k_token_stride, wide_k), tokens_k * wide_k,
                tolerance, what);
}

static void check(const attention_case *c, weft_dtype dtype, bool by_differences)
{
    probe_start(NULL);
    weft_attention_shape s = c->s;
    const size_t value = value_dim_of(c);
    const layout l = lay_out(&s, value, c->is_packed);
    const size_t bytes = weft_dtype_bytes(dtype), tokens_q = s.seq_q * s.batch;
    const size_t tokens_k = s.seq_k * s.batch, num_out = tokens_q * s.heads * value;
    const size_t num_lse = tokens_q * s.heads;
    const double spread = c->spread > 0 ? c->spread : 1;
    char what[128];
    snprintf(what, sizeof what, "%zu x %zu, batch %zu, heads %zu / %zu of %zu, %s, %s", s.seq_q,
             s.seq_k, s.batch, s.heads, s.groups, s.head_dim, s.causal ? "causal" : "full",
             weft_dtype_text(dtype));

    const tensors x =
        place(&l, probe_random(l.num_q, dtype, spread, 1), probe_random(l.num_k, dtype, spread, 2),
              probe_random(l.num_k, dtype, 1, 3), bytes);
    void *dout = probe_random(num_out, dtype, 1, 4), *out = probe_alloc(num_out * bytes);
    float *lse = probe_alloc(num_lse * sizeof *lse), *delta = probe_alloc(num_lse * sizeof *delta);
    void *parts[3] = {probe_alloc(l.num_q * bytes), probe_alloc(l.num_k * bytes),
                      probe_alloc(l.num_k * bytes)};
    const tensors dx = place(&l, parts[0], parts[1], parts[2], bytes);
    const int32_t *first_seen = starts_of_documents(c);
    const double *sinks;
    const weft_attention_variant variant = variant_of(c, dtype, &sinks);
    PROBE_RUN(attention_forward, .shape = s, .dtype = dtype, .q = x.q, .k = x.k, .v = x.v,
              .out = out, .lse = lse, .first_seen = first_seen, .value_dim = c->value_dim,
              .variant = variant);
    PROBE_RUN(attention_backward, .shape = s, .dtype = dtype, .q = x.q, .k = x.k, .v = x.v,
              .out = out, .dout = dout, .lse = lse, .delta = delta, .dq = dx.q, .dk = dx.k,
              .dv = dx.v, .first_seen = first_seen, .value_dim = c->value_dim, .variant = variant);

    double *q = probe_read(x.q, l.num_q, dtype), *dq = probe_doubles(l.num_q);
    double *k = q + l.k_offset, *v = q + l.v_offset, *dk = dq + l.k_offset, *dv = dq + l.v_offset;
    if (!l.is_packed) {
        k = probe_read(x.k, l.num_k, dtype);
        v = probe_read(x.v, l.num_k, dtype);
        dk = probe_doubles(l.num_k);
        dv = probe_doubles(l.num_k);
    }
    const operands o = {s,          q,     k,       v,    probe_read(dout, num_out, dtype),
                        first_seen, value, variant, sinks};
    double *esinks = probe_doubles(s.heads);
    double *expected = probe_doubles(num_out), *expected_lse = probe_doubles(num_lse);
    const double tolerance = probe_tolerance(dtype, spread > 1 ? 5e-5 : 5e-6);
    if (by_differences) {
        out_of_loss = expected;
        lse_of_loss = expected_lse;
        probe_gradient(attention_loss, &o, q, l.num_q, probe_read(dx.q, l.num_q, dtype), NULL,
                       tolerance, what);
        return;
    }
    reference_forward(&o, expected, expected_lse);
    reference_backward(&o, dq, dk, dv, sinks ? esinks : NULL);
    check_sinks(c, &o, dtype, &variant, lse, delta, esinks, tolerance, what);
    probe_close(probe_read(out, num_out, dtype), expected, num_out, tolerance, what);
    probe_close(probe_read(lse, num_lse, WEFT_F32), expected_lse, num_lse,
                probe_tolerance(WEFT_F32, 5e-6), what);
    close_gradient(probe_read(dx.q, l.num_q, dtype), dq, tokens_q, s.q_token_stride,
                   l.is_packed ? 0 : GAP, tolerance, what);
    if (l.is_packed)
        return;
    /* of one group, where the two differ in width */
    close_gradient(probe_read(dx.k, l.num_k, dtype), dk, tokens_k, s.k_token_stride,
                   GAP + s.k_group_stride - s.head_dim, tolerance, what);
    close_gradient(probe_read(dx.v, l.num_k, dtype), dv, tokens_k, s.k_token_stride,
                   GAP + s.k_group_stride - value, tolerance, what);
    check_gaps(&s, dx.q, tokens_q, s.q_token_stride, dtype);
    check_gaps(&s, dx.k, tokens_k, s.k_token_stride, dtype);
    check_gaps(&s, dx.v, tokens_k, s.k_token_stride, dtype);
}

/* Where a case would take minutes, or half a minute of the sanitizer's time. */
static bool is_left_out(const attention_case *c)
{
#ifdef WEFT_SANITIZED
    const weft_attention_shape *s = &c->s;
    if (s->seq_q * s->seq_k * s->heads * s->head_dim > 10000000)
        return true;
#endif
    return probe_is_emulated() && c->is_large;
}

static void check_all(const attention_case *cases, size_t num)
{
    for (size_t i = 0; i < num; i++)
        for (int d = 0; d < probe_num_dtypes() && !is_left_out(&cases[i]); d++)
            if (!probe_takes_case())
                continue;
            else if (cases[i].num_pieces > 0)
                check_pieces(&cases[i], probe_dtype(d));
            else
                check(&cases[i], probe_dtype(d), false);
}

#define CHECK_ALL(cases) check_all(cases, sizeof(cases) / sizeof(cases)[0])

#define SIZES(q, k, b, h, g, d)                                                                    \
    .seq_q = q, .seq_k = k, .batch = b, .heads = h, .groups = g, .head_dim = d

CASE(layers_layout_equals_fp64)
{
    static const attention_case cases[] = {
        {.s = {SIZES(1, 1, 1, 1, 1, 1), .causal = true}, .is_packed = true},
        {.s = {SIZES(72, 72, 2, 4, 4, 20), .causal = true}, .is_packed = true, .is_large = true},
        {.s = {SIZES(130, 130, 2, 6, 2, 16), .causal = true}, .is_packed = true, .is_large = true},
        {.s = {SIZES(97, 97, 1, 4, 1, 64), .causal = true}, .is_packed = true},
        {.s = {SIZES(40, 40, 3, 2, 2, 33), .causal = false}, .is_packed = true},
        {.s = {SIZES(300, 300, 1, 2, 2, 8), .causal = true}, .is_packed = true, .is_large = true},
    };
    CHECK_ALL(cases);
}

CASE(separate_tensors_equal_fp64)
{
    static const attention_case cases[] = {
        {.s = {SIZES(33, 150, 2, 2, 1, 24)}, .is_large = true},
        {.s = {SIZES(150, 33, 1, 3, 3, 65)}, .is_large = true},
        {.s = {SIZES(20, 140, 2, 4, 2, 16), .causal = true, .first_query = 120}, .is_large = true},
        /* keys that none sees */
        {.s = {SIZES(40, 200, 1, 2, 2, 12), .causal = true, .first_query = 17}},
        {.s = {SIZES(1, 251, 3, 4, 2, 40), .causal = true, .first_query = 250}, .is_large = true},
        {.s = {SIZES(5, 5, 2, 2, 2, 130), .causal = true}, .is_large = true},
        {.s = {SIZES(30, 30, 1, 2, 1, 16), .scale = 0.7f}},
        /* one key takes nearly all */
        {.s = {SIZES(64, 64, 1, 2, 2, 32), .causal = true}, .spread = 8},
    };
    CHECK_ALL(cases);
}

/* CUDA: rows are padded to 64, 128 or 256 numbers; blocks have up to 128 queries or keys and meet
 * tiles of 32 or 64. Packed ones are aligned to what is copied at once. */
CASE(lengths_around_tiles_equal_fp64)
{
    static const attention_case cases[] = {
        {.s = {SIZES(130, 130, 1, 1, 1, 64), .causal = true}, .is_packed = true},
        {.s = {SIZES(65, 65, 1, 2, 1, 80)}, .is_packed = true},
        {.s = {SIZES(129, 129, 1, 1, 1, 128), .causal = true}, .is_packed = true},
        {.s = {SIZES(66, 66, 1, 1, 1, 256), .causal = true}, .is_packed = true},
        {.s = {SIZES(5, 33, 1, 1, 1, 130)}},
        {.s = {SIZES(20, 140, 1, 2, 1, 96), .causal = true, .first_query = 120}},
        {.s = {SIZES(150, 31, 1, 1, 1, 65)}},
        {.s = {SIZES(64, 128, 2, 1, 1, 16), .causal = true, .first_query = 61}},
        /* more tiles than two, of several heads a group */
        {.s = {SIZES(520, 520, 1, 4, 2, 64), .causal = true}, .is_packed = true, .is_large = true},
        {.s = {SIZES(300, 400, 1, 4, 2, 128)}, .is_large = true},
        {.s = {SIZES(200, 330, 1, 3, 1, 192), .causal = true, .first_query = 130},
         .is_large = true},
    };
    CHECK_ALL(cases);
}

/* Blocks are of 128 queries and 108 or 112 keys; panels of 8, 16 or 32 queries. */
CASE(lengths_around_blocks_equal_fp64)
{
    if (probe_is_emulated())
        skip();
    static const size_t queries[] = {7, 8, 9, 15, 17, 31, 33, 127, 128, 129, 257};
    static const size_t keys[] = {107, 108, 109, 111, 112, 113, 217, 225};
    for (size_t i = 0; i < sizeof queries / sizeof queries[0]; i++)
        for (size_t j = 0; j < sizeof keys / sizeof keys[0]; j++) {
            attention_case c = {.s = {SIZES(queries[i], keys[j], 1, 2, 1, 5)}};
            check(&c, WEFT_F32, false);
            c.s.causal = true;
            c.s.first_query = keys[j] > queries[i] ? keys[j] - queries[i] : 0;
            check(&c, WEFT_F32, false);
        }
}

CASE(dropout_equals_its_definition)
{
    static const attention_case cases[] = {
        {.s = {SIZES(72, 72, 2, 4, 2, 20), .causal = true, .dropout = 0.1f, .seed = 5, .stream = 9,
               .total_heads = 4, .total_seq = 72},
         .is_packed = true,
         .is_large = true},
        {.s = {SIZES(130, 130, 1, 2, 2, 16), .causal = true, .dropout = 0.5f,
               .seed = UINT64_C(1) << 40, .stream = UINT64_C(3) << 50, .first_sample = 123456789,
               .first_head = 2, .total_heads = 7, .total_seq = 131},
         .is_packed = true,
         .is_large = true},
        {.s = {SIZES(37, 203, 2, 2, 1, 24), .first_query = 150, .dropout = 0.25f, .seed = 1,
               .first_sample = 3, .first_head = 1, .total_heads = 3, .total_seq = 203},
         .is_large = true},
        {.s = {SIZES(70, 70, 1, 2, 1, 24), .causal = true, .dropout = 0.1f, .seed = 5,
               .stream = UINT64_C(3) << 50, .first_sample = 123456789, .first_head = 2,
               .total_heads = 7, .total_seq = 72},
         .is_packed = true},
        {.s = {SIZES(21, 70, 1, 1, 1, 5), .first_query = 50, .dropout = 0.25f,
               .seed = UINT64_C(1) << 40, .stream = 9, .first_sample = 3, .first_head = 1,
               .total_heads = 3, .total_seq = 71}},
    };
    CHECK_ALL(cases);
}

CASE(documents_are_apart)
{
    static const attention_case cases[] = {
        {.s = {SIZES(40, 40, 2, 2, 1, 16), .causal = true}, .is_packed = true, .document = 9},
        {.s = {SIZES(300, 300, 2, 2, 2, 20), .causal = true}, .document = 130, .is_large = true},
        {.s = {SIZES(260, 260, 1, 4, 2, 64), .causal = true}, .document = 2, .is_large = true},
        {.s = {SIZES(70, 200, 1, 2, 1, 24), .causal = true, .first_query = 130}, .document = 64},
    };
    CHECK_ALL(cases);
}

CASE(pieces_make_the_whole)
{
    static const attention_case cases[] = {
        {.s = {SIZES(64, 64, 2, 4, 2, 16), .causal = true}, .num_pieces = 1},
        {.s = {SIZES(40, 120, 2, 2, 1, 16), .causal = true, .first_query = 40}, .num_pieces = 3},
        {.s = {SIZES(33, 90, 1, 2, 2, 65)}, .num_pieces = 2},
        {.s = {SIZES(300, 600, 1, 2, 1, 20), .causal = true, .first_query = 250},
         .num_pieces = 4,
         .is_large = true},
        {.s = {SIZES(300, 600, 2, 2, 1, 20), .causal = true, .first_query = 250},
         .num_pieces = 4,
         .document = 170,
         .is_large = true},
        {.s = {SIZES(96, 96, 2, 2, 1, 64), .causal = true}, .num_pieces = 4, .document = 30},
        {.s = {SIZES(72, 72, 2, 4, 2, 20), .causal = true, .dropout = 0.1f, .seed = 5, .stream = 9,
               .total_heads = 4, .total_seq = 72},
         .num_pieces = 3},
    };
    CHECK_ALL(cases);
}

/* CUDA pads values apart from queries only where they are far shorter. */
CASE(values_have_their_own_width)
{
    static const attention_case cases[] = {
        {.s = {SIZES(40, 40, 2, 3, 3, 24), .causal = true}, .is_packed = true, .value_dim = 16},
        {.s = {SIZES(40, 40, 2, 4, 2, 12), .causal = true}, .is_packed = true, .value_dim = 40},
        {.s = {SIZES(37, 70, 1, 2, 1, 20)}, .value_dim = 3},
        {.s = {SIZES(66, 66, 1, 2, 2, 192), .causal = true}, .is_packed = true, .value_dim = 128},
        {.s = {SIZES(21, 21, 1, 1, 1, 65), .causal = true}, .value_dim = 140},
        {.s = {SIZES(300, 300, 1, 2, 2, 40), .causal = true},
         .is_packed = true,
         .value_dim = 72,
         .is_large = true},
        {.s = {SIZES(48, 96, 1, 2, 2, 24), .causal = true, .first_query = 48},
         .num_pieces = 3,
         .value_dim = 16,
         .document = 30},
        {.s = {SIZES(40, 80, 1, 1, 1, 136), .causal = true, .first_query = 40},
         .num_pieces = 2,
         .value_dim = 56},
        {.s = {SIZES(35, 35, 1, 3, 3, 12), .causal = true, .dropout = 0.2f, .seed = 7,
               .total_heads = 3, .total_seq = 35},
         .is_packed = true,
         .value_dim = 8},
        {.s = {SIZES(72, 72, 1, 4, 2, 24), .causal = true},
         .is_packed = true,
         .value_dim = 40,
         .v = {.window = 30, .softcap = 1},
         .has_sinks = true},
        {.s = {SIZES(96, 96, 1, 2, 1, 40), .causal = true},
         .num_pieces = 3,
         .value_dim = 20,
         .v.window = 40,
         .has_sinks = true},
    };
    CHECK_ALL(cases);
}

/* Windows, chunks, caps and sinks, alone and together. */
CASE(variants_equal_fp64)
{
    static const attention_case cases[] = {
        {.s = {SIZES(72, 72, 2, 4, 2, 20), .causal = true}, .is_packed = true, .v.window = 1},
        {.s = {SIZES(72, 72, 1, 2, 2, 20), .causal = true}, .v.window = 7},
        {.s = {SIZES(40, 40, 1, 2, 1, 24), .causal = true}, .v.window = 40},
        {.s = {SIZES(300, 300, 2, 4, 2, 64), .causal = true}, .v.window = 64, .is_large = true},
        {.s = {SIZES(500, 500, 1, 2, 1, 16), .causal = true}, .v.window = 170, .is_large = true},
        {.s = {SIZES(100, 100, 1, 2, 1, 16), .causal = true}, .v.window = 33, .document = 50},
        {.s = {SIZES(72, 72, 2, 4, 2, 20), .causal = true}, .is_packed = true, .v.chunk = 16},
        {.s = {SIZES(300, 300, 1, 2, 1, 65), .causal = true}, .v.chunk = 90, .is_large = true},
        {.s = {SIZES(20, 140, 1, 2, 1, 96), .causal = true, .first_query = 120}, .v.window = 50},
        {.s = {SIZES(20, 140, 1, 2, 1, 96), .causal = true, .first_query = 120}, .v.chunk = 130},
        {.s = {SIZES(72, 72, 1, 2, 1, 16), .causal = true, .dropout = 0.1f, .seed = 5, .stream = 9,
               .total_heads = 2, .total_seq = 72},
         .v.window = 30},
        {.s = {SIZES(72, 72, 2, 4, 2, 20), .causal = true}, .is_packed = true, .v.softcap = 0.5f},
        {.s = {SIZES(33, 90, 1, 2, 2, 65)}, .v.softcap = 2, .has_sinks = true},
        {.s = {SIZES(72, 72, 2, 4, 2, 20), .causal = true}, .is_packed = true, .has_sinks = true},
        {.s = {SIZES(130, 130, 1, 4, 1, 64), .causal = true},
         .v = {.window = 32, .softcap = 1},
         .has_sinks = true,
         .is_large = true},
        {.s = {SIZES(64, 64, 1, 2, 1, 16), .causal = true, .dropout = 0.1f, .seed = 5, .stream = 9,
               .total_heads = 2, .total_seq = 64},
         .has_sinks = true},
        {.s = {SIZES(96, 96, 2, 2, 1, 64), .causal = true}, .num_pieces = 4, .v.window = 30},
        {.s = {SIZES(96, 96, 1, 2, 1, 20), .causal = true}, .num_pieces = 3, .v.chunk = 25},
        {.s = {SIZES(72, 72, 2, 4, 2, 20), .causal = true},
         .num_pieces = 3,
         .v = {.window = 40, .softcap = 1},
         .has_sinks = true},
        {.s = {SIZES(300, 600, 1, 2, 1, 20), .causal = true, .first_query = 250},
         .num_pieces = 4,
         .v.window = 100,
         .has_sinks = true,
         .is_large = true},
    };
    CHECK_ALL(cases);
}

CASE(gradients_equal_differences)
{
    static const attention_case cases[] = {
        {.s = {SIZES(9, 9, 2, 4, 2, 6), .causal = true}, .is_packed = true},
        {.s = {SIZES(35, 35, 1, 3, 1, 5), .causal = true, .dropout = 0.2f, .seed = 7,
               .total_heads = 3, .total_seq = 35},
         .is_packed = true},
        {.s = {SIZES(12, 12, 1, 2, 2, 20)}, .is_packed = true},
        {.s = {SIZES(12, 12, 1, 2, 2, 20), .causal = true},
         .is_packed = true,
         .v = {.window = 5, .softcap = 1},
         .has_sinks = true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        check(&cases[i], WEFT_F32, true);
}

/* A head's results do not depend on the heads beside it, which other ranks may hold. */
CASE(heads_split_over_ranks_agree)
{
    enum { SEQ = 70, HEADS = 4, DIM = 16, NUM = SEQ * HEADS * DIM };
    weft_attention_shape s = {.seq_q = SEQ,
                              .seq_k = SEQ,
                              .batch = 1,
                              .heads = HEADS,
                              .groups = HEADS,
                              .head_dim = DIM,
                              .q_token_stride = HEADS * DIM,
                              .k_token_stride = HEADS * DIM,
                              .q_group_stride = DIM,
                              .k_group_stride = DIM,
                              .causal = true,
                              .dropout = 0.3f,
                              .seed = 3,
                              .total_heads = HEADS,
                              .total_seq = SEQ};
    float *q = probe_random(NUM, WEFT_F32, 1, 1), *k = probe_random(NUM, WEFT_F32, 1, 2);
    float *v = probe_random(NUM, WEFT_F32, 1, 3), *lse = probe_alloc(SEQ * HEADS * sizeof *lse);
    float *whole = probe_alloc(NUM * sizeof *whole), *part = probe_alloc(NUM / 4 * sizeof *part);
    float *part_lse = probe_alloc(SEQ * sizeof *part_lse);
    PROBE_RUN(attention_forward, .shape = s, .q = q, .k = k, .v = v, .out = whole, .lse = lse);
    s.heads = s.groups = 1;
    for (size_t h = 0; h < HEADS; h++) {
        s.first_head = h;
        PROBE_RUN(attention_forward, .shape = s, .q = q + h * DIM, .k = k + h * DIM,
                  .v = v + h * DIM, .out = part, .lse = part_lse);
        for (size_t i = 0; i < SEQ; i++)
            assert_memory_equal(part + i * DIM, whole + (i * HEADS + h) * DIM, DIM * sizeof *part);
        assert_memory_equal(part_lse, lse + h * SEQ, SEQ * sizeof *lse);
    }
}

CASE(no_queries_make_no_gradient)
{
    weft_attention_shape s = {.seq_k = 5,
                              .batch = 2,
                              .heads = 2,
                              .groups = 1,
                              .head_dim = 4,
                              .q_token_stride = 8,
                              .k_token_stride = 4,
                              .q_group_stride = 8,
                              .k_group_stride = 4,
                              .causal = true};
    float *x = probe_random(40, WEFT_F32, 1, 1), *dk = probe_alloc(40 * sizeof *dk);
    float *dv = probe_alloc(40 * sizeof *dv);
    PROBE_RUN(attention_forward, .shape = s, .q = x, .k = x, .v = x, .out = x, .lse = x);
    PROBE_RUN(attention_backward, .shape = s, .q = x, .k = x, .v = x, .out = x, .dout = x, .lse = x,
              .delta = x, .dq = x, .dk = dk, .dv = dv);
    for (size_t i = 0; i < 40; i++)
        assert_true(dk[i] == 0 && dv[i] == 0);
    s.batch = 0;
    PROBE_RUN(attention_backward, .shape = s);
}

/* A query counts its own key half. */
CASE(flops_count_what_a_query_sees)
{
    static const struct {
        size_t seq_q, seq_k, first_query, first_key, window, chunk;
    } cases[] = {{64, 64, 0, 0, 0, 0},   {64, 64, 0, 0, 10, 0},  {64, 64, 0, 0, 100, 0},
                 {64, 64, 0, 0, 0, 10},  {20, 64, 44, 0, 30, 0}, {20, 30, 44, 20, 30, 0},
                 {20, 64, 44, 0, 0, 24}, {20, 30, 44, 20, 0, 24}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const weft_attention_forward_args a = {
            .shape = {SIZES(cases[c].seq_q, cases[c].seq_k, 1, 1, 1, 1), .causal = true,
                      .first_query = cases[c].first_query},
            .first_key = cases[c].first_key,
            .variant = {.window = cases[c].window, .chunk = cases[c].chunk}};
        const operands o = {.s = {.causal = true, .first_query = cases[c].first_query},
                            .variant = a.variant};
        double pairs = 0;
        for (size_t i = 0; i < cases[c].seq_q; i++)
            for (size_t j = cases[c].first_key; j < cases[c].first_key + cases[c].seq_k; j++)
                pairs += is_seen(&o, 0, i, j);
        const double counted = weft_attention_forward_args_flops(&a) / 4;
        if (fabs(pairs - counted) > (double)cases[c].seq_q / 2)
            fail_msg("case %zu: %g pairs, counted %g", c, pairs, counted);
    }
}

CASE(scratch_is_kept_and_grows)
{
    weft_scratch a = weft_scratch_take(1000, 100), b = weft_scratch_take(1000, 100);
    assert_non_null(a.memory);
    assert_non_null(b.memory);
    assert_int_not_equal(a.slot, b.slot);
    assert_int_equal((uintptr_t)a.memory % 4096, 0);
    weft_scratch_give(a);
    weft_scratch again = weft_scratch_take(1000, 4096);
    assert_ptr_equal(again.memory, a.memory);
    weft_scratch_give(again);
    a = weft_scratch_take(1000, 1 << 20);
    assert_int_equal(a.slot, again.slot);
    memset(a.memory, 1, 1 << 20);
    weft_scratch_give(a);
    weft_scratch_give(b);
}
