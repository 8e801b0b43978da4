/* Buckets of gradients, and runs of experts' buckets, as a step sees them.
 * parallel/residency/residency.h makes them and schedules are built from them. Plain data, the same
 * on all ranks of a pipeline stage. */
#ifndef WEFT_CORE_BUCKET_H
#define WEFT_CORE_BUCKET_H

#include <stdbool.h>
#include <stdint.h>

/* Gradients on their way through host memory at a time: one is stepped, one comes down. */
enum { WEFT_BUCKET_STAGING = 2 };

/* What sums a section's local gradients before its buckets are reduced: the tensor-parallel group,
 * or the two stages that hold the tied embedding. */
typedef enum weft_bucket_sum {
    WEFT_BUCKET_SUM_NONE,
    WEFT_BUCKET_SUM_TENSOR,
    WEFT_BUCKET_SUM_TIED,
    WEFT_NUM_BUCKET_SUMS
} weft_bucket_sum;

typedef struct weft_bucket_shape {
    int32_t section, index; /* where its elements lie: parallel/parameters/parameters.h */
    /* Backward reaches this layer last of those with a part in the bucket: the lowest in the
     * model's list. The gradients are final after it; -1: only after all layers. */
    int32_t layer;
    int32_t chunk;       /* virtual stage of the rank that has the layer */
    weft_bucket_sum sum; /* of its section, before its reduction */
    bool reduces;        /* the step sums it over a gradient group of several ranks */
    bool gathers;        /* each of those ranks updates a share, which all gather in the step */
    /* Its weights, gradient and optimizer state lie in host memory, where it is reduced and steps:
     * an expert beyond device memory. The gradient is final at a point of the chunk's last backward
     * that is the bucket's own (schedule/program.h), later than the layer's: it is on its way. */
    bool offloaded;
    int32_t point;
    bool in_file;   /* offloaded: host memory has a place for it while it is worked on */
    bool at_once;   /* offloaded: steps as soon as that; else once the norm of all is known */
    bool refreshes; /* offloaded: its expert may be kept on the device, and its weights go there */
    /* Of the others: the optimizer's state alone lies in host memory, weights and gradient on the
     * device. The gradient goes down into one of WEFT_BUCKET_STAGING places there, the host steps,
     * the weights go up. */
    bool state_on_host;
    int32_t staging; /* which place; neighbours in the list of such have different ones */
    bool in_passes; /* backwards sum it, micro-batch by micro-batch (parallel/residency/residency.h)
                     */
    int32_t owners; /* ranks that each update a share */
    int32_t num_experts; /* of a run: as many buckets, each with collectives of its own; 0: one. Of
                            one that is offloaded: at most 1 */
    uint64_t elements;   /* padding included */
} weft_bucket_shape;

/* A stage's, in the order in which their reductions start. */
typedef struct weft_buckets {
    const weft_bucket_shape *shapes;
    int count;
} weft_buckets;

#endif
