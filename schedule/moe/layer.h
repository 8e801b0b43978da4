/* The MoE layer as programs: micro-batch pipelining with memory reuse (MPMoE §III, MPipeMoE §III).
 *
 * A layer's tokens are cut into n partitions. Forward begins with COUNTS: the ranks exchange how
 * many rows go to which expert, and the host waits for these numbers, from which all sizes follow.
 * Then each partition's rows are gathered in sending order (permute), dispatched to the experts
 * (S), computed (C) and combined back (R). Backward has forward's sizes: it restores the tensors
 * that forward did not keep, then dispatches, computes and combines the gradients. S and R of
 * different partitions alternate on one lane. n = 1 is the synchronous layer.
 *
 * Tensors are rings of slots, partition p in slot p % length of its kind: T_DI (dispatched rows),
 * T_M (first linear layer's output), T_DO (experts' output), in backward their gradients; home
 * rows, to be sent, have a ring too. Without reuse a ring is as long as n and T_DI and T_M stay
 * from forward to backward; with reuse the rings are T_DI 2, T_M 1, T_DO 2, home rows 2 (1 each for
 * n = 1), and the same for the gradients (MPMoE §III-C), and the strategy says how T_DI and T_M
 * come back for backward:
 *
 *   strategy   T_DI              T_M
 *   none       kept              kept
 *   S1         offload           offload
 *   S2         communicated      offload
 *   S3         offload           recomputed
 *   S4         communicated      recomputed
 *
 * Partitions are cut by tokens, or by the peers that compute them (FasterMoE §4.2). By peers,
 * consecutive EP ranks form groups; a rank sends partition p to the group p groups ahead of its own
 * and receives from the group p behind. Its own group comes first: with groups of one rank, it
 * computes rows that do not travel while the first rows travel. Dispatch and combine have p as
 * their peer. All ranks run the same program, and reuse no memory.
 *
 * Partitions by experts are runs of positions (schedule/experts/experts.h), the same on every rank:
 * a partition has all rows of its experts. So an expert's weights come up once a direction, and its
 * gradient is one product, as with n = 1. Backward runs partitions in falling order, like
 * positions, so that weights still on the device need no second upload.
 *
 * A task's part is a partition. Results on the tokens' own rank, their gradients and host copies
 * have a slot a partition. A gradient's slot holds the gradient to send when backward starts, and
 * the gradient that came back when it ends. Slots of both programs come first in both tables.
 * Operands: schedule/values.h. Pure. */
#ifndef WEFT_SCHEDULE_MOE_LAYER_H
#define WEFT_SCHEDULE_MOE_LAYER_H

#include "core/cluster/cluster.h"
#include "core/trace/trace.h"
#include "schedule/program.h"

#define WEFT_REUSE_LIST(X) X(NONE, "none") X(S1, "s1") X(S2, "s2") X(S3, "s3") X(S4, "s4")
typedef enum weft_reuse {
#define WEFT_REUSE_ENUM(name, text) WEFT_REUSE_##name,
    WEFT_REUSE_LIST(WEFT_REUSE_ENUM)
#undef WEFT_REUSE_ENUM
        WEFT_NUM_REUSES
} weft_reuse;
const char *weft_reuse_text(int reuse);
bool weft_reuse_offloads_input(weft_reuse reuse);  /* T_DI: S1, S3 */
bool weft_reuse_offloads_middle(weft_reuse reuse); /* T_M: S1, S2 */

enum { WEFT_MOE_MAX_PARTITIONS = 64 };

typedef struct weft_moe_pipeline {
    int num_partitions; /* n: 1 to WEFT_MOE_MAX_PARTITIONS */
    weft_reuse reuse;
    int peer_group; /* ranks that are one partition; 0: cut by tokens, or experts */
    int by_experts; /* 0 or 1 */
    int beside;     /* 1: counts and permute on the lane expert, beside another micro-batch's
                       computation; else 0 */
} weft_moe_pipeline;
/* By peers: ep / group partitions, of groups that divide ep. */
weft_moe_pipeline weft_moe_by_peers(int ep, int group);
/* By experts: the positions [first, end) of partition `part`. Sizes of partitions differ by one at
 * most. n: at most num_positions. */
void weft_moe_run_of(int num_positions, int n, int part, int *first, int *end);
/* Such as "4 partitions, reuse s1" or "partitions by peers, 2 each". */
typedef struct weft_moe_pipeline_words {
    char text[80];
} weft_moe_pipeline_words;
weft_moe_pipeline_words weft_moe_pipeline_text(const weft_moe_pipeline *pipeline);

