/* The executor: walks a program and enqueues each task on its lane; events order the lanes. */
#ifndef WEFT_SCHEDULE_RUN_H
#define WEFT_SCHEDULE_RUN_H

#include <weft/device.h>
#include <weft/operation.h>

#include "schedule/price/price.h"

/* Enqueues the task's work on `lane`, or the next part of it; returns before it is done. */
typedef weft_status (*weft_task_function)(void *context, const weft_task *task, weft_lane *lane);

/* Zero is valid; fill in lanes, run and context, then prepare. */
typedef struct weft_executor {
    weft_lane *lanes[WEFT_NUM_LANES];            /* borrowed; NULL: no task may use it */
    weft_task_function run[WEFT_NUM_TASK_KINDS]; /* NULL: no such task may occur */
    /* Whether the task, whose function has run, has another part, for which the function runs
     * again; NULL: tasks have one part. */
    bool (*goes_on)(void *context, const weft_task *task);
    /* The event that a task's wait is for: of a point, or of the step before. The executor records
     * that of a layer's point behind the part that passes the point; it asks for it with waiting
     * NULL, and NULL says that nobody waits. Whose gradient lands records that of a landing, before
     * the task's end is enqueued. Of the step before NULL says that the task's function waits
     * itself, where it has anything to do. event NULL says the same, and no task has points. */
    weft_event *(*event)(void *context, const weft_task *waiting, weft_wait wait);
    void *context;
    uint32_t runs_on; /* bits of lanes that weft_program_run leaves running */
    /* Bits of lanes that go ahead: between the parts of a long task their next tasks are enqueued,
     * as far as their waits are enqueued and their points recorded. So work that the other parts
     * put on these lanes does not all stand ahead of those tasks. Each lane keeps the program's
     * order. */
    uint32_t ahead;
    /* With `ahead`: the layer whose point's part records the landing that the task waits for. */
    int (*layer_of)(void *context, const weft_task *waiting);
    int passed;        /* set by a task's function whose part has passed a point: that one */
    weft_trace *trace; /* optional: gets a slice a task, which the task's lane stamps */
    weft_slice_context within;

    weft_event **done; /* one event a task; these belong to prepare and release */
    uint32_t num_done;
    uint32_t upto[WEFT_NUM_LANES]; /* behind each lane's last task that is enqueued */
} weft_executor;

/* Makes the events for programs of up to max_tasks tasks, so that running allocates nothing. */
weft_status weft_executor_prepare(weft_executor *executor, weft_device *device,
                                  uint32_t max_tasks) WEFT_CHECKED;
void weft_executor_release(weft_executor *executor);

/* A program that is being enqueued. */
typedef struct weft_cursor {
    const weft_program *program;
    weft_executor *executor;
    uint32_t at;     /* the next task, or the one whose parts are enqueued */
    bool is_begun;   /* a part of it is */
    bool is_ordered; /* all tasks are on one lane, so that none waits for another */
    size_t slice;    /* of the task at hand */
} weft_cursor;

/* At the first task. Refuses a program that cannot finish, before anything is enqueued. */
weft_status weft_program_open(const weft_program *program, weft_executor *executor,
                              weft_cursor *out) WEFT_CHECKED;
/* Enqueues the next part of the task at hand: its waits before the first, its event behind the
 * last. */
weft_status weft_program_next(weft_cursor *cursor) WEFT_CHECKED;
/* Records the event of an earlier task again, behind what was put on its lane since: tasks enqueued
 * from now on wait for that, too. */
weft_status weft_program_end_again(const weft_cursor *cursor, uint32_t task) WEFT_CHECKED;

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
