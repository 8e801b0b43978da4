#include "schedule/ahead.h"

weft_status weft_ahead_make(uint32_t max_tasks, weft_arena *arena, weft_ahead **out)
{
    void *memory;
    weft_ahead *a;
    WEFT_TRY(weft_arena_alloc(arena, sizeof **out, &a));
    WEFT_TRY(weft_arena_alloc_array(arena, (size_t)max_tasks + 1, sizeof *a->early, &memory));
    *a = (weft_ahead){.max_tasks = max_tasks, .early = memory};
    *out = a;
    return WEFT_OK;
}

/* Whether all waits of a later task are enqueued, and recorded where they are points. */
static bool may_follow(const weft_executor *executor, const weft_task *task)
{
    const weft_ahead *a = executor->ahead;
    for (uint32_t w = 0; w < task->num_waits; w++) {
        const weft_wait *wait = &a->program->waits[task->first_wait + w];
        if (wait->task < a->at || a->early[wait->task])
            continue;
        if (wait->task != a->at || wait->point < 0 ||
            !a->passed(executor->context, &a->program->tasks[wait->task], wait->point))
            return false;
    }
    return true;
}

weft_status weft_ahead_go(weft_executor *executor)
{
    weft_ahead *a = executor->ahead;
    uint32_t lanes = a->lanes;
    for (uint32_t i = a->at + 1; i < a->program->num_tasks && lanes; i++) {
        const weft_task *task = &a->program->tasks[i];
        if (!(lanes >> task->lane & 1) || a->early[i])
            continue;
        if (may_follow(executor, task)) {
            WEFT_TRY(weft_program_enqueue_task(a->program, executor, i, false));
            a->early[i] = true;
        } else {
            lanes &= ~(1u << task->lane);
        }
    }
    return WEFT_OK;
}

weft_status weft_program_enqueue_some(const weft_program *program, weft_executor *executor,
                                      uint32_t first, uint32_t end)
{
    if (end > program->num_tasks || end > executor->num_done)
        return WEFT_ERROR(WEFT_INTERNAL, "tasks until %u of a program of %u, prepared for %u", end,
                          program->num_tasks, executor->num_done);
    for (uint32_t i = first; i < end; i++)
        WEFT_TRY(weft_program_enqueue_task(program, executor, i, false));
    return WEFT_OK;
}
