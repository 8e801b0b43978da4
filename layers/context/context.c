/* The runtime: programs, lanes, and the memory of slots. */
#include "layers/context/context.h"

#include <stdlib.h>
#include <string.h>

#include "core/device/device.h"
#include "layers/context/work.h"
#include "parallel/sequence.h"

/* Sets the slots' memory: tensors of the call, or pieces of the scratch. */
static void bind_slots(weft_context_work *w)
{
    const weft_context_call *c = w->call;
    char *scratch = c->scratch;
    for (int32_t i = 0; i < w->program->num_slots; i++) {
        const weft_slot_kind holds = (weft_slot_kind)w->program->slots[i].holds;
        const size_t bytes = weft_context_slot_bytes(&c->shape, holds, w->backward);
        w->memory[i] = holds == WEFT_SLOT_HEADS    ? c->heads
                       : holds == WEFT_SLOT_RESULT ? c->heads_out
                       : bytes > 0                 ? scratch
                       : c->heads_out              ? c->heads_out
                                                   : c->out; /* partial in fp32 */
        scratch += bytes;
    }
    w->delta = w->backward ? (float *)(void *)scratch : NULL;
}

static weft_status run(weft_context_runtime *r, weft_lane *compute, const weft_context_call *call,
                       bool backward)
{
    weft_context_work w = {.runtime = r,
                           .call = call,
                           .program = &r->programs[backward],
                           .memory = r->memory[backward],
                           .sizes = weft_context_sizes_of(&call->shape),
                           .backward = backward};
    bind_slots(&w);
    memset(r->begun, 0, (size_t)r->plan.cp * WEFT_DEAL_MAX_RUNS * sizeof *r->begun);
    return weft_runner_enqueue(&r->runner, w.program, compute, false, &w);
}

weft_status weft_context_forward(weft_context_runtime *r, weft_lane *compute,
                                 const weft_context_call *call)
{
    return run(r, compute, call, false);
}

weft_status weft_context_backward(weft_context_runtime *r, weft_lane *compute,
                                  const weft_context_call *call)
{
    return run(r, compute, call, true);
}

weft_executor *weft_context_executor(weft_context_runtime *r)
{
    return &r->runner.executor;
}

static weft_status make_programs(weft_context_runtime *r)
{
    for (int backward = 0; backward < 2; backward++)
        WEFT_TRY(weft_program_context(&r->plan, backward, &r->arena, &r->programs[backward]));
    if (!weft_device_is_note(r->runner.device))
        WEFT_TRY(weft_program_context_check(&r->plan, &r->programs[0], &r->programs[1]));
    WEFT_TRY(weft_runner_memory(&r->arena, r->programs, r->memory));
    weft_context_bind_tasks(&r->runner.executor);
    r->runner.executor.run[WEFT_TASK_ATTEND] = weft_context_attend;
    return weft_runner_prepare(&r->runner, r->programs);
}

static weft_status init(weft_context_runtime *r)
{
    static const weft_runner_lane of_a_ring[] = {{WEFT_LANE_SEND, 0, "keys"},
                                                 {WEFT_LANE_REDUCE, 0, "keys' gradients"}};
    void *memory;
    WEFT_TRY(make_programs(r));
    WEFT_TRY(weft_arena_alloc_array(&r->arena, (size_t)r->plan.cp, sizeof(size_t), &memory));
    r->send_bytes = memory;
    WEFT_TRY(weft_arena_alloc_array(&r->arena, (size_t)r->plan.cp * WEFT_DEAL_MAX_RUNS,
                                    sizeof(bool), &memory));
    r->begun = memory;
    return weft_context_blocks(&r->plan) > 1 ? weft_runner_create_lanes(&r->runner, of_a_ring, 2)
                                             : WEFT_OK;
}

weft_status weft_context_runtime_create(weft_device *device, weft_comm *cp,
                                        const weft_context_plan *plan, weft_context_runtime **out)
{
    weft_context_runtime *r = calloc(1, sizeof *r);
    if (!r)
        return WEFT_ERROR(WEFT_MEMORY, "out of memory for attention over context-parallel ranks");
    r->runner.device = device;
    r->cp = cp;
    r->plan = *plan;
    const weft_status status = init(r);
    if (status != WEFT_OK) {
        weft_context_runtime_destroy(r);
        return weft_error_frame(__FILE__, __LINE__, __func__, status);
    }
    *out = r;
    return WEFT_OK;
}

void weft_context_runtime_destroy(weft_context_runtime *r)
{
    if (!r)
        return;
    weft_runner_release(&r->runner);
    weft_arena_release(&r->arena);
    free(r);
}

weft_status weft_context_runtime_reserve(weft_context_runtime *r, weft_lane *compute,
                                         const weft_context_shape *shape)
{
    return weft_runner_reserve(&r->runner, r->cp, compute, weft_context_message_bytes(shape));
}
