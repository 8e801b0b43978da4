#include "kernels/cpu/cpu.h"

#include <math.h>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "kernels/cpu/vector_math.h"

enum {
    BLOCK_ROWS = 32,   /* rows whose weight gradients are summed before they meet the others' */
    BLOCK_COLS = 8192, /* columns of the scratch that such a sum needs on the stack */
};

WEFT_INLINE void norm_forward_row(const weft_norm_forward_args *a, size_t row,
                                  const weft_norm_kind kind, const weft_dtype dtype)
{
    const size_t cols = a->cols;
    const void *x = weft_vector_from(a->x, row * cols, dtype);
    if (a->residual) {
        const void *residual = weft_vector_from(a->residual, row * cols, dtype);
        void *sum = weft_vector_at(a->sum, row * cols, dtype);
#pragma omp simd
        for (size_t c = 0; c < cols; c++)
            weft_vector_store(sum, c,
                              weft_vector_load(x, c, dtype) + weft_vector_load(residual, c, dtype),
                              dtype);
        x = sum;
    }
    float mean = 0.0f, square = 0.0f;
    if (kind == WEFT_NORM_LAYER) {
#pragma omp simd reduction(+ : mean)
        for (size_t c = 0; c < cols; c++)
            mean += weft_vector_load(x, c, dtype);
        mean /= (float)cols;
    }
#pragma omp simd reduction(+ : square)
    for (size_t c = 0; c < cols; c++) {
        float centred = weft_vector_load(x, c, dtype) - mean;
        square += centred * centred;
    }
    const float rstd = 1.0f / sqrtf(square / (float)cols + a->epsilon);
    void *y = weft_vector_at(a->y, row * cols, dtype);
    const void *weight = a->weight, *bias = a->bias;
    if (bias) {
#pragma omp simd
        for (size_t c = 0; c < cols; c++) {
            float normed = (weft_vector_load(x, c, dtype) - mean) * rstd;
            weft_vector_store(y, c,
                              normed * (weft_vector_load(weight, c, dtype) + a->weight_offset) +
                                  weft_vector_load(bias, c, dtype),
                              dtype);
        }
    } else {
#pragma omp simd
        for (size_t c = 0; c < cols; c++) {
            float normed = (weft_vector_load(x, c, dtype) - mean) * rstd;
            weft_vector_store(
                y, c, normed * (weft_vector_load(weight, c, dtype) + a->weight_offset), dtype);
        }
    }
    if (kind == WEFT_NORM_LAYER && a->mean)
        a->mean[row] = mean;
    a->rstd[row] = rstd;
}

weft_status WEFT_VECTOR(norm_forward)(const weft_norm_forward_args *args)
{
#pragma omp parallel for schedule(static) if (args->rows * args->cols > WEFT_VECTOR_SERIAL)
    for (size_t row = 0; row < args->rows; row++) {
        if (args->kind == WEFT_NORM_LAYER && args->dtype == WEFT_F32)
            norm_forward_row(args, row, WEFT_NORM_LAYER, WEFT_F32);
        else if (args->kind == WEFT_NORM_LAYER)
            norm_forward_row(args, row, WEFT_NORM_LAYER, WEFT_BF16);
        else if (args->dtype == WEFT_F32)
            norm_forward_row(args, row, WEFT_NORM_RMS, WEFT_F32);
        else
            norm_forward_row(args, row, WEFT_NORM_RMS, WEFT_BF16);
    }
    return WEFT_OK;
}

/* With h = (x - mean) rstd and g = dy weight: dx = rstd (g - mean(g) - h mean(g h)), where RMSNorm
 * has neither mean. Writes columns [first, first + num) of dx and adds these columns' weight
 * gradients to the scratch. */
