#include "layers/pass/runner.h"

weft_status weft_runner_create_lanes(weft_runner *runner, const weft_runner_lane *rows,
                                     size_t num_rows)
{
    WEFT_TRY(weft_event_create(runner->device, &runner->begin));
    for (size_t i = 0; i < num_rows; i++) {
        const weft_lane_kind kind = rows[i].kind;
        WEFT_TRY(
            weft_lane_create(runner->device, rows[i].priority, rows[i].name, &runner->lanes[kind]));
        WEFT_TRY(weft_event_create(runner->device, &runner->ends[kind]));
    }
    return WEFT_OK;
}

void weft_runner_release(weft_runner *runner)
{
    for (int i = 0; i < WEFT_NUM_LANES; i++) {
        weft_lane_destroy(runner->lanes[i]);
        weft_event_destroy(runner->ends[i]);
    }
    weft_event_destroy(runner->begin);
    weft_executor_release(&runner->executor);
}

weft_status weft_runner_prepare(weft_runner *runner, const weft_program programs[2])
{
    const uint32_t forward = programs[0].num_tasks, backward = programs[1].num_tasks;
    const uint32_t most = forward > backward ? forward : backward;
    return most <= runner->executor.num_done
               ? WEFT_OK
               : weft_executor_prepare(&runner->executor, runner->device, most);
}

weft_status weft_runner_memory(weft_arena *arena, const weft_program programs[2],
                               void **out_memory[2])
{
    for (int i = 0; i < 2; i++) {
        void *memory;
        WEFT_TRY(
            weft_arena_alloc_array(arena, (size_t)programs[i].num_slots, sizeof(void *), &memory));
        out_memory[i] = memory;
    }
    return WEFT_OK;
}

weft_status weft_runner_reserve(const weft_runner *runner, const weft_comm *comm,
                                weft_lane *compute, size_t bytes)
{
    WEFT_TRY(weft_comm_reserve(comm, compute, bytes));
    for (int i = 0; i < WEFT_NUM_LANES; i++)
        if (runner->lanes[i])
            WEFT_TRY(weft_comm_reserve(comm, runner->lanes[i], bytes));
    return WEFT_OK;
}

static weft_status begin_lanes(weft_runner *runner, weft_lane *compute)
{
    WEFT_TRY(weft_lane_record(compute, runner->begin));
    for (int i = 0; i < WEFT_NUM_LANES; i++)
        if (runner->lanes[i])
            WEFT_TRY(weft_lane_wait(runner->lanes[i], runner->begin));
    return WEFT_OK;
}

static weft_status end_lanes(weft_runner *runner, weft_lane *compute)
{
    for (int i = 0; i < WEFT_NUM_LANES; i++)
        if (runner->lanes[i]) {
            WEFT_TRY(weft_lane_record(runner->lanes[i], runner->ends[i]));
            WEFT_TRY(weft_lane_wait(compute, runner->ends[i]));
        }
    return WEFT_OK;
}

weft_status weft_runner_enqueue(weft_runner *runner, const weft_program *program,
                                weft_lane *compute, bool synchronous, void *context)
{
    const bool joins = runner->begin && (!synchronous || runner->tasks_use_lanes);
    weft_executor *ex = &runner->executor;
    for (int i = 0; i < WEFT_NUM_LANES; i++)
        ex->lanes[i] = synchronous || !runner->lanes[i] ? compute : runner->lanes[i];
    ex->context = context;
    if (joins)
        WEFT_TRY(begin_lanes(runner, compute));
    WEFT_TRY(weft_program_enqueue(program, ex));
    if (joins)
        WEFT_TRY(end_lanes(runner, compute));
    return WEFT_OK;
}
