/* Norms of heads in packed rows: a warp a head, whose numbers stay in registers. The gradients of
 * weight and bias are sums over all heads that share the weight: each block keeps the sums of its
 * heads, a second kernel adds the blocks' in order. */
#include "kernels/cuda/columns.cuh"

namespace
{

constexpr unsigned WARPS = 4;                            /* of a block */
constexpr int MOST = WEFT_CUDA_MAX_HEAD_DIM / int(WARP); /* numbers a lane */

__device__ size_t place_of(const weft_heads_shape &s, size_t token, size_t head)
{
    return token * s.token_stride + head / s.heads * s.group_stride + head % s.heads * s.head_dim;
}

template <typename T> __device__ void load(const T *from, size_t num, float (&to)[MOST])
{
#pragma unroll
    for (int i = 0; i < MOST; i++) {
        const size_t c = i * WARP + threadIdx.x;
        to[i] = c < num ? to_float(from[c]) : 0.0f;
    }
}

/* Takes the mean from a head's numbers (LayerNorm) and returns 1 / their deviation. */
template <weft_norm_kind KIND> __device__ float centre(float (&x)[MOST], size_t num, float epsilon)
{
    float mean = 0.0f, square = 0.0f;
    if (KIND == WEFT_NORM_LAYER) {
#pragma unroll
        for (int i = 0; i < MOST; i++)
            mean += x[i];
        mean = warp_sum(mean) / float(num);
    }
#pragma unroll
    for (int i = 0; i < MOST; i++) {
        x[i] = i * WARP + threadIdx.x < num ? x[i] - mean : 0.0f;
        square += x[i] * x[i];
    }
    return 1.0f / sqrtf(warp_sum(square) / float(num) + epsilon);
}

template <typename T, weft_norm_kind KIND>
__global__ void __launch_bounds__(WARP *WARPS) forward(weft_heads_norm_forward_args a)
{
    const size_t num = a.shape.head_dim, heads = a.shape.groups * a.shape.heads;
    const size_t i_head = size_t(blockIdx.x) * WARPS + threadIdx.y;
    const size_t token = i_head / heads, head = i_head % heads;
    if (token >= a.shape.tokens)
        return;
    const size_t at = place_of(a.shape, token, head);
    const T *weight = static_cast<const T *>(a.weight) + (a.sums ? head * num : 0);
    const T *bias = static_cast<const T *>(a.bias);
    T *y = static_cast<T *>(a.y) + at;
    float x[MOST];
    load(static_cast<const T *>(a.x) + at, num, x);
    const float rstd = a.sums ? 1.0f / sqrtf(a.sums[token] / float(a.whole) + a.epsilon)
                              : centre<KIND>(x, num, a.epsilon);
#pragma unroll
    for (int i = 0; i < MOST; i++) {
        const size_t c = i * WARP + threadIdx.x;
        if (c < num)
            y[c] = from_float<T>(x[i] * rstd * (to_float(weight[c]) + a.weight_offset) +
                                 (bias ? to_float(bias[c]) : 0.0f));
    }
}

/* blockIdx.y: with sums the head whose weight this is; else 0, and all heads share one. Leaves the
 * block's sums, dweight and then dbias, in partials[blockIdx.x][blockIdx.y]. */
template <typename T, weft_norm_kind KIND>
__global__ void __launch_bounds__(WARP *WARPS)
    backward(weft_heads_norm_backward_args a, float *partials)
{
    __shared__ float sums[2][WARPS][WEFT_CUDA_MAX_HEAD_DIM];
    const size_t num = a.shape.head_dim, heads = a.sums ? 1 : a.shape.groups * a.shape.heads;
    const T *weights = static_cast<const T *>(a.weight) + blockIdx.y * num;
    float weight[MOST], dweight[MOST] = {}, dbias[MOST] = {};
    load(weights, num, weight);
    for (size_t i_head = size_t(blockIdx.x) * WARPS + threadIdx.y; i_head < a.shape.tokens * heads;
         i_head += size_t(gridDim.x) * WARPS) {
        const size_t token = i_head / heads, head = blockIdx.y + i_head % heads;
        const size_t at = place_of(a.shape, token, head);
        T *dx = static_cast<T *>(a.dx) + at;
        float x[MOST], dy[MOST], sum = 0.0f, along = 0.0f, rstd;
        load(static_cast<const T *>(a.x) + at, num, x);
        load(dx, num, dy);
        if (a.sums) {
            rstd = 1.0f / sqrtf(a.sums[token] / float(a.whole) + a.epsilon);
            along = a.along[token] / float(a.whole);
        } else {
            rstd = centre<KIND>(x, num, a.epsilon);
#pragma unroll
            for (int i = 0; i < MOST; i++) {
                sum += dy[i] * (weight[i] + a.weight_offset);
                along += dy[i] * (weight[i] + a.weight_offset) * x[i];
            }
            sum = KIND == WEFT_NORM_LAYER ? warp_sum(sum) / float(num) : 0.0f;
            along = warp_sum(along) / float(num);
        }
        along *= rstd;
#pragma unroll
        for (int i = 0; i < MOST; i++) {
            const size_t c = i * WARP + threadIdx.x;
            const float h = x[i] * rstd;
            dweight[i] += dy[i] * h;
            dbias[i] += dy[i];
            if (c < num)
                dx[c] =
                    from_float<T>(rstd * (dy[i] * (weight[i] + a.weight_offset) - sum - h * along));
        }
    }
#pragma unroll
    for (int i = 0; i < MOST; i++) {
        sums[0][threadIdx.y][i * WARP + threadIdx.x] = dweight[i];
        sums[1][threadIdx.y][i * WARP + threadIdx.x] = dbias[i];
    }
    __syncthreads();
    float *out = partials + (size_t(blockIdx.x) * gridDim.y + blockIdx.y) * 2 * num;
    for (size_t c = threadIdx.y * WARP + threadIdx.x; c < 2 * num; c += WARP * WARPS) {
        float sum = 0.0f;
        for (unsigned w = 0; w < WARPS; w++)
            sum += sums[c / num][w][c % num];
        out[c] = sum;
    }
}

/* Columns are [weights of their own][dweight, dbias][head_dim]. */
__global__ void join_gradients(weft_heads_norm_backward_args a, const float *partials, unsigned num,
                               unsigned num_weights)
{
    const size_t dim = a.shape.head_dim, cols = num_weights * 2 * dim;
    const size_t col = size_t(blockIdx.x) * WARP + threadIdx.x;
    const float sum = sum_of_column(partials, cols, 0, num, col);
    const bool is_weight = col % (2 * dim) < dim;
    float *to = is_weight ? a.dweight + col / (2 * dim) * dim + col % dim : a.dbias + col % dim;
    if (threadIdx.y == 0 && col < cols && (is_weight || a.dbias))
        *to = sum + (a.overwrite ? 0.0f : *to);
}

template <typename T>
__global__ void __launch_bounds__(WARP *WARPS) sum_heads(weft_heads_sums_args s)
{
    __shared__ float shared[WARP];
    const size_t num = s.shape.head_dim, token = blockIdx.x;
    const size_t count = s.shape.groups * s.shape.heads * num;
    const T *a = static_cast<const T *>(s.a), *b = static_cast<const T *>(s.b);
    const T *weight = static_cast<const T *>(s.weight);
    float sum = 0.0f;
    for (size_t i = threadIdx.x; i < count; i += WARP * WARPS) {
        const size_t at = place_of(s.shape, token, i / num) + i % num;
        sum += to_float(a[at]) * to_float(b[at]) *
               (weight ? to_float(weight[i]) + s.weight_offset : 1.0f);
    }
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0)
        s.sums[token] = sum;
}