WEFT_INLINE void norm_backward_row(const weft_norm_backward_args *a, size_t row, size_t first,
                                   size_t num, float *restrict dweight, float *restrict dbias,
                                   const weft_norm_kind kind, const weft_dtype dtype)
{
    const size_t cols = a->cols;
    const void *dy = weft_vector_from(a->dy, row * cols, dtype);
    const void *x = weft_vector_from(a->x, row * cols, dtype);
    const void *weight = a->weight;
    const float mean = kind == WEFT_NORM_LAYER ? a->mean[row] : 0.0f, rstd = a->rstd[row];
    float sum = 0.0f, along = 0.0f;
#pragma omp simd reduction(+ : sum, along)
    for (size_t c = 0; c < cols; c++) {
        float g = weft_vector_load(dy, c, dtype) *
                  (weft_vector_load(weight, c, dtype) + a->weight_offset);
        sum += g;
        along += g * (weft_vector_load(x, c, dtype) - mean);
    }
    sum = kind == WEFT_NORM_LAYER ? sum / (float)cols : 0.0f;
    along *= rstd / (float)cols;
    dy = weft_vector_from(dy, first, dtype);
    x = weft_vector_from(x, first, dtype);
    weight = weft_vector_from(weight, first, dtype);
    void *dx = weft_vector_at(a->dx, row * cols + first, dtype);
    const float keep = a->accumulate ? 1.0f : 0.0f;
    if (keep == 0.0f) {
#pragma omp simd
        for (size_t c = 0; c < num; c++) {
            float d = weft_vector_load(dy, c, dtype);
            float h = (weft_vector_load(x, c, dtype) - mean) * rstd;
            float g = d * (weft_vector_load(weight, c, dtype) + a->weight_offset);
            dweight[c] += d * h;
            if (kind == WEFT_NORM_LAYER)
                dbias[c] += d;
            weft_vector_store(dx, c, rstd * (g - sum - h * along), dtype);
        }
    } else {
#pragma omp simd
        for (size_t c = 0; c < num; c++) {
            float d = weft_vector_load(dy, c, dtype);
            float h = (weft_vector_load(x, c, dtype) - mean) * rstd;
            float g = d * (weft_vector_load(weight, c, dtype) + a->weight_offset);
            dweight[c] += d * h;
            if (kind == WEFT_NORM_LAYER)
                dbias[c] += d;
            weft_vector_store(dx, c, weft_vector_load(dx, c, dtype) + rstd * (g - sum - h * along),
                              dtype);
        }
    }
}

static void norm_backward_block(const weft_norm_backward_args *args, size_t row, size_t end,
                                size_t first, size_t num, float *dweight, float *dbias)
{
    for (; row < end; row++) {
        if (args->kind == WEFT_NORM_LAYER && args->dtype == WEFT_F32)
            norm_backward_row(args, row, first, num, dweight, dbias, WEFT_NORM_LAYER, WEFT_F32);
        else if (args->kind == WEFT_NORM_LAYER)
            norm_backward_row(args, row, first, num, dweight, dbias, WEFT_NORM_LAYER, WEFT_BF16);
        else if (args->dtype == WEFT_F32)
            norm_backward_row(args, row, first, num, dweight, dbias, WEFT_NORM_RMS, WEFT_F32);
        else
            norm_backward_row(args, row, first, num, dweight, dbias, WEFT_NORM_RMS, WEFT_BF16);
    }
}

static void add_to(float *restrict to, const float *restrict from, size_t num, bool overwrite)
{
    if (overwrite)
        memcpy(to, from, num * sizeof *to);
    else {
#pragma omp simd
        for (size_t c = 0; c < num; c++)
            to[c] += from[c];
    }
}

weft_status WEFT_VECTOR(norm_backward)(const weft_norm_backward_args *args)
{
    const size_t num_blocks = (args->rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
    if (num_blocks == 0 && args->overwrite) {
        memset(args->dweight, 0, args->cols * sizeof(float));
        if (args->dbias)
            memset(args->dbias, 0, args->cols * sizeof(float));
    }
    for (size_t first = 0; first < args->cols; first += BLOCK_COLS) {
        const size_t num = weft_vector_min(BLOCK_COLS, args->cols - first);
        /* Blocks of rows are fixed and joined in order: the sums do not depend on the threads. */
#pragma omp parallel for ordered schedule(static,                                                  \
                                          1) if (args->rows * args->cols > WEFT_VECTOR_SERIAL)
        for (size_t block = 0; block < num_blocks; block++) {
            float dweight[BLOCK_COLS], dbias[BLOCK_COLS];
            memset(dweight, 0, num * sizeof(float));
            memset(dbias, 0, num * sizeof(float));
            norm_backward_block(args, block * BLOCK_ROWS,
                                weft_vector_min(args->rows, (block + 1) * BLOCK_ROWS), first, num,
                                dweight, dbias);
#pragma omp ordered
            {
                bool overwrite = args->overwrite && block == 0;
                add_to(args->dweight + first, dweight, num, overwrite);
                if (args->dbias)
                    add_to(args->dbias + first, dbias, num, overwrite);
            }
        }
    }
    return WEFT_OK;
}

