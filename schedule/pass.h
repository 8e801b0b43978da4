/* Programs of a pass: a chunk's layers, forward or backward (whole, or in two halves), on the
 * compute lane, with the gathers and reductions of sharded layers (parallel/residency/residency.h).
 * Pure.
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
 *                               model's first layer writes its gradient, which nobody reads, too
 *   weights, weight_gradients   rings, of which layers use the slots in turn. They outlive the
 *                               program: passes go round where the pass before stopped
 *   offloaded, offloaded_layer  rings on the device: what layers offload, and the inputs that go
 *                               with it. A layer has its slots by its number among those of the
 *                               chunk that offload, so what comes back is where it was
 *   host_stash                  on the host, one a layer
 *   deferred                    one a layer: what the second half of its backward needs
 *   recomputed                  stashes of the layers that are recomputed, which all passes share:
 *                               one for each layer of a group
 *   recomputed_layer            outputs inside such a group
 *
 * Recomputation: of a group of layers the forward keeps the first one's input. Before the group's
 * backward its forward runs again, from that input:
 *
 *   0 recompute compute activation layer=3 x=6 stash=8 y=10
 *   1 recompute compute activation layer=4 x=10 stash=9 y=4
 *   2 layer compute gradient layer=4 stash=9 dy=0 dx=4
 *
 * Nobody needs the last output again; it goes to a free gradient slot. With recomputes_early the
 * tasks that recompute the chunk's last group are a third program, not part of the backward: they
 * need no gradient, so a step runs them while the gradient travels.
 *
 * Sharding: gather fills a slot of the ring with a layer's weights as soon as the slot is free;
 * reduce sums the layer's gradients behind its backward and keeps this rank's share:
 *
 *   0 gather gather weight layer=3 weights=4
 *   2 layer compute gradient layer=3 stash=1 dy=3 dx=5 weights=4 weight_gradients=6 waits=0
 *   3 reduce reduce layer=3 weight_gradients=6 waits=2
 *
 * The model's last layer makes its gradients in the forward: its reduction stands there, and its
 * backward has no gather.
 *
 * Offloading: a layer's offloaded stash goes to the host while the next layer computes, and comes
 * back as soon as the ring's slot is free, layers ahead of the layer's backward:
 *
 *   1 layer compute activation layer=3 x=8 stash=2 y=9 offloaded=6
 *   2 offload offload stash layer=3 offloaded=6 x=8 to=11 waits=1
 *
 *   0 prefetch prefetch stash layer=3 from=11 offloaded=6 x=8
 *   2 layer compute gradient layer=3 stash=2 dy=3 dx=4 offloaded=6 x=8 waits=0
 *
 * A backward in two halves is two programs. In the first a layer that splits leaves its parameters'
 * gradients to the second, which has a task a layer, in falling order; that of another layer does
 * nothing. Reductions follow the tasks that make the gradients:
 *
 *   1 layer compute input layer=3 stash=1 dy=3 dx=5 weights=4 deferred=7 waits=0
 *
 *   0 layer compute weight layer=3 stash=1 deferred=7 weight_gradients=6
 *   1 reduce reduce layer=3 weight_gradients=6 waits=0
 *
 * Gathers have a communicator and a lane of their own: the first ones of a pass need not wait for
 * the last reductions of the pass before. */
#ifndef WEFT_SCHEDULE_PASS_H
#define WEFT_SCHEDULE_PASS_H

#include "schedule/program.h"

/* The most slots: one layer's part goes out while the next layer computes. */
enum { WEFT_PASS_OFFLOAD_SLOTS = 2 };

typedef struct weft_pass_layer {
    uint64_t stash_bytes;     /* bytes kept on the device, the output included */
    bool in_place;            /* its dx may be where its dy is */
    bool host_waits;          /* the host waits inside a task of its forward */
    bool gathers;             /* its weights are gathered */
    bool reduces;             /* its gradients are reduced behind its backward */
    bool is_loss;             /* the model's last: gathered and reduced in the forward alone */
    bool offloads;            /* part of its stash is on the host between forward and backward */
    bool offloads_input;      /* so is its input, another layer's output */
    uint64_t offloaded_bytes; /* the part's bytes, without the input */
    int group;                /* layers of one number are recomputed together; 0: not recomputed */
    bool splits;              /* its backward can be in two halves: no layer that is recomputed,
                                 offloads or is_loss */
    uint64_t deferred_bytes;  /* bytes of its `deferred` */
} weft_pass_layer;

typedef struct weft_chunk_shape {
    const weft_pass_layer *layers;    /* of the chunk */
    int first, num_layers;            /* layers[0] is number `first` of the model's list */
    bool receives, passes_on;         /* a stage is before; behind */
    uint64_t row_bytes;               /* bytes of one micro-batch's hidden states */
    int weight_slots, gradient_slots; /* lengths of the rings; 0: no layer gathers, or reduces */
    uint64_t weight_bytes, gradient_bytes; /* of a slot */
    /* Lengths of the rings; 0: no layer offloads, or no input is offloaded. Several inputs need two
     * slots: a layer reads one and writes the next. */
    int offload_slots, input_slots;
    uint64_t offload_bytes[WEFT_PASS_OFFLOAD_SLOTS]; /* of each slot */
    bool recomputes_early;                           /* the group that ends the chunk: see above */
} weft_chunk_shape;

/* Whether weights are gathered for layers[i]'s task of that flow; below: whether a reduction
 * follows it. */
bool weft_pass_gathers(const weft_chunk_shape *shape, int i, weft_flow flow);
bool weft_pass_reduces(const weft_chunk_shape *shape, int i, weft_flow flow);

typedef enum weft_pass_kind {
    WEFT_PASS_FORWARD,
    WEFT_PASS_BACKWARD,
    WEFT_PASS_RECOMPUTE, /* no tasks without recomputes_early */
    WEFT_NUM_WHOLE_PASS_KINDS,
    WEFT_PASS_INPUT = WEFT_NUM_WHOLE_PASS_KINDS, /* the first half of a backward */
    WEFT_PASS_WEIGHTS,                           /* the second */
    WEFT_NUM_PASS_KINDS
} weft_pass_kind;

const char *weft_pass_kind_text(weft_pass_kind kind); /* static */

/* Errors: WEFT_MEMORY; WEFT_CONFIG where a program has no room for so many layers. */
weft_status weft_program_pass(const weft_chunk_shape *shape, weft_pass_kind kind, weft_arena *arena,
                              weft_program *out) WEFT_CHECKED;
/* Proves that a program is a pass of that shape: every layer runs once and reads what its neighbour
 * wrote. A backward's stashes exist before it starts, except those of recomputed layers, which it
 * makes from kept inputs, and offloaded parts, which are on the host. */
weft_status weft_program_pass_check(const weft_chunk_shape *shape, weft_pass_kind kind,
                                    const weft_program *program) WEFT_CHECKED;

#endif
