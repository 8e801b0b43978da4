/* Experts in host memory while they train (layers/tier.h): weight slots and gradient slots on the
 * device, which expert is in which, and the programs that bring them up and down
 * (schedule/experts.h). Slots outlive programs: each has an event at its last use, for which the
 * task waits that fills it next; each expert has one where its gradient is in host memory and one
 * where its step is over. Of experts in a file every task takes the record that it works on. One
 * thread drives a model. Private to layers/. */
#ifndef WEFT_LAYERS_TIER_RUN_H
#define WEFT_LAYERS_TIER_RUN_H

#include <weft/device.h>

#include "core/arena.h"
#include "layers/note.h"
#include "layers/placing.h"
#include "layers/tier.h"
#include "parallel/parameters.h"
#include "schedule/run.h"

typedef struct weft_tier_run weft_tier_run;

typedef struct weft_tier_setup {
    weft_device *device;         /* borrowed, and */
    weft_parameters *parameters; /* laid out, experts in host memory */
    const weft_tier_options *options;
    bool training;    /* gradients come down, */
    bool accumulates; /* of several micro-batches */
    int num_threads;  /* of what the host adds */
    bool at_once;     /* experts step before the norm is known */
} weft_tier_setup;

/* What of the device's memory the slots take: weights, gradients; of the host's. Pure. */
typedef struct weft_tier_bytes {
    uint64_t weights, gradients, host;
} weft_tier_bytes;

/* What an expert computes with: its bucket's memory on the device, laid out as on the host.
 * gradient: fp32; NULL in a forward. */
typedef struct weft_tier_memory {
    char *weights;
    float *gradient;
} weft_tier_memory;

/* One layer's experts on one micro-batch, or a run of them. What it points at lives until its tasks
 * have run. */
typedef struct weft_tier_call {
    const weft_pass *pass; /* whose timeline it is in */
    int layer;
    bool backward;
    /* [num_experts]: the expert at each. Of experts that are dealt out (layers/placing.h), and what
     * follows: of all the group's, by seat. */
    const int32_t *positions;
    const int64_t *offsets; /* [num_experts + 1]: rows, by expert */
    /* The positions whose turn it is: runs that follow each other, backward falling, are a layer's
     * partitions (schedule/experts.h), with the same positions and offsets. */
    int first_position, end_position;
    /* Where all the group's experts compute, by expert; NULL: at home. */
    const weft_placement_part *placed;
    const int32_t *first_placed;
    /* Enqueues what an expert with rows computes on the compute lane. */
    weft_status (*run)(void *context, int expert, const weft_tier_memory *memory, weft_lane *lane);
    void *context;
} weft_tier_call;

/* Errors: WEFT_MEMORY, WEFT_DEVICE, WEFT_CONFIG (experts' parameters that no bucket of an expert
 * holds, with the layer). */
weft_status weft_tier_create(const weft_tier_setup *setup, weft_tier_run **out) WEFT_CHECKED;
void weft_tier_destroy(weft_tier_run *tier); /* NULL is legal */

/* Whether experts are dealt out, each micro-batch. */
bool weft_tier_places(const weft_tier_run *tier);
/* Joins the ranks that a layer's experts are dealt out over, before the first forward. Collective
 * over `group`, which is borrowed, and over the ranks that have shards of the same experts; NULL:
 * none. */
weft_status weft_tier_join(weft_tier_run *tier, weft_comm *group, weft_comm *shards) WEFT_CHECKED;
/* Lanes that wait for other ranks fail from here on. NULL is legal. */
void weft_tier_abandon(weft_tier_run *tier);
/* Of the micro-batch last placed: for weft_placing_sends and the like. */
weft_placing *weft_tier_placing(weft_tier_run *tier);
/* weft_placing_find, proved. sent: [ranks][experts]. */
weft_status weft_tier_deal_out(weft_tier_run *tier, int layer, const int64_t *sent,
                               weft_placement_part *parts, int32_t *first_part) WEFT_CHECKED;

/* Which expert stands where: those that the device keeps, then by falling rows; equal ones by
 * number. offsets, out: [num_experts + 1], [num_experts]. */
void weft_tier_positions(const weft_tier_run *tier, int layer, const int64_t *offsets,
                         int32_t *out);
/* The same of any rank's experts: kept: [num], the place of each among those that its device keeps,
 * from 1, or 0, as weft_tier_kept_places gives it of this rank's. */
void weft_tier_stand(int num, const int64_t *kept, const int64_t *rows, int32_t *out);
void weft_tier_kept_places(const weft_tier_run *tier, int layer, int64_t *out);
/* Enqueues the layer's experts program: EXPERT tasks on `compute`, the rest on lanes beside it,
 * which run on when it is over. */
weft_status weft_tier_enqueue(weft_tier_run *tier, const weft_tier_call *call,
                              weft_lane *compute) WEFT_CHECKED;

/* A step begins: no expert has a gradient, and the most loaded of the step before are kept. Or an
 * evaluation, which changes neither. */
void weft_tier_begin(weft_tier_run *tier, bool training);
/* The update uses a bucket: for the norm, or steps it. */
void weft_tier_update(weft_tier_run *tier, int bucket, bool is_step);
/* Of an expert's bucket: has it a gradient in this step. */
bool weft_tier_has_gradient(const weft_tier_run *tier, int bucket);
/* Recorded where the bucket's gradient of this step is in host memory. */
weft_event *weft_tier_landed(const weft_tier_run *tier, int bucket);
/* Recorded where the bucket's update is over: uploads wait for it. */
weft_event *weft_tier_stepped(const weft_tier_run *tier, int bucket);
/* The bucket's update is over at this point of the lane. */
weft_status weft_tier_end_update(weft_tier_run *tier, int bucket, weft_lane *lane) WEFT_CHECKED;
/* What is on the device of the bucket is out of date from here on. */
void weft_tier_change(weft_tier_run *tier, int bucket);
/* Whose update of the same layer the step's tasks of this bucket do, behind the layer's backwards:
 * the first that asks gets the expert whose gradient landed first; or that the next forward is
 * likely to need first, by the rows of this step. Experts in a file take no turns: the bucket
 * itself. */
int weft_tier_turn(weft_tier_run *tier, int bucket, weft_tier_turn_kind kind);
/* Of experts in a file: a place for the bucket's record; its gradient, if it has one in this step,
 * or all of it. Enqueued on their own lane, which is NULL where no expert is in a file. */
weft_status weft_tier_make_room(weft_tier_run *tier, int bucket) WEFT_CHECKED;
weft_status weft_tier_read(weft_tier_run *tier, int bucket, bool whole) WEFT_CHECKED;
weft_lane *weft_tier_file_lane(const weft_tier_run *tier); /* borrowed */
/* Whether experts are read and step while the layers below go backward. */
bool weft_tier_goes_ahead(const weft_tier_run *tier);
/* Brings what of the bucket the device keeps up to date. The first call of these two in a step
 * chooses which experts of the layer are kept from now on. */
weft_status weft_tier_refresh(weft_tier_run *tier, int bucket, weft_lane *lane) WEFT_CHECKED;
/* After weights changed otherwise (first values, a load): nothing on the device is up to date, and
 * the lanes are idle. Collective over the group that joined. */
weft_status weft_tier_reset(weft_tier_run *tier) WEFT_CHECKED;
/* Waits for the lanes that run on. */
weft_status weft_tier_drain(weft_tier_run *tier) WEFT_CHECKED;
const weft_tier_counts *weft_tier_counted(weft_tier_run *tier);

#endif
