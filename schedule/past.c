#include "schedule/past.h"

static void learn(weft_past *past, const weft_past *more)
{
    for (int lane = 0; lane < WEFT_NUM_LANES; lane++) {
        struct weft_lane_past *mine = &past->lanes[lane];
        const struct weft_lane_past *other = &more->lanes[lane];
        if (mine->upto < other->upto)
            mine->upto = other->upto;
        if (mine->partial < other->partial ||
            (mine->partial == other->partial && mine->point > other->point)) {
            mine->partial = other->partial;
            mine->point = other->point;
        }
    }
}

void weft_past_add_task(weft_past *past, const weft_past *pasts, const weft_task *tasks,
                        uint32_t index)
{
    struct weft_lane_past *lane = &past->lanes[tasks[index].lane];
    learn(past, &pasts[index]);
    if (lane->upto < index + 1)
        lane->upto = index + 1;
}

void weft_past_add_wait(weft_past *past, const weft_past *pasts, const weft_task *tasks,
                        weft_wait wait)
{
    if (wait.point < 0) {
        weft_past_add_task(past, pasts, tasks, wait.task);
        return;
    }
    if (wait.point >= WEFT_POINT_OWN) {
        learn(past, &pasts[wait.task]);
        return;
    }
    weft_past more = pasts[wait.task];
    more.lanes[tasks[wait.task].lane].partial = wait.task + 1;
    more.lanes[tasks[wait.task].lane].point = wait.point;
    learn(past, &more);
}

bool weft_past_has(const weft_past *past, const weft_task *tasks, weft_wait wait)
{
    const struct weft_lane_past *lane = &past->lanes[tasks[wait.task].lane];
    if (wait.point >= WEFT_POINT_OWN)
        return false;
    if (lane->upto > wait.task)
        return true;
    return wait.point >= 0 && lane->partial == wait.task + 1 && lane->point <= wait.point;
}
