/* AdamW and the sum of squares against fp64. */
#include "probe.h"

#include <math.h>

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* The weight of a master's bits by comparing distances, not by adding and shifting. */
static uint16_t nearest_bf16(uint32_t bits)
{
    const uint32_t below = bits >> 16, distance = bits & 0xffff;
    if ((bits & 0x7fffffff) > 0x7f800000)
        return 0x7fc0;
    return (uint16_t)(distance >= 0x10000 - distance ? below + 1 : below);
}

static double bf16_of(uint16_t weight)
{
    const uint32_t bits = (uint32_t)weight << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return (double)x;
}

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
            now[i] = dtype == WEFT_BF16 ? bf16_of(nearest_bf16(bits_of((float)now[i])))
                                        : probe_round(now[i], dtype);
        probe_close(probe_read(weight, count, dtype), now, count, 0.0, "weight");
    }
}

/* Every upper half, infinities, NaNs and denormals among them, with lower halves around a tie and
 * around none. */
CASE(split_masters_are_exact)
{
    static const uint16_t lows[] = {0, 1, 0x1234, 0x7fff, 0x8000, 0x8001, 0xcba9, 0xffff};
    enum { LOWS = sizeof lows / sizeof lows[0] };
    const size_t count = (size_t)LOWS << 16;
    float *master = probe_alloc(count * sizeof *master), *back = probe_alloc(count * sizeof *back);
    uint16_t *weight = probe_alloc(count * 2), *low = probe_alloc(count * 2);
    uint16_t *alone = probe_alloc(count * 2);
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = (uint32_t)(i / LOWS) << 16 | lows[i % LOWS];
        memcpy(&master[i], &bits, sizeof bits);
    }
    PROBE_RUN(split_master, .count = count, .master = master, .weight = weight, .low = low);
    PROBE_RUN(split_master, .count = count, .master = master, .weight = alone);
    PROBE_RUN(join_master, .count = count, .weight = weight, .low = low, .master = back);
    for (size_t i = 0; i < count; i++) {
        const uint32_t bits = bits_of(master[i]);
        const bool is_nan = master[i] != master[i];
        if (weight[i] != nearest_bf16(bits) || alone[i] != weight[i] ||
            (is_nan ? back[i] == back[i] : bits_of(back[i]) != bits))
            fail_msg("%08x: weight %04x or %04x, low %04x, back %08x", bits, weight[i], alone[i],
                     low[i], bits_of(back[i]));
    }
}

/* Steps of a split master have the bits of those of a whole one, ties among them. */
CASE(split_masters_step_alike)
{
    static const size_t counts[] = {1, 35, 30011};
    for (int c = 0; c < 3; c++) {
        probe_start(NULL);
        const size_t count = counts[c];
        float *master = probe_random(count, WEFT_F32, 1.0, 1), *back = probe_constant(count, 0.0f);
        float *m[2], *v[2];
        uint16_t *weight[2], *low = probe_alloc(count * 2);
        for (int form = 0; form < 2; form++) {
            m[form] = probe_constant(count, 0.0f);
            v[form] = probe_constant(count, 0.0f);
            weight[form] = probe_alloc(count * 2);
        }
        for (size_t i = 0; i < count; i += 7) {
            const uint32_t tie = (bits_of(master[i]) & 0xffff0000) | 0x8000;
            memcpy(&master[i], &tie, sizeof tie);
        }
        PROBE_RUN(split_master, .count = count, .master = master, .weight = weight[1], .low = low);
        for (int step = 1; step <= 3; step++) {
            /* gradients of zero leave the ties where they are */
            float *grad = probe_random(count, WEFT_F32, step == 1 ? 0.0 : 0.1, 10 + (uint64_t)step);
            for (int form = 0; form < 2; form++)
                PROBE_RUN(adamw, .count = count, .master = form == 0 ? master : NULL,
                          .low = form == 0 ? NULL : low, .m = m[form], .v = v[form], .grad = grad,
                          .weight = weight[form], .dtype = WEFT_BF16, .lr = 3e-3f, .beta1 = 0.9f,
                          .beta2 = 0.95f, .epsilon = 1e-8f, .step = step);
            PROBE_RUN(join_master, .count = count, .weight = weight[1], .low = low, .master = back);
            assert_memory_equal(back, master, count * sizeof *back);
            assert_memory_equal(weight[1], weight[0], count * 2);
            assert_memory_equal(m[1], m[0], count * sizeof *back);
            assert_memory_equal(v[1], v[0], count * sizeof *back);
            for (size_t i = 0; i < count; i++)
                assert_int_equal(weight[0][i], nearest_bf16(bits_of(master[i])));
        }
    }
}

