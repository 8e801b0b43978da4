/* Activations and rotary positions against fp64 and finite differences. */
#include "probe.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct activation_case {
    weft_activation_kind kind;
    size_t rows, cols;
    double *x, *dy;
    double limit, offset; /* of gated ones; 0: none */
} activation_case;

/* Of a gated one what the gate gives. */
static double activate(double x, weft_activation_kind kind)
{
    const double slope = sqrt(2.0 / 3.14159265358979323846);
    switch (kind) {
    case WEFT_ACTIVATION_GELU:
    case WEFT_ACTIVATION_GEGLU:
        return 0.5 * x * (1.0 + tanh(slope * (x + 0.044715 * x * x * x)));
    case WEFT_ACTIVATION_RELU:
        return fmax(x, 0.0);
    case WEFT_ACTIVATION_SWIGLU:
    case WEFT_ACTIVATION_SILU:
        return x / (1.0 + exp(-x));
    case WEFT_ACTIVATION_QUICK_GEGLU:
        return x / (1.0 + exp(-1.702 * x));
    case WEFT_ACTIVATION_CAP:
        break;
    }
    return (double)NAN;
}

/* Of the definition, whatever it is; where it has no kink within 1e-3. */
static double slope_of(double x, weft_activation_kind kind)
{
    const double step = 1e-3;
    return (activate(x + step, kind) - activate(x - step, kind)) / (2 * step);
}

/* Inputs of an output. */
static size_t width_of(weft_activation_kind kind)
{
    return weft_activation_is_gated(kind) ? 2 : 1;
}

static double output(const activation_case *a, size_t row, size_t col)
{
    if (width_of(a->kind) == 2) {
        const double *gate = a->x + 2 * row * a->cols, top = a->limit > 0 ? a->limit : INFINITY;
        const double up = fmax(fmin(gate[a->cols + col], top), -top);
        return activate(fmin(gate[col], top), a->kind) * (up + a->offset);
    }
    return activate(a->x[row * a->cols + col], a->kind);
}

static double activation_loss(const void *context)
{
    const activation_case *a = context;
    double loss = 0.0;
    for (size_t row = 0; row < a->rows; row++)
        for (size_t col = 0; col < a->cols; col++)
            loss += a->dy[row * a->cols + col] * output(a, row, col);
    return loss;
}

static const weft_activation_kind kinds[] = {WEFT_ACTIVATION_GELU,  WEFT_ACTIVATION_SWIGLU,
                                             WEFT_ACTIVATION_SILU,  WEFT_ACTIVATION_RELU,
                                             WEFT_ACTIVATION_GEGLU, WEFT_ACTIVATION_QUICK_GEGLU};
enum { NUM_KINDS = sizeof kinds / sizeof kinds[0] };

static void check_activation(weft_activation_kind kind, size_t rows, size_t cols, weft_dtype dtype,
                             bool in_place, float limit, float offset)
{
    if (!probe_takes_case())
        return;
    probe_start(NULL);
    const size_t count = rows * cols, width = width_of(kind);
    void *x = probe_random(width * count, dtype, 3.0, 1);
    void *dy = probe_random(count, dtype, 1.0, 2);
    void *y = probe_alloc(count * weft_dtype_bytes(dtype));
    void *dx = in_place ? x : probe_alloc(width * count * weft_dtype_bytes(dtype));
    activation_case a = {.kind = kind,
                         .rows = rows,
                         .cols = cols,
                         .x = probe_read(x, width * count, dtype),
                         .dy = probe_read(dy, count, dtype),
                         .limit = (double)limit,
                         .offset = (double)offset};
    PROBE_RUN(activation_forward, .kind = kind, .rows = rows, .cols = cols, .dtype = dtype, .x = x,
              .y = y, .limit = limit, .offset = offset);
    double *expected = probe_doubles(count);
    for (size_t i = 0; i < count; i++)
        expected[i] = output(&a, i / cols, i % cols);
    char what[64];
    snprintf(what, sizeof what, "activation %d %zux%zu %s", (int)kind, rows, cols,
             weft_dtype_text(dtype));
    probe_close(probe_read(y, count, dtype), expected, count, probe_tolerance(dtype, 1e-6), what);
    PROBE_RUN(activation_backward, .kind = kind, .rows = rows, .cols = cols, .dtype = dtype, .x = x,
              .dy = dy, .dx = dx, .limit = limit, .offset = offset);
    probe_gradient(activation_loss, &a, a.x, width * count, probe_read(dx, width * count, dtype),
                   NULL, probe_tolerance(dtype, 1e-5), what);
}

