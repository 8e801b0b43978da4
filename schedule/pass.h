/* Programs of a pass: a chunk's layers, forward or backward, on the compute lane. Pure.
 *
 *   0 layer compute activation layer=3 x=0 stash=1 y=2
 *   0 layer compute gradient layer=4 stash=1 dy=3 dx=5
 *
 * Slots, by kind:
 *   activation, output          what the chunk receives and passes on, where it has the neighbour
 *   gradient, input_gradient    the same of a backward
 *   layer_stash                 one a layer
 *   layer                       forward: an output between two layers, whose bytes are the stash's
 *   layer_gradient              backward: two, which the gradients between layers use in turn. The
 *                               model's first layer writes its gradient, which nobody reads, too */
#ifndef WEFT_SCHEDULE_PASS_H
#define WEFT_SCHEDULE_PASS_H

#include "schedule/program.h"

typedef struct weft_pass_layer {
    uint64_t stash_bytes;
    bool in_place;   /* its dx may be where its dy is */
    bool host_waits; /* its forward's program has a task inside which the host waits */
} weft_pass_layer;

typedef struct weft_chunk_shape {
    const weft_pass_layer *layers; /* of the chunk */
    int first, num_layers;         /* layers[0] is number `first` of the model's list */
    bool receives, passes_on;      /* there is a stage before; behind */
    uint64_t row_bytes;            /* of hidden states */
} weft_chunk_shape;

/* Errors: WEFT_MEMORY; WEFT_CONFIG where a program has no room for so many layers. */
weft_status weft_program_pass(const weft_chunk_shape *shape, bool backward, weft_arena *arena,
                              weft_program *out) WEFT_CHECKED;
/* Proves that a program is a pass of that shape: every layer runs once and reads what its neighbour
 * wrote. The backward's stashes are there before it starts. */
weft_status weft_program_pass_check(const weft_chunk_shape *shape, bool backward,
                                    const weft_program *program) WEFT_CHECKED;

#endif
