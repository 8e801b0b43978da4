/* GEMM by cuBLASLt. It knows column-major matrices, so it is given the transposed problem,
 * C^T = op(B)^T op(A)^T, on the same memory: its A is our B, its rows are our columns, and a bias
 * along its rows is ours.
 *
 * fp32 is multiplied as fp32 (TF32 would keep 10 bits of 23); bf16 and fp16 add in fp32. The
 * library is asked once a shape for its best algorithm. The choice depends on the shape and on how
 * far the operands are aligned, up to the 16 bytes of the widest access, and never on a clock, so
 * that a run repeats bit by bit.
 *
 * GELU and its backward are epilogues of cuBLASLt's where it has an algorithm with them, else our
 * kernels, after the product. How exactly cuBLASLt computes GELU is not documented: results in
 * fp32, which must be exact to 1e-5, have ours. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "kernels/cuda/cublas.h"

/* Everything that decides on an algorithm. Hashed and compared as bytes. */
typedef struct plan_key {
    uint64_t m, n, k, lda, ldb, ldc, workspace_bytes;
    uint8_t device;
    uint8_t operation; /* transposes and epilogue */
    uint8_t dtypes;    /* of A and C */
    uint8_t alignment_a, alignment_b, alignment_c;
    uint8_t alignment_bias, alignment_pre; /* bytes; 0 without */
} plan_key;
_Static_assert(sizeof(plan_key) == 7 * 8 + 8, "padding has no defined value");

typedef struct plan {
    plan_key key;
    cublasLtMatmulAlgo_t algo;
    bool used, is_possible; /* possible: cuBLASLt has an algorithm */
} plan;

/* Open addressing; the capacity is a power of two. */
static struct {
    pthread_mutex_t lock;
    plan *plans;
    size_t capacity, count;
} table = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* A product as cuBLASLt describes it. */
typedef struct description {
    cublasLtMatmulDescOpaque_t product;
    cublasLtMatrixLayoutOpaque_t a, b, c; /* its A and B */
} description;

static uint8_t alignment_of(const void *memory)
{
    const uintptr_t address = (uintptr_t)memory | 16;
    return (uint8_t)(address & -address);
}

/* 8 values an octave. */
static size_t round_rows(size_t rows)
{
    size_t step = 1;
    while (rows / step >= 16)
        step *= 2;
    return (rows + step - 1) / step * step;
}

static weft_status set_product(const weft_cublaslt *lt, cublasLtMatmulDescOpaque_t *product,
                               cublasLtMatmulDescAttributes_t attribute, const void *value,
                               size_t bytes)
{
    return WEFT_CUBLAS(lt->cublasLtMatmulDescSetAttribute(product, attribute, value, bytes));
}

static weft_status lay_out(const weft_cublaslt *lt, cublasLtMatrixLayoutOpaque_t *layout,
                           weft_dtype dtype, size_t rows, size_t cols, size_t stride)
{
    return WEFT_CUBLAS(lt->cublasLtMatrixLayoutInit_internal(
        layout, sizeof *layout, weft_cublas_type(dtype), rows, cols, (int64_t)stride));
}

static uint32_t epilogue_of(const weft_gemm_args *a)
{
    switch (a->epilogue) {
    case WEFT_GEMM_GELU:
        return a->bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    case WEFT_GEMM_GELU_BACKWARD:
        return CUBLASLT_EPILOGUE_DGELU;
    default:
        return a->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    }
}

static weft_status set_epilogue(const weft_cublaslt *lt, const weft_gemm_args *a,
                                cublasLtMatmulDescOpaque_t *product)
{
    const uint32_t epilogue = epilogue_of(a);
    const int64_t ld_pre = (int64_t)a->n;
    WEFT_TRY(set_product(lt, product, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue));
    if (a->bias)
        WEFT_TRY(
            set_product(lt, product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &a->bias, sizeof a->bias));
    if (a->epilogue == WEFT_GEMM_PLAIN)
        return WEFT_OK;
    WEFT_TRY(set_product(lt, product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &a->pre,
                         sizeof a->pre));
    return set_product(lt, product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &ld_pre, sizeof ld_pre);
}

