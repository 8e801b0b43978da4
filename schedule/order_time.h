/* An order in time, which all ranks agree on. */
#ifndef WEFT_SCHEDULE_ORDER_TIME_H
#define WEFT_SCHEDULE_ORDER_TIME_H

#include "schedule/order.h"

/* When each compute starts if messages take no time: starts [num_ranks][orders[rank].count].
 * Errors: WEFT_CONFIG where a rank waits, in a circle, for itself; names everything on it. */
weft_status weft_order_time(const weft_order_shape *shape, const weft_order *orders,
                            weft_arena *arena, int64_t **starts) WEFT_CHECKED;

#endif
