/* AdamW and the sum of squares against fp64. */
#include "probe.h"

#include <math.h>
#include <stdlib.h>

static void check_adamw(size_t count, int weight_form, bool has_scale, float weight_decay)
{
    probe_start(NULL);
    const double lr = (double)3e-3f, b1 = (double)0.9f, b2 = (double)0.95f, eps = (double)1e-8f;
    static const weft_dtype dtypes[] = {WEFT_F32, WEFT_BF16, WEFT_F32, WEFT_F16};
    const weft_dtype dtype = dtypes[weight_form];
    float *master = probe_random(count, WEFT_F32, 1.0, 1);
    float *m = probe_constant(count, 0.0f), *v = probe_constant(count, 0.0f);
    float *scale = has_scale ? probe_constant(1, 0.25f) : NULL;
    void *weight = weight_form == 0 ? master : probe_alloc(count * weft_dtype_bytes(dtype));
    double *x = probe_read(master, count, WEFT_F32);
    double *m64 = probe_doubles(count), *v64 = probe_doubles(count);
    for (int step = 1; step <= 4; step++) {
        float *grad = probe_random(count, WEFT_F32, 0.1, 10 + (uint64_t)step);
        double *before = probe_read(master, count, WEFT_F32);
        for (size_t i = 0; i < count; i++) {
            double g = (double)grad[i] * (has_scale ? 0.25 : 1.0);
            m64[i] = b1 * m64[i] + (1 - b1) * g;
            v64[i] = b2 * v64[i] + (1 - b2) * g * g;
            double m_hat = m64[i] / (1 - pow(b1, step)), v_hat = v64[i] / (1 - pow(b2, step));
            x[i] -= lr * (m_hat / (sqrt(v_hat) + eps) + (double)weight_decay * x[i]);
        }
        PROBE_RUN(adamw, .count = count, .master = master, .m = m, .v = v, .grad = grad,
                  .grad_scale = scale, .weight = weight, .dtype = dtype, .lr = 3e-3f, .beta1 = 0.9f,
                  .beta2 = 0.95f, .epsilon = 1e-8f, .weight_decay = weight_decay, .step = step);
        double *now = probe_read(master, count, WEFT_F32);
        probe_close(probe_read(m, count, WEFT_F32), m64, count, 1e-6, "first moment");
        probe_close(probe_read(v, count, WEFT_F32), v64, count, 1e-6, "second moment");
        probe_close(now, x, count, 1e-6, "master");
        /* The update itself, which the master's size would hide. */
        double *moved = probe_doubles(count), *should = probe_doubles(count);
        for (size_t i = 0; i < count; i++) {
            moved[i] = now[i] - before[i];
            should[i] = x[i] - before[i];
        }
        probe_close(moved, should, count, 2e-4, "update");
        for (size_t i = 0; i < count; i++)
            now[i] = probe_round(now[i], dtype);
        probe_close(probe_read(weight, count, dtype), now, count, 0.0, "weight");
    }
}

static void adamw_equals_fp64(void **state)
{
    (void)state;
    for (int form = 0; form < 16; form++) {
        check_adamw(1, form / 4, form & 1, form & 2 ? 0.1f : 0.0f);
        check_adamw(35, form / 4, form & 1, form & 2 ? 0.1f : 0.0f);
        check_adamw(30011, form / 4, form & 1, form & 2 ? 0.1f : 0.0f);
    }
}

static void adamw_writes_fp16(void **state)
{
    (void)state;
    float *master = probe_constant(3, 0.3f), *m = probe_constant(3, 0.0f);
    float *v = probe_constant(3, 0.0f), *grad = probe_constant(3, 0.0f);
    uint16_t *weight = probe_alloc(3 * sizeof *weight);
    PROBE_RUN(adamw, .count = 3, .master = master, .m = m, .v = v, .grad = grad, .weight = weight,
              .dtype = WEFT_F16, .lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.99f, .epsilon = 1e-8f,
              .step = 1);
    for (int i = 0; i < 3; i++)
        assert_int_equal(weight[i], 0x34cd); /* 1229 / 4096, the fp16 next to 0.3 */
}

static void sum_of_squares_in_fp64(void **state)
{
    (void)state;
    static const size_t counts[] = {0, 1, 33, 1024, 262145, 700001};
    for (int c = 0; c < 6; c++) {
        probe_start(NULL);
        float *x = probe_random(counts[c], WEFT_F32, 1e3, 1);
        double *sum = probe_alloc(sizeof *sum);
        long double exact = 5.0L;
        *sum = 5.0;
        for (size_t i = 0; i < counts[c]; i++)
            exact += (long double)x[i] * (long double)x[i];
        PROBE_RUN(sum_squares, .count = counts[c], .x = x, .sum = sum);
        double expected = (double)exact;
        probe_close(sum, &expected, 1, 1e-14, "sum of squares");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        PROBE_TEST(adamw_equals_fp64),
        PROBE_TEST(adamw_writes_fp16),
        PROBE_TEST(sum_of_squares_in_fp64),
    };
    return cmocka_run_group_tests(tests, probe_setup, probe_teardown);
}
