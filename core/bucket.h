/* Buckets of gradients, and runs of experts' buckets, as a step sees them.
 * parallel/residency/residency.h makes them and schedules are built from them. Plain data, the same
 * on all ranks of a pipeline stage. */
#ifndef WEFT_CORE_BUCKET_H
#define WEFT_CORE_BUCKET_H

#include <stdbool.h>
#include <stdint.h>

#include <weft/operation.h>

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

/* Where something of a bucket lies. Shared out: each rank of the gradient group keeps a share of it
 * on the device. */
typedef enum weft_lies {
    WEFT_LIES_ON_DEVICE,
    WEFT_LIES_SHARED_OUT,
    WEFT_LIES_ON_HOST,
    WEFT_LIES_IN_FILE /* host memory has a place for it while it is worked on */
} weft_lies;

/* Where a bucket's weights, gradient and optimizer state lie: what a step has to do follows from
 * it. */
typedef struct weft_bucket_residency {
    weft_lies weights, gradient, state;
} weft_bucket_residency;

typedef struct weft_bucket_shape {
    int32_t section, index; /* where its elements lie: parallel/parameters/parameters.h */
    /* Backward reaches this layer last of those with a part in the bucket: the lowest in the
     * model's list. The gradients are final after it; -1: only after all layers. */
    int32_t layer;
    int32_t chunk;       /* virtual stage of the rank that has the layer */
    weft_bucket_sum sum; /* of its section, before its reduction */
    weft_bucket_residency residency;
    int32_t ranks;  /* of the gradient group */
    int32_t owners; /* of those, that each update a share */
    /* Of those that are offloaded. The gradient is final when it has landed in host memory
     * (schedule/program.h), later than its layer's others. */
    bool at_once;        /* steps as soon as that; else once the norm of all is known */
    bool refreshes;      /* its expert may be kept on the device, and its weights go there */
    int32_t staging;     /* of those that are staged: which place; neighbours in the list of such
                            have different ones */
    int32_t num_experts; /* of a run: as many buckets, each with collectives of its own; 0: one. Of
                            one that is offloaded: at most 1 */
    uint64_t elements;   /* padding included */
    weft_matrices matrices; /* that Muon steps */
} weft_bucket_shape;

/* Whether its weights, gradient and optimizer state lie off the device, where it is reduced and
 * steps: an expert beyond device memory. */
static inline bool weft_bucket_is_offloaded(const weft_bucket_shape *bucket)
{
    return bucket->residency.weights == WEFT_LIES_ON_HOST ||
           bucket->residency.weights == WEFT_LIES_IN_FILE;
}
static inline bool weft_bucket_is_in_file(const weft_bucket_shape *bucket)
{
    return bucket->residency.weights == WEFT_LIES_IN_FILE;
}
/* Whether the optimizer's state alone lies in host memory. The gradient goes down into one of
 * WEFT_BUCKET_STAGING places there, the host steps, the weights go up. */
static inline bool weft_bucket_is_staged(const weft_bucket_shape *bucket)
{
    return bucket->residency.state == WEFT_LIES_ON_HOST && !weft_bucket_is_offloaded(bucket);
}
/* Whether backwards sum it, micro-batch by micro-batch (parallel/residency/residency.h). */
static inline bool weft_bucket_is_in_passes(const weft_bucket_shape *bucket)
{
    return bucket->residency.gradient == WEFT_LIES_SHARED_OUT;
}
/* Whether the step sums it over several ranks. */
static inline bool weft_bucket_reduces(const weft_bucket_shape *bucket)
{
    return bucket->ranks > 1 && !weft_bucket_is_in_passes(bucket);
}
/* Whether its owners each update a share, which all gather in the step. */
static inline bool weft_bucket_gathers(const weft_bucket_shape *bucket)
{
    return bucket->owners > 1 && bucket->residency.weights != WEFT_LIES_SHARED_OUT;
}

/* A stage's, in the order in which their reductions start. */
typedef struct weft_buckets {
    const weft_bucket_shape *shapes;
    int count;
} weft_buckets;

#endif
