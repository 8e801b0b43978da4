/* Norms of heads in packed rows against fp64 and finite differences. */
#include "probe.h"

#include <math.h>

typedef struct heads_case {
    weft_norm_kind kind;
    weft_heads_shape shape;
    bool together;
    size_t count, weights; /* numbers of x; of weight */
    double *x, *weight, *bias, *dy, *y;
} heads_case;

static const double epsilon = (double)1e-5f;

static size_t place(const heads_case *h, size_t token, size_t head, size_t c)
{
    const weft_heads_shape *s = &h->shape;
    return token * s->token_stride + head / s->heads * s->group_stride +
           head % s->heads * s->head_dim + c;
}

static size_t num_heads(const heads_case *h)
{
    return h->shape.groups * h->shape.heads;
}

/* The norm of heads [first, end) of a token as one row. */
static void normalise(const heads_case *h, size_t token, size_t first, size_t end)
{
    const size_t dim = h->shape.head_dim, num = (end - first) * dim;
    double mean = 0, square = 0;
    for (size_t i = 0; i < num && h->kind == WEFT_NORM_LAYER; i++)
        mean += h->x[place(h, token, first + i / dim, i % dim)] / (double)num;
    for (size_t i = 0; i < num; i++)
        square += pow(h->x[place(h, token, first + i / dim, i % dim)] - mean, 2);
    for (size_t i = 0; i < num; i++) {
        const size_t at = place(h, token, first + i / dim, i % dim);
        h->y[at] = (h->x[at] - mean) / sqrt(square / (double)num + epsilon) *
                       (h->weight[i] + (h->kind == WEFT_NORM_RMS ? 1 : 0)) +
                   (h->bias ? h->bias[i] : 0);
    }
}

static void forward(const heads_case *h)
{
    for (size_t t = 0; t < h->shape.tokens; t++) {
        if (h->together)
            normalise(h, t, 0, num_heads(h));
        for (size_t head = 0; head < num_heads(h) && !h->together; head++)
            normalise(h, t, head, head + 1);
    }
}

static double loss(const void *context)
{
    const heads_case *h = context;
    double sum = 0;
    forward(h);
    for (size_t t = 0; t < h->shape.tokens; t++)
        for (size_t i = 0; i < num_heads(h) * h->shape.head_dim; i++) {
            const size_t at = place(h, t, i / h->shape.head_dim, i % h->shape.head_dim);
            sum += h->y[at] * h->dy[at];
        }
    return sum;
}

static void check(heads_case h, weft_dtype dtype, bool overwrite)
{
    if (!probe_takes_case())
        return;
    probe_start(NULL);
    const weft_heads_shape *s = &h.shape;
    h.count = s->tokens * s->token_stride;
    h.weights = (h.together ? num_heads(&h) : 1) * s->head_dim;
    const size_t whole = num_heads(&h) * s->head_dim;
    const float offset = h.kind == WEFT_NORM_RMS ? 1.0f : 0.0f; /* 1 + its weight */
    void *x = probe_random(h.count, dtype, 2.0, 1), *dx = probe_random(h.count, dtype, 1.0, 2);
    void *weight = probe_random(h.weights, dtype, 1.0, 3);
    void *bias = h.kind == WEFT_NORM_LAYER ? probe_random(h.weights, dtype, 1.0, 4) : NULL;
    void *y = probe_random(h.count, dtype, 1.0, 5);
    float *dweight = overwrite ? probe_alloc(h.weights * sizeof *dweight)
                               : probe_random(h.weights, WEFT_F32, 1.0, 6);
    float *dbias = !bias       ? NULL
                   : overwrite ? probe_alloc(h.weights * sizeof *dbias)
                               : probe_random(h.weights, WEFT_F32, 1.0, 7);
    float *sums = h.together ? probe_alloc((s->tokens + 1) * sizeof *sums) : NULL;
    float *along = h.together ? probe_alloc((s->tokens + 1) * sizeof *along) : NULL;
    h.x = probe_read(x, h.count, dtype);
    h.dy = probe_read(dx, h.count, dtype);
    h.y = probe_read(y, h.count, dtype); /* what lies between stays */
    h.weight = probe_read(weight, h.weights, dtype);
    h.bias = bias ? probe_read(bias, h.weights, dtype) : NULL;
    if (h.together) {
        PROBE_RUN(heads_sums, .shape = *s, .dtype = dtype, .a = x, .b = x, .sums = sums);
        PROBE_RUN(heads_sums, .shape = *s, .dtype = dtype, .a = dx, .b = x, .weight = weight,
                  .sums = along, .weight_offset = offset);
    }
    PROBE_RUN(heads_norm_forward, .kind = h.kind, .shape = *s, .dtype = dtype, .x = x,
              .weight = weight, .bias = bias, .y = y, .sums = sums, .whole = whole,
              .epsilon = 1e-5f, .weight_offset = offset);
    forward(&h);
    probe_close(probe_read(y, h.count, dtype), h.y, h.count, probe_tolerance(dtype, 3e-6), "y");
    double *before = overwrite ? NULL : probe_read(dweight, h.weights, WEFT_F32);
    double *bias_before = overwrite || !bias ? NULL : probe_read(dbias, h.weights, WEFT_F32);
    PROBE_RUN(heads_norm_backward, .kind = h.kind, .shape = *s, .dtype = dtype, .x = x,
              .weight = weight, .dx = dx, .sums = sums, .along = along, .whole = whole,
              .epsilon = 1e-5f, .dweight = dweight, .dbias = dbias, .overwrite = overwrite,
              .weight_offset = offset);
    double *gradient = probe_read(dx, h.count, dtype), *wanted = probe_read(dx, h.count, dtype);
    memcpy(wanted, h.dy, h.count * sizeof *wanted);
    for (size_t t = 0; t < s->tokens; t++)
        for (size_t i = 0; i < whole; i++)
            wanted[place(&h, t, i / s->head_dim, i % s->head_dim)] = NAN;
    for (size_t i = 0; i < h.count; i++) { /* between the heads the loss is flat */
        if (!isnan(wanted[i])) {
            assert_true(gradient[i] == wanted[i]);
            gradient[i] = 0;
        }
    }
    if (s->tokens == 0)
        return;
    probe_gradient(loss, &h, h.x, h.count, gradient, NULL, probe_tolerance(dtype, 1e-5), "dx");
    probe_gradient(loss, &h, h.weight, h.weights, probe_read(dweight, h.weights, WEFT_F32), before,
                   1e-5, "dweight");
    if (bias)
        probe_gradient(loss, &h, h.bias, h.weights, probe_read(dbias, h.weights, WEFT_F32),
                       bias_before, 1e-5, "dbias");
}

