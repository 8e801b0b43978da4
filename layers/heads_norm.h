/* Norms of queries and keys, between attention's QKV and the rotary positions.
 *
 * A head's norm sees that head alone, so tensor parallelism changes nothing but that each rank has
 * a part of the one weight's gradient. A norm across heads sums squares over the ranks. Where ranks
 * share a group's key, all of them add it to that sum, and each has a part of its gradient: `whole`
 * counts the key as often. Private to layers/. */
#ifndef WEFT_LAYERS_HEADS_NORM_H
#define WEFT_LAYERS_HEADS_NORM_H

#include "layers/layers.h"

/* Of the queries, or of the keys. */
typedef struct weft_heads_norm {
    weft_parameter *weight, *bias; /* [head_dim]; across heads [local heads * head_dim], no bias */
    const char *name;              /* static: "q_layernorm" */
    weft_heads_shape shape;
    size_t first; /* of a row of qkv: where the first head begins */
    size_t whole; /* across heads: the numbers of a token that all ranks' sums count */
} weft_heads_norm;

typedef struct weft_heads_norms {
    weft_norm_kind kind;
    float epsilon, weight_offset;
    weft_heads_norm of[2]; /* queries, keys; weight NULL: there are none */
} weft_heads_norms;

/* What backward needs beside qkv. */
typedef struct weft_heads_squares {
    float *of[2]; /* [S * B]; across heads alone */
} weft_heads_squares;

/* Declares q_layernorm and k_layernorm where the options ask. */
weft_status weft_heads_norms_init(weft_build *build, const weft_model_options *options,
                                  const weft_dims *dims, weft_heads_norms *out) WEFT_CHECKED;
/* Across heads: makes and stashes the sums. Collective over TP. */
weft_status weft_heads_norms_sum(const weft_heads_norms *norms, weft_pass *pass,
                                 const weft_tensor *qkv, weft_heads_squares *out) WEFT_CHECKED;
/* ready [S * B, qkv]: q and k of qkv normed, and its v. */
weft_status weft_heads_norms_run(const weft_heads_norms *norms, weft_pass *pass,
                                 const weft_tensor *qkv, const weft_heads_squares *sums,
                                 const weft_tensor *ready) WEFT_CHECKED;
/* Turns the gradients of the normed q and k in dqkv into those of qkv. Across heads: collective
 * over TP. */
weft_status weft_heads_norms_backward(const weft_heads_norms *norms, weft_pass *pass,
                                      const weft_tensor *qkv, const weft_heads_squares *sums,
                                      const weft_tensor *dqkv) WEFT_CHECKED;

#endif
