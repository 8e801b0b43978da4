/* The times of an order, the same on all ranks. */
#ifndef WEFT_SCHEDULE_PIPELINE_ORDER_TIME_H
#define WEFT_SCHEDULE_PIPELINE_ORDER_TIME_H

#include "schedule/pipeline/order.h"

/* When each compute starts if messages take no time: starts [num_ranks][orders[rank].count].
 * Errors: WEFT_CONFIG where computes wait for each other in a circle, naming all of them. */
weft_status weft_order_time(const weft_order_shape *shape, const weft_order *orders,
                            weft_arena *arena, int64_t **starts) WEFT_CHECKED;

#endif
