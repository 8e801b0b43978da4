/* The wrappers: they check, number, record and queue every operation. */
#include "comm/comm_ops.h"

#include <inttypes.h>
#include <string.h>

#include "comm/fold.h"
#include "comm/staging.h"
#include "core/clock.h"
#include "core/device/device.h"

enum { NUM_TAGS = 1024 };

weft_status weft_comm_run_here(const weft_comm_op *op)
{
    WEFT_TRY(weft_comm_check_broken(op->comm));
    if (op->inside)
        WEFT_TRY(weft_comm_check_broken(op->inside));
    uint64_t ticket = weft_comm_record_begin(op);
    weft_status status = op->comm->ops->run(op);
    if (status != WEFT_OK) {
        weft_comm_record_fail(ticket);
        return weft_comm_fail(op, status);
    }
    weft_comm_record_end(ticket);
    weft_comm_rows_give_back(op);
    return WEFT_OK;
}

/* To the lane it is waiting: for others, and for the network. */
static weft_status run_on_lane(const void *args)
{
    const double start_us = weft_now_us();
    weft_status status = weft_comm_run_here(args);
    weft_busy_note_waited((int64_t)((weft_now_us() - start_us) * 1e3));
    return status;
}

weft_status weft_comm_run_on_lane(weft_lane *lane, const weft_comm_op *op)
{
    _Static_assert(sizeof *op <= WEFT_LANE_MAX_ARGS_BYTES, "an operation must fit a lane's slot");
    weft_staging staging;
    WEFT_TRY(weft_staging_begin(lane, op, &staging));
    WEFT_TRY(weft_lane_submit(lane, weft_comm_kind_text(op->kind), run_on_lane, &staging.op,
                              sizeof staging.op));
    return weft_staging_end(lane, &staging);
}

weft_status weft_comm_reserve(const weft_comm *comm, weft_lane *lane, size_t bytes)
{
    if (comm->ops->enqueue != weft_comm_run_on_lane || !weft_staging_is_needed(lane))
        return WEFT_OK;
    return weft_staging_reserve(lane, bytes);
}

/* Numbers the operation, then queues it, or runs it here when `lane` is NULL. */
static weft_status issue(weft_lane *lane, weft_comm_op *op)
{
    WEFT_TRY(weft_comm_check_broken(op->comm));
    bool message = weft_comm_is_message(op->kind);
    if (op->inside) {
        WEFT_TRY(weft_comm_check_broken(op->inside));
        uint64_t num_blocks = (uint64_t)op->comm->size;
        op->inside_sequence = atomic_fetch_add(&op->inside->num_collectives,
                                               (num_blocks + WEFT_COMM_BLOCKS_PER_SEQUENCE - 1) /
                                                   WEFT_COMM_BLOCKS_PER_SEQUENCE);
    }
    op->sequence =
        atomic_fetch_add(message ? &op->comm->num_messages : &op->comm->num_collectives, 1);
    op->doing = *weft_doing_now();
    op->place = weft_doing_place_now();
    weft_comm_match_add(op);
    return lane ? op->comm->ops->enqueue(lane, op) : weft_comm_run_here(op);
}

/* The failing wrapper names the group, as all later errors do. */
static weft_status refuse_dtype(const weft_comm *comm, weft_comm_kind kind, weft_dtype dtype)
{
    return WEFT_ERROR(WEFT_INTERNAL, "group %s: %s cannot reduce %s", comm->name,
                      weft_comm_kind_text(kind), weft_dtype_text(dtype));
}

static weft_status checked_bytes(const weft_comm *comm, weft_comm_kind kind, size_t count,
                                 size_t element_bytes, size_t num_shares, size_t *out)
{
    if (element_bytes == 0 || count > SIZE_MAX / element_bytes / num_shares)
        return WEFT_ERROR(WEFT_INTERNAL, "group %s: %s of %zu elements overflows", comm->name,
                          weft_comm_kind_text(kind), count);
    *out = count * element_bytes * num_shares;
    return WEFT_OK;
}

static weft_status issue_all_reduce(weft_comm *comm, weft_lane *lane, void *buffer, size_t count,
                                    weft_dtype dtype, weft_reduce reduce)
{
    if (!weft_fold_supports(dtype))
        return refuse_dtype(comm, WEFT_COMM_ALL_REDUCE, dtype);
    weft_comm_op op = {.comm = comm,
                       .kind = WEFT_COMM_ALL_REDUCE,
                       .send = buffer,
                       .recv = buffer,
                       .count = count,
                       .dtype = dtype,
                       .reduce = reduce,
                       .peer = -1};
    WEFT_TRY(checked_bytes(comm, op.kind, count, weft_dtype_bytes(dtype), 1, &op.bytes));
    return issue(lane, &op);
}

