/* Programs of a pipeline's step, lowered from an order of compute (schedule/pipeline/order.h).
 * Pure: the same shape gives the same bytes.
 *
 * Where no host waits inside a forward, a rank receives a forward's input right before the forward
 * and sends its output when the next stage wants it; gradients likewise. weft_order_time gives
 * these times as if messages took none. Every rank sends and receives in the order of these times
 * and uses only slots that are free by then, so no order that ends can deadlock, whatever the
 * transport buffers. Where hosts wait, messages stand ahead of the waits in the same order
 * (schedule/pipeline/posts.h). Where a rank has the next virtual stage itself (p = 1), it writes
 * that stage's slot and sends nothing.
 *
 * A rank's step: forwards and backwards of m micro-batches in the order, RECEIVE and SEND where a
 * neighbour exists, then the update (schedule/pipeline/update.h). */
#ifndef WEFT_SCHEDULE_PIPELINE_PIPELINE_H
#define WEFT_SCHEDULE_PIPELINE_PIPELINE_H

#include "core/bucket.h"
#include "schedule/pipeline/order.h"
#include "schedule/program.h"

typedef struct weft_pipeline_shape {
    weft_pipeline_kind kind;
    int num_stages, num_micro_batches; /* num_stages: ranks, p */
    bool forward_only;                 /* evaluation: no backward, reduce or step */
    uint64_t boundary_bytes;           /* bytes of a micro-batch's message between stages */
    const weft_buckets *buckets;       /* [num_stages]: gradients; NULL: training has none */
    int num_chunks, group_size;        /* as in weft_order_shape; num_chunks 0: 1 */
    const weft_order *orders;          /* [num_stages]: training's orders; NULL: the kind's */
    const bool *host_waits; /* [virtual stages]: the host waits inside its forward; NULL: in none */
    const bool *recomputes; /* [virtual stages]: a RECOMPUTE precedes each backward */
    bool is_v, pairs;       /* as in weft_order_shape */
    /* [virtual stages]: of a micro-batch's stash, and of what its backward leaves for the weights'
     * half; NULL: all alike. */
    const uint64_t *stash_bytes, *deferred_bytes;
} weft_pipeline_shape;

/* The most micro-batches of a program: 2^20 computes of a rank each way, 2^22 of all ranks, which
 * take gigabytes. */
int64_t weft_pipeline_max_micro_batches(int num_stages, int num_chunks);
weft_order_shape weft_pipeline_order_shape(const weft_pipeline_shape *shape);

/* The program of every rank: programs [num_stages]. Errors: WEFT_CONFIG for a shape without stages
 * or micro-batches, with too many of them, a group size below p, an order that never ends, or
 * one in which a chunk's weights' gradients come in another order than its input gradients: the
 * first of a step writes what the others add to; WEFT_MEMORY. */
weft_status weft_program_pipeline(const weft_pipeline_shape *shape, weft_arena *arena,
                                  weft_program *programs) WEFT_CHECKED;

/* Proves programs [num_stages] to be a step of that shape (schedule/check.h): every micro-batch
 * forwarded once and, unless forward_only, backwarded once on every virtual stage; then the update.
 * The order does not matter. Errors: as of weft_program_check. */
weft_status weft_program_pipeline_check(const weft_program *programs,
                                        const weft_pipeline_shape *shape) WEFT_CHECKED;

#endif
