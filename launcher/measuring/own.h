/* Measuring a model's own operations: the calls of its layers' kernels, rehearsed for a rank and
 * made again on its device. */
#ifndef WEFT_LAUNCHER_MEASURING_OWN_H
#define WEFT_LAUNCHER_MEASURING_OWN_H

#include "comm/comm.h"
#include "core/cluster/cluster.h"
#include "layers/describe/rehearse.h"

typedef struct weft_own_model {
    const weft_model_options *options;
    const void *own_options;
    weft_model_function build; /* NULL: what the options describe */
    const weft_shape *shape;
    int num_micro_batches; /* of a step: the first one overwrites gradients, the others add */
} weft_own_model;

/* An operation of the layers' descriptions. */
typedef struct weft_own_operation {
    weft_operation operation; /* with count 1: each alone */
    bool by_volume;           /* one of several of a call, or bound by memory; false: a product */
    double weight;            /* how often the model runs it; weighs means */
    double us;                /* each; 0: not measured */
    double scatter;           /* of its trains */
} weft_own_operation;

/* Measures the model's operations on all ranks at once, on one lane, and adds them to the cluster.
 * Leaves to the curves what no kernel does, such as functions on a lane, calls on memory that a
 * layer allocated itself and, of layers that describe themselves, all but products. Kernels read
 * weights and stashes from memory, and the output of the call before where it left it. The slowest
 * rank counts. Collective over world. Errors: WEFT_MEMORY, WEFT_CONFIG, those of the layers and
 * kernels. */
weft_status weft_measure_own(weft_comm *world, weft_device *device, const weft_own_model *model,
                             bool quick, weft_cluster *cluster) WEFT_CHECKED;

#endif
