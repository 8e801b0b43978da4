/* Where the time of a measured step went, laid out as a planned one's is. Pure. */
#ifndef WEFT_LAUNCHER_PLANNING_MEASURED_TIME_H
#define WEFT_LAUNCHER_PLANNING_MEASURED_TIME_H

#include "core/trace.h"
#include "launcher/planning/plan.h"

/* Means over the ranks that a step's timeline holds; microseconds. */
typedef struct weft_measured_time {
    int num_ranks; /* 0: the timeline holds none */
    double planned_us[WEFT_NUM_TIMES], measured_us[WEFT_NUM_TIMES];
} weft_measured_time;

/* `slices`: a run's timeline, those of a rank's lane in the order of its tasks. Slices of
 * the step's tasks are the spans of its programs: what a rank's compute lane waited for follows
 * from them as it does from a price (schedule/price.h: weft_price_idle), a message or a
 * collective, being under way once all of its ranks are there, as far as they are traced. In
 * passes, expert: the time in which rows travel or are copied and no experts work, and tensor: that
 * in other collectives. step_us: of the whole step; what no task accounts for is bubble.
 * WEFT_CONFIG, with the rank, for a timeline that lacks tasks of the step. */
weft_status weft_measured_time_of(const weft_plan *plan, const weft_slice *slices, size_t count,
                                  double step_us, weft_arena *arena,
                                  weft_measured_time *out) WEFT_CHECKED;

#endif