weft_status weft_all_reduce(weft_comm *comm, weft_lane *lane, void *buffer, size_t count,
                            weft_dtype dtype, weft_reduce reduce)
{
    return issue_all_reduce(comm, lane, buffer, count, dtype, reduce);
}

weft_status weft_comm_all_reduce_host(weft_comm *comm, void *buffer, size_t count, weft_dtype dtype,
                                      weft_reduce reduce)
{
    return issue_all_reduce(comm, NULL, buffer, count, dtype, reduce);
}

weft_status weft_reduce_scatter(weft_comm *comm, weft_lane *lane, const void *send, void *recv,
                                size_t count, weft_dtype dtype, weft_reduce reduce)
{
    if (!weft_fold_supports(dtype))
        return refuse_dtype(comm, WEFT_COMM_REDUCE_SCATTER, dtype);
    weft_comm_op op = {.comm = comm,
                       .kind = WEFT_COMM_REDUCE_SCATTER,
                       .send = send,
                       .recv = recv,
                       .count = count,
                       .dtype = dtype,
                       .reduce = reduce,
                       .peer = -1};
    WEFT_TRY(checked_bytes(comm, op.kind, count, weft_dtype_bytes(dtype), (size_t)comm->size,
                           &op.bytes));
    return issue(lane, &op);
}

static weft_status issue_gather(weft_comm_kind kind, weft_comm *comm, weft_lane *lane,
                                const void *send, void *recv, size_t count, weft_dtype dtype)
{
    weft_comm_op op = {.comm = comm,
                       .kind = kind,
                       .send = send,
                       .recv = recv,
                       .count = count,
                       .dtype = dtype,
                       .peer = kind == WEFT_COMM_GATHER ? 0 : -1};
    WEFT_TRY(checked_bytes(comm, op.kind, count, weft_dtype_bytes(dtype), (size_t)comm->size,
                           &op.bytes));
    return issue(lane, &op);
}

weft_status weft_all_gather(weft_comm *comm, weft_lane *lane, const void *send, void *recv,
                            size_t count, weft_dtype dtype)
{
    return issue_gather(WEFT_COMM_ALL_GATHER, comm, lane, send, recv, count, dtype);
}

weft_status weft_comm_all_gather_host(weft_comm *comm, const void *send, void *recv, size_t bytes)
{
    return issue_gather(WEFT_COMM_ALL_GATHER, comm, NULL, send, recv, bytes, WEFT_U8);
}

weft_status weft_comm_gather_host(weft_comm *comm, const void *send, void *recv, size_t bytes)
{
    return issue_gather(WEFT_COMM_GATHER, comm, NULL, send, recv, bytes, WEFT_U8);
}

weft_status weft_comm_barrier(weft_comm *comm)
{
    return issue_gather(WEFT_COMM_ALL_GATHER, comm, NULL, NULL, NULL, 0, WEFT_U8);
}

static weft_status issue_all_to_all(weft_lane *lane, weft_comm_op *op, const size_t *send_bytes,
                                    const size_t *recv_bytes)
{
    weft_comm *comm = op->comm;
    size_t size = (size_t)comm->size;
    for (size_t i = 0; i < size; i++)
        op->bytes += send_bytes[i];
    if (send_bytes[comm->rank] != recv_bytes[comm->rank])
        return WEFT_ERROR(WEFT_INTERNAL,
                          "group %s: %s sends %zu bytes to this rank itself and receives %zu",
                          comm->name, weft_comm_kind_text(op->kind), send_bytes[comm->rank],
                          recv_bytes[comm->rank]);
    op->rows = weft_comm_rows_take(comm);
    if (!op->rows)
        return WEFT_ERROR(WEFT_MEMORY, "no memory for the rows of an all_to_all");
    memcpy(op->rows->bytes, send_bytes, size * sizeof *send_bytes);
    memcpy(op->rows->bytes + size, recv_bytes, size * sizeof *recv_bytes);
    return issue(lane, op);
}

weft_status weft_all_to_all(weft_comm *comm, weft_lane *lane, const void *send,
                            const size_t *send_bytes, void *recv, const size_t *recv_bytes)
{
    weft_comm_op op = {.comm = comm,
                       .kind = WEFT_COMM_ALL_TO_ALL,
                       .send = send,
                       .recv = recv,
                       .dtype = WEFT_U8,
                       .peer = -1};
    return issue_all_to_all(lane, &op, send_bytes, recv_bytes);
}

weft_status weft_all_to_all_sharded(weft_comm *between, weft_comm *inside, weft_lane *lane,
                                    const void *send, const size_t *send_bytes, void *recv,
                                    const size_t *recv_bytes, size_t chunk_bytes)
{
    weft_comm_op op = {.comm = between,
                       .kind = WEFT_COMM_ALL_TO_ALL_SHARDED,
                       .send = send,
                       .recv = recv,
                       .dtype = WEFT_U8,
                       .peer = -1,
                       .inside = inside,
                       .chunk_bytes = chunk_bytes};
    return issue_all_to_all(lane, &op, send_bytes, recv_bytes);
}

