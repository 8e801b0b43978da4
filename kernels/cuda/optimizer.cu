/* AdamW, momentum, copies of matrices, the sum of squares, what is not finite, and hashes. */
#include <math.h>

#include "kernels/cuda/each.cuh"

namespace
{

/* The weight of a master (of bf16 as weft_split_master_args says), its low bits, and back. */
template <typename T> __device__ inline T weight_of(float master)
{
    return from_float<T>(master);
}
template <> __device__ inline __nv_bfloat16 weight_of<__nv_bfloat16>(float master)
{
    const unsigned rounded = (__float_as_uint(master) + 0x8000u) >> 16;
    return __ushort_as_bfloat16(static_cast<uint16_t>(master == master ? rounded : 0x7fc0u));
}
__device__ inline uint16_t low_of(float master)
{
    return static_cast<uint16_t>(master == master ? __float_as_uint(master) : 0u);
}
__device__ inline float master_of(__nv_bfloat16 weight, uint16_t low)
{
    const unsigned high = static_cast<unsigned>(__bfloat16_as_ushort(weight)) << 16;
    return __uint_as_float(high + static_cast<unsigned>(static_cast<int16_t>(low)));
}
template <int n>
__device__ inline pack<float, n> joined(const __nv_bfloat16 *weight, const uint16_t *low)
{
    const pack<__nv_bfloat16, n> high = load_pack<n>(weight);
    const pack<uint16_t, n> rest = load_pack<n>(low);
    pack<float, n> out;
#pragma unroll
    for (int j = 0; j < n; j++)
        out.at[j] = master_of(high.at[j], rest.at[j]);
    return out;
}

/* Where the masters are: they are the weights, lie beside them, or are split. */
enum class form { alone, beside, split };

/* With bias corrections c1 = 1 / (1 - b1^t) and c2 = 1 / (1 - b2^t):
 * rate = lr c1, second_scale = sqrt(c2), decay = 1 - lr weight_decay. */
struct adamw_constants {
    float beta1, beta2, epsilon, decay, rate, second_scale;
};

template <typename T, int n, form kind, bool moments> struct adamw_op {
    static constexpr int width = n;
    struct operands {
        pack<float, n> master, m, v, grad;
    };
    float *master, *m, *v;
    uint16_t *low;
    const float *grad, *grad_scale;
    T *weight;
    adamw_constants k;

    __device__ operands load(size_t i) const
    {
        if constexpr (!moments)
            return {load_master(i), {}, {}, load_pack<n>(grad + i)};
        else
            return {load_master(i), load_pack<n>(m + i), load_pack<n>(v + i),
                    load_pack<n>(grad + i)};
    }
    __device__ pack<float, n> load_master(size_t i) const
    {
        if constexpr (kind == form::split)
            return joined<n>(weight + i, low + i);
        else
            return load_pack<n>(master + i);
    }
    __device__ void store(size_t i, operands x) const
    {
        const float scale = grad_scale ? *grad_scale : 1.0f;
        pack<T, n> narrowed;
        pack<uint16_t, n> rest;
#pragma unroll
        for (int j = 0; j < n; j++) {
            const float g = x.grad.at[j] * scale;
            float step = k.rate * g;
            if (moments) {
                x.m.at[j] = k.beta1 * x.m.at[j] + (1.0f - k.beta1) * g;
                x.v.at[j] = k.beta2 * x.v.at[j] + (1.0f - k.beta2) * g * g;
                step = k.rate * x.m.at[j] / (sqrtf(x.v.at[j]) * k.second_scale + k.epsilon);
            }
            x.master.at[j] = x.master.at[j] * k.decay - step;
            narrowed.at[j] = weight_of<T>(x.master.at[j]);
            rest.at[j] = low_of(x.master.at[j]);
        }
        if (moments) {
            store_pack(m + i, x.m);
            store_pack(v + i, x.v);
        }
        if (kind == form::split)
            store_pack(low + i, rest);
        else
            store_pack(master + i, x.master);
        if (kind != form::alone)
            store_pack(weight + i, narrowed);
    }
};

template <typename T, form kind, bool moments>
weft_status launch_adamw(weft_lane *lane, const weft_adamw_args *args)
{
    const double first_rest = 1.0 - pow(double(args->beta1), double(args->step));
    const double second_rest = 1.0 - pow(double(args->beta2), double(args->step));
    const adamw_constants k = {args->beta1,
                               args->beta2,
                               args->epsilon,
                               1.0f - args->lr * args->weight_decay,
                               moments ? float(double(args->lr) / first_rest) : args->lr,
                               float(sqrt(1.0 / second_rest))};
    T *weight = static_cast<T *>(args->weight);
    const bool aligned = is_aligned(16, args->master, args->m, args->v, args->grad) &&
                         is_aligned(8, args->low) &&
                         (kind == form::alone || is_aligned(4 * sizeof(T), weight));
    return launch_each(lane, args->count, aligned,
                       adamw_op<T, 4, kind, moments>{args->master, args->m, args->v, args->low,
                                                     args->grad, args->grad_scale, weight, k},
                       adamw_op<T, 1, kind, moments>{args->master, args->m, args->v, args->low,
                                                     args->grad, args->grad_scale, weight, k});
}

template <typename T, form kind> weft_status adamw(weft_lane *lane, const weft_adamw_args *args)
{
    return args->m ? launch_adamw<T, kind, true>(lane, args)
                   : launch_adamw<T, kind, false>(lane, args);
}

template <int n> struct momentum_op {
    static constexpr int width = n;
    struct operands {
        pack<float, n> m, grad;
    };
    float *m, *grad;
    const float *grad_scale;
    float momentum;
    bool nesterov;

    __device__ operands load(size_t i) const
    {
        return {load_pack<n>(m + i), load_pack<n>(grad + i)};
    }
    __device__ void store(size_t i, operands x) const
    {
        const float scale = grad_scale ? *grad_scale : 1.0f;
#pragma unroll
        for (int j = 0; j < n; j++) {
            const float g = (1.0f - momentum) * (x.grad.at[j] * scale);
            x.m.at[j] = momentum * x.m.at[j] + g;
            x.grad.at[j] = nesterov ? momentum * x.m.at[j] + g : x.m.at[j];
        }
        store_pack(m + i, x.m);
        store_pack(grad + i, x.grad);
    }
};

constexpr unsigned COPY_THREADS = 256;

__global__ void __launch_bounds__(COPY_THREADS) copy_matrix(weft_matrix_copy_args a)
{
    const double norm = a.squares ? fmax(sqrt(*a.squares), 1e-7) : 1.0;
    const float factor = static_cast<float>(static_cast<double>(a.factor) / norm);
    const size_t count = a.rows * a.cols, stride = size_t(gridDim.x) * COPY_THREADS;
    for (size_t i = size_t(blockIdx.x) * COPY_THREADS + threadIdx.x; i < count; i += stride) {
        const size_t row = i / a.cols, col = i - row * a.cols;
        a.to[row * a.ld_to + col] = factor * a.from[row * a.ld_from + col];
    }
}

template <int n> struct split_op {
    static constexpr int width = n;
    struct operands {
        pack<float, n> master;
    };
    const float *master;
    __nv_bfloat16 *weight;
    uint16_t *low;

    __device__ operands load(size_t i) const
    {
        return {load_pack<n>(master + i)};
    }
    __device__ void store(size_t i, operands x) const
    {
        pack<__nv_bfloat16, n> narrowed;
        pack<uint16_t, n> rest;
#pragma unroll
        for (int j = 0; j < n; j++) {
            narrowed.at[j] = weight_of<__nv_bfloat16>(x.master.at[j]);
            rest.at[j] = low_of(x.master.at[j]);
        }
        if (weight)
            store_pack(weight + i, narrowed);
        if (low)
            store_pack(low + i, rest);
    }
};

template <int n> struct join_op {
    static constexpr int width = n;
    struct operands {
        pack<float, n> master;
    };
    const __nv_bfloat16 *weight;
    const uint16_t *low;
    float *master;

    __device__ operands load(size_t i) const
    {
        return {joined<n>(weight + i, low + i)};
    }
    __device__ void store(size_t i, operands x) const
    {
        store_pack(master + i, x.master);
    }
};

/* The first part that ends behind an element, else the last. */
__device__ inline size_t part_of(const uint64_t *ends, size_t num_parts, size_t at)
{
    size_t low = 0, high = num_parts - 1;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (ends[middle] <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Marks the part of an element that is not finite: few are, or the time matters no more. */
template <int n> struct find_op {
    static constexpr int width = n;
    struct operands {
        pack<float, n> x;
    };
    const float *x;
    size_t num_parts;
    const uint64_t *ends;
    int32_t *found;

    __device__ operands load(size_t i) const
    {
        return {load_pack<n>(x + i)};
    }
    __device__ void store(size_t i, operands o) const
    {
#pragma unroll
        for (int j = 0; j < n; j++)
            if ((__float_as_uint(o.x.at[j]) & 0x7f800000u) == 0x7f800000u)
                mark(i + static_cast<size_t>(j));
    }
    __device__ void mark(size_t at) const
    {
        found[part_of(ends, num_parts, at)] = 1;
    }
};

constexpr unsigned SUM_THREADS = 512;
constexpr unsigned SUM_BLOCKS = 1024; /* at most: the cut, and so the sum's bits, are the count's */
constexpr unsigned SUM_PACKS = 8; /* of a thread, at least, where there is more than one block */

/* The block's sum, in thread 0, in fixed order. */
__device__ double sum_of_block(double x, double *shared)
{
    for (int offset = 16; offset > 0; offset /= 2)
        x += __shfl_down_sync(WHOLE_WARP, x, offset);
    if (threadIdx.x % WARP == 0)
        shared[threadIdx.x / WARP] = x;
    __syncthreads();
    if (threadIdx.x < WARP) {
        x = threadIdx.x < SUM_THREADS / WARP ? shared[threadIdx.x] : 0.0;
        for (int offset = 16; offset > 0; offset /= 2)
            x += __shfl_down_sync(WHOLE_WARP, x, offset);
    }
    return x;
}

/* Adds its squares to what each block finds in `sums` (accumulate), or writes them there. */
template <int n>
__global__ void __launch_bounds__(SUM_THREADS)
    sum_squares(const float *x, size_t count, double *sums, bool accumulate)
{
    __shared__ double shared[WARP];
    const size_t stride = size_t(gridDim.x) * SUM_THREADS;
    double sum[4] = {0.0, 0.0, 0.0, 0.0}; /* several chains of additions hide their latency */
    size_t i = size_t(blockIdx.x) * SUM_THREADS + threadIdx.x;
    for (; (i + 3 * stride) * n + n <= count; i += 4 * stride) {
        pack<float, n> values[4];
#pragma unroll
        for (int u = 0; u < 4; u++)
            values[u] = load_pack<n>(x + (i + u * stride) * n);
#pragma unroll
        for (int u = 0; u < 4; u++)
#pragma unroll
            for (int k = 0; k < n; k++)
                sum[k % 4] += double(values[u].at[k]) * double(values[u].at[k]);
    }
    for (; i * n < count; i += stride)
        for (size_t at = i * n; at < i * n + n && at < count; at++)
            sum[0] += double(x[at]) * double(x[at]);
    const double total = sum_of_block(sum[0] + sum[1] + (sum[2] + sum[3]), shared);
    if (threadIdx.x == 0)
        sums[blockIdx.x] = accumulate ? sums[blockIdx.x] + total : total;
}

__global__ void __launch_bounds__(SUM_THREADS)
    add_sums(const double *sums, unsigned num, double *total)
{
    __shared__ double shared[WARP];
    double sum = 0.0;
    for (unsigned i = threadIdx.x; i < num; i += SUM_THREADS)
        sum += sums[i];
    sum = sum_of_block(sum, shared);
    if (threadIdx.x == 0)
        *total += sum;
}

template <int n> weft_status launch_sum(weft_lane *lane, const weft_sum_squares_args *args)
{
    cudaStream_t stream = weft_cuda_stream(lane);
    unsigned blocks = num_blocks(args->count, size_t(n) * SUM_PACKS * SUM_THREADS);
    if (blocks == 1) /* many parameters are small: one launch does */
        return WEFT_LAUNCH(sum_squares<n>, 1, SUM_THREADS, 0, stream, args->x, args->count,
                           args->sum, true);
    blocks = blocks < SUM_BLOCKS ? blocks : SUM_BLOCKS;
    void *workspace;
    WEFT_TRY(weft_cuda_workspace(lane, blocks * sizeof(double), &workspace));
    double *sums = static_cast<double *>(workspace);
    WEFT_TRY(WEFT_LAUNCH(sum_squares<n>, blocks, SUM_THREADS, 0, stream, args->x, args->count, sums,
                         false));
    return WEFT_LAUNCH(add_sums, 1, SUM_THREADS, 0, stream, sums, blocks, args->sum);
}

constexpr unsigned HASH_THREADS = 256;
constexpr unsigned HASH_ELEMENTS = 32 * HASH_THREADS; /* of a block */

/* A warp's sum, added to what is there: sums of integers are the same in any order. */
__device__ inline void add_hash(unsigned long long sum, uint64_t *to)
{
    for (int offset = 16; offset > 0; offset /= 2)
        sum += __shfl_down_sync(WHOLE_WARP, sum, offset);
    if (threadIdx.x % WARP == 0)
        atomicAdd(reinterpret_cast<unsigned long long *>(to), sum);
}

template <typename T>
__global__ void __launch_bounds__(HASH_THREADS)
    hash(const T *x, size_t count, size_t num_parts, const uint64_t *ends, uint64_t *hashes)
{
    const size_t first = size_t(blockIdx.x) * HASH_ELEMENTS;
    const size_t end = first + HASH_ELEMENTS < count ? first + HASH_ELEMENTS : count;
    size_t part = part_of(ends, num_parts, first);
    for (size_t at = first; at < end; part++) {
        const size_t stop = part + 1 < num_parts && ends[part] < end ? ends[part] : end;
        unsigned long long sum = 0;
#pragma unroll 8
        for (size_t i = at + threadIdx.x; i < stop; i += HASH_THREADS)
            sum += static_cast<unsigned long long>(x[i]) *
                   ((2 * static_cast<uint32_t>(i) + 1) * 0x9e3779b1u);
        add_hash(sum, hashes + part);
        at = stop;
    }
}

} // namespace

weft_status weft_cuda_adamw(weft_lane *lane, const weft_adamw_args *args)
{
    if (!args->weight || args->weight == static_cast<void *>(args->master))
        return adamw<float, form::alone>(lane, args);
    if (args->low)
        return adamw<__nv_bfloat16, form::split>(lane, args);
    return WITH_DTYPE(args->dtype, (adamw<T, form::beside>(lane, args)));
}

weft_status weft_cuda_momentum(weft_lane *lane, const weft_momentum_args *args)
{
    return launch_each(
        lane, args->count, is_aligned(16, args->m, args->grad),
        momentum_op<4>{args->m, args->grad, args->grad_scale, args->momentum, args->nesterov},
        momentum_op<1>{args->m, args->grad, args->grad_scale, args->momentum, args->nesterov});
}

weft_status weft_cuda_matrix_copy(weft_lane *lane, const weft_matrix_copy_args *args)
{
    const unsigned blocks = num_blocks(args->rows * args->cols, size_t(4) * COPY_THREADS);
    if (blocks == 0)
        return WEFT_OK;
    return WEFT_LAUNCH(copy_matrix, blocks, COPY_THREADS, 0, weft_cuda_stream(lane), *args);
}

weft_status weft_cuda_split_master(weft_lane *lane, const weft_split_master_args *args)
{
    auto *weight = static_cast<__nv_bfloat16 *>(args->weight);
    const bool aligned = is_aligned(16, args->master) && is_aligned(8, weight, args->low);
    return launch_each(lane, args->count, aligned, split_op<4>{args->master, weight, args->low},
                       split_op<1>{args->master, weight, args->low});
}

weft_status weft_cuda_join_master(weft_lane *lane, const weft_join_master_args *args)
{
    const auto *weight = static_cast<const __nv_bfloat16 *>(args->weight);
    const bool aligned = is_aligned(16, args->master) && is_aligned(8, weight, args->low);
    return launch_each(lane, args->count, aligned, join_op<4>{weight, args->low, args->master},
                       join_op<1>{weight, args->low, args->master});
}

weft_status weft_cuda_sum_squares(weft_lane *lane, const weft_sum_squares_args *args)
{
    if (args->count == 0)
        return WEFT_OK;
    return is_aligned(16, args->x) ? launch_sum<4>(lane, args) : launch_sum<1>(lane, args);
}

weft_status weft_cuda_find_not_finite(weft_lane *lane, const weft_find_not_finite_args *args)
{
    return launch_each(lane, args->count, is_aligned(16, args->x),
                       find_op<4>{args->x, args->num_parts, args->ends, args->found},
                       find_op<1>{args->x, args->num_parts, args->ends, args->found});
}

weft_status weft_cuda_hash(weft_lane *lane, const weft_hash_args *args)
{
    cudaStream_t stream = weft_cuda_stream(lane);
    const unsigned blocks = num_blocks(args->count, HASH_ELEMENTS);
    if (blocks == 0)
        return WEFT_OK;
    if (args->element_bytes == 2)
        return WEFT_LAUNCH(hash<uint16_t>, blocks, HASH_THREADS, 0, stream,
                           static_cast<const uint16_t *>(args->x), args->count, args->num_parts,
                           args->ends, args->hashes);
    return WEFT_LAUNCH(hash<uint32_t>, blocks, HASH_THREADS, 0, stream,
                       static_cast<const uint32_t *>(args->x), args->count, args->num_parts,
                       args->ends, args->hashes);
}
