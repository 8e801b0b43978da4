/* What a core can do at most, by its own clock and instructions. */
#include <math.h>

#include <oneapi/dnnl/dnnl.h>

#include "core/clock.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gemm.h"

enum {
    TRIES = 100,
    ROUNDS =
        4000, /* ten to thirty microseconds: most tries run undisturbed on a busy machine too */
};

/* bf16 over fp32; 0: not known. Dot products of pairs do twice the work of a multiply-add. */
static double speed_of(weft_dtype dtype)
{
    weft_gemm_bf16_form form;
    if (dtype == WEFT_F32)
        return 1;
    if (dtype != WEFT_BF16 || weft_gemm_bf16_form_get(&form) != WEFT_OK)
        return 0;
    if (form == WEFT_GEMM_WIDEN)
        return 1;
    return dnnl_get_effective_cpu_isa() == dnnl_cpu_isa_avx512_core_bf16 ? 2 : 0;
}

double weft_kernels_cpu_core_flops(weft_dtype dtype)
{
    float x[WEFT_MULTIPLY_ADD_CHAINS];
    double best = 0, flops;
    weft_multiply_add_args args = {.rounds = ROUNDS, .a = 0.5f, .b = 0.5f, .x = x, .flops = &flops};
    for (int i = 0; i < TRIES; i++) {
        double start = weft_now_us();
        if (weft_cpu_multiply_add(&args) != WEFT_OK)
            return 0;
        best = fmax(best, flops / ((weft_now_us() - start) * 1e-6));
    }
    return best * speed_of(dtype);
}
