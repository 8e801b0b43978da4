/* Measuring a model's own operations: its products, its attention and what is bound by memory, each
 * at the shapes that its layers describe for a rank. */
#ifndef WEFT_LAUNCHER_MEASURING_OWN_H
#define WEFT_LAUNCHER_MEASURING_OWN_H

#include "comm/comm.h"
#include "core/cluster.h"
#include "layers/outline.h"

typedef struct weft_own_model {
    const weft_model_options *options;
    const weft_outline *outline;
    int num_micro_batches; /* of a step: the first one overwrites gradients, the others add */
} weft_own_model;

/* A way to run an operation. An operation is `each` of a description's: attention of one launch is
 * several products, and a loss' kernels are run together. */
typedef struct weft_own_operation {
    weft_operation operation; /* with count 1: each alone */
    double each;
    double weight; /* how often the model runs it; products of one shape are their mean by it */
    double us;     /* each */
} weft_own_operation;

/* The operations of all layers, each distinct one once, from the arena. Collectives and FLOPs of 0
 * are left out. Pure. */
weft_status weft_own_list(const weft_own_model *model, weft_arena *arena, weft_own_operation **out,
                          int *out_count) WEFT_CHECKED;
/* What was measured into the cluster: products by shape, all else by module, phase and volume.
 * WEFT_CONFIG where there is no room. Pure. */
weft_status weft_own_keep(const weft_own_operation *operations, int count,
                          weft_cluster *cluster) WEFT_CHECKED;

/* Measures them on all ranks at once, on one lane, and adds them to the cluster; operations of a
 * program's own layers that it has no kernels for are left to the curves. Weights and what was
 * stashed come from memory, what the operation before made from where it stands. The slowest rank
 * counts. Collective over world. Errors: WEFT_MEMORY, WEFT_CONFIG, those of the kernels. */
weft_status weft_measure_own(weft_comm *world, weft_device *device, const weft_own_model *model,
                             bool quick, weft_cluster *cluster) WEFT_CHECKED;

#endif
