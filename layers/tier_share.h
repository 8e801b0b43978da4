/* Experts that compute on other ranks of their home's node, and those that come from there: who
 * waits for whom (parallel/experts_share.h). Private to layers/tier_*.
 *
 * A rank's own experts have the section's buckets, guests the numbers behind them. All ranks of the
 * group see the same rows and find the same placements, in the same order. So each counts, for
 * every expert of its node, the gradients that have been asked for: `landings`. Gradient number n
 * of an expert, in order of micro-batch and then of rank, waits on its lane until n gradients have
 * landed, is added (a step's first one written), and says so. The home's landing is over when as
 * many have landed as were asked for.
 *
 * Nothing here waits in a circle. Order the visits of MoE layers as the ranks of a group make them,
 * in all of which they exchange tokens. What a rank brings in a visit waits for earlier visits, and
 * in its own for ranks of lower numbers; lanes take visits in order; and the lane that waits for
 * landings does nothing else, so that nobody's work stands behind it. An upload waits for its
 * home's step of the step before, which waits for visits of that step alone. */
#ifndef WEFT_LAYERS_TIER_SHARE_H
#define WEFT_LAYERS_TIER_SHARE_H

#include "layers/tier_run_internal.h"
#include "parallel/experts_share.h"

/* Where a guest is at home. */
typedef struct weft_tier_guest {
    int rank, bucket;
} weft_tier_guest;

/* Of all experts of a layer, [num_seats] by number in the group. */
typedef struct weft_tier_shared_layer {
    int first_guest;    /* bucket */
    uint64_t *landings; /* asked for since the start, */
    uint64_t *begun;    /* and until this step began */
    int64_t *rows;      /* of this step */
    bool *keeps;        /* their home keeps them on its device */
    int32_t *order;     /* while that is found */
} weft_tier_shared_layer;

typedef struct weft_tier_share {
    weft_comm *group; /* borrowed */
    int num_ranks, rank;
    weft_tier_shared_layer *layers;
    weft_tier_guest *guests;
    int num_guests;
    weft_placing placing;
    weft_lane *landing;
    atomic_bool abandoned; /* nobody waits any more */
} weft_tier_share;

/* Memory for layers that are known; fills their seats. */
weft_status weft_tier_share_create(weft_tier_run *tier) WEFT_CHECKED;
void weft_tier_share_destroy(weft_tier_run *tier);

/* What follows does nothing, or what stays at home needs, where nothing is shared. Where a bucket
 * is at home, as weft_tier_run.setup.parameters has it: on this rank, under the same number. */
weft_tier_guest weft_tier_home(const weft_tier_run *tier, int bucket);
const void *weft_tier_host_weights(const weft_tier_run *tier, int bucket);
float *weft_tier_host_gradient(const weft_tier_run *tier, int bucket);
/* The bucket of an expert in a seat. */
int weft_tier_bucket(const weft_tier_run *tier, const weft_tier_layer *layer, int seat);

/* The lane waits until the bucket's step of the step before is over. */
weft_status weft_tier_wait_step(weft_tier_run *tier, int bucket, weft_lane *lane) WEFT_CHECKED;
/* Before a backward's program: which gradient of each expert comes down here, and whether it is
 * added to others. Behind it: the home's events. */
void weft_tier_number(weft_tier_run *tier, const weft_tier_layer *layer,
                      const weft_tier_call *call);
weft_status weft_tier_expect_landings(weft_tier_run *tier, const weft_tier_layer *layer,
                                      const weft_tier_call *call) WEFT_CHECKED;
/* The lane waits until the gradients before the bucket's have landed; */
weft_status weft_tier_wait_landing(weft_tier_run *tier, int bucket, weft_lane *lane) WEFT_CHECKED;
/* and tells that this one has. */
weft_status weft_tier_land(weft_tier_run *tier, int bucket, weft_lane *lane) WEFT_CHECKED;

void weft_tier_share_begin(weft_tier_run *tier);
void weft_tier_share_change(weft_tier_run *tier, int bucket);
void weft_tier_share_choose(weft_tier_run *tier, const weft_tier_layer *layer);
/* After all weights changed. Collective. */
weft_status weft_tier_share_reset(weft_tier_run *tier) WEFT_CHECKED;

#endif
