/* Activations and rotary positions against fp64 and finite differences. */
#include "probe.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct activation_case {
    weft_activation_kind kind;
    size_t rows, cols;
    double *x, *dy;
} activation_case;

static double activate(double x, weft_activation_kind kind)
{
    const double slope = sqrt(2.0 / 3.14159265358979323846);
    switch (kind) {
    case WEFT_ACTIVATION_GELU:
        return 0.5 * x * (1.0 + tanh(slope * (x + 0.044715 * x * x * x)));
    case WEFT_ACTIVATION_RELU:
        return fmax(x, 0.0);
    default:
        return x / (1.0 + exp(-x));
    }
}

static double output(const activation_case *a, size_t row, size_t col)
{
    if (a->kind == WEFT_ACTIVATION_SWIGLU) {
        const double *gate = a->x + 2 * row * a->cols;
        return activate(gate[col], WEFT_ACTIVATION_SILU) * gate[a->cols + col];
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

static const weft_activation_kind kinds[] = {WEFT_ACTIVATION_GELU, WEFT_ACTIVATION_SWIGLU,
                                             WEFT_ACTIVATION_SILU, WEFT_ACTIVATION_RELU};
enum { NUM_KINDS = sizeof kinds / sizeof kinds[0] };

static void check_activation(weft_activation_kind kind, size_t rows, size_t cols, weft_dtype dtype,
                             bool in_place)
{
    probe_start(NULL);
    const size_t count = rows * cols, width = kind == WEFT_ACTIVATION_SWIGLU ? 2 : 1;
    void *x = probe_random(width * count, dtype, 3.0, 1);
    void *dy = probe_random(count, dtype, 1.0, 2);
    void *y = probe_alloc(count * weft_dtype_bytes(dtype));
    void *dx = in_place ? x : probe_alloc(width * count * weft_dtype_bytes(dtype));
    activation_case a = {.kind = kind,
                         .rows = rows,
                         .cols = cols,
                         .x = probe_read(x, width * count, dtype),
                         .dy = probe_read(dy, count, dtype)};
    PROBE_RUN(activation_forward, .kind = kind, .rows = rows, .cols = cols, .dtype = dtype, .x = x,
              .y = y);
    double *expected = probe_doubles(count);
    for (size_t i = 0; i < count; i++)
        expected[i] = output(&a, i / cols, i % cols);
    char what[64];
    snprintf(what, sizeof what, "activation %d %zux%zu %s", (int)kind, rows, cols,
             weft_dtype_text(dtype));
    probe_close(probe_read(y, count, dtype), expected, count, probe_tolerance(dtype, 1e-6), what);
    PROBE_RUN(activation_backward, .kind = kind, .rows = rows, .cols = cols, .dtype = dtype, .x = x,
              .dy = dy, .dx = dx);
    probe_gradient(activation_loss, &a, a.x, width * count, probe_read(dx, width * count, dtype),
                   NULL, probe_tolerance(dtype, 1e-5), what);
}

static void activations_equal_fp64_and_finite_differences(void **state)
{
    (void)state;
    static const size_t sizes[][2] = {{1, 1}, {3, 5}, {7, 64}, {67, 515}};
    for (int k = 0; k < NUM_KINDS; k++)
        for (int s = 0; s < 4; s++)
            for (int form = 0; form < 2 * probe_num_dtypes(); form++)
                check_activation(kinds[k], sizes[s][0], sizes[s][1], probe_dtype(form / 2),
                                 form & 1);
}

/* Where the exponential overflows or vanishes, values and slopes stay finite and exact. */
static void extreme_inputs_saturate(void **state)
{
    (void)state;
    static const float inputs[] = {-1e6f, -200.0f, -89.0f, -20.0f, 0.0f,
                                   20.0f, 89.0f,   200.0f, 1e6f};
    enum { COUNT = sizeof inputs / sizeof inputs[0] };
    for (int k = 0; k < NUM_KINDS; k++) {
        if (kinds[k] == WEFT_ACTIVATION_SWIGLU)
            continue;
        probe_start(NULL);
        float *x = probe_alloc(sizeof inputs), *y = probe_alloc(sizeof inputs);
        float *dy = probe_constant(COUNT, 1.0f), *dx = probe_alloc(sizeof inputs);
        memcpy(x, inputs, sizeof inputs);
        PROBE_RUN(activation_forward, .kind = kinds[k], .rows = 1, .cols = COUNT, .x = x, .y = y);
        PROBE_RUN(activation_backward, .kind = kinds[k], .rows = 1, .cols = COUNT, .x = x, .dy = dy,
                  .dx = dx);
        for (int i = 0; i < COUNT; i++) {
            double expected = activate((double)x[i], kinds[k]);
            if (!(fabs((double)y[i] - expected) <= 1e-6 * fabs(expected) + 1e-7))
                fail_msg("kind %d at %g is %g, expected %g", (int)kinds[k], (double)x[i],
                         (double)y[i], expected);
            double slope = x[i] > 0 ? 1.0 : 0.0;
            if (x[i] != 0.0f && !(fabs((double)dx[i] - slope) < 1e-6))
                fail_msg("slope %d at %g is %g", (int)kinds[k], (double)x[i], (double)dx[i]);
        }
    }
}

typedef struct rope_case {
    size_t seq, batch, heads, head_dim, token_stride, head_stride, rotary_dim, first_position;
    double base, *x, *dy, *y;
    size_t count;
} rope_case;

static void rope_forward(const rope_case *r)
{
    memcpy(r->y, r->x, r->count * sizeof *r->y);
    const size_t half = r->rotary_dim / 2;
    for (size_t t = 0; t < r->seq * r->batch; t++) {
        for (size_t h = 0; h < r->heads; h++) {
            for (size_t i = 0; i < half; i++) {
                double angle = (double)(r->first_position + t / r->batch) *
                               pow(r->base, -2.0 * (double)i / (double)r->rotary_dim);
                size_t at = t * r->token_stride + h * r->head_stride + i;
                double a = r->x[at], b = r->x[at + half];
                r->y[at] = a * cos(angle) - b * sin(angle);
                r->y[at + half] = b * cos(angle) + a * sin(angle);
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

static void check_rope(rope_case r, weft_dtype dtype)
{
    probe_start(NULL);
    const size_t rotary = r.rotary_dim;
    r.count = r.seq * r.batch * r.token_stride;
    r.base = 10000.0;
    void *x = probe_random(r.count, dtype, 1.0, 1), *dy = probe_random(r.count, dtype, 1.0, 2);
    r.x = probe_read(x, r.count, dtype);
    r.dy = probe_read(dy, r.count, dtype);
    r.y = probe_doubles(r.count);
    if (rotary == 0)
        r.rotary_dim = r.head_dim;
    PROBE_RUN(rope, .seq = r.seq, .batch = r.batch, .heads = r.heads, .head_dim = r.head_dim,
              .token_stride = r.token_stride, .head_stride = r.head_stride, .rotary_dim = rotary,
              .first_position = r.first_position, .base = 10000.0f, .dtype = dtype, .x = x);
    rope_forward(&r);
    probe_close(probe_read(x, r.count, dtype), r.y, r.count, probe_tolerance(dtype, 1e-6), "rope");
    PROBE_RUN(rope, .seq = r.seq, .batch = r.batch, .heads = r.heads, .head_dim = r.head_dim,
              .token_stride = r.token_stride, .head_stride = r.head_stride, .rotary_dim = rotary,
              .first_position = r.first_position, .base = 10000.0f, .dtype = dtype, .x = dy,
              .inverse = true);
    probe_gradient(rope_loss, &r, r.x, r.count, probe_read(dy, r.count, dtype), NULL,
                   probe_tolerance(dtype, 1e-5), "rope backward");
}

static void rope_equals_fp64_and_finite_differences(void **state)
{
    (void)state;
    for (int form = 0; form < probe_num_dtypes(); form++) {
        weft_dtype dtype = probe_dtype(form);
        check_rope((rope_case){.seq = 1,
                               .batch = 1,
                               .heads = 1,
                               .head_dim = 2,
                               .token_stride = 2,
                               .head_stride = 2,
                               .first_position = 3},
                   dtype);
        check_rope((rope_case){.seq = 5,
                               .batch = 3,
                               .heads = 2,
                               .head_dim = 10,
                               .token_stride = 31,
                               .head_stride = 11,
                               .rotary_dim = 6},
                   dtype);
        check_rope((rope_case){.seq = 37,
                               .batch = 2,
                               .heads = 6,
                               .head_dim = 64,
                               .token_stride = 400,
                               .head_stride = 64,
                               .first_position = 131071},
                   dtype);
        /* More pairs than the table of angles. */
        check_rope((rope_case){.seq = 2,
                               .batch = 1,
                               .heads = 1,
                               .head_dim = 1030,
                               .token_stride = 1030,
                               .head_stride = 1030,
                               .first_position = 7},
                   dtype);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        PROBE_TEST(activations_equal_fp64_and_finite_differences),
        PROBE_TEST(extreme_inputs_saturate),
        PROBE_TEST(rope_equals_fp64_and_finite_differences),
    };
    return cmocka_run_group_tests(tests, probe_setup, probe_teardown);
}