/* WEFT_CONFIG for n or strategy out of range, reuse by peers, or peers and experts; WEFT_MEMORY. */
weft_status weft_program_moe(const weft_moe_pipeline *pipeline, bool backward, weft_arena *arena,
                             weft_program *out) WEFT_CHECKED;

/* Proves of a forward and a backward program (backward NULL: forward alone): the counts come before
 * any task that needs a size; every partition is sent, computed and combined once, in order; every
 * task reads the value meant for it; no slot is overwritten while a task that reads it may not have
 * run; T_DI and T_M are kept or restored before backward reads them; an offload ends before another
 * task fills its slot; each partition by peers goes to its own peers. WEFT_INTERNAL with the task's
 * index and text. */
weft_status weft_program_moe_check(const weft_moe_pipeline *pipeline, const weft_program *forward,
                                   const weft_program *backward) WEFT_CHECKED;

/* Microseconds of one rank's tasks for one partition. The counts cost a small message: an exchange
 * of 8 bytes with each rank. */
typedef struct weft_moe_costs {
    double permute_us, dispatch_us, combine_us; /* dispatch and combine cost the same both ways */
    double expert_us, expert_backward_us, recompute_us;
    double input_to_host_us, middle_to_host_us, input_to_device_us, middle_to_device_us;
    double counts_us; /* once, for all partitions */
    /* By peers: dispatch and combine, by how many groups ahead the partition goes; dispatch_us and
     * combine_us are then 0. */
    double by_peer_us[WEFT_MOE_MAX_PARTITIONS];
    /* By experts: a partition's rows over an n-th of all, a factor of the times above; 0: 1. */
    double shares[WEFT_MOE_MAX_PARTITIONS];
} weft_moe_costs;

/* A layer on one rank, balanced routing. */
typedef struct weft_moe_layer_shape {
    double rows;          /* B * K: rows that a rank sends and receives in all partitions */
    double hidden, ffn;   /* M; H of this rank's shard of an expert */
    int gates;            /* 2 for SwiGLU, else 1: T_M is [rows, gates * ffn] */
    double element_bytes; /* 4 or 2; GEMM's cost kind follows */
    int ep;               /* (ep - 1) / ep of the rows leave the rank */
    int ep_inside; /* EP ranks on the rank's own node, itself included, whose rows stay off the
                      links between nodes. 0: 1 */
    double exchange_factor; /* a factor of the all-to-all's time: below 1 for a sharded form */
    double pace_flops;      /* FLOP/s of an emulated accelerator; 0: the cluster's GEMM curve */
    int cut_experts;        /* a rank's experts where partitions are cut by experts; else 0 */
} weft_moe_layer_shape;
/* Microseconds of an all-to-all of `bytes` of rows: the slower of the two exchanges, between nodes
 * and inside, that run at once; times exchange_factor. */
double weft_moe_exchange_us(const weft_cluster *cluster, const weft_moe_layer_shape *shape,
                            double bytes);
/* Where a partition by peers sends its rows: the shares of a node's rows that go to other ranks of
 * that node and to other nodes, each the largest of any node. EP's ranks lie on nodes in blocks of
 * `near` (0: 1). O(ep * group). */
typedef struct weft_moe_peer_shares {
    double inside, between;
} weft_moe_peer_shares;
weft_moe_peer_shares weft_moe_peer_shares_of(int ep, int near, int group, int ahead);
/* By experts, where all of a rank's experts have equal rows: fills the shares of weft_moe_costs. */
void weft_moe_even_shares(const weft_moe_pipeline *pipeline, int num_experts,
                          double out[WEFT_MOE_MAX_PARTITIONS]);
/* The cluster's interference; an emulated accelerator neither slows others nor is slowed. */
weft_interference weft_moe_interference(const weft_cluster *cluster,
                                        const weft_moe_layer_shape *shape);
/* Costs of a partition of 1/n of the rows, from the cluster's curves. A rank's rows for its own
 * experts cost no exchange; partitions by peers ignore exchange_factor. */
weft_moe_costs weft_moe_costs_of(const weft_cluster *cluster, const weft_moe_layer_shape *shape,
                                 const weft_moe_pipeline *pipeline);

double weft_moe_task_us(const weft_moe_costs *costs, const weft_task *task);
/* Time of the program by simulation with interference (schedule/price/price.h). `trace` may be
 * NULL. */
weft_status weft_program_moe_price(const weft_program *program, const weft_moe_costs *costs,
                                   const weft_interference *interference, weft_trace *trace,
                                   double *out_us) WEFT_CHECKED;

#endif
