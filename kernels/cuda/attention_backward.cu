/* Gradients of attention from its log-sum-exps (FlashAttention, Algorithm 4), in two passes: one
 * for queries and one for keys and values. Each computes all probabilities again, which costs 7
 * products where 5 would do, and needs no sum over blocks, so that the result is always the same.
 *
 * Both passes are one kernel. Blocks own rows of `first` and `second`: queries and the gradient of
 * the output or, for keys, keys and values; they meet tiles of the other two. With
 *   S = scale * first others_first^T,  P = exp(S - lse),
 *   dP = second others_second^T,       dS = P * (dP - delta),
 * the gradients are dS others_first for the first and, for keys, P others_second for the second. */
#include "kernels/cuda/attention_plain.cuh"
#include "kernels/cuda/attention_tiles.cuh"

template <typename T> struct tensors {
    const T *q, *k, *v, *dout;
    const float *lse, *delta;
    void *dq, *dk, *dv; /* of a piece: fp32 */
};

/* The rows `first` .. `end` that a block owns at most, of a sample b and a head or group, and the
 * tiles that it meets: `tiles` of each of its heads, of the rows `begin` .. `stop`. */
struct block_work {
    int b, g, head, first, end;
    int begin, stop, tiles, num_heads;
};

/* Blocks with the most work come first: the last queries, the first keys. */
template <bool for_keys, int num_own, int num_others>
static __device__ inline block_work find_work(const problem &p)
{
    block_work w;
    const int each = for_keys ? p.s.groups : p.s.heads, all = p.s.batch * each;
    const int num_tiles = gridDim.x / all;
    const block_place at = place_of_block(blockIdx.x, all, num_tiles, p.heads_at_once);
    w.b = at.head / each;
    if (for_keys) {
        w.g = at.head % each;
        w.head = w.g * p.heads_each;
        w.first = at.tile * num_own;
        w.end = p.seq_k;
        w.begin = first_to_see(p, w.first) / num_others * num_others;
        w.stop = end_to_see(p, min(w.first + num_own, p.seq_k) - 1);
        w.num_heads = p.heads_each;
    } else {
        w.head = at.head % each;
        w.g = w.head / p.heads_each;
        w.first = (num_tiles - 1 - at.tile) * num_own;
        w.end = p.seq_q;
        w.begin = start_of_keys(p, w.b, w.first) / num_others * num_others;
        w.stop = end_of_keys(p, min(w.first + num_own, p.seq_q) - 1);
        w.num_heads = 1;
    }
    w.tiles = max(0, (w.stop - w.begin + num_others - 1) / num_others);
    return w;
}

/* Where a block is: the head and the first row of the tile that it meets. It steps on without a
 * division, which would be in the way of the next tile's loads. */
struct tile_place {
    int head, start;
};

/* Queries meet the keys once, keys the queries of one head after the other. */
template <bool for_keys, int num_others>
static __device__ inline tile_place next_place(const block_work &w, tile_place at)
{
    at.start += num_others;
    if (for_keys && at.start >= w.stop) {
        at.start = w.begin;
        at.head++;
    }
    return at;
}

template <bool keys, typename T>
static __device__ inline rows<const T> first_rows(const problem &p, const tensors<T> &x,
                                                  const block_work &w, int head)
{
    return keys ? key_rows(p, x.k, w.b, w.g) : query_rows(p, x.q, w.b, head);
}

template <bool keys, typename T>
static __device__ inline rows<const T> second_rows(const problem &p, const tensors<T> &x,
                                                   const block_work &w, int head)
{
    return keys ? key_rows(p, x.v, w.b, w.g) : out_rows(p, x.dout, w.b, head);
}

