#include "kernels/cuda/attention_plain.cuh"
#include "kernels/cuda/attention_tiles.cuh"

/* With 16-bit numbers: each warp owns 16 * times queries, whose scores, probabilities and sums stay
 * in registers. */
template <int columns, int values> struct forward_tiling {
    static constexpr int times = columns <= 128 ? 2 : 1;
    static constexpr int num_threads = 128;
    static constexpr int queries = num_threads / 32 * 16 * times;
    static constexpr int keys = 64;
    static constexpr bool holds_queries = columns <= 64; /* in registers */
    static constexpr size_t shared_bytes = ((queries + keys) * columns + keys * values) * 2;
};

/* Below any score: the maximum of a query that has seen no key. */
constexpr float NO_KEY_SEEN = -1e30f;

/* Scores become exp(scale * (score - top)), top being the greatest so far, or a little less: it
 * follows only when it would fall behind by more than 2^8, so that the output seldom has to be
 * scaled. Sums of this thread's columns are added to `sum`. Returns in `factor` what sums over
 * earlier keys are worth beside these. */
template <int times, int keys>
static __device__ inline void online_softmax(results<times, keys> &scores, float scale,
                                             float (&top)[times][2], float (&sum)[times][2],
                                             float (&factor)[times][2])
{
#pragma unroll
    for (int m = 0; m < times; m++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float high = scores.at[m][0][2 * i];
#pragma unroll
            for (int n = 0; n < keys / 8; n++)
                high = fmaxf(high, fmaxf(scores.at[m][n][2 * i], scores.at[m][n][2 * i + 1]));
            high = fmaxf(high, __shfl_xor_sync(WHOLE_WARP, high, 1));
            high = fmaxf(high, __shfl_xor_sync(WHOLE_WARP, high, 2));
            high = fmaxf(high, NO_KEY_SEEN);
            high = (high - top[m][i]) * scale <= 8.0f ? top[m][i] : high;
            factor[m][i] = power_of_two((top[m][i] - high) * scale);
            top[m][i] = high;
            float total = 0.0f;
#pragma unroll
            for (int n = 0; n < keys / 8; n++)
#pragma unroll
                for (int e = 2 * i; e < 2 * i + 2; e++) {
                    scores.at[m][n][e] =
                        power_of_two(fmaf(scores.at[m][n][e], scale, -high * scale));
                    total += scores.at[m][n][e];
                }
            sum[m][i] = sum[m][i] * factor[m][i] + total;
        }
}

template <int times, int columns>
static __device__ inline void scale_rows(results<times, columns> &x,
                                         const float (&factor)[times][2])
{
    bool changes = false;
#pragma unroll
    for (int m = 0; m < times; m++)
        changes = changes || factor[m][0] != 1.0f || factor[m][1] != 1.0f;
    if (!__any_sync(WHOLE_WARP, changes))
        return;
    each_element(x, 0, 0,
                 [&](float &value, int m, int, int e, int, int) { value *= factor[m][e / 2]; });
}

