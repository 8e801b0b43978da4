/* Orders by list scheduling: time goes on, and a rank that is free takes the first of what could
 * start, by a rule. */
#ifndef WEFT_SCHEDULE_PIPELINE_ORDER_LIST_H
#define WEFT_SCHEDULE_PIPELINE_ORDER_LIST_H

#include "schedule/pipeline/order_time.h"

typedef struct weft_list_rule {
    bool forward_first; /* before gradients */
    bool late_first;    /* later virtual stages of a rank before earlier ones */
    double overlap;     /* weights' gradients fill a gap that they overrun by up to this share */
    double ahead;       /* virtual stages in flight on a rank, as a multiple of p v; 0: any */
    bool fewer_late;    /* of later ranks one less each */
} weft_list_rule;

/* Appends each rank's order; `orders` have room for three computes of each virtual stage and
 * micro-batch. Keeps costs' limits, each at least the stashes of one micro-batch: a forward starts
 * if the rank's later stages still have room for a micro-batch, and a backward is whole where
 * halves have none. So no rank ever waits for room that cannot come. */
weft_status weft_order_list(const weft_order_shape *shape, const weft_order_costs *costs,
                            const weft_list_rule *rule, weft_arena *scratch,
                            weft_order *orders) WEFT_CHECKED;

#endif