CASE(adamw_equals_fp64)
{
    for (int form = 0; form < 16; form++) {
        check_adamw(1, form / 4, form & 1, form & 2 ? 0.1f : 0.0f);
        check_adamw(35, form / 4, form & 1, form & 2 ? 0.1f : 0.0f);
        check_adamw(30011, form / 4, form & 1, form & 2 ? 0.1f : 0.0f);
    }
}

/* Without moments a step is the gradient's, in each form of masters. */
CASE(plain_steps_equal_fp64)
{
    static const size_t counts[] = {1, 35, 30011};
    for (int c = 0; c < 12; c++) {
        probe_start(NULL);
        const size_t count = counts[c % 3];
        const int form = c / 3; /* alone, beside in bf16, split, beside in fp16 */
        const weft_dtype dtype = form == 0 ? WEFT_F32 : form == 3 ? WEFT_F16 : WEFT_BF16;
        float *master = probe_random(count, WEFT_F32, 1.0, 1), *back = probe_constant(count, 0.0f);
        float *grad = probe_random(count, WEFT_F32, 0.1, 2), *scale = probe_constant(1, 0.25f);
        uint16_t *weight = probe_alloc(count * 2), *low = probe_alloc(count * 2);
        double *x = probe_read(master, count, WEFT_F32), *g = probe_read(grad, count, WEFT_F32);
        for (size_t i = 0; i < count; i++)
            x[i] -= (double)3e-3f * (0.25 * g[i] + (double)0.1f * x[i]);
        if (form == 2)
            PROBE_RUN(split_master, .count = count, .master = master, .weight = weight, .low = low);
        PROBE_RUN(adamw, .count = count, .master = form == 2 ? NULL : master,
                  .low = form == 2 ? low : NULL, .grad = grad, .grad_scale = scale,
                  .weight = form == 0 ? NULL : (void *)weight, .dtype = dtype, .lr = 3e-3f,
                  .weight_decay = 0.1f, .step = 7);
        if (form == 2)
            PROBE_RUN(join_master, .count = count, .weight = weight, .low = low, .master = back);
        double *now = probe_read(form == 2 ? back : master, count, WEFT_F32);
        probe_close(now, x, count, 1e-6, "master");
        for (size_t i = 0; i < count; i++)
            now[i] = dtype == WEFT_BF16 ? bf16_of(nearest_bf16(bits_of((float)now[i])))
                                        : probe_round(now[i], dtype);
        if (form != 0)
            probe_close(probe_read(weight, count, dtype), now, count, 0.0, "weight");
    }
}

CASE(momentum_equals_fp64)
{
    static const size_t counts[] = {1, 35, 30011};
    for (int c = 0; c < 6; c++) {
        probe_start(NULL);
        const size_t count = counts[c / 2];
        const bool nesterov = c % 2;
        const double b = (double)0.95f;
        float *m = probe_constant(count, 0.0f), *scale = probe_constant(1, 0.25f);
        double *m64 = probe_doubles(count), *wanted = probe_doubles(count);
        for (uint64_t step = 1; step <= 3; step++) {
            float *grad = probe_random(count, WEFT_F32, 0.1, step);
            for (size_t i = 0; i < count; i++) {
                const double g = 0.25 * (double)grad[i];
                m64[i] = b * m64[i] + (1 - b) * g;
                wanted[i] = nesterov ? b * m64[i] + (1 - b) * g : m64[i];
            }
            PROBE_RUN(momentum, .count = count, .m = m, .grad = grad, .grad_scale = scale,
                      .momentum = 0.95f, .nesterov = nesterov);
            probe_close(probe_read(m, count, WEFT_F32), m64, count, 1e-6, "momentum");
            probe_close(probe_read(grad, count, WEFT_F32), wanted, count, 1e-6, "direction");
        }
    }
}

/* Rows between others, scaled by a factor or to norm 1; what is not of the matrix stays. */
CASE(matrices_are_copied)
{
    for (int c = 0; c < 6; c++) {
        probe_start(NULL);
        const size_t rows = c / 2 == 0 ? 1 : 37, cols = c / 2 == 1 ? 1 : 301,
                     lds[] = {cols + 5, 331};
        const bool has_norm = c % 2;
        float *from = probe_random(rows * lds[0], WEFT_F32, 1.0, 1);
        float *to = probe_random(rows * lds[1], WEFT_F32, 1.0, 2);
        double *wanted = probe_read(to, rows * lds[1], WEFT_F32), *squares = probe_alloc(8);
        *squares = 4;
        for (size_t r = 0; r < rows; r++)
            for (size_t k = 0; k < cols; k++)
                wanted[r * lds[1] + k] =
                    3.0 * (double)from[r * lds[0] + k] / (has_norm ? 2.0 : 1.0);
        PROBE_RUN(matrix_copy, .rows = rows, .cols = cols, .from = from, .to = to,
                  .ld_from = lds[0], .ld_to = lds[1], .factor = 3,
                  .squares = has_norm ? squares : NULL);
        probe_close(probe_read(to, rows * lds[1], WEFT_F32), wanted, rows * lds[1], 1e-6, "copy");
    }
}