CASE(activations_equal_fp64_and_finite_differences)
{
    static const size_t sizes[][2] = {{1, 1}, {3, 5}, {7, 64}, {67, 515}};
    for (int k = 0; k < NUM_KINDS; k++)
        for (int s = 0; s < 4; s++)
            for (int form = 0; form < 2 * probe_num_dtypes(); form++)
                check_activation(kinds[k], sizes[s][0], sizes[s][1], probe_dtype(form / 2),
                                 form & 1, 0, 0);
}

CASE(gates_are_bounded_and_moved)
{
    for (int k = 0; k < NUM_KINDS; k++)
        for (int d = 0; d < probe_num_dtypes() && weft_activation_is_gated(kinds[k]); d++)
            check_activation(kinds[k], 7, 64, probe_dtype(d), d == 0, 1.5f, 1);
}

CASE(a_cap_is_a_scaled_tanh)
{
    enum { COUNT = 131 };
    for (int d = 0; d < probe_num_dtypes(); d++) {
        const weft_dtype dtype = probe_dtype(d);
        probe_start(NULL);
        void *x = probe_random(COUNT, dtype, 40.0, 1);
        double *expected = probe_read(x, COUNT, dtype);
        for (int i = 0; i < COUNT; i++)
            expected[i] = 30 * tanh(expected[i] / 30);
        PROBE_RUN(activation_forward, .kind = WEFT_ACTIVATION_CAP, .rows = 1, .cols = COUNT,
                  .dtype = dtype, .x = x, .y = x, .limit = 30);
        probe_close(probe_read(x, COUNT, dtype), expected, COUNT, probe_tolerance(dtype, 1e-6),
                    "cap");
    }
}

/* Where an exponential overflows or vanishes, values and slopes stay finite and are those of the
 * definition. A gated one has ups of 1, so that its gates alone count. */
CASE(extreme_inputs_have_the_definitions_slopes)
{
    static const float inputs[] = {-1e6f, -200.0f, -89.0f, -20.0f, 0.0f,
                                   20.0f, 89.0f,   200.0f, 1e6f};
    enum { COUNT = sizeof inputs / sizeof inputs[0] };
    for (int k = 0; k < NUM_KINDS; k++) {
        probe_start(NULL);
        float *x = probe_constant(2 * COUNT, 1.0f), *y = probe_alloc(sizeof inputs);
        float *dy = probe_constant(COUNT, 1.0f), *dx = probe_alloc(2 * sizeof inputs);
        memcpy(x, inputs, sizeof inputs);
        PROBE_RUN(activation_forward, .kind = kinds[k], .rows = 1, .cols = COUNT, .x = x, .y = y);
        PROBE_RUN(activation_backward, .kind = kinds[k], .rows = 1, .cols = COUNT, .x = x, .dy = dy,
                  .dx = dx);
        for (int i = 0; i < COUNT; i++) {
            const double expected = activate((double)x[i], kinds[k]);
            const double slope = slope_of((double)x[i], kinds[k]);
            if (!(fabs((double)y[i] - expected) <= 1e-6 * fabs(expected) + 1e-7))
                fail_msg("kind %d at %g is %g, expected %g", (int)kinds[k], (double)x[i],
                         (double)y[i], expected);
            if (x[i] != 0.0f && !(fabs((double)dx[i] - slope) <= 1e-6 * fabs(slope) + 1e-6))
                fail_msg("slope %d at %g is %g, expected %g", (int)kinds[k], (double)x[i],
                         (double)dx[i], slope);
        }
    }
}

typedef struct rope_case {
    size_t seq, batch, heads, head_dim, token_stride, head_stride, groups, group_stride;
    size_t rotary_dim, first_position;
    int numbering; /* 0: by first_position; by an index 1: of positions, 2: of tokens */
    const int32_t *index;
    double base, *x, *dy, *y;
    size_t count;
    bool interleaved;
    float magnitude;
    weft_rope_scaling scaling;
} rope_case;

