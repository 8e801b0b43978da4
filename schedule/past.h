/* What is done before a task starts, by the order of lanes and waits alone. For the builder, which
 * leaves out waits that are implied, and the checker. Private to schedule/. */
#ifndef WEFT_SCHEDULE_PAST_H
#define WEFT_SCHEDULE_PAST_H

#include "schedule/program.h"

/* Per lane: all its tasks below upto are done; lanes are FIFOs. partial is 1 + the index of the
 * latest task that has passed a point, and that point. */
typedef struct weft_past {
    struct weft_lane_past {
        uint32_t upto, partial;
        int32_t point;
    } lanes[WEFT_NUM_LANES];
} weft_past;

/* Whether the wait for one of the tasks is over; of a landing and of the step before nothing says
 * so. */
bool weft_past_has(const weft_past *past, const weft_task *tasks, weft_wait wait);
/* Whether the task serves a bucket, or an expert, whose landing or step before it waits for; any
 * other wait is for the caller to judge. */
bool weft_wait_is_served(const weft_task *task, weft_wait wait);

/* The pasts of a program's tasks. Along a lane a past only grows: what is held are its steps, which
 * come from waits, not from tasks. */
typedef struct weft_past_steps {
    struct weft_past_step {
        uint32_t task; /* the lane's first with it */
        struct weft_lane_past past;
    } * steps;
    uint32_t count, room;
} weft_past_steps;

typedef struct weft_pasts { /* zero is that of no tasks */
    weft_arena *arena;
    weft_past_steps of[WEFT_NUM_LANES]
                      [WEFT_NUM_LANES]; /* [a task's lane][what is done of a lane] */
    weft_past latest[WEFT_NUM_LANES];   /* before each lane's latest task */
    uint32_t last[WEFT_NUM_LANES];      /* 1 + index of that task; 0: none */
    uint8_t lanes[WEFT_NUM_LANES];      /* that have tasks */
    int num_lanes;
} weft_pasts;

/* What is done before a task of the lane that is not there yet: all that the lane's order says. */
void weft_pasts_begin(const weft_pasts *pasts, int lane, weft_past *out);
/* The task is there: `past` is from weft_pasts_begin, and waits were added. Tasks come in the
 * program's order. */
weft_status weft_pasts_add(weft_pasts *pasts, int lane, uint32_t index,
                           const weft_past *past) WEFT_CHECKED;
/* What is done before the task `index`, of this lane. */
void weft_pasts_of(const weft_pasts *pasts, int lane, uint32_t index, weft_past *out);
/* Adds to *past a wait for one of the program's tasks that is over: the landing of a gradient only
 * shows that its task has started, the step before nothing. */
void weft_pasts_add_wait(const weft_pasts *pasts, const weft_task *tasks, weft_wait wait,
                         weft_past *past);

#endif
