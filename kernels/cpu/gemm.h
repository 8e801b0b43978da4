/* GEMM on the CPU, by oneDNN.
 *
 * fp32 goes straight to sgemm. bf16 has two forms, which sum in fp32 and round once, at the end:
 *
 *   native  oneDNN's bf16 matmul, on the processor's own bf16 dot products.
 *   widen   converts operands to fp32 block by block and multiplies them by sgemm.
 *
 * The processor decides which is faster. AMX, and AVX512_BF16 on AMD, do bf16 at twice the rate of
 * fp32 or more. On Intel without AMX the dot product runs at a quarter of the rate of an FMA, and
 * sgemm on widened operands is faster by 1.7. Without AVX-512 oneDNN has no bf16 at all. The choice
 * looks at the processor and never at a clock, so that a run repeats bit by bit; the environment
 * variable WEFT_CPU_BF16 (native, widen) overrides it.
 *
 * Any number of threads may multiply at once: widening takes a block of scratch, and each thread
 * has native primitives and a stream of its own until it ends. Warm calls allocate nothing. Device
 * memory budgets do not count this memory. */
#ifndef WEFT_KERNELS_CPU_GEMM_H
#define WEFT_KERNELS_CPU_GEMM_H

#include <oneapi/dnnl/dnnl.h>

#include "kernels/kernels.h"

typedef enum weft_gemm_bf16_form { WEFT_GEMM_NATIVE, WEFT_GEMM_WIDEN } weft_gemm_bf16_form;

/* The form for bf16; fixed at the first call. Errors: WEFT_CONFIG (WEFT_CPU_BF16 names no form, or
 * the native one where oneDNN has none). */
weft_status weft_gemm_bf16_form_get(weft_gemm_bf16_form *out);

/* C = alpha op(A) op(B) + beta C + bias for bf16 A, B and bias, as in weft_gemm_args. The caller
 * has set all leading dimensions and alpha; no dimension is 0. */
weft_status weft_gemm_native(const weft_gemm_args *args);
weft_status weft_gemm_widen(const weft_gemm_args *args);

/* Whether oneDNN has bf16 matmul on this machine. */
bool weft_gemm_native_works(void);

static inline weft_status weft_gemm_dnnl_status(dnnl_status_t status, const char *what)
{
    if (status == dnnl_success)
        return WEFT_OK;
    if (status == dnnl_out_of_memory)
        return WEFT_ERROR(WEFT_MEMORY, "oneDNN: out of memory in %s", what);
    return WEFT_ERROR(WEFT_DEVICE, "oneDNN: status %d from %s", (int)status, what);
}
#define WEFT_DNNL(call) weft_gemm_dnnl_status((call), #call)

#endif
