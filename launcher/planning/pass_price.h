/* What a pass takes on a cluster: the sum of its layers' bodies, each alone. A layer's own parts
 * run one after the other; the programs between them have a price (body_price.h). Pure. */
#ifndef WEFT_LAUNCHER_PLANNING_PASS_PRICE_H
#define WEFT_LAUNCHER_PLANNING_PASS_PRICE_H

#include "launcher/planning/body_price.h"

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

/* What a layer's pass takes before its rows set out to the experts, and all tasks of a kind in the
 * experts' program. */
typedef struct weft_pass_experts {
    double before_us, task_us[WEFT_NUM_TASK_KINDS];
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

/* What the tasks of the layer's programs take, and its own parts. repeats: of a forward whose
 * counts are known. */
weft_status weft_pass_layer_costs(const weft_site *site, const weft_outline *outline, int layer,
                                  bool repeats, weft_layer_costs *out) WEFT_CHECKED;
/* A layer's body in one direction, as weft_layer_body_make; AGAIN: of a forward whose counts are
 * known. From the arena of `made`. */
weft_status weft_pass_body_make(const weft_site *site, const weft_outline *outline, int layer,
                                int half, bool inlines, bool slowed, const weft_pass_time *total,
                                weft_made_programs *made, weft_layer_body **out) WEFT_CHECKED;

/* What pairs of a forward and a backward take (schedule/pair.h) on a stage: *out [the backward is
 * whole, is its input's half][forward's chunk][backward's chunk], from the arena; layers: by layer
 * of the outline; chunks: their sums. */
weft_status weft_pass_price_pairs(const weft_site *site, const weft_outline *outline, int stage,
                                  const weft_pass_price *layers, const weft_pass_price *chunks,
                                  weft_arena *arena, weft_pass_time **out) WEFT_CHECKED;

#endif
