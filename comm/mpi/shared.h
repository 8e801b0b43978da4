/* Collectives of groups whose members share a node, through memory that all of them map.
 *
 * Every such group has a *window*: a segment a rank, made with the group and freed when the world
 * ends. Its memory is cut in channels; an operation runs in one channel from beginning to end, so
 * operations of one group may run at once, in any order, as messages allow it too. Whoever reaches
 * an operation first claims a free channel for it on the *board* (rank 0's segment), or, with none
 * free, says that this operation goes by messages; the others find there what was decided. So an
 * operation never waits for another one.
 *
 * In a channel, an operation moves in pieces small enough to stay in the caches. A rank's slot of a
 * piece is written by that rank alone; how far it has come stands in a counter that the others
 * read. Nobody blocks: the engine polls. */
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

/* What the first rank to reach an operation wrote down. Guarded by the board's lock. */
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

/* Pieces that a rank has brought through each stage, of all operations that ran in the channel. */
typedef struct weft_mpi_progress {
    _Alignas(WEFT_MPI_LINE_BYTES) atomic_uint_least64_t num_ended[WEFT_MPI_MAX_STAGES];
} weft_mpi_progress;

typedef struct weft_mpi_segment {
    weft_mpi_progress progress[WEFT_MPI_NUM_CHANNELS];
    weft_mpi_board board; /* rank 0's serves the group */
    _Alignas(4096) char slots[WEFT_MPI_NUM_CHANNELS][WEFT_MPI_NUM_BUFFERS][WEFT_MPI_SLOT_BYTES];
} weft_mpi_segment;

typedef struct weft_mpi_window {
    struct weft_mpi_window *older; /* of all of this process */
    MPI_Win handle;
    weft_mpi_segment *segments[]; /* of each rank, where this process sees it */
} weft_mpi_window;

/* shared.c. Whether windows are wanted: not where the environment has WEFT_SHARED_WINDOWS=0. The
 * ranks must agree (else WEFT_CONFIG). Collective over MPI_COMM_WORLD. */
weft_status weft_mpi_shared_start(void) WEFT_CHECKED;
/* Frees all windows. Collective over MPI_COMM_WORLD. */
void weft_mpi_shared_stop(void);
/* The gate that the ranks of a node share: `*out` stays as it is where they have no such memory or
 * a rank is alone. Valid until weft_mpi_shared_stop. Collective over `node`. */
weft_status weft_mpi_shared_gate(MPI_Comm node, weft_gate **out) WEFT_CHECKED;
/* Gives a new group its window, to be freed by weft_mpi_shared_stop, if the group needs and can
 * have one. Memory that cannot be had is a warning, once. Collective over the group. */
weft_status weft_mpi_shared_open(weft_mpi_comm *comm) WEFT_CHECKED;

/* shared_run.c. True if the operation is of a kind and size for the window: the same on all ranks.
 */
bool weft_mpi_shared_serves(const weft_comm_op *op);
/* Runs such an operation to its end; *out_served is false when it has to go by messages. */
weft_status weft_mpi_shared_run(const weft_comm_op *op, bool *out_served) WEFT_CHECKED;

#endif