/* As each paper's code writes it. */
static double scaled(const rope_case *r, size_t pair)
{
    const weft_rope_scaling *s = &r->scaling;
    const double plain = pow(r->base, -2.0 * (double)pair / (double)r->rotary_dim);
    if (s->factor == 0)
        return plain;
    if (s->by_turns) { /* Llama 3.1: begin and end are its high and low factor */
        const double wave = 2 * 3.14159265358979323846 / plain;
        const double smooth = (s->length / wave - s->end) / (s->begin - s->end);
        if (wave < s->length / s->begin)
            return plain;
        return wave > s->length / s->end ? plain / s->factor
                                         : (1 - smooth) * plain / s->factor + smooth * plain;
    }
    const double ramp = fmin(fmax(((double)pair - s->begin) / (s->end - s->begin), 0), 1);
    return plain / s->factor * ramp + plain * (1 - ramp);
}

static double position_of(const rope_case *r, size_t t)
{
    if (r->numbering == 0)
        return (double)(r->first_position + t / r->batch);
    return (double)r->index[r->numbering == 1 ? t / r->batch : t];
}

static void rope_forward(const rope_case *r)
{
    memcpy(r->y, r->x, r->count * sizeof *r->y);
    const size_t half = r->rotary_dim / 2;
    for (size_t t = 0; t < r->seq * r->batch; t++) {
        for (size_t h = 0; h < r->heads * (r->groups ? r->groups : 1); h++) {
            const size_t head = t * r->token_stride + h / r->heads * r->group_stride +
                                h % r->heads * r->head_stride;
            for (size_t i = 0; i < half; i++) {
                const double angle = position_of(r, t) * scaled(r, i);
                const double m = r->magnitude > 0 ? (double)r->magnitude : 1;
                const size_t first = head + (r->interleaved ? 2 * i : i);
                const size_t second = first + (r->interleaved ? 1 : half);
                const double a = r->x[first], b = r->x[second];
                r->y[first] = m * (a * cos(angle) - b * sin(angle));
                r->y[second] = m * (b * cos(angle) + a * sin(angle));
            }
        }
    }
}

static double rope_loss(const void *context)
{
    const rope_case *r = context;
    double loss = 0.0;
    rope_forward(r);
    for (size_t i = 0; i < r->count; i++)
        loss += r->dy[i] * r->y[i];
    return loss;
}

static void run_rope(const rope_case *r, weft_dtype dtype, void *x, bool inverse)
{
    PROBE_RUN(rope, .seq = r->seq, .batch = r->batch, .heads = r->heads, .head_dim = r->head_dim,
              .token_stride = r->token_stride, .head_stride = r->head_stride, .groups = r->groups,
              .group_stride = r->group_stride, .rotary_dim = r->rotary_dim,
              .first_position = r->first_position, .base = 10000.0f, .dtype = dtype, .x = x,
              .inverse = inverse, .index = r->index, .index_by_sample = r->numbering == 2,
              .interleaved = r->interleaved, .magnitude = r->magnitude, .scaling = r->scaling);
}

static void check_rope(rope_case r, weft_dtype dtype)
{
    if (!probe_takes_case())
        return;
    probe_start(NULL);
    r.count = r.seq * r.batch * r.token_stride;
    r.base = 10000.0;
    void *x = probe_random(r.count, dtype, 1.0, 1), *dy = probe_random(r.count, dtype, 1.0, 2);
    r.x = probe_read(x, r.count, dtype);
    r.dy = probe_read(dy, r.count, dtype);
    r.y = probe_doubles(r.count);
    int32_t *index = probe_alloc(r.seq * r.batch * sizeof *index);
    uint64_t random = 3;
    for (size_t t = 0; t < r.seq * r.batch; t++)
        index[t] = (int32_t)probe_pick(&random, 200000);
    r.index = r.numbering ? index : NULL;
    run_rope(&r, dtype, x, false);
    rope_forward(&r);
    probe_close(probe_read(x, r.count, dtype), r.y, r.count, probe_tolerance(dtype, 1e-6), "rope");
    run_rope(&r, dtype, dy, true);
    probe_gradient(rope_loss, &r, r.x, r.count, probe_read(dy, r.count, dtype), NULL,
                   probe_tolerance(dtype, 1e-5), "rope backward");
}

