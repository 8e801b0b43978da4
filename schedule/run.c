#include "schedule/run.h"

#include <stdlib.h>
#include <string.h>

#include "core/device/device.h"
#include "core/doing.h"

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

static weft_status wait_for(const weft_cursor *c, const weft_task *task, weft_wait wait,
                            weft_lane *lane)
{
    const weft_executor *executor = c->executor;
    const bool is_step = wait.task == WEFT_STEP_BEFORE;
    weft_event *event = NULL;
    if (c->is_ordered && !is_step)
        return WEFT_OK;
    if (wait.point == -1 && !is_step)
        event = executor->done[wait.task];
    else if (executor->event)
        event = executor->event(executor->context, task, wait);
    if (event)
        return weft_lane_wait(lane, event);
    return is_step ? WEFT_OK
                   : WEFT_ERROR(WEFT_INTERNAL, "point %d of task %u is recorded nowhere",
                                wait.point, wait.task);
}

static weft_status wait_for_all(const weft_cursor *c, const weft_task *task, weft_lane *lane)
{
    const weft_wait *waits = c->program->waits + task->first_wait;
    for (uint32_t w = 0; w < task->num_waits; w++)
        WEFT_TRY(wait_for(c, task, waits[w], lane));
    return WEFT_OK;
}

static bool is_traced(const weft_executor *executor, const weft_task *task)
{
    const int *tracks = executor->within.tracks;
    return executor->trace && !(tracks && tracks[task->lane] == WEFT_NO_TRACK);
}

/* Under the task's name in flight records (core/doing.h). */
static weft_status run_part(const weft_executor *executor, const weft_task *task, weft_lane *lane)
{
    const weft_doing outer = *weft_doing_now();
    weft_doing_begin(weft_task_kind_text(task->kind), task->micro_batch, task->chunk, task->layer,
                     task->part);
    const weft_status status = executor->run[task->kind](executor->context, task, lane);
    *weft_doing_now() = outer;
    return status;
}

/* The function of a pair's forward enqueues both. */
static weft_status begin_task(weft_cursor *c, const weft_task *task, weft_lane *lane)
{
    const weft_executor *executor = c->executor;
    const int stretch = weft_task_kind_stretch(task->kind);
    weft_slice slice;
    WEFT_TRY(wait_for_all(c, task, lane));
    if (weft_task_opens_pair(task))
        WEFT_TRY(wait_for_all(c, task + 1, lane));
    if (stretch >= 0)
        weft_doing_pass((weft_doing_stretch)stretch);
    c->is_begun = true;
    if (!is_traced(executor, task))
        return WEFT_OK;
    weft_slice_within(&executor->within, task, &slice);
    return weft_trace_begin(executor->trace, lane, &slice, &c->slice);
}

static weft_status end_task(weft_cursor *c, const weft_task *task, weft_lane *lane)
{
    if (is_traced(c->executor, task))
        WEFT_TRY(weft_trace_end(c->executor->trace, lane, c->slice));
    if (!c->is_ordered)
        WEFT_TRY(weft_lane_record(lane, c->executor->done[c->at]));
    c->executor->upto[task->lane] = ++c->at;
    c->is_begun = false;
    return WEFT_OK;
}

weft_status weft_program_end_again(const weft_cursor *c, uint32_t task)
{
    const weft_executor *executor = c->executor;
    return c->is_ordered ? WEFT_OK
                         : weft_lane_record(executor->lanes[c->program->tasks[task].lane],
                                            executor->done[task]);
}

static bool is_enqueued(const weft_cursor *c, uint32_t task)
{
    return task < c->executor->upto[c->program->tasks[task].lane];
}

/* Whether all waits of a later task are enqueued, and recorded where they are points. passed: the
 * last point of the task at hand. */
static bool may_follow(const weft_cursor *c, int passed, const weft_task *task)
{
    const weft_executor *executor = c->executor;
    for (uint32_t w = 0; w < task->num_waits; w++) {
        const weft_wait wait = c->program->waits[task->first_wait + w];
        if (wait.task == WEFT_STEP_BEFORE || is_enqueued(c, wait.task))
            continue;
        if (wait.task != c->at || wait.point == -1)
            return false;
        if (passed > (wait.point >= 0 ? wait.point : executor->layer_of(executor->context, task)))
            return false;
    }
    return true;
}

/* Behind the part that has passed the point. */
static weft_status go_ahead(const weft_cursor *c, int passed)
{
    weft_cursor early = {c->program, c->executor, .at = c->at + 1, .is_ordered = c->is_ordered};
    uint32_t lanes = c->executor->ahead;
    while (lanes && early.at < c->program->num_tasks) {
        const weft_task *task = &c->program->tasks[early.at];
        const bool is_next = lanes >> task->lane & 1 && !is_enqueued(c, early.at);
        if (is_next && may_follow(c, passed, task)) {
            WEFT_TRY(weft_program_next(&early));
            continue;
        }
        if (is_next)
            lanes &= ~(1u << task->lane);
        early.at++;
    }
    return WEFT_OK;
}

static weft_status pass_point(const weft_cursor *c, weft_lane *lane, int point)
{
    const weft_executor *executor = c->executor;
    weft_event *event = executor->event(executor->context, NULL, (weft_wait){c->at, point});
    if (event)
        WEFT_TRY(weft_lane_record(lane, event));
    return go_ahead(c, point);
}

weft_status weft_program_next(weft_cursor *c)
{
    weft_executor *executor = c->executor;
    const weft_task *task = &c->program->tasks[c->at];
    weft_lane *lane = executor->lanes[task->lane];
    if (!c->is_begun)
        WEFT_TRY(begin_task(c, task, lane));
    executor->passed = -1;
    WEFT_TRY(run_part(executor, task, lane));
    if (executor->passed >= 0)
        WEFT_TRY(pass_point(c, lane, executor->passed));
    return executor->goes_on && executor->goes_on(executor->context, task)
               ? WEFT_OK
               : end_task(c, task, lane);
}

weft_status weft_program_open(const weft_program *program, weft_executor *executor,
                              weft_cursor *out)
{
    WEFT_TRY(check_executor(program, executor));
    memset(executor->upto, 0, sizeof executor->upto);
    *out = (weft_cursor){
        .program = program, .executor = executor, .is_ordered = is_on_one_lane(program, executor)};
    return WEFT_OK;
}

weft_status weft_program_enqueue(const weft_program *program, weft_executor *executor)
{
    weft_cursor c;
    WEFT_TRY(weft_program_open(program, executor, &c));
    while (c.at < program->num_tasks)
        if (!c.is_begun && is_enqueued(&c, c.at))
            c.at++;
        else
            WEFT_TRY(weft_program_next(&c));
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
