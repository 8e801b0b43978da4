/* The waits between ranks of a node that compute each other's experts
 * (parallel/parameters/parameters.h). Private to layers/tier_*.
 *
 * A rank's own experts have the section's buckets; guests, other ranks' experts, have the numbers
 * behind. All ranks of the group see the same rows and find the same placements, in the same order.
 * So each rank counts the expected gradients of every expert of its node: `landings`. Gradient n of
 * an expert, by micro-batch and then rank, waits on its lane until n gradients have landed, is
 * added (a step's first one written), and signals its landing. The home's landing is over when all
 * expected gradients have landed.
 *
 * These waits form no circle. All ranks of a group visit MoE layers in one order, because each
 * visit exchanges tokens. A rank's gradient waits for earlier visits, and within its visit for
 * lower ranks; lanes run visits in order; and the lane that waits for landings has no other work
 * that could be delayed. An upload waits for the home's step of the previous step, which waits for
 * visits of that step alone. */
#ifndef WEFT_LAYERS_TIER_SHARE_H
#define WEFT_LAYERS_TIER_SHARE_H

#include "layers/tier/internal.h"
#include "parallel/parameters/parameters.h"

/* A guest's home. */
typedef struct weft_tier_guest {
    int rank, bucket;
} weft_tier_guest;

/* All experts of a layer: arrays [num_seats], by number in the group. */
typedef struct weft_tier_shared_layer {
    int first_guest;    /* bucket */
    uint64_t *landings; /* gradients expected since the start, */
    uint64_t *begun;    /* and when this step began */
    int64_t *rows;      /* rows of this step */
    bool *keeps;        /* kept on the home's device */
    int32_t *order;     /* used while the order is found */
} weft_tier_shared_layer;

typedef struct weft_tier_share {
    weft_comm *group; /* borrowed */
    int num_ranks, rank;
    weft_tier_shared_layer *layers;
    weft_tier_guest *guests;
    int num_guests;
    weft_placing placing;
    weft_lane *landing;
    atomic_bool abandoned; /* ends all waits */
} weft_tier_share;

/* Allocates for the layers; fills in num_seats. */
weft_status weft_tier_share_create(weft_tier_run *tier) WEFT_CHECKED;
void weft_tier_share_destroy(weft_tier_run *tier);

/* Without sharing the next functions serve home experts alone, or do nothing. A bucket's home;
 * without sharing this rank and the same number. */
weft_tier_guest weft_tier_home(const weft_tier_run *tier, int bucket);
const void *weft_tier_host_weights(const weft_tier_run *tier, int bucket);
float *weft_tier_host_gradient(const weft_tier_run *tier, int bucket);
/* The bucket of an expert in a seat. */
int weft_tier_bucket(const weft_tier_run *tier, const weft_tier_layer *layer, int seat);

/* Makes the lane wait for the bucket's update of the previous step. */
weft_status weft_tier_wait_step(weft_tier_run *tier, int bucket, weft_lane *lane) WEFT_CHECKED;
/* Before a backward's program: numbers each expert's gradient that comes down here, and decides
 * whether it is added. After it: records the home's events. */
void weft_tier_number(weft_tier_run *tier, const weft_tier_layer *layer,
                      const weft_tier_call *call);
weft_status weft_tier_expect_landings(weft_tier_run *tier, const weft_tier_layer *layer,
                                      const weft_tier_call *call) WEFT_CHECKED;
/* Makes the lane wait for the bucket's earlier gradients. */
weft_status weft_tier_wait_landing(weft_tier_run *tier, int bucket, weft_lane *lane) WEFT_CHECKED;
/* Signals that the bucket's gradient has landed. */
weft_status weft_tier_land(weft_tier_run *tier, int bucket, weft_lane *lane) WEFT_CHECKED;

void weft_tier_share_begin(weft_tier_run *tier);
void weft_tier_share_change(weft_tier_run *tier, int bucket);
void weft_tier_share_choose(weft_tier_run *tier, const weft_tier_layer *layer);
/* Call it after all weights changed. Collective. */
weft_status weft_tier_share_reset(weft_tier_run *tier) WEFT_CHECKED;

#endif