/* Sums rows [row, end) of columns [first, first + num) into db, BLOCK_ROWS at a time: short sums
 * of sums round less than one long one. */
WEFT_INLINE void sum_rows(const weft_bias_gradient_args *a, size_t row, size_t end, size_t first,
                          size_t num, float *restrict total, const weft_dtype dtype)
{
    float sum[1024];
    const size_t stride = a->stride ? a->stride : a->cols;
    while (row < end) {
        const size_t stop = weft_vector_min(end, row + BLOCK_ROWS);
        memset(sum, 0, num * sizeof(float));
        for (; row < stop; row++) {
            const void *dy = weft_vector_from(a->dy, row * stride + first, dtype);
#pragma omp simd
            for (size_t c = 0; c < num; c++)
                sum[c] += weft_vector_load(dy, c, dtype);
        }
        add_to(total, sum, num, false);
    }
}

weft_status WEFT_VECTOR(bias_gradient)(const weft_bias_gradient_args *args)
{
    const size_t num_groups = args->num_groups ? args->num_groups : 1;
    /* Threads own columns: each column is summed in the order of the rows, whoever owns it. */
    size_t slice = 1024;
#ifdef _OPENMP
    slice = (args->cols / (size_t)omp_get_max_threads() + 16) / 16 * 16;
    slice = weft_vector_min(slice, 1024);
#endif
    const size_t num_slices = (args->cols + slice - 1) / slice;
#pragma omp parallel for schedule(static) if (args->rows * args->cols > WEFT_VECTOR_SERIAL)
    for (size_t s = 0; s < num_slices; s++) {
        const size_t first = s * slice, num = weft_vector_min(slice, args->cols - first);
        for (size_t g = 0; g < num_groups; g++) {
            size_t row = args->num_groups ? (size_t)args->row_offsets[g] : 0;
            size_t end = args->num_groups ? (size_t)args->row_offsets[g + 1] : args->rows;
            float *db =
                args->db + g * (args->group_stride ? args->group_stride : args->cols) + first;
            if (args->overwrite)
                memset(db, 0, num * sizeof(float));
            if (args->dtype == WEFT_F32)
                sum_rows(args, row, end, first, num, db, WEFT_F32);
            else
                sum_rows(args, row, end, first, num, db, WEFT_BF16);
        }
    }
    return WEFT_OK;
}

WEFT_INLINE void add_bias(void *y, const void *bias, size_t cols, const weft_dtype dtype)
{
#pragma omp simd
    for (size_t c = 0; c < cols; c++)
        weft_vector_store(y, c, weft_vector_load(y, c, dtype) + weft_vector_load(bias, c, dtype),
                          dtype);
}

weft_status WEFT_VECTOR(bias_add)(const weft_bias_add_args *args)
{
    const size_t cols = args->cols, stride = args->group_stride ? args->group_stride : cols;
#pragma omp parallel for schedule(dynamic) if (args->num_groups > 1)
    for (size_t g = 0; g < args->num_groups; g++) {
        const void *bias = weft_vector_from(args->bias, g * stride, args->dtype);
        for (int64_t row = args->row_offsets[g]; row < args->row_offsets[g + 1]; row++) {
            void *y = weft_vector_at(args->y, (size_t)row * cols, args->dtype);
            if (args->dtype == WEFT_F32)
                add_bias(y, bias, cols, WEFT_F32);
            else
                add_bias(y, bias, cols, WEFT_BF16);
        }
    }
    return WEFT_OK;
}