/* A thread a number of `one`. */
template <typename T> __global__ void __launch_bounds__(256) share(weft_heads_share_args a)
{
    const size_t num = a.shape.head_dim, heads = a.shape.groups * a.shape.heads;
    const size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x, token = i / num, c = i % num;
    if (token >= a.shape.tokens)
        return;
    T *one = static_cast<T *>(a.one) + i, *at = static_cast<T *>(a.heads) + c;
    float sum = 0.0f;
    for (size_t h = 0; h < heads; h++) {
        T *number = at + place_of(a.shape, token, h);
        if (a.inverse)
            sum += to_float(*number);
        else
            *number = *one;
    }
    if (a.inverse)
        *one = from_float<T>(sum);
}

weft_status check_dim(const weft_heads_shape *s)
{
    return s->head_dim <= WEFT_CUDA_MAX_HEAD_DIM
               ? WEFT_OK
               : WEFT_ERROR(WEFT_CONFIG, "a head dimension of %zu: on a GPU at most %d are normed",
                            s->head_dim, WEFT_CUDA_MAX_HEAD_DIM);
}

template <typename T> weft_status norm(weft_lane *lane, const weft_heads_norm_forward_args *args)
{
    const weft_heads_shape *s = &args->shape;
    const unsigned blocks = num_blocks(s->tokens * s->groups * s->heads, WARPS);
    const dim3 block(WARP, WARPS);
    cudaStream_t stream = weft_cuda_stream(lane);
    return args->kind == WEFT_NORM_LAYER
               ? WEFT_LAUNCH((forward<T, WEFT_NORM_LAYER>), blocks, block, 0, stream, *args)
               : WEFT_LAUNCH((forward<T, WEFT_NORM_RMS>), blocks, block, 0, stream, *args);
}

