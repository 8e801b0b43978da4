/* Where messages stand in the programs of ranks whose hosts wait. Pure.
 *
 * While the host waits inside a compute it enqueues nothing, so messages stand ahead of such
 * computes where possible. The rule walks all ranks' computes in the order of their times
 * (schedule/pipeline/order_time.h). Before each compute it delivers every message that is made and
 * whose receiver has room: a free slot, and at most the input of its next compute and one more. A
 * rank's program is its part of this one sequence of deliveries and computes, so programs end even
 * if each rank does one task at a time. No message stands behind a compute that starts when the
 * message is wanted or later. */
#ifndef WEFT_SCHEDULE_PIPELINE_POSTS_H
#define WEFT_SCHEDULE_PIPELINE_POSTS_H

#include "schedule/pipeline/order.h"

/* A message at one of its ends. */
typedef struct weft_post {
    uint32_t compute; /* this rank's compute that makes or uses it */
    int32_t peer;     /* the other end's rank */
    int32_t free_at;  /* a receive: when its slot is free */
} weft_post;

/* A message's place, right before a compute; index: into the sends or the receives. */
typedef struct weft_posted {
    uint32_t before, index;
    bool received;
} weft_posted;

/* A rank's messages, sends and receives each in their order. */
typedef struct weft_rank_posts {
    weft_post *sends, *receives;
    uint32_t num_sends, num_receives;
    weft_posted *posted; /* out, room for all: in the program's order */
    uint32_t num_posted; /* out; 0 at first */
} weft_rank_posts;

/* ranks [num_ranks]; starts: those of weft_order_time. Errors: WEFT_INTERNAL for messages that do
 * not come in an order of those times; WEFT_MEMORY. */
weft_status weft_posts_find(const weft_order_shape *shape, const weft_order *orders,
                            int32_t *const *starts, weft_rank_posts *ranks) WEFT_CHECKED;

#endif
