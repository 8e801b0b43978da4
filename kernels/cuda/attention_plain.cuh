/* Tiles of fp32 in shared memory and their products, without tensor cores.
 *
 * A block is 16 x 16 threads. Of every result, thread (x, y) computes rows y + 16 i and columns
 * x + 16 j, so half a warp has a row. */
#ifndef WEFT_KERNELS_CUDA_ATTENTION_PLAIN_CUH
#define WEFT_KERNELS_CUDA_ATTENTION_PLAIN_CUH

#include "kernels/cuda/attention.cuh"

constexpr int PLAIN_THREADS = 256;

/* A tile has `side` rows of `columns` numbers and one unused; a tile of scores has `side` rows of
 * `side` scores and 16 unused: a warp stores 16 scores of two rows at once, in different banks. */
template <int columns> struct plain_tiling {
    static constexpr int each = columns <= 64 ? 4 : 2; /* rows (scores) of a thread */
    static constexpr int side = 16 * each;
    static constexpr int tile = side * (columns + 1);
    static constexpr int score_stride = side + 16, scores = side * score_stride;
};

template <int columns>
static __device__ inline void load_plain(float *tile, const rows<const float> &from, int dim,
                                         int first, int end)
{
    for (int i = threadIdx.x; i < plain_tiling<columns>::side * columns; i += PLAIN_THREADS) {
        const int row = i / columns, col = i % columns;
        const bool is_there = first + row < end && col < dim;
        tile[row * (columns + 1) + col] =
            is_there ? from.at[(first + row) * from.stride + col] : 0.0f;
    }
}

/* c = A B^T. */
template <int columns, int each>
static __device__ inline void multiply_plain_rows(int dim, float (&c)[each][each], const float *a,
                                                  const float *b)
{
    const int x = threadIdx.x % 16, y = threadIdx.x / 16;
    for (int i = 0; i < each; i++)
        for (int j = 0; j < each; j++)
            c[i][j] = 0.0f;
#pragma unroll 4
    for (int d = 0; d < dim; d++) {
        float left[each], right[each];
        for (int i = 0; i < each; i++) {
            left[i] = a[(y + 16 * i) * (columns + 1) + d];
            right[i] = b[(x + 16 * i) * (columns + 1) + d];
        }
        for (int i = 0; i < each; i++)
            for (int j = 0; j < each; j++)
                c[i][j] += left[i] * right[j];
    }
}

/* c += S B, S scores and B a tile. */
template <int columns, int each>
static __device__ inline void multiply_plain_add(float (&c)[each][columns / 16],
                                                 const float *scores, const float *b)
{
    constexpr int side = 16 * each, stride = plain_tiling<columns>::score_stride;
    const int x = threadIdx.x % 16, y = threadIdx.x / 16;
#pragma unroll 4
    for (int k = 0; k < side; k++) {
        float left[each];
        for (int i = 0; i < each; i++)
            left[i] = scores[(y + 16 * i) * stride + k];
#pragma unroll
        for (int j = 0; j < columns / 16; j++) {
            const float right = b[k * (columns + 1) + x + 16 * j];
            for (int i = 0; i < each; i++)
                c[i][j] += left[i] * right;
        }
    }
}

template <int columns, int each>
static __device__ inline void store_plain_scores(float *scores, const float (&from)[each][each])
{
    const int x = threadIdx.x % 16, y = threadIdx.x / 16;
    for (int i = 0; i < each; i++)
        for (int j = 0; j < each; j++)
            scores[(y + 16 * i) * plain_tiling<columns>::score_stride + x + 16 * j] = from[i][j];
}

/* Results to rows first + y + 16 i of memory, or added to them; factor[i]: of such a row. */
template <int each, int tiles>
static __device__ inline void
store_plain(int dim, const rows<float> &to, const float (&from)[each][tiles],
            const float (&factor)[each], int first, int end, bool adds = false)
{
    const int x = threadIdx.x % 16, y = threadIdx.x / 16;
    for (int i = 0; i < each; i++)
#pragma unroll
        for (int j = 0; j < tiles; j++)
            if (first + y + 16 * i < end && x + 16 * j < dim) {
                float *at = to.at + (first + y + 16 * i) * to.stride + x + 16 * j;
                const float value = from[i][j] * factor[i];
                *at = adds ? *at + value : value;
            }
}

#endif