static weft_status describe(const weft_cublaslt *lt, const weft_gemm_args *a, description *out)
{
    const int32_t operation_a = a->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    const int32_t operation_b = a->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    WEFT_TRY(WEFT_CUBLAS(lt->cublasLtMatmulDescInit_internal(&out->product, sizeof out->product,
                                                             CUBLAS_COMPUTE_32F, CUDA_R_32F)));
    WEFT_TRY(set_product(lt, &out->product, CUBLASLT_MATMUL_DESC_TRANSA, &operation_a,
                         sizeof operation_a));
    WEFT_TRY(set_product(lt, &out->product, CUBLASLT_MATMUL_DESC_TRANSB, &operation_b,
                         sizeof operation_b));
    WEFT_TRY(set_epilogue(lt, a, &out->product));
    WEFT_TRY(lay_out(lt, &out->a, a->dtype, a->transpose_b ? a->k : a->n,
                     a->transpose_b ? a->n : a->k, a->ldb));
    WEFT_TRY(lay_out(lt, &out->b, a->dtype, a->transpose_a ? a->m : a->k,
                     a->transpose_a ? a->k : a->m, a->lda));
    return lay_out(lt, &out->c, a->c_dtype, a->n, a->m, a->ldc);
}

typedef struct preference {
    cublasLtMatmulPreferenceAttributes_t attribute;
    uint64_t value;
    size_t bytes;
} preference;

/* What cuBLASLt asks of pre, and what is left to it at all. */
static bool may_fuse(const weft_gemm_args *a)
{
    return a->c_dtype != WEFT_F32 && a->n % 8 == 0 && alignment_of(a->pre) == 16;
}

/* Little-endian: an attribute of four bytes is the lower half of its value. */
static weft_status choose_algorithm(const weft_cublaslt *lt, cublasLtHandle_t handle,
                                    const plan_key *key, const weft_gemm_args *a, plan *out)
{
    const bool with_epilogue = a->epilogue != WEFT_GEMM_PLAIN;
    /* Partial sums of parts of k stay in fp32, whatever the type of C. */
    const uint64_t reductions = a->c_dtype == WEFT_F32 ? CUBLASLT_REDUCTION_SCHEME_MASK
                                                       : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const preference preferences[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, key->workspace_bytes, 8},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions, 4},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key->alignment_b, 4},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key->alignment_a, 4},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key->alignment_c, 4},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key->alignment_c, 4},
    };
    cublasLtMatmulPreferenceOpaque_t wish;
    description d;
    out->is_possible = false;
    if (with_epilogue && !may_fuse(a))
        return WEFT_OK;
    WEFT_TRY(describe(lt, a, &d));
    WEFT_TRY(WEFT_CUBLAS(lt->cublasLtMatmulPreferenceInit_internal(&wish, sizeof wish)));
    for (size_t i = 0; i < sizeof preferences / sizeof preferences[0]; i++)
        WEFT_TRY(WEFT_CUBLAS(lt->cublasLtMatmulPreferenceSetAttribute(
            &wish, preferences[i].attribute, &preferences[i].value, preferences[i].bytes)));
    cublasLtMatmulHeuristicResult_t result = {0};
    int count = 0;
    const cublasStatus_t status = lt->cublasLtMatmulAlgoGetHeuristic(
        handle, &d.product, &d.a, &d.b, &d.c, &d.c, &wish, 1, &result, &count);
    /* With an epilogue it may call values invalid that it cannot combine. Those that are wrong by
     * themselves are refused again with the product alone. */
    if (status == CUBLAS_STATUS_NOT_SUPPORTED ||
        (with_epilogue && status == CUBLAS_STATUS_INVALID_VALUE))
        return WEFT_OK;
    out->algo = result.algo;
    out->is_possible = count > 0 && result.state == CUBLAS_STATUS_SUCCESS;
    return WEFT_CUBLAS_FROM("cublasLtMatmulAlgoGetHeuristic", status);
}

static weft_status no_way(const weft_cublaslt *lt, const weft_gemm_args *a)
{
    return WEFT_ERROR(WEFT_DEVICE,
                      "cuBLASLt %zu knows no way to multiply %zux%zux%zu %s%s, %s to %s%s",
                      lt->cublasLtGetVersion(), a->m, a->n, a->k, a->transpose_a ? "T" : "N",
                      a->transpose_b ? "T" : "N", weft_dtype_text(a->dtype),
                      weft_dtype_text(a->c_dtype), a->bias ? ", with bias" : "");
}

