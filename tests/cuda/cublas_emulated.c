/* A stand-in for libcublasLt and libcublas, built as one shared library: the calls that the project
 * makes, as NVIDIA documents them, on streams of the emulated CUDA runtime. Matrices are
 * column-major (cublas_emulated.h).
 *
 * It refuses what the documentation forbids, and ends the process with one line where a GPU would
 * fault or silently compute something else. An algorithm holds the alignments and the workspace
 * that it was chosen for, and here it also serves only an n and k that are as even as those it was
 * chosen for (up to 4), since no algorithm need serve another shape; a workspace is overwritten
 * with NaN, so that nobody keeps anything in it. With GELU it has algorithms for even k alone. */
#include <cublasLt.h>
#include <cublas_v2.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cuda/cublas_emulated.h"
#include "tests/cuda/emulate_runtime.h"

enum {
    LT_WORKSPACE_BYTES = 1 << 16, /* what every algorithm says that it needs, where it may */
    MAGIC = 0x57454654,
};

struct cublasLtContext {
    int device;
};

struct cublasContext {
    int device;
    cudaStream_t stream;
    void *workspace;
    size_t workspace_bytes;
};

/* What the opaque structs hold. */
typedef struct product {
    int32_t compute, scale, transpose_a, transpose_b, magic;
    uint32_t epilogue;
    const void *bias;
    void *aux;
    int64_t stride_aux;
} product;
typedef struct layout {
    int32_t type, magic;
    uint64_t rows, cols;
    int64_t stride;
} layout;
typedef struct preference {
    uint64_t workspace_bytes;
    uint32_t reductions, alignment[4]; /* a, b, c, d */
    int32_t magic;
} preference;
typedef struct algorithm {
    int32_t magic, device;
    uint32_t alignment[4];
    uint8_t types[3], transpose_a, transpose_b;
    uint32_t epilogue, n_step, k_step;
    uint32_t workspace_bytes;
} algorithm;
_Static_assert(sizeof(product) <= sizeof(cublasLtMatmulDescOpaque_t), "larger");
_Static_assert(sizeof(layout) <= sizeof(cublasLtMatrixLayoutOpaque_t), "larger");
_Static_assert(sizeof(preference) <= sizeof(cublasLtMatmulPreferenceOpaque_t), "larger");
_Static_assert(sizeof(algorithm) <= sizeof(cublasLtMatmulAlgo_t), "larger");

static size_t size_of(cudaDataType_t type)
{
    return type == CUDA_R_32F ? 4 : 2;
}

/* A GPU's kernel reads device and pinned memory only, and in whole elements. */
static void check_operand(const char *name, const void *memory, size_t alignment)
{
    if (weft_emulate_find(memory, NULL) == WEFT_EMULATE_PAGEABLE)
        weft_emulate_die("cuBLAS: %s at %p is memory that a GPU cannot read", name, memory);
    if ((uintptr_t)memory % alignment != 0)
        weft_emulate_die("cuBLAS: misaligned address: %s at %p is not aligned to %zu bytes", name,
                         memory, alignment);
}

/* cuBLASLt. */

const char *cublasLtGetStatusName(cublasStatus_t status)
{
    switch (status) {
    case CUBLAS_STATUS_SUCCESS:
        return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
        return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED:
        return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
        return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED:
        return "CUBLAS_STATUS_NOT_SUPPORTED";
    case CUBLAS_STATUS_EXECUTION_FAILED:
        return "CUBLAS_STATUS_EXECUTION_FAILED";
    default:
        return "<unknown>";
    }
}

