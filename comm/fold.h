/* Element-wise reduction of several inputs into one output, in the order of the inputs, so that a
 * reduction in rank order has the same bits on every rank and in every run. */
#ifndef WEFT_COMM_FOLD_H
#define WEFT_COMM_FOLD_H

#include "comm/comm.h"

/* True for the types that weft_fold knows: fp32, bf16, fp64, int32, int64. */
bool weft_fold_supports(weft_dtype dtype);
/* out[i] = inputs[0][i] op inputs[1][i] op ... for `count` elements. bf16 is accumulated in fp32
 * and rounded once, to nearest even. Maximum and minimum pass a NaN on; integer sums wrap. `out`
 * may be one of the inputs. */
void weft_fold(weft_dtype dtype, weft_reduce reduce, const void *const *inputs, int num_inputs,
               void *out, size_t count);

#endif
