/* Cross-entropy. A block takes one row of logits and reads it once, 16 bytes a load: the maximum
 * and the sum of exponentials run along together, the sum rescaled where the maximum grows (Milakov
 * and Gimelshein 2018). The gradient takes the logits' place, so that it reads and writes a row
 * once. */
#include "kernels/cuda/each.cuh"

constexpr unsigned THREADS = 512; /* a row of a vocabulary's logits */
constexpr unsigned UNROLL = 4;    /* loads of a thread that are under way together */
constexpr unsigned LOSS_THREADS = 256;

/* Logits of 16 bits carry errors beside which those of the fast exponential are nothing. */
template <typename T> static __device__ inline float exponential(float x)
{
    return sizeof(T) == sizeof(float) ? expf(x) : __expf(x);
}

/* Calls use(column, numbers) for packs of a row's first `num` numbers until this block's threads
 * have met all of them: packs of 16 bytes, single numbers up to the first aligned one and after the
 * last. `use` may overwrite what it is given. */
template <typename T, typename Use>
static __device__ inline void each_pack(const T *row, size_t num, Use use)
{
    constexpr unsigned WIDTH = 16 / sizeof(T);
    using single = pack<T, 1>;
    using wide = pack<T, WIDTH>;
    const size_t misplaced = reinterpret_cast<uintptr_t>(row) % 16;
    size_t head = misplaced ? (16 - misplaced) / sizeof(T) : 0;
    head = head < num ? head : num;
    if (threadIdx.x < head)
        use(threadIdx.x, *reinterpret_cast<const single *>(row + threadIdx.x));
    const wide *packs = reinterpret_cast<const wide *>(row + head);
    const size_t num_packs = (num - head) / WIDTH;
    size_t at = threadIdx.x;
    for (; at + (UNROLL - 1) * THREADS < num_packs; at += UNROLL * THREADS) {
        wide loaded[UNROLL];
#pragma unroll
        for (unsigned u = 0; u < UNROLL; u++)
            loaded[u] = packs[at + u * THREADS];
#pragma unroll
        for (unsigned u = 0; u < UNROLL; u++)
            use(head + (at + u * THREADS) * WIDTH, loaded[u]);
    }
    for (; at < num_packs; at += THREADS)
        use(head + at * WIDTH, packs[at]);
    const size_t last = head + num_packs * WIDTH + threadIdx.x;
    if (last < num)
        use(last, *reinterpret_cast<const single *>(row + last));
}

template <typename T, weft_cross_entropy_pass PASS>
static __global__ void __launch_bounds__(THREADS) stats_row(weft_cross_entropy_stats_args a)
{
    __shared__ float shared[WARP];
    const size_t row = blockIdx.x;
    const T *logits = static_cast<const T *>(a.logits) + row * a.cols;
    float max = PASS == WEFT_CROSS_ENTROPY_SUM ? a.row_max[row] : -INFINITY, sum = 0.0f;
    each_pack(logits, a.valid_cols, [&](size_t, auto values) {
        constexpr unsigned COUNT = sizeof values / sizeof(T);
        if (PASS != WEFT_CROSS_ENTROPY_SUM) {
            float largest = max;
#pragma unroll
            for (unsigned i = 0; i < COUNT; i++)
                largest = fmaxf(largest, to_float(values.at[i]));
            if (largest > max) {
                if (PASS == WEFT_CROSS_ENTROPY_FUSED)
                    sum *= exponential<T>(max - largest);
                max = largest;
            }
        }
        if (PASS != WEFT_CROSS_ENTROPY_MAX) {
            const float shift = max > -INFINITY ? max : 0.0f;
#pragma unroll
            for (unsigned i = 0; i < COUNT; i++)
                sum += exponential<T>(to_float(values.at[i]) - shift);
        }
    });
    if (PASS != WEFT_CROSS_ENTROPY_SUM) {
        const float largest = block_max(max, shared);
        if (PASS == WEFT_CROSS_ENTROPY_FUSED && largest > max)
            sum *= exponential<T>(max - largest);
        max = largest;
    }
    if (PASS != WEFT_CROSS_ENTROPY_MAX)
        sum = block_sum(sum, shared);
    if (threadIdx.x > 0)
        return;
    if (PASS != WEFT_CROSS_ENTROPY_SUM)
        a.row_max[row] = max;
    if (PASS != WEFT_CROSS_ENTROPY_MAX) {
        const int64_t label = int64_t(a.labels[row]) - int64_t(a.first_col);
        a.row_sum[row] = sum;
        a.target[row] =
            label >= 0 && label < int64_t(a.valid_cols) ? to_float(logits[label]) : 0.0f;
    }
}

template <typename T>
static weft_status launch_stats(weft_lane *lane, const weft_cross_entropy_stats_args *args)
{
    const unsigned rows = static_cast<unsigned>(args->rows);
    cudaStream_t stream = weft_cuda_stream(lane);
    if (args->pass == WEFT_CROSS_ENTROPY_MAX)
        return WEFT_LAUNCH((stats_row<T, WEFT_CROSS_ENTROPY_MAX>), rows, THREADS, 0, stream, *args);
    if (args->pass == WEFT_CROSS_ENTROPY_SUM)
        return WEFT_LAUNCH((stats_row<T, WEFT_CROSS_ENTROPY_SUM>), rows, THREADS, 0, stream, *args);
    return WEFT_LAUNCH((stats_row<T, WEFT_CROSS_ENTROPY_FUSED>), rows, THREADS, 0, stream, *args);
}

