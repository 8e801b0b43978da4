/* Enqueues operations. */
#include "comm/nccl/nccl_comm.h"

/* --- the all-to-all of tensor-sharded experts, a chunk of every block at a time ------------- */

/* Each rank exchanges its slice between the ranks of `between`. Then it sends what it received to
 * the others of `inside`, on a side stream while the next chunks arrive. All goes straight to its
 * final place. */

enum {
    ALIGNMENT = 64,
    DEFAULT_NUM_CHUNKS = 4, /* a block */
    MIN_CHUNK_BYTES = 4 << 20,
};

/* What two ranks of `between` exchange one way: cut alike on both sides, and on all ranks of
 * `inside`. */
typedef struct block {
    size_t start, bytes; /* in the buffer */
    size_t chunk_bytes;
} block;

typedef struct sharded {
    weft_nccl_comm *between, *inside;
    const weft_comm_op *op;
    cudaStream_t stream;
} sharded;

static block block_of(const sharded *s, int peer, bool out)
{
    const size_t *rows = s->op->rows->bytes + (out ? 0 : s->op->comm->size);
    block b = {.bytes = rows[peer], .chunk_bytes = s->op->chunk_bytes};
    for (int i = 0; i < peer; i++)
        b.start += rows[i];
    if (b.chunk_bytes == 0) {
        b.chunk_bytes = b.bytes / DEFAULT_NUM_CHUNKS + 1;
        if (b.chunk_bytes < MIN_CHUNK_BYTES)
            b.chunk_bytes = MIN_CHUNK_BYTES;
    }
    return b;
}

/* A rank's slice of a chunk: its bytes, and where it lies in the buffer. */
static size_t slice_of(const block *b, size_t chunk, int inner_size, int inner_rank,
                       size_t *out_start)
{
    if (chunk > b->bytes / b->chunk_bytes)
        return 0;
    size_t start = chunk * b->chunk_bytes, shares = (size_t)inner_size;
    size_t bytes = b->bytes - start < b->chunk_bytes ? b->bytes - start : b->chunk_bytes;
    size_t share = (bytes / shares + ALIGNMENT) / ALIGNMENT * ALIGNMENT;
    size_t skip = (size_t)inner_rank * share < bytes ? (size_t)inner_rank * share : bytes;
    *out_start = b->start + start + skip;
    return bytes - skip < share ? bytes - skip : share;
}

static weft_status send_slice(const sharded *s, ncclComm_t handle, int to, const char *buffer,
                              const block *b, size_t chunk, int owner, cudaStream_t stream)
{
    size_t start = 0, bytes = slice_of(b, chunk, s->inside->base.size, owner, &start);
    if (bytes == 0)
        return WEFT_OK;
    return WEFT_NCCL(weft_nccl()->Send(buffer + start, bytes, ncclUint8, to, handle, stream));
}

static weft_status receive_slice(const sharded *s, ncclComm_t handle, int from, const block *b,
                                 size_t chunk, int owner, cudaStream_t stream)
{
    size_t start = 0, bytes = slice_of(b, chunk, s->inside->base.size, owner, &start);
    if (bytes == 0)
        return WEFT_OK;
    char *to = (char *)s->op->recv + start;
    return WEFT_NCCL(weft_nccl()->Recv(to, bytes, ncclUint8, from, handle, stream));
}

static weft_status post_between(const sharded *s, size_t chunk)
{
    int size = s->between->base.size, own = s->inside->base.rank;
    ncclComm_t handle = s->between->handle;
    weft_status status = WEFT_OK;
    WEFT_TRY(weft_nccl_begin_group());
    for (int peer = 0; status == WEFT_OK && peer < size; peer++) {
        if (peer == s->between->base.rank)
            continue;
        block out = block_of(s, peer, true), in = block_of(s, peer, false);
        status = send_slice(s, handle, peer, s->op->send, &out, chunk, own, s->stream);
        if (status == WEFT_OK)
            status = receive_slice(s, handle, peer, &in, chunk, own, s->stream);
    }
    return weft_nccl_end_group(handle, status);
}

