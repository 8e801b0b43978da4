/* Experts in host memory while they train (layers/tier/tier.h): weight and gradient slots on the
 * device, their experts, and the tasks that move weights and gradients
 * (schedule/experts/experts.h), which stand in the bodies of passes (schedule/moe/inside.h). Slots
 * outlive bodies: each has an event at its last use, and the task that fills it next, in whatever
 * body, waits for that. Each expert has events where its gradient is in host memory and where its
 * step is over. With experts in a file every task pins the record that it uses. One thread drives a
 * model. */
#ifndef WEFT_LAYERS_TIER_RUN_H
#define WEFT_LAYERS_TIER_RUN_H

#include <weft/device.h>

#include "core/arena.h"
#include "layers/tier/placing.h"
#include "layers/tier/tier.h"
#include "parallel/parameters/parameters.h"
#include "schedule/program.h"

typedef struct weft_tier_run weft_tier_run;

typedef struct weft_tier_setup {
    weft_device *device;         /* borrowed, and */
    weft_parameters *parameters; /* laid out, experts in host memory */
    const weft_tier_options *options;
    bool training;    /* backwards bring gradients down */
    bool accumulates; /* gradients of several micro-batches are added */
    int num_threads;  /* threads of the host's additions */
    bool at_once;     /* experts step before the norm is known */
} weft_tier_setup;

/* An expert's device memory, laid out like its bucket on the host. gradient: fp32; NULL in a
 * forward. */
typedef struct weft_tier_memory {
    char *weights;
    float *gradient;
} weft_tier_memory;

/* A layer's experts, or a run of them, on one micro-batch: what its tasks serve. Its pointers must
 * be valid until its tasks have run. */
typedef struct weft_tier_call {
    int layer;
    bool backward;
    /* [num_experts]: the expert at each position. With placement (layers/tier/placing.h) this and
     * the next arrays cover all the group's experts, by seat. */
    const int32_t *positions;
    const int64_t *offsets; /* [num_experts + 1]: rows, by expert */
    /* The run of positions to compute. Adjacent runs, backward falling, are a layer's partitions
     * (schedule/experts/experts.h), with the same positions and offsets. */
    int first_position, end_position;
    /* By expert: where the group's experts compute; NULL: at home. */
    const weft_placement_part *placed;
    const int32_t *first_placed;
    /* Enqueues an expert's computation on the compute lane; only for experts with rows. */
    weft_status (*run)(void *context, int expert, const weft_tier_memory *memory, weft_lane *lane);
    void *context;
} weft_tier_call;

/* Errors: WEFT_MEMORY, WEFT_DEVICE, WEFT_CONFIG (an experts' parameter in no expert's bucket, with
 * the layer). */
weft_status weft_tier_create(const weft_tier_setup *setup, weft_tier_run **out) WEFT_CHECKED;
void weft_tier_destroy(weft_tier_run *tier); /* NULL is legal */

/* Makes lanes that wait for other ranks fail. NULL is legal. */
void weft_tier_abandon(weft_tier_run *tier);
/* The latest micro-batch's placement, for weft_placing_sends and others. */
weft_placing *weft_tier_placing(weft_tier_run *tier);
/* Calls weft_placing_find and weft_placing_check. sent: [ranks][experts]. */
weft_status weft_tier_deal_out(weft_tier_run *tier, int layer, const int64_t *sent,
                               weft_placement_part *parts, int32_t *first_part) WEFT_CHECKED;

/* Orders experts by position: kept ones first, then by falling rows; ties by number. offsets, out:
 * [num_experts + 1], [num_experts]. */
void weft_tier_positions(const weft_tier_run *tier, int layer, const int64_t *offsets,
                         int32_t *out);
/* The same for any rank's experts. kept: [num], each one's place among its device's kept experts,
 * from 1; 0: not kept. Below: this rank's. */
void weft_tier_stand(int num, const int64_t *kept, const int64_t *rows, int32_t *out);
void weft_tier_kept_places(const weft_tier_run *tier, int layer, int64_t *out);
/* The forward and the backward program [2] of layers with *num_positions experts, of the i-th
 * number; NULL: there are no more numbers. */
const weft_program *weft_tier_programs(const weft_tier_run *tier, int i, int *num_positions);
/* Adds the lanes of the tasks beside compute, which run on when the layer is over. */
void weft_tier_lanes(const weft_tier_run *tier, weft_lane *lanes[WEFT_NUM_LANES]);
/* A run of positions: ahead of its first task, on the compute lane; a task; behind the last. */
weft_status weft_tier_begin(weft_tier_run *tier, const weft_tier_call *call,
                            weft_lane *compute) WEFT_CHECKED;
weft_status weft_tier_run_task(weft_tier_run *tier, const weft_tier_call *call,
                               const weft_task *task, weft_lane *lane) WEFT_CHECKED;
weft_status weft_tier_end(weft_tier_run *tier, const weft_tier_call *call) WEFT_CHECKED;

#endif
