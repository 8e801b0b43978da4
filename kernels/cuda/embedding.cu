/* Embedding: gathers rows, and adds gradients to them in a fixed order.
 *
 * The gradient of a table's row is the sum of those of the tokens that chose it. Tokens are sorted
 * by row first, equal ones in their order; then a block a stretch of equal tokens adds them up. A
 * token that occurs often has several stretches, whose sums a last kernel joins in order. */
#include "kernels/cuda/each.cuh"

namespace
{

constexpr size_t TOKENS_AT_ONCE = 1 << 19; /* that the workspace holds, in order, beside sums */

/* The row of the table that token t chose: -1 where it is held elsewhere. */
__device__ int64_t row_of(int32_t token, size_t first_row, size_t num_rows)
{
    const int64_t row = int64_t(token) - int64_t(first_row);
    return row >= 0 && row < int64_t(num_rows) ? row : -1;
}

struct gather {
    const void *table, *positions; /* either may be missing */
    const int32_t *tokens, *index; /* index: of positions, from the first token's on, or NULL */
    void *y;
    size_t num_tokens, cols, first_row, num_rows;
    size_t first_position, first_token; /* the first token is so far into its position's batch */
    size_t batch;
};

constexpr unsigned GATHER_WARPS = 8;
constexpr unsigned GATHER_UNROLL = 4; /* packs of a lane that are under way together */

/* A warp takes a token. */
template <typename T, int n>
__global__ void __launch_bounds__(GATHER_WARPS *WARP) gather_rows(gather g)
{
    const size_t t = size_t(blockIdx.x) * GATHER_WARPS + threadIdx.x / WARP;
    if (t >= g.num_tokens)
        return;
    const int64_t row = g.table ? row_of(g.tokens[t], g.first_row, g.num_rows) : -1;
    const size_t place = (g.first_token + t) / g.batch;
    const size_t position = g.index ? size_t(g.index[place]) : g.first_position + place;
    const T *words = static_cast<const T *>(g.table) + size_t(row < 0 ? 0 : row) * g.cols;
    const T *positions = static_cast<const T *>(g.positions) + position * g.cols;
    T *y = static_cast<T *>(g.y) + t * g.cols;
    constexpr size_t stride = size_t(WARP) * n;
    for (size_t first = threadIdx.x % WARP * n; first < g.cols; first += GATHER_UNROLL * stride) {
        pack<T, n> word[GATHER_UNROLL] = {}, other[GATHER_UNROLL] = {};
#pragma unroll
        for (unsigned u = 0; u < GATHER_UNROLL; u++) {
            const size_t col = first + u * stride;
            if (row >= 0 && col < g.cols)
                word[u] = load_pack<n>(words + col);
            if (g.positions && col < g.cols)
                other[u] = load_pack<n>(positions + col);
        }
#pragma unroll
        for (unsigned u = 0; u < GATHER_UNROLL; u++) {
            const size_t col = first + u * stride;
#pragma unroll
            for (int k = 0; k < n; k++)
                word[u].at[k] = from_float<T>(to_float(word[u].at[k]) + to_float(other[u].at[k]));
            if (col < g.cols)
                store_pack(y + col, word[u]);
        }
    }
}

template <typename T>
weft_status gather_table(weft_lane *lane, const weft_embedding_forward_args *args)
{
    constexpr int n = WIDTH<T>;
    const size_t cols = args->cols;
    const size_t batch = args->index && args->index_by_sample ? 1 : args->batch;
    const bool aligned = is_aligned(16, args->table, args->positions, args->y) && cols % n == 0;
    for (size_t first = 0; first < args->num_tokens; first += TOKENS_AT_ONCE) {
        const size_t rest = args->num_tokens - first;
        const size_t num = rest < TOKENS_AT_ONCE ? rest : TOKENS_AT_ONCE;
        gather g = {args->table,
                    args->positions,
                    args->tokens ? args->tokens + first : nullptr,
                    args->index ? args->index + first / batch : nullptr,
                    static_cast<T *>(args->y) + first * cols,
                    num,
                    cols,
                    args->first_row,
                    args->num_rows,
                    args->first_position + first / batch,
                    first % batch,
                    batch};
        WEFT_TRY(bring_near(lane, 0, num, &g.tokens));
        WEFT_TRY(bring_near(lane, sizeof(int32_t) * TOKENS_AT_ONCE,
                            (g.first_token + num + batch - 1) / batch, &g.index));
        const unsigned blocks = num_blocks(num, GATHER_WARPS), threads = GATHER_WARPS * WARP;
        cudaStream_t stream = weft_cuda_stream(lane);
        if (aligned)
            WEFT_TRY(WEFT_LAUNCH((gather_rows<T, n>), blocks, threads, 0, stream, g));
        else
            WEFT_TRY(WEFT_LAUNCH((gather_rows<T, 1>), blocks, threads, 0, stream, g));
    }
    return WEFT_OK;
}

/* dpositions[s] += sum over the batch, in its order; with an index, dpositions[index[s]]. Elements
 * are those of the positions in their order here. */
template <typename T, int n> struct add_positions_op {
    static constexpr int width = n;
    using operands = pack<float, n>;
    const T *dy;
    float *dpositions; /* without an index of the first token's position */
    const int32_t *index;
    size_t num_tokens, batch, cols;

    __device__ float *sum_at(size_t i) const
    {
        return dpositions + (index ? size_t(index[i / cols]) * cols + i % cols : i);
    }
    __device__ operands load(size_t i) const
    {
        return load_pack<n>(sum_at(i));
    }
    __device__ void store(size_t i, operands sum) const
    {
        const size_t s = i / cols, col = i % cols;
        const size_t end = (s + 1) * batch < num_tokens ? (s + 1) * batch : num_tokens;
        for (size_t t = s * batch; t < end; t++) {
            const pack<T, n> values = load_pack<n>(dy + t * cols + col);
#pragma unroll
            for (int k = 0; k < n; k++)
                sum.at[k] += to_float(values.at[k]);
        }
        store_pack(sum_at(i), sum);
    }
};

template <typename T>
weft_status add_positions(weft_lane *lane, const weft_embedding_backward_args *args)
{
    constexpr int n = WIDTH<T>;
    const size_t cols = args->cols, num = (args->num_tokens + args->batch - 1) / args->batch;
    const T *dy = static_cast<const T *>(args->dy);
    const int32_t *index = args->index;
    float *dpositions = args->dpositions + (index ? 0 : args->first_position * cols);
    WEFT_TRY(bring_near(lane, 0, num, &index));
    const bool aligned =
        is_aligned(16, dy) && is_aligned(n * sizeof(float), dpositions) && cols % n == 0;
    return launch_each(
        lane, num * cols, aligned,
        add_positions_op<T, n>{dy, dpositions, index, args->num_tokens, args->batch, cols},
        add_positions_op<T, 1>{dy, dpositions, index, args->num_tokens, args->batch, cols});
}

/* A token in sorted order: its number, and the places that equal tokens have. */
struct sorted_token {
    int32_t token, begin, end;
};

constexpr unsigned SORT_THREADS = 1024;
constexpr unsigned SORT_UNROLL = 4; /* tokens that a thread loads together */
constexpr unsigned SORT_STEP = SORT_UNROLL * SORT_THREADS;
constexpr size_t SORT_BLOCKS = 256; /* so many, so that all multiprocessors have one, where a */
constexpr size_t SORT_FEW = 32;     /* block has as many rows, */
constexpr size_t SORT_ROWS = 2048;  /* and more where it has too many */
constexpr unsigned ROW_BITS = 11;   /* a row of a block's, beside the token in one number */
static_assert(SORT_ROWS <= 1 << ROW_BITS && TOKENS_AT_ONCE - 1 <= ~0u >> ROW_BITS);

/* Of the block's threads in their order: the sum of `mine` over earlier ones, and over all. */
__device__ unsigned sum_of_earlier(unsigned mine, unsigned *shared, unsigned *all)
{
    const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    unsigned sum = mine;
    for (unsigned offset = 1; offset < WARP; offset *= 2) {
        const unsigned before = __shfl_up_sync(WHOLE_WARP, sum, offset);
        sum += lane >= offset ? before : 0;
    }
    __syncthreads();
    if (lane == WARP - 1)
        shared[warp] = sum;
    __syncthreads();
    unsigned warps = shared[lane];
    for (unsigned offset = 1; offset < WARP; offset *= 2) {
        const unsigned before = __shfl_up_sync(WHOLE_WARP, warps, offset);
        warps += lane >= offset ? before : 0;
    }
    *all = __shfl_sync(WHOLE_WARP, warps, WARP - 1);
    const unsigned earlier = __shfl_sync(WHOLE_WARP, warps, warp ? warp - 1 : 0);
    return (warp ? earlier : 0) + sum - mine;
}

/* Each block places the tokens of its `per_block` rows. Every block looks at all tokens, twice:
 * they are few beside what is added up later. `num_sorted`: the tokens that have a row here. */
__global__ void __launch_bounds__(SORT_THREADS)
    sort_tokens(const int32_t *tokens, unsigned num_tokens, size_t first_row, size_t num_rows,
                unsigned per_block, sorted_token *sorted, unsigned *num_sorted)
{
    __shared__ unsigned count[SORT_ROWS], next[SORT_ROWS], found[SORT_STEP];
    __shared__ unsigned shared[WARP];
    const int64_t low = int64_t(blockIdx.x) * per_block, high = low + per_block;
    for (unsigned i = threadIdx.x; i < per_block; i += SORT_THREADS)
        count[i] = 0;
    __syncthreads();
    unsigned below = 0, total;
    for (unsigned first = 0; first < num_tokens; first += SORT_STEP) {
        int64_t rows[SORT_UNROLL];
#pragma unroll
        for (unsigned u = 0; u < SORT_UNROLL; u++) {
            const unsigned t = first + u * SORT_THREADS + threadIdx.x;
            rows[u] = t < num_tokens ? row_of(tokens[t], first_row, num_rows) : -1;
        }
#pragma unroll
        for (unsigned u = 0; u < SORT_UNROLL; u++) {
            below += rows[u] >= 0 && rows[u] < low;
            if (rows[u] >= low && rows[u] < high)
                atomicAdd(&count[rows[u] - low], 1u);
        }
    }
    sum_of_earlier(below, shared, &total); /* total: where this block's tokens begin */
    for (unsigned first = 0; first < per_block; first += SORT_THREADS) {
        const unsigned i = first + threadIdx.x;
        unsigned sum;
        const unsigned earlier = sum_of_earlier(i < per_block ? count[i] : 0, shared, &sum);
        if (i < per_block)
            next[i] = total + earlier;
        total += sum;
    }
    if (blockIdx.x == gridDim.x - 1 && threadIdx.x == 0)
        *num_sorted = total;
    for (unsigned first = 0; first < num_tokens; first += SORT_STEP) {
        unsigned num_mine = 0, num_found, mine[SORT_UNROLL]; /* a thread has neighbours */
        int64_t rows[SORT_UNROLL];
#pragma unroll
        for (unsigned u = 0; u < SORT_UNROLL; u++) {
            const unsigned t = first + threadIdx.x * SORT_UNROLL + u;
            rows[u] = t < num_tokens ? row_of(tokens[t], first_row, num_rows) : -1;
            mine[u] = rows[u] >= low && rows[u] < high;
            num_mine += mine[u];
        }
        unsigned place = sum_of_earlier(num_mine, shared, &num_found);
#pragma unroll
        for (unsigned u = 0; u < SORT_UNROLL; u++)
            if (mine[u])
                found[place++] =
                    (first + threadIdx.x * SORT_UNROLL + u) << ROW_BITS | unsigned(rows[u] - low);
        __syncthreads();
        /* One warp goes through them: those of one row that come before in the same 32, and then
         * the row's place moves on. */
        for (unsigned f = 0; f < num_found && threadIdx.x < WARP; f += WARP) {
            const bool is = f + threadIdx.x < num_found;
            const unsigned own = is ? found[f + threadIdx.x] % (1u << ROW_BITS) : per_block;
            const unsigned equal = equal_lanes(own, per_block + 1);
            const unsigned earlier = unsigned(__popc(equal & ((1u << threadIdx.x) - 1)));
            const unsigned begin = is ? next[own] : 0; /* how far the row has come */
            __syncwarp();
            if (is) {
                sorted[begin + earlier].token = int32_t(found[f + threadIdx.x] >> ROW_BITS);
                if (earlier == 0)
                    next[own] = begin + unsigned(__popc(equal));
            }
            __syncwarp();
        }
        __syncthreads();
    }
    /* All are placed, so that `next` is where each row ends. */
    for (unsigned i = threadIdx.x / WARP; i < per_block; i += SORT_THREADS / WARP) {
        const unsigned end = next[i], begin = end - count[i];
        for (unsigned at = begin + threadIdx.x % WARP; at < end; at += WARP) {
            sorted[at].begin = int32_t(begin);
            sorted[at].end = int32_t(end);
        }
    }
}

struct row_sums {
    const sorted_token *sorted;
    const unsigned *num_sorted;
    const int32_t *tokens;
    size_t first_row, cols;
    unsigned stretch;
    float *dtable, *partials; /* [2 stretches, cols] */
};

/* Where the sum of the stretch from `at` on is kept until its row's sums are joined. Stretches that
 * are not their row's last are whole: no two of them begin in the same window of that many places,
 * nor do two last ones of rows that have several. */
__device__ size_t partial_of(unsigned at, bool is_last, unsigned stretch)
{
    return size_t(at / stretch) * 2 + is_last;
}

/* A block a place, which works where a stretch begins. */
template <typename T, int n> __global__ void add_stretches(const T *dy, row_sums r)
{
    const unsigned at = blockIdx.x;
    if (at >= *r.num_sorted)
        return;
    const sorted_token first = r.sorted[at];
    const unsigned begin = unsigned(first.begin), end = unsigned(first.end);
    if ((at - begin) % r.stretch)
        return;
    const bool is_last = end - at <= r.stretch, is_whole = is_last && at == begin;
    const unsigned num = is_last ? end - at : r.stretch;
    float *to = is_whole ? r.dtable + (size_t(r.tokens[first.token]) - r.first_row) * r.cols
                         : r.partials + partial_of(at, is_last, r.stretch) * r.cols;
    for (size_t col = size_t(threadIdx.x) * n; col < r.cols; col += size_t(blockDim.x) * n) {
        pack<float, n> sum;
        if (is_whole)
            sum = load_pack<n>(to + col);
        else
            for (int k = 0; k < n; k++)
                sum.at[k] = 0.0f;
#pragma unroll 4
        for (unsigned i = 0; i < num; i++) {
            const size_t token = size_t(r.sorted[at + i].token);
            const pack<T, n> values = load_pack<n>(dy + token * r.cols + col);
#pragma unroll
            for (int k = 0; k < n; k++)
                sum.at[k] += to_float(values.at[k]);
        }
        store_pack(to + col, sum);
    }
}

/* A block a window of `stretch` places, which works where a row begins that has several stretches:
 * there is at most one. */
template <int n> __global__ void join_stretches(row_sums r)
{
    __shared__ unsigned found;
    if (threadIdx.x == 0)
        found = ~0u;
    __syncthreads();
    const unsigned num_sorted = *r.num_sorted, window = blockIdx.x * r.stretch;
    for (unsigned i = threadIdx.x; i < r.stretch && window + i < num_sorted; i += blockDim.x) {
        const sorted_token here = r.sorted[window + i];
        if (unsigned(here.begin) == window + i && unsigned(here.end - here.begin) > r.stretch)
            found = window + i;
    }
    __syncthreads();
    if (found == ~0u)
        return;
    const sorted_token first = r.sorted[found];
    float *row = r.dtable + (size_t(r.tokens[first.token]) - r.first_row) * r.cols;
    for (size_t col = size_t(threadIdx.x) * n; col < r.cols; col += size_t(blockDim.x) * n) {
        pack<float, n> sum = load_pack<n>(row + col);
        for (unsigned at = unsigned(first.begin); at < unsigned(first.end); at += r.stretch) {
            const bool is_last = unsigned(first.end) - at <= r.stretch;
            const pack<float, n> part =
                load_pack<n>(r.partials + partial_of(at, is_last, r.stretch) * r.cols + col);
#pragma unroll
            for (int k = 0; k < n; k++)
                sum.at[k] += part.at[k];
        }
        store_pack(row + col, sum);
    }
}

constexpr unsigned ADD_THREADS = 256; /* at most, for the columns of one row */

/* The shortest stretch of at least 64 tokens whose sums fit beside the order. */
unsigned choose_stretch(size_t num_tokens, size_t cols, size_t bytes)
{
    size_t stretch = 64;
    while (stretch < num_tokens &&
           2 * ((num_tokens + stretch - 1) / stretch) * cols * sizeof(float) > bytes)
        stretch *= 2;
    return static_cast<unsigned>(stretch);
}

template <typename T>
weft_status add_rows(weft_lane *lane, const weft_embedding_backward_args *args, size_t first,
                     size_t num)
{
    constexpr int n = WIDTH<T>;
    cudaStream_t stream = weft_cuda_stream(lane);
    const unsigned count = static_cast<unsigned>(num);
    const size_t order = (num * sizeof(sorted_token) + 127) / 128 * 128;
    const size_t head = 128 + (num * sizeof(int32_t) + 127) / 128 * 128;
    const size_t rest = WEFT_CUDA_WORKSPACE_BYTES - head - order;
    const unsigned stretch = choose_stretch(num, args->cols, rest);
    const size_t partials = 2 * size_t(num_blocks(num, stretch)) * args->cols * sizeof(float);
    void *workspace;
    WEFT_TRY(weft_cuda_workspace(lane, head + order + partials, &workspace));
    unsigned *num_sorted = static_cast<unsigned *>(workspace);
    char *memory = static_cast<char *>(workspace) + head;
    sorted_token *sorted = reinterpret_cast<sorted_token *>(memory);
    const int32_t *tokens = args->tokens + first;
    WEFT_TRY(bring_near(lane, 128, num, &tokens));

    const size_t fair = (args->num_rows + SORT_BLOCKS - 1) / SORT_BLOCKS;
    const unsigned per_block = static_cast<unsigned>(fair < SORT_FEW    ? SORT_FEW
                                                     : fair < SORT_ROWS ? fair
                                                                        : SORT_ROWS);
    WEFT_TRY(WEFT_LAUNCH(sort_tokens, num_blocks(args->num_rows, per_block), SORT_THREADS, 0,
                         stream, tokens, count, args->first_row, args->num_rows, per_block, sorted,
                         num_sorted));
    const T *dy = static_cast<const T *>(args->dy) + first * args->cols;
    const row_sums sums = {
        sorted,     num_sorted, tokens,       args->first_row,
        args->cols, stretch,    args->dtable, reinterpret_cast<float *>(memory + order)};
    const bool aligned =
        is_aligned(16, dy) && is_aligned(n * sizeof(float), args->dtable) && args->cols % n == 0;
    unsigned threads = num_blocks(args->cols, size_t(aligned ? n : 1) * WARP) * WARP;
    threads = threads < ADD_THREADS ? threads : ADD_THREADS;
    if (aligned)
        WEFT_TRY(WEFT_LAUNCH((add_stretches<T, n>), count, threads, 0, stream, dy, sums));
    else
        WEFT_TRY(WEFT_LAUNCH((add_stretches<T, 1>), count, threads, 0, stream, dy, sums));
    if (num <= stretch) /* no row has several stretches */
        return WEFT_OK;
    if (aligned)
        return WEFT_LAUNCH(join_stretches<n>, num_blocks(num, stretch), threads, 0, stream, sums);
    return WEFT_LAUNCH(join_stretches<1>, num_blocks(num, stretch), threads, 0, stream, sums);
}

template <typename T>
weft_status add_table(weft_lane *lane, const weft_embedding_backward_args *args)
{
    if (!args->dtable || args->num_rows == 0)
        return WEFT_OK;
    for (size_t first = 0; first < args->num_tokens; first += TOKENS_AT_ONCE) {
        const size_t rest = args->num_tokens - first;
        WEFT_TRY(add_rows<T>(lane, args, first, rest < TOKENS_AT_ONCE ? rest : TOKENS_AT_ONCE));
    }
    return WEFT_OK;
}

template <typename T>
weft_status backward(weft_lane *lane, const weft_embedding_backward_args *args)
{
    if (args->dpositions && args->index && args->index_by_sample) {
        weft_embedding_backward_args as_table = *args; /* tokens choose positions as they do rows */
        as_table.tokens = args->index;
        as_table.first_row = 0;
        as_table.num_rows = args->num_positions;
        as_table.dtable = args->dpositions;
        WEFT_TRY(add_table<T>(lane, &as_table));
    } else if (args->dpositions) {
        WEFT_TRY(add_positions<T>(lane, args));
    }
    return add_table<T>(lane, args);
}

} // namespace

weft_status weft_cuda_embedding_forward(weft_lane *lane, const weft_embedding_forward_args *args)
{
    if (args->num_tokens == 0 || args->cols == 0)
        return WEFT_OK;
    return WITH_DTYPE(args->dtype, gather_table<T>(lane, args));
}

weft_status weft_cuda_embedding_backward(weft_lane *lane, const weft_embedding_backward_args *args)
{
    const size_t row_bytes = args->cols * sizeof(float);
    if (args->overwrite && args->dtable)
        WEFT_TRY(weft_lane_zero(lane, args->dtable, args->num_rows * row_bytes));
    if (args->overwrite && args->dpositions)
        WEFT_TRY(weft_lane_zero(lane, args->dpositions, args->num_positions * row_bytes));
    if (args->num_tokens == 0 || args->cols == 0)
        return WEFT_OK;
    return WITH_DTYPE(args->dtype, backward<T>(lane, args));
}
