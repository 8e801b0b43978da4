/* An order made from costs. Candidates are all kinds of the shape's layout (loop or V) and list
 * schedules by several rules, as far as they keep the limits of
 * memory. The best ones are improved: a compute on the critical path moves to another place of its
 * rank (after Nowicki and Smutnicki 1996, job shops). The outcome is not worse than any kind that
 * fits. The same on all ranks: no clock and no chance takes part. */
#ifndef WEFT_SCHEDULE_PIPELINE_ORDER_AUTO_H
#define WEFT_SCHEDULE_PIPELINE_ORDER_AUTO_H

#include "schedule/pipeline/order_time.h"

/* Orders [num_ranks]. Errors: WEFT_CONFIG for an impossible shape; WEFT_MEMORY for a rank whose
 * limit is below the stashes of one micro-batch, and for limits that no candidate's slots keep. */
weft_status weft_order_make_auto(const weft_order_shape *shape, const weft_order_costs *costs,
                                 weft_arena *arena, weft_order *orders) WEFT_CHECKED;

#endif
