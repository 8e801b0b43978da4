/* What is done before a task starts, by the order of lanes and waits alone. For the builder, which
 * leaves out waits that are implied, and the checker. Private to schedule/. */
#ifndef WEFT_SCHEDULE_PAST_H
#define WEFT_SCHEDULE_PAST_H

#include "schedule/program.h"

/* For each lane: upto, 1 + the index of its latest task that is done (0: none; lanes are FIFOs, so
 * all before it on its lane is done too); partial, likewise its latest task that has passed a
 * point, and that point. */
typedef struct weft_past {
    struct weft_lane_past {
        uint32_t upto, partial;
        int32_t point;
    } lanes[WEFT_NUM_LANES];
} weft_past;

/* Add to *past that task `index` is done, or that the wait is over, with all that was done before.
 * `pasts`: of each earlier task, what was done before it started. A bucket's own point says that
 * its task has started, and is not remembered: weft_past_has denies it. */
void weft_past_add_task(weft_past *past, const weft_past *pasts, const weft_task *tasks,
                        uint32_t index);
void weft_past_add_wait(weft_past *past, const weft_past *pasts, const weft_task *tasks,
                        weft_wait wait);
/* Whether the wait is over. */
bool weft_past_has(const weft_past *past, const weft_task *tasks, weft_wait wait);

#endif
