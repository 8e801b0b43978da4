/* LayerNorm and RMSNorm.
 *
 * A row is read once and stays in registers, the residual is added on the way. Rows that are too
 * long for that, or whose packs are not aligned, are read again from the cache. The gradients of
 * weight and bias are sums over all rows: each block keeps the sums of its rows, a second kernel
 * adds the blocks' in order. */
#include <math.h>

#include "kernels/cuda/columns.cuh"

namespace
{

constexpr unsigned WARP_ROW_THREADS = 128; /* of a block whose warps have a row each */
constexpr int WARP_ROW_PACKS = 8; /* a lane; a warp needs no barriers and little else beside */
constexpr unsigned LONG_THREADS = 512;

/* Stores a pack of y = (x rstd + shift) weight + bias. */
template <typename T, int n>
__device__ void store_normed(const weft_norm_forward_args &a, const float (&x)[n], size_t row,
                             size_t col, float rstd, float shift)
{
    const pack<T, n> weight = load_pack<n>(static_cast<const T *>(a.weight) + col);
    pack<T, n> y, bias = {};
    if (a.bias)
        bias = load_pack<n>(static_cast<const T *>(a.bias) + col);
#pragma unroll
    for (int k = 0; k < n; k++)
        y.at[k] = from_float<T>((x[k] * rstd + shift) * (to_float(weight.at[k]) + a.weight_offset) +
                                to_float(bias.at[k]));
    store_pack(static_cast<T *>(a.y) + row * a.cols + col, y);
}

/* x + residual, which goes to `sum`; x where there is no residual. */
template <typename T, int n>
__device__ void add_residual(const weft_norm_forward_args &a, pack<T, n> &x,
                             const pack<T, n> &residual, size_t at)
{
    if (!a.residual)
        return;
#pragma unroll
    for (int k = 0; k < n; k++)
        x.at[k] = from_float<T>(to_float(x.at[k]) + to_float(residual.at[k]));
    store_pack(static_cast<T *>(a.sum) + at, x);
}

/* A row of a warp (IS_WARP) or of a block, `packs` of it in each thread. */
template <typename T, int n, int packs, bool IS_WARP, weft_norm_kind KIND>
__global__ void __launch_bounds__(IS_WARP     ? WARP_ROW_THREADS
                                  : packs > 2 ? 1024
                                              : 512) forward_row(weft_norm_forward_args a)
{
    __shared__ float shared[WARP];
    const unsigned threads = IS_WARP ? WARP : blockDim.x;
    const unsigned thread = IS_WARP ? threadIdx.x % WARP : threadIdx.x;
    const size_t row =
        IS_WARP ? size_t(blockIdx.x) * (WARP_ROW_THREADS / WARP) + threadIdx.x / WARP : blockIdx.x;
    const size_t cols = a.cols, at = row * cols;
    const auto sum_of_row = [&](float x) { return IS_WARP ? warp_sum(x) : block_sum(x, shared); };
    if (row >= a.rows)
        return;
    pack<T, n> x[packs], residual[packs];
#pragma unroll
    for (int p = 0; p < packs; p++) {
        const size_t col = size_t(p * threads + thread) * n;
        if (col < cols) {
            x[p] = load_pack<n>(static_cast<const T *>(a.x) + at + col);
            if (a.residual)
                residual[p] = load_pack<n>(static_cast<const T *>(a.residual) + at + col);
        }
    }
    float mean = 0.0f, square = 0.0f, numbers[packs][n];
#pragma unroll
    for (int p = 0; p < packs; p++) {
        const size_t col = size_t(p * threads + thread) * n;
        if (col < cols) {
            add_residual(a, x[p], residual[p], at + col);
#pragma unroll
            for (int k = 0; k < n; k++) {
                numbers[p][k] = to_float(x[p].at[k]);
                mean += numbers[p][k];
            }
        }
    }
    mean = KIND == WEFT_NORM_LAYER ? sum_of_row(mean) / float(cols) : 0.0f;
#pragma unroll
    for (int p = 0; p < packs; p++) {
        const size_t col = size_t(p * threads + thread) * n;
        if (col < cols) {
#pragma unroll
            for (int k = 0; k < n; k++) {
                const float centred = numbers[p][k] - mean;
                square += centred * centred;
            }
        }
    }
    const float rstd = 1.0f / sqrtf(sum_of_row(square) / float(cols) + a.epsilon);
#pragma unroll
    for (int p = 0; p < packs; p++) {
        const size_t col = size_t(p * threads + thread) * n;
        if (col < cols)
            store_normed<T, n>(a, numbers[p], row, col, rstd, -mean * rstd);
    }
    if (thread == 0) {
        if (KIND == WEFT_NORM_LAYER && a.mean)
            a.mean[row] = mean;
        a.rstd[row] = rstd;
    }
}

/* A row of a block that reads it three times. */
template <typename T, int n, weft_norm_kind KIND>
__global__ void __launch_bounds__(LONG_THREADS) forward_long_row(weft_norm_forward_args a)
{
    __shared__ float shared[WARP];
    const size_t cols = a.cols, row = blockIdx.x, at = row * cols, start = size_t(threadIdx.x) * n;
    const size_t step = size_t(LONG_THREADS) * n;
    const T *x = static_cast<const T *>(a.residual ? a.sum : a.x) + at;
    float mean = 0.0f, square = 0.0f;
    for (size_t col = start; col < cols; col += step) {
        pack<T, n> values = load_pack<n>(static_cast<const T *>(a.x) + at + col);
        if (a.residual)
            add_residual(a, values, load_pack<n>(static_cast<const T *>(a.residual) + at + col),
                         at + col);
        for (int k = 0; k < n; k++)
            mean += to_float(values.at[k]);
    }
    mean = KIND == WEFT_NORM_LAYER ? block_sum(mean, shared) / float(cols) : 0.0f;
    for (size_t col = start; col < cols; col += step) {
        const pack<T, n> values = load_pack<n>(x + col);
        for (int k = 0; k < n; k++) {
            const float centred = to_float(values.at[k]) - mean;
            square += centred * centred;
        }
    }
    const float rstd = 1.0f / sqrtf(block_sum(square, shared) / float(cols) + a.epsilon);
    for (size_t col = start; col < cols; col += step) {
        const pack<T, n> values = load_pack<n>(x + col);
        float numbers[n];
        for (int k = 0; k < n; k++)
            numbers[k] = to_float(values.at[k]);
        store_normed<T, n>(a, numbers, row, col, rstd, -mean * rstd);
    }
    if (threadIdx.x == 0) {
        if (KIND == WEFT_NORM_LAYER && a.mean)
            a.mean[row] = mean;
        a.rstd[row] = rstd;
    }
}

/* Threads for `packs` packs, each having up to `each` of them. */
unsigned threads_for(size_t packs, unsigned each)
{
    return num_blocks(packs, size_t(each) * WARP) * WARP;
}

template <typename T, weft_norm_kind KIND>
weft_status forward_kind(weft_lane *lane, const weft_norm_forward_args *args)
{
    constexpr int n = WIDTH<T>;
    cudaStream_t stream = weft_cuda_stream(lane);
    const unsigned rows = static_cast<unsigned>(args->rows);
    const size_t packs = args->cols / n;
    if (args->cols % n ||
        !is_aligned(16, args->x, args->residual, args->sum, args->weight, args->bias, args->y))
        return WEFT_LAUNCH((forward_long_row<T, 1, KIND>), rows, LONG_THREADS, 0, stream, *args);
    const unsigned warp_blocks = num_blocks(rows, WARP_ROW_THREADS / WARP);
    if (packs <= WARP_ROW_PACKS / 2 * WARP)
        return WEFT_LAUNCH((forward_row<T, n, WARP_ROW_PACKS / 2, true, KIND>), warp_blocks,
                           WARP_ROW_THREADS, 0, stream, *args);
    if (packs <= WARP_ROW_PACKS * WARP)
        return WEFT_LAUNCH((forward_row<T, n, WARP_ROW_PACKS, true, KIND>), warp_blocks,
                           WARP_ROW_THREADS, 0, stream, *args);
    if (packs <= 2 * 512)
        return WEFT_LAUNCH((forward_row<T, n, 2, false, KIND>), rows, threads_for(packs, 2), 0,
                           stream, *args);
    if (packs <= 4 * 1024)
        return WEFT_LAUNCH((forward_row<T, n, 4, false, KIND>), rows, threads_for(packs, 4), 0,
                           stream, *args);
    return WEFT_LAUNCH((forward_long_row<T, n, KIND>), rows, LONG_THREADS, 0, stream, *args);
}

template <typename T> weft_status forward(weft_lane *lane, const weft_norm_forward_args *args)
{
    return args->kind == WEFT_NORM_LAYER ? forward_kind<T, WEFT_NORM_LAYER>(lane, args)
                                         : forward_kind<T, WEFT_NORM_RMS>(lane, args);
}

/* With h = (x - mean) rstd and g = dy weight: dx = rstd (g - mean(g) - h mean(g h)), where RMSNorm
 * has neither mean. Of the row, as its elements need it: h = x rstd + shift,
 * dx = g rstd + h along + sum. */
struct row_terms {
    float rstd, shift, along, sum;
};

/* `per_col` is 1 / cols, the sums are over the row. */
template <weft_norm_kind KIND>
__device__ row_terms terms_of(float rstd, float shift, float sum_g, float sum_gh, float per_col)
{
    const float factor = -rstd * per_col;
    return {rstd, shift, sum_gh * factor, KIND == WEFT_NORM_LAYER ? sum_g * factor : 0.0f};
}

template <typename T, int n, weft_norm_kind KIND>
__device__ void store_gradient(const weft_norm_backward_args &a, const pack<T, n> &dy,
                               const pack<T, n> &x, const pack<T, n> &weight,
                               const pack<T, n> &before, const row_terms &r, size_t at,
                               float (&dweight)[n], float (&dbias)[n])
{
    pack<T, n> dx;
#pragma unroll
    for (int k = 0; k < n; k++) {
        const float d = to_float(dy.at[k]), h = to_float(x.at[k]) * r.rstd + r.shift;
        float value =
            d * (to_float(weight.at[k]) + a.weight_offset) * r.rstd + (h * r.along + r.sum);
        if (a.accumulate)
            value += to_float(before.at[k]);
        dx.at[k] = from_float<T>(value);
        dweight[k] += d * h;
        if (KIND == WEFT_NORM_LAYER)
            dbias[k] += d;
    }
    store_pack(static_cast<T *>(a.dx) + at, dx);
}

constexpr int BACKWARD_PACKS = 2;          /* of a thread: fewer are too few for what a row costs */
constexpr unsigned BACKWARD_THREADS = 512; /* of a row, at most */
constexpr unsigned ROWS_THREADS = 256;     /* of a block that has several rows at once */

/* blockDim.y rows at once, each with blockDim.x threads; the next ones are on their way meanwhile.
 * Leaves this block's sums, dweight and then dbias, in its row of `partials`. */
template <typename T, int n, weft_norm_kind KIND>
__global__ void __launch_bounds__(BACKWARD_THREADS)
    backward_rows(weft_norm_backward_args a, float *partials)
{
    constexpr int packs = BACKWARD_PACKS;
    struct loaded {
        pack<T, n> dy[packs], x[packs];
        float rstd, shift;
    };
    __shared__ float2 sums[2][BACKWARD_THREADS / WARP];
    const size_t cols = a.cols;
    const float per_col = 1.0f / float(cols);
    const unsigned warps = blockDim.x / WARP, first_warp = threadIdx.y * warps;
    const T *dy = static_cast<const T *>(a.dy), *x = static_cast<const T *>(a.x);
    const T *weight = static_cast<const T *>(a.weight), *dx = static_cast<const T *>(a.dx);
    const auto col_of = [&](int p) { return size_t(p * blockDim.x + threadIdx.x) * n; };
    const auto load = [&](loaded &to, size_t row) {
        if (row >= a.rows)
            return;
#pragma unroll
        for (int p = 0; p < packs; p++) {
            const size_t at = row * cols + col_of(p);
            if (col_of(p) < cols) {
                to.dy[p] = load_pack<n>(dy + at);
                to.x[p] = load_pack<n>(x + at);
            }
        }
        to.rstd = a.rstd[row];
        to.shift = KIND == WEFT_NORM_LAYER ? a.mean[row] : 0.0f; /* until it is needed */
    };
    pack<T, n> weights[packs];
    float dweight[packs][n] = {}, dbias[packs][n] = {};
#pragma unroll
    for (int p = 0; p < packs; p++)
        if (col_of(p) < cols)
            weights[p] = load_pack<n>(weight + col_of(p));
    loaded now, next;
    unsigned parity = 0;
    const size_t step = size_t(gridDim.x) * blockDim.y;
    load(now, size_t(blockIdx.x) * blockDim.y + threadIdx.y);
    for (size_t first = size_t(blockIdx.x) * blockDim.y; first < a.rows; first += step) {
        const size_t row = first + threadIdx.y;
        load(next, row + step);
        float2 sum = {0.0f, 0.0f};
        pack<T, n> before[packs];
        if (row < a.rows) {
            now.shift *= -now.rstd;
#pragma unroll
            for (int p = 0; p < packs; p++)
                if (a.accumulate && col_of(p) < cols)
                    before[p] = load_pack<n>(dx + row * cols + col_of(p));
#pragma unroll
            for (int p = 0; p < packs; p++) {
                if (col_of(p) < cols) {
#pragma unroll
                    for (int k = 0; k < n; k++) {
                        const float g = to_float(now.dy[p].at[k]) *
                                        (to_float(weights[p].at[k]) + a.weight_offset);
                        sum.x += g;
                        sum.y += g * (to_float(now.x[p].at[k]) * now.rstd + now.shift);
                    }
                }
            }
        }
        sum.x = KIND == WEFT_NORM_LAYER ? warp_sum(sum.x) : 0.0f;
        sum.y = warp_sum(sum.y);
        if (threadIdx.x % WARP == 0)
            sums[parity][first_warp + threadIdx.x / WARP] = sum;
        __syncthreads(); /* one a row: the next one's sums go to the other half */
        sum = {0.0f, 0.0f};
#pragma unroll 4
        for (unsigned w = 0; w < warps; w++) {
            sum.x += sums[parity][first_warp + w].x;
            sum.y += sums[parity][first_warp + w].y;
        }
        parity ^= 1;
        const row_terms r = terms_of<KIND>(now.rstd, now.shift, sum.x, sum.y, per_col);
        if (row < a.rows) {
#pragma unroll
            for (int p = 0; p < packs; p++)
                if (col_of(p) < cols)
                    store_gradient<T, n, KIND>(a, now.dy[p], now.x[p], weights[p], before[p], r,
                                               row * cols + col_of(p), dweight[p], dbias[p]);
        }
        now = next;
    }
    /* The rows at once are joined in order. */
    WEFT_DYNAMIC_SHARED(float, others); /* [blockDim.y - 1][2][packs n][blockDim.x] */
    const unsigned stride = 2 * packs * n * blockDim.x;
    if (threadIdx.y > 0) {
        float *own = others + (threadIdx.y - 1) * stride + threadIdx.x;
#pragma unroll
        for (int i = 0; i < packs * n; i++) {
            own[i * blockDim.x] = dweight[i / n][i % n];
            own[(packs * n + i) * blockDim.x] = dbias[i / n][i % n];
        }
    }
    __syncthreads();
    if (threadIdx.y > 0)
        return;
#pragma unroll 1
    for (unsigned y = 0; y + 1 < blockDim.y; y++) {
        const float *other = others + y * stride + threadIdx.x;
#pragma unroll
        for (int i = 0; i < packs * n; i++) {
            dweight[i / n][i % n] += other[i * blockDim.x];
            dbias[i / n][i % n] += other[(packs * n + i) * blockDim.x];
        }
    }
    float *out = partials + size_t(blockIdx.x) * 2 * cols;
#pragma unroll
    for (int p = 0; p < packs; p++) {
        if (col_of(p) < cols) {
            pack<float, n> sum;
#pragma unroll
            for (int k = 0; k < n; k++)
                sum.at[k] = dweight[p][k];
            store_pack(out + col_of(p), sum);
#pragma unroll
            for (int k = 0; k < n; k++)
                sum.at[k] = dbias[p][k];
            store_pack(out + cols + col_of(p), sum);
        }
    }
}

/* A row at a time, read twice; the sums grow in `partials`. */
template <typename T, int n, weft_norm_kind KIND>
__global__ void __launch_bounds__(LONG_THREADS)
    backward_long_rows(weft_norm_backward_args a, float *partials)
{
    __shared__ float shared[WARP];
    const size_t cols = a.cols, start = size_t(threadIdx.x) * n, step = size_t(LONG_THREADS) * n;
    const T *weight = static_cast<const T *>(a.weight);
    float *dweights = partials + size_t(blockIdx.x) * 2 * cols, *dbiases = dweights + cols;
    for (size_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        const T *dy = static_cast<const T *>(a.dy) + row * cols;
        const T *x = static_cast<const T *>(a.x) + row * cols;
        const float rstd = a.rstd[row],
                    shift = KIND == WEFT_NORM_LAYER ? -a.mean[row] * rstd : 0.0f;
        float sum_g = 0.0f, sum_gh = 0.0f;
        for (size_t col = start; col < cols; col += step) {
            const pack<T, n> d = load_pack<n>(dy + col), values = load_pack<n>(x + col);
            const pack<T, n> weights = load_pack<n>(weight + col);
            for (int k = 0; k < n; k++) {
                const float g = to_float(d.at[k]) * (to_float(weights.at[k]) + a.weight_offset);
                sum_g += g;
                sum_gh += g * (to_float(values.at[k]) * rstd + shift);
            }
        }
        sum_g = KIND == WEFT_NORM_LAYER ? block_sum(sum_g, shared) : 0.0f;
        sum_gh = block_sum(sum_gh, shared);
        const row_terms r = terms_of<KIND>(rstd, shift, sum_g, sum_gh, 1.0f / float(cols));
        for (size_t col = start; col < cols; col += step) {
            const T *dx = static_cast<const T *>(a.dx) + row * cols + col;
            pack<T, n> before = {};
            float dweight[n] = {}, dbias[n] = {};
            pack<float, n> sum;
            if (a.accumulate)
                before = load_pack<n>(dx);
            store_gradient<T, n, KIND>(a, load_pack<n>(dy + col), load_pack<n>(x + col),
                                       load_pack<n>(weight + col), before, r, row * cols + col,
                                       dweight, dbias);
            const bool is_first = row == blockIdx.x;
            for (int k = 0; k < n; k++)
                sum.at[k] = dweight[k] + (is_first ? 0.0f : dweights[col + k]);
            store_pack(dweights + col, sum);
            for (int k = 0; k < n; k++)
                sum.at[k] = dbias[k] + (is_first ? 0.0f : dbiases[col + k]);
            store_pack(dbiases + col, sum);
        }
    }
}

__global__ void join_gradients(weft_norm_backward_args a, const float *partials, unsigned num)
{
    const size_t col = size_t(blockIdx.x) * WARP + threadIdx.x;
    const bool is_weight = col < a.cols;
    const float sum = sum_of_column(partials, 2 * a.cols, 0, num, col);
    float *to = is_weight ? a.dweight + col : a.dbias + (col - a.cols);
    if (threadIdx.y == 0 && col < 2 * a.cols && (is_weight || a.dbias))
        *to = sum + (a.overwrite ? 0.0f : *to);
}

template <typename T, weft_norm_kind KIND>
weft_status backward_kind(weft_lane *lane, const weft_norm_backward_args *args)
{
    constexpr int n = WIDTH<T>;
    const size_t packs = args->cols / n, sums_bytes = 2 * args->cols * sizeof(float);
    cudaStream_t stream = weft_cuda_stream(lane);
    const bool is_short = args->cols % n == 0 && packs <= BACKWARD_PACKS * BACKWARD_THREADS &&
                          is_aligned(16, args->x, args->dy, args->dx, args->weight);
    const unsigned threads = is_short ? threads_for(packs, BACKWARD_PACKS) : LONG_THREADS;
    const unsigned rows_at_once = threads < ROWS_THREADS ? ROWS_THREADS / threads : 1;
    size_t blocks = 2 * static_cast<size_t>(weft_cuda_num_multiprocessors(weft_lane_device(lane)));
    if (blocks > WEFT_CUDA_WORKSPACE_BYTES / sums_bytes)
        blocks = WEFT_CUDA_WORKSPACE_BYTES / sums_bytes;
    if (blocks == 0)
        return WEFT_ERROR(WEFT_INTERNAL, "rows of %zu numbers are too long", args->cols);
    if (blocks > num_blocks(args->rows, rows_at_once))
        blocks = num_blocks(args->rows, rows_at_once);
    const unsigned num = static_cast<unsigned>(blocks);
    void *workspace;
    WEFT_TRY(weft_cuda_workspace(lane, num * sums_bytes, &workspace));
    float *partials = static_cast<float *>(workspace);
    const dim3 block(threads, rows_at_once);
    const size_t shared =
        size_t(rows_at_once - 1) * 2 * BACKWARD_PACKS * n * threads * sizeof(float);
    if (num == 0) { /* no rows: nothing is added up */
    } else if (is_short) {
        WEFT_TRY(
            WEFT_LAUNCH((backward_rows<T, n, KIND>), num, block, shared, stream, *args, partials));
    } else if (args->cols % n == 0 && is_aligned(16, args->x, args->dy, args->dx, args->weight)) {
        WEFT_TRY(WEFT_LAUNCH((backward_long_rows<T, n, KIND>), num, LONG_THREADS, 0, stream, *args,
                             partials));
    } else {
        WEFT_TRY(WEFT_LAUNCH((backward_long_rows<T, 1, KIND>), num, LONG_THREADS, 0, stream, *args,
                             partials));
    }
    return WEFT_LAUNCH(join_gradients, num_blocks(2 * args->cols, WARP), SUM_COLUMNS_BLOCK, 0,
                       stream, *args, partials, num);
}

template <typename T> weft_status backward(weft_lane *lane, const weft_norm_backward_args *args)
{
    return args->kind == WEFT_NORM_LAYER ? backward_kind<T, WEFT_NORM_LAYER>(lane, args)
                                         : backward_kind<T, WEFT_NORM_RMS>(lane, args);
}

} // namespace

weft_status weft_cuda_norm_forward(weft_lane *lane, const weft_norm_forward_args *args)
{
    if (args->rows == 0 || args->cols == 0)
        return WEFT_OK;
    return WITH_DTYPE(args->dtype, forward<T>(lane, args));
}

weft_status weft_cuda_norm_backward(weft_lane *lane, const weft_norm_backward_args *args)
{
    if (args->cols == 0 || (args->rows == 0 && !args->overwrite))
        return WEFT_OK;
    return WITH_DTYPE(args->dtype, backward<T>(lane, args));
}
