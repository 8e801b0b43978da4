#include "schedule/past.h"

#include <string.h>

static void learn(struct weft_lane_past *mine, const struct weft_lane_past *other)
{
    if (mine->upto < other->upto)
        mine->upto = other->upto;
    if (mine->partial < other->partial ||
        (mine->partial == other->partial && mine->point > other->point)) {
        mine->partial = other->partial;
        mine->point = other->point;
    }
}

bool weft_past_has(const weft_past *past, const weft_task *tasks, weft_wait wait)
{
    if (wait.task == WEFT_STEP_BEFORE || wait.point == WEFT_POINT_LANDED)
        return false;
    const struct weft_lane_past *of = &past->lanes[tasks[wait.task].lane];
    if (of->upto > wait.task)
        return true;
    return wait.point >= 0 && of->partial == wait.task + 1 && of->point <= wait.point;
}

bool weft_wait_is_served(const weft_task *task, weft_wait wait)
{
    if (wait.task == WEFT_STEP_BEFORE)
        return wait.point == -1 && (task->bucket >= 0 || task->expert >= 0);
    return wait.point >= -1 || (wait.point == WEFT_POINT_LANDED && task->bucket >= 0);
}

void weft_pasts_begin(const weft_pasts *pasts, int lane, weft_past *out)
{
    *out = pasts->latest[lane];
    if (pasts->last[lane] > 0)
        out->lanes[lane].upto = pasts->last[lane];
}

static weft_status add_step(weft_arena *arena, weft_past_steps *to, uint32_t task,
                            const struct weft_lane_past *past)
{
    if (to->count == to->room) {
        void *memory;
        const uint32_t room = to->room > 0 ? 2 * to->room : 8;
        WEFT_TRY(weft_arena_alloc_array(arena, room, sizeof *to->steps, &memory));
        if (to->count > 0)
            memcpy(memory, to->steps, to->count * sizeof *to->steps);
        to->steps = memory;
        to->room = room;
    }
    to->steps[to->count++] = (struct weft_past_step){task, *past};
    return WEFT_OK;
}

/* Of its own lane a task's place says what is done, but for points. */
weft_status weft_pasts_add(weft_pasts *pasts, int lane, uint32_t index, const weft_past *past)
{
    if (pasts->last[lane] == 0)
        pasts->lanes[pasts->num_lanes++] = (uint8_t)lane;
    for (int i = 0; i < pasts->num_lanes; i++) {
        const int other = pasts->lanes[i];
        const struct weft_lane_past *now = &past->lanes[other],
                                    *was = &pasts->latest[lane].lanes[other];
        if (now->partial != was->partial || now->point != was->point ||
            (other != lane && now->upto != was->upto))
            WEFT_TRY(add_step(pasts->arena, &pasts->of[lane][other], index, now));
    }
    pasts->latest[lane] = *past;
    pasts->last[lane] = index + 1;
    return WEFT_OK;
}

/* The last step at the task or ahead of it, which is most often among the latest. */
static const struct weft_past_step *step_at(const weft_past_steps *in, uint32_t task)
{
    uint32_t low = 0, high = in->count;
    for (uint32_t far = 1; high > 0 && in->steps[high - 1].task > task; far *= 2)
        high = high > far ? high - far : 0;
    low = high;
    high = in->count;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (in->steps[middle].task <= task)
            low = middle + 1;
        else
            high = middle;
    }
    return low > 0 ? &in->steps[low - 1] : NULL;
}

/* Before a task of `lane`, of one of the lanes. */
static struct weft_lane_past past_of(const weft_pasts *pasts, int lane, uint32_t index, int other)
{
    const weft_past_steps *steps = &pasts->of[lane][other];
    const struct weft_past_step *step = steps->count > 0 ? step_at(steps, index) : NULL;
    struct weft_lane_past past = {0};
    if (step)
        past = step->past;
    if (other == lane)
        past.upto = index;
    return past;
}

void weft_pasts_of(const weft_pasts *pasts, int lane, uint32_t index, weft_past *out)
{
    *out = (weft_past){0};
    for (int i = 0; i < pasts->num_lanes; i++)
        out->lanes[pasts->lanes[i]] = past_of(pasts, lane, index, pasts->lanes[i]);
}

void weft_pasts_add_wait(const weft_pasts *pasts, const weft_task *tasks, weft_wait wait,
                         weft_past *past)
{
    if (wait.task == WEFT_STEP_BEFORE)
        return;
    const int lane = tasks[wait.task].lane;
    for (int i = 0; i < pasts->num_lanes; i++) {
        const int other = pasts->lanes[i];
        struct weft_lane_past before = past_of(pasts, lane, wait.task, other);
        if (other == lane && wait.point == -1) {
            before.upto = wait.task + 1;
        } else if (other == lane && wait.point >= 0) {
            before.partial = wait.task + 1;
            before.point = wait.point;
        }
        learn(&past->lanes[other], &before);
    }
}
