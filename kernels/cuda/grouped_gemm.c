/* Expert GEMMs: one launch for all groups by cublasGemmGroupedBatchedEx, or one cuBLASLt product a
 * group.
 *
 * The grouped call takes A, B and C of one type (cuBLAS' documentation, its table of types): the
 * gradient of 16-bit weights, which is added in fp32, goes group by group, and so do operands that
 * are not aligned to 16 bytes. Groups that fill the device by themselves also do: they gain nothing
 * from a common launch, and cuBLASLt picks a kernel for their shape. The environment variable
 * WEFT_CUDA_GROUPED_GEMM (together, each) overrules that last choice. All of it depends on shapes
 * and alignments alone, so that a run repeats bit by bit. */
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

/* What is not given stays so. */
static void *after(void *memory, size_t bytes)
{
    return memory ? (char *)memory + bytes : NULL;
}

/* Group g as a GEMM of its own, dense. */
static weft_gemm_args group(const weft_grouped_gemm_args *a, size_t g)
{
    const size_t bytes = weft_dtype_bytes(a->dtype), size = a->in * a->out;
    const size_t first = (size_t)a->row_offsets[g];
    const size_t rows = (size_t)a->row_offsets[g + 1] - first;
    void *x = after(a->x, first * a->in * bytes);
    void *y = after(a->y, first * a->out * bytes);
    void *w = after(a->w, g * size * bytes);
    weft_gemm_args gemm = {
        .struct_bytes = sizeof gemm, .dtype = a->dtype, .c_dtype = a->dtype, .alpha = 1, .m = rows};
    switch (a->kind) {
    case WEFT_GROUPED_FORWARD:
        gemm.n = gemm.ldc = a->out, gemm.k = a->in, gemm.transpose_b = true;
        gemm.a = x, gemm.b = w, gemm.c = y;
        gemm.lda = gemm.ldb = a->in;
        break;
    case WEFT_GROUPED_DGRAD:
        gemm.n = gemm.ldc = a->in, gemm.k = a->out;
        gemm.a = y, gemm.b = w, gemm.c = x;
        gemm.lda = a->out, gemm.ldb = a->in;
        break;
    case WEFT_GROUPED_WGRAD:
        gemm.m = a->out, gemm.n = gemm.ldc = a->in, gemm.k = rows, gemm.transpose_a = true;
        gemm.a = y, gemm.b = x, gemm.c = a->wgrad + g * size;
        gemm.lda = a->out, gemm.ldb = a->in;
        gemm.c_dtype = WEFT_F32, gemm.beta = a->overwrite ? 0 : 1;
        break;
    }
    return gemm;
}

static bool is_aligned(const weft_grouped_gemm_args *a)
{
    const size_t bytes = weft_dtype_bytes(a->dtype);
    const uintptr_t c = a->kind == WEFT_GROUPED_WGRAD ? (uintptr_t)a->wgrad : (uintptr_t)a->w;
    return ((uintptr_t)a->x | (uintptr_t)a->y | c | a->in * bytes | a->out * bytes) % 16 == 0;
}

/* Whether the groups are best done in one launch, of those that may be. */
static bool is_small(const weft_lane *lane, const weft_grouped_gemm_args *a)
{
    size_t tiles = 0, num = 0;
    for (size_t g = 0; g < a->num_groups; g++) {
        const weft_gemm_args gemm = group(a, g);
        const size_t rows = (size_t)(a->row_offsets[g + 1] - a->row_offsets[g]);
        tiles += ((gemm.m + TILE - 1) / TILE) * ((gemm.n + TILE - 1) / TILE);
        num += rows > 0;
    }
    return tiles < num * 2 * (size_t)weft_cuda_num_multiprocessors(weft_lane_device(lane));
}

static bool fits_together(const weft_grouped_gemm_args *a)
{
    return (a->kind != WEFT_GROUPED_WGRAD || a->dtype == WEFT_F32) && is_aligned(a) &&
           a->in <= INT_MAX && a->out <= INT_MAX &&
           a->row_offsets[a->num_groups] - a->row_offsets[0] <= INT_MAX;
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
        const weft_gemm_args gemm = group(a, b->groups[i]);
        if (is_refused)
            WEFT_TRY(each(lane, a, &gemm));
        else
            weft_gemm_flops_add(2 * (uint64_t)gemm.m * gemm.n * gemm.k);
    }
    return WEFT_OK;
}

/* Groups without rows leave nothing to multiply: of these only a gradient that is overwritten is
 * still something to do. */
static weft_status run_together(weft_lane *lane, const weft_cublas *cublas, cublasHandle_t handle,
                                const weft_grouped_gemm_args *a)
{
    batch b = {0};
    for (size_t g = 0; g < a->num_groups; g++) {
        const weft_gemm_args gemm = group(a, g);
        if (gemm.m == 0 || gemm.k == 0) {
            WEFT_TRY(weft_cuda_gemm(lane, &gemm));
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
    if (form != EACH && fits_together(args) && (form == TOGETHER || is_small(lane, args)))
        WEFT_TRY(weft_cublas_get(lane, &cublas, &handle));
    if (cublas)
        return run_together(lane, cublas, handle, args);
    for (size_t g = 0; g < args->num_groups; g++) {
        const weft_gemm_args gemm = group(args, g);
        WEFT_TRY(each(lane, args, &gemm));
    }
    return WEFT_OK;
}
