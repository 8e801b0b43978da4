/* Communicators: a group of ranks and the collectives among them, asynchronous on lanes.
 *
 * A call enqueues its operation on a lane; the operation is complete when an event recorded after
 * it is. All members of a group issue the same collectives in the same order, whatever the lanes;
 * different groups may be in flight at once. A lane runs its operations one after the other. So
 * ranks that queue *different* groups on one lane queue them in orders that do not contradict each
 * other, and two ranks that send to each other receive on another lane meanwhile. Counts are
 * size_t; the mpi backend splits what exceeds INT_MAX. The caller neither frees nor reuses operands
 * before completion.
 *
 * Reductions fold in rank order: the same bits on every rank and in every run.
 *
 * Errors name the group, the peer and the operation. A communicator that failed is broken: later
 * calls return WEFT_COMM. The caller then aborts the job, since peers may wait and MPI may still
 * write to the failed operation's buffers. Every operation is recorded (weft_comm_records). In
 * debug mode (weft_comm_set_check) ranks compare number, kind, sizes, dtype, reduction and root
 * before each collective starts, and name the rank that differs.
 *
 * Operands on a GPU's lane may be the GPU's memory, pinned memory or other host memory; in one
 * operation either all ranks' are the GPU's memory or none's. MPI takes them through the lane's
 * pinned workspace, which grows to the operation's size. NCCL (weft_comm_use_nccl) differs:
 *  - It sums in the order that it chose for the ranks. The bits are the same on every rank, and in
 *    every run with the same machines, NCCL and environment (switches do not sum, see
 *    weft_comm_use_nccl), but not those of a fold in rank order. It rounds bf16 and fp16 at each
 *    addition. A maximum or minimum may lose a NaN.
 *  - Ranks enqueue the operations of the groups that they share in one order, whatever the lanes:
 *    kernels start in the order of the calls. Any thread may call.
 *  - A send or receive goes by NCCL between neighbours in the ring of a group of purpose PIPELINE,
 *    by MPI elsewhere. NCCL matches messages in order among even tags and among odd tags, does not
 *    find sizes that differ, and matches a send_recv with send_recvs alone.
 *  - A record ends when the watchdog sees the end, milliseconds later. The watchdog ends the job
 *    with one line after an error on the GPU, or when an operation takes more than half an hour.
 *
 * MPI's types stay in comm/mpi, NCCL's in comm/nccl. */
#ifndef WEFT_COMM_COMM_H
#define WEFT_COMM_COMM_H

#include <stdint.h>
#include <stdio.h>

#include <weft/device.h>
#include <weft/status.h>
#include <weft/tensor.h>

#include "core/doing.h"

typedef struct weft_comm weft_comm;

typedef enum weft_reduce { WEFT_REDUCE_SUM, WEFT_REDUCE_MAX, WEFT_REDUCE_MIN } weft_reduce;

/* Priorities of purposes, served smallest first (MoNTA §4: EP > PP > CP > DP). */
typedef enum weft_comm_purpose {
    WEFT_PURPOSE_CONTROL, /* tiny, latency bound: agreements, norms */
    WEFT_PURPOSE_TENSOR,
    WEFT_PURPOSE_EXPERT,
    WEFT_PURPOSE_PIPELINE,
    WEFT_PURPOSE_CONTEXT,
    WEFT_PURPOSE_DATA,
    WEFT_NUM_PURPOSES,
} weft_comm_purpose;

/* What moves the operands of GPU lanes between ranks. */
typedef enum weft_comm_choice {
    WEFT_COMM_BY_ANY,
    WEFT_COMM_BY_MPI,
    WEFT_COMM_BY_NCCL
} weft_comm_choice;

/* A group of this process alone. */
weft_status weft_comm_create_self(weft_comm **out) WEFT_CHECKED;
/* Starts MPI (MPI_THREAD_MULTIPLE) where needed and duplicates MPI_COMM_WORLD with
 * MPI_ERRORS_RETURN. One world a process. Errors: WEFT_CONFIG (the launcher's size of the world,
 * OMPI_COMM_WORLD_SIZE, PMI_SIZE or SLURM_NTASKS of a step, differs from MPI's), WEFT_COMM,
 * WEFT_MEMORY. Collective over the world. */
