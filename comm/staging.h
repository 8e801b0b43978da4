/* Operands in a GPU's memory, for backends that work on the host.
 *
 * MPI and the windows inside a node know host memory only. On a lane of a CUDA device, staging
 * copies what an operation reads from device memory to the lane's pinned workspace, lets the
 * operation work there, and copies back what it wrote: all in the lane's order, so that nothing
 * waits on the host. It does not cut operations in pieces. The workspace grows to the lane's
 * largest operation (all that it sends plus all that it receives), rounded up to a power of two. */
#ifndef WEFT_COMM_STAGING_H
#define WEFT_COMM_STAGING_H

#include "comm/comm_ops.h"

typedef struct weft_staging {
    weft_comm_op op; /* the operation on the copies */
    void *to;        /* where the copy back goes */
    size_t bytes;    /* of the copy back; 0: none */
} weft_staging;

/* Enqueues the copies of what `op` reads. On other devices' lanes, and for operands that the host
 * can read, it copies nothing and out->op is `op`. Errors: the lane's own, WEFT_MEMORY. */
weft_status weft_staging_begin(weft_lane *lane, const weft_comm_op *op,
                               weft_staging *out) WEFT_CHECKED;
/* Enqueues the copy back, after the caller has enqueued staging->op. */
weft_status weft_staging_end(weft_lane *lane, const weft_staging *staging) WEFT_CHECKED;
/* Makes the lane's workspace this large now. An error on lanes that need none. */
weft_status weft_staging_reserve(weft_lane *lane, size_t bytes) WEFT_CHECKED;
/* True where the lane's device keeps operands that the host cannot read. */
bool weft_staging_is_needed(const weft_lane *lane);

#endif
