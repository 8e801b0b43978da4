/* What collectives put on links. Private to schedule/. */
#ifndef WEFT_SCHEDULE_COST_LINK_H
#define WEFT_SCHEDULE_COST_LINK_H

#include "schedule/cost/costing.h"

/* Adds one collective of `bytes` to the estimate. */
void weft_price_collective(weft_costing *p, const weft_group *group, weft_collective collective,
                           double bytes);
/* weft_small_sum_us on nodes of one kind. */
void weft_price_small_sum(weft_costing *p, int ranks, double bytes);

#endif
