/* What scaled rotary positions multiply a pair's frequency by, on the host and in a CUDA kernel. */
#ifndef WEFT_KERNELS_ROPE_H
#define WEFT_KERNELS_ROPE_H

#include <weft/kernels.h>

#if defined __CUDACC__ || defined WEFT_CUDA_EMULATED
#define WEFT_ON_BOTH __host__ __device__
#else
#define WEFT_ON_BOTH
#endif

/* `frequency`: the pair's angle a position, unscaled. */
WEFT_ON_BOTH static inline double weft_rope_scale(const weft_rope_scaling *s, double pair,
                                                  double frequency)
{
    double at = pair, share;
    if (s->factor == 0)
        return 1;
    if (s->by_turns)
        at = s->length * frequency * 0.15915494309189533577; /* 1 / (2 pi) */
    share = (at - s->begin) / (s->end - s->begin);
    share = share < 0 ? 0 : share > 1 ? 1 : share;
    return 1 - share + share / s->factor;
}

#endif
