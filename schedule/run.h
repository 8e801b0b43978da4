/* The executor: walks a program and enqueues each task on its lane; events order the lanes. */
#ifndef WEFT_SCHEDULE_RUN_H
#define WEFT_SCHEDULE_RUN_H

#include <weft/device.h>
#include <weft/operation.h>

#include "core/trace/trace.h"
#include "schedule/program.h"

/* Enqueues the task's work on `lane`; returns before it is done. */
typedef weft_status (*weft_task_function)(void *context, const weft_task *task, weft_lane *lane);

/* Fields of the slices of a program's tasks, from the level above. */
typedef struct weft_slice_context {
    int rank;
    int micro_batch;       /* for tasks without one; -1: none */
    bool backward;         /* " back" is appended to the category */
    const int *tracks;     /* [WEFT_NUM_LANES]: the slice's lane by the task's; NULL: the same */
    int stage, num_stages; /* the rank's number among the pipeline's */
    bool is_v;             /* as in weft_program */
} weft_slice_context;

/* Zero is valid; fill in lanes, run and context, then prepare. */
typedef struct weft_executor {
    weft_lane *lanes[WEFT_NUM_LANES];            /* borrowed; NULL: no task may use it */
    weft_task_function run[WEFT_NUM_TASK_KINDS]; /* NULL: no such task may occur */
    /* The event that a task's function records at a point, valid once the task is enqueued; NULL:
     * no task may wait for a point. */
    weft_event *(*point)(void *context, const weft_task *task, int point);
    void *context;
    weft_inner inner;         /* what notes call the program (core/device/device.h) */
    const weft_task *waiting; /* the task whose waits are enqueued */
    struct weft_ahead *ahead; /* NULL: tasks are enqueued in order alone (schedule/ahead.h) */
    uint32_t runs_on;         /* bits of lanes that weft_program_run leaves running */
    weft_trace *trace;        /* optional: gets a slice a task, which the task's lane stamps */
    weft_slice_context within;

    weft_event **done; /* one event a task; these belong to prepare and release */
    uint32_t num_done;
} weft_executor;

/* Makes the events for programs of up to max_tasks tasks, so that running allocates nothing. */
weft_status weft_executor_prepare(weft_executor *executor, weft_device *device,
                                  uint32_t max_tasks) WEFT_CHECKED;
void weft_executor_release(weft_executor *executor);

/* Enqueues all tasks and returns before they are done. One caller at a time. More programs may be
 * enqueued behind this one; only the order of each lane orders tasks of two programs. On an
 * error the lanes may still hold work that will never complete (a receive whose sender died): the
 * caller aborts. */
weft_status weft_program_enqueue(const weft_program *program, weft_executor *executor) WEFT_CHECKED;
/* Enqueues all tasks and returns when all lanes have finished them, except lanes in runs_on, which
 * hold the host's optimizer beside the next step's forward. The next run or drain returns their
 * later errors. */
weft_status weft_program_run(const weft_program *program, weft_executor *executor) WEFT_CHECKED;
/* Returns when all lanes have finished. Call it before anything but the next program reads what
 * lanes in runs_on write, and before the end. */
weft_status weft_executor_drain(const weft_executor *executor) WEFT_CHECKED;

#endif
