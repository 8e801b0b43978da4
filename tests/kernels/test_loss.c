/* Vocabulary-parallel cross-entropy against fp64 and finite differences. */
#include "probe.h"

#include <math.h>

typedef struct loss_case {
    size_t rows, cols, valid_cols;
    double *logits, *mask, scale;
    const int32_t *labels;
} loss_case;

static double row_loss(const loss_case *l, size_t row)
{
    const double *x = l->logits + row * l->cols;
    double max = -INFINITY, sum = 0.0;
    for (size_t c = 0; c < l->valid_cols; c++)
        max = fmax(max, x[c]);
    for (size_t c = 0; c < l->valid_cols; c++)
        sum += exp(x[c] - max);
    return log(sum) + max - x[l->labels[row]];
}

static double total_loss(const void *context)
{
    const loss_case *l = context;
    double loss = 0.0;
    for (size_t row = 0; row < l->rows; row++)
        loss += l->mask[row] == 0.0 ? 0.0 : row_loss(l, row) * l->mask[row] * l->scale;
    return loss;
}

static int32_t *make_labels(size_t rows, size_t valid_cols)
{
    int32_t *labels = probe_alloc(rows * sizeof *labels);
    uint64_t state = 3;
    for (size_t row = 0; row < rows; row++)
        labels[row] = (int32_t)probe_pick(&state, valid_cols);
    labels[0] = 0;
    labels[rows - 1] = (int32_t)valid_cols - 1;
    return labels;
}

static float *make_mask(size_t rows)
{
    float *mask = probe_constant(rows, 1.0f);
    for (size_t row = 2; row < rows; row += 3)
        mask[row] = 0.0f;
    if (rows > 1)
        mask[1] = 0.5f;
    return mask;
}

static void check_whole(size_t rows, size_t cols, size_t valid_cols, weft_dtype dtype,
                        bool has_mask, double spread)
{
    probe_start(NULL);
    void *logits = probe_random(rows * cols, dtype, spread, 1);
    int32_t *labels = make_labels(rows, valid_cols);
    float *row_max = probe_alloc(rows * sizeof *row_max);
    float *row_sum = probe_alloc(rows * sizeof *row_sum);
    float *target = probe_alloc(rows * sizeof *target);
    float *mask = has_mask ? make_mask(rows) : NULL;
    float *loss = probe_alloc(rows * sizeof *loss);
    double *loss_sum = probe_alloc(sizeof *loss_sum);
    *loss_sum = 10.0;
    loss_case l = {.rows = rows,
                   .cols = cols,
                   .valid_cols = valid_cols,
                   .logits = probe_read(logits, rows * cols, dtype),
                   .mask = probe_doubles(rows),
                   .scale = 0.25,
                   .labels = labels};
    double *expected = probe_doubles(rows), expected_sum = 10.0;
    for (size_t row = 0; row < rows; row++) {
        l.mask[row] = mask ? (double)mask[row] : 1.0;
        expected[row] = row_loss(&l, row) * l.mask[row];
        expected_sum += expected[row];
    }
    PROBE_RUN(cross_entropy_stats, .pass = WEFT_CROSS_ENTROPY_FUSED, .rows = rows, .cols = cols,
              .valid_cols = valid_cols, .dtype = dtype, .logits = logits, .labels = labels,
              .row_max = row_max, .row_sum = row_sum, .target = target);
    PROBE_RUN(cross_entropy_loss, .rows = rows, .row_max = row_max, .row_sum = row_sum,
              .target = target, .mask = mask, .loss = loss, .loss_sum = loss_sum);
    probe_close(probe_read(loss, rows, WEFT_F32), expected, rows, probe_tolerance(WEFT_F32, 1e-6),
                "loss");
    probe_close(loss_sum, &expected_sum, 1, probe_tolerance(WEFT_F32, 1e-6), "loss sum");
    PROBE_RUN(cross_entropy_backward, .rows = rows, .cols = cols, .valid_cols = valid_cols,
              .dtype = dtype, .logits = logits, .labels = labels, .row_max = row_max,
              .row_sum = row_sum, .mask = mask, .scale = 0.25f);
    double *gradient = probe_read(logits, rows * cols, dtype);
    probe_gradient(total_loss, &l, l.logits, rows * cols, gradient, NULL,
                   probe_tolerance(dtype, 1e-5), "dlogits");
    /* The largest gradients stand at the labels, which sampling would miss. */
    double *at_label = probe_doubles(rows), *exact = probe_doubles(rows);
    for (size_t row = 0; row < rows; row++) {
        at_label[row] = gradient[row * cols + (size_t)labels[row]];
        exact[row] = (exp(-row_loss(&l, row)) - 1.0) * l.mask[row] * l.scale;
        for (size_t c = valid_cols; c < cols; c++)
            assert_true(gradient[row * cols + c] == 0.0);
    }
    probe_close(at_label, exact, rows, probe_tolerance(dtype, 1e-5), "dlogits at the labels");
}

