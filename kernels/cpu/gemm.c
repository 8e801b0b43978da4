#include "kernels/cpu/cpu.h"

#include <oneapi/dnnl/dnnl.h>
#include <string.h>

static weft_status dnnl_error(dnnl_status_t status, const char *what)
{
    return status == dnnl_success
               ? WEFT_OK
               : WEFT_ERROR(WEFT_DEVICE, "oneDNN: %s failed with status %d", what, (int)status);
}

static weft_status single(const weft_gemm_args *a)
{
    dnnl_dim_t m = (dnnl_dim_t)a->m, n = (dnnl_dim_t)a->n, k = (dnnl_dim_t)a->k;
    dnnl_dim_t lda = (dnnl_dim_t)a->lda, ldb = (dnnl_dim_t)a->ldb, ldc = (dnnl_dim_t)a->ldc;
    WEFT_TRY(dnnl_error(dnnl_sgemm(a->transpose_a ? 'T' : 'N', a->transpose_b ? 'T' : 'N', m, n, k,
                                   a->alpha, a->a, lda, a->b, ldb, a->beta, a->c, ldc),
                        "sgemm"));
    const float *bias = a->bias;
    float *c = a->c;
    for (size_t i = 0; bias && i < a->m; i++)
        for (size_t j = 0; j < a->n; j++)
            c[i * a->ldc + j] += bias[j];
    return WEFT_OK;
}

static weft_status half(const weft_gemm_args *a)
{
    static dnnl_engine_t engine;
    static dnnl_stream_t stream;
    if (!engine) {
        WEFT_TRY(dnnl_error(dnnl_engine_create(&engine, dnnl_cpu, 0), "engine"));
        WEFT_TRY(dnnl_error(dnnl_stream_create(&stream, engine, dnnl_stream_default_flags), "s"));
    }
    dnnl_data_type_t c_type = a->c_dtype == WEFT_F32 ? dnnl_f32 : dnnl_bf16;
    dnnl_memory_desc_t ad, bd, cd, biasd;
    dnnl_dims_t dims_a = {(dnnl_dim_t)a->m, (dnnl_dim_t)a->k},
                dims_b = {(dnnl_dim_t)a->k, (dnnl_dim_t)a->n},
                dims_c = {(dnnl_dim_t)a->m, (dnnl_dim_t)a->n};
    dnnl_dims_t dims_bias = {1, (dnnl_dim_t)a->n}, stride_bias = {(dnnl_dim_t)a->n, 1};
    dnnl_dims_t sa = {a->transpose_a ? 1 : (dnnl_dim_t)a->lda,
                      a->transpose_a ? (dnnl_dim_t)a->lda : 1};
    dnnl_dims_t sb = {a->transpose_b ? 1 : (dnnl_dim_t)a->ldb,
                      a->transpose_b ? (dnnl_dim_t)a->ldb : 1};
    dnnl_dims_t sc = {(dnnl_dim_t)a->ldc, 1};
    dnnl_memory_desc_init_by_strides(&ad, 2, dims_a, dnnl_bf16, sa);
    dnnl_memory_desc_init_by_strides(&bd, 2, dims_b, dnnl_bf16, sb);
    dnnl_memory_desc_init_by_strides(&cd, 2, dims_c, c_type, sc);
    dnnl_memory_desc_init_by_strides(&biasd, 2, dims_bias, dnnl_bf16, stride_bias);
    dnnl_matmul_desc_t desc;
    WEFT_TRY(dnnl_error(dnnl_matmul_desc_init(&desc, &ad, &bd, a->bias ? &biasd : NULL, &cd), "d"));
    dnnl_primitive_attr_t attr;
    dnnl_primitive_attr_create(&attr);
    dnnl_primitive_attr_set_output_scales(attr, 1, 0, &a->alpha);
    dnnl_post_ops_t ops;
    dnnl_post_ops_create(&ops);
    if (a->beta != 0) {
        dnnl_post_ops_append_sum(ops, a->beta);
        dnnl_primitive_attr_set_post_ops(attr, ops);
    }
    dnnl_primitive_desc_t pd;
    WEFT_TRY(dnnl_error(dnnl_primitive_desc_create(&pd, &desc, attr, engine, NULL), "pd"));
    dnnl_primitive_t primitive;
    WEFT_TRY(dnnl_error(dnnl_primitive_create(&primitive, pd), "primitive"));
    dnnl_memory_t ma, mb, mc, mbias = NULL;
    dnnl_memory_create(&ma, &ad, engine, (void *)a->a);
    dnnl_memory_create(&mb, &bd, engine, (void *)a->b);
    dnnl_memory_create(&mc, &cd, engine, a->c);
    if (a->bias)
        dnnl_memory_create(&mbias, &biasd, engine, (void *)a->bias);
    dnnl_exec_arg_t args[] = {
        {DNNL_ARG_SRC, ma}, {DNNL_ARG_WEIGHTS, mb}, {DNNL_ARG_DST, mc}, {DNNL_ARG_BIAS, mbias}};
    WEFT_TRY(dnnl_error(dnnl_primitive_execute(primitive, stream, a->bias ? 4 : 3, args), "run"));
    dnnl_memory_destroy(ma);
    dnnl_memory_destroy(mb);
    dnnl_memory_destroy(mc);
    if (mbias)
        dnnl_memory_destroy(mbias);
    dnnl_primitive_destroy(primitive);
    dnnl_primitive_desc_destroy(pd);
    dnnl_post_ops_destroy(ops);
    dnnl_primitive_attr_destroy(attr);
    return WEFT_OK;
}

