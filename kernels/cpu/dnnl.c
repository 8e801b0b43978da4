#include "kernels/cpu/gemm.h"

weft_status weft_gemm_dnnl_status(dnnl_status_t status, const char *what)
{
    if (status == dnnl_success)
        return WEFT_OK;
    if (status == dnnl_out_of_memory)
        return WEFT_ERROR(WEFT_MEMORY, "oneDNN: out of memory in %s", what);
    return WEFT_ERROR(WEFT_DEVICE, "oneDNN: status %d from %s", (int)status, what);
}
