/* Runs programs inside a layer on the compute lane and lanes beside it: one of an MoE layer's
 * exchanges', or attention's over context-parallel ranks. One thread drives a model. Private to
 * layers/. */
#ifndef WEFT_LAYERS_PASS_RUNNER_H
#define WEFT_LAYERS_PASS_RUNNER_H

#include "comm/comm.h"
#include "schedule/run.h"

typedef struct weft_runner_lane {
    weft_lane_kind kind;
    int priority; /* as in device.h */
    const char *name;
} weft_runner_lane;

/* Zero is valid, and has no lanes. */
typedef struct weft_runner {
    weft_device *device;              /* borrowed */
    weft_lane *lanes[WEFT_NUM_LANES]; /* owned; NULL: such tasks run on the compute lane */
    weft_event *begin, *ends[WEFT_NUM_LANES];
    weft_executor executor; /* the layer fills in its functions */
} weft_runner;

/* Errors here and below: WEFT_MEMORY, WEFT_DEVICE. */
weft_status weft_runner_create_lanes(weft_runner *runner, const weft_runner_lane *rows,
                                     size_t num_rows) WEFT_CHECKED;
void weft_runner_release(weft_runner *runner);
/* Prepares the executor for these programs, too. */
weft_status weft_runner_prepare(weft_runner *runner, const weft_program *programs,
                                int count) WEFT_CHECKED;
/* Arrays for the memory of the programs' slots, [num_slots] each. */
weft_status weft_runner_memory(weft_arena *arena, const weft_program programs[2],
                               void **out_memory[2]) WEFT_CHECKED;
/* Calls weft_comm_reserve on the compute lane and on the runner's lanes. */
weft_status weft_runner_reserve(const weft_runner *runner, const weft_comm *comm,
                                weft_lane *compute, size_t bytes) WEFT_CHECKED;
/* Enqueues the program behind earlier work of `compute`, and makes `compute` wait for its end.
 * context: an argument of tasks' functions. */
weft_status weft_runner_enqueue(weft_runner *runner, const weft_program *program,
                                weft_lane *compute, void *context) WEFT_CHECKED;

#endif