weft_status weft_cpu_gemm(const weft_gemm_args *args)
{
    weft_gemm_args a = *args;
    a.lda = a.lda ? a.lda : a.transpose_a ? a.m : a.k;
    a.ldb = a.ldb ? a.ldb : a.transpose_b ? a.k : a.n;
    a.ldc = a.ldc ? a.ldc : a.n;
    a.alpha = a.alpha == 0 ? 1.0f : a.alpha;
    if (a.m == 0 || a.n == 0)
        return WEFT_OK;
    weft_gemm_flops_add(2 * (uint64_t)a.m * a.n * a.k);
    return a.dtype == WEFT_F32 ? single(&a) : half(&a);
}

weft_status weft_cpu_grouped_gemm(const weft_grouped_gemm_args *args)
{
    size_t bytes = weft_dtype_bytes(args->dtype);
    for (size_t g = 0; g < args->num_groups; g++) {
        size_t first = (size_t)args->row_offsets[g];
        size_t rows = (size_t)args->row_offsets[g + 1] - first, size = args->in * args->out;
        char *x = (char *)args->x + first * args->in * bytes;
        char *y = (char *)args->y + first * args->out * bytes;
        char *w = (char *)args->w + g * size * bytes;
        weft_gemm_args gemm = {.dtype = args->dtype, .c_dtype = args->dtype};
        switch (args->kind) {
        case WEFT_GROUPED_FORWARD:
            gemm.m = rows, gemm.n = args->out, gemm.k = args->in;
            gemm.a = x, gemm.b = w, gemm.c = y, gemm.transpose_b = true;
            break;
        case WEFT_GROUPED_DGRAD:
            gemm.m = rows, gemm.n = args->in, gemm.k = args->out;
            gemm.a = y, gemm.b = w, gemm.c = x;
            break;
        case WEFT_GROUPED_WGRAD:
            gemm.m = args->out, gemm.n = args->in, gemm.k = rows;
            gemm.a = y, gemm.b = x, gemm.c = args->wgrad + g * size;
            gemm.transpose_a = true, gemm.c_dtype = WEFT_F32, gemm.beta = args->overwrite ? 0 : 1;
            if (rows == 0) {
                if (args->overwrite)
                    memset(gemm.c, 0, size * sizeof(float));
                continue;
            }
            break;
        }
        WEFT_TRY(weft_cpu_gemm(&gemm));
    }
    return WEFT_OK;
}
