/* The all-to-all of tensor-sharded experts as a stream of chunks (MoNTA, "Pipelining"): one state
 * machine overlaps what O2 and O3 overlap by threads. Each block between two ranks is cut in chunks
 * and each chunk in slices, one for each rank of the inner group. A rank receives its slices
 * straight into their places and hands each on to the other ranks as soon as it is there, so the
 * links between nodes and those inside work at once and nothing is copied.
 *
 * Each stage of a block is a ring of chunks in flight, served in order, so both sides post messages
 * of one tag in the same order, however arrivals interleave. A block ends with a chunk shorter than
 * full, if need be an empty one. So a receiver that expects another size always finds out: at least
 * one slice has another size. */
#include "comm/mpi/mpi_comm.h"

#include <stdlib.h>
#include <string.h>

enum {
    NUM_CHUNKS = 8, /* in flight in a stage of a block: a rank off its core leaves links busy */
    ALIGNMENT = 64,
    MIN_SLICE_BYTES = 32 << 10,
    MAX_SLICE_BYTES = 192 << 10,
    /* Between these lies the size (64 KiB) from which Open MPI asks over TCP before it sends, where
     * messages are slowest. */
    BELOW_EAGER_BYTES = 48 << 10,
    ABOVE_EAGER_BYTES = 96 << 10,
    CHUNKS_PER_BLOCK = 12,  /* as long as slices stay between the two */
    COPIED_BYTES = 1 << 20, /* of the own block, a call of advance */
    EXCHANGE_TAG = 1,       /* in `between`, from the operation's first tag */
    FIRST_FORWARD_TAG = 1,  /* in `inside`, one for each block */
};

typedef struct ring {
    weft_mpi_batch batches[NUM_CHUNKS]; /* chunk i is at i % NUM_CHUNKS */
    uint64_t num_started, num_ended;
} ring;

/* What one rank sends to another: the same numbers on both sides. */
typedef struct block {
    size_t start, bytes; /* in the buffer */
    size_t chunk_bytes;
    uint64_t num_chunks;
} block;

typedef struct stream {
    block out, in;
    ring sends, receives; /* this rank's slices */
    ring forwards;        /* of the received slices, to the others inside */
    ring gathers;         /* the others' slices, from them */
    weft_mpi_batch warning;
} stream;

struct weft_mpi_sharded {
    int size, inner_size; /* of the groups this was made for */
    stream *streams;      /* a peer of `between` each; the own one stays idle */
    void *parts[4];       /* what the batches point into */
};

typedef struct sharded_run {
    weft_mpi_run base;
    const weft_comm *inside;
    struct weft_mpi_sharded *state;
    size_t num_copied; /* of the own block */
} sharded_run;

/* Memory. */

static void sharded_free(struct weft_mpi_sharded *state)
{
    if (!state)
        return;
    for (size_t i = 0; i < sizeof state->parts / sizeof state->parts[0]; i++)
        free(state->parts[i]);
    free(state->streams);
    free(state);
}

static struct weft_mpi_sharded *sharded_create(int size, int inner_size)
{
    struct weft_mpi_sharded *state = calloc(1, sizeof *state);
    if (!state)
        return NULL;
    size_t capacity = inner_size > 1 ? (size_t)inner_size - 1 : 1;
    size_t num = (size_t)size * (4 * NUM_CHUNKS + 1) * capacity;
    MPI_Request *requests = state->parts[0] = calloc(num, sizeof *requests);
    weft_mpi_message *messages = state->parts[1] = calloc(num, sizeof *messages);
    MPI_Status *statuses = state->parts[2] = calloc(num, sizeof *statuses);
    int *indices = state->parts[3] = calloc(num, sizeof *indices);
    state->streams = calloc((size_t)size, sizeof *state->streams);
    if (!requests || !messages || !statuses || !indices || !state->streams) {
        sharded_free(state);
        return NULL;
    }
    size_t next = 0;
    for (int peer = 0; peer < size; peer++) {
        stream *s = &state->streams[peer];
        weft_mpi_batch *const batches[] = {s->sends.batches, s->receives.batches,
                                           s->forwards.batches, s->gathers.batches, &s->warning};
        for (size_t i = 0; i < sizeof batches / sizeof batches[0]; i++)
            for (int k = 0; k < (batches[i] == &s->warning ? 1 : NUM_CHUNKS); k++, next += capacity)
                batches[i][k] = (weft_mpi_batch){.requests = requests + next,
                                                 .messages = messages + next,
                                                 .statuses = statuses + next,
                                                 .indices = indices + next,
                                                 .capacity = (int)capacity};
    }
    state->size = size;
    state->inner_size = inner_size;
    return state;
}

