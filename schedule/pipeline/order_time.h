/* The times and the memory of an order, the same on all ranks. */
#ifndef WEFT_SCHEDULE_PIPELINE_ORDER_TIME_H
#define WEFT_SCHEDULE_PIPELINE_ORDER_TIME_H

#include "schedule/pipeline/order.h"

/* When each compute starts if messages take no time: starts [num_ranks][orders[rank].count].
 * Errors: WEFT_CONFIG where computes wait for each other in a circle, naming all of them. */
weft_status weft_order_time(const weft_order_shape *shape, const weft_order *orders,
                            weft_arena *arena, int32_t **starts) WEFT_CHECKED;

/* Costs by virtual stage. A whole backward takes the time of both halves. */
typedef struct weft_order_costs {
    const double *forward_us, *input_us, *weight_us;
    double message_us; /* from a compute's end to the start of the next stage's on another rank */
    const uint64_t *stash_bytes;    /* from a forward to the end of its backward; NULL: 0 */
    const uint64_t *deferred_bytes; /* from an input's gradient to the weights'; NULL: 0 */
    uint64_t boundary_bytes;        /* of the stage's input, as long as the stash; not of stage 0 */
    const uint64_t *limit_bytes;    /* [num_ranks]: the most of a rank; 0, NULL: any */
} weft_order_costs;

/* When the last compute ends, and the bytes of each rank's slots (schedule/pipeline/order_slots.h):
 * slot_bytes [num_ranks], or NULL. Errors: as of weft_order_time. */
weft_status weft_order_simulate(const weft_order_shape *shape, const weft_order *orders,
                                const weft_order_costs *costs, double *out_makespan_us,
                                uint64_t *slot_bytes) WEFT_CHECKED;

/* The same for those who simulate many orders of a shape. */
typedef struct weft_order_timer {
    const weft_order_shape *shape;
    const weft_order_costs *costs; /* NULL: weft_compute_time, and messages that take none */
    const weft_order *orders;
    double **starts; /* [num_ranks][orders[rank].count] */
    double *ends[2]; /* of forwards and of what sends gradients, [virtual stage][micro-batch];
                        below 0: not yet */
    uint32_t *heads; /* of each rank: what it does next */
    double *now;     /* of each rank: the end of what it did last */
    int *ready;      /* a stack of ranks that may go on */
    bool *is_ready;
    int num_ready;
} weft_order_timer;

weft_status weft_order_timer_start(const weft_order_shape *shape, const weft_order_costs *costs,
                                   weft_arena *arena, weft_order_timer *out) WEFT_CHECKED;
/* The makespan; below 0: the order never ends. Fills starts. */
double weft_order_timer_run(weft_order_timer *timer, const weft_order *orders);
double weft_order_cost_us(const weft_order_costs *costs, int kind, int stage);

#endif