weft_status weft_cuda_cross_entropy_stats(weft_lane *lane,
                                          const weft_cross_entropy_stats_args *args)
{
    if (args->rows == 0)
        return WEFT_OK;
    weft_cross_entropy_stats_args local = *args;
    if (args->pass != WEFT_CROSS_ENTROPY_MAX) /* a batch's labels are as the host wrote them */
        WEFT_TRY(bring_near(lane, 0, args->rows, &local.labels));
    return WITH_DTYPE(args->dtype, launch_stats<T>(lane, &local));
}

template <typename T>
static __global__ void __launch_bounds__(THREADS) backward_row(weft_cross_entropy_backward_args a)
{
    const size_t row = blockIdx.x;
    T *logits = static_cast<T *>(a.logits) + row * a.cols;
    const float weight = a.scale * (a.mask ? a.mask[row] : 1.0f);
    size_t written = 0;
    if (weight != 0.0f) {
        const float max = a.row_max[row], factor = weight / a.row_sum[row];
        const int64_t label = int64_t(a.labels[row]) - int64_t(a.first_col);
        each_pack<T>(logits, a.valid_cols, [&](size_t col, auto values) {
            constexpr unsigned COUNT = sizeof values / sizeof(T);
            const uint64_t place = uint64_t(label) - col; /* below COUNT: the label is among them */
            float gradient[COUNT];
#pragma unroll
            for (unsigned i = 0; i < COUNT; i++)
                gradient[i] = exponential<T>(to_float(values.at[i]) - max) * factor;
            if (place < COUNT) {
#pragma unroll
                for (unsigned i = 0; i < COUNT; i++)
                    gradient[i] -= i == place ? weight : 0.0f;
            }
            if (a.softcap > 0) {
#pragma unroll
                for (unsigned i = 0; i < COUNT; i++) {
                    const float t = to_float(values.at[i]) / a.softcap;
                    gradient[i] *= 1.0f - t * t;
                }
            }
#pragma unroll
            for (unsigned i = 0; i < COUNT; i++)
                values.at[i] = from_float<T>(gradient[i]);
            store_pack(logits + col, values);
        });
        written = a.valid_cols;
    }
    /* a masked row, or padding */
    for (size_t col = written + threadIdx.x; col < a.cols; col += THREADS)
        logits[col] = from_float<T>(0.0f);
}

template <typename T>
static weft_status launch_backward(weft_lane *lane, const weft_cross_entropy_backward_args *args)
{
    return WEFT_LAUNCH(backward_row<T>, static_cast<unsigned>(args->rows), THREADS, 0,
                       weft_cuda_stream(lane), *args);
}

weft_status weft_cuda_cross_entropy_backward(weft_lane *lane,
                                             const weft_cross_entropy_backward_args *args)
{
    if (args->rows == 0 || args->cols == 0)
        return WEFT_OK;
    weft_cross_entropy_backward_args local = *args;
    WEFT_TRY(bring_near(lane, 0, args->rows, &local.labels));
    WEFT_TRY(bring_near(lane, args->rows * sizeof(int32_t), args->rows, &local.mask));
    return WITH_DTYPE(args->dtype, launch_backward<T>(lane, &local));
}

/* The block's sum of doubles, in thread 0. */
static __device__ inline double sum_block(double x, double *shared)
{
    shared[threadIdx.x] = x;
    for (unsigned half = LOSS_THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half)
            shared[threadIdx.x] += shared[threadIdx.x + half];
    }
    return shared[threadIdx.x];
}

static __global__ void __launch_bounds__(LOSS_THREADS)
    loss_rows(weft_cross_entropy_loss_args a, double *partials)
{
    __shared__ double shared[LOSS_THREADS];
    const size_t row = size_t(blockIdx.x) * LOSS_THREADS + threadIdx.x;
    double loss = 0.0;
    if (row < a.rows) {
        const double mask = a.mask ? double(a.mask[row]) : 1.0;
        if (mask != 0.0) /* else the row may hold anything, even infinities */
            loss = mask *
                   (log(double(a.row_sum[row])) + double(a.row_max[row]) - double(a.target[row]));
        if (a.loss)
            a.loss[row] = float(loss);
    }
    loss = sum_block(loss, shared);
    if (threadIdx.x == 0)
        partials[blockIdx.x] = loss;
}

static __global__ void __launch_bounds__(LOSS_THREADS)
    add_losses(const double *partials, unsigned num, double *loss_sum)
{
    __shared__ double shared[LOSS_THREADS];
    double sum = 0.0;
    for (unsigned i = threadIdx.x; i < num; i += LOSS_THREADS)
        sum += partials[i];
    sum = sum_block(sum, shared);
    if (threadIdx.x == 0)
        *loss_sum += sum;
}

weft_status weft_cuda_cross_entropy_loss(weft_lane *lane, const weft_cross_entropy_loss_args *args)
{
    if (args->rows == 0)
        return WEFT_OK;
    const unsigned blocks = num_blocks(args->rows, LOSS_THREADS);
    void *partials = NULL;
    WEFT_TRY(weft_cuda_workspace(lane, blocks * sizeof(double), &partials));
    cudaStream_t stream = weft_cuda_stream(lane);
    WEFT_TRY(WEFT_LAUNCH(loss_rows, blocks, LOSS_THREADS, 0, stream, *args,
                         static_cast<double *>(partials)));
    return WEFT_LAUNCH(add_losses, 1, LOSS_THREADS, 0, stream,
                       static_cast<const double *>(partials), blocks, args->loss_sum);
}
