/* Which instruction set the vector kernels use. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/cpu.h"

static const char *const isa_names[] = {
#define ISA_NAME(name) #name,
    WEFT_CPU_ISA_LIST(ISA_NAME)
#undef ISA_NAME
};

enum { NUM_ISAS = sizeof isa_names / sizeof isa_names[0] };

static weft_cpu_isa supported_isa(void)
{
#if defined(__x86_64__)
    /* __builtin_cpu_supports also asks XGETBV whether the system saves the registers. */
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        return WEFT_CPU_ISA_baseline;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        return WEFT_CPU_ISA_avx512;
    return WEFT_CPU_ISA_avx2;
#else
    return WEFT_CPU_ISA_baseline;
#endif
}

/* The chosen instruction set; fixed at the first call. Any thread. */
static weft_cpu_isa isa_get(void)
{
    static _Atomic int chosen = -1; /* racing first calls find the same answer */
    int isa = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (isa >= 0)
        return (weft_cpu_isa)isa;
    isa = (int)supported_isa();
    const char *wish = getenv("WEFT_CPU_ISA");
    for (int i = 0; wish && i < isa; i++)
        if (!strcmp(wish, isa_names[i]))
            isa = i;
    atomic_store_explicit(&chosen, isa, memory_order_relaxed);
    return (weft_cpu_isa)isa;
}

const char *weft_kernels_cpu_isa(void)
{
    return isa_names[isa_get()];
}

#if defined(__x86_64__)
#define DISPATCH(kernel)                                                                           \
    weft_status weft_cpu_##kernel(const weft_##kernel##_args *args)                                \
    {                                                                                              \
        static weft_status (*const variants[NUM_ISAS])(const weft_##kernel##_args *) = {           \
            weft_cpu_##kernel##_baseline,                                                          \
            weft_cpu_##kernel##_avx2,                                                              \
            weft_cpu_##kernel##_avx512,                                                            \
        };                                                                                         \
        return variants[isa_get()](args);                                                          \
    }
#else
#define DISPATCH(kernel)                                                                           \
    weft_status weft_cpu_##kernel(const weft_##kernel##_args *args)                                \
    {                                                                                              \
        return weft_cpu_##kernel##_baseline(args);                                                 \
    }
#endif
WEFT_VECTOR_KERNEL_LIST(DISPATCH)
#undef DISPATCH
