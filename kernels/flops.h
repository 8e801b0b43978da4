/* The FLOPs that a kernel executes, from its arguments: of the products, as layers are described by
 * (weft/operation.h). */
#ifndef WEFT_KERNELS_FLOPS_H
#define WEFT_KERNELS_FLOPS_H

#include <weft/kernels.h>

/* 2mnk. */
double weft_gemm_args_flops(const weft_gemm_args *args);
/* Of the rows that there are. Reads row_offsets. */
double weft_grouped_gemm_args_flops(const weft_grouped_gemm_args *args);
/* 2 products over the pairs of a query and a key that it sees: half of all where causal attention
 * goes over a whole sequence. */
double weft_attention_forward_args_flops(const weft_attention_forward_args *args);
/* 5: the scores again, and the gradients of probabilities, queries, keys and values
 * (FlashAttention, Algorithm 4). */
double weft_attention_backward_args_flops(const weft_attention_backward_args *args);
double weft_no_flops(const void *args); /* 0: memory bounds all other kernels */

#define WEFT_KERNEL_FLOPS(args)                                                                    \
    _Generic((args),                                                                               \
        const weft_gemm_args *: weft_gemm_args_flops,                                              \
        const weft_grouped_gemm_args *: weft_grouped_gemm_args_flops,                              \
        const weft_attention_forward_args *: weft_attention_forward_args_flops,                    \
        const weft_attention_backward_args *: weft_attention_backward_args_flops,                  \
        default: weft_no_flops)(args)

#endif
