/* A backend's table: one slot for each kernel, all required. The wrappers in kernels.c check
 * arguments and call the slot of the lane's device. */
#ifndef WEFT_KERNELS_KERNELS_H
#define WEFT_KERNELS_KERNELS_H

#include <weft/kernels.h>

#include "kernels/host.h"

typedef struct weft_kernel_ops {
    const char *name;
#define WEFT_KERNEL_SLOT(name) weft_status (*name)(weft_lane *, const weft_##name##_args *);
    WEFT_KERNEL_LIST(WEFT_KERNEL_SLOT)
#undef WEFT_KERNEL_SLOT
} weft_kernel_ops;

/* The position of the first key that a query's window and chunk show it. */
static inline size_t weft_attention_start(const weft_attention_variant *v, size_t position)
{
    const size_t window = v->window > 0 && position >= v->window ? position + 1 - v->window : 0;
    const size_t chunk = v->chunk > 0 ? position - position % v->chunk : 0;
    return window > chunk ? window : chunk;
}

extern const weft_kernel_ops weft_kernel_ops_cpu;
extern const weft_kernel_ops weft_kernel_ops_cuda; /* where CUDA is built in */
extern const weft_kernel_ops weft_kernel_ops_note;

/* For kernels/host.h: the whole of a kernel's arguments as the host may run them, or WEFT_INTERNAL
 * with what is wrong with them. */
#define WEFT_KERNEL_ACCEPT(kernel)                                                                 \
    weft_status weft_kernel_accept_##kernel(const weft_##kernel##_args *args,                      \
                                            weft_##kernel##_args *out) WEFT_CHECKED;
WEFT_HOST_KERNEL_LIST(WEFT_KERNEL_ACCEPT)
#undef WEFT_KERNEL_ACCEPT

/* FLOPs of the GEMMs that this process has run or, on a GPU, enqueued (2mnk each, attention's not
 * among them), for MFU checks and benches. */
uint64_t weft_gemm_flops(void);
/* For backends: adds to them. Any thread. */
void weft_gemm_flops_add(uint64_t flops);
/* Sets the function that gets each kernel's name and arguments as it is enqueued; NULL: none. Tests
 * compare them with a list of operations. Set it while nothing is enqueued. */
typedef void (*weft_kernel_watch)(const char *kernel, const void *args);
void weft_kernels_watch(weft_kernel_watch watch);
/* Group g as a GEMM of its own, with all its leading dimensions. */
weft_gemm_args weft_grouped_gemm_group(const weft_grouped_gemm_args *args, size_t group);
/* Whether there is anything to do: rows, or a gradient to zero. */
bool weft_grouped_gemm_has_work(const weft_gemm_args *group);
/* A GEMM with an epilogue as two kernels: the product, which writes pre (GELU) or c
 * (GELU_BACKWARD), and the activation's kernel after it, for GELU_BACKWARD in place. */
weft_gemm_args weft_gemm_without_epilogue(const weft_gemm_args *a);
weft_activation_forward_args weft_gemm_gelu(const weft_gemm_args *a);
weft_activation_backward_args weft_gemm_gelu_backward(const weft_gemm_args *a);
/* Whether what a GEMM with GELU writes to c has the bits of the activation's kernel over pre. */
bool weft_gemm_gelu_is_exact(const weft_lane *lane, weft_dtype c_dtype);

/* The instruction set of the CPU's kernels ("avx512", "avx2", "baseline"). The environment variable
 * WEFT_CPU_ISA lowers it. Static. */
const char *weft_kernels_cpu_isa(void);
/* FLOP/s of products in `dtype` that one core of the CPU cannot exceed. Times multiply-adds in
 * registers, of the chosen instruction set, in spans too short for other work to disturb all of
 * them; bf16 by the processor's own dot products has twice that. 0: unknown. Takes milliseconds;
 * any thread. */
double weft_kernels_cpu_core_flops(weft_dtype dtype);

#endif