/* The key's place, or the free one where it would go. */
static plan *find(const plan_key *key)
{
    size_t at = (size_t)XXH3_64bits(key, sizeof *key);
    while (table.plans[at &= table.capacity - 1].used &&
           memcmp(&table.plans[at].key, key, sizeof *key) != 0)
        at++;
    return &table.plans[at];
}

static weft_status make_room(void)
{
    if (table.count * 4 < table.capacity * 3)
        return WEFT_OK;
    plan *old = table.plans;
    const size_t old_capacity = table.capacity, capacity = old_capacity ? 2 * old_capacity : 64;
    plan *plans = calloc(capacity, sizeof *plans);
    if (!plans)
        return WEFT_ERROR(WEFT_MEMORY, "no memory for %zu plans of GEMMs", capacity);
    table.plans = plans;
    table.capacity = capacity;
    for (size_t i = 0; i < old_capacity; i++)
        if (old[i].used)
            *find(&old[i].key) = old[i];
    free(old);
    return WEFT_OK;
}

/* Under the table's lock. */
static weft_status find_plan_locked(const weft_cublaslt *lt, cublasLtHandle_t handle,
                                    const plan_key *key, const weft_gemm_args *a, plan *out)
{
    WEFT_TRY(make_room());
    plan *p = find(key);
    if (!p->used) {
        WEFT_TRY(choose_algorithm(lt, handle, key, a, p));
        p->key = *key;
        p->used = true;
        table.count++;
    }
    *out = *p;
    return WEFT_OK;
}

static weft_status find_plan(const weft_cublaslt *lt, cublasLtHandle_t handle, int device,
                             const weft_gemm_args *a, size_t workspace_bytes, plan *out)
{
    const plan_key key = {
        .m = a->m,
        .n = a->n,
        .k = a->k,
        .lda = a->lda,
        .ldb = a->ldb,
        .ldc = a->ldc,
        .workspace_bytes = workspace_bytes,
        .device = (uint8_t)device,
        .operation = (uint8_t)(a->transpose_a | a->transpose_b << 1 | (int)a->epilogue << 2),
        .dtypes = (uint8_t)((int)a->dtype | (int)a->c_dtype << 4),
        .alignment_a = alignment_of(a->a),
        .alignment_b = alignment_of(a->b),
        .alignment_c = alignment_of(a->c),
        .alignment_bias = a->bias ? alignment_of(a->bias) : 0,
        .alignment_pre = a->epilogue ? alignment_of(a->pre) : 0,
    };
    pthread_mutex_lock(&table.lock);
    const weft_status status = find_plan_locked(lt, handle, &key, a, out);
    pthread_mutex_unlock(&table.lock);
    return status;
}

static weft_status multiply(weft_lane *lane, const weft_gemm_args *a, weft_ragged ragged,
                            const weft_cublas_workspace *workspace);

/* The product, then the activation's kernel. */
static weft_status multiply_apart(weft_lane *lane, const weft_gemm_args *a, weft_ragged ragged,
                                  const weft_cublas_workspace *workspace)
{
    const weft_gemm_args product = weft_gemm_without_epilogue(a);
    WEFT_TRY(multiply(lane, &product, ragged, workspace));
    if (a->epilogue == WEFT_GEMM_GELU) {
        const weft_activation_forward_args gelu = weft_gemm_gelu(a);
        return weft_cuda_activation_forward(lane, &gelu);
    }
    const weft_activation_backward_args backward = weft_gemm_gelu_backward(a);
    return weft_cuda_activation_backward(lane, &backward);
}