weft_status weft_comm_create_world(weft_comm **out) WEFT_CHECKED;
/* Whether mpirun or srun started this process. Reads the environment and does not start MPI. */
bool weft_comm_launched(int *out_rank, int *out_size, int *out_local_rank, int *out_local_size);

/* Members of `parent` with equal color form a group, ordered by key, then parent rank. color < 0:
 * no group, *out = NULL. Errors and records show `name` ("tp", "dp", ...), which is copied. Groups
 * of one rank become self communicators. Collective over parent. */
weft_status weft_comm_split(weft_comm *parent, int color, int key, const char *name,
                            weft_comm_purpose purpose, weft_comm **out) WEFT_CHECKED;
/* A group of this rank alone, without communication. `parent` names its world rank and how to end
 * the job. */
weft_status weft_comm_alone(const weft_comm *parent, const char *name, weft_comm_purpose purpose,
                            weft_comm **out) WEFT_CHECKED;
/* A group of the ranks that share memory with this one (MPI_COMM_TYPE_SHARED). Collective over
 * parent. */
weft_status weft_comm_split_node(weft_comm *parent, weft_comm **out) WEFT_CHECKED;
/* Decides what the groups split from now on communicate by: NCCL, if `device` is a GPU, each rank
 * has one of its own and NCCL works on all of them; else MPI with copies in pinned memory. Groups
 * of purpose CONTROL and the world stay with MPI. Every rank passes the same `wanted` and gets the
 * same answer, which rank 0 logs. *out_why (static; may be NULL) is the reason, such as "ranks 0
 * and 1 share a GPU". `device` is borrowed as long as groups are split. Before it loads NCCL this
 * sets NCCL_LAUNCH_ORDER_IMPLICIT=1, NCCL_NVLS_ENABLE=0 and NCCL_RUNTIME_CONNECT=0 where the
 * environment does not have them. Errors: WEFT_CONFIG (NCCL is wanted and cannot be had).
 * Collective over the world. */
weft_status weft_comm_use_nccl(weft_comm *world, weft_device *device, weft_comm_choice wanted,
                               const char **out_why) WEFT_CHECKED;
/* Local, but for the world: its destroy waits for the other ranks and finalizes MPI (unless failed
 * operations are still pending there). NULL is legal. */
void weft_comm_destroy(weft_comm *comm);

int weft_comm_rank(const weft_comm *comm);
int weft_comm_size(const weft_comm *comm);
const char *weft_comm_name(const weft_comm *comm);
/* The world rank of a member; -1 for no member. */
int weft_comm_world_rank(const weft_comm *comm, int rank);

/* Makes the lane's pinned workspace large enough for an operation that sends and receives `bytes`
 * in all, where the group's operations on GPU lanes go through it; else does nothing. Workspaces
 * grow by themselves too. But pinning memory may wait for all of the GPU's work, and so, amid a
 * step, for a peer that waits as well. Local. Errors: WEFT_MEMORY. */
weft_status weft_comm_reserve(const weft_comm *comm, weft_lane *lane, size_t bytes) WEFT_CHECKED;

/* The operations from here to weft_broadcast are collective.
 *
 * In place: `buffer` is input and result. fp32, bf16, fp16, fp64, int32, int64; bf16 and fp16 are
 * summed in fp32 and rounded once, to nearest even. Maximum and minimum pass a NaN on. */
weft_status weft_all_reduce(weft_comm *comm, weft_lane *lane, void *buffer, size_t count,
                            weft_dtype dtype, weft_reduce reduce) WEFT_CHECKED;
/* send: size * count elements; recv: `count` elements, this rank's share. recv may be send's own
 * share (in place). */
weft_status weft_reduce_scatter(weft_comm *comm, weft_lane *lane, const void *send, void *recv,
                                size_t count, weft_dtype dtype, weft_reduce reduce) WEFT_CHECKED;
/* send: `count` elements; recv: size * count. send may be recv's own share (in place). */
weft_status weft_all_gather(weft_comm *comm, weft_lane *lane, const void *send, void *recv,
                            size_t count, weft_dtype dtype) WEFT_CHECKED;
/* Bytes to and from each rank, back to back in rank order. The two arrays are host memory of
 * weft_comm_size entries, copied at the call; an entry may be 0. The areas do not overlap. */