/* Own slices of what has arrived to all others inside, and theirs from them. */
static weft_status post_inside(const sharded *s, size_t chunk)
{
    const weft_comm *inside = &s->inside->base;
    ncclComm_t handle = s->inside->handle;
    weft_status status = WEFT_OK;
    WEFT_TRY(weft_nccl_begin_group());
    for (int peer = 0; status == WEFT_OK && peer < s->between->base.size; peer++) {
        if (peer == s->between->base.rank)
            continue;
        block in = block_of(s, peer, false);
        for (int step = 1; status == WEFT_OK && step < inside->size; step++) {
            int to = (inside->rank + step) % inside->size;
            int from = (inside->rank + inside->size - step) % inside->size;
            status =
                send_slice(s, handle, to, s->op->recv, &in, chunk, inside->rank, s->inside->side);
            if (status == WEFT_OK)
                status = receive_slice(s, handle, from, &in, chunk, from, s->inside->side);
        }
    }
    return weft_nccl_end_group(handle, status);
}

static weft_status make_side(weft_nccl_comm *inside, cudaStream_t stream)
{
    int priority;
    if (inside->joined)
        return WEFT_OK;
    WEFT_TRY(WEFT_CUDA(cudaStreamGetPriority(stream, &priority)));
    if (!inside->side)
        WEFT_TRY(WEFT_CUDA(
            cudaStreamCreateWithPriority(&inside->side, cudaStreamNonBlocking, priority)));
    if (!inside->forked)
        WEFT_TRY(WEFT_CUDA(cudaEventCreateWithFlags(&inside->forked, cudaEventDisableTiming)));
    return WEFT_CUDA(cudaEventCreateWithFlags(&inside->joined, cudaEventDisableTiming));
}

static size_t num_chunks(const sharded *s)
{
    size_t most = 0;
    for (int i = 0; i < 2 * s->between->base.size; i++) {
        int peer = i / 2;
        block b = block_of(s, peer, i % 2 == 0);
        size_t num = b.bytes / b.chunk_bytes + (b.bytes % b.chunk_bytes > 0);
        if (peer != s->between->base.rank && num > most)
            most = num;
    }
    return most;
}

static weft_status nccl_post_sharded(weft_nccl_comm *between, weft_nccl_comm *inside,
                                     const weft_comm_op *op, cudaStream_t stream)
{
    sharded s = {between, inside, op, stream};
    WEFT_TRY(make_side(inside, stream));
    block from = block_of(&s, between->base.rank, true),
          to = block_of(&s, between->base.rank, false);
    if (from.bytes > 0)
        WEFT_TRY(WEFT_CUDA(cudaMemcpyAsync((char *)op->recv + to.start,
                                           (const char *)op->send + from.start, from.bytes,
                                           cudaMemcpyDefault, stream)));
    size_t num = num_chunks(&s);
    for (size_t chunk = 0; chunk < num; chunk++) {
        WEFT_TRY(post_between(&s, chunk));
        WEFT_TRY(WEFT_CUDA(cudaEventRecord(inside->forked, stream)));
        WEFT_TRY(WEFT_CUDA(cudaStreamWaitEvent(inside->side, inside->forked, 0)));
        WEFT_TRY(post_inside(&s, chunk));
    }
    WEFT_TRY(WEFT_CUDA(cudaEventRecord(inside->joined, inside->side)));
    return WEFT_CUDA(cudaStreamWaitEvent(stream, inside->joined, 0));
}

/* --- collectives ----------------------------------------------------------------------------- */

/* --- which way an operation goes ----------------------------------------------------------- */

/* NULL if it is another backend's. */
static weft_nccl_comm *nccl_of(weft_comm *comm)
{
    return comm->ops->enqueue == weft_nccl_enqueue ? (weft_nccl_comm *)comm : NULL;
}

/* The operation as the mpi groups of the same ranks run it. Its numbers are this group's, which
 * alone uses them there. */
static weft_comm_op on_host(const weft_comm_op *op)
{
    weft_comm_op host = *op;
    host.comm = nccl_of(op->comm)->host;
    if (op->inside && nccl_of(op->inside))
        host.inside = nccl_of(op->inside)->host;
    return host;
}

weft_status weft_nccl_run_on_host(const weft_comm_op *op)
{
    weft_comm_op host = on_host(op);
    return host.comm->ops->run(&host);
}

static const weft_nccl_pair *pair_with(const weft_nccl_comm *comm, int peer)
{
    for (int i = 0; i < 2; i++)
        if (comm->pairs[i].peer == peer)
            return &comm->pairs[i];
    return NULL;
}

