/* Buckets of gradients as a step sees them: plain data that parallel/buckets.h gives and that
 * schedules are made from, the same on all ranks of a pipeline stage. */
#ifndef WEFT_CORE_BUCKET_H
#define WEFT_CORE_BUCKET_H

#include <stdbool.h>
#include <stdint.h>

/* A section whose local gradients are parts of a sum is summed whole before its buckets are
 * reduced: over the tensor-parallel group, or between the two stages that hold the tied embedding.
 */
typedef enum weft_bucket_sum {
    WEFT_BUCKET_SUM_NONE,
    WEFT_BUCKET_SUM_TENSOR,
    WEFT_BUCKET_SUM_TIED,
    WEFT_NUM_BUCKET_SUMS
} weft_bucket_sum;

typedef struct weft_bucket_shape {
    int32_t section, index; /* where its elements lie: parallel/parameters.h */
    /* Its gradients are final once this layer's are: the smallest that has a part in it, by the
     * model's list. -1: not before all layers' are. */
    int32_t layer;
    int32_t chunk;       /* virtual stage of the rank that has the layer */
    weft_bucket_sum sum; /* of its section, before its reduction */
    bool reduces;        /* its gradient group has more ranks than one */
    bool gathers;        /* ... each of which updates a share */
    uint64_t elements;   /* padding included */
} weft_bucket_shape;

/* A stage's, in the order in which their reductions start. */
typedef struct weft_buckets {
    const weft_bucket_shape *shapes;
    int count;
} weft_buckets;

#endif