/* Blocks: tiles of queries, the last first, for they see the most keys. */
template <typename T, int columns, int values>
static __global__ void __launch_bounds__(forward_tiling<columns, values>::num_threads, 2)
    forward(problem p, const T *q, const T *k, const T *v, const T *sinks, void *out, float *lse)
{
    using tiling = forward_tiling<columns, values>;
    constexpr int times = tiling::times, threads = tiling::num_threads, keys = tiling::keys;
    WEFT_DYNAMIC_SHARED(T, shared);
    T *q_tile = shared, *k_tile = q_tile + tiling::queries * columns;
    T *v_tile = k_tile + keys * columns;

    const int num_heads = p.s.batch * p.s.heads, num_tiles = gridDim.x / num_heads;
    const block_place at = place_of_block(blockIdx.x, num_heads, num_tiles, p.heads_at_once);
    const int b = at.head / int(p.s.heads), h = at.head % int(p.s.heads), g = h / p.heads_each;
    const int first = (num_tiles - 1 - at.tile) * tiling::queries;
    const int row = threadIdx.x / WARP * (16 * times); /* the warp's first */
    const rows<const T> k_rows = key_rows(p, k, b, g), v_rows = key_rows(p, v, b, g);
    const float scale = p.scale * LOG2_E;

    const int end = end_of_keys(p, min(first + tiling::queries, p.seq_q) - 1);
    const int warp_end = end_of_keys(p, first + row + 16 * times - 1);
    const int all_see = end_of_keys(p, first + row);
    results<times, values> sums;
    results<times, keys> scores;
    float top[times][2], sum[times][2], factor[times][2];
    sums.clear();
    for (int m = 0; m < times; m++)
        for (int i = 0; i < 2; i++) {
            top[m][i] = sinks ? to_float(sinks[h]) / p.scale : -INFINITY;
            sum[m][i] = sinks && warp_thread() % 4 == 0 ? 1.0f : 0.0f;
        }

    const int begin = start_of_keys(p, b, first) / keys * keys;
    if (p.piece == WEFT_ATTENTION_NEXT) {
        const rows<float> known = out_rows(p, static_cast<float *>(out), b, h);
        const float again = 1.0f / p.kept_factor;
        each_result(p.value_dim, sums, first + row, 0, p.seq_q,
                    [&](float &x, int, int, int at, int col) {
                        x = known.at[at * known.stride + col] * again;
                    });
        for (int m = 0; m < times; m++)
            for (int i = 0; i < 2; i++) {
                const int query = first + row + 16 * m + 8 * i + int(warp_thread() / 4);
                const float known = query < p.seq_q ? lse[stat_at(p, b, h, query)] : -INFINITY;
                top[m][i] = known == -INFINITY ? known : known / p.scale;
                sum[m][i] = known != -INFINITY && warp_thread() % 4 == 0 ? 1.0f : 0.0f;
            }
    }

    load_tile<tiling::queries, columns, threads>(p, p.dim, q_tile, query_rows(p, q, b, h), first,
                                                 p.seq_q);
    if (begin < end)
        load_tile<keys, columns, threads>(p, p.dim, k_tile, k_rows, begin, p.seq_k);
    left_rows<times, columns, tiling::holds_queries, T> queries = {q_tile, row, {}};
    for (int key = begin; key < end; key += keys) {
        const bool sees = key < warp_end && key + keys > start_of_keys(p, b, first + row);
        wait_for_copies();
        __syncthreads();
        if (tiling::holds_queries && key == begin)
            queries.hold();
        load_tile<keys, values, threads>(p, p.value_dim, v_tile, v_rows, key, p.seq_k);
        if (sees)
            multiply_rows(scores, queries, k_tile, 0);
        if (sees && p.softcap > 0)
            each_element(scores, 0, 0,
                         [&](float &x, int, int, int, int, int) { x = capped(p, x); });
        wait_for_copies();
        __syncthreads();
        if (key + keys < end)
            load_tile<keys, columns, threads>(p, p.dim, k_tile, k_rows, key + keys, p.seq_k);
        if (!sees)
            continue;
        if (key + keys > all_see)
            hide<false>(p, scores, first + row, key);
        if (p.has_start && key < start_of_keys(p, b, min(first + row + 16 * times, p.seq_q) - 1))
            hide_earlier<false>(p, scores, b, first + row, key);
        online_softmax(scores, scale, top, sum, factor);
        scale_rows(sums, factor);
        operand<times, keys> probabilities;
        round_results<T>(probabilities, scores);
        if (p.s.dropout > 0)
            drop(probabilities, kept_of<false, times, keys>(p, b, h, first + row, key));
        multiply_add<values>(sums, probabilities, v_tile, 0, 0);
    }

    if (begin >= end) { /* none has waited for the queries */
        wait_for_copies();
        __syncthreads();
    }
#pragma unroll
    for (int m = 0; m < times; m++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            sum[m][i] += __shfl_xor_sync(WHOLE_WARP, sum[m][i], 1);
            sum[m][i] += __shfl_xor_sync(WHOLE_WARP, sum[m][i], 2);
            const int query = first + row + 16 * m + 8 * i + int(warp_thread() / 4);
            if (warp_thread() % 4 == 0 && query < p.seq_q)
                lse[stat_at(p, b, h, query)] =
                    sum[m][i] > 0 ? top[m][i] * p.scale + logf(sum[m][i]) : -INFINITY;
            factor[m][i] = sum[m][i] > 0 ? p.kept_factor / sum[m][i] : 0.0f;
        }
    if (p.piece != WEFT_ATTENTION_WHOLE) {
        const rows<float> to = out_rows(p, static_cast<float *>(out), b, h);
        each_result(p.value_dim, sums, first + row, 0, p.seq_q,
                    [&](float &x, int m, int i, int at, int col) {
                        to.at[at * to.stride + col] = x * factor[m][i];
                    });
        return;
    }
    if constexpr (values == columns)
        __syncwarp(); /* each warp has these rows of the tile for itself */
    else
        __syncthreads();
    store_results<values>(q_tile, row, 0, sums, factor);
    __syncthreads();
    store_tile<tiling::queries, values, threads>(
        p, p.value_dim, out_rows(p, static_cast<T *>(out), b, h), q_tile, first, p.seq_q);
}