/* Alike on all ranks, since an operation's operands are device memory on all of them or on none. */
static bool goes_by_nccl(const weft_lane *lane, const weft_comm_op *op)
{
    if (!weft_lane_is_cuda(lane))
        return false;
    if ((op->kind == WEFT_COMM_SEND || op->kind == WEFT_COMM_RECV) &&
        !pair_with((weft_nccl_comm *)op->comm, op->peer))
        return false;
    if (op->inside && op->inside->size > 1 && !nccl_of(op->inside))
        return false;
    if (!op->send && !op->recv)
        return true;
    return (op->send && weft_cuda_is_device_memory(op->send)) ||
           (op->recv && weft_cuda_is_device_memory(op->recv));
}

/* --- calls --------------------------------------------------------------------------------- */

static ncclDataType_t type_of(weft_dtype dtype)
{
    switch (dtype) {
    case WEFT_F32:
        return ncclFloat32;
    case WEFT_BF16:
        return ncclBfloat16;
    case WEFT_F16:
        return ncclFloat16;
    case WEFT_F64:
        return ncclFloat64;
    case WEFT_I32:
        return ncclInt32;
    case WEFT_I64:
        return ncclInt64;
    case WEFT_U8:
        break;
    }
    return ncclUint8;
}

static ncclRedOp_t reduction_of(weft_reduce reduce)
{
    switch (reduce) {
    case WEFT_REDUCE_MAX:
        return ncclMax;
    case WEFT_REDUCE_MIN:
        return ncclMin;
    case WEFT_REDUCE_SUM:
        break;
    }
    return ncclSum;
}

static weft_status copy_own(void *to, const void *from, size_t bytes, cudaStream_t stream)
{
    if (bytes == 0 || to == from)
        return WEFT_OK;
    return WEFT_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream));
}

static weft_status post_collective(weft_nccl_comm *comm, const weft_comm_op *op,
                                   cudaStream_t stream)
{
    const weft_nccl_api *api = weft_nccl();
    ncclDataType_t type = type_of(op->dtype);
    ncclRedOp_t reduction = reduction_of(op->reduce);
    ncclResult_t result = ncclInvalidUsage;
    if (op->bytes == 0)
        return WEFT_OK;
    switch (op->kind) {
    case WEFT_COMM_ALL_REDUCE:
        result =
            api->AllReduce(op->send, op->recv, op->count, type, reduction, comm->handle, stream);
        break;
    case WEFT_COMM_REDUCE_SCATTER:
        result = api->ReduceScatter(op->send, op->recv, op->count, type, reduction, comm->handle,
                                    stream);
        break;
    case WEFT_COMM_ALL_GATHER:
        result = api->AllGather(op->send, op->recv, op->count, type, comm->handle, stream);
        break;
    case WEFT_COMM_BROADCAST:
        result =
            api->Broadcast(op->recv, op->recv, op->bytes, type, op->peer, comm->handle, stream);
        break;
    default:
        break;
    }
    WEFT_TRY(weft_nccl_status(__FILE__, __LINE__, __func__, "an operation", result));
    return weft_nccl_settle(comm->handle);
}

/* Rows that are empty on both sides are not exchanged. */
static weft_status post_rows(weft_nccl_comm *comm, const weft_comm_op *op, cudaStream_t stream)
{
    const weft_nccl_api *api = weft_nccl();
    int size = op->comm->size, rank = op->comm->rank;
    const size_t *sent = op->rows->bytes, *received = sent + size;
    const char *from = op->send;
    char *to = op->recv;
    weft_status status = WEFT_OK;
    WEFT_TRY(weft_nccl_begin_group());
    for (int peer = 0; status == WEFT_OK && peer < size; peer++) {
        bool own = peer == rank;
        if (own)
            status = copy_own(to, from, sent[peer], stream);
        if (!own && sent[peer] > 0)
            status = WEFT_NCCL(api->Send(from, sent[peer], ncclUint8, peer, comm->handle, stream));
        if (status == WEFT_OK && !own && received[peer] > 0)
            status =
                WEFT_NCCL(api->Recv(to, received[peer], ncclUint8, peer, comm->handle, stream));
        from = from ? from + sent[peer] : NULL;
        to = to ? to + received[peer] : NULL;
    }
    return weft_nccl_end_group(comm->handle, status);
}