size_t cublasLtGetVersion(void)
{
    return CUBLAS_VERSION;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *out)
{
    if (weft_emulate_num_devices() == 0)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    *out = malloc(sizeof **out);
    if (!*out)
        return CUBLAS_STATUS_ALLOC_FAILED;
    (*out)->device = weft_emulate_device();
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t desc, size_t size,
                                               cublasComputeType_t compute, cudaDataType_t scale)
{
    const product value = {.compute = (int32_t)compute,
                           .scale = (int32_t)scale,
                           .transpose_a = CUBLAS_OP_N,
                           .transpose_b = CUBLAS_OP_N,
                           .epilogue = CUBLASLT_EPILOGUE_DEFAULT,
                           .magic = MAGIC};
    if (size < sizeof *desc)
        return CUBLAS_STATUS_ALLOC_FAILED;
    memset(desc, 0, size);
    memcpy(desc, &value, sizeof value);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t set(void *to, size_t to_bytes, const void *value, size_t bytes)
{
    if (!value || bytes != to_bytes)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(to, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t bytes)
{
    product *p = (product *)desc;
    switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
        return set(&p->transpose_a, sizeof p->transpose_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
        return set(&p->transpose_b, sizeof p->transpose_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        return set(&p->epilogue, sizeof p->epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        return set(&p->bias, sizeof p->bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
        return set(&p->aux, sizeof p->aux, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
        return set(&p->stride_aux, sizeof p->stride_aux, value, bytes);
    default:
        weft_emulate_die("cuBLASLt: attribute %d of products is not emulated", (int)attribute);
    }
}

cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t out, size_t size,
                                                 cudaDataType type, uint64_t rows, uint64_t cols,
                                                 int64_t stride)
{
    const layout value = {
        .type = (int32_t)type, .magic = MAGIC, .rows = rows, .cols = cols, .stride = stride};
    if (size < sizeof *out)
        return CUBLAS_STATUS_ALLOC_FAILED;
    memset(out, 0, size);
    memcpy(out, &value, sizeof value);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t out, size_t size)
{
    const preference value = {.reductions = CUBLASLT_REDUCTION_SCHEME_MASK,
                              .alignment = {256, 256, 256, 256},
                              .magic = MAGIC};
    if (size < sizeof *out)
        return CUBLAS_STATUS_ALLOC_FAILED;
    memset(out, 0, size);
    memcpy(out, &value, sizeof value);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t to,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *value, size_t bytes)
{
    preference *p = (preference *)to;
    switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
        return set(&p->workspace_bytes, sizeof p->workspace_bytes, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
        return set(&p->reductions, sizeof p->reductions, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
        return set(&p->alignment[0], sizeof p->alignment[0], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
        return set(&p->alignment[1], sizeof p->alignment[1], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
        return set(&p->alignment[2], sizeof p->alignment[2], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
        return set(&p->alignment[3], sizeof p->alignment[3], value, bytes);
    default:
        weft_emulate_die("cuBLASLt: preference %d is not emulated", (int)attribute);
    }
}

static bool is_layout(const layout *l)
{
    return l && l->magic == MAGIC && l->rows > 0 && l->cols > 0 && l->stride >= (int64_t)l->rows;
}

/* Of the documentation's table of types those with fp32 sums of real numbers. */
static bool has_types(const product *p, const layout *a, const layout *b, const layout *c)
{
    const bool is_half = a->type == CUDA_R_16BF || a->type == CUDA_R_16F;
    return p->compute == CUBLAS_COMPUTE_32F && p->scale == CUDA_R_32F && a->type == b->type &&
           (c->type == CUDA_R_32F || c->type == a->type) && (is_half || a->type == CUDA_R_32F);
}

static cublasStatus_t understand_epilogue(const product *p, emulated_product *out)
{
    const uint32_t form = p->epilogue & ~(uint32_t)CUBLASLT_EPILOGUE_BIAS;
    const bool has_bias = form != p->epilogue;
    if (has_bias && !p->bias)
        return CUBLAS_STATUS_INVALID_VALUE;
    out->bias = has_bias ? p->bias : NULL;
    if (p->epilogue == CUBLASLT_EPILOGUE_DEFAULT || p->epilogue == CUBLASLT_EPILOGUE_BIAS)
        return CUBLAS_STATUS_SUCCESS;
    if (form != CUBLASLT_EPILOGUE_GELU_AUX && p->epilogue != CUBLASLT_EPILOGUE_DGELU)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (!p->aux || p->stride_aux % 8 != 0 || p->stride_aux < (int64_t)out->m)
        return CUBLAS_STATUS_INVALID_VALUE;
    out->epilogue = form == CUBLASLT_EPILOGUE_GELU_AUX ? EMULATED_GELU : EMULATED_GELU_BACKWARD;
    out->aux = p->aux;
    out->stride_aux = (size_t)p->stride_aux;
    return (uintptr_t)p->aux % 16 != 0 || out->k % 2 != 0 ? CUBLAS_STATUS_NOT_SUPPORTED
                                                          : CUBLAS_STATUS_SUCCESS;
}

/* The product without its memory. */
static cublasStatus_t understand(const product *p, const layout *a, const layout *b,
                                 const layout *c, const layout *d, emulated_product *out)
{
    if (!p || p->magic != MAGIC || !is_layout(a) || !is_layout(b) || !is_layout(c) ||
        !is_layout(d) || memcmp(c, d, sizeof *c) != 0)
        return CUBLAS_STATUS_INVALID_VALUE;
    if ((p->transpose_a != CUBLAS_OP_N && p->transpose_a != CUBLAS_OP_T) ||
        (p->transpose_b != CUBLAS_OP_N && p->transpose_b != CUBLAS_OP_T))
        return CUBLAS_STATUS_INVALID_VALUE;
    const bool transpose_a = p->transpose_a == CUBLAS_OP_T;
    const bool transpose_b = p->transpose_b == CUBLAS_OP_T;
    *out = (emulated_product){.m = d->rows,
                              .n = d->cols,
                              .k = transpose_a ? a->rows : a->cols,
                              .stride_a = (size_t)a->stride,
                              .stride_b = (size_t)b->stride,
                              .stride_d = (size_t)d->stride,
                              .transpose_a = transpose_a,
                              .transpose_b = transpose_b,
                              .type = (cudaDataType_t)a->type,
                              .d_type = (cudaDataType_t)d->type};
    if ((transpose_a ? a->cols : a->rows) != out->m ||
        (transpose_b ? b->cols : b->rows) != out->k || (transpose_b ? b->rows : b->cols) != out->n)
        return CUBLAS_STATUS_INVALID_VALUE;
    return has_types(p, a, b, c) ? understand_epilogue(p, out) : CUBLAS_STATUS_NOT_SUPPORTED;
}

/* The largest power of two up to 4 that divides x. */
static uint32_t evenness(size_t x)
{
    return x % 4 == 0 ? 4 : x % 2 == 0 ? 2 : 1;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t wish, int num_asked,
                                              cublasLtMatmulHeuristicResult_t *out, int *out_count)
{
    const product *p = (const product *)desc;
    const preference *w = (const preference *)wish;
    emulated_product t;
    if (!handle)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    if (num_asked <= 0 || !w || w->magic != MAGIC)
        return CUBLAS_STATUS_INVALID_VALUE;
    const cublasStatus_t status = understand(p, (const layout *)a, (const layout *)b,
                                             (const layout *)c, (const layout *)d, &t);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    algorithm chosen = {
        .magic = MAGIC,
        .device = handle->device,
        .types = {(uint8_t)t.type, (uint8_t)t.type, (uint8_t)t.d_type},
        .transpose_a = t.transpose_a,
        .transpose_b = t.transpose_b,
        .epilogue = p->epilogue,
        .n_step = evenness(t.n),
        .k_step = evenness(t.k),
        .workspace_bytes = w->workspace_bytes < LT_WORKSPACE_BYTES ? 0 : LT_WORKSPACE_BYTES,
    };
    memcpy(chosen.alignment, w->alignment, sizeof chosen.alignment);
    memset(out, 0, sizeof *out);
    memcpy(&out->algo, &chosen, sizeof chosen);
    out->workspaceSize = chosen.workspace_bytes;
    out->state = CUBLAS_STATUS_SUCCESS;
    *out_count = 1;
    return CUBLAS_STATUS_SUCCESS;
}

/* Whether the algorithm was chosen for such a product. */
static cublasStatus_t check_algorithm(cublasLtHandle_t handle, const product *p,
                                      const algorithm *chosen, const emulated_product *t,
                                      const void *workspace, size_t workspace_bytes)
{
    if (chosen->magic != MAGIC || workspace_bytes < chosen->workspace_bytes ||
        (chosen->workspace_bytes > 0 && (!workspace || (uintptr_t)workspace % 16 != 0)))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (chosen->device != handle->device || handle->device != weft_emulate_device())
        return CUBLAS_STATUS_ARCH_MISMATCH;
    if (chosen->types[0] != t->type || chosen->types[2] != t->d_type ||
        chosen->transpose_a != t->transpose_a || chosen->transpose_b != t->transpose_b ||
        chosen->epilogue != p->epilogue || t->n % chosen->n_step != 0 || t->k % chosen->k_step != 0)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    return CUBLAS_STATUS_SUCCESS;
}

typedef struct call {
    void *workspace;
    size_t workspace_bytes;
    const void *const *a, *const *b; /* grouped: arrays in device memory, read by the device */
    void *const *c;
    size_t count;
    emulated_product products[];
} call;

static size_t call_bytes(size_t count)
{
    return sizeof(call) + count * sizeof(emulated_product);
}

static call *new_call(size_t count)
{
    call *out = calloc(1, call_bytes(count));
    if (!out)
        weft_emulate_die("cuBLAS: out of memory");
    out->count = count;
    return out;
}

static cublasStatus_t enqueue(cudaStream_t stream, void (*run)(void *), call *work)
{
    const cudaError_t error =
        weft_emulate_enqueue(stream, run, work, call_bytes(work->count), true);
    free(work);
    return error ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS;
}

static void spoil(const call *c)
{
    if (c->workspace_bytes > 0)
        memset(c->workspace, 0xff, c->workspace_bytes);
}

static void run_lt(void *argument)
{
    call *c = argument;
    spoil(c);
    emulated_product_run(&c->products[0]);
    spoil(c);
}

static _Atomic size_t num_gelu;

size_t weft_emulated_num_gelu(void)
{
    return num_gelu;
}

/* Which kernel does what is the library's affair: here each shape has its own. */
static void load_kernel(const emulated_product *t)
{
    const uint64_t shape[] = {t->m,
                              t->n,
                              t->k,
                              (uint64_t)t->type << 8 | (uint64_t)t->d_type,
                              (uint64_t)t->transpose_a << 8 | t->transpose_b,
                              (uint64_t)t->epilogue};
    uint64_t key = 0;
    for (size_t i = 0; i < sizeof shape / sizeof shape[0]; i++)
        key = (key ^ shape[i]) * 0x9e3779b97f4a7c15u;
    weft_emulate_load(key, true);
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
                              cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
                              cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo,
                              void *workspace, size_t workspace_bytes, cudaStream_t stream)
{
    const product *p = (const product *)desc;
    algorithm chosen;
    emulated_product t;
    if (!handle)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    if (!alpha || !beta || !a || !b || !d || !algo)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(&chosen, algo, sizeof chosen);
    cublasStatus_t status = understand(p, (const layout *)a_layout, (const layout *)b_layout,
                                       (const layout *)c_layout, (const layout *)d_layout, &t);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = check_algorithm(handle, p, &chosen, &t, workspace, workspace_bytes);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    t.a = a, t.b = b, t.d = d;
    memcpy(&t.alpha, alpha, sizeof t.alpha);
    memcpy(&t.beta, beta, sizeof t.beta);
    if (t.beta != 0 && c != d)
        weft_emulate_die("cuBLASLt: C apart from D is not emulated");
    check_operand("A", a, chosen.alignment[0]);
    check_operand("B", b, chosen.alignment[1]);
    check_operand("D", d, chosen.alignment[3]);
    if (t.bias)
        check_operand("the bias", t.bias, size_of(t.d_type));
    if (t.epilogue != EMULATED_PLAIN) {
        check_operand("the auxiliary matrix", t.aux, 16);
        if (t.aux == d)
            weft_emulate_die("cuBLASLt: the auxiliary matrix is D");
        num_gelu++;
    }
    if (chosen.workspace_bytes > 0)
        check_operand("the workspace", workspace, 16);
    call *work = new_call(1);
    work->products[0] = t;
    work->workspace = workspace;
    work->workspace_bytes = chosen.workspace_bytes;
    load_kernel(&t);
    return enqueue(stream, run_lt, work);
}

/* cuBLAS. */

cublasStatus_t cublasCreate_v2(cublasHandle_t *out)
{
    if (weft_emulate_num_devices() == 0)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    *out = calloc(1, sizeof **out);
    if (!*out)
        return CUBLAS_STATUS_ALLOC_FAILED;
    (*out)->device = weft_emulate_device();
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream)
{
    handle->stream = stream;
    handle->workspace = NULL;
    handle->workspace_bytes = 0;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void *workspace, size_t bytes)
{
    if ((uintptr_t)workspace % 256 != 0)
        return CUBLAS_STATUS_INVALID_VALUE;
    handle->workspace = workspace;
    handle->workspace_bytes = bytes;
    return CUBLAS_STATUS_SUCCESS;
}

/* 16-bit elements are read 16 or 4 bytes at once where a row of k of them is a multiple of that. */
static size_t grouped_alignment(const emulated_product *t)
{
    const size_t row_bytes = t->k * size_of(t->type);
    return t->type == CUDA_R_32F ? 4 : row_bytes % 16 == 0 ? 16 : row_bytes % 4 == 0 ? 4 : 2;
}

static void run_grouped(void *argument)
{
    call *c = argument;
    spoil(c);
    for (size_t i = 0; i < c->count; i++) {
        emulated_product *t = &c->products[i];
        t->a = c->a[i], t->b = c->b[i], t->d = c->c[i];
        check_operand("A", t->a, grouped_alignment(t));
        check_operand("B", t->b, grouped_alignment(t));
        check_operand("C", t->d, grouped_alignment(t));
        emulated_product_run(t);
    }
    spoil(c);
}

static bool is_operation(cublasOperation_t operation)
{
    return operation == CUBLAS_OP_N || operation == CUBLAS_OP_T;
}

cublasStatus_t
cublasGemmGroupedBatchedEx(cublasHandle_t handle, const cublasOperation_t operation_a[],
                           const cublasOperation_t operation_b[], const int m[], const int n[],
                           const int k[], const void *alpha, const void *const a[],
                           cudaDataType_t a_type, const int lda[], const void *const b[],
                           cudaDataType_t b_type, const int ldb[], const void *beta,
                           void *const c[], cudaDataType_t c_type, const int ldc[], int count,
                           const int group_size[], cublasComputeType_t compute)
{
    if (!handle)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    if (!operation_a || !operation_b || !m || !n || !k || !alpha || !lda || !ldb || !beta || !ldc ||
        !group_size || count < 0)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (getenv("WEFT_EMULATE_NO_GROUPS")) /* as on a GPU that the library has no kernels for */
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (compute != CUBLAS_COMPUTE_32F || a_type != b_type || a_type != c_type ||
        (a_type != CUDA_R_32F && a_type != CUDA_R_16BF && a_type != CUDA_R_16F))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (handle->device != weft_emulate_device())
        return CUBLAS_STATUS_ARCH_MISMATCH;
    for (int i = 0; i < count; i++) {
        const bool ta = operation_a[i] == CUBLAS_OP_T, tb = operation_b[i] == CUBLAS_OP_T;
        if (!is_operation(operation_a[i]) || !is_operation(operation_b[i]) || m[i] < 1 ||
            n[i] < 1 || k[i] < 1 || group_size[i] < 0 || lda[i] < (ta ? k[i] : m[i]) ||
            ldb[i] < (tb ? n[i] : k[i]) || ldc[i] < m[i])
            return CUBLAS_STATUS_INVALID_VALUE;
        if (group_size[i] != 1)
            weft_emulate_die("cuBLAS: groups of several products are not emulated");
    }
    call *work = new_call((size_t)count);
    for (int i = 0; i < count; i++)
        work->products[i] = (emulated_product){.m = (size_t)m[i],
                                               .n = (size_t)n[i],
                                               .k = (size_t)k[i],
                                               .stride_a = (size_t)lda[i],
                                               .stride_b = (size_t)ldb[i],
                                               .stride_d = (size_t)ldc[i],
                                               .transpose_a = operation_a[i] == CUBLAS_OP_T,
                                               .transpose_b = operation_b[i] == CUBLAS_OP_T,
                                               .type = a_type,
                                               .d_type = c_type,
                                               .alpha = ((const float *)alpha)[i],
                                               .beta = ((const float *)beta)[i]};
    check_operand("Aarray", a, sizeof *a);
    check_operand("Barray", b, sizeof *b);
    check_operand("Carray", c, sizeof *c);
    work->a = a, work->b = b, work->c = c;
    work->workspace = handle->workspace;
    work->workspace_bytes = handle->workspace_bytes < LT_WORKSPACE_BYTES ? 0 : LT_WORKSPACE_BYTES;
    if (count > 0)
        load_kernel(&work->products[0]);
    return enqueue(handle->stream, run_grouped, work);
}
