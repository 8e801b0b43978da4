/* LayerNorm, RMSNorm and the bias gradient against fp64 and finite differences. */
#include "probe.h"

#include <math.h>
#include <stdio.h>

typedef struct norm_case {
    weft_norm_kind kind;
    size_t rows, cols;
    double *x, *weight, *bias, *dy; /* bias may be NULL */
    double epsilon;
} norm_case;

static void normalise_row(const norm_case *n, size_t row, double *y, double *mean, double *rstd)
{
    const double *x = n->x + row * n->cols;
    double sum = 0.0, square = 0.0;
    for (size_t c = 0; c < n->cols; c++)
        sum += x[c];
    *mean = n->kind == WEFT_NORM_LAYER ? sum / (double)n->cols : 0.0;
    for (size_t c = 0; c < n->cols; c++)
        square += (x[c] - *mean) * (x[c] - *mean);
    *rstd = 1.0 / sqrt(square / (double)n->cols + n->epsilon);
    for (size_t c = 0; c < n->cols; c++)
        y[c] = (x[c] - *mean) * *rstd * (n->weight[c] + (n->kind == WEFT_NORM_RMS ? 1 : 0)) +
               (n->bias ? n->bias[c] : 0.0);
}

static double row_scratch[20480];

/* RMSNorms here multiply by 1 + their weight, LayerNorms by it. */
static float offset_of(weft_norm_kind kind)
{
    return kind == WEFT_NORM_RMS ? 1.0f : 0.0f;
}

static double norm_loss(const void *context)
{
    const norm_case *n = context;
    double loss = 0.0, mean, rstd;
    for (size_t row = 0; row < n->rows; row++) {
        normalise_row(n, row, row_scratch, &mean, &rstd);
        for (size_t c = 0; c < n->cols; c++)
            loss += n->dy[row * n->cols + c] * row_scratch[c];
    }
    return loss;
}

static const struct size {
    size_t rows, cols;
} sizes[] = {{1, 1},    {3, 5},    {2, 17},   {9, 1031}, {70, 384},
             {6, 1000}, {5, 1600}, {5, 2056}, {2, 8200}, {2, 16640}};

static void check_forward(weft_norm_kind kind, struct size size, weft_dtype dtype, bool has_bias,
                          int residual_form)
{
    if (!probe_takes_case())
        return;
    probe_start(NULL);
    const size_t rows = size.rows, cols = size.cols, count = rows * cols;
    const size_t bytes = weft_dtype_bytes(dtype);
    void *x = probe_random(count, dtype, 2.0, 1);
    void *residual = residual_form ? probe_random(count, dtype, 1.0, 2) : NULL;
    void *sum = residual_form == 2 ? x : residual_form ? probe_alloc(count * bytes) : NULL;
    void *weight = probe_random(cols, dtype, 1.0, 3);
    void *bias = has_bias ? probe_random(cols, dtype, 1.0, 4) : NULL;
    void *y = probe_alloc(count * bytes);
    float *mean = kind == WEFT_NORM_LAYER ? probe_alloc(rows * sizeof *mean) : NULL;
    float *rstd = probe_alloc(rows * sizeof *rstd);
    norm_case n = {.kind = kind,
                   .rows = rows,
                   .cols = cols,
                   .x = probe_read(x, count, dtype),
                   .weight = probe_read(weight, cols, dtype),
                   .bias = has_bias ? probe_read(bias, cols, dtype) : NULL,
                   .epsilon = (double)1e-5f};
    if (residual) {
        double *r = probe_read(residual, count, dtype);
        for (size_t i = 0; i < count; i++)
            n.x[i] = probe_round((double)((float)n.x[i] + (float)r[i]), dtype);
    }
    PROBE_RUN(norm_forward, .kind = kind, .rows = rows, .cols = cols, .dtype = dtype, .x = x,
              .residual = residual, .sum = sum, .weight = weight, .bias = bias, .y = y,
              .mean = mean, .rstd = rstd, .epsilon = 1e-5f, .weight_offset = offset_of(kind));
    double *expected = probe_doubles(count);
    double *means = probe_doubles(rows), *rstds = probe_doubles(rows);
    for (size_t row = 0; row < rows; row++)
        normalise_row(&n, row, expected + row * cols, &means[row], &rstds[row]);
    char what[64];
    snprintf(what, sizeof what, "norm kind %d %zux%zu %s", (int)kind, rows, cols,
             weft_dtype_text(dtype));
    probe_close(probe_read(y, count, dtype), expected, count, probe_tolerance(dtype, 3e-6), what);
    probe_close(probe_read(rstd, rows, WEFT_F32), rstds, rows, probe_tolerance(WEFT_F32, 5e-6),
                "rstd");
    if (mean)
        probe_close(probe_read(mean, rows, WEFT_F32), means, rows, 1e-5, "mean");
    if (sum)
        probe_close(probe_read(sum, count, dtype), n.x, count, 0.0, "sum");
}

