/* The all-to-all of tensor-sharded experts by NCCL, a chunk of every block at a time. Each rank
 * exchanges its slice between the ranks of `between`. Then it sends what it received to the others
 * of `inside`, on a side stream while the next chunks arrive. All goes straight to its final place.
 */
#include "comm/nccl/nccl_comm.h"

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

weft_status weft_nccl_post_sharded(weft_nccl_comm *between, weft_nccl_comm *inside,
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
