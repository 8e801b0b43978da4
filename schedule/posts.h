/* Where messages stand in the programs of ranks whose hosts wait. Private to schedule/. Pure.
 *
 * The host enqueues nothing behind a compute inside which it waits before that is done. So a
 * message stands ahead of such computes where it can. All ranks' computes are taken one by one in
 * the order of their times (schedule/order_time.h). Before each, messages are handed over that are
 * made and whose receivers have room: the slot is free, and a receiver takes the input of what it
 * computes next, and one more. A rank's program is its part of this one sequence of handovers and
 * computes, so programs end even if each rank does one task at a time. No message stands behind a
 * compute that starts, by those times, when it is wanted or later. */
#ifndef WEFT_SCHEDULE_POSTS_H
#define WEFT_SCHEDULE_POSTS_H

#include "schedule/order.h"

/* A message at one of its ends. */
typedef struct weft_post {
    uint32_t compute; /* of this rank: makes it, or uses it */
    int32_t peer;     /* the other end's rank */
    int64_t free_at;  /* of what is received: when its slot is free */
} weft_post;

/* It stands right before a compute; index: of the sends or of the receives. */
typedef struct weft_posted {
    uint32_t before, index;
    bool received;
} weft_posted;

/* A rank's messages, sends and receives each in their order. */
typedef struct weft_rank_posts {
    weft_post *sends, *receives;
    uint32_t num_sends, num_receives;
    weft_posted *posted; /* out, room for all: in the program's order */
    uint32_t num_posted; /* out; comes as 0 */
} weft_rank_posts;

/* ranks [num_ranks]; starts: those of weft_order_time. Errors: WEFT_INTERNAL for messages that do
 * not come in an order of those times; WEFT_MEMORY. */
weft_status weft_posts_find(const weft_order_shape *shape, const weft_order *orders,
                            int64_t *const *starts, weft_rank_posts *ranks) WEFT_CHECKED;

#endif
