/* What every CUDA source here uses: numbers of three types, sums over warps and blocks, launches.
 *
 * The sources compile as CUDA, and as plain C++ for the emulation in tests/cuda, which runs a
 * kernel's threads on the CPU: machines without a GPU test there what the kernels compute. Hence
 * launches go through WEFT_LAUNCH and dynamic shared memory through WEFT_DYNAMIC_SHARED; PTX stands
 * in one header with its meaning in C++ beside it (mma.cuh); and sources include nothing else of
 * CUDA's C++ library. */
#ifndef WEFT_KERNELS_CUDA_CUH
#define WEFT_KERNELS_CUDA_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#include "kernels/cuda/cuda.h"

#ifndef WEFT_CUDA_EMULATED /* the emulation comes before any source and defines these itself */
/* WEFT_LAUNCH(kernel, blocks, threads, shared bytes, stream, arguments...) gives a weft_status. A
 * kernel that is a template of several parameters goes in parentheses. */
#define WEFT_LAUNCH(kernel, blocks, threads, shared, stream, ...)                                  \
    (kernel<<<(blocks), (threads), (shared), (stream)>>>(__VA_ARGS__),                             \
     weft_cuda_status(__FILE__, __LINE__, __func__, #kernel, cudaGetLastError()))
/* Declares `type *name` at the start of the block's dynamic shared memory. */
#define WEFT_DYNAMIC_SHARED(type, name)                                                            \
    extern __shared__ __align__(128) unsigned char weft_dynamic_shared_memory[];                   \
    type *name = reinterpret_cast<type *>(weft_dynamic_shared_memory)
#endif

constexpr unsigned WARP = 32;
constexpr unsigned WHOLE_WARP = 0xffffffffu;

static __device__ inline float to_float(float x)
{
    return x;
}
static __device__ inline float to_float(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}
static __device__ inline float to_float(__half x)
{
    return __half2float(x);
}

/* Nearest, ties to even. */
template <typename T> static __device__ inline T from_float(float x);
template <> __device__ inline float from_float<float>(float x)
{
    return x;
}
template <> __device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float x)
{
    return __float2bfloat16(x);
}
template <> __device__ inline __half from_float<__half>(float x)
{
    return __float2half(x);
}

/* `count` numbers that one instruction loads or stores; the address is aligned to their bytes. */
template <typename T, int count> struct __align__(sizeof(T) * count) pack
{
    T at[count];
};

/* The sum (the maximum) over the warp, in every thread. */
static __device__ inline float warp_sum(float x)
{
    for (int offset = 16; offset > 0; offset /= 2)
        x += __shfl_xor_sync(WHOLE_WARP, x, offset);
    return x;
}

static __device__ inline float warp_max(float x)
{
    for (int offset = 16; offset > 0; offset /= 2)
        x = fmaxf(x, __shfl_xor_sync(WHOLE_WARP, x, offset));
    return x;
}

/* The sum (the maximum) over the block, in every thread. `shared` holds 32 floats; all threads of
 * the block call, a multiple of 32 of them. */
static __device__ inline float block_sum(float x, float *shared)
{
    const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    x = warp_sum(x);
    __syncthreads();
    if (lane == 0)
        shared[warp] = x;
    __syncthreads();
    return warp_sum(lane < blockDim.x / WARP ? shared[lane] : 0.0f);
}

static __device__ inline float block_max(float x, float *shared)
{
    const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    x = warp_max(x);
    __syncthreads();
    if (lane == 0)
        shared[warp] = x;
    __syncthreads();
    return warp_max(lane < blockDim.x / WARP ? shared[lane] : -INFINITY);
}

/* The lanes of this warp whose `key`, below num_keys, is the same. */
static __device__ inline unsigned equal_lanes(unsigned key, unsigned num_keys)
{
    unsigned equal = WHOLE_WARP;
    for (unsigned bit = 1; bit < num_keys; bit *= 2) {
        const unsigned set = __ballot_sync(WHOLE_WARP, (key & bit) != 0);
        equal &= key & bit ? set : ~set;
    }
    return equal;
}

/* For what every block of a kernel reads. Where *data is host memory, which each reader would fetch
 * over the bus, enqueues a copy into the lane's workspace, `offset` bytes behind its start, and
 * sets *data to it. */
template <typename T>
static inline weft_status bring_near(weft_lane *lane, size_t offset, size_t count, const T **data)
{
    if (!*data || weft_cuda_is_device_memory(*data))
        return WEFT_OK;
    const size_t bytes = count * sizeof(T);
    void *workspace;
    WEFT_TRY(weft_cuda_workspace(lane, offset + bytes, &workspace));
    char *near = static_cast<char *>(workspace) + offset;
    WEFT_TRY(
        WEFT_CUDA(cudaMemcpyAsync(near, *data, bytes, cudaMemcpyDefault, weft_cuda_stream(lane))));
    *data = reinterpret_cast<const T *>(near);
    return WEFT_OK;
}

/* Runs `call` with T bound to the C++ type of an activation's dtype. Its value is call's status:
 *     return WITH_DTYPE(args->dtype, launch<T>(lane, args)); */
#define WITH_DTYPE(dtype, call)                                                                    \
    ([&]() -> weft_status {                                                                        \
        switch (dtype) {                                                                           \
        case WEFT_F32: {                                                                           \
            using T = float;                                                                       \
            return call;                                                                           \
        }                                                                                          \
        case WEFT_BF16: {                                                                          \
            using T = __nv_bfloat16;                                                               \
            return call;                                                                           \
        }                                                                                          \
        case WEFT_F16: {                                                                           \
            using T = __half;                                                                      \
            return call;                                                                           \
        }                                                                                          \
        default:                                                                                   \
            return WEFT_ERROR(WEFT_INTERNAL, "%s: no kernel for this dtype", __func__);            \
        }                                                                                          \
    }())

static inline unsigned num_blocks(size_t count, size_t per_block)
{
    return static_cast<unsigned>((count + per_block - 1) / per_block);
}

#endif
