/* Tiles of 16-bit numbers in shared memory and their products by tensor cores.
 *
 * Every warp computes whole rows of its block's, so sums over a row need no other warp. What one
 * product leaves in registers is, rounded, the left operand of the next. */
#ifndef WEFT_KERNELS_CUDA_ATTENTION_TILES_CUH
#define WEFT_KERNELS_CUDA_ATTENTION_TILES_CUH

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/mma.cuh"

/* Where a chunk, eight numbers of a row, stands in a tile [rows][columns] of shared memory. Each
 * row's chunks are shuffled, so that neither a row nor a column of matrices meets a bank twice. */
template <int columns> static __device__ inline int chunk_at(int row, int chunk)
{
    static_assert(columns % 64 == 0, "a row is a multiple of all banks");
    return row * columns + (chunk ^ row % 8) * 8;
}

/* Begins to load rows first .. first + num_rows into a tile, the block together; zeros stand for
 * rows from `end` on and for columns beyond the head's. */
template <int num_rows, int columns, int num_threads, typename T>
static __device__ inline void load_tile(const problem &p, int dim, T *tile,
                                        const rows<const T> &from, int first, int end)
{
    constexpr int chunks = columns / 8, rows_at_once = num_threads / chunks;
    if (p.is_aligned) {
        const int chunk = threadIdx.x % chunks;
        int row = threadIdx.x / chunks;
        const T *at = from.at + (first + row) * from.stride + chunk * 8;
#pragma unroll 4
        for (int i = 0; i < num_rows / rows_at_once; i++) {
            copy_16_bytes(tile + chunk_at<columns>(row, chunk), at,
                          first + row < end && chunk * 8 < dim);
            row += rows_at_once;
            at += rows_at_once * from.stride;
        }
        return;
    }
#pragma unroll 1
    for (int i = threadIdx.x; i < num_rows * columns; i += num_threads) {
        const int row = i / columns, col = i % columns;
        tile[chunk_at<columns>(row, col / 8) + col % 8] =
            first + row < end && col < dim ? from.at[(first + row) * from.stride + col]
                                           : from_float<T>(0.0f);
    }
}

/* Stores a tile's rows, the block together. */
template <int num_rows, int columns, int num_threads, typename T>
static __device__ inline void store_tile(const problem &p, int dim, const rows<T> &to,
                                         const T *tile, int first, int end)
{
    constexpr int chunks = columns / 8;
    if (p.is_aligned) {
        for (int i = threadIdx.x; i < num_rows * chunks; i += num_threads) {
            const int row = i / chunks, chunk = i % chunks;
            if (first + row < end && chunk * 8 < dim)
                *reinterpret_cast<pack<T, 8> *>(to.at + (first + row) * to.stride + chunk * 8) =
                    *reinterpret_cast<const pack<T, 8> *>(tile + chunk_at<columns>(row, chunk));
        }
        return;
    }
#pragma unroll 1
    for (int i = threadIdx.x; i < num_rows * columns; i += num_threads) {
        const int row = i / columns, col = i % columns;
        if (first + row < end && col < dim)
            to.at[(first + row) * to.stride + col] =
                tile[chunk_at<columns>(row, col / 8) + col % 8];
    }
}

/* Load fragments of tiles: left an A from `row` and `chunk` on; right_of_rows two B of the
 * transposed tile's columns `row` and row + 8; right two B of the tile's chunks `chunk` and chunk +
 * 1. Rows are multiples of 8 and chunks of 2, so where a thread reads depends on them by one xor
 * and constants. */
template <int columns, typename T>
static __device__ inline void load_left(uint32_t (&to)[4], const T *tile, int row, int chunk)
{
    const int t = warp_thread(), mine = chunk_at<columns>(t % 16, t / 16);
    load_matrices(to, tile + (mine ^ chunk * 8) + row * columns);
}

