/* Runs programs inside a layer on the compute lane and lanes beside it: an MoE layer's, one of its
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

/* A program that is being enqueued. */
typedef struct weft_runner_strand {
    weft_event *begin, *ends[WEFT_NUM_LANES];
    weft_executor executor; /* the layer fills in its functions */
    weft_cursor cursor;
    bool joins; /* tasks run on several lanes */
} weft_runner_strand;

/* Programs of two strands can be enqueued by turns: a forward's and a backward's. */
enum { WEFT_RUNNER_STRANDS = 2 };

/* Zero is valid, and has no lanes. */
typedef struct weft_runner {
    weft_device *device;              /* borrowed */
    weft_lane *lanes[WEFT_NUM_LANES]; /* owned; NULL: such tasks run on the compute lane */
    weft_runner_strand strands[WEFT_RUNNER_STRANDS];
} weft_runner;

/* Errors here and below: WEFT_MEMORY, WEFT_DEVICE. */
weft_status weft_runner_create_lanes(weft_runner *runner, const weft_runner_lane *rows,
                                     size_t num_rows) WEFT_CHECKED;
void weft_runner_release(weft_runner *runner);
/* Prepares the executors for these programs, too. */
weft_status weft_runner_prepare(weft_runner *runner, const weft_program *programs,
                                int count) WEFT_CHECKED;
/* Arrays for the memory of the programs' slots, [num_slots] each. */
weft_status weft_runner_memory(weft_arena *arena, const weft_program programs[2],
                               void **out_memory[2]) WEFT_CHECKED;
/* Calls weft_comm_reserve on the compute lane and on the runner's lanes. */
weft_status weft_runner_reserve(const weft_runner *runner, const weft_comm *comm,
                                weft_lane *compute, size_t bytes) WEFT_CHECKED;
/* Begins a program behind what is on `compute` now. synchronous: every task on `compute`. context:
 * an argument of tasks' functions. */
weft_status weft_runner_begin(weft_runner *runner, int strand, const weft_program *program,
                              weft_lane *compute, bool synchronous, void *context) WEFT_CHECKED;
/* Enqueues the strand's next task. */
weft_status weft_runner_task(weft_runner *runner, int strand) WEFT_CHECKED;
/* Makes the strand's `compute` wait for all of its tasks. */
weft_status weft_runner_end(weft_runner *runner, int strand) WEFT_CHECKED;
/* All three, of the first strand, on the runner's lanes. */
weft_status weft_runner_enqueue(weft_runner *runner, const weft_program *program,
                                weft_lane *compute, void *context) WEFT_CHECKED;

#endif
