/* The MoE layer's struct, and the routes of one micro-batch's tokens. */
#ifndef WEFT_LAYERS_MOE_INTERNAL_H
#define WEFT_LAYERS_MOE_INTERNAL_H

#include "layers/layers.h"
#include "layers/moe/moe.h"
#include "schedule/experts/placement.h"

typedef struct weft_moe {
    weft_layer_common common;
    weft_linear router, fc1, fc2;
    weft_layer *shared; /* owned; optional */
    weft_moe_dims dims;
    weft_device *device;
    int layer;                   /* index of the model's layer that holds it */
    float *forced;               /* pinned, [T, E]: added to the logits; NULL: nothing */
    weft_parameter *expert_bias; /* [E]: added to the scores that the choice compares; NULL: none */
    float *balanced;             /* pinned, [E], with expert_bias: minus a balanced load */
    bool counts_load;            /* likewise: this rank counts it */
    weft_linear gate;            /* of the shared expert; weight NULL: none */
    int32_t *own_row;            /* pinned, [num_own_rows], with a gate: each row's own number */
    size_t num_own_rows;
    double *load;  /* [E], of global_aux_loss: the global batch's so far, */
    int num_loads; /* of so many micro-batches a replica */
} weft_moe;

/* A partition of the micro-batch: its rows at home, in sending order, and at the experts, and how
 * they travel. All pointers are to host memory. */
typedef struct weft_moe_part {
    size_t first_sent, num_sent;     /* rows at home */
    size_t first_row, num_rows;      /* rows at the experts */
    size_t *send_bytes, *recv_bytes; /* [ep]; partitions by peers: to and from that peer alone */
    int64_t *offsets; /* [local_experts + 1]; with placement these and the next arrays cover all the
                         group's experts, by seat */
    int32_t *order, *inverse; /* expert-major row -> arrived row, and back; NULL: the same order */
    int32_t *positions; /* [local_experts]: experts in the order in which they run one by one */
    int64_t *own_rows;  /* [local_experts][2]: 0 and the number of rows */
    /* Partitions by experts: this one's positions (experts, where `positions` is NULL); else all.
     * All partitions then share positions, own_rows and all_offsets. */
    int first_position, end_position;
    int64_t *all_offsets; /* [local_experts + 1]: offsets over all partitions' rows */
    /* Where experts compute (layers/tier/placing.h); NULL: at home. */
    weft_placement_part *placed;
    int32_t *first_placed; /* [experts + 1] */
    int32_t *to;           /* [choices]: the sorted rows' places among those that leave */
} weft_moe_part;

/* The shared expert's gate. */
typedef struct weft_moe_gate {
    weft_tensor out;                   /* [rows, H]: of the shared expert; backward: its gradient */
    weft_tensor logits, scores, index; /* [rows, 1] */
} weft_moe_gate;

/* A program of the layer that is being enqueued. */
typedef struct weft_moe_work {
    weft_moe *m;
    weft_pass *pass;
    struct weft_moe_state *state;
    const weft_program *program;
    void **memory;                      /* by slot */
    weft_tensor rows;                   /* the routed rows */
    weft_tensor act, ordered, dordered; /* for one partition at a time */
    weft_moe_movement movement;         /* an exchange in chunks */
    /* A task with others inside: itself, the one at hand inside (NULL: it begins or ends), and the
     * timeline's slice. */
    const weft_task *outer, *inner; /* outer NULL: there is none */
    size_t slice;
} weft_moe_work;

/* What the router leaves, and what its backward reads. */
typedef struct weft_moe_routing {
    weft_tensor logits, scores, index, prob; /* [T, E], [T, E], [T, K], [T, K] */
    float *sums;         /* host, of S sequences: counts [S, E], score_sums [S, E], z_sums [S] */
    float *load;         /* host, [E], of global_aux_loss: the mean load that the loss compares */
    weft_tensor dlogits; /* [T, E], of a backward in two halves */
} weft_moe_routing;

/* The choices in sending order. Pointers but row_of and token_of are to host memory. */
typedef struct weft_moe_sorted {
    int64_t *counts;           /* [E] rows by expert, then [1] dropped choices */
    int64_t *received;         /* [ep][parts of a sender][local_experts]; placed: [ep][experts] */
    int64_t *partition_counts; /* [parts of the sort][E]; with one part equal to counts */
    int64_t *sent_counts;      /* partition_counts by receiver, [ep][parts][local_experts] */
    weft_wrong_choice *wrong;
    weft_dispatch_plan_args args; /* enqueued; valid once the host has waited */
    int32_t *row_of, *token_of;
    int32_t *part_of; /* [E], partitions by experts: each expert's partition */
    int64_t *totals;  /* [2][E], if the device keeps experts: the group's rows of each; its place
                         among its rank's kept experts, from 1; 0: not kept */
} weft_moe_sorted;

/* The micro-batch's cut into partitions. */
typedef struct weft_moe_cut {
    weft_moe_part *parts; /* host: [num_parts] */
    int num_parts;
    size_t num_sent, num_rows, max_sent, max_rows; /* of all partitions; of the largest one */
} weft_moe_cut;