/* The state of the lent work, which keeps it for the next operation of this kind. */
static weft_status take_state(sharded_run *run)
{
    weft_mpi_work *work = run->base.work;
    int size = run->base.op->comm->size, inner_size = run->inside->size;
    if (work->sharded && work->sharded->inner_size != inner_size) {
        sharded_free(work->sharded);
        work->sharded = NULL;
    }
    if (!work->sharded) {
        work->sharded = sharded_create(size, inner_size);
        work->free_sharded = sharded_free;
    }
    if (!work->sharded)
        return WEFT_ERROR(WEFT_MEMORY, "no memory for the requests of an all-to-all in chunks");
    run->state = work->sharded;
    return WEFT_OK;
}

/* Chunks and slices. */

static size_t round_up(size_t value, size_t unit)
{
    return (value + unit - 1) / unit * unit;
}

/* With slices of at most `most` bytes. Chunks never get smaller as `bytes` grows: two ranks that
 * differ about a block's size then always find out. */
static block cut(size_t start, size_t bytes, size_t chunk_bytes, int inner_size, size_t most)
{
    size_t shares = (size_t)inner_size, slice = chunk_bytes / shares;
    most = most / ALIGNMENT * ALIGNMENT;
    if (chunk_bytes == 0) {
        slice = bytes / shares / CHUNKS_PER_BLOCK;
        slice = slice < MIN_SLICE_BYTES ? MIN_SLICE_BYTES : slice;
        slice = slice > MAX_SLICE_BYTES ? MAX_SLICE_BYTES : slice;
        if (slice > BELOW_EAGER_BYTES && slice < ABOVE_EAGER_BYTES)
            slice = BELOW_EAGER_BYTES;
    }
    slice = slice < most ? slice : most;
    slice = slice > 0 ? round_up(slice, ALIGNMENT) : ALIGNMENT;
    size_t chunk = slice * shares;
    return (block){start, bytes, chunk, bytes / chunk + 1};
}

static size_t slice_of(const block *b, uint64_t chunk, int inner_size, int inner_rank,
                       size_t *out_start)
{
    size_t start = (size_t)chunk * b->chunk_bytes, shares = (size_t)inner_size;
    size_t bytes = b->bytes - start < b->chunk_bytes ? b->bytes - start : b->chunk_bytes;
    size_t share = round_up(bytes / shares + (bytes % shares > 0), ALIGNMENT);
    size_t skip = (size_t)inner_rank * share;
    skip = skip < bytes ? skip : bytes;
    *out_start = b->start + start + skip;
    return bytes - skip < share ? bytes - skip : share;
}

/* The group inside, where there is anybody to exchange messages with. */
static const weft_mpi_comm *inner_comm(const sharded_run *run)
{
    return (const weft_mpi_comm *)run->inside;
}

static weft_status name_inside(const sharded_run *run, weft_status status)
{
    if (status == WEFT_OK)
        return WEFT_OK;
    return weft_error_context(status, "inside group %s", run->inside->name);
}

/* Every block has a tag of its own inside, since chunks of different blocks arrive in any order. */
static int forward_tag(const sharded_run *run, int peer)
{
    uint64_t sequence =
        run->base.op->inside_sequence + (uint64_t)peer / WEFT_COMM_BLOCKS_PER_SEQUENCE;
    return weft_mpi_first_tag(sequence) + FIRST_FORWARD_TAG + peer % WEFT_COMM_BLOCKS_PER_SEQUENCE;
}

/* Rings. */

static bool ring_has_room(const ring *r)
{
    return r->num_started - r->num_ended < NUM_CHUNKS;
}

/* The cleared batch of the next chunk, which `ring_started` then adds. */
static weft_mpi_batch *ring_next(ring *r)
{
    weft_mpi_batch *batch = &r->batches[r->num_started % NUM_CHUNKS];
    batch->count = batch->num_pending = 0;
    return batch;
}

/* Ends the chunks that are complete, oldest first. */
static weft_status ring_retire(ring *r, bool *out_moved)
{
    bool done = true;
    while (r->num_ended < r->num_started) {
        WEFT_TRY(weft_mpi_batch_test(&r->batches[r->num_ended % NUM_CHUNKS], out_moved, &done));
        if (!done)
            break;
        r->num_ended++;
        *out_moved = true;
    }
    return WEFT_OK;
}

static int ring_num_pending(const ring *r)
{
    int num_pending = 0;
    for (int i = 0; i < NUM_CHUNKS; i++)
        num_pending += r->batches[i].num_pending;
    return num_pending;
}

/* The stages. Empty slices are exchanged between nodes, where they end a block, but not inside. */

