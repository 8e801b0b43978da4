/* Communicators: a group of ranks and the collectives among them, asynchronous on lanes.
 *
 * Every operation is enqueued on a lane and is complete when an event recorded after it is. All
 * members of a group issue the same collectives in the same order (per communicator, whatever the
 * lanes); different communicators may be in flight at once. A lane runs its operations one after
 * the other, so the orders in which ranks queue *different* groups on one lane must not contradict
 * each other, and two ranks that send to each other do so beside receiving, on another lane. Counts
 * are size_t; the mpi backend splits what exceeds INT_MAX. Operands are not freed or reused before
 * completion.
 *
 * Reductions fold in rank order: the same bits on every rank and in every run.
 *
 * Errors name the group, the peer and the operation. A communicator that failed is broken: later
 * calls return WEFT_COMM, and the job has to be aborted, since peers may wait and MPI may still
 * write to the failed operation's buffers. Every operation is recorded (weft_comm_records). In
 * debug mode (weft_comm_set_check) ranks compare (sequence number, kind, bytes, dtype) before each
 * collective starts and name the rank that differs.
 *
 * Operands of a GPU's lane may be the GPU's memory, pinned or the host's own; of one operation
 * either all ranks' are the GPU's memory or none's. MPI takes them through the lane's pinned
 * workspace, which grows to the operation's size. NCCL (weft_comm_use_nccl) differs in this:
 *  - What a reduction's bits are follows from the order that NCCL chose for the ranks. They are the
 *    same on every rank, and in every run with the same machines, NCCL and environment (switches do
 *    not sum, see weft_comm_use_nccl), but not those of a fold in rank order. bf16 and fp16 are
 *    rounded at each addition. A maximum or minimum may lose a NaN.
 *  - All ranks enqueue the operations of the groups that they share in one order, whatever the
 *    lanes: kernels start in the order of the calls. Any thread may call.
 *  - A send or receive goes by NCCL between neighbours in the ring of a group of purpose PIPELINE,
 *    by MPI elsewhere. By NCCL, messages whose tags are both even or both odd match in order, sizes
 *    that differ are not found, and a send_recv meets send_recvs alone.
 *  - A record ends when the watchdog sees it, milliseconds later. An error on the GPU, or an
 *    operation that does not end in half an hour, ends the job with one line.
 *
 * MPI types live only in comm/mpi, NCCL's in comm/nccl.
 */
#ifndef WEFT_COMM_COMM_H
#define WEFT_COMM_COMM_H

#include <stdint.h>
#include <stdio.h>

#include <weft/device.h>
#include <weft/status.h>
#include <weft/tensor.h>

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
 * MPI_ERRORS_RETURN. Refuses (WEFT_CONFIG) when the launcher's idea of the world size
 * (OMPI_COMM_WORLD_SIZE, PMI_SIZE, SLURM_NTASKS of a step) differs from MPI's. One world a process.
 * Collective over the world. */
weft_status weft_comm_create_world(weft_comm **out) WEFT_CHECKED;
/* True when this process was started by mpirun or srun (environment only; does not start MPI). */
bool weft_comm_launched(int *out_rank, int *out_size, int *out_local_rank, int *out_local_size);

/* Members of `parent` with equal color form a group, ordered by key then parent rank. color < 0:
 * no group, *out = NULL. `name` ("tp", "dp", ...) is copied and shows in errors and records.
 * Groups of one rank become self communicators. Collective over parent. */
weft_status weft_comm_split(weft_comm *parent, int color, int key, const char *name,
                            weft_comm_purpose purpose, weft_comm **out) WEFT_CHECKED;
/* As split by a color that no other member has, but local. */
weft_status weft_comm_alone(const weft_comm *parent, const char *name, weft_comm_purpose purpose,
                            weft_comm **out) WEFT_CHECKED;