CASE(heads_equal_fp64_and_finite_differences)
{
    static const weft_heads_shape shapes[] = {{3, 1, 1, 5, 7, 0},        {2, 2, 3, 8, 90, 40},
                                              {70, 4, 2, 16, 260, 64},   {37, 2, 1, 64, 512, 192},
                                              {5, 1, 6, 96, 800, 800},   {9, 8, 1, 128, 3072, 384},
                                              {3, 2, 4, 256, 3072, 1536}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        for (int form = 0; form < 6 * probe_num_dtypes(); form++)
            check((heads_case){.kind = form % 3 == 0 ? WEFT_NORM_LAYER : WEFT_NORM_RMS,
                               .together = form % 3 == 2,
                               .shape = shapes[i]},
                  probe_dtype(form / 6), form / 3 % 2);
    }
}

CASE(no_tokens_clear)
{
    float *weight = probe_constant(8, 1.0f), *dweight = probe_alloc(8 * sizeof *dweight);
    const weft_heads_shape shape = {0, 1, 1, 8, 8, 8};
    PROBE_RUN(heads_norm_backward, .kind = WEFT_NORM_RMS, .shape = shape, .weight = weight,
              .dweight = dweight, .overwrite = true);
    for (int c = 0; c < 8; c++)
        assert_true(dweight[c] == 0.0f);
}

CASE(sums_are_rms_norms)
{
    float *x = probe_constant(8, 1.0f);
    const weft_heads_norm_forward_args args = {.struct_bytes = sizeof args,
                                               .kind = WEFT_NORM_LAYER,
                                               .shape = {1, 1, 1, 8, 8, 8},
                                               .x = x,
                                               .weight = x,
                                               .y = x,
                                               .sums = x,
                                               .whole = 8};
    assert_int_equal(weft_heads_norm_forward(probe_lane(0), &args), WEFT_INTERNAL);
}

static void share(const weft_heads_shape *s, weft_dtype dtype, bool inverse)
{
    probe_start(NULL);
    const size_t num = s->tokens * s->token_stride, dim = s->head_dim;
    void *one = probe_random(s->tokens * dim, dtype, 1, 1), *heads = probe_random(num, dtype, 1, 2);
    double *from = probe_read(one, s->tokens * dim, dtype), *all = probe_read(heads, num, dtype);
    PROBE_RUN(heads_share, .shape = *s, .dtype = dtype, .one = one, .heads = heads,
              .inverse = inverse);
    for (size_t i = 0; i < s->tokens * dim; i++) {
        double sum = 0;
        for (size_t h = 0; h < s->groups * s->heads; h++) {
            double *at = all + i / dim * s->token_stride + h / s->heads * s->group_stride +
                         h % s->heads * dim + i % dim;
            sum += *at;
            *at = inverse ? *at : from[i];
        }
        from[i] = inverse ? sum : from[i];
    }
    probe_close(probe_read(one, s->tokens * dim, dtype), from, s->tokens * dim,
                probe_tolerance(dtype, 1e-6), "one");
    probe_close(probe_read(heads, num, dtype), all, num, 0, "heads");
}

CASE(heads_share_one)
{
    static const weft_heads_shape shapes[] = {
        {3, 1, 1, 5, 7, 0}, {70, 4, 2, 16, 260, 64}, {37, 8, 1, 64, 1600, 192}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int form = 0; form < 2 * probe_num_dtypes(); form++)
            share(&shapes[i], probe_dtype(form / 2), form % 2);
}
