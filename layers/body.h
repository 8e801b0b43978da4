/* A layer's body as two programs, forward and backward, that run on the compute lane and on lanes
 * beside it: an MoE layer's, or attention over context-parallel ranks. One thread drives a model.
 * Private to layers/. */
#ifndef WEFT_LAYERS_BODY_H
#define WEFT_LAYERS_BODY_H

#include "comm/comm.h"
#include "schedule/run.h"

typedef struct weft_body_lane {
    weft_lane_kind kind;
    int priority; /* as in device.h */
    const char *name;
} weft_body_lane;

/* Zero is valid, and has no lanes. */
typedef struct weft_body {
    weft_device *device;              /* borrowed */
    weft_lane *lanes[WEFT_NUM_LANES]; /* owned; NULL: such tasks run on the compute lane */
    bool tasks_use_lanes; /* a task's function enqueues on the lanes itself, whatever its own */
    weft_event *begin, *ends[WEFT_NUM_LANES];
    weft_executor executor; /* whose functions the layer fills in */
} weft_body;

/* Errors of all: WEFT_MEMORY, WEFT_DEVICE. */
weft_status weft_body_create_lanes(weft_body *body, const weft_body_lane *rows,
                                   size_t num_rows) WEFT_CHECKED;
void weft_body_release(weft_body *body);
/* Makes the executor ready for these two programs beside those of before. */
weft_status weft_body_prepare(weft_body *body, const weft_program programs[2]) WEFT_CHECKED;
/* Arrays for the memory of the programs' slots, [num_slots] each. */
weft_status weft_body_memory(weft_arena *arena, const weft_program programs[2],
                             void **out_memory[2]) WEFT_CHECKED;
/* weft_comm_reserve on the compute lane and on the body's own. */
weft_status weft_body_reserve(const weft_body *body, const weft_comm *comm, weft_lane *compute,
                              size_t bytes) WEFT_CHECKED;
/* Enqueues a program behind what `compute` holds, and makes `compute` wait for its end.
 * synchronous: every task on `compute`. context: what tasks' functions get. */
weft_status weft_body_enqueue(weft_body *body, const weft_program *program, weft_lane *compute,
                              bool synchronous, void *context) WEFT_CHECKED;

#endif