CASE(forward_equals_fp64)
{
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        for (int dtype = 0; dtype < probe_num_dtypes(); dtype++) {
            for (int residual = 0; residual < 3; residual++) {
                weft_dtype type = probe_dtype(dtype);
                check_forward(WEFT_NORM_LAYER, sizes[s], type, true, residual);
                check_forward(WEFT_NORM_LAYER, sizes[s], type, false, residual);
                check_forward(WEFT_NORM_RMS, sizes[s], type, false, residual);
            }
        }
    }
}

static void check_backward(weft_norm_kind kind, struct size size, weft_dtype dtype, bool accumulate,
                           bool overwrite)
{
    if (!probe_takes_case())
        return;
    probe_start(NULL);
    const size_t rows = size.rows, cols = size.cols, count = rows * cols;
    void *dy = probe_random(count, dtype, 1.0, 1), *x = probe_random(count, dtype, 2.0, 2);
    void *weight = probe_random(cols, dtype, 1.0, 3);
    void *dx = accumulate ? probe_random(count, dtype, 1.0, 4)
                          : probe_alloc(count * weft_dtype_bytes(dtype));
    float *dweight =
        overwrite ? probe_alloc(cols * sizeof *dweight) : probe_random(cols, WEFT_F32, 1.0, 5);
    float *dbias = NULL;
    if (kind == WEFT_NORM_LAYER)
        dbias =
            overwrite ? probe_alloc(cols * sizeof *dbias) : probe_random(cols, WEFT_F32, 1.0, 6);
    float *mean = probe_alloc(rows * sizeof *mean), *rstd = probe_alloc(rows * sizeof *rstd);
    double *dx_before = accumulate ? probe_read(dx, count, dtype) : NULL;
    double *dweight_before = overwrite ? NULL : probe_read(dweight, cols, WEFT_F32);
    double *dbias_before = overwrite || !dbias ? NULL : probe_read(dbias, cols, WEFT_F32);
    norm_case n = {.kind = kind,
                   .rows = rows,
                   .cols = cols,
                   .x = probe_read(x, count, dtype),
                   .weight = probe_read(weight, cols, dtype),
                   .bias = probe_doubles(cols),
                   .dy = probe_read(dy, count, dtype),
                   .epsilon = (double)1e-5f};
    for (size_t row = 0; row < rows; row++) {
        double m, r;
        normalise_row(&n, row, row_scratch, &m, &r);
        mean[row] = (float)m;
        rstd[row] = (float)r;
    }
    PROBE_RUN(norm_backward, .kind = kind, .rows = rows, .cols = cols, .dtype = dtype, .dy = dy,
              .x = x, .weight = weight, .mean = kind == WEFT_NORM_LAYER ? mean : NULL, .rstd = rstd,
              .dx = dx, .accumulate = accumulate, .dweight = dweight, .dbias = dbias,
              .overwrite = overwrite, .weight_offset = offset_of(kind));
    const double tolerance = probe_tolerance(dtype, 1e-5);
    probe_gradient(norm_loss, &n, n.x, count, probe_read(dx, count, dtype), dx_before, tolerance,
                   "dx");
    probe_gradient(norm_loss, &n, n.weight, cols, probe_read(dweight, cols, WEFT_F32),
                   dweight_before, 1e-5, "dweight");
    if (dbias)
        probe_gradient(norm_loss, &n, n.bias, cols, probe_read(dbias, cols, WEFT_F32), dbias_before,
                       1e-5, "dbias");
}

CASE(backward_equals_finite_differences)
{
    static const struct size backward_sizes[] = {{3, 5},    {2, 17},   {13, 531}, {70, 257},
                                                 {23, 384}, {9, 1600}, {3, 4160}};
    for (size_t s = 0; s < sizeof backward_sizes / sizeof backward_sizes[0]; s++) {
        for (int form = 0; form < 4 * probe_num_dtypes(); form++)
            check_backward(form & 1 ? WEFT_NORM_LAYER : WEFT_NORM_RMS, backward_sizes[s],
                           probe_dtype(form / 4), form & 2, !(form & 2));
    }
    /* More columns than the scratch of one pass. */
    check_backward(WEFT_NORM_LAYER, (struct size){3, 8197}, WEFT_F32, false, true);
    check_backward(WEFT_NORM_RMS, (struct size){3, 8197}, WEFT_F32, true, false);
}

CASE(backward_without_rows_clears)
{
    float *weight = probe_constant(7, 1.0f), *dweight = probe_alloc(7 * sizeof *dweight);
    float *dbias = probe_alloc(7 * sizeof *dbias);
    PROBE_RUN(norm_backward, .kind = WEFT_NORM_LAYER, .rows = 0, .cols = 7, .weight = weight,
              .dweight = dweight, .dbias = dbias, .overwrite = true);
    for (int c = 0; c < 7; c++)
        assert_true(dweight[c] == 0.0f && dbias[c] == 0.0f);
}

