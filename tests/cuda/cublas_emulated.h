/* Matrix products as cuBLAS describes them, for the stand-in of it. */
#ifndef WEFT_TESTS_CUDA_CUBLAS_EMULATED_H
#define WEFT_TESTS_CUDA_CUBLAS_EMULATED_H

#include <library_types.h>
#include <stdbool.h>
#include <stddef.h>

typedef enum emulated_epilogue {
    EMULATED_PLAIN,
    EMULATED_GELU,          /* aux = what d would be, d = gelu of it before it was rounded */
    EMULATED_GELU_BACKWARD, /* d times gelu'(aux) */
} emulated_epilogue;

/* d[m, n] = alpha op(a) op(b) + beta d + bias[m], all column-major, strides in elements; a and b of
 * `type` (fp32, bf16, fp16), d, bias and aux[m, n] of `d_type`. Sums are in fp32; what is written
 * is rounded once, to the nearest, ties to even. With beta 0 d is not read. */
typedef struct emulated_product {
    size_t m, n, k, stride_a, stride_b, stride_d;
    bool transpose_a, transpose_b;
    cudaDataType_t type, d_type;
    float alpha, beta;
    emulated_epilogue epilogue;
    const void *a, *b, *bias;
    void *d, *aux;
    size_t stride_aux;
} emulated_product;

/* Products with GELU or its backward that cublasLtMatmul() has taken. Exported, for tests. */
size_t weft_emulated_num_gelu(void);

void emulated_product_run(const emulated_product *p);

#endif
