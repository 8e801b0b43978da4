/* The order of a pipeline's compute: what each rank does in which order, and nothing else.
 * schedule/pipeline/pipeline.h derives messages, slots and waits from it. Pure.
 *
 * p ranks have v chunks each: virtual stage s of p * v is chunk s / p of rank s % p.
 *
 *   1f1b, v = 1   (PipeDream-flush; Narayanan et al. 2021, §2.2): rank i runs p - i - 1 forwards
 *                 first, then one forward one backward; at most p - i micro-batches in flight.
 *   1f1b, v > 1   (interleaved; ibid. and Megatron-LM's schedules.py): micro-batches go through the
 *                 chunks in groups of N, all of a group through a chunk before the next one. Rank i
 *                 runs 2 (p - i - 1) + (v - 1) N forwards first. A last group smaller than p would
 *                 wait for itself (Megatron-LM refuses it): the micro-batches then form m / N
 *                 groups of sizes as equal as can be, and N is the size of the first.
 *   gpipe         (Huang et al. 2019): all forwards, then all backwards, groups as above. */
#ifndef WEFT_SCHEDULE_PIPELINE_ORDER_H
#define WEFT_SCHEDULE_PIPELINE_ORDER_H

#include <stdint.h>

#include <weft/status.h>

#include "core/arena.h"

typedef enum weft_pipeline_kind { WEFT_PIPELINE_1F1B, WEFT_PIPELINE_GPIPE } weft_pipeline_kind;

typedef struct weft_compute {
    int32_t micro_batch, chunk, backward; /* backward: 0 or 1 */
} weft_compute;

typedef struct weft_order {
    weft_compute *computes;
    uint32_t count;
    const int32_t *columns; /* of a text, from 1, one a compute; NULL: it was made */
} weft_order;

typedef struct weft_order_shape {
    int num_ranks, num_chunks, num_micro_batches; /* p, v, m */
    int group_size;                               /* N: p or more; 0: p */
} weft_order_shape;

/* The order of each rank, orders [num_ranks]. Errors: WEFT_CONFIG for an impossible shape. */
weft_status weft_order_make(weft_pipeline_kind kind, const weft_order_shape *shape,
                            weft_arena *arena, weft_order *orders) WEFT_CHECKED;

/* How long computes take when an order is timed (schedule/pipeline/order_time.h). A backward takes
 * much longer than a forward: a message that is in time then is in time for shorter backwards too.
 */
enum { WEFT_FORWARD_TIME = 1, WEFT_BACKWARD_TIME = 16 };

#endif
