/* The gradient of a bias: sums over rows. Blocks sum chunks of rows, a second kernel adds the
 * chunks' sums in order. */
#include "kernels/cuda/columns.cuh"

namespace
{

constexpr unsigned ROWS_AT_ONCE = 8;
constexpr unsigned UNROLL = 4;    /* rows of a thread that are under way together */
constexpr size_t CHUNK_ROWS = 32; /* at least */
constexpr size_t ENOUGH_BLOCKS = 1024;
constexpr unsigned MAX_GROUPS = 128; /* of a launch: they travel as an argument */

/* Group g has rows first_row[g] .. first_row[g + 1], chunks first_chunk[g] .. first_chunk[g + 1].
 */
struct groups {
    unsigned num, chunk_rows;
    int64_t first_row[MAX_GROUPS + 1];
    unsigned first_chunk[MAX_GROUPS + 1];
};

template <typename T, int n>
__global__ void __launch_bounds__(WARP *ROWS_AT_ONCE)
    sum_chunks(const T *dy, size_t stride, size_t cols, groups all, float *partials)
{
    __shared__ float shared[ROWS_AT_ONCE][WARP * n];
    const unsigned chunk = blockIdx.y;
    unsigned low = 0, high = all.num; /* the last group that begins at or before the chunk */
    while (high - low > 1) {
        const unsigned middle = (low + high) / 2;
        (all.first_chunk[middle] <= chunk ? low : high) = middle;
    }
    const int64_t begin =
        all.first_row[low] + int64_t(chunk - all.first_chunk[low]) * all.chunk_rows;
    const int64_t end = min(begin + int64_t(all.chunk_rows), all.first_row[low + 1]);
    const size_t col = (size_t(blockIdx.x) * WARP + threadIdx.x) * n;
    float sum[n] = {};
    if (col < cols) {
        int64_t row = begin + threadIdx.y;
        for (; row + (UNROLL - 1) * ROWS_AT_ONCE < end; row += UNROLL * ROWS_AT_ONCE) {
            pack<T, n> values[UNROLL];
#pragma unroll
            for (unsigned u = 0; u < UNROLL; u++)
                values[u] = load_pack<n>(dy + size_t(row + u * ROWS_AT_ONCE) * stride + col);
#pragma unroll
            for (unsigned u = 0; u < UNROLL; u++)
#pragma unroll
                for (int k = 0; k < n; k++)
                    sum[k] += to_float(values[u].at[k]);
        }
        for (; row < end; row += ROWS_AT_ONCE) {
            const pack<T, n> values = load_pack<n>(dy + size_t(row) * stride + col);
#pragma unroll
            for (int k = 0; k < n; k++)
                sum[k] += to_float(values.at[k]);
        }
    }
#pragma unroll
    for (int k = 0; k < n; k++)
        shared[threadIdx.y][k * WARP + threadIdx.x] = sum[k];
    __syncthreads();
    const unsigned thread = threadIdx.y * WARP + threadIdx.x;
    const size_t tile = size_t(blockIdx.x) * WARP * n;
    for (unsigned c = thread; c < WARP * n && tile + c < cols; c += WARP * ROWS_AT_ONCE) {
        float total = 0.0f;
        for (unsigned y = 0; y < ROWS_AT_ONCE; y++)
            total += shared[y][c % n * WARP + c / n];
        partials[chunk * cols + tile + c] = total;
    }
}

__global__ void join_chunks(const float *partials, size_t cols, groups all, float *db,
                            size_t group_stride, bool overwrite)
{
    const unsigned group = blockIdx.y;
    const size_t col = size_t(blockIdx.x) * WARP + threadIdx.x;
    const float sum =
        sum_of_column(partials, cols, all.first_chunk[group], all.first_chunk[group + 1], col);
    float *to = db + group * group_stride + col;
    if (threadIdx.y == 0 && col < cols)
        *to = sum + (overwrite ? 0.0f : *to);
}

template <typename T>
weft_status add_groups(weft_lane *lane, const weft_bias_gradient_args *args, groups *all, float *db)
{
    constexpr int n = WIDTH<T>;
    const size_t cols = args->cols, stride = args->stride ? args->stride : cols;
    const T *dy = static_cast<const T *>(args->dy);
    cudaStream_t stream = weft_cuda_stream(lane);
    const bool aligned = cols % n == 0 && stride % n == 0 && is_aligned(16, dy);
    const unsigned tiles = num_blocks(cols, aligned ? WARP * n : WARP);
    const size_t wanted = (ENOUGH_BLOCKS + tiles - 1) / tiles;
    const size_t rows = static_cast<size_t>(all->first_row[all->num] - all->first_row[0]);
    const size_t fair = (rows + wanted - 1) / wanted;
    all->chunk_rows = static_cast<unsigned>(fair > CHUNK_ROWS ? fair : CHUNK_ROWS);
    all->first_chunk[0] = 0;
    for (unsigned g = 0; g < all->num; g++)
        all->first_chunk[g + 1] =
            all->first_chunk[g] +
            num_blocks(static_cast<size_t>(all->first_row[g + 1] - all->first_row[g]),
                       all->chunk_rows);
    const unsigned chunks = all->first_chunk[all->num];
    void *workspace;
    WEFT_TRY(weft_cuda_workspace(lane, chunks * cols * sizeof(float), &workspace));
    float *partials = static_cast<float *>(workspace);
    const dim3 blocks(tiles, chunks), threads(WARP, ROWS_AT_ONCE);
    if (chunks > 0 && aligned)
        WEFT_TRY(WEFT_LAUNCH((sum_chunks<T, n>), blocks, threads, 0, stream, dy, stride, cols, *all,
                             partials));
    else if (chunks > 0)
        WEFT_TRY(WEFT_LAUNCH((sum_chunks<T, 1>), blocks, threads, 0, stream, dy, stride, cols, *all,
                             partials));
    return WEFT_LAUNCH(join_chunks, dim3(num_blocks(cols, WARP), all->num), SUM_COLUMNS_BLOCK, 0,
                       stream, partials, cols, *all, db,
                       args->group_stride ? args->group_stride : cols, args->overwrite);
}

/* The offsets are read before this returns. */
template <typename T>
weft_status bias_gradient(weft_lane *lane, const weft_bias_gradient_args *args)
{
    groups all;
    if (args->num_groups == 0) {
        all.num = 1;
        all.first_row[0] = 0;
        all.first_row[1] = static_cast<int64_t>(args->rows);
        return add_groups<T>(lane, args, &all, args->db);
    }
    for (size_t first = 0; first < args->num_groups; first += MAX_GROUPS) {
        const size_t rest = args->num_groups - first;
        all.num = static_cast<unsigned>(rest < MAX_GROUPS ? rest : MAX_GROUPS);
        for (unsigned g = 0; g <= all.num; g++)
            all.first_row[g] = args->row_offsets[first + g];
        WEFT_TRY(add_groups<T>(lane, args, &all,
                               args->db +
                                   first * (args->group_stride ? args->group_stride : args->cols)));
    }
    return WEFT_OK;
}

/* A block a row. */
template <typename T>
__global__ void __launch_bounds__(256)
    add_rows(T *y, const T *bias, size_t cols, size_t stride, groups all)
{
    const int64_t row = all.first_row[0] + blockIdx.x;
    unsigned low = 0, high = all.num; /* the last group that begins at or before the row */
    while (high - low > 1) {
        const unsigned middle = (low + high) / 2;
        (all.first_row[middle] <= row ? low : high) = middle;
    }
    for (size_t c = threadIdx.x; c < cols; c += 256)
        y[size_t(row) * cols + c] =
            from_float<T>(to_float(y[size_t(row) * cols + c]) + to_float(bias[low * stride + c]));
}

template <typename T> weft_status bias_add(weft_lane *lane, const weft_bias_add_args *args)
{
    const size_t stride = args->group_stride ? args->group_stride : args->cols;
    for (size_t first = 0; first < args->num_groups; first += MAX_GROUPS) {
        const size_t rest = args->num_groups - first;
        groups all;
        all.num = static_cast<unsigned>(rest < MAX_GROUPS ? rest : MAX_GROUPS);
        for (unsigned g = 0; g <= all.num; g++)
            all.first_row[g] = args->row_offsets[first + g];
        const int64_t rows = all.first_row[all.num] - all.first_row[0];
        if (rows > 0)
            WEFT_TRY(WEFT_LAUNCH(add_rows<T>, static_cast<unsigned>(rows), 256, 0,
                                 weft_cuda_stream(lane), static_cast<T *>(args->y),
                                 static_cast<const T *>(args->bias) + first * stride, args->cols,
                                 stride, all));
    }
    return WEFT_OK;
}

} // namespace

weft_status weft_cuda_bias_add(weft_lane *lane, const weft_bias_add_args *args)
{
    return WITH_DTYPE(args->dtype, bias_add<T>(lane, args));
}

weft_status weft_cuda_bias_gradient(weft_lane *lane, const weft_bias_gradient_args *args)
{
    if (args->cols == 0)
        return WEFT_OK;
    return WITH_DTYPE(args->dtype, bias_gradient<T>(lane, args));
}
