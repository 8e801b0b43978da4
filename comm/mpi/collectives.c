/* The collectives as rounds of messages. But for broadcasts, which go down a binomial tree, every
 * rank sends to every other directly: one round trip for small operations, and the fewest bytes for
 * large ones. Reductions fold in rank order.
 *
 * Rows, broadcasts and messages end with a piece shorter than full, if need be an empty one: so a
 * receiver that expects another size than was sent always finds out. */
#include "comm/mpi/tree.h"

#include <string.h>

#include "comm/fold.h"

enum {
    MAX_SCRATCH_BYTES = 1 << 20, /* of a slot, in a large group */
    MIN_FOLD_BYTES = 16 << 10,
};

/* Pieces of something that ends with a short one. */

static uint64_t num_pieces(size_t bytes, size_t piece)
{
    return bytes / piece + 1;
}

/* The piece of this round; false when there are fewer. */
static bool get_piece(size_t bytes, size_t piece, uint64_t round, size_t *out_start, size_t *out)
{
    if (round > bytes / piece)
        return false;
    *out_start = (size_t)round * piece;
    *out = bytes - *out_start < piece ? bytes - *out_start : piece;
    return true;
}

/* all_gather and all_to_all: a row to each rank and one from each. */

typedef struct row {
    size_t start, bytes;
} row;

static row sent_row(const weft_mpi_run *run, int peer)
{
    const weft_comm_op *op = run->op;
    if (op->kind == WEFT_COMM_ALL_GATHER)
        return (row){0, op->bytes / (size_t)op->comm->size};
    return (row){run->work->offsets[peer], op->rows->bytes[peer]};
}

static row received_row(const weft_mpi_run *run, int peer)
{
    const weft_comm_op *op = run->op;
    if (op->kind == WEFT_COMM_ALL_GATHER) {
        size_t share = op->bytes / (size_t)op->comm->size;
        return (row){(size_t)peer * share, share};
    }
    int i = op->comm->size + peer;
    return (row){run->work->offsets[i], op->rows->bytes[i]};
}

/* What a row to or from this rank is cut in: both ends know whether they share a node. */
static size_t row_piece(const weft_mpi_run *run, int peer)
{
    size_t most = weft_mpi_get_limits()->row_bytes;
    bool between = weft_mpi_link(run->op->comm, peer) == WEFT_GATE_BETWEEN;
    return between && most < run->piece ? most : run->piece;
}

static weft_status step_exchange(weft_mpi_run *run, weft_mpi_slot *slot)
{
    if (slot->phase > 0)
        return WEFT_OK;
    const weft_comm_op *op = run->op;
    int rank = op->comm->rank, size = op->comm->size, tag = weft_mpi_tag(run, slot);
    const char *send = op->send;
    char *recv = op->recv;
    size_t start, bytes;
    for (int step = 1; step < size; step++) {
        int peer = (rank + size - step) % size;
        row from = received_row(run, peer);
        if (get_piece(from.bytes, row_piece(run, peer), slot->round, &start, &bytes))
            WEFT_TRY(weft_mpi_post_recv(run->comm, &slot->batch, peer, tag,
                                        bytes ? recv + from.start + start : NULL, bytes));
    }
    for (int step = 1; step < size; step++) {
        int peer = (rank + step) % size;
        row to = sent_row(run, peer);
        if (get_piece(to.bytes, row_piece(run, peer), slot->round, &start, &bytes))
            WEFT_TRY(weft_mpi_post_send(run->comm, &slot->batch, peer, tag,
                                        bytes ? send + to.start + start : NULL, bytes));
    }
    row from = sent_row(run, rank), to = received_row(run, rank);
    if (get_piece(from.bytes, row_piece(run, rank), slot->round, &start, &bytes) && bytes > 0 &&
        recv + to.start != send + from.start)
        memcpy(recv + to.start + start, send + from.start + start, bytes);
    return WEFT_OK;
}

static void prepare_exchange(weft_mpi_run *run)
{
    const weft_comm_op *op = run->op;
    int size = op->comm->size;
    if (op->kind == WEFT_COMM_ALL_TO_ALL) {
        size_t *offsets = run->work->offsets;
        for (int i = 0; i < 2 * size; i++)
            offsets[i] = i % size == 0 ? 0 : offsets[i - 1] + op->rows->bytes[i - 1];
    }
    run->step = step_exchange;
    run->piece = weft_mpi_message_bytes(op->comm, weft_mpi_get_limits()->piece_bytes);
    run->num_rounds = 1;
    for (int peer = 0; peer < size; peer++) {
        uint64_t sent = num_pieces(sent_row(run, peer).bytes, row_piece(run, peer));
        uint64_t received = num_pieces(received_row(run, peer).bytes, row_piece(run, peer));
        run->num_rounds = sent > run->num_rounds ? sent : run->num_rounds;
        run->num_rounds = received > run->num_rounds ? received : run->num_rounds;
    }
}

