/* Where the time of a measured step went, by a plan's kinds of time. Pure. */
#ifndef WEFT_LAUNCHER_PLANNING_MEASURED_TIME_H
#define WEFT_LAUNCHER_PLANNING_MEASURED_TIME_H

#include "core/trace/trace.h"
#include "launcher/planning/plan.h"

/* Means over the ranks that a step's timeline holds; microseconds. */
typedef struct weft_measured_time {
    int num_ranks;  /* 0: the timeline holds none */
    double step_us; /* of the step, without its wait for what else runs on beside the next one */
    double planned_us[WEFT_NUM_TIMES], measured_us[WEFT_NUM_TIMES];
} weft_measured_time;

/* `slices`: a run's timeline, each lane of a rank in the order of its tasks. The slices of the
 * step's tasks tell what a compute lane waited for, as the spans of a price do (weft_price_idle). A
 * message or a collective is under way once the last of its traced ranks has come. Inside passes,
 * expert is the time in which rows travel or are copied and no expert works, tensor that of other
 * collectives. step_us: of the whole step, which where it
 * is traced waits for all that the host does; time of no task is bubble. WEFT_CONFIG names a rank
 * whose timeline lacks tasks of the step. */
weft_status weft_measured_time_of(const weft_plan *plan, const weft_slice *slices, size_t count,
                                  double step_us, weft_arena *arena,
                                  weft_measured_time *out) WEFT_CHECKED;

#endif
