#include "layers/pass/runner.h"

weft_status weft_runner_create_lanes(weft_runner *runner, const weft_runner_lane *rows,
                                     size_t num_rows)
{
    for (size_t i = 0; i < num_rows; i++)
        WEFT_TRY(weft_lane_create(runner->device, rows[i].priority, rows[i].name,
                                  &runner->lanes[rows[i].kind]));
    for (int k = 0; k < WEFT_RUNNER_STRANDS; k++) {
        weft_runner_strand *strand = &runner->strands[k];
        WEFT_TRY(weft_event_create(runner->device, &strand->begin));
        for (size_t i = 0; i < num_rows; i++)
            WEFT_TRY(weft_event_create(runner->device, &strand->ends[rows[i].kind]));
    }
    return WEFT_OK;
}

void weft_runner_release(weft_runner *runner)
{
    for (int i = 0; i < WEFT_NUM_LANES; i++)
        weft_lane_destroy(runner->lanes[i]);
    for (int k = 0; k < WEFT_RUNNER_STRANDS; k++) {
        weft_runner_strand *strand = &runner->strands[k];
        for (int i = 0; i < WEFT_NUM_LANES; i++)
            weft_event_destroy(strand->ends[i]);
        weft_event_destroy(strand->begin);
        weft_executor_release(&strand->executor);
    }
}

weft_status weft_runner_prepare(weft_runner *runner, const weft_program *programs, int count)
{
    uint32_t most = 0;
    for (int i = 0; i < count; i++)
        most = programs[i].num_tasks > most ? programs[i].num_tasks : most;
    for (int k = 0; k < WEFT_RUNNER_STRANDS; k++)
        if (most > runner->strands[k].executor.num_done)
            WEFT_TRY(weft_executor_prepare(&runner->strands[k].executor, runner->device, most));
    return WEFT_OK;
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

weft_status weft_runner_begin(weft_runner *runner, int strand, const weft_program *program,
                              weft_lane *compute, bool synchronous, void *context)
{
    weft_runner_strand *s = &runner->strands[strand];
    weft_executor *ex = &s->executor;
    s->joins = s->begin && !synchronous;
    for (int i = 0; i < WEFT_NUM_LANES; i++)
        ex->lanes[i] = synchronous || !runner->lanes[i] ? compute : runner->lanes[i];
    ex->context = context;
    WEFT_TRY(weft_program_open(program, ex, &s->cursor));
    return s->joins ? weft_lane_record(compute, s->begin) : WEFT_OK;
}

weft_status weft_runner_task(weft_runner *runner, int strand)
{
    weft_runner_strand *s = &runner->strands[strand];
    for (int i = 0; s->cursor.at == 0 && s->joins && i < WEFT_NUM_LANES; i++)
        if (runner->lanes[i])
            WEFT_TRY(weft_lane_wait(runner->lanes[i], s->begin));
    return weft_program_next(&s->cursor);
}

weft_status weft_runner_end(weft_runner *runner, int strand)
{
    weft_runner_strand *s = &runner->strands[strand];
    for (int i = 0; s->joins && i < WEFT_NUM_LANES; i++)
        if (runner->lanes[i]) {
            WEFT_TRY(weft_lane_record(runner->lanes[i], s->ends[i]));
            WEFT_TRY(weft_lane_wait(s->executor.lanes[WEFT_LANE_COMPUTE], s->ends[i]));
        }
    return WEFT_OK;
}

weft_status weft_runner_enqueue(weft_runner *runner, const weft_program *program,
                                weft_lane *compute, void *context)
{
    WEFT_TRY(weft_runner_begin(runner, 0, program, compute, false, context));
    for (uint32_t i = 0; i < program->num_tasks; i++)
        WEFT_TRY(weft_runner_task(runner, 0));
    return weft_runner_end(runner, 0);
}