/* columns: of queries and keys; values: of values and the output's gradient. */
template <int columns, int values, bool for_keys> struct backward_tiling {
    static constexpr int times = columns <= (for_keys ? 64 : 128) ? 2 : 1;
    static constexpr int splits = columns > 128 && for_keys ? 2 : 1; /* warps that share rows */
    static constexpr int num_threads = 128 * splits;
    static constexpr int own = 4 * 16 * times;
    static constexpr int others = columns <= 64 ? 64 : 32; /* a tile's */
    static constexpr int at_once = 32;                     /* of these, in registers */
    static constexpr int blocks = columns <= 128 ? 2 : 1;  /* of a multiprocessor, at least */
    static constexpr bool holds_first = columns <= 64 && !for_keys; /* its own, in registers */
    static constexpr bool holds_second = columns == (for_keys ? 128 : 64);
    static constexpr size_t shared_bytes = (own + 2 * others) * (columns + values) * 2 +
                                           (for_keys ? 2 * 2 * others : 2 * own) * sizeof(float);
};

/* In shared memory, log-sum-exps of the queries of scores, and as many from `num` on their deltas.
 */
struct statistics {
    const float *lse;
    int num;
};

/* In: scores before scaling, and dP. Out: probabilities before dropout, and dS. Returns, with
 * dropout, which elements it keeps. */
template <bool for_keys, int times, int columns>
static __device__ inline element_bits<times, columns>
score_gradients(const problem &p, results<times, columns> &scores,
                results<times, columns> &gradients, const statistics &stats, int b, int head,
                int row, int col)
{
    const float scale = p.scale * LOG2_E;
    element_bits<times, columns> kept = 0;
    if (p.s.dropout > 0) {
        kept = kept_of<for_keys, times, columns>(p, b, head, row, col);
        each_element(gradients, 0, 0, [&](float &dx, int m, int n, int e, int, int) {
            dx *= kept >> (4 * (m * (columns / 8) + n) + e) & 1 ? p.kept_factor : 0.0f;
        });
    }
    each_element(scores, 0, 0, [&](float &x, int m, int n, int e, int at_row, int at_col) {
        const int query = for_keys ? at_col : at_row;
        float &dx = gradients.at[m][n][e];
        const float slope = p.softcap > 0 && x != -INFINITY ? slope_of_capped(p, x) : 1.0f;
        x = power_of_two(fmaf(x, scale, -stats.lse[query] * LOG2_E));
        dx = x * (dx - stats.lse[stats.num + query]) * slope;
    });
    return kept;
}

