/* What a training step takes on a cluster: the price of its programs. Equal replicas are priced
 * once: one rank of each pipeline stage. Where nodes differ, a stage takes what its slowest replica
 * takes, for which the others wait. Pure. */
#ifndef WEFT_LAUNCHER_PLANNING_STEP_PRICE_H
#define WEFT_LAUNCHER_PLANNING_STEP_PRICE_H

#include "launcher/planning/plan.h"

/* The cluster that prices experts where only they have a pace, from the arena; else NULL. */
weft_status weft_step_experts(const weft_config *config, const weft_cluster *cluster,
                              weft_arena *arena, const weft_cluster **out) WEFT_CHECKED;
/* The site of a pipeline stage, with the groups of its first rank; experts, kinds: as in weft_site.
 * Of the plan: mesh, step. */
weft_status weft_step_site(const weft_config *config, const weft_cluster *cluster,
                           const weft_cluster *experts, const weft_plan *plan, int stage,
                           uint32_t kinds, weft_site *out) WEFT_CHECKED;

/* Prices the plan's step and fills its stages' times, its own, and source and coarse. Of the plan:
 * mesh, kinds, step, num_stages, stages. */
weft_status weft_step_price(const weft_config *config, const weft_cluster *cluster,
                            weft_trace *trace, weft_arena *arena, weft_plan *plan) WEFT_CHECKED;

#endif
