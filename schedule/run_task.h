/* Runs one task, inside its slice if the executor has a trace, under its name in flight records
 * (core/doing.h). */
#ifndef WEFT_SCHEDULE_RUN_TASK_H
#define WEFT_SCHEDULE_RUN_TASK_H

#include "schedule/run.h"

/* Calls the executor's function of the task. */
weft_status weft_task_run(const weft_executor *executor, const weft_task *task,
                          weft_lane *lane) WEFT_CHECKED;

#endif
