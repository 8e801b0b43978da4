#include "schedule/ahead.h"

/* Whether all waits of a later task are enqueued, and recorded where they are points. passed: the
 * last point of the task at hand. */
static bool may_follow(const weft_cursor *c, int passed, const weft_task *task)
{
    const weft_executor *executor = c->executor;
    for (uint32_t w = 0; w < task->num_waits; w++) {
        const weft_wait *wait = &c->program->waits[task->first_wait + w];
        if (wait->task < c->at || executor->early[wait->task])
            continue;
        if (wait->task != c->at || wait->point < 0)
            return false;
        if (passed > (wait->point < WEFT_POINT_OWN
                          ? wait->point
                          : executor->layer_of(executor->context, wait->point)))
            return false;
    }
    return true;
}

bool weft_ahead_find(const weft_cursor *c, int passed, uint32_t *lanes, uint32_t *at)
{
    for (; *at < c->program->num_tasks && *lanes; ++*at) {
        const weft_task *task = &c->program->tasks[*at];
        if (!(*lanes >> task->lane & 1) || c->executor->early[*at])
            continue;
        if (may_follow(c, passed, task))
            return true;
        *lanes &= ~(1u << task->lane);
    }
    return false;
}

weft_cursor weft_program_set_aside(weft_cursor *c)
{
    const weft_cursor aside = *c;
    c->at++;
    return aside;
}

weft_status weft_program_end_again(const weft_cursor *c, uint32_t task)
{
    const weft_executor *executor = c->executor;
    return c->is_ordered ? WEFT_OK
                         : weft_lane_record(executor->lanes[c->program->tasks[task].lane],
                                            executor->done[task]);
}