/* As split, with the ranks that share memory with this one (MPI_COMM_TYPE_SHARED). */
weft_status weft_comm_split_node(weft_comm *parent, weft_comm **out) WEFT_CHECKED;
/* Decides for the groups split from now on: NCCL, if `device` is a GPU, each rank has one of its
 * own and NCCL is there and fit on all of them; else MPI with copies in pinned memory. Groups of
 * purpose CONTROL and the world stay with MPI. `wanted` and the answer are the same on every rank;
 * rank 0 logs the answer. *out_why (static, NULL: unwanted) is the reason, such as "ranks 0 and 1
 * share a GPU". `device` is borrowed as long as groups are split. Before NCCL is loaded,
 * NCCL_LAUNCH_ORDER_IMPLICIT=1, NCCL_NVLS_ENABLE=0 and NCCL_RUNTIME_CONNECT=0 are set where the
 * environment does not have them. Errors: WEFT_CONFIG (NCCL is wanted and cannot be had).
 * Collective over the world. */
weft_status weft_comm_use_nccl(weft_comm *world, weft_device *device, weft_comm_choice wanted,
                               const char **out_why) WEFT_CHECKED;
/* Local, but for the world's, which waits for the other ranks and finalizes MPI (unless operations
 * that failed are still pending there). NULL is legal. */
void weft_comm_destroy(weft_comm *comm);

int weft_comm_rank(const weft_comm *comm);
int weft_comm_size(const weft_comm *comm);
const char *weft_comm_name(const weft_comm *comm);
/* The world rank of a member. */
int weft_comm_world_rank(const weft_comm *comm, int rank);

/* Where the group's operations on GPU lanes go through pinned memory: makes the lane's workspace
 * large enough for one that sends and receives `bytes` in all. Workspaces grow by themselves too,
 * but pinning memory may wait for all that the GPU has been given, and so, amid a step, for a peer
 * that waits as well. Elsewhere nothing. Local. Errors: WEFT_MEMORY. */
weft_status weft_comm_reserve(const weft_comm *comm, weft_lane *lane, size_t bytes) WEFT_CHECKED;

/* Collective operations. In place: `buffer` is input and result. fp32, bf16, fp16, fp64, int32,
 * int64; bf16 and fp16 are accumulated in fp32 and rounded once, to nearest even. Maximum and
 * minimum pass a NaN on. */
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
 * weft_comm_size entries, copied at the call. A rank may send and receive nothing. The areas do
 * not overlap. */
weft_status weft_all_to_all(weft_comm *comm, weft_lane *lane, const void *send,
                            const size_t *send_bytes, void *recv,
                            const size_t *recv_bytes) WEFT_CHECKED;
/* The all-to-all of experts that are tensor-sharded too (MoNTA, "Pipelining"; O2 and O3 in one).
 * Every rank of `inside` holds the same `send`. The result is that of weft_all_to_all over
 * `between`, to the bit: but each rank of `inside` carries only its part of every block between the
 * ranks of `between`, in chunks of about `chunk_bytes` a peer (0: a default), and hands each chunk
 * that arrives on to the others of `inside`, straight to its final place. The rank's own block is
 * copied: nothing is gathered that is already there. Sizes may differ between blocks and be 0; all
 * ranks of `inside` pass equal sizes and chunk_bytes. Counted and recorded on `between`. Collective
 * over the ranks that the two groups span together: every rank of `inside` is in a group `between`
 * of its own, and all of those have one size and the same rank numbers along `inside`. */
weft_status weft_all_to_all_sharded(weft_comm *between, weft_comm *inside, weft_lane *lane,
                                    const void *send, const size_t *send_bytes, void *recv,
                                    const size_t *recv_bytes, size_t chunk_bytes) WEFT_CHECKED;
weft_status weft_broadcast(weft_comm *comm, weft_lane *lane, void *buffer, size_t bytes,
                           int root) WEFT_CHECKED;
/* Point to point. Messages between two ranks with one tag arrive in order; a size mismatch is an
 * error on the receiver. 0 <= tag < 1024; peer is another rank. A send may wait for its receive. */
weft_status weft_send(weft_comm *comm, weft_lane *lane, int peer, int tag, const void *buffer,
                      size_t bytes) WEFT_CHECKED;
