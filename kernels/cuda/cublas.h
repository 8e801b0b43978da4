/* NVIDIA's cuBLASLt and cuBLAS, loaded when first needed: without them the program starts too, and
 * says what is missing. It looks for libcublasLt.so.13 or .12, and libcublas.so of the same number,
 * where dlopen looks, then in the folder of the toolkit that it was built with. The environment
 * variables WEFT_CUBLASLT_LIBRARY and WEFT_CUBLAS_LIBRARY name other files. Functions, and a handle
 * for each device, last as long as the process. Any thread. */
#ifndef WEFT_KERNELS_CUDA_CUBLAS_H
#define WEFT_KERNELS_CUDA_CUBLAS_H

#include <cublasLt.h>
#include <cublas_v2.h>

#include "kernels/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

#define WEFT_CUBLASLT_LIST(X)                                                                      \
    X(cublasLtGetStatusName)                                                                       \
    X(cublasLtGetVersion)                                                                          \
    X(cublasLtCreate)                                                                              \
    X(cublasLtMatmulDescInit_internal)                                                             \
    X(cublasLtMatmulDescSetAttribute)                                                              \
    X(cublasLtMatrixLayoutInit_internal)                                                           \
    X(cublasLtMatmulPreferenceInit_internal)                                                       \
    X(cublasLtMatmulPreferenceSetAttribute)                                                        \
    X(cublasLtMatmulAlgoGetHeuristic)                                                              \
    X(cublasLtMatmul)

#define WEFT_CUBLAS_LIST(X)                                                                        \
    X(cublasCreate_v2)                                                                             \
    X(cublasSetStream_v2)                                                                          \
    X(cublasSetWorkspace_v2)                                                                       \
    X(cublasGemmGroupedBatchedEx)

#define WEFT_CUBLAS_MEMBER(function) __typeof__(&function) function;
typedef struct weft_cublaslt {
    WEFT_CUBLASLT_LIST(WEFT_CUBLAS_MEMBER)
} weft_cublaslt;
typedef struct weft_cublas {
    WEFT_CUBLAS_LIST(WEFT_CUBLAS_MEMBER)
} weft_cublas;
#undef WEFT_CUBLAS_MEMBER

/* WEFT_OK, or WEFT_DEVICE (WEFT_MEMORY) with the call and cuBLAS' name for its status:
 *     WEFT_TRY(WEFT_CUBLAS(lt->cublasLtMatmul(...)));
 * For a status that the caller has: WEFT_CUBLAS_FROM("cublasLtMatmul", status). */
#define WEFT_CUBLAS(call) WEFT_CUBLAS_FROM(#call, call)
#define WEFT_CUBLAS_FROM(call, status)                                                             \
    weft_cublas_status(__FILE__, __LINE__, __func__, (call), (status))
weft_status weft_cublas_status(const char *file, int line, const char *function, const char *call,
                               cublasStatus_t status) WEFT_CHECKED;

/* cuBLASLt's functions and the handle of the lane's device. Errors: WEFT_DEVICE (no library, in
 * dlopen's words, or one that refuses). */
weft_status weft_cublaslt_get(weft_lane *lane, const weft_cublaslt **out_functions,
                              cublasLtHandle_t *out_handle) WEFT_CHECKED;

/* The same of cuBLAS. *out_functions is NULL where there is no cuBLAS of cuBLASLt's number or it
 * has no grouped GEMM (before 12.5). A thread uses a handle between lock and unlock. */
weft_status weft_cublas_get(weft_lane *lane, const weft_cublas **out_functions,
                            cublasHandle_t *out_handle) WEFT_CHECKED;
void weft_cublas_lock(void);
void weft_cublas_unlock(void);

cudaDataType_t weft_cublas_type(weft_dtype dtype);

/* The lane's workspace in two, both 256-byte aligned: `bytes` for the caller, and what is left for
 * the library. */
typedef struct weft_cublas_workspace {
    void *own, *rest;
    size_t rest_bytes;
} weft_cublas_workspace;
weft_status weft_cublas_workspace_get(weft_lane *lane, size_t bytes,
                                      weft_cublas_workspace *out) WEFT_CHECKED;

/* Which dimension of a GEMM changes from call to call, as an expert's rows do. The GEMM's algorithm
 * is looked up by a rounded value of it, so that the library is not asked for every number. */
typedef enum weft_ragged { WEFT_RAGGED_NONE, WEFT_RAGGED_M, WEFT_RAGGED_K } weft_ragged;
/* weft_cuda_gemm() with a ragged dimension. */
weft_status weft_cuda_gemm_ragged(weft_lane *lane, const weft_gemm_args *args,
                                  weft_ragged ragged) WEFT_CHECKED;

/* Enqueues to[i] = pointers[i]. pointers: host memory, copied at the call; to: device memory. */
weft_status weft_cuda_store_pointers(weft_lane *lane, const void *const *pointers, size_t count,
                                     const void **to) WEFT_CHECKED;

#ifdef __cplusplus
}
#endif
#endif