/* All leading dimensions and alpha set, no dimension 0, bias of c_dtype. */
static weft_status multiply(weft_lane *lane, const weft_gemm_args *a, weft_ragged ragged,
                            const weft_cublas_workspace *workspace)
{
    const weft_cublaslt *lt;
    cublasLtHandle_t handle;
    plan p;
    description d;
    const int device = weft_cuda_index(weft_lane_device(lane));
    WEFT_TRY(weft_cublaslt_get(lane, &lt, &handle));
    weft_gemm_args rounded = *a;
    if (ragged == WEFT_RAGGED_M)
        rounded.m = round_rows(a->m);
    if (ragged == WEFT_RAGGED_K)
        rounded.k = round_rows(a->k);
    WEFT_TRY(find_plan(lt, handle, device, &rounded, workspace->rest_bytes, &p));
    if (!p.is_possible)
        return a->epilogue ? multiply_apart(lane, a, ragged, workspace) : no_way(lt, &rounded);
    WEFT_TRY(describe(lt, a, &d));
    for (bool again = ragged != WEFT_RAGGED_NONE;; again = false) {
        const cublasStatus_t status = lt->cublasLtMatmul(
            handle, &d.product, &a->alpha, a->b, &d.a, a->a, &d.b, &a->beta, a->c, &d.c, a->c, &d.c,
            &p.algo, workspace->rest, workspace->rest_bytes, weft_cuda_stream(lane));
        /* The rounded shape's algorithm may not do for this one: the library checks, and says so
         * before it enqueues anything. */
        if (!again ||
            (status != CUBLAS_STATUS_NOT_SUPPORTED && status != CUBLAS_STATUS_INVALID_VALUE))
            return WEFT_CUBLAS_FROM("cublasLtMatmul", status);
        WEFT_TRY(find_plan(lt, handle, device, a, workspace->rest_bytes, &p));
        if (!p.is_possible)
            return no_way(lt, a);
    }
}

weft_status weft_cuda_gemm_ragged(weft_lane *lane, const weft_gemm_args *args, weft_ragged ragged)
{
    weft_gemm_args a = *args;
    weft_cublas_workspace workspace;
    if (a.m == 0 || a.n == 0 || (a.k == 0 && a.beta == 1 && !a.bias))
        return WEFT_OK;
    a.lda = a.lda ? a.lda : a.transpose_a ? a.m : a.k;
    a.ldb = a.ldb ? a.ldb : a.transpose_b ? a.k : a.n;
    a.ldc = a.ldc ? a.ldc : a.n;
    a.alpha = a.alpha == 0 ? 1.0f : a.alpha;
    if (a.k == 0 && a.beta == 0 && !a.bias && a.ldc == a.n && a.epilogue == WEFT_GEMM_PLAIN)
        return WEFT_CUDA(cudaMemsetAsync(a.c, 0, a.m * a.n * weft_dtype_bytes(a.c_dtype),
                                         weft_cuda_stream(lane)));

    /* cuBLASLt wants a bias of C's type. */
    const bool widen_bias = a.bias && a.dtype != a.c_dtype;
    const size_t bias_bytes = widen_bias ? (a.n * sizeof(float) + 15) / 16 * 16 : 0;
    /* Without products what is left, beta C + bias, is done by a product of zeros. */
    const size_t zero_bytes = a.k == 0 ? (a.m > a.n ? a.m : a.n) * weft_dtype_bytes(a.dtype) : 0;
    WEFT_TRY(weft_cublas_workspace_get(lane, bias_bytes + zero_bytes, &workspace));
    if (widen_bias) {
        WEFT_TRY(weft_cuda_cast(lane, &WEFT_ARGS(weft_cast_args, .count = a.n,
                                                 .from_dtype = a.dtype, .to_dtype = a.c_dtype,
                                                 .from = a.bias, .to = workspace.own)));
        a.bias = workspace.own;
    }
    if (a.k == 0) {
        void *zeros = (char *)workspace.own + bias_bytes;
        WEFT_TRY(WEFT_CUDA(cudaMemsetAsync(zeros, 0, zero_bytes, weft_cuda_stream(lane))));
        a.a = a.b = zeros;
        a.k = a.lda = 1;
        a.alpha = 1; /* the sign of zeros */
        a.ldb = a.n;
        a.transpose_a = a.transpose_b = false;
    }
    WEFT_TRY(multiply(lane, &a, ragged, &workspace));
    weft_gemm_flops_add(2 * (uint64_t)args->m * args->n * args->k);
    return WEFT_OK;
}

weft_status weft_cuda_gemm(weft_lane *lane, const weft_gemm_args *args)
{
    return weft_cuda_gemm_ragged(lane, args, WEFT_RAGGED_NONE);
}
