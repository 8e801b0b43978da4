/* Collectives of groups whose members share a node, through memory that all of them map.
 *
 * Every such group has a *window*: a segment for each rank, made with the group and freed when the
 * world ends. Its memory is cut in channels. An operation runs in one channel from beginning to
 * end, so operations of one group may run at once and in any order, as they may by messages. The
 * rank that reaches an operation first claims a free channel for it on the *board* (rank 0's
 * segment) or, with none free, notes there that the operation goes by messages; the others read the
 * board. So no operation waits for another.
 *
 * In a channel, an operation moves in pieces small enough to stay in the caches. Only the rank
 * itself writes its slot of a piece, and a counter tells the others how far it has come. Nobody
 * blocks: the engine polls. */
#ifndef WEFT_COMM_MPI_SHARED_H
#define WEFT_COMM_MPI_SHARED_H

#include "comm/mpi/mpi_comm.h"

enum {
    WEFT_MPI_LINE_BYTES = 64,
    WEFT_MPI_NUM_CHANNELS = 4,
    WEFT_MPI_NUM_BUFFERS = 4, /* slots a rank and channel: pieces that may be part way */
    WEFT_MPI_SLOT_BYTES = 256 << 10,
    WEFT_MPI_NUM_CLAIMS = 64,
    WEFT_MPI_MAX_STAGES = 3,
    WEFT_MPI_MAX_WINDOW_RANKS = WEFT_MPI_SLOT_BYTES / WEFT_MPI_LINE_BYTES,
};

/* What the first rank to reach an operation noted. Guarded by the board's lock. */
typedef struct weft_mpi_claim {
    uint64_t key; /* sequence + 1; 0: free */
    uint64_t bytes;
    int32_t kind, dtype, reduce, rank;
    int32_t channel; /* -1: by messages */
    int32_t num_arrived;
} weft_mpi_claim;

typedef struct weft_mpi_channel {
    _Alignas(WEFT_MPI_LINE_BYTES) atomic_uint num_inside; /* ranks yet to leave; 0: free */
    atomic_uint failed_rank;                              /* + 1 */
} weft_mpi_channel;

typedef struct weft_mpi_board {
    _Alignas(WEFT_MPI_LINE_BYTES) atomic_bool locked;
    weft_mpi_channel channels[WEFT_MPI_NUM_CHANNELS];
    weft_mpi_claim claims[WEFT_MPI_NUM_CLAIMS];
} weft_mpi_board;

/* How many pieces a rank has ended in each stage, over all operations that ran in the channel. */
typedef struct weft_mpi_progress {
    _Alignas(WEFT_MPI_LINE_BYTES) atomic_uint_least64_t num_ended[WEFT_MPI_MAX_STAGES];
} weft_mpi_progress;

typedef struct weft_mpi_segment {
    weft_mpi_progress progress[WEFT_MPI_NUM_CHANNELS];
    weft_mpi_board board; /* rank 0's serves the group */
    _Alignas(4096) char slots[WEFT_MPI_NUM_CHANNELS][WEFT_MPI_NUM_BUFFERS][WEFT_MPI_SLOT_BYTES];
} weft_mpi_segment;

/* One group's at a time: freeing it is collective, destroying a group is not, so that it waits for
 * the next group of the same ranks. */
typedef struct weft_mpi_window {
    struct weft_mpi_window *older; /* of all of this process */
    MPI_Win handle;
    int id; /* the same on all of its ranks, and another one than that of any other of theirs */
    bool in_use;
    int size, *world_ranks;       /* [size], or NULL: all of the world */
    weft_mpi_segment *segments[]; /* of each rank, where this process sees it */
} weft_mpi_window;

/* shared.c. Reads whether groups get windows: not where the environment has WEFT_SHARED_WINDOWS=0.
 * Errors: WEFT_CONFIG (ranks differ). Collective over MPI_COMM_WORLD. */
weft_status weft_mpi_shared_start(void) WEFT_CHECKED;
/* Frees all windows. Collective over MPI_COMM_WORLD. */
void weft_mpi_shared_stop(void);
/* The gate that the ranks of a node share. `*out` stays as it is where a rank is alone or they have
 * no shared memory. Valid until weft_mpi_shared_stop. Collective over `node`. */
weft_status weft_mpi_shared_gate(MPI_Comm node, weft_gate **out) WEFT_CHECKED;
/* Gives a new group a window, if it needs one and can have it: one that a destroyed group of these
 * ranks had, or a new one; weft_mpi_shared_stop frees it. Warns once where there is no memory for
 * one. Collective over the group. */
weft_status weft_mpi_shared_open(weft_mpi_comm *comm) WEFT_CHECKED;
/* This rank needs the group's window no more, if it has one: no operation of the group is in
 * flight. */
void weft_mpi_shared_close(weft_mpi_comm *comm);

/* shared_run.c. True if the operation's kind and size are for the window; the same on all ranks. */
bool weft_mpi_shared_serves(const weft_comm_op *op);
/* Runs such an operation to its end. *out_served is false when it must go by messages. */
weft_status weft_mpi_shared_run(const weft_comm_op *op, bool *out_served) WEFT_CHECKED;

#endif
