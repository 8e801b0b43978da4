/* Runs one operation in a window: claims its channel, then moves its pieces, stage by stage.
 *
 * all_reduce of two ranks: each shows the other its piece and folds both. Of more ranks: a piece is
 * cut in shares; each rank shows the others theirs, folds its own and shows the result at its
 * share's place in its slot, which moves fewer bytes. reduce_scatter: a slot holds the piece's row
 * for each rank, and each rank folds its own. all_gather: a slot holds a piece of the rank's share.
 */
#include "comm/mpi/shared.h"

#include <inttypes.h>
#include <string.h>

#include "comm/mpi/copy.h"
#include "comm/fold.h"

enum {
    MAX_BYTES_A_CALL = 256 << 10, /* so that others get their turn */
    PAST_BYTES = 4 << 20,         /* gathered results from this size on go past the caches */
    CALLS_A_PROBE = 8,
};

typedef struct shared_run {
    const weft_comm_op *op;
    weft_mpi_window *window;
    const void **inputs; /* what a fold reads */
    int tag;             /* on which nothing is ever sent */
    int channel;         /* -1: not claimed */
    bool by_messages;
    unsigned num_calls;
    bool past_caches; /* all_gather's results */
    size_t element;
    size_t piece; /* elements; reduce_scatter and all_gather: of a share */
    int num_stages;
    uint64_t num_pieces, base; /* pieces of earlier operations in this channel */
    uint64_t next[WEFT_MPI_MAX_STAGES];
} shared_run;

bool weft_mpi_shared_serves(const weft_comm_op *op)
{
    size_t least = weft_mpi_get_limits()->shared_bytes;
    bool kind = op->kind == WEFT_COMM_ALL_REDUCE || op->kind == WEFT_COMM_REDUCE_SCATTER ||
                op->kind == WEFT_COMM_ALL_GATHER;
    return kind && least > 0 && op->bytes >= least && ((weft_mpi_comm *)op->comm)->window != NULL;
}

/* The board. Its lock is only ever tried: a rank may be off its core while holding it. */

static weft_mpi_claim *find_claim(weft_mpi_board *board, uint64_t key)
{
    weft_mpi_claim *free_one = NULL;
    for (uint64_t i = 0; i < WEFT_MPI_NUM_CLAIMS; i++) {
        weft_mpi_claim *claim = &board->claims[(key + i) % WEFT_MPI_NUM_CLAIMS];
        if (claim->key == key)
            return claim;
        if (claim->key == 0 && !free_one)
            free_one = claim;
    }
    return free_one;
}

static void write_claim(weft_mpi_board *board, weft_mpi_claim *claim, const weft_comm_op *op)
{
    *claim = (weft_mpi_claim){.key = op->sequence + 1,
                              .bytes = op->bytes,
                              .kind = (int32_t)op->kind,
                              .dtype = (int32_t)op->dtype,
                              .reduce = (int32_t)op->reduce,
                              .rank = op->comm->rank,
                              .channel = -1};
    for (int i = 0; i < WEFT_MPI_NUM_CHANNELS; i++) {
        weft_mpi_channel *channel = &board->channels[i];
        if (atomic_load_explicit(&channel->num_inside, memory_order_acquire) > 0)
            continue;
        atomic_store(&channel->num_inside, (unsigned)op->comm->size);
        claim->channel = i;
        return;
    }
}

static weft_status compare_claim(const weft_mpi_claim *claim, const weft_comm_op *op)
{
    if (claim->kind == (int32_t)op->kind && claim->bytes == op->bytes &&
        claim->dtype == (int32_t)op->dtype && claim->reduce == (int32_t)op->reduce)
        return WEFT_OK;
    return WEFT_ERROR(WEFT_COMM,
                      "rank %d differs: %s of %" PRIu64 " bytes %s, where this rank has %s of %zu "
                      "bytes %s",
                      (int)claim->rank, weft_comm_kind_text((weft_comm_kind)claim->kind),
                      claim->bytes, weft_dtype_text((weft_dtype)claim->dtype),
                      weft_comm_kind_text(op->kind), op->bytes, weft_dtype_text(op->dtype));
}