weft_status weft_all_to_all(weft_comm *comm, weft_lane *lane, const void *send,
                            const size_t *send_bytes, void *recv,
                            const size_t *recv_bytes) WEFT_CHECKED;
/* The all-to-all of experts that are tensor-sharded too (MoNTA, "Pipelining"; O2 and O3 in one).
 * Every rank of `inside` holds the same `send`. The result has the bits of weft_all_to_all over
 * `between`. But each rank of `inside` carries only its part of every block between the ranks of
 * `between`, in chunks of about `chunk_bytes` a peer (0: a default), and hands each chunk that
 * arrives on to the others of `inside`, straight to its final place. A rank copies its own block.
 * Sizes may differ between blocks and be 0; all ranks of `inside` pass equal sizes and chunk_bytes.
 * Counted and recorded on `between`. Collective over the ranks that the two groups span together:
 * every rank of `inside` is in a group `between` of its own, and all of those have one size and the
 * same rank numbers along `inside`. */
weft_status weft_all_to_all_sharded(weft_comm *between, weft_comm *inside, weft_lane *lane,
                                    const void *send, const size_t *send_bytes, void *recv,
                                    const size_t *recv_bytes, size_t chunk_bytes) WEFT_CHECKED;
weft_status weft_broadcast(weft_comm *comm, weft_lane *lane, void *buffer, size_t bytes,
                           int root) WEFT_CHECKED;
/* Point to point. Messages between two ranks with one tag arrive in order; a size mismatch is an
 * error on the receiver. 0 <= tag < 1024; scatter_host and agree use 1022 and 1023. peer is another
 * rank. A send may wait for its receive. */
weft_status weft_send(weft_comm *comm, weft_lane *lane, int peer, int tag, const void *buffer,
                      size_t bytes) WEFT_CHECKED;
weft_status weft_recv(weft_comm *comm, weft_lane *lane, int peer, int tag, void *buffer,
                      size_t bytes) WEFT_CHECKED;

/* Sends to one rank and receives from another at once. Both may be this rank itself: a copy. The
 * sizes may be 0. */
weft_status weft_send_recv(weft_comm *comm, weft_lane *lane, int to, const void *send,
                           size_t send_bytes, int from, void *recv, size_t recv_bytes,
                           int tag) WEFT_CHECKED;

/* Blocking helpers on the host, for set-up (not on a lane). In groups of purpose CONTROL that span
 * nodes, the world among them, reductions, gathers, barriers and broadcasts from rank 0 go inside
 * the nodes first and then between the nodes' first ranks. Rank 0 puts together what all ranks
 * bring, and each rank sends and receives a few messages, however large the group is. */
weft_status weft_comm_barrier(weft_comm *comm) WEFT_CHECKED;
weft_status weft_comm_broadcast_host(weft_comm *comm, void *buffer, size_t bytes,
                                     int root) WEFT_CHECKED;
weft_status weft_comm_all_gather_host(weft_comm *comm, const void *send, void *recv,
                                      size_t bytes) WEFT_CHECKED; /* bytes a rank */
/* To rank 0, `bytes` a rank; elsewhere recv may be NULL. */
weft_status weft_comm_gather_host(weft_comm *comm, const void *send, void *recv,
                                  size_t bytes) WEFT_CHECKED;
/* From rank 0, `bytes` a rank in rank order; elsewhere send may be NULL. Messages go down a
 * binomial tree: a rank sends at most log2(size) of them, rounded up. */
weft_status weft_comm_scatter_host(weft_comm *comm, const void *send, void *recv,
                                   size_t bytes) WEFT_CHECKED;
weft_status weft_comm_send_host(weft_comm *comm, int peer, int tag, const void *buffer,
                                size_t bytes) WEFT_CHECKED;
weft_status weft_comm_recv_host(weft_comm *comm, int peer, int tag, void *buffer,
                                size_t bytes) WEFT_CHECKED;
weft_status weft_comm_all_reduce_host(weft_comm *comm, void *buffer, size_t count, weft_dtype dtype,
                                      weft_reduce reduce) WEFT_CHECKED;
/* Ends a fallible set-up phase. Every rank returns the worst status, and its record holds the text
 * of the lowest rank that had it, behind that one's world rank ("rank 3: ..."). A group of one
 * keeps its text as it is. Collective. */
weft_status weft_comm_agree(weft_comm *comm, weft_status status) WEFT_CHECKED;

