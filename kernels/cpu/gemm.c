#include "kernels/cpu/gemm.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/cpu.h"

static bool native_is_faster(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    unsigned isa = (unsigned)dnnl_get_effective_cpu_isa();
    const unsigned amx = dnnl_cpu_isa_avx512_core_amx, bf16 = dnnl_cpu_isa_avx512_core_bf16;
    return (isa & amx) == amx || ((isa & bf16) == bf16 && !__builtin_cpu_is("intel"));
#else
    return false;
#endif
}

static struct {
    weft_gemm_bf16_form form;
    const char *wish, *wrong;
} choice;

static void choose(void)
{
    const char *wish = getenv("WEFT_CPU_BF16");
    choice.wish = wish;
    if (!wish || !wish[0])
        choice.form = native_is_faster() ? WEFT_GEMM_NATIVE : WEFT_GEMM_WIDEN;
    else if (!strcmp(wish, "widen"))
        choice.form = WEFT_GEMM_WIDEN;
    else if (strcmp(wish, "native") != 0)
        choice.wrong = "must be native or widen";
    else if (!weft_gemm_native_works())
        choice.wrong = "cannot be had: oneDNN multiplies no bf16 on this processor";
}

weft_status weft_gemm_bf16_form_get(weft_gemm_bf16_form *out)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, choose);
    if (choice.wrong)
        return WEFT_ERROR(WEFT_CONFIG, "WEFT_CPU_BF16=%s %s", choice.wish, choice.wrong);
    *out = choice.form;
    return WEFT_OK;
}

/* C = beta * C + bias. */
static weft_status without_product(const weft_gemm_args *a)
{
    return weft_cpu_matrix_finish(&(weft_matrix_finish_args){
        .rows = a->m,
        .cols = a->n,
        .c = a->c,
        .ldc = a->ldc,
        .c_dtype = a->c_dtype,
        .beta = a->beta,
        .bias = a->bias,
        .bias_dtype = a->dtype,
    });
}

/* The bias goes into C first: sgemm's own addition to C hides behind its arithmetic, as a pass
 * over C of ours would not. */
static weft_status single(const weft_gemm_args *a)
{
    if (a->bias)
        WEFT_TRY(without_product(a));
    return WEFT_DNNL(dnnl_sgemm(a->transpose_a ? 'T' : 'N', a->transpose_b ? 'T' : 'N',
                                (dnnl_dim_t)a->m, (dnnl_dim_t)a->n, (dnnl_dim_t)a->k, a->alpha,
                                a->a, (dnnl_dim_t)a->lda, a->b, (dnnl_dim_t)a->ldb,
                                a->bias ? 1 : a->beta, a->c, (dnnl_dim_t)a->ldc));
}

static weft_status half(const weft_gemm_args *a)
{
    weft_gemm_bf16_form form;
    WEFT_TRY(weft_gemm_bf16_form_get(&form));
    return form == WEFT_GEMM_NATIVE ? weft_gemm_native(a) : weft_gemm_widen(a);
}

static weft_status multiply(const weft_gemm_args *args)
{
    weft_gemm_args a = *args;
    a.lda = a.lda ? a.lda : a.transpose_a ? a.m : a.k;
    a.ldb = a.ldb ? a.ldb : a.transpose_b ? a.k : a.n;
    a.ldc = a.ldc ? a.ldc : a.n;
    a.alpha = a.alpha == 0 ? 1.0f : a.alpha;
    if (a.m == 0 || a.n == 0)
        return WEFT_OK;
    if (a.k == 0)
        return without_product(&a);
    WEFT_TRY(a.dtype == WEFT_F32 ? single(&a) : half(&a));
    weft_gemm_flops_add(2 * (uint64_t)a.m * a.n * a.k);
    return WEFT_OK;
}

weft_status weft_cpu_gemm(const weft_gemm_args *args)
{
    const weft_gemm_args product = weft_gemm_without_epilogue(args);
    WEFT_TRY(multiply(&product));
    if (args->epilogue == WEFT_GEMM_GELU) {
        const weft_activation_forward_args gelu = weft_gemm_gelu(args);
        return weft_cpu_activation_forward(&gelu);
    }
    if (args->epilogue == WEFT_GEMM_GELU_BACKWARD) {
        const weft_activation_backward_args backward = weft_gemm_gelu_backward(args);
        return weft_cpu_activation_backward(&backward);
    }
    return WEFT_OK;
}

weft_status weft_cpu_grouped_gemm(const weft_grouped_gemm_args *args)
{
    for (size_t g = 0; g < args->num_groups; g++) {
        const weft_gemm_args gemm = weft_grouped_gemm_group(args, g);
        if (weft_grouped_gemm_has_work(&gemm))
            WEFT_TRY(multiply(&gemm));
    }
    return WEFT_OK;
}
