#include "schedule/run_task.h"

#include <stdio.h>

#include "core/device/device.h"
#include "core/doing.h"
#include "schedule/price/price.h"

/* Runs a task, its slice around it. */
static weft_status run_traced(const weft_executor *executor, const weft_task *task, weft_lane *lane)
{
    const weft_slice_context *within = &executor->within;
    weft_slice slice;
    size_t index;
    weft_slice_of_task(task, within->stage, within->num_stages, within->is_v, &slice);
    slice.rank = within->rank;
    if (within->tracks)
        slice.lane = within->tracks[task->lane];
    if (slice.micro_batch < 0)
        slice.micro_batch = within->micro_batch;
    if (within->backward)
        snprintf(slice.category, sizeof slice.category, "%s back", weft_task_kind_text(task->kind));
    WEFT_TRY(weft_trace_begin(executor->trace, lane, &slice, &index));
    WEFT_TRY(executor->run[task->kind](executor->context, task, lane));
    return weft_trace_end(executor->trace, lane, index);
}

static weft_doing_stretch stretch_of(weft_task_kind kind)
{
    switch (kind) {
    case WEFT_TASK_SUM:
    case WEFT_TASK_REDUCE:
        return WEFT_DOING_SUMS;
    case WEFT_TASK_NORM:
        return WEFT_DOING_NORM;
    case WEFT_TASK_GATHER:
        return WEFT_DOING_UPDATES;
    default:
        return WEFT_DOING_PASSES;
    }
}

/* What ranks of a stage all do. Not what a rank does for experts of its own, and by itself. */
static bool is_common(weft_task_kind kind)
{
    switch (kind) {
    case WEFT_TASK_FORWARD:
    case WEFT_TASK_BACKWARD:
    case WEFT_TASK_SEND:
    case WEFT_TASK_RECEIVE:
    case WEFT_TASK_SUM:
    case WEFT_TASK_REDUCE:
    case WEFT_TASK_NORM:
    case WEFT_TASK_GATHER:
    case WEFT_TASK_LAYER:
    case WEFT_TASK_COUNTS:
    case WEFT_TASK_DISPATCH:
    case WEFT_TASK_COMBINE:
    case WEFT_TASK_SHIFT:
        return true;
    default:
        return false;
    }
}

weft_status weft_task_run(const weft_executor *executor, const weft_task *task, weft_lane *lane)
{
    const weft_doing outer = *weft_doing_now();
    const weft_note_scope scope = weft_note_task(lane, executor->inner, task->kind, task->flow);
    if (is_common(task->kind))
        weft_doing_pass(stretch_of(task->kind));
    weft_doing_begin(weft_task_kind_text(task->kind), task->micro_batch, task->chunk, task->layer,
                     task->part);
    weft_status status = executor->trace ? run_traced(executor, task, lane)
                                         : executor->run[task->kind](executor->context, task, lane);
    *weft_doing_now() = outer;
    weft_note_leave(lane, scope);
    return status;
}