/* Rows that stay from forward to backward, or between a backward's halves. */
typedef struct weft_moe_held {
    weft_tensor dispatched, middle; /* T_DI [R, H] and T_M [R, gates ffn], kept unless reused */
    char *host_input, *host_middle; /* offloaded T_DI and T_M: pinned, back to back by partition */
    weft_tensor returned;           /* at home: [num_sent, H] */
    /* Of a backward in two halves, by expert within a partition: the activation's output [R, ffn],
     * the answers' gradients [R, H]. */
    weft_tensor act, dout;
} weft_moe_held;

typedef struct weft_moe_state {
    weft_moe_work work;
    /* Between parts of a pass: scratch begins at mark, a recomputation's at again_mark; its peak
     * before; the timeline's slice; and of a backward the gradients of the probabilities [T, K]. */
    size_t mark, again_mark, scratch_before, note;
    weft_tensor dprob, shared; /* shared: what the shared expert makes */
    weft_moe_gate gate;
    weft_tensor x;    /* borrowed: the layer's input */
    size_t host_mark; /* the start of its host memory */
    const weft_moe_plan *plan;
    const weft_moe_whole *whole;
    weft_moe_routing routing;
    weft_moe_sorted sorted;
    weft_moe_cut cut;
    weft_moe_held held;
} weft_moe_state;

/* Fills m->forced for moe_router_forced_load: added to the logits, it decides each token's experts:
 * the first expert gets that many times the mean, at most one choice of every token. */
weft_status weft_moe_force_load(weft_moe *m, weft_device *device) WEFT_CHECKED;
/* Adds the gradient of a router's weight, and of its rows to dx, from its logits'. */
weft_status weft_moe_logits_backward(weft_pass *pass, const weft_linear *router,
                                     const weft_tensor *rows, const weft_tensor *dlogits,
                                     const weft_tensor *dx) WEFT_CHECKED;
/* Of which each has sums of its own. */
size_t weft_moe_num_sequences(const weft_model_options *options, const weft_shape *shape);
/* Declares expert_bias where the options ask. */
weft_status weft_moe_declare_bias(weft_moe *m, weft_build *build) WEFT_CHECKED;
void weft_moe_release_forced(weft_moe *m);

/* Logits, choice and probabilities of rows [T, H], and the sums of the auxiliary losses over the
 * micro-batch. Collective over CP, and over TP where each rank routes its own rows. */
weft_status weft_moe_route(weft_moe *m, weft_pass *pass, weft_moe_routing *routing,
                           const weft_tensor *rows) WEFT_CHECKED;
/* Adds losses, load and drops to the pass's metrics. Call it after the host has waited for the
 * counts, when the sums are valid. */
weft_status weft_moe_count(weft_moe *m, weft_pass *pass, weft_moe_state *state) WEFT_CHECKED;
/* Computes router gradients from dprob [T, K] and the auxiliary losses; adds the rows' gradients to
 * dx. As a first half it reads of rows the shape alone, and leaves the weight's gradient to the
 * next function. */
weft_status weft_moe_route_backward(weft_moe *m, weft_pass *pass, weft_moe_routing *routing,
                                    const weft_tensor *rows, const weft_tensor *dprob,
                                    const weft_tensor *dx) WEFT_CHECKED;
weft_status weft_moe_route_weights(weft_moe *m, weft_pass *pass, const weft_moe_routing *routing,
                                   const weft_tensor *rows) WEFT_CHECKED;

/* Sorts the choices by partition and expert. Enqueued. */
weft_status weft_moe_sort_choices(weft_moe *m, weft_pass *pass, weft_moe_state *state) WEFT_CHECKED;
/* The COUNTS task: exchanges the counts on `lane`, waits for it, and computes all sizes on the
 * host. Collective over EP with binding dp. */
weft_status weft_moe_exchange_counts(weft_moe *m, weft_pass *pass, weft_moe_state *state,
                                     weft_lane *lane) WEFT_CHECKED;

/* Readies the layer's program on sorted choices: rows [T, H] -> state->returned, the experts'
 * answers at home in sending order. In its first task the host waits for the counts. */
void weft_moe_begin_forward(weft_moe *m, weft_pass *pass, weft_moe_state *state,
                            const weft_tensor *rows);
/* The same, which replaces the answers' gradients in state->returned by those of the sent rows.
 * Adds weight gradients, or in a step's first micro-batch writes them; or leaves them to
 * weft_moe_run_weights. */
weft_status weft_moe_begin_backward(weft_moe *m, weft_pass *pass, weft_moe_state *state,
                                    const weft_tensor *rows) WEFT_CHECKED;
/* Enqueues a task of the whole program, in order. Collective over EP. */
weft_status weft_moe_run_task(weft_moe_state *state, const weft_task *task,
                              weft_lane *lane) WEFT_CHECKED;
/* The gradients of the experts' first product, or before them of the second, of each partition in
 * turn, in a backward's second half. The first ones are made over what the second ones read. */
weft_status weft_moe_run_weights(weft_moe *m, weft_pass *pass, weft_moe_state *state,
                                 bool first) WEFT_CHECKED;

/* The experts on one partition. x, out: [R, H] as they came; T_M: [R, gates ffn]. ordered,
 * dordered: scratch [R, H], used where rows have to be put in expert order; act: scratch [R, ffn].
 */
typedef struct weft_moe_expert_rows {
    const weft_moe_part *part;
    weft_tensor x, middle, act, ordered, dordered;
    weft_tensor kept_act, kept_dout; /* in two halves: of all partitions */
} weft_moe_expert_rows;

#endif
