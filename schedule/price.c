#include "schedule/price.h"

#include "schedule/walk.h"

/* The clocks of one stage. */
typedef struct stage_times {
    double *end_us; /* of each task */
    double lane_us[WEFT_NUM_LANES];
} stage_times;

static weft_status start_times(const weft_program *programs, int num_stages, weft_arena *scratch,
                               stage_times **out)
{
    void *memory;
    WEFT_TRY(weft_arena_alloc_array(scratch, (size_t)num_stages, sizeof(stage_times), &memory));
    *out = memory;
    for (int stage = 0; stage < num_stages; stage++) {
        WEFT_TRY(
            weft_arena_alloc_array(scratch, programs[stage].num_tasks, sizeof(double), &memory));
        (*out)[stage].end_us = memory;
    }
    return WEFT_OK;
}

/* When the task's lane is free and its waits are over. */
static double ready_us(const weft_program *program, const stage_times *times, uint32_t index)
{
    const weft_task *task = &program->tasks[index];
    double ready = times->lane_us[task->lane];
    for (uint32_t w = 0; w < task->num_waits; w++) {
        const double end = times->end_us[program->waits[task->first_wait + w]];
        ready = ready < end ? end : ready;
    }
    return ready;
}

void weft_slice_of_task(const weft_task *task, weft_slice *out)
{
    *out = (weft_slice){.lane = task->lane, .micro_batch = task->micro_batch, .stage = task->stage};
    const char *letter = weft_task_kind_letter(task->kind);
    static const char *const flow_letters[WEFT_NUM_FLOWS] = {
        [WEFT_FLOW_NONE] = "",   [WEFT_FLOW_ACTIVATION] = "", [WEFT_FLOW_GRADIENT] = "g",
        [WEFT_FLOW_INPUT] = "i", [WEFT_FLOW_MIDDLE] = "m",
    };
    const char *flow = flow_letters[task->flow];
    if (task->micro_batch >= 0)
        snprintf(out->name, sizeof(out->name), "%s%s%d", letter, flow, task->micro_batch);
    else
        snprintf(out->name, sizeof(out->name), "%s", letter);
    snprintf(out->category, sizeof(out->category), "%s", weft_task_kind_text(task->kind));
}

static weft_status occupy(const weft_program *program, stage_times *times, int stage,
                          uint32_t index, double start_us, double end_us, weft_trace *trace)
{
    const weft_task *task = &program->tasks[index];
    times->end_us[index] = times->lane_us[task->lane] = end_us;
    if (!trace)
        return WEFT_OK;
    weft_slice slice;
    weft_slice_of_task(task, &slice);
    slice.rank = stage;
    slice.start_us = start_us;
    slice.end_us = end_us;
    WEFT_TRY(weft_trace_add(trace, &slice));
    return WEFT_OK;
}

static weft_status simulate(const weft_program *programs, int num_stages, weft_task_cost cost,
                            const void *context, weft_arena *scratch, weft_trace *trace,
                            weft_price *price)
{
    stage_times *times = NULL;
    weft_walk walk;
    WEFT_TRY(start_times(programs, num_stages, scratch, &times));
    WEFT_TRY(weft_walk_start(&walk, programs, num_stages, scratch));

    /* The walk visits a task after everything it depends on, so its start is the latest of ends
     * that are known already. */
    for (weft_walk_step step; weft_walk_next(&walk, &step);) {
        const weft_program *program = &programs[step.stage];
        const weft_task *task = &program->tasks[step.task];
        double start = ready_us(program, &times[step.stage], step.task);
        if (step.peer >= 0) {
            const double peer = ready_us(&programs[step.peer], &times[step.peer], step.receive);
            start = start < peer ? peer : start;
        }
        const double us = cost(context, step.stage, task);
        WEFT_TRY(
            occupy(program, &times[step.stage], step.stage, step.task, start, start + us, trace));
        if (step.peer >= 0)
            WEFT_TRY(occupy(&programs[step.peer], &times[step.peer], step.peer, step.receive, start,
                            start + us, trace));
        if (task->lane == WEFT_LANE_COMPUTE)
            price->busy_us[step.stage] += us;
        if (price->makespan_us < start + us)
            price->makespan_us = start + us;
    }
    WEFT_TRY(weft_walk_finish(&walk));
    return WEFT_OK;
}

weft_status weft_program_price(const weft_program *programs, int num_stages, weft_task_cost cost,
                               const void *context, weft_arena *arena, weft_trace *trace,
                               weft_price *out)
{
    void *busy;
    WEFT_TRY(weft_arena_alloc_array(arena, (size_t)num_stages, sizeof(double), &busy));
    weft_price price = {.busy_us = busy};
    if (trace)
        weft_trace_name_lanes(trace, weft_lane_kind_texts(), WEFT_NUM_LANES);
    weft_arena scratch = {0};
    const weft_status status =
        simulate(programs, num_stages, cost, context, &scratch, trace, &price);
    weft_arena_release(&scratch);
    WEFT_TRY(status);

    double sum_busy_us = 0;
    for (int stage = 0; stage < num_stages; stage++)
        sum_busy_us += price.busy_us[stage];
    if (price.makespan_us > 0)
        price.bubble_share = 1 - sum_busy_us / (num_stages * price.makespan_us);
    *out = price;
    return WEFT_OK;
}
