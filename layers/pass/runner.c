#include "layers/pass/runner.h"

weft_status weft_runner_create_lanes(weft_runner *runner, const weft_runner_lane *rows,
                                     size_t num_rows)
{
    WEFT_TRY(weft_event_create(runner->device, &runner->begin));
    for (size_t i = 0; i < num_rows; i++) {
        WEFT_TRY(weft_lane_create(runner->device, rows[i].priority, rows[i].name,
                                  &runner->lanes[rows[i].kind]));
        WEFT_TRY(weft_event_create(runner->device, &runner->ends[rows[i].kind]));
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

weft_status weft_runner_prepare(weft_runner *runner, const weft_program *programs, int count)
{
    uint32_t most = runner->executor.num_done;
    for (int i = 0; i < count; i++)
        most = programs[i].num_tasks > most ? programs[i].num_tasks : most;
    return most > runner->executor.num_done
               ? weft_executor_prepare(&runner->executor, runner->device, most)
               : WEFT_OK;
}

weft_status weft_runner_memory(weft_arena *arena, const weft_program programs[2],
                               void **out_memory[2])
{
    for (int i = 0; i < 2; i++) {
        WEFT_TRY(WEFT_ARRAY(arena, (size_t)programs[i].num_slots, &out_memory[i]));
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

weft_status weft_runner_enqueue(weft_runner *runner, const weft_program *program,
                                weft_lane *compute, void *context)
{
    weft_executor *ex = &runner->executor;
    for (int i = 0; i < WEFT_NUM_LANES; i++)
        ex->lanes[i] = runner->lanes[i] ? runner->lanes[i] : compute;
    ex->context = context;
    if (runner->begin)
        WEFT_TRY(weft_lane_record(compute, runner->begin));
    for (int i = 0; i < WEFT_NUM_LANES; i++)
        if (runner->lanes[i])
            WEFT_TRY(weft_lane_wait(runner->lanes[i], runner->begin));
    WEFT_TRY(weft_program_enqueue(program, ex));
    for (int i = 0; i < WEFT_NUM_LANES; i++)
        if (runner->lanes[i]) {
            WEFT_TRY(weft_lane_record(runner->lanes[i], runner->ends[i]));
            WEFT_TRY(weft_lane_wait(compute, runner->ends[i]));
        }
    return WEFT_OK;
}
