/* bf16 GEMM by oneDNN's matmul primitives (its v2 API). Making one costs as much as running a
 * middling GEMM, so each thread keeps those it used last: enough for experts, whose rows differ
 * from micro-batch to micro-batch. A primitive takes about 66 kB, all of them at most 270 MB. */
#include "kernels/cpu/gemm.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#ifdef _OPENMP
#include <omp.h>
#endif

enum {
    NUM_SETS = 512,
    NUM_WAYS = 8, /* primitives whose keys fall into one set */
};

enum { A, B, C, BIAS, NUM_OPERANDS };

static const int operand_names[NUM_OPERANDS] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST,
                                                DNNL_ARG_BIAS};

/* All that a primitive is made for. No padding, so that keys compare as bytes. */
typedef struct key {
    uint64_t m, n, k, lda, ldb, ldc;
    float alpha, beta;
    uint8_t transpose_a, transpose_b, bias, c_dtype;
    int32_t num_threads; /* a primitive divides its work when it is made */
} key;
_Static_assert(sizeof(key) == 6 * sizeof(uint64_t) + 4 * sizeof(uint32_t), "a key has padding");

typedef struct entry {
    key key;
    uint64_t last_use;          /* 0: empty */
    dnnl_primitive_t primitive; /* NULL in an entry that was not completed */
    dnnl_memory_t operands[NUM_OPERANDS];
    dnnl_memory_desc_t bias; /* where the bias is added after scaling */
} entry;

typedef struct cache {
    dnnl_stream_t stream;
    uint64_t num_uses;
    entry entries[NUM_SETS][NUM_WAYS];
} cache;

static dnnl_engine_t engine; /* for the life of the process */
static pthread_key_t cache_key;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool ready;

static void entry_release(entry *e)
{
    for (int i = 0; i < NUM_OPERANDS; i++)
        dnnl_memory_destroy(e->operands[i]);
    dnnl_primitive_destroy(e->primitive);
    *e = (entry){0};
}

static void cache_destroy(void *context)
{
    cache *c = context;
    for (int set = 0; set < NUM_SETS; set++)
        for (int way = 0; way < NUM_WAYS; way++)
            entry_release(&c->entries[set][way]);
    dnnl_stream_destroy(c->stream);
    free(c);
}

static void start(void)
{
    ready = dnnl_engine_create(&engine, dnnl_cpu, 0) == dnnl_success &&
            pthread_key_create(&cache_key, cache_destroy) == 0;
}

static weft_status thread_cache(cache **out)
{
    pthread_once(&once, start);
    if (!ready)
        return WEFT_ERROR(WEFT_DEVICE, "oneDNN: no CPU engine");
    cache *c = pthread_getspecific(cache_key);
    if (!c) {
        c = calloc(1, sizeof *c);
        if (!c || pthread_setspecific(cache_key, c)) {
            free(c);
            return WEFT_ERROR(WEFT_MEMORY, "no %zu bytes for a thread's bf16 GEMMs", sizeof *c);
        }
    }
    if (!c->stream)
        WEFT_TRY(WEFT_DNNL(dnnl_stream_create(&c->stream, engine, dnnl_stream_default_flags)));
    *out = c;
    return WEFT_OK;
}

static weft_status describe(dnnl_memory_desc_t *out, uint64_t rows, uint64_t cols, uint64_t ld,
                            bool transpose, dnnl_data_type_t type)
{
    dnnl_dims_t dims = {(dnnl_dim_t)rows, (dnnl_dim_t)cols};
    dnnl_dims_t strides = {transpose ? 1 : (dnnl_dim_t)ld, transpose ? (dnnl_dim_t)ld : 1};
    return WEFT_DNNL(dnnl_memory_desc_init_by_strides(out, 2, dims, type, strides));
}

/* The library scales a bias with the product, so a bias that goes with another alpha than 1 is
 * added afterwards. */
static bool bias_after(const key *k)
{
    return k->bias && k->alpha != 1;
}

static weft_status set_attributes(const key *k, dnnl_memory_desc_t *bias, dnnl_post_ops_t post,
                                  dnnl_primitive_attr_t attributes)
{
    if (k->alpha != 1)
        WEFT_TRY(WEFT_DNNL(dnnl_primitive_attr_set_output_scales(attributes, 1, 0, &k->alpha)));
    if (k->beta != 0)
        WEFT_TRY(WEFT_DNNL(dnnl_post_ops_append_sum(post, k->beta)));
    if (bias_after(k))
        WEFT_TRY(WEFT_DNNL(dnnl_post_ops_append_binary(post, dnnl_binary_add, bias)));
    return WEFT_DNNL(dnnl_primitive_attr_set_post_ops(attributes, post));
}

static weft_status describe_matmul(const key *k, dnnl_memory_desc_t descs[NUM_OPERANDS],
                                   const_dnnl_primitive_attr_t attributes,
                                   dnnl_primitive_desc_t *out)
{
    bool inside = k->bias && !bias_after(k);
    dnnl_matmul_desc_t matmul;
    WEFT_TRY(WEFT_DNNL(dnnl_matmul_desc_init(&matmul, &descs[A], &descs[B],
                                             inside ? &descs[BIAS] : NULL, &descs[C])));
    return WEFT_DNNL(dnnl_primitive_desc_create(out, &matmul, attributes, engine, NULL));
}

