#include "layers/body.h"

weft_status weft_body_create_lanes(weft_body *body, const weft_body_lane *rows, size_t num_rows)
{
    WEFT_TRY(weft_event_create(body->device, &body->begin));
    for (size_t i = 0; i < num_rows; i++) {
        const weft_lane_kind kind = rows[i].kind;
        WEFT_TRY(
            weft_lane_create(body->device, rows[i].priority, rows[i].name, &body->lanes[kind]));
        WEFT_TRY(weft_event_create(body->device, &body->ends[kind]));
    }
    return WEFT_OK;
}

void weft_body_release(weft_body *body)
{
    for (int i = 0; i < WEFT_NUM_LANES; i++) {
        weft_lane_destroy(body->lanes[i]);
        weft_event_destroy(body->ends[i]);
    }
    weft_event_destroy(body->begin);
    weft_executor_release(&body->executor);
}

weft_status weft_body_prepare(weft_body *body, const weft_program programs[2])
{
    const uint32_t forward = programs[0].num_tasks, backward = programs[1].num_tasks;
    const uint32_t most = forward > backward ? forward : backward;
    return most <= body->executor.num_done
               ? WEFT_OK
               : weft_executor_prepare(&body->executor, body->device, most);
}

weft_status weft_body_memory(weft_arena *arena, const weft_program programs[2],
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

weft_status weft_body_reserve(const weft_body *body, const weft_comm *comm, weft_lane *compute,
                              size_t bytes)
{
    WEFT_TRY(weft_comm_reserve(comm, compute, bytes));
    for (int i = 0; i < WEFT_NUM_LANES; i++)
        if (body->lanes[i])
            WEFT_TRY(weft_comm_reserve(comm, body->lanes[i], bytes));
    return WEFT_OK;
}

static weft_status begin_lanes(weft_body *body, weft_lane *compute)
{
    WEFT_TRY(weft_lane_record(compute, body->begin));
    for (int i = 0; i < WEFT_NUM_LANES; i++)
        if (body->lanes[i])
            WEFT_TRY(weft_lane_wait(body->lanes[i], body->begin));
    return WEFT_OK;
}

static weft_status end_lanes(weft_body *body, weft_lane *compute)
{
    for (int i = 0; i < WEFT_NUM_LANES; i++)
        if (body->lanes[i]) {
            WEFT_TRY(weft_lane_record(body->lanes[i], body->ends[i]));
            WEFT_TRY(weft_lane_wait(compute, body->ends[i]));
        }
    return WEFT_OK;
}

weft_status weft_body_enqueue(weft_body *body, const weft_program *program, weft_lane *compute,
                              bool synchronous, void *context)
{
    const bool joins = body->begin && (!synchronous || body->tasks_use_lanes);
    weft_executor *ex = &body->executor;
    for (int i = 0; i < WEFT_NUM_LANES; i++)
        ex->lanes[i] = synchronous || !body->lanes[i] ? compute : body->lanes[i];
    ex->context = context;
    if (joins)
        WEFT_TRY(begin_lanes(body, compute));
    WEFT_TRY(weft_program_enqueue(program, ex));
    if (joins)
        WEFT_TRY(end_lanes(body, compute));
    return WEFT_OK;
}
