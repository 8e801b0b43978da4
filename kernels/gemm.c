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

/* What is not given stays so. */
static void *after(void *memory, size_t bytes)
{
    return memory ? (char *)memory + bytes : NULL;
}

static size_t group_stride(const weft_grouped_gemm_args *a)
{
    return a->stride ? a->stride : a->in * a->out;
}

static const void *weight_of(const weft_grouped_gemm_args *a, size_t g)
{
    return a->w_of ? a->w_of[g] : after(a->w, g * group_stride(a) * weft_dtype_bytes(a->dtype));
}

static float *gradient_of(const weft_grouped_gemm_args *a, size_t g)
{
    return a->wgrad_of ? a->wgrad_of[g] : after(a->wgrad, g * group_stride(a) * sizeof(float));
}

weft_gemm_args weft_grouped_gemm_group(const weft_grouped_gemm_args *a, size_t g)
{
    const size_t bytes = weft_dtype_bytes(a->dtype), first = (size_t)a->row_offsets[g];
    const size_t rows = (size_t)a->row_offsets[g + 1] - first;
    void *x = after(a->x, first * a->in * bytes), *y = after(a->y, first * a->out * bytes);
    weft_gemm_args gemm = {
        .struct_bytes = sizeof gemm, .dtype = a->dtype, .c_dtype = a->dtype, .alpha = 1, .m = rows};
    switch (a->kind) {
    case WEFT_GROUPED_FORWARD:
        gemm.n = gemm.ldc = a->out, gemm.k = a->in, gemm.transpose_b = true;
        gemm.a = x, gemm.b = weight_of(a, g), gemm.c = y;
        gemm.lda = gemm.ldb = a->in;
        break;
    case WEFT_GROUPED_DGRAD:
        gemm.n = gemm.ldc = a->in, gemm.k = a->out;
        gemm.a = y, gemm.b = weight_of(a, g), gemm.c = x;
        gemm.lda = a->out, gemm.ldb = a->in;
        break;
    case WEFT_GROUPED_WGRAD: /* without rows k is 0: zeroes, or nothing added */
        gemm.m = a->out, gemm.n = gemm.ldc = a->in, gemm.k = rows, gemm.transpose_a = true;
        gemm.a = y, gemm.b = x, gemm.c = gradient_of(a, g);
        gemm.lda = a->out, gemm.ldb = a->in;
        gemm.c_dtype = WEFT_F32, gemm.beta = a->overwrite ? 0 : 1;
        break;
    }
    return gemm;
}

bool weft_grouped_gemm_has_work(const weft_gemm_args *g)
{
    const bool zeroes = g->k == 0 && g->beta == 0 && g->c;
    return g->m > 0 && (g->k > 0 || zeroes);
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
