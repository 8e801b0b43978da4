/* What a pass takes on a cluster: the sum of the operations that layers describe, which run one
 * after the other; where an MoE layer runs in partitions, or attention over context-parallel ranks,
 * the price of its program. Pure. */
#ifndef WEFT_LAUNCHER_PLANNING_PASS_PRICE_H
#define WEFT_LAUNCHER_PLANNING_PASS_PRICE_H

#include "layers/outline/outline.h"
#include "schedule/context.h"
#include "schedule/cost/cost.h"
#include "schedule/moe/layer.h"

/* Microseconds of forward, or of backward, on the compute lane. What runs beside computation counts
 * only as far as it is longer. */
typedef struct weft_pass_time {
    double compute_us;
    double memory_us; /* of compute: bound by the device's memory */
    double tensor_us, expert_us, context_us;
    double data_us; /* gathers and reductions of what is shared out (sharding_price.h) */
    double host_us; /* copies of what is offloaded, likewise */
    double link_us[WEFT_NUM_LINKS]; /* how long links are needed */
    double num_issued;              /* kernels, products and collectives */
} weft_pass_time;
void weft_pass_time_add(weft_pass_time *sum, const weft_pass_time *other);
void weft_pass_time_subtract(weft_pass_time *sum, const weft_pass_time *other);
double weft_pass_us(const weft_pass_time *time); /* the sum of compute and the rest */
/* Of published runs: computes no less than a framework takes to issue all that the pass does, one
 * after the other, 7 us each (pytorch/pytorch issue 41383: the smallest operation with autograd).
 */
void weft_pass_issue(weft_pass_time *time);
/* The share of a GPU's multiprocessors that a collective takes from what runs beside it; 0: nobody
 * says how many there are. */
double weft_pass_taken_share(const weft_cluster *cluster);
/* Whether communication takes multiprocessors from what a GPU computes: the cluster's interference
 * holds. Over MPI hosts send. */
bool weft_pass_is_slowed(const weft_site *site);

/* A layer whose MoE part or attention is recomputed runs that forward once more, before backward.
 */
enum { WEFT_HALF_FORWARD, WEFT_HALF_BACKWARD, WEFT_HALF_AGAIN, WEFT_NUM_HALVES };

/* What a layer's pass takes before its rows set out to the experts, until they are there, and for
 * the experts. */
typedef struct weft_pass_experts {
    double before_us, between_us, experts_us;
} weft_pass_experts;

typedef struct weft_pass_price {
    weft_pass_time forward, backward;
    weft_pass_time weights;   /* of backward: what its weights' half does where it is in two */
    weft_pass_time recompute; /* of whole layers, before their backward: not part of it */
    weft_pass_experts experts[WEFT_NUM_HALVES]; /* of one layer */
    weft_source_class source;                   /* of the worst number */
    bool coarse;                                /* a layer gave only sums */
} weft_pass_price;

/* Adds the layers [first, end) of the outline. Errors: WEFT_CONFIG with the layer and the figure
 * that the cluster lacks. */
weft_status weft_pass_price_add(const weft_site *site, const weft_outline *outline, int first,
                                int end, weft_pass_price *out) WEFT_CHECKED;

/* Whether two layers describe the same operations, which take the same. */
bool weft_pass_same_layer(const weft_outline *outline, int a, int b);

/* What programs inside layers take: their tasks take what the operations do that they enqueue. Of
 * attention over context-parallel ranks (schedule/context.h) the whole price: a ring hides messages
 * behind blocks; keys and gradients that travel at once share the link. Every block takes as long:
 * that of one document cut by head and tail, the two parts of a ring's own one a quarter and the
 * rest. */
typedef struct weft_task_time {
    double us, link_us[WEFT_NUM_LINKS]; /* link_us: as of weft_task_links */
} weft_task_time;

enum { WEFT_INNER_ROWS = 16 }; /* no program has as many kinds of tasks in one direction */
/* Of one direction, by kind and flow: all tasks of the kind together; of attention until
 * weft_context_share, then each. Zeroed: nothing is known yet. */
typedef struct weft_inner_row {
    int kind, flow; /* weft_task_kind, weft_flow */
    weft_task_time time;
} weft_inner_row;
typedef struct weft_inner_costs {
    int num_rows;
    weft_inner_row rows[WEFT_INNER_ROWS];
    weft_task_time own[2]; /* of backward's own block: its first and its last part, shared out */
} weft_inner_costs;

/* Zero: no operation is of such tasks. */
const weft_task_time *weft_inner_time(const weft_inner_costs *costs, int kind, int flow);
/* Adds an operation to what its task takes. */
void weft_inner_add(weft_inner_costs *costs, const weft_operation *operation,
                    const weft_estimate *estimate);
/* Shares the times out among the program's tasks. */
void weft_context_share(weft_inner_costs *costs, const weft_program *program);
/* For weft_pricing. A sum to which nothing is added takes no time. */
const weft_task_time *weft_context_task_time(const weft_inner_costs *costs, const weft_task *task);

/* What the tasks of a partition of an MoE layer take, forward and backward. */
weft_status weft_pass_price_partition(const weft_site *site, const weft_outline *outline, int layer,
                                      weft_moe_costs out[2]) WEFT_CHECKED;
/* What the tasks of a layer's attention over context-parallel ranks take, forward and backward, not
 * yet shared out. */
weft_status weft_pass_price_attention(const weft_site *site, const weft_outline *outline, int layer,
                                      weft_inner_costs out[2]) WEFT_CHECKED;

/* What pairs of a forward and a backward take (schedule/pair.h) on a stage: *out [the backward is
 * whole, is its input's half][forward's chunk][backward's chunk], from the arena; layers: by layer
 * of the outline; chunks: their sums. */
weft_status weft_pass_price_pairs(const weft_site *site, const weft_outline *outline, int stage,
                                  const weft_pass_price *layers, const weft_pass_price *chunks,
                                  weft_arena *arena, weft_pass_time **out) WEFT_CHECKED;

#endif