template <int columns, typename T>
static __device__ inline void load_right_of_rows(uint32_t (&to)[4], const T *tile, int row,
                                                 int chunk)
{
    const int t = warp_thread(), mine = chunk_at<columns>(t % 8 + t / 16 * 8, t / 8 % 2);
    load_matrices(to, tile + (mine ^ chunk * 8) + row * columns);
}

template <int columns, typename T>
static __device__ inline void load_right(uint32_t (&to)[4], const T *tile, int row, int chunk)
{
    const int t = warp_thread(), mine = chunk_at<columns>(t % 16, t / 16);
    load_matrices_transposed(to, tile + (mine ^ chunk * 8) + row * columns);
}

/* A warp's rows of results, 16 each time, of `columns` each, in C fragments. */
template <int times, int columns> struct results {
    float at[times][columns / 8][4];

    __device__ inline void clear()
    {
        for (int m = 0; m < times; m++)
            for (int n = 0; n < columns / 8; n++)
                for (int e = 0; e < 4; e++)
                    at[m][n][e] = 0.0f;
    }
};

/* The same rounded, as A fragments. */
template <int times, int columns> struct operand {
    uint32_t at[times][columns / 16][4];
};

template <typename T, int times, int columns>
static __device__ inline void round_results(operand<times, columns> &to,
                                            const results<times, columns> &from)
{
#pragma unroll
    for (int m = 0; m < times; m++)
#pragma unroll
        for (int n = 0; n < columns / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e += 2)
                to.at[m][n / 2][n % 2 * 2 + e / 2] =
                    pack_pair<T>(from.at[m][n][e], from.at[m][n][e + 1]);
}

/* The rows of a tile from `row` on as left operand of multiply_rows. The warp loads fragments when
 * needed or, where registers suffice (`holds`), all of them once. */
template <int times, int columns, bool holds, typename T> struct left_rows {
    const T *tile;
    int row;
    operand<times, holds ? columns : 16> held;

    /* Call it once the tile is loaded. */
    __device__ inline void hold()
    {
        if constexpr (holds)
#pragma unroll
            for (int m = 0; m < times; m++)
#pragma unroll
                for (int chunk = 0; chunk < columns / 8; chunk += 2)
                    load_left<columns>(held.at[m][chunk / 2], tile, row + 16 * m, chunk);
    }

    __device__ inline void operator()(uint32_t (&to)[4], int m, int chunk) const
    {
        if constexpr (holds)
            memcpy(to, held.at[m][chunk / 2], sizeof to);
        else
            load_left<columns>(to, tile, row + 16 * m, chunk);
    }
};

/* c = A B^T, B the rows of a tile from `row` on. */
template <int columns, bool holds, typename T, int times, int others>
static __device__ inline void multiply_rows(results<times, others> &c,
                                            const left_rows<times, columns, holds, T> &a,
                                            const T *b, int row)
{
    c.clear();
#pragma unroll
    for (int chunk = 0; chunk < columns / 8; chunk += 2) {
        uint32_t left[times][4], right[4];
#pragma unroll
        for (int m = 0; m < times; m++)
            a(left[m], m, chunk);
#pragma unroll
        for (int n = 0; n < others / 8; n += 2) {
            load_right_of_rows<columns>(right, b, row + n * 8, chunk);
#pragma unroll
            for (int m = 0; m < times; m++) {
                mma<T>(c.at[m][n], left[m], right[0], right[1]);
                mma<T>(c.at[m][n + 1], left[m], right[2], right[3]);
            }
        }
    }
}

/* c += A B, A in registers, B the tile's rows from b_row on and as many columns as c has, from
 * `chunk` on. */
template <int tile_columns, typename T, int times, int columns, int others>
static __device__ inline void multiply_add(results<times, columns> &c,
                                           const operand<times, others> &a, const T *b, int b_row,
                                           int chunk)
{
#pragma unroll
    for (int k = 0; k < others / 16; k++)
#pragma unroll
        for (int n = 0; n < columns / 8; n += 2) {
            uint32_t right[4];
            load_right<tile_columns>(right, b, b_row + 16 * k, chunk + n);
#pragma unroll
            for (int m = 0; m < times; m++) {
                mma<T>(c.at[m][n], a.at[m][k], right[0], right[1]);
                mma<T>(c.at[m][n + 1], a.at[m][k], right[2], right[3]);
            }
        }
}

