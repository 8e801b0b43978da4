/* The FLOPs that a kernel executes, from its arguments. Only products count, as in layers'
 * descriptions (<weft/operation.h>). */
#ifndef WEFT_KERNELS_FLOPS_H
#define WEFT_KERNELS_FLOPS_H

#include <weft/kernels.h>

/* 2mnk. */
double weft_gemm_args_flops(const weft_gemm_args *args);
/* Of all groups' rows. Reads row_offsets. */
double weft_grouped_gemm_args_flops(const weft_grouped_gemm_args *args);
/* The width of a value. */
static inline size_t weft_value_dim(const weft_attention_shape *shape, size_t value_dim)
{
    return value_dim ? value_dim : shape->head_dim;
}
/* Of one product over the pairs, of rows of `dim` numbers. */
double weft_attention_product_flops(const weft_attention_shape *shape, size_t first_key,
                                    const weft_attention_variant *variant, size_t dim);
/* 2 products over the pairs of a query and a key that it sees: half of all where causal attention
 * goes over a whole sequence. first_seen is not looked at. */
double weft_attention_forward_args_flops(const weft_attention_forward_args *args);
/* Five products: the scores again, and the gradients of probabilities, queries, keys and values
 * (FlashAttention, Algorithm 4). */
double weft_attention_backward_args_flops(const weft_attention_backward_args *args);
double weft_no_flops(const void *args); /* 0, for the other kernels, which memory bounds */

#define WEFT_KERNEL_FLOPS(args)                                                                    \
    _Generic((args),                                                                               \
        const weft_gemm_args *: weft_gemm_args_flops,                                              \
        const weft_grouped_gemm_args *: weft_grouped_gemm_args_flops,                              \
        const weft_attention_forward_args *: weft_attention_forward_args_flops,                    \
        const weft_attention_backward_args *: weft_attention_backward_args_flops,                  \
        default: weft_no_flops)(args)

#endif
