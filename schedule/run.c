#include "schedule/run.h"

#include <stdio.h>
#include <stdlib.h>

#include "core/device/device.h"
#include "core/doing.h"
#include "schedule/ahead.h"
#include "schedule/price/price.h"

weft_status weft_executor_prepare(weft_executor *executor, weft_device *device, uint32_t max_tasks)
{
    weft_executor_release(executor);
    executor->done = calloc(max_tasks ? max_tasks : 1, sizeof(*executor->done));
    if (!executor->done)
        return WEFT_ERROR(WEFT_MEMORY, "out of host memory for %u tasks", max_tasks);
    while (executor->num_done < max_tasks) {
        WEFT_TRY(weft_event_create(device, &executor->done[executor->num_done]));
        executor->num_done++;
    }
    return WEFT_OK;
}

void weft_executor_release(weft_executor *executor)
{
    while (executor->num_done > 0)
        weft_event_destroy(executor->done[--executor->num_done]);
    free(executor->done);
    executor->done = NULL;
}

/* Refuses a program that cannot finish, before anything is enqueued. */
static weft_status check_executor(const weft_program *program, const weft_executor *executor)
{
    if (program->num_tasks > executor->num_done)
        return WEFT_ERROR(WEFT_INTERNAL, "a program of %u tasks, prepared for %u",
                          program->num_tasks, executor->num_done);
    for (uint32_t i = 0; i < program->num_tasks; i++) {
        const weft_task *task = &program->tasks[i];
        if (!executor->lanes[task->lane] || !executor->run[task->kind])
            return WEFT_ERROR(WEFT_INTERNAL, "task %u: the executor has no %s for %s", i,
                              executor->lanes[task->lane] ? "function" : "lane",
                              weft_task_kind_text(task->kind));
    }
    return WEFT_OK;
}

/* On one lane no task waits for another lane, so the executor records no events. */
static bool is_on_one_lane(const weft_program *program, const weft_executor *executor)
{
    for (uint32_t i = 1; i < program->num_tasks; i++)
        if (executor->lanes[program->tasks[i].lane] != executor->lanes[program->tasks[0].lane])
            return false;
    return true;
}

static weft_status wait_for(const weft_program *program, const weft_executor *executor,
                            weft_lane *lane, const weft_wait *wait)
{
    if (wait->point < 0)
        return weft_lane_wait(lane, executor->done[wait->task]);
    weft_event *event = executor->point ? executor->point(executor->context,
                                                          &program->tasks[wait->task], wait->point)
                                        : NULL;
    if (!event)
        return WEFT_ERROR(WEFT_INTERNAL, "point %d of task %u is recorded nowhere", wait->point,
                          wait->task);
    return weft_lane_wait(lane, event);
}

static weft_status wait_for_all(const weft_program *program, weft_executor *executor,
                                const weft_task *task, weft_lane *lane)
{
    const weft_wait *waits = program->waits + task->first_wait;
    executor->waiting = task;
    for (uint32_t w = 0; w < task->num_waits; w++)
        WEFT_TRY(wait_for(program, executor, lane, &waits[w]));
    return WEFT_OK;
}

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

/* Inside its slice if the executor has a trace, under its name in flight records (core/doing.h). */
static weft_status run_task(const weft_executor *executor, const weft_task *task, weft_lane *lane)
{
    const weft_doing outer = *weft_doing_now();
    const weft_note_scope scope = weft_note_task(lane, executor->inner, task->kind, task->flow);
    const int stretch = weft_task_kind_stretch(task->kind);
    if (stretch >= 0)
        weft_doing_pass((weft_doing_stretch)stretch);
    weft_doing_begin(weft_task_kind_text(task->kind), task->micro_batch, task->chunk, task->layer,
                     task->part);
    weft_status status = executor->trace ? run_traced(executor, task, lane)
                                         : executor->run[task->kind](executor->context, task, lane);
    *weft_doing_now() = outer;
    weft_note_leave(lane, scope);
    return status;
}

/* The function of a pair's forward enqueues both. */
weft_status weft_program_begin_task(const weft_program *program, weft_executor *executor,
                                    uint32_t i, bool is_ordered)
{
    const weft_task *task = &program->tasks[i];
    weft_lane *lane = executor->lanes[task->lane];
    if (is_ordered)
        return WEFT_OK;
    WEFT_TRY(wait_for_all(program, executor, task, lane));
    return weft_task_opens_pair(task) ? wait_for_all(program, executor, task + 1, lane) : WEFT_OK;
}

weft_status weft_program_end_task(const weft_program *program, weft_executor *executor, uint32_t i,
                                  bool is_ordered)
{
    return is_ordered
               ? WEFT_OK
               : weft_lane_record(executor->lanes[program->tasks[i].lane], executor->done[i]);
}

weft_status weft_program_enqueue_task(const weft_program *program, weft_executor *executor,
                                      uint32_t i, bool is_ordered)
{
    const weft_task *task = &program->tasks[i];
    WEFT_TRY(weft_program_begin_task(program, executor, i, is_ordered));
    WEFT_TRY(run_task(executor, task, executor->lanes[task->lane]));
    return weft_program_end_task(program, executor, i, is_ordered);
}

weft_status weft_program_open(const weft_program *program, const weft_executor *executor,
                              bool *out_is_ordered)
{
    WEFT_TRY(check_executor(program, executor));
    *out_is_ordered = is_on_one_lane(program, executor);
    return WEFT_OK;
}

weft_status weft_program_enqueue(const weft_program *program, weft_executor *executor)
{
    bool is_ordered;
    WEFT_TRY(weft_program_open(program, executor, &is_ordered));
    for (uint32_t i = 0; i < program->num_tasks; i++)
        if (!weft_ahead_has(executor->ahead, program, i))
            WEFT_TRY(weft_program_enqueue_task(program, executor, i, is_ordered));
    return WEFT_OK;
}

static weft_status sync_lanes(const weft_executor *executor, uint32_t but)
{
    for (int lane = 0; lane < WEFT_NUM_LANES; lane++)
        if (executor->lanes[lane] && !(but >> lane & 1))
            WEFT_TRY(weft_lane_sync(executor->lanes[lane]));
    return WEFT_OK;
}

weft_status weft_program_run(const weft_program *program, weft_executor *executor)
{
    WEFT_TRY(weft_program_enqueue(program, executor));
    return sync_lanes(executor, executor->runs_on);
}

weft_status weft_executor_drain(const weft_executor *executor)
{
    return sync_lanes(executor, 0);
}
