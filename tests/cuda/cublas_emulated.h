/* Matrix products as cuBLAS describes them, for the stand-in of it. */
#ifndef WEFT_TESTS_CUDA_CUBLAS_EMULATED_H
#define WEFT_TESTS_CUDA_CUBLAS_EMULATED_H

#include <library_types.h>
#include <stdbool.h>
#include <stddef.h>

/* d[m, n] = alpha op(a) op(b) + beta d + bias[m], all column-major, strides in elements; a and b of
 * `type` (fp32, bf16, fp16), d and bias of `d_type`. Sums are in fp32; d is rounded once, to the
 * nearest, ties to even. With beta 0 d is not read. */
typedef struct emulated_product {
    size_t m, n, k, stride_a, stride_b, stride_d;
    bool transpose_a, transpose_b;
    cudaDataType_t type, d_type;
    float alpha, beta;
    const void *a, *b, *bias;
    void *d;
} emulated_product;

void emulated_product_run(const emulated_product *p);

#endif
