/* Structs of experts beyond device memory. */
#ifndef WEFT_LAYERS_TIER_INTERNAL_H
#define WEFT_LAYERS_TIER_INTERNAL_H

#include "layers/tier/run.h"
#include "layers/tier/uses.h"
#include "parallel/parameters/parameters.h"

enum { WEFT_TIER_MAX_PLANS = 8 };

/* Zero is valid: a stopped clock. One lane's thread uses each field. */
typedef struct weft_tier_clock {
    bool runs;
    double since_us, waited_us, delayed_us; /* compute's; delayed: waits due to steps */
    double asked_us, late_us;               /* the uploads' */
} weft_tier_clock;

/* A stamp on device memory for an expert's weights, passed between lanes with the memory, by the
 * same events. Zero is valid. */
typedef struct weft_tier_stamp {
    double late_us;                  /* the upload's lateness, until compute uses the weights */
    double freed_us, freed_delay_us; /* compute's clock and delay when the memory became free */
} weft_tier_stamp;

/* Device memory for one expert's weights. */
typedef struct weft_tier_place {
    char *memory;
    weft_event *filled,
        *used;    /* events behind the copy into it; behind the last kernel that reads it */
    int bucket;   /* whose weights; -1: none */
    bool is_kept; /* false: a slot, which the experts' programs fill */
    uint64_t version;
    weft_tier_stamp stamp;
} weft_tier_place;

/* A gradient on its way down, on the device or in host memory. */
typedef struct weft_tier_ring_slot {
    float *memory;
    weft_event *free; /* event behind the copy or addition that reads it */
} weft_tier_ring_slot;

typedef struct weft_tier_share weft_tier_share;

typedef struct weft_tier_expert {
    weft_event *landed, *stepped; /* NULL of guests: layers/tier/share.c */
    uint64_t version;             /* how often its weights changed */
    uint64_t landing;             /* with placement: the number of the gradient that comes down */
    uint64_t landed_at;           /* the number of its last landing among all of this rank */
    bool has_gradient,
        stages; /* in this step; stages: a gradient under way is added to earlier ones */
} weft_tier_expert;

/* The order of updates of a layer's experts in a step. */
typedef struct weft_tier_turns {
    int count;           /* how many are decided */
    int32_t *order, *of; /* [num_experts]: experts in order; of: by task the expert, -1: none */
} weft_tier_turns;

typedef struct weft_tier_layer {
    int layer, num_parameters, num_experts, first_bucket; /* of section EXPERT */
    int num_seats; /* experts that may compute here, own ones first */
    size_t count;  /* elements of an expert's parameters; its bucket may have more: padding */
    weft_tier_place *kept;
    int num_kept;
    bool chosen;                                /* in this step: kept experts are chosen, */
    weft_tier_turns turns[WEFT_NUM_TIER_TURNS]; /* and orders of updates, by weft_tier_turn_kind */
    int64_t *rows;  /* [num_experts]: this step's rows, which decide the kept experts */
    int64_t *now;   /* [num_experts]: the micro-batch's rows */
    int32_t *order; /* used while experts are chosen: */
    bool *keeps;
} weft_tier_layer;

/* The programs of layers with a number of experts. */
typedef struct weft_tier_plan {
    int num_experts;
    weft_program programs[2];
} weft_tier_plan;

struct weft_tier_run {
    weft_tier_setup setup;
    weft_tier_options options;
    weft_arena arena;
    weft_tier_layer *layers;
    int num_layers;
    weft_tier_expert *experts; /* by bucket; guests last */
    int num_experts;
    weft_tier_place *slots;
    int num_slots;
    weft_tier_ring_slot gradients[WEFT_TIER_GRADIENTS], staging[WEFT_EXPERTS_STAGING];
    size_t weight_bytes, gradient_bytes; /* bytes of a slot */
    weft_tier_plan plans[WEFT_TIER_MAX_PLANS];
    int num_plans;
    weft_lane *lanes[WEFT_NUM_LANES];
    weft_tier_counts counts;
    uint64_t num_landings;
    weft_tier_uses uses;
    weft_tier_clock clock;
    weft_tier_share *share; /* NULL: all experts compute at home */
};

static inline const weft_section *weft_tier_section(const weft_tier_run *t)
{
    return weft_parameters_section(t->setup.parameters, WEFT_SECTION_EXPERT);
}

/* NULL: experts are in memory. */
static inline weft_records *weft_tier_records(const weft_tier_run *t)
{
    return weft_parameters_records(t->setup.parameters, WEFT_SECTION_EXPERT);
}

static inline size_t weft_tier_weight_bytes(const weft_tier_run *t, int bucket)
{
    return weft_tier_section(t)->buckets[bucket].count *
           weft_dtype_bytes(weft_parameters_dtype(t->setup.parameters));
}

static inline size_t weft_tier_gradient_bytes(const weft_tier_run *t, int bucket)
{
    return weft_tier_section(t)->buckets[bucket].count * sizeof(float);
}

static inline weft_tier_layer *weft_tier_layer_of(const weft_tier_run *t, int layer)
{
    for (int i = 0; i < t->num_layers; i++)
        if (t->layers[i].layer == layer)
            return &t->layers[i];
    return NULL;
}

static inline weft_tier_layer *weft_tier_layer_with(const weft_tier_run *t, int bucket)
{
    weft_tier_layer *l = t->layers;
    while (bucket < l->first_bucket || bucket >= l->first_bucket + l->num_experts)
        l++;
    return l;
}

/* Uploads a bucket's weights to a place, behind the bucket's step, unless they are there. */
weft_status weft_tier_upload(weft_tier_run *tier, weft_tier_place *to, int bucket,
                             weft_lane *lane) WEFT_CHECKED;
/* Whether experts are read and stepped during the backward of the layers below. */
bool weft_tier_goes_ahead(const weft_tier_run *tier);
/* Sorts by falling rows; insertion keeps equal ones in order. */
static inline void weft_tier_sort_by_rows(int32_t *experts, int count, const int64_t *rows)
{
    for (int i = 1; i < count; i++) {
        const int32_t e = experts[i];
        int k = i;
        while (k > 0 && rows[experts[k - 1]] < rows[e]) {
            experts[k] = experts[k - 1];
            k--;
        }
        experts[k] = e;
    }
}

/* --- sharing: layers/tier/share.c -----------------------------------------------------------
 *
 * The waits between ranks of a node that compute each other's experts
 * (parallel/parameters/parameters.h).
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
/* Connects the ranks among which experts are placed, before the first forward. Collective over
 * `group`, which is borrowed, and `shards`, the ranks with shards of the same experts; NULL:
 * none. */
weft_status weft_tier_join(weft_tier_run *tier, weft_comm *group, weft_comm *shards) WEFT_CHECKED;
/* Records the event of the bucket's finished update on the lane. */
weft_status weft_tier_end_update(weft_tier_run *tier, int bucket, weft_lane *lane) WEFT_CHECKED;
/* Call it after all weights changed. Collective. */
weft_status weft_tier_share_reset(weft_tier_run *tier) WEFT_CHECKED;

#endif
