/* What is done before a task starts, by the order of lanes and waits alone. For the builder, which
 * leaves out waits that are implied, and the checker. Private to schedule/. */
#ifndef WEFT_SCHEDULE_PAST_H
#define WEFT_SCHEDULE_PAST_H

#include "schedule/program.h"

/* Per lane: upto is 1 + the index of the latest task that is done (0: none); lanes are FIFOs, so
 * all earlier tasks of the lane are done too. partial is 1 + the index of the latest task that has
 * passed a point, and that point. */
typedef struct weft_past {
    struct weft_lane_past {
        uint32_t upto, partial;
        int32_t point;
    } lanes[WEFT_NUM_LANES];
} weft_past;

/* Add to *past a task that is done, or a wait that is over, and everything done before it. `pasts`
 * has for each earlier task what was done before that task started. A bucket's own point only shows
 * that its task has started; weft_past_has never confirms such a point. */
void weft_past_add_task(weft_past *past, const weft_past *pasts, const weft_task *tasks,
                        uint32_t index);
void weft_past_add_wait(weft_past *past, const weft_past *pasts, const weft_task *tasks,
                        weft_wait wait);
/* Whether the wait is over. */
bool weft_past_has(const weft_past *past, const weft_task *tasks, weft_wait wait);

#endif
