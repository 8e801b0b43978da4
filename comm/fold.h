/* Element-wise reduction of several inputs into one output, in the order of the inputs. With the
 * inputs in rank order, the bits are the same on every rank and in every run. */
#ifndef WEFT_COMM_FOLD_H
#define WEFT_COMM_FOLD_H

#include "comm/comm.h"

/* True for the types that weft_fold knows: fp32, bf16, fp16, fp64, int32, int64. */
bool weft_fold_supports(weft_dtype dtype);
/* out[i] = inputs[0][i] op inputs[1][i] op ... for `count` elements. Sums bf16 and fp16 in fp32 and
 * rounds once, to nearest even. Maximum and minimum pass a NaN on; integer sums wrap. `out` may be
 * one of the inputs. */
void weft_fold(weft_dtype dtype, weft_reduce reduce, const void *const *inputs, int num_inputs,
               void *out, size_t count);

/* The loops of weft_fold, compiled for several instruction sets. */
typedef void (*weft_fold_loops)(weft_dtype dtype, weft_reduce reduce, const void *const *inputs,
                                int num_inputs, void *out, size_t count);
void weft_fold_baseline(weft_dtype dtype, weft_reduce reduce, const void *const *inputs,
                        int num_inputs, void *out, size_t count);
void weft_fold_avx2(weft_dtype dtype, weft_reduce reduce, const void *const *inputs, int num_inputs,
                    void *out, size_t count);
void weft_fold_avx512(weft_dtype dtype, weft_reduce reduce, const void *const *inputs,
                      int num_inputs, void *out, size_t count);
/* Variant `index` of those that this CPU can run, the best last; NULL beyond it. */
weft_fold_loops weft_fold_variant(int index);

#endif