static weft_mpi_channel *channel_of(const shared_run *run)
{
    return &run->window->segments[0]->board.channels[run->channel];
}

static weft_mpi_progress *progress_of(const shared_run *run, int rank)
{
    return &run->window->segments[rank]->progress[run->channel];
}

/* Of several that find a difference the first says it. */
static weft_status tell_failed(const shared_run *run, weft_status status)
{
    const weft_comm *comm = run->op->comm;
    unsigned before = 0;
    if (atomic_compare_exchange_strong(&channel_of(run)->failed_rank, &before,
                                       (unsigned)comm->rank + 1))
        return status;
    return weft_error_share(status, weft_comm_world_rank(comm, (int)before - 1));
}

/* Finds out how this operation runs; leaves *out_moved alone where that is not known yet. */
static weft_status claim(shared_run *run, bool *out_moved)
{
    const weft_comm_op *op = run->op;
    weft_mpi_board *board = &run->window->segments[0]->board;
    if (atomic_exchange_explicit(&board->locked, true, memory_order_acquire))
        return WEFT_OK;
    weft_status status = WEFT_OK;
    weft_mpi_claim *claim = find_claim(board, op->sequence + 1);
    if (claim) {
        if (claim->key == 0)
            write_claim(board, claim, op);
        status = compare_claim(claim, op);
        run->channel = claim->channel;
        run->by_messages = claim->channel < 0;
        if (++claim->num_arrived == op->comm->size)
            claim->key = 0;
        *out_moved = true;
    }
    atomic_store_explicit(&board->locked, false, memory_order_release);
    if (run->channel < 0)
        return status;
    if (status != WEFT_OK)
        status = tell_failed(run, status);
    /* Nobody is in the channel but this operation, so all counters there stand at the same value
     * until this rank moves its own. */
    run->base = atomic_load(&progress_of(run, op->comm->rank)->num_ended[0]);
    return status;
}

/* Pieces. */

static char *slot_of(const shared_run *run, int rank, uint64_t piece)
{
    return run->window->segments[rank]
        ->slots[run->channel][(run->base + piece) % WEFT_MPI_NUM_BUFFERS];
}

/* The elements of a piece. */
static size_t piece_count(const shared_run *run, uint64_t piece)
{
    size_t rest = run->op->count - (size_t)piece * run->piece;
    return rest < run->piece ? rest : run->piece;
}

/* A rank's share of a piece of an all_reduce: whole cache lines, as far as they go. */
static size_t share_of(const shared_run *run, size_t count, int rank, size_t *out_start)
{
    size_t line = WEFT_MPI_LINE_BYTES / run->element, size = (size_t)run->op->comm->size;
    size_t share = ((count + size - 1) / size + line - 1) / line * line;
    size_t start = (size_t)rank * share;
    start = start < count ? start : count;
    *out_start = start;
    return count - start < share ? count - start : share;
}

/* Folds `count` elements that stand at `offset` bytes in every other rank's slot. */
static void fold(const shared_run *run, uint64_t piece, size_t offset, const void *own, void *out,
                 size_t count)
{
    const weft_comm *comm = run->op->comm;
    for (int rank = 0; rank < comm->size; rank++)
        run->inputs[rank] = slot_of(run, rank, piece) + offset;
    run->inputs[comm->rank] = own;
    weft_fold(run->op->dtype, run->op->reduce, run->inputs, comm->size, out, count);
}

static size_t work_all_reduce_of_two(shared_run *run, int stage, uint64_t piece)
{
    size_t count = piece_count(run, piece), bytes = count * run->element;
    char *at = (char *)run->op->recv + (size_t)piece * run->piece * run->element;
    if (stage == 0)
        memcpy(slot_of(run, run->op->comm->rank, piece), at, bytes);
    else
        fold(run, piece, 0, at, at, count);
    return bytes;
}

