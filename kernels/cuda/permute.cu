/* Rows on their way to the experts and back. A warp takes a row of what is written (with combine's
 * backward, a choice), 16 bytes a load where rows allow it; sums over a token's choices are in fp32
 * and in order of k. */
#include "kernels/cuda/cuda.cuh"

constexpr unsigned WARPS = 8;
constexpr unsigned THREADS = WARPS * WARP;
constexpr unsigned UNROLL = 4;    /* loads of a lane that are under way together */
constexpr size_t MAX_TOPK = WARP; /* a lane keeps one choice */

/* This warp's number in the grid. */
static __device__ inline size_t warp_index()
{
    return size_t(blockIdx.x) * WARPS + threadIdx.x / WARP;
}

template <typename Unit>
static __global__ void __launch_bounds__(THREADS)
    permute_rows(size_t num_rows, size_t units, const Unit *x, const int32_t *token_of, Unit *rows)
{
    const unsigned lane = threadIdx.x % WARP;
    const size_t row = warp_index();
    if (row >= num_rows)
        return;
    const Unit *from = x + size_t(token_of[row]) * units;
    Unit *to = rows + row * units;
    for (size_t i = lane; i < units; i += UNROLL * WARP) {
        Unit loaded[UNROLL];
#pragma unroll
        for (unsigned u = 0; u < UNROLL; u++)
            if (i + u * WARP < units)
                loaded[u] = from[i + u * WARP];
#pragma unroll
        for (unsigned u = 0; u < UNROLL; u++)
            if (i + u * WARP < units)
                to[i + u * WARP] = loaded[u];
    }
}

/* True where rows of `row_bytes` from each of these on can be read 16 bytes at a time. */
static bool is_wide(size_t row_bytes, const void *a, const void *b, const void *c = NULL)
{
    return (row_bytes | reinterpret_cast<uintptr_t>(a) | reinterpret_cast<uintptr_t>(b) |
            reinterpret_cast<uintptr_t>(c)) %
               16 ==
           0;
}

template <typename Unit>
static weft_status launch_permute(weft_lane *lane, const weft_permute_args *args, size_t row_bytes)
{
    return WEFT_LAUNCH(permute_rows<Unit>, num_blocks(args->num_rows, WARPS), THREADS, 0,
                       weft_cuda_stream(lane), args->num_rows, row_bytes / sizeof(Unit),
                       static_cast<const Unit *>(args->x), args->token_of,
                       static_cast<Unit *>(args->rows));
}

weft_status weft_cuda_permute(weft_lane *lane, const weft_permute_args *args)
{
    if (args->num_rows == 0 || args->cols == 0)
        return WEFT_OK;
    const size_t row_bytes = args->cols * weft_dtype_bytes(args->dtype);
    if (is_wide(row_bytes, args->x, args->rows))
        return launch_permute<uint4>(lane, args, row_bytes);
    return args->dtype == WEFT_F32 ? launch_permute<uint32_t>(lane, args, row_bytes)
                                   : launch_permute<uint16_t>(lane, args, row_bytes);
}

/* y[t] = (accumulate: y[t]) + sum over k of weights[t,k] * rows[row_of[t,k]]; no weights: all 1. */
struct gather {
    size_t num_tokens, cols;
    unsigned topk;
    const void *rows;
    const int32_t *row_of;
    const float *weights;
    void *y;
    bool accumulate;
};

/* One token's y. Of its rows `together` at once are on their way, `across` packs of each. Lane k
 * holds row k of `num` and its weight. All lanes of the warp call. */