CASE(whole_vocabulary)
{
    for (int form = 0; form < 2 * probe_num_dtypes(); form++) {
        weft_dtype dtype = probe_dtype(form / 2);
        check_whole(1, 1, 1, dtype, form & 1, 1.0);
        check_whole(3, 7, 5, dtype, form & 1, 2.0);
        check_whole(6, 65, 65, dtype, form & 1, 10.0);
        check_whole(7, 5003, 4999, dtype, form & 1, 3.0);
        check_whole(5, 4100, 4097, dtype, form & 1, 40.0);
        check_whole(2, 20011, 20003, dtype, form & 1, 3.0);
    }
}

/* Three ranks hold 20 + 20 + 3 valid columns of a vocabulary padded to 3 x 20; a fourth holds
 * padding alone. What they compute together equals the whole. */
CASE(split_vocabulary_equals_whole)
{
    enum { ROWS = 9, WIDTH = 20, RANKS = 4, VALID = 43, COLS = WIDTH * RANKS };
    for (int form = 0; form < probe_num_dtypes(); form++) {
        probe_start(NULL);
        const weft_dtype dtype = probe_dtype(form);
        const size_t bytes = weft_dtype_bytes(dtype);
        char *whole = probe_random(ROWS * COLS, dtype, 3.0, 1);
        int32_t *labels = make_labels(ROWS, VALID);
        char *part[RANKS];
        float *max[RANKS], *sum[RANKS], *target[RANKS];
        size_t valid[RANKS];
        for (size_t r = 0; r < RANKS; r++) {
            valid[r] = VALID > r * WIDTH ? VALID - r * WIDTH : 0;
            valid[r] = valid[r] > WIDTH ? WIDTH : valid[r];
            part[r] = probe_alloc(ROWS * WIDTH * bytes);
            for (size_t row = 0; row < ROWS; row++)
                memcpy(part[r] + row * WIDTH * bytes, whole + (row * COLS + r * WIDTH) * bytes,
                       WIDTH * bytes);
            max[r] = probe_alloc(ROWS * sizeof(float));
            sum[r] = probe_alloc(ROWS * sizeof(float));
            target[r] = probe_alloc(ROWS * sizeof(float));
            PROBE_RUN(cross_entropy_stats, .pass = WEFT_CROSS_ENTROPY_MAX, .rows = ROWS,
                      .cols = WIDTH, .valid_cols = valid[r], .first_col = r * WIDTH, .dtype = dtype,
                      .logits = part[r], .row_max = max[r]);
        }
        float *row_max = probe_constant(ROWS, -INFINITY), *row_sum = probe_constant(ROWS, 0.0f);
        float *row_target = probe_constant(ROWS, 0.0f);
        for (size_t row = 0; row < ROWS; row++)
            for (size_t r = 0; r < RANKS; r++)
                row_max[row] = fmaxf(row_max[row], max[r][row]);
        for (size_t r = 0; r < RANKS; r++) {
            PROBE_RUN(cross_entropy_stats, .pass = WEFT_CROSS_ENTROPY_SUM, .rows = ROWS,
                      .cols = WIDTH, .valid_cols = valid[r], .first_col = r * WIDTH, .dtype = dtype,
                      .logits = part[r], .labels = labels, .row_max = row_max, .row_sum = sum[r],
                      .target = target[r]);
            for (size_t row = 0; row < ROWS; row++) {
                row_sum[row] += sum[r][row];
                row_target[row] += target[r][row];
            }
        }
        float *whole_max = probe_alloc(ROWS * sizeof(float));
        float *whole_sum = probe_alloc(ROWS * sizeof(float));
        float *whole_target = probe_alloc(ROWS * sizeof(float));
        PROBE_RUN(cross_entropy_stats, .pass = WEFT_CROSS_ENTROPY_FUSED, .rows = ROWS, .cols = COLS,
                  .valid_cols = VALID, .dtype = dtype, .logits = whole, .labels = labels,
                  .row_max = whole_max, .row_sum = whole_sum, .target = whole_target);
        for (size_t row = 0; row < ROWS; row++) {
            assert_true(row_max[row] == whole_max[row]);
            assert_true(row_target[row] == whole_target[row]);
            assert_true(fabs((double)row_sum[row] - (double)whole_sum[row]) <=
                        probe_tolerance(WEFT_F32, 1e-6) * (double)whole_sum[row]);
        }
        PROBE_RUN(cross_entropy_backward, .rows = ROWS, .cols = COLS, .valid_cols = VALID,
                  .dtype = dtype, .logits = whole, .labels = labels, .row_max = whole_max,
                  .row_sum = whole_sum, .scale = 1.0f);
        double *expected = probe_read(whole, ROWS * COLS, dtype);
        for (size_t r = 0; r < RANKS; r++) {
            PROBE_RUN(cross_entropy_backward, .rows = ROWS, .cols = WIDTH, .valid_cols = valid[r],
                      .first_col = r * WIDTH, .dtype = dtype, .logits = part[r], .labels = labels,
                      .row_max = row_max, .row_sum = row_sum, .scale = 1.0f);
            double *got = probe_read(part[r], ROWS * WIDTH, dtype);
            for (size_t i = 0; i < ROWS * WIDTH; i++) {
                double e = expected[i / WIDTH * COLS + r * WIDTH + i % WIDTH];
                assert_true(fabs(got[i] - e) <= probe_tolerance(dtype, 1e-6) * fabs(e) + 1e-8);
            }
        }
    }
}

