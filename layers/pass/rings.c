#include "layers/pass/rings.h"

weft_status weft_rings_create(weft_device *device, weft_parameters *parameters, weft_rings *out)
{
    out->parameters = parameters;
    for (int weights = 0; weights < 2; weights++)
        for (int i = 0; i < weft_parameters_ring(parameters, weights)->num_slots; i++)
            WEFT_TRY(weft_event_create(device, &out->used[weights][i]));
    return weft_parameters_ring(parameters, true)->num_slots > 0
               ? weft_lane_create(device, WEFT_PURPOSE_DATA, "gather", &out->gather)
               : WEFT_OK;
}

void weft_rings_release(weft_rings *rings)
{
    weft_lane_destroy(rings->gather);
    for (int i = 0; i < 2 * WEFT_RING_SLOTS; i++)
        weft_event_destroy(rings->used[i / WEFT_RING_SLOTS][i % WEFT_RING_SLOTS]);
}

/* The operand's slot of the ring; -1: the task has no such operand. */
static int slot_of(const weft_rings *rings, const weft_program *program, const weft_task *task,
                   bool weights)
{
    const int slot =
        weft_task_slot(task, weights ? WEFT_OPERAND_WEIGHTS : WEFT_OPERAND_WEIGHT_GRADIENTS);
    int first = slot;
    while (first > 0 && program->slots[first - 1].holds == program->slots[slot].holds)
        first--;
    return slot < 0 ? -1
                    : (slot - first + rings->turn[weights]) %
                          weft_parameters_ring(rings->parameters, weights)->num_slots;
}

weft_status weft_rings_gather(weft_rings *rings, const weft_program *program, const weft_task *task,
                              weft_lane *lane)
{
    const int slot = slot_of(rings, program, task, true);
    WEFT_TRY(weft_lane_wait(lane, rings->used[true][slot]));
    return weft_parameters_gather(rings->parameters, task->layer, slot, lane);
}

weft_status weft_rings_begin(weft_rings *rings, const weft_program *program, const weft_task *task,
                             weft_lane *lane)
{
    const int slot = slot_of(rings, program, task, false);
    if (slot < 0)
        return WEFT_OK;
    WEFT_TRY(weft_lane_wait(lane, rings->used[false][slot]));
    return weft_parameters_use_gradients(rings->parameters, task->layer, slot, lane);
}

weft_status weft_rings_end(weft_rings *rings, const weft_program *program, const weft_task *task,
                           weft_lane *lane)
{
    const int slot = slot_of(rings, program, task, true);
    return slot < 0 ? WEFT_OK : weft_lane_record(lane, rings->used[true][slot]);
}

weft_status weft_rings_reduce(weft_rings *rings, const weft_program *program, const weft_task *task,
                              bool overwrite, weft_lane *lane)
{
    const int slot = slot_of(rings, program, task, false);
    WEFT_TRY(weft_parameters_reduce(rings->parameters, task->layer, slot, overwrite, lane));
    return weft_lane_record(lane, rings->used[false][slot]);
}

void weft_rings_advance(weft_rings *rings, const weft_program *program)
{
    for (uint32_t i = 0; i < program->num_tasks; i++) {
        const int kind = program->tasks[i].kind;
        if (kind == WEFT_TASK_GATHER || kind == WEFT_TASK_REDUCE) {
            const bool weights = kind == WEFT_TASK_GATHER;
            rings->turn[weights] = (rings->turn[weights] + 1) %
                                   weft_parameters_ring(rings->parameters, weights)->num_slots;
        }
    }
}
