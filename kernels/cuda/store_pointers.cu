/* Host addresses to device memory as arguments of a kernel: in the stream's order, without a buffer
 * that must outlive the call, and part of a captured graph. */
#include "kernels/cuda/cublas.h"
#include "kernels/cuda/cuda.cuh"

constexpr unsigned MAX_POINTERS = 384; /* arguments end at 4 KiB */

struct pointers {
    const void *at[MAX_POINTERS];
};

template <typename T> static __global__ void store(T from, unsigned count, const void **to)
{
    for (unsigned i = threadIdx.x; i < count; i += blockDim.x)
        to[i] = from.at[i];
}

weft_status weft_cuda_store_pointers(weft_lane *lane, const void *const *from, size_t count,
                                     const void **to)
{
    for (size_t first = 0; first < count; first += MAX_POINTERS) {
        const size_t left = count - first;
        const unsigned num = left < MAX_POINTERS ? static_cast<unsigned>(left) : MAX_POINTERS;
        pointers some = {};
        for (unsigned i = 0; i < num; i++)
            some.at[i] = from[first + i];
        WEFT_TRY(
            WEFT_LAUNCH(store<pointers>, 1, 128, 0, weft_cuda_stream(lane), some, num, to + first));
    }
    return WEFT_OK;
}
