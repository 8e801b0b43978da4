/* Sizes of attention over context-parallel ranks, for its executor and its description. Pure.
 * Private to layers/. */
#ifndef WEFT_LAYERS_CONTEXT_MEMORY_H
#define WEFT_LAYERS_CONTEXT_MEMORY_H

#include "layers/context.h"
#include "layers/describe.h"

weft_context_shape weft_context_shape_of(const weft_shape *shape, const weft_dims *dims);
/* Whether context-parallel ranks deal heads among themselves. */
bool weft_context_deals(const weft_shape *shape);

/* In elements. "Here": of the rows and heads that a rank attends, rows of `inner` neighbours and 1
 * / inner of its heads. */
typedef struct weft_context_sizes {
    size_t width_qkv, width_out; /* of the layer's rows, all heads */
    size_t rows, heads, groups;  /* here */
    size_t in_group, head_dim;   /* query heads of a group */
    size_t result, keys;         /* a row's result, and its keys and values, here */
    size_t block_keys,
        all_keys; /* of a block; of what one task attends: all ranks' of all_gather */
} weft_context_sizes;
weft_context_sizes weft_context_sizes_of(const weft_context_shape *shape);

/* Bytes of a slot of that kind in the scratch, rounded up as scratch is; 0 for one that lies in a
 * tensor of the layer. */
size_t weft_context_slot_bytes(const weft_context_shape *shape, weft_slot_kind holds,
                               bool backward);
/* The most that one operation sends and receives. */
size_t weft_context_message_bytes(const weft_context_shape *shape);

#endif