/* Hidden tokens (-infinity) have no probability, wherever they stand. */
CASE(hidden_columns)
{
    enum { COLS = 6000 };
    float *logits = probe_random(COLS, WEFT_F32, 1.0, 1);
    for (size_t c = 0; c < COLS; c++)
        if (c < 4500 || c % 2)
            logits[c] = -INFINITY;
    int32_t *label = probe_alloc(sizeof *label);
    *label = 5000;
    double sum = 0.0;
    for (size_t c = 0; c < COLS; c++)
        sum += exp((double)logits[c]);
    double expected = log(sum) - (double)logits[5000];
    float *row_max = probe_alloc(4), *row_sum = probe_alloc(4), *target = probe_alloc(4);
    PROBE_RUN(cross_entropy_stats, .pass = WEFT_CROSS_ENTROPY_FUSED, .rows = 1, .cols = COLS,
              .valid_cols = COLS, .logits = logits, .labels = label, .row_max = row_max,
              .row_sum = row_sum, .target = target);
    double got = log((double)*row_sum) + (double)*row_max - (double)*target;
    probe_close(&got, &expected, 1, probe_tolerance(WEFT_F32, 1e-6), "loss with hidden columns");
    PROBE_RUN(cross_entropy_backward, .rows = 1, .cols = COLS, .valid_cols = COLS, .logits = logits,
              .labels = label, .row_max = row_max, .row_sum = row_sum, .scale = 1.0f);
    assert_true(logits[0] == 0.0f && logits[5001] == 0.0f);
    assert_true(fabs((double)logits[5000] - (exp(-expected) - 1.0)) <
                probe_tolerance(WEFT_F32, 1e-6));
}