static size_t work_all_reduce(shared_run *run, int stage, uint64_t piece)
{
    const weft_comm *comm = run->op->comm;
    size_t count = piece_count(run, piece), bytes = count * run->element, start;
    char *at = (char *)run->op->recv + (size_t)piece * run->piece * run->element;
    char *slot = slot_of(run, comm->rank, piece);
    size_t share_bytes = share_of(run, count, comm->rank, &start) * run->element;
    start *= run->element;
    size_t end = start + share_bytes;
    switch (stage) {
    case 0:
        memcpy(slot, at, start);
        memcpy(slot + end, at + end, bytes - end);
        break;
    case 1:
        fold(run, piece, start, at + start, slot + start, share_bytes / run->element);
        break;
    default:
        for (int step = 0; step < comm->size; step++) {
            int peer = (comm->rank + step) % comm->size;
            share_bytes = share_of(run, count, peer, &start) * run->element;
            start *= run->element;
            memcpy(at + start, slot_of(run, peer, piece) + start, share_bytes);
        }
    }
    return bytes;
}

static size_t work_reduce_scatter(shared_run *run, int stage, uint64_t piece)
{
    const weft_comm_op *op = run->op;
    size_t rank = (size_t)op->comm->rank, size = (size_t)op->comm->size;
    size_t count = piece_count(run, piece), share = op->count * run->element;
    size_t bytes = count * run->element, row = run->piece * run->element;
    size_t start = (size_t)piece * row;
    const char *send = op->send;
    if (stage == 0) {
        for (size_t step = 1; step < size; step++) {
            size_t peer = (rank + step) % size;
            memcpy(slot_of(run, op->comm->rank, piece) + peer * row, send + peer * share + start,
                   bytes);
        }
    } else {
        fold(run, piece, rank * row, send + rank * share + start, (char *)op->recv + start, count);
    }
    return bytes * size;
}

static size_t work_all_gather(shared_run *run, int stage, uint64_t piece)
{
    const weft_comm_op *op = run->op;
    size_t rank = (size_t)op->comm->rank, size = (size_t)op->comm->size;
    size_t share = op->count * run->element, bytes = piece_count(run, piece) * run->element;
    size_t start = (size_t)piece * run->piece * run->element;
    const char *send = op->send;
    char *recv = op->recv;
    if (stage == 0) {
        memcpy(slot_of(run, op->comm->rank, piece), send + start, bytes);
        return bytes;
    }
    for (size_t step = recv + rank * share == send; step < size; step++) {
        size_t peer = (rank + step) % size;
        const char *shown = slot_of(run, (int)peer, piece);
        if (run->past_caches)
            weft_copy_past(recv + peer * share + start, shown, bytes);
        else
            memcpy(recv + peer * share + start, shown, bytes);
    }
    return bytes * size;
}

static size_t work(shared_run *run, int stage, uint64_t piece)
{
    switch (run->op->kind) {
    case WEFT_COMM_ALL_REDUCE:
        return run->op->comm->size == 2 ? work_all_reduce_of_two(run, stage, piece)
                                        : work_all_reduce(run, stage, piece);
    case WEFT_COMM_REDUCE_SCATTER:
        return work_reduce_scatter(run, stage, piece);
    default:
        return work_all_gather(run, stage, piece);
    }
}

/* A stage may begin a piece when all ranks have ended the stage before; the first stage, when all
 * have ended the last stage of the piece that was in this slot. */
static bool ready(const shared_run *run, int stage)
{
    uint64_t piece = run->next[stage];
    if (piece == run->num_pieces || (stage > 0 && piece == run->next[stage - 1]))
        return false;
    if (stage == 0 && piece < WEFT_MPI_NUM_BUFFERS)
        return true;
    int before = stage > 0 ? stage - 1 : run->num_stages - 1;
    uint64_t wanted = run->base + piece + 1 - (stage > 0 ? 0 : WEFT_MPI_NUM_BUFFERS);
    for (int rank = 0; rank < run->op->comm->size; rank++)
        if (atomic_load_explicit(&progress_of(run, rank)->num_ended[before], memory_order_acquire) <
            wanted)
            return false;
    return true;
}

/* One stage of one piece: what is nearest to its end first, for it is what the caches hold. */
static bool step(shared_run *run, size_t *bytes)
{
    for (int stage = run->num_stages - 1; stage >= 0; stage--) {
        if (!ready(run, stage))
            continue;
        *bytes += work(run, stage, run->next[stage]);
        run->next[stage]++;
        atomic_store_explicit(&progress_of(run, run->op->comm->rank)->num_ended[stage],
                              run->base + run->next[stage], memory_order_release);
        return true;
    }
    return false;
}