template <typename T, int columns, int values, bool for_keys>
static __global__ void __launch_bounds__(backward_tiling<columns, values, for_keys>::num_threads,
                                         backward_tiling<columns, values, for_keys>::blocks)
    backward(problem p, tensors<T> x)
{
    using tiling = backward_tiling<columns, values, for_keys>;
    constexpr int times = tiling::times, threads = tiling::num_threads, others = tiling::others;
    constexpr int at_once = tiling::at_once, own = tiling::own;
    constexpr int width = columns / tiling::splits, value_width = values / tiling::splits;
    WEFT_DYNAMIC_SHARED(T, first);
    constexpr int tile = others * (columns + values);
    T *second = first + own * columns, *tiles = second + own * values;
    float *stats_tiles = reinterpret_cast<float *>(tiles + 2 * tile);

    const block_work w = find_work<for_keys, own, others>(p);
    const int warp = threadIdx.x / WARP, row = warp / tiling::splits * (16 * times);
    const int chunk = warp % tiling::splits * (width / 8);
    const int value_chunk = warp % tiling::splits * (value_width / 8);

    /* Tile i of all heads', into one of two places. */
    const auto load = [&](int i, tile_place from) {
        const int head = from.head, start = from.start, end = for_keys ? p.seq_q : p.seq_k;
        T *to = tiles + i % 2 * tile;
        load_tile<others, columns, threads>(p, p.dim, to, first_rows<!for_keys>(p, x, w, head),
                                            start, end);
        load_tile<others, values, threads>(p, p.value_dim, to + others * columns,
                                           second_rows<!for_keys>(p, x, w, head), start, end);
        if (for_keys && threadIdx.x < 2 * others) {
            const int at = start + threadIdx.x % others;
            const float *stats = threadIdx.x < others ? x.lse : x.delta;
            copy_4_bytes(stats_tiles + i % 2 * (2 * others) + threadIdx.x,
                         stats + stat_at(p, w.b, head, 0) + at, at < end);
        }
    };

    if (!for_keys)
        for (int i = threadIdx.x; i < 2 * own; i += threads) {
            const int query = w.first + i % own;
            const float *from = i < own ? x.lse : x.delta;
            copy_4_bytes(stats_tiles + i, from + stat_at(p, w.b, w.head, 0) + query, query < w.end);
        }

    results<times, width> first_sums;
    results<times, value_width> second_sums; /* only for keys */
    first_sums.clear();
    second_sums.clear();
    load_tile<own, columns, threads>(p, p.dim, first, first_rows<for_keys>(p, x, w, w.head),
                                     w.first, w.end);
    load_tile<own, values, threads>(p, p.value_dim, second, second_rows<for_keys>(p, x, w, w.head),
                                    w.first, w.end);
    tile_place next = {w.head, w.begin};
    if (w.tiles > 0)
        load(0, next);
    left_rows<times, columns, tiling::holds_first, T> own_first = {first, row, {}};
    left_rows<times, values, tiling::holds_second, T> own_second = {second, row, {}};
    for (int i = 0; i < w.num_heads * w.tiles; i++) {
        wait_for_copies();
        __syncthreads();
        const int head = next.head, start = next.start;
        next = next_place<for_keys, others>(w, next);
        if (i + 1 < w.num_heads * w.tiles)
            load(i + 1, next);
        const T *others_first = tiles + i % 2 * tile;
        const T *others_second = others_first + others * columns;
        if (i == 0) {
            own_first.hold();
            own_second.hold();
        }
#pragma unroll 1
        for (int part = 0; part < others; part += at_once) {
            const int own_row = w.first + row, col = start + part;
            bool sees, all_see; /* any, all of these queries of these keys */
            if (for_keys) {
                sees = col < p.seq_q && own_row < end_of_keys(p, col + at_once - 1);
                if (p.has_start)
                    sees = sees && own_row + 16 * times > start_of_keys(p, w.b, col);
                all_see = own_row + 16 * times <= end_of_keys(p, col);
            } else {
                sees = col < end_of_keys(p, own_row + 16 * times - 1) &&
                       col + at_once > start_of_keys(p, w.b, own_row);
                all_see = col + at_once <= end_of_keys(p, own_row);
            }
            if (!sees)
                continue;
            results<times, at_once> scores, gradients;
            multiply_rows(scores, own_first, others_first, part);
            multiply_rows(gradients, own_second, others_second, part);
            if (p.softcap > 0)
                each_element(scores, 0, 0,
                             [&](float &x, int, int, int, int, int) { x = capped(p, x); });
            if (!all_see)
                hide<for_keys>(p, scores, own_row, col);
            const int last = min(for_keys ? col + at_once : own_row + 16 * times, p.seq_q) - 1;
            if (p.has_start && (for_keys ? own_row : col) < start_of_keys(p, w.b, last))
                hide_earlier<for_keys>(p, scores, w.b, own_row, col);
            const statistics stats = {stats_tiles + (for_keys ? i % 2 * (2 * others) + part : row),
                                      for_keys ? others : own};
            const auto kept =
                score_gradients<for_keys>(p, scores, gradients, stats, w.b, head, own_row, col);
            operand<times, at_once> rounded;
            if constexpr (for_keys) {
                round_results<T>(rounded, scores);
                if (p.s.dropout > 0)
                    drop(rounded, kept);
                multiply_add<values>(second_sums, rounded, others_second, part, value_chunk);
            }
            round_results<T>(rounded, gradients);
            multiply_add<columns>(first_sums, rounded, others_first, part, chunk);
        }
    }

    float factor[times][2];
    const auto set_factor = [&](float value) {
        for (int m = 0; m < times; m++)
            factor[m][0] = factor[m][1] = value;
    };
    wait_for_copies();
    __syncthreads();
    if (p.piece != WEFT_ATTENTION_WHOLE) {
        const auto add = [&](auto &sums, int dim, int from, const rows<float> &to, float by) {
            each_result(dim, sums, w.first + row, from, w.end,
                        [&](float &x, int, int, int at, int col) {
                            to.at[at * to.stride + col] += x * by;
                        });
        };
        if constexpr (for_keys) {
            add(first_sums, p.dim, chunk, dk_rows(p, x.dk, w.b, w.g), p.scale);
            add(second_sums, p.value_dim, value_chunk, dk_rows(p, x.dv, w.b, w.g), p.kept_factor);
        } else {
            add(first_sums, p.dim, chunk, dq_rows(p, x.dq, w.b, w.head), p.scale);
        }
        return;
    }
    set_factor(p.scale);
    store_results<columns>(first, row, chunk, first_sums, factor);
    if constexpr (for_keys) {
        set_factor(p.kept_factor);
        store_results<values>(second, row, value_chunk, second_sums, factor);
    }
    __syncthreads();
    if constexpr (for_keys) {
        store_tile<own, columns, threads>(p, p.dim, key_rows(p, static_cast<T *>(x.dk), w.b, w.g),
                                          first, w.first, w.end);
        store_tile<own, values, threads>(
            p, p.value_dim, key_rows(p, static_cast<T *>(x.dv), w.b, w.g), second, w.first, w.end);
    } else {
        store_tile<own, columns, threads>(
            p, p.dim, query_rows(p, static_cast<T *>(x.dq), w.b, w.head), first, w.first, w.end);
    }
}