static weft_status post_gather(sharded_run *run, int peer, stream *s)
{
    const weft_comm *inside = run->inside;
    weft_mpi_batch *batch = ring_next(&s->gathers);
    for (int step = 1; step < inside->size; step++) {
        int from = (inside->rank + inside->size - step) % inside->size;
        size_t start, bytes = slice_of(&s->in, s->gathers.num_started, inside->size, from, &start);
        if (bytes > 0)
            WEFT_TRY(weft_mpi_post_recv(inner_comm(run), batch, from, forward_tag(run, peer),
                                        (char *)run->base.op->recv + start, bytes));
    }
    s->gathers.num_started++;
    return WEFT_OK;
}

/* A slice that was received, to the others; or as a warning an empty message in its place. */
static weft_status post_forward(sharded_run *run, int peer, const stream *s, weft_mpi_batch *batch,
                                bool warn)
{
    const weft_comm *inside = run->inside;
    size_t start;
    size_t bytes = slice_of(&s->in, s->forwards.num_started, inside->size, inside->rank, &start);
    for (int step = 1; bytes > 0 && step < inside->size; step++)
        WEFT_TRY(weft_mpi_post_send(
            inner_comm(run), batch, (inside->rank + step) % inside->size, forward_tag(run, peer),
            warn ? NULL : (char *)run->base.op->recv + start, warn ? 0 : bytes));
    return WEFT_OK;
}

static weft_status post_receive(sharded_run *run, int peer, stream *s)
{
    const weft_comm *inside = run->inside;
    size_t start;
    size_t bytes = slice_of(&s->in, s->receives.num_started, inside->size, inside->rank, &start);
    WEFT_TRY(weft_mpi_post_recv(run->base.comm, ring_next(&s->receives), peer,
                                run->base.first_tag + EXCHANGE_TAG,
                                bytes ? (char *)run->base.op->recv + start : NULL, bytes));
    s->receives.num_started++;
    return WEFT_OK;
}

static weft_status post_send(sharded_run *run, int peer, stream *s)
{
    const weft_comm *inside = run->inside;
    size_t start,
        bytes = slice_of(&s->out, s->sends.num_started, inside->size, inside->rank, &start);
    WEFT_TRY(weft_mpi_post_send(run->base.comm, ring_next(&s->sends), peer,
                                run->base.first_tag + EXCHANGE_TAG,
                                bytes ? (const char *)run->base.op->send + start : NULL, bytes));
    s->sends.num_started++;
    return WEFT_OK;
}

/* Hands on what has arrived, as long as there is room to. */
static weft_status hand_on(sharded_run *run, int peer, stream *s, bool *out_moved)
{
    ring *r = &s->receives;
    while (r->num_ended < r->num_started && ring_has_room(&s->forwards)) {
        bool done = false;
        WEFT_TRY(weft_mpi_batch_test(&r->batches[r->num_ended % NUM_CHUNKS], out_moved, &done));
        if (!done)
            break;
        r->num_ended++;
        *out_moved = true;
        WEFT_TRY(name_inside(run, post_forward(run, peer, s, ring_next(&s->forwards), false)));
        s->forwards.num_started++;
    }
    return WEFT_OK;
}

/* After an error. The others inside wait for what this rank would have handed on next: they get an
 * empty message, and fail as well. */
static void warn_inside(sharded_run *run)
{
    const weft_comm *between = run->base.op->comm;
    for (int peer = 0; peer < between->size; peer++) {
        stream *s = &run->state->streams[peer];
        if (peer != between->rank && s->forwards.num_started < s->in.num_chunks &&
            post_forward(run, peer, s, &s->warning, true) != WEFT_OK)
            return; /* the first error is the one to tell */
    }
}

static weft_status advance_stream(sharded_run *run, int peer, stream *s, bool *out_moved)
{
    WEFT_TRY(name_inside(run, ring_retire(&s->forwards, out_moved)));
    WEFT_TRY(name_inside(run, ring_retire(&s->gathers, out_moved)));
    WEFT_TRY(ring_retire(&s->sends, out_moved));
    WEFT_TRY(hand_on(run, peer, s, out_moved));
    while (s->receives.num_started < s->in.num_chunks && ring_has_room(&s->receives))
        WEFT_TRY(post_receive(run, peer, s));
    while (s->gathers.num_started < s->in.num_chunks && ring_has_room(&s->gathers))
        WEFT_TRY(name_inside(run, post_gather(run, peer, s)));
    while (s->sends.num_started < s->out.num_chunks && ring_has_room(&s->sends))
        WEFT_TRY(post_send(run, peer, s));
    return WEFT_OK;
}

static bool stream_done(const stream *s)
{
    return s->sends.num_ended == s->out.num_chunks && s->receives.num_ended == s->in.num_chunks &&
           s->forwards.num_ended == s->in.num_chunks && s->gathers.num_ended == s->in.num_chunks;
}