CASE(adamw_writes_fp16)
{
    float *master = probe_constant(3, 0.3f), *m = probe_constant(3, 0.0f);
    float *v = probe_constant(3, 0.0f), *grad = probe_constant(3, 0.0f);
    uint16_t *weight = probe_alloc(3 * sizeof *weight);
    PROBE_RUN(adamw, .count = 3, .master = master, .m = m, .v = v, .grad = grad, .weight = weight,
              .dtype = WEFT_F16, .lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.99f, .epsilon = 1e-8f,
              .step = 1);
    for (int i = 0; i < 3; i++)
        assert_int_equal(weight[i], 0x34cd); /* 1229 / 4096, the fp16 next to 0.3 */
}

CASE(sum_of_squares_in_fp64)
{
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

/* Each kind of bad number, in vectors' middle and rest, on parts' borders and behind the last. */
CASE(finds_what_is_not_finite)
{
    enum { PARTS = 4 };
    static const size_t counts[] = {5, 4099, 300007};
    for (int c = 0; c < 3; c++)
        for (int bad = -1; bad < 6; bad++) {
            const size_t n = counts[c];
            const size_t ends[PARTS] = {1, n / 2, n / 2 + 1, n - 1};
            const size_t at[6] = {0, 1, n / 2 - 1, n / 2, n - 2, n - 1};
            const int part[6] = {0, 1, 1, 2, 3, 3};
            const float values[6] = {NAN, INFINITY, -INFINITY, NAN, -NAN, INFINITY};
            probe_start(NULL);
            float *x = probe_random(n, WEFT_F32, 1e38, 1);
            uint64_t *given = probe_alloc(PARTS * sizeof *given);
            int32_t *found = probe_alloc(PARTS * sizeof *found);
            for (int p = 0; p < PARTS; p++) {
                given[p] = ends[p];
                found[p] = 0;
            }
            for (size_t i = 0; i < n; i++)
                x[i] = isfinite(x[i]) ? x[i] : 3e38f;
            if (bad >= 0)
                x[at[bad]] = values[bad];
            PROBE_RUN(find_not_finite, .count = n, .x = x, .num_parts = PARTS, .ends = given,
                      .found = found);
            for (int p = 0; p < PARTS; p++)
                assert_int_equal(found[p], bad >= 0 && part[bad] == p);
        }
}

/* Of both widths, in parts that begin anywhere, one of them empty; a flipped bit changes its part's
 * hash alone. */
CASE(hashes_are_sums)
{
    enum { PARTS = 5 };
    static const size_t counts[] = {6, 4099, 300007};
    for (int c = 0; c < 3; c++)
        for (size_t bytes = 2; bytes <= 4; bytes += 2) {
            const size_t n = counts[c], ends[PARTS] = {1, n / 2, n / 2, n / 2 + 1, n - 1};
            probe_start(NULL);
            uint32_t *x = (uint32_t *)(void *)probe_random(n, WEFT_F32, 1, 1);
            uint64_t *given = probe_alloc(sizeof ends), *hashes = probe_alloc(sizeof ends);
            uint64_t expected[PARTS] = {0};
            for (size_t i = 0, p = 0; i < n; i++) {
                while (p + 1 < PARTS && ends[p] <= i)
                    p++;
                const uint32_t weight = (2 * (uint32_t)i + 1) * 0x9e3779b1u;
                expected[p] += (bytes == 2 ? ((uint16_t *)x)[i] : (uint64_t)x[i]) * weight;
            }
            for (int p = 0; p < PARTS; p++) {
                given[p] = ends[p];
                hashes[p] = 3;
            }
            PROBE_RUN(hash, .count = n, .x = x, .element_bytes = bytes, .num_parts = PARTS,
                      .ends = given, .hashes = hashes);
            for (int p = 0; p < PARTS; p++)
                assert_true(hashes[p] == expected[p] + 3);
            ((unsigned char *)x)[n / 2 * bytes] ^= 0x40;
            PROBE_RUN(hash, .count = n, .x = x, .element_bytes = bytes, .num_parts = PARTS,
                      .ends = given, .hashes = hashes);
            for (int p = 0; p < PARTS; p++)
                assert_true((hashes[p] != 2 * expected[p] + 3) == (p == 3));
        }
}
