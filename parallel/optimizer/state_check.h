/* Hashes of what this rank updates, from one step to the next. With ZeRO no other rank has its
 * shares of masters and moments, so replicas (parallel/optimizer/replicas.h) do not tell of a bit
 * that flips there.
 *
 * weft_optimizer_update hashes a bucket's weights, masters and moments (weft_hash, on the bucket's
 * own lane) behind AdamW, where it is asked to leave hashes, and the next one hashes them again
 * before AdamW reads them. Each array of each parameter, or local expert of it, has a hash of its
 * own. Buckets whose weights or state are in host memory or in files are left out: the host steps
 * these. Nothing is done on an optimizer without checks_state. */
#ifndef WEFT_PARALLEL_OPTIMIZER_STATE_CHECK_H
#define WEFT_PARALLEL_OPTIMIZER_STATE_CHECK_H

#include "parallel/optimizer/optimizer.h"

/* What has changed where nothing writes it, the same on every rank: of the lowest rank that has
 * such, its first. */
typedef struct weft_state_change {
    int rank;                       /* of the world; -1: nothing has changed */
    char name[WEFT_MAX_NAME_BYTES]; /* the parameter */
    char array[16];                 /* "weight", "master", "exp_avg", "exp_avg_sq" */
} weft_state_change;

/* Whether updates leave hashes from here on. A step that is skipped leaves those of the step
 * before. */
void weft_state_check_leave(weft_optimizer *optimizer, bool leaves);
/* What updates have found since the last call; looks: hashes all again that has hashes, which stay.
 * The caller has drained the lanes that write state. Enqueues on `lane` and waits for it.
 * Collective over the world. */
weft_status weft_state_check_take(weft_optimizer *optimizer, bool looks, weft_lane *lane,
                                  weft_state_change *out) WEFT_CHECKED;

/* Bytes of the hashes on the device, and again in pinned host memory: of num_parts parameters, or
 * by expert local experts of them. */
static inline size_t weft_state_check_bytes(int num_parts)
{
    enum { ENDS = 1, ARRAYS = 4, SETS = 2 }; /* left behind the update, seen before the next */
    return (size_t)num_parts * (ENDS + ARRAYS * SETS) * sizeof(uint64_t);
}

#endif