template <typename T>
weft_status differentiate(weft_lane *lane, const weft_heads_norm_backward_args *args)
{
    const weft_heads_shape *s = &args->shape;
    const size_t heads = s->groups * s->heads, num_weights = args->sums ? heads : 1;
    const size_t cols = num_weights * 2 * s->head_dim;
    const dim3 block(WARP, WARPS);
    cudaStream_t stream = weft_cuda_stream(lane);
    size_t most = 4 * static_cast<size_t>(weft_cuda_num_multiprocessors(weft_lane_device(lane)));
    if (most > WEFT_CUDA_WORKSPACE_BYTES / (cols * sizeof(float)))
        most = WEFT_CUDA_WORKSPACE_BYTES / (cols * sizeof(float));
    unsigned num = num_blocks(s->tokens * (heads / num_weights), WARPS);
    if (num > most)
        num = static_cast<unsigned>(most);
    if (most == 0)
        return WEFT_ERROR(WEFT_INTERNAL, "heads of %zu numbers are too many", cols);
    void *workspace;
    WEFT_TRY(weft_cuda_workspace(lane, num * cols * sizeof(float), &workspace));
    float *partials = static_cast<float *>(workspace);
    const dim3 grid(num, static_cast<unsigned>(num_weights));
    if (num == 0) { /* no tokens: nothing is added up */
    } else if (args->kind == WEFT_NORM_LAYER) {
        WEFT_TRY(
            WEFT_LAUNCH((backward<T, WEFT_NORM_LAYER>), grid, block, 0, stream, *args, partials));
    } else {
        WEFT_TRY(
            WEFT_LAUNCH((backward<T, WEFT_NORM_RMS>), grid, block, 0, stream, *args, partials));
    }
    return WEFT_LAUNCH(join_gradients, num_blocks(cols, WARP), SUM_COLUMNS_BLOCK, 0, stream, *args,
                       partials, num, static_cast<unsigned>(num_weights));
}

template <typename T> weft_status sums(weft_lane *lane, const weft_heads_sums_args *args)
{
    return WEFT_LAUNCH((sum_heads<T>), static_cast<unsigned>(args->shape.tokens), WARP * WARPS, 0,
                       weft_cuda_stream(lane), *args);
}

template <typename T> weft_status spread(weft_lane *lane, const weft_heads_share_args *args)
{
    return WEFT_LAUNCH((share<T>), num_blocks(args->shape.tokens * args->shape.head_dim, 256), 256,
                       0, weft_cuda_stream(lane), *args);
}

} // namespace

weft_status weft_cuda_heads_norm_forward(weft_lane *lane, const weft_heads_norm_forward_args *args)
{
    WEFT_TRY(check_dim(&args->shape));
    if (args->shape.tokens == 0)
        return WEFT_OK;
    return WITH_DTYPE(args->dtype, norm<T>(lane, args));
}

weft_status weft_cuda_heads_norm_backward(weft_lane *lane,
                                          const weft_heads_norm_backward_args *args)
{
    WEFT_TRY(check_dim(&args->shape));
    if (args->shape.tokens == 0 && !args->overwrite)
        return WEFT_OK;
    return WITH_DTYPE(args->dtype, differentiate<T>(lane, args));
}

weft_status weft_cuda_heads_sums(weft_lane *lane, const weft_heads_sums_args *args)
{
    if (args->shape.tokens == 0)
        return WEFT_OK;
    return WITH_DTYPE(args->dtype, sums<T>(lane, args));
}

weft_status weft_cuda_heads_share(weft_lane *lane, const weft_heads_share_args *args)
{
    if (args->shape.tokens * args->shape.head_dim == 0)
        return WEFT_OK;
    return WITH_DTYPE(args->dtype, spread<T>(lane, args));
}