/* The same in fp32. */
template <int columns, bool for_keys>
static __global__ void __launch_bounds__(PLAIN_THREADS) backward_plain(problem p, tensors<float> t)
{
    using tiling = plain_tiling<columns>;
    constexpr int each = tiling::each, side = tiling::side;
    WEFT_DYNAMIC_SHARED(float, first);
    float *second = first + tiling::tile, *others_first = second + tiling::tile;
    float *others_second = others_first + tiling::tile;
    float *probabilities = others_second + tiling::tile, *dscores = probabilities + tiling::scores;

    const block_work w = find_work<for_keys, side, side>(p);
    const int x = threadIdx.x % 16, y = threadIdx.x / 16;
    float first_sums[each][columns / 16] = {}, second_sums[each][columns / 16] = {}, factor[each];
    load_plain<columns>(first, first_rows<for_keys>(p, t, w, w.head), p.dim, w.first, w.end);
    load_plain<columns>(second, second_rows<for_keys>(p, t, w, w.head), p.value_dim, w.first,
                        w.end);
    tile_place next = {w.head, w.begin};
    for (int i = 0; i < w.num_heads * w.tiles; i++) {
        const int head = next.head, start = next.start, end = for_keys ? p.seq_q : p.seq_k;
        next = next_place<for_keys, side>(w, next);
        const uint64_t element = first_element(p, w.b, head);
        __syncthreads();
        load_plain<columns>(others_first, first_rows<!for_keys>(p, t, w, head), p.dim, start, end);
        load_plain<columns>(others_second, second_rows<!for_keys>(p, t, w, head), p.value_dim,
                            start, end);
        __syncthreads();
        float scores[each][each], gradients[each][each];
        multiply_plain_rows<columns>(p.dim, scores, first, others_first);
        multiply_plain_rows<columns>(p.value_dim, gradients, second, others_second);
#pragma unroll
        for (int a = 0; a < each; a++)
#pragma unroll
            for (int c = 0; c < each; c++) {
                const int own_row = w.first + y + 16 * a, other_row = start + x + 16 * c;
                const int query = for_keys ? other_row : own_row;
                const int key = for_keys ? own_row : other_row;
                const bool is_seen = query < p.seq_q && key < end_of_keys(p, query) &&
                                     key >= start_of_keys(p, w.b, query);
                const size_t stat = is_seen ? stat_at(p, w.b, head, query) : 0;
                const float score = capped(p, scores[a][c]);
                const float e = is_seen ? expf(score * p.scale - t.lse[stat]) : 0.0f;
                const float kept =
                    p.s.dropout > 0 && !is_kept(p, element, query, key) ? 0.0f : p.kept_factor;
                scores[a][c] = e * kept;
                gradients[a][c] = is_seen ? e * (gradients[a][c] * kept - t.delta[stat]) *
                                                slope_of_capped(p, score)
                                          : 0.0f;
            }
        store_plain_scores<columns>(dscores, gradients);
        if (for_keys)
            store_plain_scores<columns>(probabilities, scores);
        __syncthreads();
        multiply_plain_add<columns>(first_sums, dscores, others_first);
        if (for_keys)
            multiply_plain_add<columns>(second_sums, probabilities, others_second);
    }
    for (int a = 0; a < each; a++)
        factor[a] = p.scale;
    const bool is_piece = p.piece != WEFT_ATTENTION_WHOLE;
    if constexpr (for_keys) {
        const auto to = [&](void *at) {
            return is_piece ? dk_rows(p, at, w.b, w.g)
                            : key_rows(p, static_cast<float *>(at), w.b, w.g);
        };
        store_plain(p.dim, to(t.dk), first_sums, factor, w.first, w.end, is_piece);
        for (int a = 0; a < each; a++)
            factor[a] = 1.0f;
        store_plain(p.value_dim, to(t.dv), second_sums, factor, w.first, w.end, is_piece);
    } else {
        const rows<float> to = is_piece ? dq_rows(p, t.dq, w.b, w.head)
                                        : query_rows(p, static_cast<float *>(t.dq), w.b, w.head);
        store_plain(p.dim, to, first_sums, factor, w.first, w.end, is_piece);
    }
}

