/* Lower bounds of a candidate, from the prices and bytes of its kinds of layers alone: no list of
 * all layers is made, no program. Pure.
 *
 * Time. A rank computes the forwards and backwards of all micro-batches through its layers, one
 * after the other, each as long as a plan's pass price and never shorter. Before a stage's first
 * forward the first micro-batch goes through all stages in front of it, and after its last backward
 * that micro-batch goes back through them. So with F_s, B_s the passes of stage s's first chunk and
 * T_s all passes of a micro-batch on s
 *     step >= max over s of  sum of F_i, i < s  +  m T_s  +  sum of B_i, i < s
 * whatever the order of compute. What is reduced, gathered, sent or updated comes on top. A pass
 * takes no less than the copies of what it offloads, but those that slots hold back.
 *
 * Experts beyond device memory. A pass waits for what comes up for them, and for what the host adds
 * up, no less than if all lanes were idle before it and each slot held what it looks for first: its
 * layers are walked as a price walks them (planning/tier_price.h). All that comes down and is added
 * up in a step is one chain, too. And no backward begins before a forward has been through all
 * layers, whose experts the host has stepped since the norm of the step before. So with S_s what
 * the host steps behind the norm, from one norm to the next
 *     step >= max of S_s  +  the rest of that forward  +  all backwards.
 * Experts that may leave the device (auto) are taken for left where some stage has no room.
 *
 * Memory. A stage holds its weights, gradients and optimizer's state, no more divided than ZeRO's
 * stage divides them, and the stash of as many micro-batches as its order has in flight at once.
 *
 * Of gradients and weights that passes share out such a bound knows nothing, and of what they
 * offload little. A tighter one has the passes with them (weft_shared_passes): its F and B are
 * those of the price. It takes an outline of the model.
 *
 * Where layers lie in the same way on nodes they have the same prices: tables of them are kept by
 * everything that they depend on. */
#ifndef WEFT_LAUNCHER_SEARCHING_BOUND_H
#define WEFT_LAUNCHER_SEARCHING_BOUND_H

#include "launcher/planning/plan.h"
#include "launcher/searching/candidates.h"

typedef struct weft_bounds weft_bounds;

typedef struct weft_bound {
    double step_us;
    uint64_t memory_bytes, limit_bytes; /* of the stage that lacks most; limit 0: nobody says */
    bool fits;                          /* false: it cannot */
} weft_bound;

weft_status weft_bounds_create(const weft_search_space *space, weft_bounds **out) WEFT_CHECKED;
void weft_bounds_destroy(weft_bounds *bounds);
/* Errors: WEFT_CONFIG: the candidate is not legal, or the cluster lacks a figure. */
weft_status weft_bound_of(weft_bounds *bounds, const weft_candidate *candidate,
                          weft_bound *out) WEFT_CHECKED;
/* Whether there is a tighter one to know. */
bool weft_bound_is_loose(const weft_bounds *bounds, const weft_candidate *candidate);
/* The tighter one. Errors: likewise. */
weft_status weft_bound_tighten(weft_bounds *bounds, const weft_candidate *candidate,
                               weft_bound *out) WEFT_CHECKED;

/* Of a chunk, microseconds: of each of its forwards and backwards, and of the first ones, which may
 * be less than nothing. What reductions take beside a backward depends on whether a forward is
 * between two of them, for which the order of compute would have to be known: of both the less. */
typedef struct weft_shared_chunk {
    double us[2], start_us[2];
} weft_shared_chunk;

typedef struct weft_shared_passes {
    int num_stages, num_chunks;
    const weft_shared_chunk *chunks; /* [num_stages][num_chunks] */
    const double *tail_us;           /* [num_stages]: behind the last backward, before the norm */
} weft_shared_passes;

/* Of nodes that are alike. mesh, moe: with what the candidate's plan chooses. *out_layout: how its
 * layers are cut. All of `out` lives in the arena. Errors: WEFT_CONFIG, as of the plan. */
weft_status weft_shared_passes_find(const weft_config *config, const weft_cluster *cluster,
                                    const weft_cluster *experts, const weft_mesh *mesh,
                                    const weft_moe_options *moe, weft_arena *arena,
                                    weft_layout *out_layout, weft_shared_passes *out) WEFT_CHECKED;

#endif