static weft_status post_send_recv(weft_nccl_comm *comm, const weft_comm_op *op, cudaStream_t stream)
{
    const weft_nccl_api *api = weft_nccl();
    if (op->peer == op->comm->rank)
        return copy_own(op->recv, op->send, op->bytes, stream);
    weft_status status = WEFT_OK;
    WEFT_TRY(weft_nccl_begin_group());
    if (op->bytes > 0)
        status =
            WEFT_NCCL(api->Send(op->send, op->bytes, ncclUint8, op->peer, comm->handle, stream));
    if (status == WEFT_OK && op->from_bytes > 0)
        status = WEFT_NCCL(
            api->Recv(op->recv, op->from_bytes, ncclUint8, op->from, comm->handle, stream));
    return weft_nccl_end_group(comm->handle, status);
}

/* The channel of a message: `up` is the lower rank's way to send and the upper one's to receive. */
static ncclComm_t channel_of(const weft_nccl_comm *comm, const weft_comm_op *op)
{
    const weft_nccl_pair *pair = pair_with(comm, op->peer);
    int class = op->tag % WEFT_NCCL_NUM_TAG_CLASSES;
    bool up = pair->lower == (op->kind == WEFT_COMM_SEND);
    return up ? pair->up[class] : pair->down[class];
}

static weft_status post_message(weft_nccl_comm *comm, const weft_comm_op *op, cudaStream_t stream)
{
    const weft_nccl_api *api = weft_nccl();
    ncclComm_t handle = channel_of(comm, op);
    int peer = pair_with(comm, op->peer)->lower ? 1 : 0;
    if (op->bytes == 0)
        return WEFT_OK;
    if (op->kind == WEFT_COMM_SEND)
        WEFT_TRY(WEFT_NCCL(api->Send(op->send, op->bytes, ncclUint8, peer, handle, stream)));
    else
        WEFT_TRY(WEFT_NCCL(api->Recv(op->recv, op->bytes, ncclUint8, peer, handle, stream)));
    return weft_nccl_settle(handle);
}

static weft_status post(weft_nccl_comm *comm, const weft_comm_op *op, cudaStream_t stream)
{
    switch (op->kind) {
    case WEFT_COMM_ALL_TO_ALL:
        return post_rows(comm, op, stream);
    case WEFT_COMM_ALL_TO_ALL_SHARDED:
        if (op->inside->size == 1)
            return post_rows(comm, op, stream);
        return nccl_post_sharded(comm, nccl_of(op->inside), op, stream);
    case WEFT_COMM_SEND:
    case WEFT_COMM_RECV:
        return post_message(comm, op, stream);
    case WEFT_COMM_SEND_RECV:
        return post_send_recv(comm, op, stream);
    default:
        return post_collective(comm, op, stream);
    }
}

/* --- enqueuing ----------------------------------------------------------------------------- */

/* Debug mode: here and now, before NCCL sees the operation. */
static weft_status check(const weft_comm_op *op)
{
    weft_comm_op host = on_host(op);
    return host.comm->ops->check ? host.comm->ops->check(&host) : WEFT_OK;
}

static weft_status post_and_watch(weft_nccl_comm *comm, const weft_comm_op *op, cudaStream_t stream)
{
    uint64_t ticket = weft_comm_record_begin(op);
    bool message = op->kind == WEFT_COMM_SEND || op->kind == WEFT_COMM_RECV;
    WEFT_TRY(post(comm, op, stream));
    return weft_nccl_watch(comm, message ? channel_of(comm, op) : comm->handle, op, stream, ticket);
}

weft_status weft_nccl_enqueue(weft_lane *lane, const weft_comm_op *op)
{
    if (!goes_by_nccl(lane, op))
        return weft_comm_run_on_lane(lane, op);
    weft_status status = WEFT_OK;
    if (weft_comm_checking() && !weft_comm_is_message(op->kind))
        status = check(op);
    if (status == WEFT_OK) {
        cudaStream_t stream = weft_cuda_stream(lane);
        pthread_mutex_lock(&weft_nccl_order);
        status = post_and_watch((weft_nccl_comm *)op->comm, op, stream);
        pthread_mutex_unlock(&weft_nccl_order);
    }
    if (status != WEFT_OK)
        return weft_comm_fail(op, status);
    weft_comm_rows_give_back(op);
    return WEFT_OK;
}
