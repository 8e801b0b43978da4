/* The executor: walks a program, enqueues each task on its lane; events carry the dependencies. */
#ifndef WEFT_SCHEDULE_RUN_H
#define WEFT_SCHEDULE_RUN_H

#include <weft/device.h>

#include "core/trace.h"
#include "schedule/program.h"

/* Enqueues the task's work on `lane`; returns before it is done. */
typedef weft_status (*weft_task_function)(void *context, const weft_task *task, weft_lane *lane);

typedef struct weft_executor {
    weft_lane *lanes[WEFT_NUM_LANES];            /* NULL: no task may use it */
    weft_task_function run[WEFT_NUM_TASK_KINDS]; /* NULL: no such task may occur */
    void *context;
    weft_event **done;  /* one event a task, made by weft_executor_prepare */
    uint32_t num_done;
    weft_device *device;
    weft_trace *trace;  /* optional: a slice a task is added (start and end as its lane saw them) */
    double trace_origin_us;
    int trace_rank;
} weft_executor;

/* Makes the events for programs of up to max_tasks tasks, so that running allocates nothing. */
weft_status weft_executor_prepare(weft_executor *executor, weft_device *device,
                                  uint32_t max_tasks) WEFT_CHECKED;
void weft_executor_release(weft_executor *executor);

/* Enqueues all tasks and returns when all lanes have finished them. On an error the lanes may
 * still hold work that will never complete (a receive whose sender died): the caller aborts. */
weft_status weft_program_run(const weft_program *program, weft_executor *executor) WEFT_CHECKED;

#endif