/* Ends the whole job: MPI_Abort with the status' exit code; without MPI this process exits. Any
 * thread. The caller has printed the reason. */
void weft_comm_abort(weft_comm *comm, weft_status status);

/* Debug mode for all communicators. Set it alike on every rank, while no operation is in flight. */
void weft_comm_set_check(bool on);
bool weft_comm_checking(void);

/* An operation of this process; the last WEFT_COMM_MAX_RECORDS are kept. */
typedef struct weft_comm_record {
    char group[16];
    int first_rank,
        size;          /* of the group: the world rank of its rank 0. With `group` its identity */
    const char *kind;  /* static: "all_reduce", ... */
    uint64_t sequence; /* in that group, from 0; collectives and messages are numbered apart */
    size_t bytes;
    weft_dtype dtype;
    int peer;                /* in the group: the root, or the other end; -1: all */
    int from;                /* send_recv: the rank received from; else -1 */
    int tag;                 /* of a message; else -1 */
    double start_us, end_us; /* end 0: in flight, or failed */
    bool failed;
    int64_t step; /* weft_comm_set_step */
    weft_doing doing;
    weft_doing_place place; /* when it was issued */
} weft_comm_record;
enum { WEFT_COMM_MAX_RECORDS = 1024 };
/* Copies the latest records, newest last; returns their number. */
int weft_comm_records(weft_comm_record *out, int capacity);
/* Copies operations in flight, oldest first; returns their number. However many began since. */
int weft_comm_records_in_flight(weft_comm_record *out, int capacity);
/* The first operation that failed; false: none has. */
bool weft_comm_record_failed(weft_comm_record *out);
/* The latest collective of that number in the group that `like` is of; false: it is not there. */
bool weft_comm_record_find(const weft_comm_record *like, weft_comm_record *out);
/* How many messages fewer this rank has sent in a step, up to that place, than up to there in the
 * step before; 0 also where the records do not reach so far back. */
int weft_comm_records_unsent(const weft_doing_place *place);
/* The longest that an operation of a step took, us, since the last call of this. */
double weft_comm_take_longest(void);
/* Records and flights show the step. */
void weft_comm_set_step(int64_t step);
int64_t weft_comm_step(void);

/* Where this rank stands in a group of more than one. */
typedef struct weft_comm_place {
    char group[16];
    int first_rank, size, rank; /* as of a record; this process' rank in the group */
    const int *world_ranks;     /* [size], borrowed from the group; NULL: rank i is i */
    uint64_t num_collectives;   /* issued */
    uint64_t num_begun;         /* of them; the rest stands on a lane behind others */
    uint64_t num_messages;
    uint32_t trail; /* of all its collectives: weft_comm_matches */
} weft_comm_place;
/* Calls `visit` for each group, oldest first, while none is made or destroyed. */
void weft_comm_each_place(void (*visit)(void *context, const weft_comm_place *place),
                          void *context);

/* Whether all ranks have issued the same, without a message of its own: a number to sum over the
 * world, modulo 2^32, at a place of the program that all ranks come to with all their operations
 * issued. It counts what was issued in `world` and in groups split from it, which need not be all
 * that there are. The sum is 0 where in each group all ranks have issued the same collectives in
 * the same order (kind, dtype, count, reduction, root), and every message, and every row of an
 * all_to_all, has been sent and received with the same tag and size. Else it is something else, but
 * for one case in 2^32. Never looks at what a lane runs. */
double weft_comm_match(const weft_comm *world);
bool weft_comm_matches(double sum);
/* After a sum that is not 0: WEFT_COMM on all ranks, which names the group, the rank that stands
 * alone and what it has issued. Collective over the world. */
weft_status weft_comm_mismatch(weft_comm *world) WEFT_CHECKED;
/* Totals since start, to compare with `describe`: the bytes that this process passed to operations
 * of groups with that purpose, and the operations' number. An all_reduce or broadcast counts its
 * buffer, reduce_scatter, gather and all_gather the buffer of all ranks' shares, all_to_all what
 * this rank sends. A message counts on its sender. */
void weft_comm_totals(weft_comm_purpose purpose, uint64_t *out_bytes, uint64_t *out_count);

/* A backend's table (comm_ops.h). */
typedef struct weft_comm_ops weft_comm_ops;

#endif
