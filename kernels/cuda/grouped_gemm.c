/* Expert GEMMs: one launch for groups by cublasGemmGroupedBatchedEx, or one cuBLASLt product a
 * group.
 *
 * The grouped call takes A, B and C of one type (cuBLAS' documentation, its table of types): the
 * gradient of 16-bit weights, which is added in fp32, goes group by group, and so do operands that
 * are not aligned to 16 bytes. A group that fills the device by itself also does: it gains nothing
 * from a common launch, and cuBLASLt picks a kernel for its shape. The environment variable
 * WEFT_CUDA_GROUPED_GEMM (together, each) overrules that last choice. All of it depends on a
 * group's own shape and alignment alone, so that a run repeats bit by bit, however the groups are
 * dealt to calls. */
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "kernels/cuda/cublas.h"

enum { MAX_TOGETHER = 128, TILE = 128 };

static enum { BY_SIZE, TOGETHER, EACH, WRONG } form;
static const char *wish;
static atomic_bool refused[3]; /* of fp32, bf16, fp16, once cuBLAS said so */

static void choose_form(void)
{
    wish = getenv("WEFT_CUDA_GROUPED_GEMM");
    if (wish && wish[0])
        form = !strcmp(wish, "together") ? TOGETHER : !strcmp(wish, "each") ? EACH : WRONG;
}

static bool is_aligned(const weft_grouped_gemm_args *a, const weft_gemm_args *g)
{
    const size_t bytes = weft_dtype_bytes(a->dtype);
    return ((uintptr_t)g->a | (uintptr_t)g->b | (uintptr_t)g->c | a->in * bytes | a->out * bytes) %
               16 ==
           0;
}

/* Whether a group leaves the device idle by itself. */
static bool is_small(const weft_lane *lane, const weft_gemm_args *g)
{
    const size_t tiles = ((g->m + TILE - 1) / TILE) * ((g->n + TILE - 1) / TILE);
    return tiles < 2 * (size_t)weft_cuda_num_multiprocessors(weft_lane_device(lane));
}

static bool fits_together(const weft_grouped_gemm_args *a, const weft_gemm_args *g)
{
    return (a->kind != WEFT_GROUPED_WGRAD || a->dtype == WEFT_F32) && is_aligned(a, g) &&
           g->m <= INT_MAX && g->n <= INT_MAX && g->k <= INT_MAX;
}

/* It looks at the group alone, so that no group's bits depend on the others. */
static bool goes_together(const weft_lane *lane, const weft_grouped_gemm_args *a,
                          const weft_gemm_args *g)
{
    return form != EACH && g->k > 0 && fits_together(a, g) &&
           (form == TOGETHER || is_small(lane, g));
}

static weft_status each(weft_lane *lane, const weft_grouped_gemm_args *a, const weft_gemm_args *one)
{
    return weft_cuda_gemm_ragged(lane, one,
                                 a->kind == WEFT_GROUPED_WGRAD ? WEFT_RAGGED_K : WEFT_RAGGED_M);
}

/* What the grouped call reads on the host, a value a group. As in gemm.c its A is our B. */
typedef struct batch {
    cublasOperation_t operation_a[MAX_TOGETHER], operation_b[MAX_TOGETHER];
    int m[MAX_TOGETHER], n[MAX_TOGETHER], k[MAX_TOGETHER];
    int lda[MAX_TOGETHER], ldb[MAX_TOGETHER], ldc[MAX_TOGETHER], one[MAX_TOGETHER];
    float alpha[MAX_TOGETHER], beta[MAX_TOGETHER];
    const void *pointers[3 * MAX_TOGETHER]; /* a of each, b of each, c of each */
    size_t groups[MAX_TOGETHER];
    int count;
} batch;

static void append(batch *b, size_t index, const weft_gemm_args *g)
{
    const int i = b->count++;
    b->groups[i] = index;
    b->operation_a[i] = g->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    b->operation_b[i] = g->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    b->m[i] = (int)g->n, b->n[i] = (int)g->m, b->k[i] = (int)g->k;
    b->lda[i] = (int)g->ldb, b->ldb[i] = (int)g->lda, b->ldc[i] = (int)g->ldc;
    b->alpha[i] = g->alpha, b->beta[i] = g->beta, b->one[i] = 1;
    b->pointers[i] = g->b;
    b->pointers[MAX_TOGETHER + i] = g->a;
    b->pointers[2 * MAX_TOGETHER + i] = g->c;
}

