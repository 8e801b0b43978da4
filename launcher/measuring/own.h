/* Measuring a model's own operations: its products, its attention and what is bound by memory, each
 * at the shapes that its layers describe for a rank. */
#ifndef WEFT_LAUNCHER_MEASURING_OWN_H
#define WEFT_LAUNCHER_MEASURING_OWN_H

#include "comm/comm.h"
#include "core/cluster/cluster.h"
#include "layers/outline/outline.h"

typedef struct weft_own_model {
    const weft_model_options *options;
    const weft_outline *outline;
    int num_micro_batches; /* of a step: the first one overwrites gradients, the others add */
} weft_own_model;

/* A way to run operations of a description: one run is `each` of them, since one launch of
 * attention is several products, and a loss' kernels run together. */
typedef struct weft_own_operation {
    weft_operation operation; /* with count 1: each alone */
    double each;
    double weight;  /* how often the model runs it; weighs the mean of products of one shape */
    double us;      /* each */
    double scatter; /* of its trains */
} weft_own_operation;

/* Lists the operations of all layers, each distinct one once, from the arena; leaves out
 * collectives and FLOPs of 0. Pure. */
weft_status weft_own_list(const weft_own_model *model, weft_arena *arena, weft_own_operation **out,
                          int *out_count) WEFT_CHECKED;
/* Writes measured times into the cluster: products by shape, all else by module, phase and volume.
 * WEFT_CONFIG where there is no room. Pure. */
weft_status weft_own_keep(const weft_own_operation *operations, int count,
                          weft_cluster *cluster) WEFT_CHECKED;

/* Measures the model's operations on all ranks at once, on one lane, and adds them to the cluster;
 * leaves operations without a kernel here, of a program's own layers, to the curves. Kernels read
 * weights and stashes from memory, and the output of the operation before where it left it. The
 * slowest rank counts. Collective over world. Errors: WEFT_MEMORY, WEFT_CONFIG, those of the
 * kernels. */
weft_status weft_measure_own(weft_comm *world, weft_device *device, const weft_own_model *model,
                             bool quick, weft_cluster *cluster) WEFT_CHECKED;

#endif