/* The same in fp32. */
template <int columns>
static __global__ void __launch_bounds__(PLAIN_THREADS)
    forward_plain(problem p, const float *q, const float *k, const float *v, const float *sinks,
                  float *out, float *lse)
{
    using tiling = plain_tiling<columns>;
    constexpr int each = tiling::each, side = tiling::side;
    WEFT_DYNAMIC_SHARED(float, q_tile);
    float *k_tile = q_tile + tiling::tile, *v_tile = k_tile + tiling::tile;
    float *probabilities = v_tile + tiling::tile;

    const int num_heads = p.s.batch * p.s.heads, num_tiles = gridDim.x / num_heads;
    const block_place at = place_of_block(blockIdx.x, num_heads, num_tiles, p.heads_at_once);
    const int b = at.head / int(p.s.heads), h = at.head % int(p.s.heads), g = h / p.heads_each;
    const int first = (num_tiles - 1 - at.tile) * side;
    const int x = threadIdx.x % 16, y = threadIdx.x / 16;
    const uint64_t element = first_element(p, b, h);
    float sums[each][columns / 16] = {}, top[each], sum[each] = {}, factor[each];
    const rows<float> to = out_rows(p, out, b, h);
    for (int i = 0; i < each; i++) {
        const int query = first + y + 16 * i;
        const bool goes_on = p.piece == WEFT_ATTENTION_NEXT && query < p.seq_q;
        const bool sinks_in = sinks && p.piece != WEFT_ATTENTION_NEXT;
        top[i] = goes_on ? lse[stat_at(p, b, h, query)] : sinks_in ? sinks[h] : -INFINITY;
        if (top[i] == -INFINITY)
            continue;
        sum[i] = x == 0 ? 1.0f : 0.0f; /* sixteen threads have a part each */
        for (int j = 0; goes_on && j < columns / 16; j++)
            if (x + 16 * j < p.value_dim)
                sums[i][j] = to.at[query * to.stride + x + 16 * j] / p.kept_factor;
    }

    load_plain<columns>(q_tile, query_rows(p, q, b, h), p.dim, first, p.seq_q);
    const int end = end_of_keys(p, min(first + side, p.seq_q) - 1);
    for (int key = start_of_keys(p, b, first) / side * side; key < end; key += side) {
        __syncthreads();
        load_plain<columns>(k_tile, key_rows(p, k, b, g), p.dim, key, p.seq_k);
        load_plain<columns>(v_tile, key_rows(p, v, b, g), p.value_dim, key, p.seq_k);
        __syncthreads();
        float scores[each][each];
        multiply_plain_rows<columns>(p.dim, scores, q_tile, k_tile);
#pragma unroll
        for (int i = 0; i < each; i++) {
            const int query = first + y + 16 * i, num = end_of_keys(p, query) - key;
            const int none = start_of_keys(p, b, query) - key;
            float high = fmaxf(top[i], NO_KEY_SEEN), total = 0.0f;
            for (int j = 0; j < each; j++) {
                const bool is_seen = x + 16 * j < num && x + 16 * j >= none;
                scores[i][j] = is_seen ? capped(p, scores[i][j]) * p.scale : -INFINITY;
                high = fmaxf(high, scores[i][j]);
            }
            for (int offset = 8; offset > 0; offset /= 2)
                high = fmaxf(high, __shfl_xor_sync(WHOLE_WARP, high, offset));
            factor[i] = expf(top[i] - high);
            top[i] = high;
            for (int j = 0; j < each; j++) {
                scores[i][j] = expf(scores[i][j] - high);
                total += scores[i][j];
                if (p.s.dropout > 0 && !is_kept(p, element, query, key + x + 16 * j))
                    scores[i][j] = 0.0f;
            }
            sum[i] = sum[i] * factor[i] + total;
#pragma unroll
            for (int j = 0; j < columns / 16; j++)
                sums[i][j] *= factor[i];
        }
        store_plain_scores<columns>(probabilities, scores);
        __syncthreads();
        multiply_plain_add<columns>(sums, probabilities, v_tile);
    }

#pragma unroll
    for (int i = 0; i < each; i++) {
        for (int offset = 8; offset > 0; offset /= 2)
            sum[i] += __shfl_xor_sync(WHOLE_WARP, sum[i], offset);
        const int query = first + y + 16 * i;
        if (x == 0 && query < p.seq_q)
            lse[stat_at(p, b, h, query)] = sum[i] > 0 ? top[i] + logf(sum[i]) : -INFINITY;
        factor[i] = sum[i] > 0 ? p.kept_factor / sum[i] : 0.0f;
    }
    store_plain(p.value_dim, to, sums, factor, first, p.seq_q);
}

