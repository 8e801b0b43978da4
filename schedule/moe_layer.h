/* The MoE layer as programs: micro-batch pipelining with memory reuse (MPMoE §III, MPipeMoE §III).
 *
 * A layer's tokens are cut into n partitions. Forward begins with COUNTS: the ranks tell each other
 * how many rows go to which expert, and the host waits for that, because all sizes follow from it.
 * Then each partition's rows are gathered in sending order (permute), dispatched to the experts
 * (S), computed (C) and combined back (R). Backward has forward's sizes: it restores what forward
 * did not keep, then dispatches, computes and combines the gradients. S and R of different
 * partitions alternate on one lane. n = 1 is the synchronous layer.
 *
 * Tensors are rings of slots, partition p in slot p % length of its kind: T_DI (dispatched rows),
 * T_M (first linear layer's output), T_DO (experts' output), in backward their gradients; home rows
 * being sent have a ring too. Without reuse a ring is as long as n and T_DI and T_M stay from
 * forward to backward; with reuse the rings are T_DI 2, T_M 1, T_DO 2, home rows 2 (1 each for
 * n = 1), and the same for the gradients (MPMoE §III-C), and what backward needs comes back by the
 * strategy:
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
 * Or by experts: a rank's experts stand at positions (schedule/experts.h), and a partition is a run
 * of these, on every rank: it has all the rows of its experts. So an expert's weights come up once
 * a direction, and its gradient is one product, as with n = 1. Backward takes partitions falling,
 * because it takes positions so: what is still up from forward need not come again.
 *
 * A partition is a task's part. Results at home, their gradients and host copies have a slot a
 * partition. When backward starts, each gradient's slot holds the gradient to send; when it ends,
 * the gradient that came back. Slots of both programs come first in both tables. Operands:
 * schedule/values.h. Pure. */
#ifndef WEFT_SCHEDULE_MOE_LAYER_H
#define WEFT_SCHEDULE_MOE_LAYER_H

#include "core/cluster.h"
#include "core/trace.h"
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
} weft_moe_pipeline;
/* By peers: ep / group partitions, of groups that divide ep. */
weft_moe_pipeline weft_moe_by_peers(int ep, int group);
/* By experts: the positions [first, end) of partition `part` of n, which are as many as n - 1
 * others have or one more. n: at most num_positions. */
void weft_moe_run_of(int num_positions, int n, int part, int *first, int *end);
/* Such as "4 partitions, reuse s1" or "partitions by peers, 2 each". */
typedef struct weft_moe_pipeline_words {
    char text[80];
} weft_moe_pipeline_words;
weft_moe_pipeline_words weft_moe_pipeline_text(const weft_moe_pipeline *pipeline);

/* WEFT_CONFIG for n or strategy out of range, reuse by peers, or two ways of cutting; WEFT_MEMORY.
 */
weft_status weft_program_moe(const weft_moe_pipeline *pipeline, bool backward, weft_arena *arena,
                             weft_program *out) WEFT_CHECKED;

/* Proves of a forward and a backward program (backward NULL: forward alone): the counts are there
 * before anything that needs a size; every partition is sent, computed and combined once, in order;
 * every task reads the value meant for it; no slot is overwritten while a task that reads it may
 * not have run; what backward reads of T_DI and T_M is kept or restored; offloads happen before the
 * slot is taken again; each partition by peers goes to its own. WEFT_INTERNAL with the task's index
 * and text. */
weft_status weft_program_moe_check(const weft_moe_pipeline *pipeline, const weft_program *forward,
                                   const weft_program *backward) WEFT_CHECKED;

/* What each task of one rank costs, in microseconds, for one partition. The counts cost what a
 * small message costs: the exchange of 8 bytes with each rank. */
typedef struct weft_moe_costs {
    double permute_us, dispatch_us, combine_us; /* dispatch and combine cost the same both ways */
    double expert_us, expert_backward_us, recompute_us;
    double input_to_host_us, middle_to_host_us, input_to_device_us, middle_to_device_us;
    double counts_us; /* once, for all partitions */
    /* By peers: what dispatch and combine take, by how many groups ahead the partition goes; what
     * they take above is then 0. */
    double by_peer_us[WEFT_MOE_MAX_PARTITIONS];
    /* By experts: a partition's rows over an n-th of all, by which it takes what is above; 0: 1. */
    double shares[WEFT_MOE_MAX_PARTITIONS];
} weft_moe_costs;

/* A layer on one rank, balanced routing. */
typedef struct weft_moe_layer_shape {
    double rows;            /* B * K: rows a rank sends, and gets, in all partitions together */
    double hidden, ffn;     /* M; H of this rank's shard of an expert */
    int gates;              /* 2 for SwiGLU, else 1: T_M is [rows, gates * ffn] */
    double element_bytes;   /* 4 or 2; GEMM's cost kind follows */
    int ep;                 /* of the rows, (ep - 1) / ep leave the rank */
    int ep_inside;          /* ranks of EP on the rank's own node, itself among them: what goes to
                               them does not take the links between nodes. 0: 1 */
    double exchange_factor; /* times an all-to-all's time: below 1 where a sharded form is used */
    double pace_flops;      /* FLOP/s of an emulated accelerator; 0: the cluster's GEMM curve */
    int cut_experts; /* a rank's, if partitions are runs of them; 0: cut by tokens, or peers */
} weft_moe_layer_shape;
/* Microseconds of an all-to-all of `bytes` of rows: the slower of what leaves the node and what
 * stays inside, which travel at once; times exchange_factor. */
double weft_moe_exchange_us(const weft_cluster *cluster, const weft_moe_layer_shape *shape,
                            double bytes);
/* Where the rows of a partition by peers go: of what a node's ranks send together, the share to
 * other ranks of that node and the share to other nodes, each the largest of any node. EP's ranks
 * lie on nodes in blocks of `near` (0: 1). O(ep * group). */
typedef struct weft_moe_peer_shares {
    double inside, between;
} weft_moe_peer_shares;
weft_moe_peer_shares weft_moe_peer_shares_of(int ep, int near, int group, int ahead);
/* By experts, with as many rows for each of a rank's: the shares of weft_moe_costs. */
void weft_moe_even_shares(const weft_moe_pipeline *pipeline, int num_experts,
                          double out[WEFT_MOE_MAX_PARTITIONS]);
/* The cluster's interference; an emulated accelerator neither slows others nor is slowed. */
weft_interference weft_moe_interference(const weft_cluster *cluster,
                                        const weft_moe_layer_shape *shape);
/* Costs of a partition of 1/n of the rows, from the cluster's curves. A rank's rows for itself cost
 * no exchange; exchange_factor does not apply to partitions by peers. */
weft_moe_costs weft_moe_costs_of(const weft_cluster *cluster, const weft_moe_layer_shape *shape,
                                 const weft_moe_pipeline *pipeline);

double weft_moe_task_us(const weft_moe_costs *costs, const weft_task *task);
/* Time of the program by simulation with interference (schedule/price.h). `trace` may be NULL. */
weft_status weft_program_moe_price(const weft_program *program, const weft_moe_costs *costs,
                                   const weft_interference *interference, weft_trace *trace,
                                   double *out_us) WEFT_CHECKED;

#endif
