/* Orders of two virtual stages a rank in a V. */
#ifndef WEFT_SCHEDULE_PIPELINE_ORDER_V_H
#define WEFT_SCHEDULE_PIPELINE_ORDER_V_H

#include "schedule/pipeline/order.h"

/* Appends a rank's order of a kind in a V; `order` has room for three computes of each virtual
 * stage and micro-batch. */
void weft_order_make_v(weft_pipeline_kind kind, const weft_order_shape *shape, int rank,
                       weft_order *order);

#endif