CASE(rope_of_other_forms_equals_fp64)
{
    static const weft_rope_scaling scalings[] = {
        {0},
        {.factor = 4, .begin = -2, .end = -1}, /* all pairs */
        {.factor = 40, .begin = 1, .end = 6.5},
        {.factor = 8, .begin = 4, .end = 1, .by_turns = true, .length = 8192},
    };
    for (int form = 0; form < 16 * probe_num_dtypes(); form++) {
        rope_case r = {.numbering = form % 4 ? 0 : 1,
                       .seq = 7,
                       .batch = 2,
                       .heads = 3,
                       .head_dim = 32,
                       .token_stride = 2 * 5 * 32,
                       .head_stride = 32,
                       .groups = 2,
                       .group_stride = 5 * 32,
                       .first_position = 1000,
                       .rotary_dim = form & 8 ? 32 : 12,
                       .interleaved = form & 4,
                       .magnitude = form % 4 == 2 ? 1.25f : 0,
                       .scaling = scalings[form % 4]};
        check_rope(r, probe_dtype(form / 16));
    }
}

CASE(rope_equals_fp64_and_finite_differences)
{
    static const rope_case rows[] = {
        {1, 1, 1, 2, 2, 2, 0, 0, 2, .first_position = 3},
        {5, 3, 2, 10, 31, 11, 0, 0, 6, .first_position = 0},
        {37, 2, 6, 64, 400, 64, 0, 0, 64, .first_position = 131071},
        /* Packed by query group; groups within heads; groups that start unaligned. */
        {9, 3, 5, 64, 8 * 7 * 64, 64, 8, 7 * 64, 64, .first_position = 1},
        {4, 2, 3, 16, 112, 32, 2, 16, 8, .first_position = 0},
        {3, 2, 2, 16, 104, 16, 3, 33, 16, .first_position = 0},
        /* No channel rotates. */
        {5, 1, 2, 8, 16, 8, 0, 0, 0, .first_position = 2},
        /* More pairs than the table of angles. */
        {2, 1, 1, 1030, 1030, 1030, 0, 0, 1030, .first_position = 7},
    };
    for (int form = 0; form < 3 * probe_num_dtypes(); form++) {
        weft_dtype dtype = probe_dtype(form / 3);
        if (form % 3 && dtype != WEFT_F32)
            continue;
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            rope_case r = rows[i];
            r.numbering = form % 3;
            check_rope(r, dtype);
        }
    }
}

CASE(rope_of_groups_equals_calls_of_one_group)
{
    enum { SEQ = 7, BATCH = 2, GROUPS = 3, HEADS = 3, DIM = 16, STRIDE = (HEADS + 1) * DIM };
    const size_t count = (size_t)SEQ * BATCH * GROUPS * STRIDE;
    for (int form = 0; form < probe_num_dtypes(); form++) {
        weft_dtype dtype = probe_dtype(form);
        probe_start(NULL);
        char *together = probe_random(count, dtype, 1.0, 1);
        char *apart = probe_random(count, dtype, 1.0, 1);
        PROBE_RUN(rope, .seq = SEQ, .batch = BATCH, .heads = HEADS, .head_dim = DIM,
                  .token_stride = (size_t)GROUPS * STRIDE, .head_stride = DIM, .groups = GROUPS,
                  .group_stride = STRIDE, .rotary_dim = DIM, .base = 10000.0f, .dtype = dtype,
                  .x = together);
        for (size_t g = 0; g < GROUPS; g++)
            PROBE_RUN(rope, .seq = SEQ, .batch = BATCH, .heads = HEADS, .head_dim = DIM,
                      .token_stride = (size_t)GROUPS * STRIDE, .head_stride = DIM,
                      .rotary_dim = DIM, .base = 10000.0f, .dtype = dtype,
                      .x = apart + g * STRIDE * weft_dtype_bytes(dtype));
        assert_memory_equal(together, apart, count * weft_dtype_bytes(dtype));
    }
}

CASE(rope_refuses_groups_that_coincide)
{
    float x[4] = {0};
    weft_rope_args args = {.struct_bytes = sizeof args,
                           .seq = 1,
                           .batch = 1,
                           .heads = 1,
                           .head_dim = 2,
                           .token_stride = 4,
                           .head_stride = 2,
                           .groups = 2,
                           .rotary_dim = 2,
                           .base = 10000.0f,
                           .x = x};
    assert_int_equal(weft_rope(probe_lane(0), &args), WEFT_INTERNAL);
    assert_non_null(strstr(weft_error_get()->text, "several groups need a group_stride"));
    weft_error_clear();
}