/* gather: a row from each rank to rank 0. */

static weft_status step_gather(weft_mpi_run *run, weft_mpi_slot *slot)
{
    const weft_comm_op *op = run->op;
    size_t share = op->bytes / (size_t)op->comm->size, start = 0, bytes = 0;
    int tag = weft_mpi_tag(run, slot);
    const char *send = op->send;
    char *recv = op->recv;
    if (slot->phase > 0)
        return WEFT_OK;
    get_piece(share, run->piece, slot->round, &start, &bytes);
    if (op->comm->rank > 0)
        return weft_mpi_post_send(run->comm, &slot->batch, 0, tag, bytes ? send + start : NULL,
                                  bytes);
    for (int peer = 1; peer < op->comm->size; peer++)
        WEFT_TRY(weft_mpi_post_recv(run->comm, &slot->batch, peer, tag,
                                    bytes ? recv + (size_t)peer * share + start : NULL, bytes));
    if (bytes > 0 && recv != send)
        memcpy(recv + start, send + start, bytes);
    return WEFT_OK;
}

/* Reductions. A rank owns a share: it receives everybody's copy, folds, and in an all_reduce sends
 * the result to everybody (Rabenseifner's reduce-scatter and all-gather, with direct messages). */

/* In elements, of the part of a rank's share that a round serves. */
static void share_piece(const weft_mpi_run *run, int rank, uint64_t round, size_t *out_start,
                        size_t *out_count)
{
    const weft_comm_op *op = run->op;
    size_t size = (size_t)op->comm->size, r = (size_t)rank, start, count;
    if (op->kind == WEFT_COMM_REDUCE_SCATTER) {
        start = r * op->count;
        count = op->count;
    } else {
        size_t rest = op->count % size;
        start = r * (op->count / size) + (r < rest ? r : rest);
        count = op->count / size + (r < rest ? 1 : 0);
    }
    size_t skip = (size_t)round * run->piece;
    skip = skip < count ? skip : count;
    *out_start = start + skip;
    *out_count = count - skip < run->piece ? count - skip : run->piece;
}

/* Receives from every peer into the scratch area and lists the inputs in rank order. */
static weft_status receive_copies(weft_mpi_run *run, weft_mpi_slot *slot, size_t bytes)
{
    weft_comm *comm = run->op->comm;
    WEFT_TRY(weft_mpi_slot_reserve(slot, bytes * (size_t)(comm->size - 1)));
    for (int step = 1; step < comm->size; step++) {
        int peer = (comm->rank + comm->size - step) % comm->size;
        char *to = (char *)slot->scratch + (size_t)(step - 1) * bytes;
        WEFT_TRY(
            weft_mpi_post_recv(run->comm, &slot->batch, peer, weft_mpi_tag(run, slot), to, bytes));
    }
    return WEFT_OK;
}

static void fold_copies(weft_mpi_run *run, weft_mpi_slot *slot, const void *own, void *out,
                        size_t count)
{
    weft_comm *comm = run->op->comm;
    size_t bytes = count * weft_dtype_bytes(run->op->dtype);
    const void **inputs = run->work->inputs;
    inputs[comm->rank] = own;
    for (int step = 1; step < comm->size; step++) {
        int peer = (comm->rank + comm->size - step) % comm->size;
        inputs[peer] = (const char *)slot->scratch + (size_t)(step - 1) * bytes;
    }
    weft_fold(run->op->dtype, run->op->reduce, inputs, comm->size, out, count);
}

static weft_status step_reduce_direct(weft_mpi_run *run, weft_mpi_slot *slot)
{
    const weft_comm_op *op = run->op;
    if (slot->phase > 0) {
        fold_copies(run, slot, op->recv, op->recv, op->count);
        return WEFT_OK;
    }
    WEFT_TRY(receive_copies(run, slot, op->bytes));
    for (int step = 1; step < op->comm->size; step++)
        WEFT_TRY(weft_mpi_post_send(run->comm, &slot->batch,
                                    (op->comm->rank + step) % op->comm->size,
                                    weft_mpi_tag(run, slot), op->send, op->bytes));
    return WEFT_OK;
}

static weft_status send_shares(weft_mpi_run *run, weft_mpi_slot *slot)
{
    const weft_comm_op *op = run->op;
    int rank = op->comm->rank, size = op->comm->size;
    size_t element = weft_dtype_bytes(op->dtype), start, count;
    share_piece(run, rank, slot->round, &start, &count);
    if (count > 0)
        WEFT_TRY(receive_copies(run, slot, count * element));
    for (int step = 1; step < size; step++) {
        int peer = (rank + step) % size;
        share_piece(run, peer, slot->round, &start, &count);
        if (count > 0)
            WEFT_TRY(weft_mpi_post_send(run->comm, &slot->batch, peer, weft_mpi_tag(run, slot),
                                        (const char *)op->send + start * element, count * element));
    }
    return WEFT_OK;
}

