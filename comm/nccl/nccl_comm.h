/* The nccl backend's own structures.
 *
 * A group is an mpi group with a communicator of NCCL's beside it. NCCL enqueues collectives and
 * send_recvs of operands in GPU memory on the lane's stream. The mpi group carries everything else:
 * what runs on the host, operands that NCCL cannot read, and messages without a channel.
 *
 * NCCL runs the operations of one communicator one after the other, whatever their streams, and
 * knows no tags: a send and a receive that pass each other would wait for each other. So a message
 * has a *channel*, a communicator of two ranks for one direction and one class of tags. Groups of
 * purpose PIPELINE have channels between ranks that are neighbours in the ring.
 *
 * Order: NCCL's kernels wait for their peers while they occupy the GPU, so different orders on two
 * ranks could block both. One lock gives all enqueued operations one order, and NCCL starts kernels
 * of all communicators in that order (NCCL_LAUNCH_ORDER_IMPLICIT). The caller keeps the rule of
 * comm.h. No operation connects when it is enqueued: making a group sets up all that its
 * communicators need, and tries it once.
 *
 * NCCL's calls do not block here; the caller polls their progress up to a deadline. A watchdog does
 * the same for enqueued operations. It ends the job, the only way out for a group that lost a rank.
 */
#ifndef WEFT_COMM_NCCL_NCCL_COMM_H
#define WEFT_COMM_NCCL_NCCL_COMM_H

#include <pthread.h>

#include "comm/comm_ops.h"
#include "comm/nccl/nccl.h"
#include "comm/nccl/nccl_api.h"
#include "core/device/cuda/cuda.h"

enum {
    WEFT_NCCL_NUM_TAG_CLASSES = 2,     /* tag modulo this: activations and gradients apart */
    WEFT_NCCL_DEADLINE_SECONDS = 1800, /* of an operation, from when it was enqueued */
};

/* Two neighbours in the ring: the lower one has rank 0 in each communicator. */
typedef struct weft_nccl_pair {
    int peer; /* in the group; -1: no such pair */
    bool lower;
    ncclComm_t up[WEFT_NCCL_NUM_TAG_CLASSES]; /* from the lower one to the upper one */
    ncclComm_t down[WEFT_NCCL_NUM_TAG_CLASSES];
} weft_nccl_pair;

typedef struct weft_nccl_comm {
    weft_comm base;
    weft_comm *host; /* the mpi group of the same ranks */
    ncclComm_t handle;
    weft_nccl_pair pairs[2]; /* with the previous and the next rank */
    /* For all_to_all_sharded, in the group inside; made when first used. */
    cudaStream_t side;
    cudaEvent_t forked, joined;
} weft_nccl_comm;

/* nccl_run.c */
weft_status weft_nccl_enqueue(weft_lane *lane, const weft_comm_op *op) WEFT_CHECKED;
weft_status weft_nccl_run_on_host(const weft_comm_op *op) WEFT_CHECKED;

/* nccl_watch.c. Starts this process' watchdog, on that device. */
weft_status weft_nccl_watch_start(int device_index) WEFT_CHECKED;
/* Watches an operation that has just been enqueued on the stream and closes its record. */
weft_status weft_nccl_watch(weft_nccl_comm *comm, ncclComm_t handle, const weft_comm_op *op,
                            cudaStream_t stream, uint64_t ticket) WEFT_CHECKED;
/* Before the group is freed. */
void weft_nccl_watch_forget(const weft_nccl_comm *comm);
void weft_nccl_watch_stop(void);

#endif