/* The library may lack kernels for this GPU: then *out_refused, and nothing was enqueued. */
static weft_status run_batch_locked(weft_lane *lane, const weft_cublas *cublas,
                                    cublasHandle_t handle, weft_dtype dtype, const batch *b,
                                    const weft_cublas_workspace *workspace, bool *out_refused)
{
    const cudaDataType_t type = weft_cublas_type(dtype);
    const void **at = workspace->own;
    /* Setting the stream also takes the workspace away. */
    WEFT_TRY(WEFT_CUBLAS(cublas->cublasSetStream_v2(handle, weft_cuda_stream(lane))));
    WEFT_TRY(
        WEFT_CUBLAS(cublas->cublasSetWorkspace_v2(handle, workspace->rest, workspace->rest_bytes)));
    const cublasStatus_t status = cublas->cublasGemmGroupedBatchedEx(
        handle, b->operation_a, b->operation_b, b->m, b->n, b->k, b->alpha, at, type, b->lda,
        at + MAX_TOGETHER, type, b->ldb, b->beta, (void *const *)(at + 2 * MAX_TOGETHER), type,
        b->ldc, b->count, b->one, CUBLAS_COMPUTE_32F);
    *out_refused = status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_ARCH_MISMATCH;
    return *out_refused ? WEFT_OK : WEFT_CUBLAS_FROM("cublasGemmGroupedBatchedEx", status);
}

static weft_status run_batch(weft_lane *lane, const weft_cublas *cublas, cublasHandle_t handle,
                             const weft_grouped_gemm_args *a, const batch *b)
{
    weft_cublas_workspace workspace;
    bool is_refused = atomic_load(&refused[a->dtype]);
    if (b->count == 0)
        return WEFT_OK;
    if (!is_refused) {
        WEFT_TRY(weft_cublas_workspace_get(lane, sizeof b->pointers, &workspace));
        WEFT_TRY(weft_cuda_store_pointers(lane, b->pointers, 3 * MAX_TOGETHER, workspace.own));
        weft_cublas_lock();
        const weft_status status =
            run_batch_locked(lane, cublas, handle, a->dtype, b, &workspace, &is_refused);
        weft_cublas_unlock();
        WEFT_TRY(status);
        if (is_refused && !atomic_exchange(&refused[a->dtype], true))
            weft_log(WEFT_LOG_WARN,
                     "expert GEMMs run one by one: cuBLAS has no grouped ones in %s "
                     "for this GPU",
                     weft_dtype_text(a->dtype));
    }
    for (int i = 0; i < b->count; i++) {
        const weft_gemm_args gemm = weft_grouped_gemm_group(a, b->groups[i]);
        if (is_refused)
            WEFT_TRY(each(lane, a, &gemm));
        else
            weft_gemm_flops_add(2 * (uint64_t)gemm.m * gemm.n * gemm.k);
    }
    return WEFT_OK;
}

/* Without grouped products, `cublas` is NULL and all go one by one. */
static weft_status run_groups(weft_lane *lane, const weft_cublas *cublas, cublasHandle_t handle,
                              const weft_grouped_gemm_args *a)
{
    batch b = {0};
    for (size_t g = 0; g < a->num_groups; g++) {
        const weft_gemm_args gemm = weft_grouped_gemm_group(a, g);
        if (!weft_grouped_gemm_has_work(&gemm))
            continue;
        if (!cublas || !goes_together(lane, a, &gemm)) {
            WEFT_TRY(each(lane, a, &gemm));
            continue;
        }
        append(&b, g, &gemm);
        if (b.count == MAX_TOGETHER) {
            WEFT_TRY(run_batch(lane, cublas, handle, a, &b));
            b.count = 0;
        }
    }
    return run_batch(lane, cublas, handle, a, &b);
}

static bool any_goes_together(const weft_lane *lane, const weft_grouped_gemm_args *a)
{
    for (size_t g = 0; g < a->num_groups; g++) {
        const weft_gemm_args gemm = weft_grouped_gemm_group(a, g);
        if (weft_grouped_gemm_has_work(&gemm) && goes_together(lane, a, &gemm))
            return true;
    }
    return false;
}

weft_status weft_cuda_grouped_gemm(weft_lane *lane, const weft_grouped_gemm_args *args)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    const weft_cublas *cublas = NULL;
    cublasHandle_t handle = NULL;
    pthread_once(&once, choose_form);
    if (form == WRONG)
        return WEFT_ERROR(WEFT_CONFIG, "WEFT_CUDA_GROUPED_GEMM=%s must be together or each", wish);
    if (args->num_groups == 0 || args->in == 0 || args->out == 0)
        return WEFT_OK;
    if (any_goes_together(lane, args))
        WEFT_TRY(weft_cublas_get(lane, &cublas, &handle));
    return run_groups(lane, cublas, handle, args);
}