static void fold_share(weft_mpi_run *run, weft_mpi_slot *slot)
{
    const weft_comm_op *op = run->op;
    size_t element = weft_dtype_bytes(op->dtype), start, count;
    share_piece(run, op->comm->rank, slot->round, &start, &count);
    if (count == 0)
        return;
    /* reduce_scatter's result holds this rank's share alone. */
    size_t base = op->kind == WEFT_COMM_REDUCE_SCATTER ? (size_t)op->comm->rank * op->count : 0;
    fold_copies(run, slot, (const char *)op->send + start * element,
                (char *)op->recv + (start - base) * element, count);
}

static weft_status gather_shares(weft_mpi_run *run, weft_mpi_slot *slot)
{
    const weft_comm_op *op = run->op;
    int rank = op->comm->rank, size = op->comm->size, tag = weft_mpi_tag(run, slot);
    size_t element = weft_dtype_bytes(op->dtype), start, count;
    char *buffer = op->recv;
    for (int step = 1; step < size; step++) {
        int peer = (rank + size - step) % size;
        share_piece(run, peer, slot->round, &start, &count);
        if (count > 0)
            WEFT_TRY(weft_mpi_post_recv(run->comm, &slot->batch, peer, tag,
                                        buffer + start * element, count * element));
    }
    share_piece(run, rank, slot->round, &start, &count);
    for (int step = 1; count > 0 && step < size; step++)
        WEFT_TRY(weft_mpi_post_send(run->comm, &slot->batch, (rank + step) % size, tag,
                                    buffer + start * element, count * element));
    return WEFT_OK;
}

static weft_status step_reduce_shares(weft_mpi_run *run, weft_mpi_slot *slot)
{
    if (slot->phase == 0)
        return send_shares(run, slot);
    if (slot->phase == 1) {
        fold_share(run, slot);
        if (run->op->kind == WEFT_COMM_ALL_REDUCE)
            return gather_shares(run, slot);
    }
    return WEFT_OK;
}

static void prepare_reduce(weft_mpi_run *run)
{
    const weft_comm_op *op = run->op;
    size_t num_peers = (size_t)op->comm->size - 1;
    if (num_peers == 0) {
        if (op->bytes > 0 && op->recv != op->send)
            memcpy(op->recv, op->send, op->bytes);
        return;
    }
    const weft_mpi_limits *now = weft_mpi_get_limits();
    if (op->kind == WEFT_COMM_ALL_REDUCE && op->bytes <= now->direct_bytes / num_peers) {
        run->step = step_reduce_direct;
        run->num_rounds = op->bytes > 0;
        return;
    }
    size_t piece = MAX_SCRATCH_BYTES / num_peers;
    piece = piece > MIN_FOLD_BYTES ? piece : MIN_FOLD_BYTES;
    piece = piece < now->piece_bytes ? piece : now->piece_bytes;
    piece = weft_mpi_message_bytes(op->comm, piece);
    piece /= weft_dtype_bytes(op->dtype);
    run->piece = piece > 0 ? piece : 1;
    size_t largest = op->count;
    if (op->kind == WEFT_COMM_ALL_REDUCE) {
        size_t size = num_peers + 1;
        largest = op->count / size + (op->count % size > 0);
    }
    run->step = step_reduce_shares;
    run->num_rounds = largest / run->piece + (largest % run->piece > 0);
}

/* broadcast: a binomial tree; pieces follow each other down it. From rank 0 of a group that has a
 * tree (tree.h), along that. */

static const weft_mpi_tree *broadcast_tree(const weft_mpi_run *run)
{
    return run->op->peer == 0 ? run->comm->tree : NULL;
}

static weft_status send_to_children(weft_mpi_run *run, weft_mpi_slot *slot, size_t start,
                                    size_t bytes)
{
    const weft_comm_op *op = run->op;
    const weft_mpi_tree *tree = broadcast_tree(run);
    int size = op->comm->size, place = (op->comm->rank - op->peer + size) % size;
    for (int i = 0; tree && i < tree->num_children; i++)
        WEFT_TRY(weft_mpi_post_send(run->comm, &slot->batch, tree->children[i].rank,
                                    weft_mpi_tag(run, slot) - slot->phase,
                                    bytes ? (const char *)op->recv + start : NULL, bytes));
    if (tree)
        return WEFT_OK;
    for (int bit = 1; place + bit < size && !(place & bit); bit *= 2)
        WEFT_TRY(weft_mpi_post_send(run->comm, &slot->batch, (place + bit + op->peer) % size,
                                    weft_mpi_tag(run, slot) - slot->phase,
                                    bytes ? (const char *)op->recv + start : NULL, bytes));
    return WEFT_OK;
}