template <typename T, int WIDTH, unsigned together, unsigned across>
static __device__ inline void add_rows(const gather &g, size_t t, unsigned num, int32_t row,
                                       float weight)
{
    using numbers = pack<T, WIDTH>;
    const size_t units = g.cols / WIDTH;
    const numbers *rows = static_cast<const numbers *>(g.rows);
    numbers *y = static_cast<numbers *>(g.y) + t * units;
    for (size_t first = 0; first < units; first += across * WARP) {
        const size_t i = first + threadIdx.x % WARP;
        float sum[across][WIDTH] = {};
#pragma unroll
        for (unsigned u = 0; u < across; u++) {
            if (g.accumulate && i + u * WARP < units) {
                const numbers before = y[i + u * WARP];
#pragma unroll
                for (int c = 0; c < WIDTH; c++)
                    sum[u][c] = to_float(before.at[c]);
            }
        }
        for (unsigned k = 0; k < num; k += together) {
            numbers loaded[together][across];
            float weights[together];
#pragma unroll
            for (unsigned j = 0; j < together; j++) {
                const int source = int((k + j) % WARP);
                const size_t from = size_t(__shfl_sync(WHOLE_WARP, row, source)) * units + i;
                weights[j] = __shfl_sync(WHOLE_WARP, weight, source);
#pragma unroll
                for (unsigned u = 0; u < across; u++)
                    if (k + j < num && i + u * WARP < units)
                        loaded[j][u] = rows[from + u * WARP];
            }
#pragma unroll
            for (unsigned j = 0; j < together; j++)
#pragma unroll
                for (unsigned u = 0; u < across; u++)
#pragma unroll
                    for (int c = 0; c < WIDTH; c++)
                        if (k + j < num)
                            sum[u][c] += weights[j] * to_float(loaded[j][u].at[c]);
        }
#pragma unroll
        for (unsigned u = 0; u < across; u++) {
            numbers result;
#pragma unroll
            for (int c = 0; c < WIDTH; c++)
                result.at[c] = from_float<T>(sum[u][c]);
            if (i + u * WARP < units)
                y[i + u * WARP] = result;
        }
    }
}

template <typename T, int WIDTH>
static __global__ void __launch_bounds__(THREADS, 3) gather_tokens(gather g)
{
    const unsigned lane = threadIdx.x % WARP;
    const size_t t = warp_index();
    if (t >= g.num_tokens) /* the whole warp */
        return;
    /* Lane k holds choice k, then the k-th of those that have a row. */
    int32_t row = lane < g.topk ? g.row_of[t * g.topk + lane] : -1;
    float weight = g.weights && lane < g.topk ? g.weights[t * g.topk + lane] : 1.0f;
    unsigned present = __ballot_sync(WHOLE_WARP, row >= 0);
    const unsigned num = unsigned(__popc(present));
    unsigned source = lane;
    for (unsigned k = 0; present; k++, present &= present - 1)
        source = k == lane ? unsigned(__ffs(int(present))) - 1 : source;
    row = __shfl_sync(WHOLE_WARP, row, int(source));
    weight = __shfl_sync(WHOLE_WARP, weight, int(source));
    if (num > 1)
        add_rows<T, WIDTH, 2, 2>(g, t, num, row, weight);
    else
        add_rows<T, WIDTH, 1, 4>(g, t, num, row, weight);
}

template <typename T> static weft_status launch_gather(weft_lane *lane, const gather &g)
{
    const unsigned blocks = num_blocks(g.num_tokens, WARPS);
    cudaStream_t stream = weft_cuda_stream(lane);
    if (is_wide(g.cols * sizeof(T), g.rows, g.y))
        return WEFT_LAUNCH((gather_tokens<T, 16 / sizeof(T)>), blocks, THREADS, 0, stream, g);
    return WEFT_LAUNCH((gather_tokens<T, 1>), blocks, THREADS, 0, stream, g);
}

static weft_status check_topk(size_t topk)
{
    return topk <= MAX_TOPK ? WEFT_OK
                            : WEFT_ERROR(WEFT_CONFIG,
                                         "%zu experts a token: at most %zu can be "
                                         "summed",
                                         topk, MAX_TOPK);
}

