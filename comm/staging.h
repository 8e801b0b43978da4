/* Operands in a GPU's memory, for backends that work on the host.
 *
 * MPI and the windows inside a node know host memory only. On a lane of a CUDA device, what an
 * operation reads in device memory is copied to the lane's pinned workspace first, the operation
 * works there, and what it wrote is copied back: all in the lane's order, so that nothing waits on
 * the host. An operation is not cut in pieces for this: the workspace grows to the largest
 * operation of the lane, that is to all that it sends plus all that it receives, rounded up to a
 * power of two. */
#ifndef WEFT_COMM_STAGING_H
#define WEFT_COMM_STAGING_H

#include "comm/comm_ops.h"

typedef struct weft_staging {
    weft_comm_op op; /* the operation on the copies */
    void *to;        /* where what it writes belongs */
    size_t bytes;    /* 0: it is there already */
} weft_staging;

/* Enqueues the copies of what `op` reads. On other lanes, and for operands that the host can read,
 * nothing moves and out->op is `op`. Errors: the lane's own, WEFT_MEMORY. */
weft_status weft_staging_begin(weft_lane *lane, const weft_comm_op *op,
                               weft_staging *out) WEFT_CHECKED;
/* Enqueues the copy back, behind out->op. */
weft_status weft_staging_end(weft_lane *lane, const weft_staging *staging) WEFT_CHECKED;
/* Makes the lane's workspace so large now. On lanes where none is needed, an error. */
weft_status weft_staging_reserve(weft_lane *lane, size_t bytes) WEFT_CHECKED;
/* True where the lane's device keeps operands that the host cannot read. */
bool weft_staging_is_needed(const weft_lane *lane);

#endif
