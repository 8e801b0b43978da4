/* Column sums of a matrix of partial sums, in fixed order. */
#ifndef WEFT_KERNELS_CUDA_COLUMNS_CUH
#define WEFT_KERNELS_CUDA_COLUMNS_CUH

#include "kernels/cuda/each.cuh"

constexpr unsigned SUM_COLUMNS_ROWS = 32;
constexpr unsigned SUM_COLUMNS_UNROLL = 4; /* rows that a thread loads at once */
/* A block of these threads sums WARP columns. */
#define SUM_COLUMNS_BLOCK dim3(WARP, SUM_COLUMNS_ROWS)

/* The sum of column `col` over rows begin .. end, in the threads of threadIdx.y 0; 0 for a column
 * beyond `stride`. All threads of the block call. */
static __device__ inline float sum_of_column(const float *partials, size_t stride, unsigned begin,
                                             unsigned end, size_t col)
{
    __shared__ float shared[SUM_COLUMNS_ROWS][WARP];
    float sum = 0.0f;
    for (size_t row = begin + threadIdx.y; row < end && col < stride;
         row += SUM_COLUMNS_UNROLL * SUM_COLUMNS_ROWS) {
        float values[SUM_COLUMNS_UNROLL];
#pragma unroll
        for (unsigned u = 0; u < SUM_COLUMNS_UNROLL; u++) {
            const size_t at = row + u * SUM_COLUMNS_ROWS;
            values[u] = at < end ? partials[at * stride + col] : 0.0f;
        }
#pragma unroll
        for (unsigned u = 0; u < SUM_COLUMNS_UNROLL; u++)
            sum += values[u];
    }
    shared[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    sum = 0.0f;
    for (unsigned y = 0; y < SUM_COLUMNS_ROWS && threadIdx.y == 0; y++)
        sum += shared[y][threadIdx.x];
    return sum;
}

#endif
