/* What a training step takes on a cluster: its programs, each task with its time. Equal replicas
 * are priced once: one rank of each pipeline stage. Pure. */
#ifndef WEFT_LAUNCHER_PLANNING_STEP_PRICE_H
#define WEFT_LAUNCHER_PLANNING_STEP_PRICE_H

#include "launcher/planning/plan.h"

/* Prices the plan's step and fills its stages' times, its own, and source and coarse. Of the plan:
 * mesh, step, num_stages, stages. */
weft_status weft_step_price(const weft_config *config, const weft_cluster *cluster,
                            weft_trace *trace, weft_arena *arena, weft_plan *plan) WEFT_CHECKED;

#endif