/* All counters of this rank come to stand at the same value, whatever the stages were. */
static void leave(shared_run *run)
{
    weft_mpi_progress *mine = progress_of(run, run->op->comm->rank);
    for (int stage = run->num_stages; stage < WEFT_MPI_MAX_STAGES; stage++)
        atomic_store_explicit(&mine->num_ended[stage], run->base + run->num_pieces,
                              memory_order_relaxed);
    atomic_fetch_sub_explicit(&channel_of(run)->num_inside, 1, memory_order_acq_rel);
}

static weft_status check_failed(const shared_run *run)
{
    unsigned failed = atomic_load_explicit(&channel_of(run)->failed_rank, memory_order_relaxed);
    if (failed == 0)
        return WEFT_OK;
    /* It says why. */
    return weft_error_share(WEFT_ERROR(WEFT_COMM, "rank %u failed in this operation", failed - 1),
                            weft_comm_world_rank(run->op->comm, (int)failed - 1));
}

/* Messages that this process has sent move only while MPI is called. Now and then: a call gives the
 * core away where MPI yields. */
static weft_status progress_messages(const shared_run *run)
{
    int found;
    return WEFT_MPI(MPI_Iprobe(MPI_ANY_SOURCE, run->tag, ((weft_mpi_comm *)run->op->comm)->handle,
                               &found, MPI_STATUS_IGNORE));
}

static weft_status advance(void *operation, bool *out_moved, bool *out_done)
{
    shared_run *run = operation;
    if (run->channel < 0)
        WEFT_TRY(claim(run, out_moved));
    *out_done = run->by_messages;
    if (run->channel >= 0) {
        size_t bytes = 0;
        while (bytes < MAX_BYTES_A_CALL && step(run, &bytes))
            *out_moved = true;
        if (run->next[run->num_stages - 1] == run->num_pieces) {
            leave(run);
            *out_done = true;
            return WEFT_OK;
        }
        WEFT_TRY(check_failed(run));
    }
    if (run->num_calls++ % CALLS_A_PROBE == 0)
        WEFT_TRY(progress_messages(run));
    return WEFT_OK;
}

static void prepare(shared_run *run)
{
    const weft_comm_op *op = run->op;
    size_t size = (size_t)op->comm->size, limit = weft_mpi_get_limits()->piece_bytes;
    size_t bytes = limit < WEFT_MPI_SLOT_BYTES ? limit : WEFT_MPI_SLOT_BYTES;
    if (op->kind == WEFT_COMM_REDUCE_SCATTER)
        bytes /= size;
    bytes = bytes / WEFT_MPI_LINE_BYTES * WEFT_MPI_LINE_BYTES;
    bytes = bytes > 0 ? bytes : WEFT_MPI_LINE_BYTES;
    run->element = weft_dtype_bytes(op->dtype);
    run->piece = bytes / run->element;
    run->num_pieces = (op->count + run->piece - 1) / run->piece;
    run->past_caches = op->bytes >= PAST_BYTES;
    run->num_stages = op->kind == WEFT_COMM_ALL_REDUCE && size > 2 ? 3 : 2;
}

weft_status weft_mpi_shared_run(const weft_comm_op *op, bool *out_served)
{
    weft_mpi_comm *comm = (weft_mpi_comm *)op->comm;
    weft_mpi_work *work;
    WEFT_TRY(weft_mpi_work_take(comm, &work));
    weft_status status = weft_mpi_work_reserve(work, op->comm->size);
    if (status != WEFT_OK) {
        weft_mpi_work_give_back(comm, work);
        return status;
    }
    shared_run run = {
        .op = op,
        .window = comm->window,
        .inputs = work->inputs,
        .channel = -1,
        .tag = weft_mpi_first_tag(op->sequence),
    };
    prepare(&run);
    status = weft_engine_run(weft_mpi_engine(), (int)op->comm->purpose, advance, &run);
    weft_mpi_work_give_back(comm, work);
    WEFT_TRY(status);
    *out_served = !run.by_messages;
    return WEFT_OK;
}