static void copy_own(sharded_run *run, bool *out_moved)
{
    const weft_comm_op *op = run->base.op;
    const stream *own = &run->state->streams[op->comm->rank];
    size_t bytes = own->out.bytes - run->num_copied;
    bytes = bytes < COPIED_BYTES ? bytes : COPIED_BYTES;
    if (bytes == 0)
        return;
    memcpy((char *)op->recv + own->in.start + run->num_copied,
           (const char *)op->send + own->out.start + run->num_copied, bytes);
    run->num_copied += bytes;
    *out_moved = true;
}

static weft_status advance_streams(sharded_run *run, bool *out_moved, bool *out_done)
{
    int rank = run->base.op->comm->rank, size = run->base.op->comm->size;
    *out_done = true;
    for (int step = 1; step < size; step++) {
        int peer = (rank + step) % size;
        stream *s = &run->state->streams[peer];
        WEFT_TRY(advance_stream(run, peer, s, out_moved));
        *out_done = *out_done && stream_done(s);
    }
    return WEFT_OK;
}

static weft_status advance(void *operation, bool *out_moved, bool *out_done)
{
    sharded_run *run = operation;
    bool done = false;
    weft_status status = advance_streams(run, out_moved, &done);
    if (status != WEFT_OK) {
        weft_error error;
        weft_error_take(&error);
        warn_inside(run);
        weft_gate_leave(&run->base.pass);
        return weft_error_put(&error);
    }
    copy_own(run, out_moved);
    const stream *own = &run->state->streams[run->base.op->comm->rank];
    *out_done = done && run->num_copied == own->out.bytes;
    return WEFT_OK;
}

static void prepare(sharded_run *run)
{
    const weft_comm_op *op = run->base.op;
    const size_t *sent = op->rows->bytes, *received = sent + op->comm->size;
    size_t out_start = 0, in_start = 0, most = weft_mpi_get_limits()->message_bytes;
    most = weft_mpi_message_bytes(op->comm, weft_mpi_message_bytes(run->inside, most));
    for (int peer = 0; peer < op->comm->size; peer++) {
        stream *s = &run->state->streams[peer];
        s->out = cut(out_start, sent[peer], op->chunk_bytes, run->inside->size, most);
        s->in = cut(in_start, received[peer], op->chunk_bytes, run->inside->size, most);
        s->warning.count = s->warning.num_pending = 0;
        ring *const rings[] = {&s->sends, &s->receives, &s->forwards, &s->gathers};
        for (size_t r = 0; r < sizeof rings / sizeof rings[0]; r++) {
            rings[r]->num_started = rings[r]->num_ended = 0;
            for (int i = 0; i < NUM_CHUNKS; i++) {
                weft_mpi_batch *batch = &rings[r]->batches[i];
                batch->count = batch->num_pending = batch->num_queued = 0;
                batch->pass = &run->base.pass; /* a warning goes past the gate */
            }
        }
        out_start += sent[peer];
        in_start += received[peer];
    }
}

static void end(sharded_run *run)
{
    int num_pending = 0;
    for (int peer = 0; peer < run->base.op->comm->size; peer++) {
        const stream *s = &run->state->streams[peer];
        num_pending += ring_num_pending(&s->sends) + ring_num_pending(&s->receives) +
                       ring_num_pending(&s->forwards) + ring_num_pending(&s->gathers) +
                       s->warning.num_pending;
    }
    if (num_pending == 0)
        weft_mpi_work_give_back(run->base.comm, run->base.work);
    else
        weft_mpi_work_abandon(run->base.work);
}

/* In debug mode: the ranks inside pass the same sizes, which show as their sum and a hash. */
static weft_status check_inside(const weft_comm_op *op)
{
    uint64_t hash = op->chunk_bytes;
    for (int i = 0; i < 2 * op->comm->size; i++)
        hash = (hash ^ op->rows->bytes[i]) * UINT64_C(0x9e3779b97f4a7c15);
    weft_comm_op inner = *op;
    inner.comm = op->inside;
    inner.sequence = op->inside_sequence;
    inner.rows = NULL;
    inner.peer = (int)(hash >> 33);
    WEFT_TRY(weft_mpi_check(&inner));
    return WEFT_OK;
}

weft_status weft_mpi_run_sharded(const weft_comm_op *op)
{
    sharded_run run = {.inside = op->inside};
    if (weft_comm_checking() && op->inside->size > 1)
        WEFT_TRY(name_inside(&run, check_inside(op)));
    WEFT_TRY(weft_mpi_run_init(&run.base, op));
    weft_status status = take_state(&run);
    if (status != WEFT_OK) {
        weft_mpi_work_give_back(run.base.comm, run.base.work);
        return status;
    }
    prepare(&run);
    status = weft_engine_run(weft_mpi_engine(), (int)op->comm->purpose, advance, &run);
    end(&run);
    WEFT_TRY(status);
    return WEFT_OK;
}