/* A masked row may hold anything without harming the others. */
CASE(masked_rows_are_ignored)
{
    enum { ROWS = 2, COLS = 33 };
    float *logits = probe_random(ROWS * COLS, WEFT_F32, 1.0, 1);
    logits[COLS + 4] = NAN;
    int32_t *labels = probe_alloc(ROWS * sizeof *labels);
    labels[0] = 1;
    labels[1] = -1;
    float *mask = probe_constant(ROWS, 1.0f), *max = probe_alloc(8), *sum = probe_alloc(8);
    float *target = probe_alloc(8);
    double *loss_sum = probe_alloc(sizeof *loss_sum);
    *loss_sum = 0.0;
    mask[1] = 0.0f;
    PROBE_RUN(cross_entropy_stats, .pass = WEFT_CROSS_ENTROPY_FUSED, .rows = ROWS, .cols = COLS,
              .valid_cols = COLS, .logits = logits, .labels = labels, .row_max = max,
              .row_sum = sum, .target = target);
    assert_true(isnan(sum[1]));
    PROBE_RUN(cross_entropy_loss, .rows = ROWS, .row_max = max, .row_sum = sum, .target = target,
              .mask = mask, .loss_sum = loss_sum);
    assert_true(*loss_sum > 0.0 && *loss_sum < 20.0);
    PROBE_RUN(cross_entropy_backward, .rows = ROWS, .cols = COLS, .valid_cols = COLS,
              .logits = logits, .labels = labels, .row_max = max, .row_sum = sum, .mask = mask,
              .scale = 1.0f);
    for (int c = 0; c < COLS; c++)
        assert_true(logits[COLS + c] == 0.0f);
}

/* Of logits that are c tanh(x / c), the gradients of x. */
CASE(capped_logits_have_the_gradients_before_the_cap)
{
    enum { ROWS = 5, COLS = 133, VALID = 131 };
    const double cap = 4;
    for (int d = 0; d < probe_num_dtypes(); d++) {
        const weft_dtype dtype = probe_dtype(d);
        probe_start(NULL);
        void *all[2] = {probe_random(ROWS * COLS, dtype, 1.0, 1),
                        probe_random(ROWS * COLS, dtype, 1.0, 1)};
        const double *logits = probe_read(all[0], ROWS * COLS, dtype);
        int32_t *labels = make_labels(ROWS, VALID);
        float *row_max = probe_alloc(ROWS * sizeof *row_max);
        float *row_sum = probe_alloc(ROWS * sizeof *row_sum);
        float *target = probe_alloc(ROWS * sizeof *target);
        PROBE_RUN(cross_entropy_stats, .pass = WEFT_CROSS_ENTROPY_FUSED, .rows = ROWS, .cols = COLS,
                  .valid_cols = VALID, .dtype = dtype, .logits = all[0], .labels = labels,
                  .row_max = row_max, .row_sum = row_sum, .target = target);
        for (int capped = 0; capped < 2; capped++)
            PROBE_RUN(cross_entropy_backward, .rows = ROWS, .cols = COLS, .valid_cols = VALID,
                      .dtype = dtype, .logits = all[capped], .labels = labels, .row_max = row_max,
                      .row_sum = row_sum, .scale = 0.25f, .softcap = capped ? (float)cap : 0.0f);
        double *expected = probe_read(all[0], ROWS * COLS, dtype);
        for (int i = 0; i < ROWS * COLS; i++)
            expected[i] *= i % COLS < VALID ? 1 - pow(logits[i] / cap, 2) : 0;
        probe_close(probe_read(all[1], ROWS * COLS, dtype), expected, ROWS * COLS,
                    probe_tolerance(dtype, 1e-6), "capped gradients");
    }
}
