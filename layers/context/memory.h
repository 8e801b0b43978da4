/* Sizes of attention over context-parallel ranks, for its executor and its description. Pure. */
#ifndef WEFT_LAYERS_CONTEXT_MEMORY_H
#define WEFT_LAYERS_CONTEXT_MEMORY_H

#include "layers/context/context.h"

/* Sizes in elements. "Here" means the rows and heads that a rank attends: rows of `inner`
 * neighbours, 1 / inner of its heads. */
typedef struct weft_context_sizes {
    size_t width_qkv, width_out; /* of the layer's own rows, all heads */
    size_t rows, heads, groups;  /* here */
    size_t in_group, head_dim;   /* query heads of a group */
    size_t value_dim, pair;      /* a value; a key and a value */
    size_t queries;              /* a row's, of all heads here */
    size_t result, keys;         /* a row's result; its keys and values */
    size_t block_keys, all_keys; /* keys of a block; keys that one task attends, which are all
                                    ranks' for all_gather */
} weft_context_sizes;
weft_context_sizes weft_context_sizes_of(const weft_context_shape *shape);

/* Bytes of a slot of that kind in the scratch, rounded up like scratch; 0: the slot lies in a
 * tensor of the layer. */
size_t weft_context_slot_bytes(const weft_context_shape *shape, weft_slot_kind holds,
                               bool backward);
/* The most bytes that one operation sends or receives. */
size_t weft_context_message_bytes(const weft_context_shape *shape);

#endif
