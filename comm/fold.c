/* Chooses the variant of the loops (vector_fold.c) that this CPU runs. */
#include "comm/fold.h"

#include <stdatomic.h>

bool weft_fold_supports(weft_dtype dtype)
{
    return dtype != WEFT_U8;
}

static weft_fold_loops find_best(void)
{
    int last = 0;
    while (weft_fold_variant(last + 1))
        last++;
    return weft_fold_variant(last);
}

weft_fold_loops weft_fold_variant(int index)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2");
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    if (index == 2 && avx512)
        return weft_fold_avx512;
    if (index == 1 && avx2)
        return weft_fold_avx2;
#endif
    return index == 0 ? weft_fold_baseline : NULL;
}

void weft_fold(weft_dtype dtype, weft_reduce reduce, const void *const *inputs, int num_inputs,
               void *out, size_t count)
{
    static _Atomic(weft_fold_loops) best; /* racing first calls find the same */
    weft_fold_loops loops = atomic_load_explicit(&best, memory_order_relaxed);
    if (!loops) {
        loops = find_best();
        atomic_store_explicit(&best, loops, memory_order_relaxed);
    }
    loops(dtype, reduce, inputs, num_inputs, out, count);
}