static weft_status issue_broadcast(weft_comm *comm, weft_lane *lane, void *buffer, size_t bytes,
                                   int root)
{
    if (root < 0 || root >= comm->size)
        return WEFT_ERROR(WEFT_INTERNAL, "group %s: broadcast from rank %d of %d", comm->name, root,
                          comm->size);
    weft_comm_op op = {.comm = comm,
                       .kind = WEFT_COMM_BROADCAST,
                       .send = buffer,
                       .recv = buffer,
                       .bytes = bytes,
                       .dtype = WEFT_U8,
                       .peer = root};
    return issue(lane, &op);
}

weft_status weft_broadcast(weft_comm *comm, weft_lane *lane, void *buffer, size_t bytes, int root)
{
    return issue_broadcast(comm, lane, buffer, bytes, root);
}

weft_status weft_comm_broadcast_host(weft_comm *comm, void *buffer, size_t bytes, int root)
{
    return issue_broadcast(comm, NULL, buffer, bytes, root);
}

static weft_status issue_message(weft_comm *comm, weft_lane *lane, const weft_comm_op *message)
{
    weft_comm_op op = *message;
    const char *kind = weft_comm_kind_text(op.kind);
    bool own = op.peer == comm->rank && op.kind != WEFT_COMM_SEND_RECV;
    if (op.peer < 0 || op.peer >= comm->size || own)
        return WEFT_ERROR(WEFT_INTERNAL, "group %s: %s on rank %d of %d with rank %d", comm->name,
                          kind, comm->rank, comm->size, op.peer);
    if (op.tag < 0 || op.tag >= NUM_TAGS)
        return WEFT_ERROR(WEFT_INTERNAL, "group %s: %s with rank %d: tag %d is not in 0..%d",
                          comm->name, kind, op.peer, op.tag, NUM_TAGS - 1);
    return issue(lane, &op);
}

weft_status weft_send(weft_comm *comm, weft_lane *lane, int peer, int tag, const void *buffer,
                      size_t bytes)
{
    weft_comm_op op = {.comm = comm,
                       .kind = WEFT_COMM_SEND,
                       .send = buffer,
                       .bytes = bytes,
                       .dtype = WEFT_U8,
                       .peer = peer,
                       .tag = tag};
    return issue_message(comm, lane, &op);
}

weft_status weft_recv(weft_comm *comm, weft_lane *lane, int peer, int tag, void *buffer,
                      size_t bytes)
{
    weft_comm_op op = {.comm = comm,
                       .kind = WEFT_COMM_RECV,
                       .recv = buffer,
                       .bytes = bytes,
                       .dtype = WEFT_U8,
                       .peer = peer,
                       .tag = tag};
    return issue_message(comm, lane, &op);
}

weft_status weft_comm_send_host(weft_comm *comm, int peer, int tag, const void *buffer,
                                size_t bytes)
{
    return weft_send(comm, NULL, peer, tag, buffer, bytes);
}

weft_status weft_comm_recv_host(weft_comm *comm, int peer, int tag, void *buffer, size_t bytes)
{
    return weft_recv(comm, NULL, peer, tag, buffer, bytes);
}

weft_status weft_send_recv(weft_comm *comm, weft_lane *lane, int to, const void *send,
                           size_t send_bytes, int from, void *recv, size_t recv_bytes, int tag)
{
    weft_comm_op op = {.comm = comm,
                       .kind = WEFT_COMM_SEND_RECV,
                       .send = send,
                       .recv = recv,
                       .bytes = send_bytes,
                       .dtype = WEFT_U8,
                       .peer = to,
                       .tag = tag,
                       .from = from,
                       .from_bytes = recv_bytes};
    if (from < 0 || from >= comm->size)
        return WEFT_ERROR(WEFT_INTERNAL, "group %s: send_recv on rank %d of %d with rank %d",
                          comm->name, comm->rank, comm->size, from);
    if ((to == comm->rank) != (from == comm->rank))
        return WEFT_ERROR(WEFT_INTERNAL,
                          "group %s: send_recv on rank %d to rank %d and from rank %d: a rank that "
                          "sends to itself receives that",
                          comm->name, comm->rank, to, from);
    if (to == comm->rank && send_bytes != recv_bytes)
        return WEFT_ERROR(
            WEFT_INTERNAL,
            "group %s: send_recv sends %zu bytes to this rank itself and receives %zu", comm->name,
            send_bytes, recv_bytes);
    return issue_message(comm, lane, &op);
}