/* Rounds results into a tile from `row` and `chunk` on. factor[m][i] multiplies the row of a
 * fragment's elements 2 i and 2 i + 1. */
template <int tile_columns, typename T, int times, int columns>
static __device__ inline void store_results(T *tile, int row, int chunk,
                                            const results<times, columns> &from,
                                            const float (&factor)[times][2])
{
    const int t = warp_thread() % 4, r = warp_thread() / 4;
#pragma unroll
    for (int m = 0; m < times; m++)
#pragma unroll
        for (int n = 0; n < columns / 8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const float *x = &from.at[m][n][2 * i];
                const uint32_t pair = pack_pair<T>(x[0] * factor[m][i], x[1] * factor[m][i]);
                T *to = tile + chunk_at<tile_columns>(row + 16 * m + 8 * i + r, chunk + n) + 2 * t;
                memcpy(static_cast<void *>(to), &pair, sizeof pair);
            }
}

/* Calls with each of this thread's elements of results whose corner is (row, col): the element, its
 * place m, n, e among the fragments, its row and its column. */
template <int times, int columns, typename F>
static __device__ inline void each_element(results<times, columns> &x, int row, int col, F call)
{
    const int t = warp_thread() % 4, r = warp_thread() / 4;
#pragma unroll
    for (int m = 0; m < times; m++)
#pragma unroll
        for (int n = 0; n < columns / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                call(x.at[m][n][e], m, n, e, row + 16 * m + r + e / 2 * 8,
                     col + 8 * n + 2 * t + e % 2);
}

/* Calls with those that are of a head's row before `end`: the element, m, the half of the
 * fragment's rows that it is in, its row and its column. The corner is (row, chunk). */
template <int times, int columns, typename F>
static __device__ inline void each_result(int dim, results<times, columns> &x, int row, int chunk,
                                          int end, F call)
{
    each_element(x, row, 8 * chunk, [&](float &value, int m, int, int e, int at, int col) {
        if (at < end && col < dim)
            call(value, m, e / 2, at, col);
    });
}

/* Writes -infinity where a query does not see a later key; (row, col) is the corner of the scores.
 */
template <bool rows_are_keys, int times, int columns>
static __device__ inline void hide(const problem &p, results<times, columns> &scores, int row,
                                   int col)
{
    each_element(scores, row, col, [&](float &score, int, int, int, int at_row, int at_col) {
        const int key = rows_are_keys ? at_row : at_col, query = rows_are_keys ? at_col : at_row;
        if (key >= end_of_keys(p, query))
            score = -INFINITY;
    });
}

/* And where a query of sample b does not see an earlier one. A function of its own: WHOLE sequences
 * of one document have the registers of the other. */
template <bool rows_are_keys, int times, int columns>
static __device__ inline void hide_earlier(const problem &p, results<times, columns> &scores, int b,
                                           int row, int col)
{
    const int t = warp_thread() % 4, r = warp_thread() / 4;
    constexpr int num = rows_are_keys ? columns / 8 : times;
#pragma unroll
    for (int i = 0; i < 2 * num; i++) {
        const int query = rows_are_keys ? col + 8 * (i / 2) + 2 * t + i % 2 : row + r + 8 * i;
        const int start = start_of_keys(p, b, query);
#pragma unroll
        for (int j = 0; j < (rows_are_keys ? times : columns / 8); j++)
#pragma unroll
            for (int k = 0; k < 2; k++) {
                const int m = rows_are_keys ? j : i / 2, n = rows_are_keys ? i / 2 : j;
                const int e = rows_are_keys ? 2 * k + i % 2 : 2 * (i % 2) + k;
                const int key = rows_are_keys ? row + 16 * m + r + 8 * k : col + 8 * n + 2 * t + k;
                if (key < start)
                    scores.at[m][n][e] = -INFINITY;
            }
    }
}

/* A bit for each of this thread's elements of a C fragment whose corner is (row, col): dropout
 * keeps it. Rows are queries and columns keys, or the other way about. The whole warp calls. */
template <bool rows_are_keys>
static __device__ inline unsigned kept_of_fragment(const problem &p, uint64_t first, int row,
                                                   int col)
{
    const int t = warp_thread() % 4, r = warp_thread() / 4;
    unsigned kept = 0;
    if (!p.is_even) {
#pragma unroll 1
        for (int e = 0; e < 4; e++) {
            const int at_row = row + r + e / 2 * 8, at_col = col + 2 * t + e % 2;
            kept |= unsigned(is_kept(p, first, rows_are_keys ? at_col : at_row,
                                     rows_are_keys ? at_row : at_col))
                    << e;
        }
        return kept;
    }
    /* Four keys share a block of random words. Each of the threads that hold them, and as many
     * others, draws one block for all. */
    const int key = rows_are_keys ? row + r / 4 * 4 + r % 4 / 2 * 8 : col + t / 2 * 4;
    const int query = rows_are_keys ? col + 2 * t + r % 2 : row + r + t % 2 * 8;
    uint32_t words[4];
    random_block(p.s.seed, p.s.stream, (first + query * p.s.total_seq + key) / 4, words);
    for (int i = 0; i < 4; i++)
        kept |= unsigned(words[i] >> 8 >= p.keep_from) << i;
    if (rows_are_keys) {
        unsigned all = kept << (r % 4 * 4); /* by the element of the fragment, then by the row */
        all |= __shfl_xor_sync(WHOLE_WARP, all, 4);
        all |= __shfl_xor_sync(WHOLE_WARP, all, 8);
        all >>= r % 4;
        return (all & 1) | (all >> 3 & 2) | (all >> 6 & 4) | (all >> 9 & 8);
    }
    const unsigned other = __shfl_xor_sync(WHOLE_WARP, kept, 1);
    const unsigned above = t % 2 ? other : kept, below = t % 2 ? kept : other;
    return (above >> t % 2 * 2 & 3) | (below >> t % 2 * 2 & 3) << 2;
}

template <bool are_few> struct bits {
    using type = uint64_t;
};
template <> struct bits<true> {
    using type = uint32_t;
};
/* A bit for each element of results. */
template <int times, int columns> using element_bits = typename bits<times * columns <= 64>::type;

/* The same for scores whose corner is (row, col), of sample b and head h: four bits a fragment. */
template <bool rows_are_keys, int times, int columns>
static __device__ inline element_bits<times, columns> kept_of(const problem &p, int b, int h,
                                                              int row, int col)
{
    using kept_bits = element_bits<times, columns>;
    static_assert(times * columns / 2 <= 64, "a bit an element");
    const uint64_t first = first_element(p, b, h);
    kept_bits kept = 0;
#pragma unroll 1
    for (int i = 0; i < times * columns / 8; i++)
        kept |= kept_bits(kept_of_fragment<rows_are_keys>(p, first, row + i / (columns / 8) * 16,
                                                          col + i % (columns / 8) * 8))
                << 4 * i;
    return kept;
}

/* Elements not kept become 0. */
template <int times, int columns>
static __device__ inline void drop(operand<times, columns> &x, element_bits<times, columns> kept)
{
#pragma unroll
    for (int m = 0; m < times; m++)
#pragma unroll
        for (int n = 0; n < columns / 8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const unsigned pair = kept >> (4 * (m * (columns / 8) + n) + 2 * i) & 3;
                x.at[m][n / 2][n % 2 * 2 + i] &= (pair & 1) * 0xffffu + (pair >> 1) * 0xffff0000u;
            }
}

#endif
