/* The slots of one rank's activations, and of what its backwards leave for their weights' halves.
 * Of each there is one pool for all chunks of the rank, as large as its peak over the order of
 * compute: chunks have their own peaks at different times. Pure.
 *
 * A forward's slot is taken right before the forward, or by the forward of the stage before where
 * that is on the same rank, and is free behind the backward. With several chunks in a loop a rank
 * that receives a forward's input has a slot free one compute earlier, so that the input travels
 * beside that compute: one slot more than there are micro-batches in flight, which one chunk and a
 * V do without.
 *
 * A slot is made for one chunk, that of its users whose bytes are most. A taker gets, of the free
 * slots that are large enough, the smallest; of equal ones one made for its own chunk; of several
 * the one that has been free longest. If all are too small, the largest grows, and if none is free
 * there is one more. */
#ifndef WEFT_SCHEDULE_PIPELINE_ORDER_SLOTS_H
#define WEFT_SCHEDULE_PIPELINE_ORDER_SLOTS_H

#include "schedule/pipeline/order.h"

typedef struct weft_order_slot {
    int32_t chunk;      /* for which it is made */
    uint32_t free_from; /* the first compute behind its last user */
    bool receives;      /* it has inputs of stages: some user is not virtual stage 0 */
} weft_order_slot;

typedef struct weft_order_pool {
    weft_order_slot *slots;
    int num;
    int32_t *of;           /* the slot of each [chunk][m] */
    int32_t *free;         /* free slots, those that have been free longest first: [head, tail) */
    const uint64_t *bytes; /* [virtual stages]; NULL: all alike */
    uint32_t head, tail;
} weft_order_pool;

typedef struct weft_order_slots {
    weft_order_pool stash, deferred;
} weft_order_slots;

/* Allocates memory for any rank's order of the shape. */
weft_status weft_order_slots_start(const weft_order_shape *shape, const uint64_t *stash_bytes,
                                   const uint64_t *deferred_bytes, weft_arena *arena,
                                   weft_order_slots *out) WEFT_CHECKED;
/* Finds the slots of a rank's order, with backwards. */
void weft_order_slots_find(const weft_order_shape *shape, int rank, const weft_order *order,
                           weft_order_slots *slots);
/* The bytes of all slots found; boundary_bytes: of a stage's input. */
uint64_t weft_order_slots_bytes(const weft_order_shape *shape, int rank,
                                const weft_order_slots *slots, uint64_t boundary_bytes);

#endif