weft_status weft_cuda_permute_backward(weft_lane *lane, const weft_permute_backward_args *args)
{
    WEFT_TRY(check_topk(args->topk));
    if (args->num_tokens == 0 || args->cols == 0)
        return WEFT_OK;
    const gather g = {args->num_tokens, args->cols,      unsigned(args->topk),
                      args->drows,      args->row_of,    NULL,
                      args->dx,         args->accumulate};
    return WITH_DTYPE(args->dtype, launch_gather<T>(lane, g));
}

weft_status weft_cuda_combine(weft_lane *lane, const weft_combine_args *args)
{
    WEFT_TRY(check_topk(args->topk));
    if (args->num_tokens == 0 || args->cols == 0)
        return WEFT_OK;
    const gather g = {args->num_tokens, args->cols,   unsigned(args->topk),
                      args->rows,       args->row_of, args->top_prob,
                      args->y,          false};
    return WITH_DTYPE(args->dtype, launch_gather<T>(lane, g));
}

/* A warp takes a choice; its neighbours have the same token, whose dy they find in the cache. */
template <typename T, int WIDTH>
static __global__ void __launch_bounds__(THREADS) combine_backward_row(weft_combine_backward_args a)
{
    using numbers = pack<T, WIDTH>;
    constexpr unsigned TOGETHER = 2;
    const unsigned lane = threadIdx.x % WARP;
    const size_t units = a.cols / WIDTH;
    const unsigned choice = unsigned(warp_index()), topk = unsigned(a.topk);
    if (warp_index() >= a.num_tokens * topk) /* the whole warp */
        return;
    const int32_t row = a.row_of[choice];
    float dot = 0.0f;
    if (row >= 0) {
        const float prob = a.top_prob[choice];
        const numbers *dy = static_cast<const numbers *>(a.dy) + size_t(choice / topk) * units;
        const numbers *from = static_cast<const numbers *>(a.rows) + size_t(row) * units;
        numbers *to = static_cast<numbers *>(a.drows) + size_t(row) * units;
        const auto use = [&](size_t i, const numbers &d, const numbers &x) {
            numbers result;
#pragma unroll
            for (int c = 0; c < WIDTH; c++) {
                dot += to_float(d.at[c]) * to_float(x.at[c]);
                result.at[c] = from_float<T>(prob * to_float(d.at[c]));
            }
            to[i] = result;
        };
        for (size_t i = lane; i < units; i += TOGETHER * WARP) {
            numbers d[TOGETHER], x[TOGETHER];
#pragma unroll
            for (unsigned u = 0; u < TOGETHER; u++) {
                if (i + u * WARP < units) {
                    d[u] = dy[i + u * WARP];
                    x[u] = from[i + u * WARP];
                }
            }
#pragma unroll
            for (unsigned u = 0; u < TOGETHER; u++)
                if (i + u * WARP < units)
                    use(i + u * WARP, d[u], x[u]);
        }
    }
    dot = warp_sum(dot);
    if (lane == 0)
        a.dtop_prob[choice] = dot;
}

template <typename T>
static weft_status launch_combine_backward(weft_lane *lane, const weft_combine_backward_args *args)
{
    const unsigned blocks = num_blocks(args->num_tokens * args->topk, WARPS);
    cudaStream_t stream = weft_cuda_stream(lane);
    const size_t bytes = args->cols * sizeof(T);
    if (is_wide(bytes, args->dy, args->rows, args->drows))
        return WEFT_LAUNCH((combine_backward_row<T, 16 / sizeof(T)>), blocks, THREADS, 0, stream,
                           *args);
    return WEFT_LAUNCH((combine_backward_row<T, 1>), blocks, THREADS, 0, stream, *args);
}

weft_status weft_cuda_combine_backward(weft_lane *lane, const weft_combine_backward_args *args)
{
    if (args->num_tokens == 0 || args->topk == 0)
        return WEFT_OK;
    return WITH_DTYPE(args->dtype, launch_combine_backward<T>(lane, args));
}
