/* The CUDA backend, seen from inside: each kernel of <weft/kernels.h> is one C function that
 * launches on the stream of its lane. The wrapper has checked the arguments. */
#ifndef WEFT_KERNELS_CUDA_H
#define WEFT_KERNELS_CUDA_H

#include "core/device/cuda/cuda.h"
#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#define WEFT_CUDA_DECLARE(kernel)                                                                  \
    weft_status weft_cuda_##kernel(weft_lane *lane, const weft_##kernel##_args *args) WEFT_CHECKED;
WEFT_KERNEL_LIST(WEFT_CUDA_DECLARE)
#undef WEFT_CUDA_DECLARE

#ifdef __cplusplus
}
#endif
#endif
