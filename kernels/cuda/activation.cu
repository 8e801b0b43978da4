/* Activations and rotary positions. */
#include <math.h>

#include "kernels/cuda/each.cuh"
#include "kernels/rope.h"

namespace
{

/* GELU's tanh form: 0.5 x (1 + tanh u) = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3). */
constexpr float gelu_slope = 1.5957691216f; /* 2 sqrt(2 / pi) */
constexpr float gelu_cubic = 1.5957691216f * 0.044715f;
constexpr float quick_slope = 1.702f;

/* Numbers of 16 bits carry errors beside which those of the fast functions are nothing. */
template <typename T> __device__ float sigmoid(float x)
{
    return sizeof(T) == sizeof(float) ? 1.0f / (1.0f + expf(-x))
                                      : __fdividef(1.0f, 1.0f + __expf(-x));
}

/* Those of a gated kind are its gate's. */
template <weft_activation_kind KIND>
constexpr bool has_formula =
    KIND == WEFT_ACTIVATION_RELU || KIND == WEFT_ACTIVATION_QUICK_GEGLU ||
    KIND == WEFT_ACTIVATION_GELU || KIND == WEFT_ACTIVATION_GEGLU || KIND == WEFT_ACTIVATION_SILU;

template <typename T, weft_activation_kind KIND> __device__ float activate(float x)
{
    static_assert(has_formula<KIND>, "a kind without a formula");
    if (KIND == WEFT_ACTIVATION_RELU)
        return x > 0.0f ? x : 0.0f;
    if (KIND == WEFT_ACTIVATION_QUICK_GEGLU)
        return x * sigmoid<T>(quick_slope * x);
    if (KIND == WEFT_ACTIVATION_GELU || KIND == WEFT_ACTIVATION_GEGLU)
        return x * sigmoid<T>(x * (gelu_slope + gelu_cubic * x * x));
    return x * sigmoid<T>(x);
}

template <typename T, weft_activation_kind KIND> __device__ float slope_of(float x)
{
    static_assert(has_formula<KIND>, "a kind without a formula");
    if (KIND == WEFT_ACTIVATION_RELU)
        return x > 0.0f ? 1.0f : 0.0f;
    if (KIND == WEFT_ACTIVATION_QUICK_GEGLU) {
        const float s = sigmoid<T>(quick_slope * x);
        return s + quick_slope * x * s * (1.0f - s);
    }
    if (KIND == WEFT_ACTIVATION_GELU || KIND == WEFT_ACTIVATION_GEGLU) {
        const float s = sigmoid<T>(x * (gelu_slope + gelu_cubic * x * x));
        const float rest = s * (1.0f - s); /* where it is 0, what it multiplies may be infinite */
        return rest > 0.0f ? s + x * rest * (gelu_slope + 3.0f * gelu_cubic * x * x) : s;
    }
    const float s = sigmoid<T>(x);
    return s + x * s * (1.0f - s);
}

template <typename T, int n, weft_activation_kind KIND> struct forward_op {
    static constexpr int width = n;
    using operands = pack<T, n>;
    const T *x;
    T *y;

    __device__ operands load(size_t i) const
    {
        return load_pack<n>(x + i);
    }
    __device__ void store(size_t i, operands values) const
    {
#pragma unroll
        for (int k = 0; k < n; k++)
            values.at[k] = from_float<T>(activate<T, KIND>(to_float(values.at[k])));
        store_pack(y + i, values);
    }
};

template <typename T, int n, weft_activation_kind KIND> struct backward_op {
    static constexpr int width = n;
    struct operands {
        pack<T, n> x, dy;
    };
    const T *x, *dy;
    T *dx;

    __device__ operands load(size_t i) const
    {
        return {load_pack<n>(x + i), load_pack<n>(dy + i)};
    }
    __device__ void store(size_t i, operands values) const
    {
#pragma unroll
        for (int k = 0; k < n; k++)
            values.x.at[k] = from_float<T>(to_float(values.dy.at[k]) *
                                           slope_of<T, KIND>(to_float(values.x.at[k])));
        store_pack(dx + i, values.x);
    }
};

/* Gated ones' elements are counted as y's are; the gate of element i is at i + (its row) cols, the
 * other half's number cols later. Counts fit in 32 bits, for a cheap division. */
template <int n> __device__ size_t gate_of(size_t i, uint32_t packs_per_row)
{
    return i + size_t(uint32_t(i / n) / packs_per_row) * packs_per_row * n;
}

/* Where there is no limit, `top` is above all numbers. */
__device__ inline float limited(float x, float top)
{
    return x > top ? top : x < -top ? -top : x;
}

template <typename T, int n, weft_activation_kind KIND> struct gated_forward_op {
    static constexpr int width = n;
    struct operands {
        pack<T, n> gate, up;
    };
    const T *x;
    T *y;
    uint32_t packs_per_row;
    float top, offset;

    __device__ operands load(size_t i) const
    {
        const T *gate = x + gate_of<n>(i, packs_per_row);
        return {load_pack<n>(gate), load_pack<n>(gate + size_t(packs_per_row) * n)};
    }
    __device__ void store(size_t i, operands values) const
    {
#pragma unroll
        for (int k = 0; k < n; k++) {
            const float g = to_float(values.gate.at[k]), u = to_float(values.up.at[k]);
            values.up.at[k] =
                from_float<T>(activate<T, KIND>(g > top ? top : g) * (limited(u, top) + offset));
        }
        store_pack(y + i, values.up);
    }
};

template <typename T, int n, weft_activation_kind KIND> struct gated_backward_op {
    static constexpr int width = n;
    struct operands {
        pack<T, n> gate, up, dy;
    };
    const T *x, *dy;
    T *dx;
    uint32_t packs_per_row;
    float top, offset;

    __device__ operands load(size_t i) const
    {
        const T *gate = x + gate_of<n>(i, packs_per_row);
        return {load_pack<n>(gate), load_pack<n>(gate + size_t(packs_per_row) * n),
                load_pack<n>(dy + i)};
    }
    __device__ void store(size_t i, operands values) const
    {
        T *dgate = dx + gate_of<n>(i, packs_per_row);
#pragma unroll
        for (int k = 0; k < n; k++) {
            const float g = to_float(values.gate.at[k]), u = to_float(values.up.at[k]);
            const float d = to_float(values.dy.at[k]), g_in = g > top ? top : g;
            const float slope = g > top ? 0.0f : slope_of<T, KIND>(g_in);
            values.gate.at[k] = from_float<T>(d * (limited(u, top) + offset) * slope);
            values.up.at[k] =
                from_float<T>(u > top || u < -top ? 0.0f : d * activate<T, KIND>(g_in));
        }
        store_pack(dgate, values.gate);
        store_pack(dgate + size_t(packs_per_row) * n, values.up);
    }
};

template <typename T, weft_activation_kind KIND>
weft_status plain_forward(weft_lane *lane, const weft_activation_forward_args *args)
{
    const T *x = static_cast<const T *>(args->x);
    T *y = static_cast<T *>(args->y);
    return launch_each(lane, args->rows * args->cols, is_aligned(16, x, y),
                       forward_op<T, WIDTH<T>, KIND>{x, y}, forward_op<T, 1, KIND>{x, y});
}

template <typename T, weft_activation_kind KIND>
weft_status plain_backward(weft_lane *lane, const weft_activation_backward_args *args)
{
    const T *x = static_cast<const T *>(args->x), *dy = static_cast<const T *>(args->dy);
    T *dx = static_cast<T *>(args->dx);
    return launch_each(lane, args->rows * args->cols, is_aligned(16, x, dy, dx),
                       backward_op<T, WIDTH<T>, KIND>{x, dy, dx},
                       backward_op<T, 1, KIND>{x, dy, dx});
}

/* Rows of `cols` numbers that one launch of a gated operation takes. */
size_t rows_at_once(size_t rows, size_t cols)
{
    const size_t most = (size_t(1) << 31) / cols;
    return rows < most || most == 0 ? rows : most;
}

template <typename T, weft_activation_kind KIND>
weft_status gated_forward(weft_lane *lane, const weft_activation_forward_args *args)
{
    constexpr int n = WIDTH<T>;
    const size_t cols = args->cols, step = rows_at_once(args->rows, cols);
    const float top = args->limit > 0 ? args->limit : INFINITY, offset = args->offset;
    for (size_t row = 0; row < args->rows; row += step) {
        const T *x = static_cast<const T *>(args->x) + 2 * row * cols;
        T *y = static_cast<T *>(args->y) + row * cols;
        const size_t num = (step < args->rows - row ? step : args->rows - row) * cols;
        const bool aligned = is_aligned(16, x, y) && cols % n == 0;
        WEFT_TRY(launch_each(
            lane, num, aligned,
            gated_forward_op<T, n, KIND>{x, y, static_cast<uint32_t>(cols / n), top, offset},
            gated_forward_op<T, 1, KIND>{x, y, static_cast<uint32_t>(cols), top, offset}));
    }
    return WEFT_OK;
}

template <typename T, weft_activation_kind KIND>
weft_status gated_backward(weft_lane *lane, const weft_activation_backward_args *args)
{
    constexpr int n = WIDTH<T>;
    const size_t cols = args->cols, step = rows_at_once(args->rows, cols);
    const float top = args->limit > 0 ? args->limit : INFINITY, offset = args->offset;
    for (size_t row = 0; row < args->rows; row += step) {
        const T *x = static_cast<const T *>(args->x) + 2 * row * cols;
        const T *dy = static_cast<const T *>(args->dy) + row * cols;
        T *dx = static_cast<T *>(args->dx) + 2 * row * cols;
        const size_t num = (step < args->rows - row ? step : args->rows - row) * cols;
        const bool aligned = is_aligned(16, x, dy, dx) && cols % n == 0;
        WEFT_TRY(launch_each(
            lane, num, aligned,
            gated_backward_op<T, n, KIND>{x, dy, dx, static_cast<uint32_t>(cols / n), top, offset},
            gated_backward_op<T, 1, KIND>{x, dy, dx, static_cast<uint32_t>(cols), top, offset}));
    }
    return WEFT_OK;
}

template <typename T, int n> struct cap_op {
    static constexpr int width = n;
    using operands = pack<T, n>;
    const T *x;
    T *y;
    float limit;

    __device__ operands load(size_t i) const
    {
        return load_pack<n>(x + i);
    }
    __device__ void store(size_t i, operands values) const
    {
#pragma unroll
        for (int k = 0; k < n; k++)
            values.at[k] = from_float<T>(limit * tanhf(to_float(values.at[k]) / limit));
        store_pack(y + i, values);
    }
};

template <typename T> weft_status cap(weft_lane *lane, const weft_activation_forward_args *args)
{
    const T *x = static_cast<const T *>(args->x);
    T *y = static_cast<T *>(args->y);
    return launch_each(lane, args->rows * args->cols, is_aligned(16, x, y),
                       cap_op<T, WIDTH<T>>{x, y, args->limit}, cap_op<T, 1>{x, y, args->limit});
}

template <typename T> weft_status forward(weft_lane *lane, const weft_activation_forward_args *args)
{
    switch (args->kind) {
    case WEFT_ACTIVATION_GELU:
        return plain_forward<T, WEFT_ACTIVATION_GELU>(lane, args);
    case WEFT_ACTIVATION_RELU:
        return plain_forward<T, WEFT_ACTIVATION_RELU>(lane, args);
    case WEFT_ACTIVATION_SILU:
        return plain_forward<T, WEFT_ACTIVATION_SILU>(lane, args);
    case WEFT_ACTIVATION_SWIGLU:
        return gated_forward<T, WEFT_ACTIVATION_SILU>(lane, args);
    case WEFT_ACTIVATION_GEGLU:
        return gated_forward<T, WEFT_ACTIVATION_GEGLU>(lane, args);
    case WEFT_ACTIVATION_QUICK_GEGLU:
        return gated_forward<T, WEFT_ACTIVATION_QUICK_GEGLU>(lane, args);
    case WEFT_ACTIVATION_CAP:
        return cap<T>(lane, args);
    }
    return WEFT_ERROR(WEFT_INTERNAL, "activation %d has no kernel", static_cast<int>(args->kind));
}

template <typename T>
weft_status backward(weft_lane *lane, const weft_activation_backward_args *args)
{
    switch (args->kind) {
    case WEFT_ACTIVATION_GELU:
        return plain_backward<T, WEFT_ACTIVATION_GELU>(lane, args);
    case WEFT_ACTIVATION_RELU:
        return plain_backward<T, WEFT_ACTIVATION_RELU>(lane, args);
    case WEFT_ACTIVATION_SILU:
        return plain_backward<T, WEFT_ACTIVATION_SILU>(lane, args);
    case WEFT_ACTIVATION_SWIGLU:
        return gated_backward<T, WEFT_ACTIVATION_SILU>(lane, args);
    case WEFT_ACTIVATION_GEGLU:
        return gated_backward<T, WEFT_ACTIVATION_GEGLU>(lane, args);
    case WEFT_ACTIVATION_QUICK_GEGLU:
        return gated_backward<T, WEFT_ACTIVATION_QUICK_GEGLU>(lane, args);
    case WEFT_ACTIVATION_CAP:
        break;
    }
    return WEFT_ERROR(WEFT_INTERNAL, "activation %d has no backward", static_cast<int>(args->kind));
}

constexpr unsigned ROPE_THREADS = 256;
constexpr int ROPE_UNROLL = 4;
constexpr size_t ROPE_PAIRS = 2048; /* whose angles a block keeps */

struct rope_shape {
    uint32_t batch, groups, heads, packs; /* heads of a group; packs of rotated pairs of a head */
    uint32_t first_pair, num_pairs, half;
    size_t token_stride, group_stride, head_stride;
    uint64_t first_position;
    const int32_t *index;        /* of positions, or NULL */
    double log2_base, direction; /* 1, or -1: back */
    float magnitude;
    weft_rope_scaling scaling;
};

/* A block turns one position's heads. Pair i turns by position base^(-i / half): its angle, which
 * grows to thousands of revolutions, is taken in fp64 and only what remains of a revolution goes to
 * fp32. The first numbers are on their way while that is computed. */
template <typename T, int n, bool NEIGHBOURS>
__global__ void __launch_bounds__(ROPE_THREADS) rope(T *x, rope_shape shape)
{
    WEFT_DYNAMIC_SHARED(float, table); /* [num_pairs] cosines, [num_pairs] sines */
    float *cosines = table, *sines = table + shape.num_pairs;
    const uint32_t s = blockIdx.x, packs = shape.packs;
    const uint32_t num = shape.batch * shape.groups * shape.heads * packs;
    constexpr int each = NEIGHBOURS ? 2 * n : n; /* channels from a pack of pairs to the next */
    const size_t apart = NEIGHBOURS ? n : shape.half;
    T *const tokens =
        x + size_t(s) * shape.batch * shape.token_stride + each / n * shape.first_pair;
    for (uint32_t first = threadIdx.x; first == threadIdx.x || first < num;
         first += ROPE_UNROLL * blockDim.x) {
        pack<T, n> low[ROPE_UNROLL], high[ROPE_UNROLL];
        T *at[ROPE_UNROLL];
#pragma unroll
        for (int u = 0; u < ROPE_UNROLL; u++) {
            const uint32_t i = first + u * blockDim.x, head = i / packs, group = head / shape.heads;
            at[u] = tokens + group / shape.groups * shape.token_stride +
                    group % shape.groups * shape.group_stride +
                    head % shape.heads * shape.head_stride + i % packs * each;
            if (i < num) {
                low[u] = load_pack<n>(at[u]);
                high[u] = load_pack<n>(at[u] + apart);
            }
        }
        if (first == threadIdx.x) {
            const double position =
                double(shape.index ? uint64_t(shape.index[s]) : shape.first_position + s);
            for (uint32_t i = threadIdx.x; i < shape.num_pairs; i += blockDim.x) {
                const double pair = double(shape.first_pair + i) / double(shape.half);
                const double frequency = exp2(-pair * shape.log2_base);
                const double turns =
                    position *
                    (frequency *
                     weft_rope_scale(&shape.scaling, double(shape.first_pair + i), frequency)) *
                    0.15915494309189533577;
                const float angle = float((turns - rint(turns)) * 6.283185307179586477);
                sincosf(angle, &sines[i], &cosines[i]);
                sines[i] *= float(shape.direction) * shape.magnitude;
                cosines[i] *= shape.magnitude;
            }
            __syncthreads();
        }
#pragma unroll
        for (int u = 0; u < ROPE_UNROLL; u++) {
            const uint32_t i = first + u * blockDim.x;
            if (i >= num)
                continue;
#pragma unroll
            for (int k = 0; k < n; k++) {
                const float cosine = cosines[i % packs * n + k], sine = sines[i % packs * n + k];
                const int first = NEIGHBOURS ? 2 * k : k, second = NEIGHBOURS ? 2 * k + 1 : n + k;
                T &to_a = first < n ? low[u].at[first % n] : high[u].at[first % n];
                T &to_b = second < n ? low[u].at[second % n] : high[u].at[second % n];
                const float a = to_float(to_a), b = to_float(to_b);
                to_a = from_float<T>(a * cosine - b * sine);
                to_b = from_float<T>(b * cosine + a * sine);
            }
            store_pack(at[u], low[u]);
            store_pack(at[u] + apart, high[u]);
        }
    }
}

template <typename T> weft_status launch_rope(weft_lane *lane, const weft_rope_args *args)
{
    constexpr int n = WIDTH<T>;
    const size_t half = args->rotary_dim / 2;
    const bool aligned = is_aligned(16, args->x) && half % n == 0 && args->token_stride % n == 0 &&
                         args->group_stride % n == 0 && args->head_stride % n == 0;
    T *x = static_cast<T *>(args->x);
    const size_t together = args->index_by_sample ? 1 : args->batch; /* tokens of one position */
    const size_t positions = args->seq * args->batch / together;
    const int32_t *index = args->index;
    WEFT_TRY(bring_near(lane, 0, positions, &index));
    for (size_t first = 0; first < half; first += ROPE_PAIRS) {
        const size_t num = half - first < ROPE_PAIRS ? half - first : ROPE_PAIRS;
        const rope_shape shape = {static_cast<uint32_t>(together),
                                  static_cast<uint32_t>(args->groups ? args->groups : 1),
                                  static_cast<uint32_t>(args->heads),
                                  static_cast<uint32_t>(aligned ? num / n : num),
                                  static_cast<uint32_t>(first),
                                  static_cast<uint32_t>(num),
                                  static_cast<uint32_t>(half),
                                  args->token_stride,
                                  args->group_stride,
                                  args->head_stride,
                                  args->first_position,
                                  index,
                                  log2(static_cast<double>(args->base)),
                                  args->inverse ? -1.0 : 1.0,
                                  args->magnitude > 0 ? args->magnitude : 1.0f,
                                  args->scaling};
        const unsigned blocks = static_cast<unsigned>(positions);
        const size_t packs = size_t(shape.batch) * shape.groups * shape.heads * shape.packs;
        unsigned threads = num_blocks(packs, ROPE_UNROLL * WARP) * WARP;
        threads = threads < 64 ? 64 : threads < ROPE_THREADS ? threads : ROPE_THREADS;
        const size_t shared = 2 * num * sizeof(float);
        cudaStream_t stream = weft_cuda_stream(lane);
        if (aligned && !args->interleaved)
            WEFT_TRY(WEFT_LAUNCH((rope<T, n, false>), blocks, threads, shared, stream, x, shape));
        else if (aligned)
            WEFT_TRY(WEFT_LAUNCH((rope<T, n, true>), blocks, threads, shared, stream, x, shape));
        else if (!args->interleaved)
            WEFT_TRY(WEFT_LAUNCH((rope<T, 1, false>), blocks, threads, shared, stream, x, shape));
        else
            WEFT_TRY(WEFT_LAUNCH((rope<T, 1, true>), blocks, threads, shared, stream, x, shape));
    }
    return WEFT_OK;
}

} // namespace

weft_status weft_cuda_activation_forward(weft_lane *lane, const weft_activation_forward_args *args)
{
    if (args->rows == 0 || args->cols == 0)
        return WEFT_OK;
    return WITH_DTYPE(args->dtype, forward<T>(lane, args));
}

weft_status weft_cuda_activation_backward(weft_lane *lane,
                                          const weft_activation_backward_args *args)
{
    if (args->rows == 0 || args->cols == 0)
        return WEFT_OK;
    return WITH_DTYPE(args->dtype, backward<T>(lane, args));
}

weft_status weft_cuda_rope(weft_lane *lane, const weft_rope_args *args)
{
    if (args->seq == 0 || args->batch == 0 || args->heads == 0)
        return WEFT_OK;
    return WITH_DTYPE(args->dtype, launch_rope<T>(lane, args));
}
