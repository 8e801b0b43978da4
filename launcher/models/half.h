/* Numbers of two bytes, on the host. */
#ifndef WEFT_LAUNCHER_MODELS_HALF_H
#define WEFT_LAUNCHER_MODELS_HALF_H

#include <stddef.h>

#include <weft/tensor.h>

/* from: `count` elements of fp32, bf16 or fp16; exact. */
void weft_half_widen(const void *from, weft_dtype dtype, size_t count, float *to);
/* Rounds to nearest, ties to even. A NaN stays one; what is too large for fp16 is infinite. `from`
 * and `to` do not overlap. */
void weft_half_round(const float *from, size_t count, weft_dtype dtype, void *to);

#endif
