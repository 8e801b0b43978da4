/* Operations: what a layer does with one micro-batch, as a list that Weft sums, prices and compares
 * with what a pass did. Pure data. The functions in describe.h make the list. */
#ifndef WEFT_OPERATION_H
#define WEFT_OPERATION_H

#include <stdbool.h>
#include <stdint.h>

#include "mesh.h"
#include "tensor.h"

/* When an operation runs: name, text. FORWARD is all that forward does, gradients that a head makes
 * there too. The other three are backward's; RECOMPUTE: what it computes again. */
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

/* The module of attention's own products: one kernel in forward and one in backward. */
#define WEFT_MODULE_ATTENTION "core_attention"

typedef enum weft_operation_kind {
    WEFT_OPERATION_GEMM,
    WEFT_OPERATION_MEMORY,     /* bound by memory: norms, activations, sums, choices of rows */
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

/* A program inside a layer: what its tasks enqueue says so. */
typedef enum weft_inner {
    WEFT_INNER_NONE,
    WEFT_INNER_EXPERTS,   /* an MoE layer's, from the counts to the answers at home */
    WEFT_INNER_ATTENTION, /* attention's over context-parallel ranks */
    WEFT_INNER_TENSOR,    /* a tensor-parallel product's, in chunks; each has the module of what
                             travels */
    WEFT_NUM_INNERS
} weft_inner;

/* Of one rank; in MoE layers at the load that weft_shape's moe_load says. May grow at its end. */
typedef struct weft_operation {
    weft_operation_kind kind;
    weft_phase phase;
    const char *module; /* "linear_qkv", "core_attention", ...: static */
    weft_dtype dtype;   /* GEMM: of the operands; MEMORY: of activations */
    uint64_t m, n, k;   /* GEMM: [m, k] times [k, n] */
    uint64_t groups;    /* GEMM: 0, or the matrices of one launch that share the m rows (of weight
                           gradients: the k rows) */
    uint64_t count;     /* products, kernels, collectives */
    uint64_t flops;     /* GEMM: that are executed, of all: 2mnk each, half of it where causal
                           attention skips what it masks */
    uint64_t bytes;     /* of all. MEMORY: of matrices with a row a token, each as often as it is
                           read and written; vectors do not count. COLLECTIVE: of the buffer that is
                           passed to the group (of a gather and a scatter, what all ranks give) */
    weft_axis axis;     /* COLLECTIVE */
    weft_collective collective;
    bool repeated; /* RECOMPUTE: one of forward, once more */
    bool beside;   /* COLLECTIVE: under way beside the GEMM before it in the list: what it takes
                      longer than that counts */
    bool fused;    /* GEMM: all of a kind make one kernel, as attention's do */
    weft_inner inner;
    int task, flow; /* of `inner`, the task that enqueues it: its kind and what it moves
                       (schedule/kinds.h, schedule/flows.h) */
    bool deferred;  /* of a backward in two halves, the second one enqueues it */
} weft_operation;

/* A piece of memory that a layer stashes. May grow at its end. */
typedef struct weft_kept {
    const char *module; /* static */
    uint64_t bytes;
    weft_phase until; /* INPUT_GRADIENT or WEIGHT_GRADIENT needs it last */
    bool offloaded;   /* on the host between forward and backward */
} weft_kept;

/* Over which ranks a parameter's gradient is summed. */
typedef enum weft_gradient_group {
    WEFT_GRADIENT_DENSE,        /* dp x cp */
    WEFT_GRADIENT_DENSE_SUM,    /* and over tp first: spec.sum_over_tp */
    WEFT_GRADIENT_DENSE_SHARED, /* and over the tp ranks that share key/value heads first */
    WEFT_GRADIENT_EMBEDDING,    /* and over the stages that hold a copy: a tied embedding, pp > 1 */
    WEFT_GRADIENT_EXPERT,       /* edp */
    WEFT_NUM_GRADIENT_GROUPS
} weft_gradient_group;

/* What Newton-Schulz steps of a parameter's matrices take on this rank (train.optimizer muon); of
 * one expert where it lies by expert. */
typedef struct weft_matrices {
    uint64_t count;
    double flops;             /* of one step of all */
    uint64_t gathered_bytes;  /* of all, from the ranks that they are split over */
    uint64_t workspace_bytes; /* of the largest */
} weft_matrices;

/* A parameter. May grow at its end. */
typedef struct weft_held {
    weft_gradient_group group;
    uint64_t global, local; /* elements; global 0: a copy */
    bool shared;            /* another layer of the stage uses it too */
    bool used_forward;      /* of its spec */
    uint64_t experts;       /* spec.by_expert: local ones; 0: not so */
    weft_matrices matrices; /* none where spec.is_matrix is false */
} weft_held;

#endif
