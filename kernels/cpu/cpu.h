/* The CPU backend, seen from inside.
 *
 * Each kernel is one function, weft_cpu_<kernel>(args), that does the whole work on the calling
 * thread and the OpenMP threads it starts. backend.c submits it to a lane, with a copy of its
 * arguments; tests and benches may call it directly. Before a kernel runs on a lane, backend.c sets
 * the number of OpenMP threads to that of the lane's device, so kernels just write
 * `#pragma omp parallel for` (omp_get_max_threads() tells how many there will be).
 *
 * Instruction sets. folder.cmake compiles the files vector_*.c once for each instruction set, with
 * WEFT_ISA defined as baseline, avx2 or avx512. They hold only static functions and
 * WEFT_VECTOR(...):
 *
 *     weft_status WEFT_VECTOR(add)(const weft_add_args *args) { ... }
 *
 * defines weft_cpu_add_avx512 and so on. A row in WEFT_VECTOR_KERNEL_LIST makes isa.c define the
 * dispatcher weft_cpu_add(), which calls the variant of the best instruction set that the processor
 * and the operating system support; the environment variable WEFT_CPU_ISA lowers it. A kernel
 * without a row defines weft_cpu_<kernel>() itself, in a file of any other name. vector_*.c may use
 * intrinsics under #ifdef __AVX512F__ and the like, with a plain C form beside each. Results differ
 * between instruction sets by rounding only. */
#ifndef WEFT_KERNELS_CPU_H
#define WEFT_KERNELS_CPU_H

#include "kernels/kernels.h"

/* Kernels that vector_*.c define, once for each instruction set. */
#define WEFT_VECTOR_KERNEL_LIST(X)                                                                 \
    X(attention_forward)                                                                           \
    X(attention_backward)                                                                          \
    X(bias_gradient)                                                                               \
    X(bias_add)                                                                                    \
    X(norm_forward)                                                                                \
    X(norm_backward)                                                                               \
    X(heads_norm_forward)                                                                          \
    X(heads_norm_backward)                                                                         \
    X(attention_sinks)                                                                             \
    X(heads_sums)                                                                                  \
    X(heads_share)                                                                                 \
    X(activation_forward)                                                                          \
    X(activation_backward)                                                                         \
    X(rope)                                                                                        \
    X(embedding_forward)                                                                           \
    X(embedding_backward)                                                                          \
    X(cross_entropy_stats)                                                                         \
    X(cross_entropy_loss)                                                                          \
    X(cross_entropy_backward)                                                                      \
    X(dropout)                                                                                     \
    X(add)                                                                                         \
    X(cast)                                                                                        \
    X(route)                                                                                       \
    X(route_backward)                                                                              \
    X(permute)                                                                                     \
    X(permute_backward)                                                                            \
    X(combine)                                                                                     \
    X(combine_backward)                                                                            \
    X(adamw)                                                                                       \
    X(momentum)                                                                                    \
    X(matrix_copy)                                                                                 \
    X(split_master)                                                                                \
    X(join_master)                                                                                 \
    X(sum_squares)                                                                                 \
    X(find_not_finite)                                                                             \
    X(hash)                                                                                        \
    X(scale)                                                                                       \
    X(matrix_widen)                                                                                \
    X(matrix_finish)                                                                               \
    X(multiply_add)

#define WEFT_CPU_ISA_LIST(X)                                                                       \
    X(baseline)                                                                                    \
    X(avx2)                                                                                        \
    X(avx512)

typedef enum weft_cpu_isa {
#define WEFT_CPU_ISA_ENUM(name) WEFT_CPU_ISA_##name,
    WEFT_CPU_ISA_LIST(WEFT_CPU_ISA_ENUM)
#undef WEFT_CPU_ISA_ENUM
} weft_cpu_isa;

/* Two steps around a GEMM, for this folder alone. Row-major; leading dimensions in elements. */

/* to[rows, cols] in fp32 from bf16. */
typedef struct weft_matrix_widen_args {
    size_t rows, cols;
    const void *from;
    float *to;
    size_t ld_from, ld_to;
} weft_matrix_widen_args;

/* c[rows, cols] = product + beta * c + bias[cols]; c is not read where beta is 0. */
typedef struct weft_matrix_finish_args {
    size_t rows, cols;
    const float *product; /* optional */
    size_t ld_product;
    void *c;
    size_t ldc;
    weft_dtype c_dtype;
    float beta;
    const void *bias; /* optional */
    weft_dtype bias_dtype;
} weft_matrix_finish_args;

/* Chains of x = x a + b in registers, each as wide as the instruction set's vectors; chain i starts
 * with i. They measure what a core can do. */
enum { WEFT_MULTIPLY_ADD_CHAINS = 12 };
typedef struct weft_multiply_add_args {
    size_t rounds; /* multiply-adds a chain */
    float a, b;
    float *x;      /* [chains]: their last values */
    double *flops; /* executed */
} weft_multiply_add_args;

#define WEFT_CPU_DECLARE(kernel) weft_status weft_cpu_##kernel(const weft_##kernel##_args *args);
WEFT_KERNEL_LIST(WEFT_CPU_DECLARE)
#undef WEFT_CPU_DECLARE

weft_status weft_cpu_matrix_widen(const weft_matrix_widen_args *args);
weft_status weft_cpu_matrix_finish(const weft_matrix_finish_args *args);
weft_status weft_cpu_multiply_add(const weft_multiply_add_args *args);

#define WEFT_CPU_DECLARE_VARIANTS(kernel)                                                          \
    weft_status weft_cpu_##kernel##_baseline(const weft_##kernel##_args *args);                    \
    weft_status weft_cpu_##kernel##_avx2(const weft_##kernel##_args *args);                        \
    weft_status weft_cpu_##kernel##_avx512(const weft_##kernel##_args *args);
WEFT_VECTOR_KERNEL_LIST(WEFT_CPU_DECLARE_VARIANTS)
#undef WEFT_CPU_DECLARE_VARIANTS

#ifdef WEFT_ISA
#define WEFT_VECTOR_JOIN_(kernel, isa) weft_cpu_##kernel##_##isa
#define WEFT_VECTOR_JOIN(kernel, isa) WEFT_VECTOR_JOIN_(kernel, isa)
#define WEFT_VECTOR(kernel) WEFT_VECTOR_JOIN(kernel, WEFT_ISA)
#endif

#endif
