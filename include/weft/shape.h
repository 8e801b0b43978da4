/* The shape that a layer describes, what the layer costs, and what it counts. */
#ifndef WEFT_SHAPE_H
#define WEFT_SHAPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Sums over a step's micro-batches on this rank. Cleared at the step's start. May grow at its end.
 */
typedef struct weft_metrics {
    double loss_sum;   /* of token losses; counted where the head runs on TP rank 0 */
    double aux_loss;   /* sum over micro-batches and MoE layers of what they add to the mean loss */
    double load_sum;   /* sum over micro-batches and MoE layers of max / mean tokens an expert */
    double load_count; /* number of terms in load_sum */
    double dropped;    /* token choices dropped by capacity */
} weft_metrics;

/* A layer's own number in each step's line of metrics.jsonl. SUM: what the layer added to `sum`
 * over the step's micro-batches. MEAN: that, divided by what it added to `count`. The trainer sums
 * over the ranks that are tp rank 0. A layer whose tp ranks each hold a part sums the parts over tp
 * first (weft_pass_all_reduce). */
typedef enum weft_metric_kind { WEFT_METRIC_SUM, WEFT_METRIC_MEAN } weft_metric_kind;

/* This rank's part of a metric. Host memory of the library, which clears it at a step's start;
 * functions on the pass's lane add to it. */
typedef struct weft_metric {
    double sum, count;
} weft_metric;

/* Everything that describe may depend on. May grow at its end. */
typedef struct weft_shape {
    size_t seq, batch, hidden; /* global sequence, micro-batch, hidden */
    size_t vocab;
    int tp, cp, ep, etp, pp;
    bool sequence_parallel;
    int binding;                   /* 0 tp, 1 dp */
    int moe_partitions, moe_reuse; /* of MoE layers whose tokens travel: n (0: 1) and strategy
                                      (0: none, else 1 to 4) */
    weft_dtype dtype;
    bool training;
    size_t logit_rows;    /* training: rows whose logits exist at a time; 0: 256 */
    double moe_load;      /* rows that reach this rank's experts, over those that balanced routing
                             brings; 0: 1 */
    int moe_by_experts;   /* 1: partitions of MoE layers are runs of each rank's experts */
    int moe_peer_group;   /* ranks that are one partition of an MoE layer cut by peers; 0: by tokens
                           */
    unsigned recompute;   /* modules that backward makes again: the library's bits */
    double moe_sent;      /* rows that leave this rank, as moe_load those that come; 0: 1 */
    double moe_part_load; /* rows of the largest partition at the experts over those of a balanced
                             one; 0: moe_load */
    double moe_part_sent; /* the same of the rows that leave; 0: moe_sent */
    int cp_comm_type;     /* of cp > 1, how attention sees the whole sequence: 0 p2p, 1 all_gather,
                             2 a2a, 3 a2a+p2p */
    int cp_inner;         /* of a2a+p2p: neighbours that deal heads among themselves */
    unsigned offload;     /* modules whose stash is on the host until backward: likewise */
    int plain_kernels;    /* of a plan: the library's layers are described with the kernels of
                             published runs, which it does not have: a year of theirs
                             (weft_plain_year); 0: its own */
    bool experts_on_host; /* they come up to compute, one by one (offload.experts) */
    bool experts_placed;  /* each micro-batch, on any rank of their node (offload.placement) */
    bool splits_backward; /* the gradient of a stage's input comes first, those of its parameters
                             later */
    size_t cached_tokens; /* without training: `seq` tokens come at a time, and attention caches
                             keys and values of so many; 0: sequences come whole */
    int attention_chunks, mlp_chunks;      /* of tp > 1: chunks of their products, beside which rows
                                              travel between the tensor-parallel ranks; 0: 1 */
    int moe_exchange, moe_exchange_chunks; /* the form in which rows of tensor-sharded experts
                                              travel, whose staging is scratch, and its chunks; 0:
                                              the plain one, 1 */
} weft_shape;
/* The software of published runs: until the summer of 2021, and since. */
typedef enum weft_plain_year {
    WEFT_PLAIN_NONE,
    WEFT_PLAIN_2021,
    WEFT_PLAIN_2022,
    WEFT_PLAIN_FUSED /* memory alone: attention keeps no scores */
} weft_plain_year;
/* What a rank has of a micro-batch. Context parallelism (cp) cuts the sequence: seq / cp tokens of
 * each sample are here, and tokens * batch rows, before sequence parallelism cuts these over tp. A
 * mean over the micro-batch's tokens is over seq * batch. Pure. */
size_t weft_shape_local_seq(const weft_shape *shape);
size_t weft_shape_local_tokens(const weft_shape *shape);

/* What a layer costs one rank in one micro-batch: the sums of what it lists (<weft/describe.h>), or
 * what it fills in itself. FLOPs are the model's: 2mnk a GEMM, the whole square of attention also
 * where it is causal, no recomputation. Communication volumes are bytes passed to the named group's
 * collectives (of a gather, what all ranks give); etp's count as ep's. MoE layers assume
 * shape->moe_load. Activations and scratch are sums of pieces, each rounded up to 64 bytes.
 * describe gets it zeroed. May grow at its end. */
typedef struct weft_layer_cost {
    uint64_t num_params;       /* global */
    uint64_t local_params;     /* held here */
    uint64_t param_bytes;      /* local weights, activation dtype */
    uint64_t activation_bytes; /* stashed from forward to backward; the output of a layer of the
                                  model's list is, too */
    uint64_t scratch_bytes;    /* peak scratch inside forward or backward */
    uint64_t forward_flops, backward_flops;
    uint64_t tp_forward_bytes, tp_backward_bytes;
    uint64_t ep_forward_bytes, ep_backward_bytes;
    uint64_t host_bytes;        /* pinned host memory of a pass (weft_pass_host) */
    struct weft_layer_scratch { /* the library's: in forward, in backward */
        uint64_t own[2], child[2];
    } scratch;
    uint64_t recomputed_bytes;     /* that backward makes again, of the largest module */
    struct weft_description *list; /* the library's: what weft_cost_... add up; NULL: sums alone */
    uint64_t table_bytes;          /* the library's: pinned as long as the layer lives */
    uint64_t cache_bytes;          /* the library's: of keys and values */
} weft_layer_cost;

#ifdef __cplusplus
}
#endif
#endif
