#include "kernels/cuda/cuda.h"

const weft_kernel_ops weft_kernel_ops_cuda = {.name = "cuda",
#define SLOT(kernel) .kernel = weft_cuda_##kernel,
                                              WEFT_KERNEL_LIST(SLOT)
#undef SLOT
};
