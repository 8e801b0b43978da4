/* The programs of a config at four levels: of a step, of the bodies that its chunks' passes run, of
 * what is a program inside a layer, and of its experts, uploaded one by one from host memory. A
 * cluster prices them or, without one, the FLOPs that layers describe. Pure. */
#ifndef WEFT_LAUNCHER_PLANNING_LEVELS_H
#define WEFT_LAUNCHER_PLANNING_LEVELS_H

#include "launcher/planning/plan.h"

typedef enum weft_level {
    WEFT_LEVEL_STEP,
    WEFT_LEVEL_PASS,
    WEFT_LEVEL_LAYER,
    WEFT_LEVEL_EXPERTS
} weft_level;
/* Of a layer: attention over context-parallel ranks, an MoE layer's partitions, and tensor-parallel
 * products in chunks. */
typedef enum weft_body {
    WEFT_BODY_ALL,
    WEFT_BODY_ATTENTION,
    WEFT_BODY_EXPERTS,
    WEFT_BODY_TENSOR
} weft_body;

/* A program of the level. */
typedef struct weft_level_row {
    const char *name; /* "rank 0", "rank 0 chunk 1 forward", "backward", "experts backward" */
    const weft_program *program;
    double us;           /* its time; a step's: of all ranks together */
    double bubble_share; /* of us: its compute lane has nothing to do */
} weft_level_row;

typedef struct weft_levels {
    weft_plan plan; /* mesh and step; with a cluster all of it */
    weft_level_row *rows;
    int num_rows;
    double us;                    /* of the longest row */
    struct weft_moe_runtime *moe; /* has programs of rows */
    struct weft_device *device;   /* its */
} weft_levels;

/* body: of WEFT_LEVEL_LAYER. cluster NULL: a virtual stage's forward takes 1000 us on average,
 * backwards take time by their FLOPs, and only computation takes time. trace (NULL: none) gets a
 * rank a row. All but the outline lives in the arena. Errors: WEFT_CONFIG as of weft_plan_make; a
 * level that the model does not have. */
weft_status weft_levels_make(const weft_config *config, const weft_config_source *source,
                             const weft_cluster *cluster, weft_level level, weft_body body,
                             weft_trace *trace, weft_arena *arena, weft_levels *out) WEFT_CHECKED;
void weft_levels_release(weft_levels *levels); /* a zeroed one is legal */

/* The order of a step's compute, of every rank, from the arena. */
weft_status weft_levels_orders(const weft_levels *levels, weft_arena *arena,
                               const weft_order **out) WEFT_CHECKED;

#endif