template <typename T, int columns, int values>
static weft_status launch(weft_lane *lane, problem p, const weft_attention_forward_args *a)
{
    const cudaStream_t stream = weft_cuda_stream(lane);
    const size_t num_heads = p.s.batch * p.s.heads;
    const size_t key_bytes = p.s.seq_k * (p.dim + p.value_dim) * sizeof(T) / p.heads_each;
    const T *q = static_cast<const T *>(a->q), *k = static_cast<const T *>(a->k);
    const T *v = static_cast<const T *>(a->v), *sinks = static_cast<const T *>(a->variant.sinks);
    if constexpr (sizeof(T) == sizeof(float)) {
        using tiling = plain_tiling<columns>;
        const size_t num_tiles = num_blocks(p.seq_q, tiling::side);
        p.heads_at_once = heads_at_once(num_heads, num_tiles, key_bytes);
        return LAUNCH_WITH_SHARED(forward_plain<columns>, num_tiles * num_heads, PLAIN_THREADS,
                                  (3 * tiling::tile + tiling::scores) * sizeof(float), stream, p, q,
                                  k, v, sinks, static_cast<float *>(a->out), a->lse);
    } else {
        using tiling = forward_tiling<columns, values>;
        const size_t num_tiles = num_blocks(p.seq_q, tiling::queries);
        p.heads_at_once = heads_at_once(num_heads, num_tiles, key_bytes);
        return LAUNCH_WITH_SHARED((forward<T, columns, values>), num_tiles * num_heads,
                                  tiling::num_threads, tiling::shared_bytes, stream, p, q, k, v,
                                  sinks, a->out, a->lse);
    }
}

extern "C" weft_status weft_cuda_attention_forward(weft_lane *lane,
                                                   const weft_attention_forward_args *a)
{
    problem p = make_problem(a->shape, a->dtype, a->first_key, a->first_seen, a->variant, a->piece,
                             a->value_dim, a->q, a->k, a->v, a->out);
    if (p.seq_q == 0 || p.s.batch == 0)
        return WEFT_OK;
    WEFT_TRY(check_problem(p));
    WEFT_TRY(bring_near(lane, 0, p.s.seq_q * p.s.batch, &p.first_seen));
    return WITH_DTYPE(a->dtype, WITH_COLUMNS(p, (launch<T, COLUMNS, VALUES>(lane, p, a))));
}