/* delta = the sum over d of out and dout: what the softmax's gradient subtracts everywhere (line 4
 * of Algorithm 4 holds with dropout, too). Eight threads take a head of a token. */
template <typename T>
static __global__ void __launch_bounds__(256)
    compute_delta(problem p, const T *out, const T *dout, float *delta)
{
    constexpr int count = 16 / sizeof(T);
    const unsigned heads = p.s.heads, batch = p.s.batch, all = p.seq_q * batch * heads;
    const unsigned i = blockIdx.x * (blockDim.x / 8) + threadIdx.x / 8;
    const int part = threadIdx.x % 8;
    float sum = 0.0f;
    if (i < all) {
        const T *x = out + size_t(i) * p.value_dim, *y = dout + size_t(i) * p.value_dim;
        if (p.is_aligned) {
#pragma unroll 2
            for (int d = part * count; d < p.value_dim; d += 8 * count) {
                const auto a = *reinterpret_cast<const pack<T, count> *>(x + d);
                const auto b = *reinterpret_cast<const pack<T, count> *>(y + d);
                for (int e = 0; e < count; e++)
                    sum = fmaf(to_float(a.at[e]), to_float(b.at[e]), sum);
            }
        } else {
            for (int d = part; d < p.value_dim; d += 8)
                sum = fmaf(to_float(x[d]), to_float(y[d]), sum);
        }
    }
    for (int offset = 4; offset > 0; offset /= 2)
        sum += __shfl_xor_sync(WHOLE_WARP, sum, offset);
    if (i < all && part == 0) {
        const unsigned token = i / heads;
        delta[stat_at(p, token % batch, i % heads, token / batch)] = sum;
    }
}