weft_status weft_recv(weft_comm *comm, weft_lane *lane, int peer, int tag, void *buffer,
                      size_t bytes) WEFT_CHECKED;

/* Sends to one rank and receives from another at once (either may be this rank's own number: a
 * copy). The sizes may be 0. */
weft_status weft_send_recv(weft_comm *comm, weft_lane *lane, int to, const void *send,
                           size_t send_bytes, int from, void *recv, size_t recv_bytes,
                           int tag) WEFT_CHECKED;

/* Blocking helpers on the host, for set-up (not on a lane). Groups of purpose CONTROL that span
 * nodes, the world among them, do all but messages inside the nodes first and then between the
 * nodes' first ranks: rank 0 puts together what all bring, and each rank sends and receives a few
 * messages, however large the group is. */
weft_status weft_comm_barrier(weft_comm *comm) WEFT_CHECKED;
weft_status weft_comm_broadcast_host(weft_comm *comm, void *buffer, size_t bytes,
                                     int root) WEFT_CHECKED;
weft_status weft_comm_all_gather_host(weft_comm *comm, const void *send, void *recv,
                                      size_t bytes) WEFT_CHECKED; /* bytes a rank */
/* To rank 0, `bytes` a rank; elsewhere recv may be NULL. */
weft_status weft_comm_gather_host(weft_comm *comm, const void *send, void *recv,
                                  size_t bytes) WEFT_CHECKED;
/* From rank 0, `bytes` a rank in the order of the ranks; elsewhere send may be NULL. By messages
 * down a binomial tree: a rank sends log2(size) of them at most. */
weft_status weft_comm_scatter_host(weft_comm *comm, const void *send, void *recv,
                                   size_t bytes) WEFT_CHECKED;
weft_status weft_comm_send_host(weft_comm *comm, int peer, int tag, const void *buffer,
                                size_t bytes) WEFT_CHECKED;
weft_status weft_comm_recv_host(weft_comm *comm, int peer, int tag, void *buffer,
                                size_t bytes) WEFT_CHECKED;
weft_status weft_comm_all_reduce_host(weft_comm *comm, void *buffer, size_t count, weft_dtype dtype,
                                      weft_reduce reduce) WEFT_CHECKED;
/* Ends a fallible set-up phase: every rank returns the same status, the worst one, and this
 * thread's record holds the text of the lowest rank that had it ("rank 3: ...", its world rank; a
 * group of one keeps its text as it is). Collective. */
weft_status weft_comm_agree(weft_comm *comm, weft_status status) WEFT_CHECKED;

/* Takes the whole job down (MPI_Abort with the status' exit code); self: exits. Callable from any
 * thread. The caller has printed the reason. */
void weft_comm_abort(weft_comm *comm, weft_status status);

/* Debug mode for all communicators: compare signatures before each collective. Set alike on every
 * rank, while no operation is in flight. */
void weft_comm_set_check(bool on);
bool weft_comm_checking(void);

/* The record of operations: the last WEFT_COMM_MAX_RECORDS of this process. */
typedef struct weft_comm_record {
    char group[16];
    const char *kind;  /* static: "all_reduce", ... */
    uint64_t sequence; /* in that group, from 0 */
    size_t bytes;
    int peer;                /* -1: all */
    double start_us, end_us; /* end 0: in flight, or failed */
} weft_comm_record;
enum { WEFT_COMM_MAX_RECORDS = 1024 };
/* Copies the latest records, newest last; returns their number. */
int weft_comm_records(weft_comm_record *out, int capacity);
/* Totals since start, for measuring against `describe`: bytes this process passed to operations of
 * groups with that purpose, and their number. An all_reduce or broadcast counts its buffer,
 * reduce_scatter, gather and all_gather the buffer of all ranks' shares, all_to_all what is sent, a
 * message its bytes where it is sent. */
void weft_comm_totals(weft_comm_purpose purpose, uint64_t *out_bytes, uint64_t *out_count);

/* A backend's table (comm_ops.h): the wrappers above check, number, record and enqueue. */
typedef struct weft_comm_ops weft_comm_ops;

#endif