static weft_status step_broadcast(weft_mpi_run *run, weft_mpi_slot *slot)
{
    const weft_comm_op *op = run->op;
    int size = op->comm->size, place = (op->comm->rank - op->peer + size) % size;
    size_t start = 0, bytes = 0;
    get_piece(op->bytes, run->piece, slot->round, &start, &bytes);
    if (slot->phase == (place == 0 ? 0 : 1))
        return send_to_children(run, slot, start, bytes);
    if (slot->phase > 0)
        return WEFT_OK;
    const weft_mpi_tree *tree = broadcast_tree(run);
    int parent = tree ? tree->parent : ((place & (place - 1)) + op->peer) % size;
    WEFT_TRY(weft_mpi_post_recv(run->comm, &slot->batch, parent, weft_mpi_tag(run, slot),
                                bytes ? (char *)op->recv + start : NULL, bytes));
    return WEFT_OK;
}

static weft_status step_message(weft_mpi_run *run, weft_mpi_slot *slot)
{
    const weft_comm_op *op = run->op;
    size_t start = 0, bytes = 0;
    if (slot->phase > 0)
        return WEFT_OK;
    get_piece(op->bytes, run->piece, slot->round, &start, &bytes);
    if (op->kind == WEFT_COMM_RECV)
        weft_gate_only_receives(&run->pass);
    if (op->kind == WEFT_COMM_SEND)
        WEFT_TRY(weft_mpi_post_send(run->comm, &slot->batch, op->peer, op->tag,
                                    bytes ? (const char *)op->send + start : NULL, bytes));
    else
        WEFT_TRY(weft_mpi_post_recv(run->comm, &slot->batch, op->peer, op->tag,
                                    bytes ? (char *)op->recv + start : NULL, bytes));
    return WEFT_OK;
}

static weft_status step_send_recv(weft_mpi_run *run, weft_mpi_slot *slot)
{
    const weft_comm_op *op = run->op;
    size_t start = 0, bytes = 0;
    if (slot->phase > 0)
        return WEFT_OK;
    if (get_piece(op->from_bytes, run->piece, slot->round, &start, &bytes))
        WEFT_TRY(weft_mpi_post_recv(run->comm, &slot->batch, op->from, op->tag,
                                    bytes ? (char *)op->recv + start : NULL, bytes));
    if (get_piece(op->bytes, run->piece, slot->round, &start, &bytes))
        WEFT_TRY(weft_mpi_post_send(run->comm, &slot->batch, op->peer, op->tag,
                                    bytes ? (const char *)op->send + start : NULL, bytes));
    return WEFT_OK;
}

static void prepare_send_recv(weft_mpi_run *run)
{
    const weft_comm_op *op = run->op;
    if (op->peer == op->comm->rank) {
        if (op->bytes > 0 && op->recv != op->send)
            memcpy(op->recv, op->send, op->bytes);
        return;
    }
    run->step = step_send_recv;
    run->piece = weft_mpi_get_limits()->message_bytes;
    size_t longer = op->bytes > op->from_bytes ? op->bytes : op->from_bytes;
    run->num_rounds = num_pieces(longer, run->piece);
}

void weft_mpi_prepare(weft_mpi_run *run)
{
    const weft_comm_op *op = run->op;
    switch (op->kind) {
    case WEFT_COMM_ALL_REDUCE:
    case WEFT_COMM_REDUCE_SCATTER:
        prepare_reduce(run);
        break;
    case WEFT_COMM_ALL_GATHER:
    case WEFT_COMM_ALL_TO_ALL:
        prepare_exchange(run);
        break;
    case WEFT_COMM_GATHER:
        run->step = step_gather;
        run->piece = weft_mpi_message_bytes(op->comm, weft_mpi_get_limits()->piece_bytes);
        run->num_rounds = num_pieces(op->bytes / (size_t)op->comm->size, run->piece);
        break;
    case WEFT_COMM_BROADCAST:
        run->step = step_broadcast;
        run->piece = weft_mpi_message_bytes(op->comm, weft_mpi_get_limits()->piece_bytes);
        run->num_rounds = num_pieces(op->bytes, run->piece);
        break;
    case WEFT_COMM_SEND:
    case WEFT_COMM_RECV:
        run->step = step_message;
        run->piece = weft_mpi_message_bytes(op->comm, weft_mpi_get_limits()->message_bytes);
        run->num_rounds = num_pieces(op->bytes, run->piece);
        break;
    case WEFT_COMM_SEND_RECV:
        prepare_send_recv(run);
        break;
    case WEFT_COMM_ALL_TO_ALL_SHARDED: /* sharded.c */
        break;
    }
}
