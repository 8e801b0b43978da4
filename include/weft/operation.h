/* Operations: what a layer does with one micro-batch, as a list that can be summed, priced and held
 * against what a pass really did. Pure data. */
#ifndef WEFT_OPERATION_H
#define WEFT_OPERATION_H

#include <stdint.h>

#include "mesh.h"
#include "tensor.h"

/* When: backward is input gradient and weight gradient. RECOMPUTE: again before backward, where the
 * layer makes something anew. name, text */
#define WEFT_PHASE_LIST(X)                                                                         \
    X(FORWARD, "forward")                                                                          \
    X(INPUT_GRADIENT, "input gradient")                                                            \
    X(WEIGHT_GRADIENT, "weight gradient")                                                          \
    X(RECOMPUTE, "recompute")
typedef enum weft_phase {
#define WEFT_PHASE_ENUM(name, text) WEFT_PHASE_##name,
    WEFT_PHASE_LIST(WEFT_PHASE_ENUM)
#undef WEFT_PHASE_ENUM
        WEFT_NUM_PHASES
} weft_phase;

typedef enum weft_operation_kind {
    WEFT_OPERATION_GEMM,
    WEFT_OPERATION_MEMORY,     /* bound by memory: norms, activations, sums, copies */
    WEFT_OPERATION_COLLECTIVE, /* over the ranks of an axis */
    WEFT_NUM_OPERATION_KINDS
} weft_operation_kind;

typedef enum weft_collective {
    WEFT_COLLECTIVE_ALL_REDUCE,
    WEFT_COLLECTIVE_ALL_GATHER,
    WEFT_COLLECTIVE_REDUCE_SCATTER,
    WEFT_COLLECTIVE_ALL_TO_ALL,
    WEFT_COLLECTIVE_MESSAGE, /* to one other rank */
    WEFT_NUM_COLLECTIVES
} weft_collective;

/* Of one rank. May grow at its end. */
typedef struct weft_operation {
    weft_operation_kind kind;
    weft_phase phase;
    const char *module; /* "qkv", "core_attn", "router", ...: static */
    weft_dtype dtype;
    uint64_t m, n, k, count; /* GEMM: count products [m, k] x [k, n] */
    uint64_t flops;          /* executed: 2mnk times count, half of it where causal attention skips
                                what it masks */
    uint64_t bytes;   /* MEMORY: read and written. COLLECTIVE: of the buffer that is passed to
                         the group (of a gather, what all ranks give) */
    uint64_t kernels; /* MEMORY: launches */
    weft_axis axis;   /* COLLECTIVE */
    weft_collective collective;
} weft_operation;

#endif
