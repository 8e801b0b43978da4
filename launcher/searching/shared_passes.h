/* What sharing out gradients and weights, and offloading, add to the passes of a candidate's step:
 * the numbers of planning/sharding_price.h that its price takes, and never more, found without the
 * step's programs. Pure. */
#ifndef WEFT_LAUNCHER_SEARCHING_SHARED_PASSES_H
#define WEFT_LAUNCHER_SEARCHING_SHARED_PASSES_H

#include "launcher/planning/plan.h"

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