static void check_strided_bias(size_t rows, size_t cols, size_t stride, weft_dtype dtype,
                               bool overwrite, size_t num_groups, const int64_t *offsets)
{
    if (!probe_takes_case())
        return;
    probe_start(NULL);
    const size_t groups = num_groups ? num_groups : 1;
    void *dy = probe_random(rows * stride, dtype, 1.0, 1);
    float *db = overwrite ? probe_alloc(groups * cols * sizeof *db)
                          : probe_random(groups * cols, WEFT_F32, 1.0, 2);
    double *expected =
        overwrite ? probe_doubles(groups * cols) : probe_read(db, groups * cols, WEFT_F32);
    double *d = probe_read(dy, rows * stride, dtype);
    for (size_t row = 0; row < rows; row++) {
        size_t g = 0;
        while (num_groups && (int64_t)row >= offsets[g + 1])
            g++;
        for (size_t c = 0; c < cols; c++)
            expected[g * cols + c] += d[row * stride + c];
    }
    PROBE_RUN(bias_gradient, .rows = rows, .cols = cols, .dtype = dtype, .dy = dy, .db = db,
              .overwrite = overwrite, .num_groups = num_groups, .row_offsets = offsets,
              .stride = stride == cols ? 0 : stride);
    probe_close(probe_read(db, groups * cols, WEFT_F32), expected, groups * cols,
                probe_tolerance(WEFT_F32, 1e-6), "bias gradient");
}

static void check_bias(size_t rows, size_t cols, weft_dtype dtype, bool overwrite,
                       size_t num_groups, const int64_t *offsets)
{
    check_strided_bias(rows, cols, cols, dtype, overwrite, num_groups, offsets);
}

CASE(bias_gradient_equals_fp64)
{
    static const int64_t offsets[] = {0, 0, 20, 21, 21, 101, 101};
    for (int form = 0; form < 2 * probe_num_dtypes(); form++) {
        weft_dtype dtype = probe_dtype(form / 2);
        check_bias(1, 1, dtype, form & 1, 0, NULL);
        check_bias(0, 9, dtype, form & 1, 0, NULL);
        check_bias(101, 37, dtype, form & 1, 6, offsets);
        check_bias(101, 3001, dtype, form & 1, 0, NULL);
        check_bias(101, 531, dtype, form & 1, 6, offsets);
        check_bias(101, 264, dtype, form & 1, 6, offsets);
        check_strided_bias(101, 264, 272, dtype, form & 1, 0, NULL);
        check_strided_bias(33, 37, 53, dtype, form & 1, 0, NULL);
    }
}

/* Groups' biases stand apart, as experts' do. */
CASE(groups_have_biases_apart)
{
    enum { ROWS = 30, COLS = 37, APART = 41, GROUPS = 4 };
    static const int64_t offsets[] = {0, 7, 7, 29, ROWS};
    for (int d = 0; d < probe_num_dtypes(); d++) {
        const weft_dtype dtype = probe_dtype(d);
        probe_start(NULL);
        void *y = probe_random(ROWS * COLS, dtype, 1.0, 1);
        void *bias = probe_random(GROUPS * APART, dtype, 1.0, 2);
        float *db = probe_constant(GROUPS * APART, 3.0f);
        double *expected = probe_read(y, ROWS * COLS, dtype);
        const double *b = probe_read(bias, GROUPS * APART, dtype);
        double *sums = probe_read(db, GROUPS * APART, WEFT_F32);
        for (int64_t row = 0, g = 0; row < ROWS; row++) {
            while (row >= offsets[g + 1])
                g++;
            for (int64_t c = 0; c < COLS; c++) {
                sums[g * APART + c] += expected[row * COLS + c];
                expected[row * COLS + c] += b[g * APART + c];
            }
        }
        PROBE_RUN(bias_gradient, .rows = ROWS, .cols = COLS, .dtype = dtype, .dy = y, .db = db,
                  .num_groups = GROUPS, .row_offsets = offsets, .group_stride = APART);
        PROBE_RUN(bias_add, .cols = COLS, .num_groups = GROUPS, .group_stride = APART,
                  .row_offsets = offsets, .dtype = dtype, .bias = bias, .y = y);
        probe_close(probe_read(y, ROWS * COLS, dtype), expected, ROWS * COLS,
                    probe_tolerance(dtype, 1e-6), "bias");
        probe_close(probe_read(db, GROUPS * APART, WEFT_F32), sums, GROUPS * APART,
                    probe_tolerance(WEFT_F32, 1e-6), "its gradient");
    }
}
