/* What the GEMMs of all backends share. */
#include <stdatomic.h>
#include <string.h>

#include "kernels/kernels.h"

static _Atomic uint64_t gemm_flops;

uint64_t weft_gemm_flops(void)
{
    return atomic_load_explicit(&gemm_flops, memory_order_relaxed);
}

void weft_gemm_flops_add(uint64_t flops)
{
    atomic_fetch_add_explicit(&gemm_flops, flops, memory_order_relaxed);
}

weft_activation_forward_args weft_gemm_gelu(const weft_gemm_args *a)
{
    return WEFT_ARGS(weft_activation_forward_args, .kind = WEFT_ACTIVATION_GELU, .rows = a->m,
                     .cols = a->n, .dtype = a->c_dtype, .x = a->pre, .y = a->c);
}

weft_activation_backward_args weft_gemm_gelu_backward(const weft_gemm_args *a)
{
    return WEFT_ARGS(weft_activation_backward_args, .kind = WEFT_ACTIVATION_GELU, .rows = a->m,
                     .cols = a->n, .dtype = a->c_dtype, .x = a->pre, .dy = a->c, .dx = a->c);
}

weft_gemm_args weft_gemm_without_epilogue(const weft_gemm_args *a)
{
    weft_gemm_args product = *a;
    product.epilogue = WEFT_GEMM_PLAIN;
    if (a->epilogue == WEFT_GEMM_GELU)
        product.c = a->pre;
    return product;
}

bool weft_gemm_gelu_is_exact(const weft_lane *lane, weft_dtype c_dtype)
{
    return c_dtype == WEFT_F32 || strcmp(weft_device_name(weft_lane_device(lane)), "cuda") != 0;
}