template <typename T, int columns, int values, bool for_keys>
static weft_status launch_pass(cudaStream_t stream, problem p, const tensors<T> &x)
{
    const size_t rows = for_keys ? p.s.seq_k : p.s.seq_q;
    const size_t each = p.s.batch * (for_keys ? p.s.groups : p.s.heads);
    const size_t row_bytes = (p.dim + p.value_dim) * sizeof(T);
    const size_t other_bytes =
        for_keys ? p.s.seq_q * row_bytes * p.heads_each : p.s.seq_k * row_bytes / p.heads_each;
    if (rows == 0)
        return WEFT_OK;
    if constexpr (sizeof(T) == sizeof(float)) {
        using tiling = plain_tiling<columns>;
        const size_t num_tiles = num_blocks(rows, tiling::side);
        p.heads_at_once = heads_at_once(each, num_tiles, other_bytes);
        return LAUNCH_WITH_SHARED(
            (backward_plain<columns, for_keys>), num_tiles * each, PLAIN_THREADS,
            (4 * tiling::tile + 2 * tiling::scores) * sizeof(float), stream, p, x);
    } else {
        using tiling = backward_tiling<columns, values, for_keys>;
        const size_t num_tiles = num_blocks(rows, tiling::own);
        p.heads_at_once = heads_at_once(each, num_tiles, other_bytes);
        return LAUNCH_WITH_SHARED((backward<T, columns, values, for_keys>), num_tiles * each,
                                  tiling::num_threads, tiling::shared_bytes, stream, p, x);
    }
}

template <typename T, int columns, int values>
static weft_status launch(weft_lane *lane, const problem &p, const weft_attention_backward_args *a)
{
    const cudaStream_t stream = weft_cuda_stream(lane);
    const T *out = static_cast<const T *>(a->out), *dout = static_cast<const T *>(a->dout);
    const tensors<T> x = {
        static_cast<const T *>(a->q),
        static_cast<const T *>(a->k),
        static_cast<const T *>(a->v),
        dout,
        a->lse,
        a->delta,
        a->dq,
        a->dk,
        a->dv,
    };
    if (p.seq_q > 0 && p.piece != WEFT_ATTENTION_NEXT)
        WEFT_TRY(WEFT_LAUNCH(compute_delta<T>, num_blocks(p.s.seq_q * p.s.batch * p.s.heads, 32),
                             256, 0, stream, p, out, dout, a->delta));
    WEFT_TRY((launch_pass<T, columns, values, false>(stream, p, x)));
    return launch_pass<T, columns, values, true>(stream, p, x);
}

extern "C" weft_status weft_cuda_attention_backward(weft_lane *lane,
                                                    const weft_attention_backward_args *a)
{
    problem p = make_problem(a->shape, a->dtype, a->first_key, a->first_seen, a->variant, a->piece,
                             a->value_dim, a->q, a->k, a->v, a->out, a->dout, a->dq, a->dk, a->dv);
    p.dq_token_stride = a->dq_token_stride;
    p.dq_group_stride = a->dq_group_stride;
    p.dk_token_stride = a->dk_token_stride;
    p.dk_group_stride = a->dk_group_stride;
    if (p.s.batch == 0 || !a->dk || !a->dv) /* only where there is nothing to do */
        return WEFT_OK;
    WEFT_TRY(check_problem(p));
    WEFT_TRY(bring_near(lane, 0, p.s.seq_q * p.s.batch, &p.first_seen));
    return WITH_DTYPE(a->dtype, WITH_COLUMNS(p, (launch<T, COLUMNS, VALUES>(lane, p, a))));
}

/* A block a head. */
template <typename T>
static __global__ void __launch_bounds__(256) sum_sinks(weft_attention_sinks_args a)
{
    __shared__ float sums[256];
    const unsigned h = blockIdx.x;
    const float sink = to_float(static_cast<const T *>(a.sinks)[h]);
    float sum = 0.0f;
    for (size_t i = threadIdx.x; i < a.batch * a.seq; i += 256) {
        const size_t at = (i / a.seq * a.heads + h) * a.seq + i % a.seq;
        sum -= expf(sink - a.lse[at]) * a.delta[at];
    }
    sums[threadIdx.x] = sum;
    for (unsigned half = 128; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half)
            sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    if (threadIdx.x == 0)
        a.dsinks[h] = sums[0] + (a.overwrite ? 0.0f : a.dsinks[h]);
}

extern "C" weft_status weft_cuda_attention_sinks(weft_lane *lane,
                                                 const weft_attention_sinks_args *a)
{
    if (a->heads == 0)
        return WEFT_OK;
    return WITH_DTYPE(a->dtype,
                      WEFT_LAUNCH(sum_sinks<T>, a->heads, 256, 0, weft_cuda_stream(lane), *a));
}