static weft_status create_primitive(const key *k, dnnl_memory_desc_t descs[NUM_OPERANDS],
                                    dnnl_primitive_t *out)
{
    dnnl_post_ops_t post = NULL;
    dnnl_primitive_attr_t attributes = NULL;
    dnnl_primitive_desc_t description = NULL;
    weft_status status = WEFT_DNNL(dnnl_post_ops_create(&post));
    if (status == WEFT_OK)
        status = WEFT_DNNL(dnnl_primitive_attr_create(&attributes));
    if (status == WEFT_OK)
        status = set_attributes(k, &descs[BIAS], post, attributes);
    if (status == WEFT_OK)
        status = describe_matmul(k, descs, attributes, &description);
    if (status == WEFT_OK)
        status = WEFT_DNNL(dnnl_primitive_create(out, description));
    dnnl_primitive_desc_destroy(description);
    dnnl_primitive_attr_destroy(attributes);
    dnnl_post_ops_destroy(post);
    return status;
}

static weft_status entry_create(const key *k, entry *out)
{
    const dnnl_data_type_t c_type = k->c_dtype == WEFT_F32 ? dnnl_f32 : dnnl_bf16;
    dnnl_memory_desc_t descs[NUM_OPERANDS];
    WEFT_TRY(describe(&descs[A], k->m, k->k, k->lda, k->transpose_a, dnnl_bf16));
    WEFT_TRY(describe(&descs[B], k->k, k->n, k->ldb, k->transpose_b, dnnl_bf16));
    WEFT_TRY(describe(&descs[C], k->m, k->n, k->ldc, false, c_type));
    WEFT_TRY(describe(&descs[BIAS], 1, k->n, k->n, false, dnnl_bf16));
    WEFT_TRY(create_primitive(k, descs, &out->primitive));
    for (int i = 0; i < (k->bias ? NUM_OPERANDS : BIAS); i++)
        WEFT_TRY(
            WEFT_DNNL(dnnl_memory_create(&out->operands[i], &descs[i], engine, DNNL_MEMORY_NONE)));
    out->key = *k;
    return WEFT_OK;
}

static uint64_t hash(const key *k)
{
    uint64_t words[sizeof *k / sizeof(uint64_t)], sum = 0;
    memcpy(words, k, sizeof words);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        sum = (sum ^ words[i]) * UINT64_C(0x9e3779b97f4a7c15) + (sum >> 29);
    return sum ^ sum >> 32;
}

static weft_status find(cache *c, const key *k, entry **out)
{
    entry *set = c->entries[hash(k) % NUM_SETS], *oldest = set;
    for (int way = 0; way < NUM_WAYS; way++) {
        if (set[way].last_use && !memcmp(&set[way].key, k, sizeof *k)) {
            set[way].last_use = ++c->num_uses;
            *out = &set[way];
            return WEFT_OK;
        }
        if (set[way].last_use < oldest->last_use)
            oldest = &set[way];
    }
    entry_release(oldest);
    weft_status status = entry_create(k, oldest);
    if (status != WEFT_OK) {
        entry_release(oldest);
        return status;
    }
    oldest->last_use = ++c->num_uses;
    *out = oldest;
    return WEFT_OK;
}

static int num_threads(void)
{
#ifdef _OPENMP
    return omp_get_max_threads();
#else
    return 1;
#endif
}

weft_status weft_gemm_native(const weft_gemm_args *args)
{
    cache *c = NULL;
    WEFT_TRY(thread_cache(&c));
    const key k = {
        .m = args->m,
        .n = args->n,
        .k = args->k,
        .lda = args->lda,
        .ldb = args->ldb,
        .ldc = args->ldc,
        .alpha = args->alpha,
        .beta = args->beta,
        .transpose_a = args->transpose_a,
        .transpose_b = args->transpose_b,
        .bias = args->bias != NULL,
        .c_dtype = (uint8_t)args->c_dtype,
        .num_threads = num_threads(),
    };
    entry *e;
    WEFT_TRY(find(c, &k, &e));
    /* The library takes no pointers to const, but writes C alone. */
    void *data[NUM_OPERANDS] = {(void *)args->a, (void *)args->b, args->c, (void *)args->bias};
    dnnl_exec_arg_t exec[NUM_OPERANDS];
    const int num = k.bias ? NUM_OPERANDS : BIAS;
    for (int i = 0; i < num; i++) {
        WEFT_TRY(WEFT_DNNL(dnnl_memory_set_data_handle(e->operands[i], data[i])));
        exec[i] = (dnnl_exec_arg_t){operand_names[i], e->operands[i]};
    }
    if (bias_after(&k))
        exec[BIAS].arg = DNNL_ARG_ATTR_MULTIPLE_POST_OP(k.beta != 0 ? 1 : 0) | DNNL_ARG_SRC_1;
    WEFT_TRY(WEFT_DNNL(dnnl_primitive_execute(e->primitive, c->stream, num, exec)));
    return WEFT_DNNL(dnnl_stream_wait(c->stream));
}

bool weft_gemm_native_works(void)
{
    pthread_once(&once, start);
    const key k = {.m = 64,
                   .n = 64,
                   .k = 64,
                   .lda = 64,
                   .ldb = 64,
                   .ldc = 64,
                   .alpha = 1,
                   .num_threads = num_threads()};
    entry e = {0};
    weft_status status = ready ? entry_create(&k, &e) : WEFT_DEVICE;
    entry_release(&e);
    return status == WEFT_OK;
}
