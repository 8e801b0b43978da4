/* Working memory of running operations. A communicator keeps what it allocated, so steps allocate
 * nothing once each kind of operation has run. */
#include "comm/mpi/mpi_comm.h"

#include <assert.h>
#include <limits.h>
#include <stdlib.h>
#include <time.h>

#include "comm/mpi/tree.h"
#include "core/clock.h"

static struct {
    pthread_mutex_t lock;
    weft_mpi_work *list; /* of communicators that are gone */
    bool any;
} abandoned = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void slot_free(weft_mpi_slot *slot)
{
    free(slot->batch.requests);
    free(slot->batch.messages);
    free(slot->batch.statuses);
    free(slot->batch.indices);
    free(slot->scratch);
}

static void work_free(weft_mpi_work *work)
{
    for (int i = 0; i < WEFT_MPI_NUM_SLOTS; i++)
        slot_free(&work->slots[i]);
    if (work->sharded)
        work->free_sharded(work->sharded);
    free(work->offsets);
    free(work->inputs);
    free(work);
}

/* Each array moves as it grows; what did not get memory stays as it was. */
static bool batch_grow(weft_mpi_batch *batch, size_t capacity)
{
    MPI_Request *requests = realloc(batch->requests, capacity * sizeof *requests);
    batch->requests = requests ? requests : batch->requests;
    weft_mpi_message *messages = realloc(batch->messages, capacity * sizeof *messages);
    batch->messages = messages ? messages : batch->messages;
    MPI_Status *statuses = realloc(batch->statuses, capacity * sizeof *statuses);
    batch->statuses = statuses ? statuses : batch->statuses;
    int *indices = realloc(batch->indices, capacity * sizeof *indices);
    batch->indices = indices ? indices : batch->indices;
    if (!requests || !messages || !statuses || !indices)
        return false;
    batch->capacity = (int)capacity;
    return true;
}

/* Room for one more message. */
static weft_status mpi_batch_reserve(weft_mpi_batch *batch)
{
    if (batch->count < batch->capacity || batch_grow(batch, 2 * (size_t)batch->capacity + 2))
        return WEFT_OK;
    return WEFT_ERROR(WEFT_MEMORY, "no memory for the requests of an operation");
}

/* A group whose operations go along a tree has few messages in flight, however large it is. */
static weft_mpi_work *work_create(const weft_mpi_comm *comm)
{
    size_t capacity = 2 * (size_t)(comm->tree ? comm->tree->num_children + 1 : comm->base.size);
    weft_mpi_work *work = calloc(1, sizeof *work);
    bool ok = work != NULL;
    for (int i = 0; ok && i < WEFT_MPI_NUM_SLOTS; i++)
        ok = batch_grow(&work->slots[i].batch, capacity);
    if (work && !ok) {
        work_free(work);
        return NULL;
    }
    return work;
}

weft_status weft_mpi_work_reserve(weft_mpi_work *work, int size)
{
    if (!work->offsets)
        work->offsets = calloc(2 * (size_t)size, sizeof *work->offsets);
    if (!work->inputs)
        work->inputs = calloc((size_t)size, sizeof *work->inputs);
    if (work->offsets && work->inputs)
        return WEFT_OK;
    return WEFT_ERROR(WEFT_MEMORY, "no memory for an operation of %d ranks", size);
}

weft_status weft_mpi_work_take(weft_mpi_comm *comm, weft_mpi_work **out)
{
    pthread_mutex_lock(&comm->base.lock);
    weft_mpi_work *work = comm->free_work;
    if (work) {
        comm->free_work = work->next_free;
    } else {
        work = work_create(comm);
        if (work) {
            work->next_owned = comm->owned_work;
            comm->owned_work = work;
        }
    }
    pthread_mutex_unlock(&comm->base.lock);
    if (!work)
        return WEFT_ERROR(WEFT_MEMORY, "no memory for an operation's requests");
    for (int i = 0; i < WEFT_MPI_NUM_SLOTS; i++) {
        work->slots[i].phase = -1;
        work->slots[i].batch.count = work->slots[i].batch.num_pending = 0;
        work->slots[i].batch.num_queued = 0;
    }
    *out = work;
    return WEFT_OK;
}

void weft_mpi_work_give_back(weft_mpi_comm *comm, weft_mpi_work *work)
{
    pthread_mutex_lock(&comm->base.lock);
    work->next_free = comm->free_work;
    comm->free_work = work;
    pthread_mutex_unlock(&comm->base.lock);
}

void weft_mpi_work_release(weft_mpi_comm *comm)
{
    while (comm->owned_work) {
        weft_mpi_work *work = comm->owned_work;
        comm->owned_work = work->next_owned;
        if (!work->abandoned) {
            work_free(work);
            continue;
        }
        pthread_mutex_lock(&abandoned.lock);
        work->next_owned = abandoned.list;
        abandoned.list = work;
        pthread_mutex_unlock(&abandoned.lock);
    }
}

void weft_mpi_work_abandon(weft_mpi_work *work)
{
    pthread_mutex_lock(&abandoned.lock);
    work->abandoned = abandoned.any = true;
    pthread_mutex_unlock(&abandoned.lock);
}

bool weft_mpi_work_any_abandoned(void)
{
    pthread_mutex_lock(&abandoned.lock);
    bool any = abandoned.any;
    pthread_mutex_unlock(&abandoned.lock);
    return any;
}

weft_status weft_mpi_slot_reserve(weft_mpi_slot *slot, size_t bytes)
{
    if (bytes <= slot->scratch_bytes)
        return WEFT_OK;
    size_t rounded = (bytes + 63) / 64 * 64;
    void *scratch = aligned_alloc(64, rounded);
    if (!scratch)
        return WEFT_ERROR(WEFT_MEMORY, "no memory for %zu bytes of partial sums", bytes);
    free(slot->scratch);
    slot->scratch = scratch;
    slot->scratch_bytes = rounded;
    return WEFT_OK;
}

static void add(weft_mpi_batch *batch, const weft_mpi_message *message)
{
    batch->messages[batch->count++] = *message;
    batch->num_pending++;
    batch->num_queued += message->queued;
}

/* Sends a queued message if it may go. */
static weft_status send_queued(weft_mpi_batch *batch, int index, int64_t now)
{
    weft_mpi_message *message = &batch->messages[index];
    if (batch->pass &&
        !weft_gate_admit(batch->pass, message->link, message->number, message->bytes, now))
        return WEFT_OK;
    weft_status status =
        WEFT_MPI(MPI_Isend(message->buffer, (int)message->bytes, MPI_BYTE, message->peer,
                           message->tag, message->handle, &batch->requests[index]));
    if (status != WEFT_OK)
        return weft_error_context(status, "to rank %d", message->peer);
    message->queued = false;
    batch->num_queued--;
    return WEFT_OK;
}

weft_status weft_mpi_post_send(const weft_mpi_comm *comm, weft_mpi_batch *batch, int peer, int tag,
                               const void *buffer, size_t bytes)
{
    assert(bytes <= INT_MAX);
    WEFT_TRY(mpi_batch_reserve(batch));
    int64_t now = weft_now_ns();
    weft_mpi_message message = {.peer = peer,
                                .bytes = bytes,
                                .queued = true,
                                .tag = tag,
                                .buffer = buffer,
                                .handle = comm->handle,
                                .link = weft_mpi_link(&comm->base, peer)};
    if (batch->pass)
        message.number = weft_gate_queue(batch->pass, message.link, bytes, now);
    batch->requests[batch->count] = MPI_REQUEST_NULL;
    add(batch, &message);
    WEFT_TRY(send_queued(batch, batch->count - 1, now));
    return WEFT_OK;
}

weft_status weft_mpi_post_recv(const weft_mpi_comm *comm, weft_mpi_batch *batch, int peer, int tag,
                               void *buffer, size_t bytes)
{
    assert(bytes <= INT_MAX);
    WEFT_TRY(mpi_batch_reserve(batch));
    weft_status status = WEFT_MPI(MPI_Irecv(buffer, (int)bytes, MPI_BYTE, peer, tag, comm->handle,
                                            &batch->requests[batch->count]));
    if (status != WEFT_OK)
        return weft_error_context(status, "from rank %d", peer);
    weft_gate_link link = weft_mpi_link(&comm->base, peer);
    if (batch->pass)
        weft_gate_await(batch->pass, link, bytes, weft_now_ns());
    add(batch, &(weft_mpi_message){.peer = peer, .bytes = bytes, .receive = true, .link = link});
    return WEFT_OK;
}

/* A message that came complete must have the size asked for. The size of one too long is known
 * where the library keeps it in the status. */
static weft_status check_message(const weft_mpi_message *message, const MPI_Status *status,
                                 int code)
{
    int class = MPI_SUCCESS, count = 0;
    if (code != MPI_SUCCESS)
        MPI_Error_class(code, &class);
    if (class != MPI_SUCCESS && class != MPI_ERR_TRUNCATE) {
        char text[MPI_MAX_ERROR_STRING + 1] = {0};
        return WEFT_ERROR(WEFT_COMM, "%s rank %d: %s", message->receive ? "from" : "to",
                          message->peer, weft_mpi_error_text(code, text));
    }
    if (!message->receive)
        return WEFT_OK;
    if (MPI_Get_count(status, MPI_BYTE, &count) != MPI_SUCCESS)
        count = MPI_UNDEFINED;
    bool longer = class == MPI_ERR_TRUNCATE;
    if (longer && (count == MPI_UNDEFINED || (size_t)count <= message->bytes))
        return WEFT_ERROR(WEFT_COMM, "rank %d sent more than the %zu bytes received here",
                          message->peer, message->bytes);
    if (longer || (size_t)count != message->bytes)
        return WEFT_ERROR(WEFT_COMM, "rank %d sent %d bytes where %zu are received here",
                          message->peer, count, message->bytes);
    return WEFT_OK;
}

weft_status weft_mpi_batch_test(weft_mpi_batch *batch, bool *out_moved, bool *out_done)
{
    int num_queued = batch->num_queued;
    int64_t now = weft_now_ns();
    for (int i = 0; batch->num_queued > 0 && i < batch->count; i++)
        if (batch->messages[i].queued)
            WEFT_TRY(send_queued(batch, i, now));
    *out_moved |= batch->num_queued < num_queued;
    if (batch->num_pending > batch->num_queued) {
        int num_ended = 0;
        int code = MPI_Testsome(batch->count, batch->requests, &num_ended, batch->indices,
                                batch->statuses);
        if (code != MPI_ERR_IN_STATUS)
            WEFT_TRY(WEFT_MPI(code));
        batch->num_pending -= num_ended;
        *out_moved |= num_ended > 0;
        for (int i = 0; i < num_ended; i++) {
            int own_code = code == MPI_SUCCESS ? MPI_SUCCESS : batch->statuses[i].MPI_ERROR;
            const weft_mpi_message *message = &batch->messages[batch->indices[i]];
            if (batch->pass && message->receive)
                weft_gate_arrive(batch->pass, message->link, message->bytes, now);
            else if (batch->pass)
                weft_gate_end(batch->pass, message->link, message->bytes, now);
            WEFT_TRY(check_message(message, &batch->statuses[i], own_code));
        }
    }
    *out_done = batch->num_pending == 0;
    return WEFT_OK;
}

/* Runs an operation's rounds: the engine's driver advances them. */

int weft_mpi_first_tag(uint64_t sequence)
{
    uint64_t number = sequence % weft_mpi_num_sequences();
    return WEFT_MPI_FIRST_COLLECTIVE_TAG + WEFT_MPI_TAGS_PER_COLLECTIVE * (int)number;
}

int weft_mpi_tag(const weft_mpi_run *run, const weft_mpi_slot *slot)
{
    if (weft_comm_is_message(run->op->kind))
        return run->op->tag;
    if (run->signatures)
        return run->first_tag;
    return run->first_tag + 1 + 2 * (int)(slot - run->work->slots) + slot->phase;
}

/* Starts a round that an idle slot may take, or moves a busy slot's round on. */
static weft_status advance_slot(weft_mpi_run *run, weft_mpi_slot *slot, bool *out_moved)
{
    if (slot->phase < 0) {
        uint64_t index = (uint64_t)(slot - run->work->slots);
        if (run->num_started == run->num_rounds || run->num_started % WEFT_MPI_NUM_SLOTS != index)
            return WEFT_OK;
        slot->round = run->num_started++;
        slot->phase = 0;
    } else {
        bool done = false;
        WEFT_TRY(weft_mpi_batch_test(&slot->batch, out_moved, &done));
        if (!done)
            return WEFT_OK;
        slot->phase++;
    }
    *out_moved = true;
    slot->batch.count = slot->batch.num_pending = slot->batch.num_queued = 0;
    WEFT_TRY(run->step(run, slot));
    if (slot->batch.count == 0) {
        slot->phase = -1;
        run->num_ended++;
    }
    return WEFT_OK;
}

static weft_status advance(void *operation, bool *out_moved, bool *out_done)
{
    weft_mpi_run *run = operation;
    for (int i = 0; i < WEFT_MPI_NUM_SLOTS; i++) {
        weft_status status = advance_slot(run, &run->work->slots[i], out_moved);
        if (status == WEFT_OK)
            continue;
        weft_gate_leave(&run->pass);
        return status;
    }
    *out_done = run->num_ended == run->num_rounds;
    return WEFT_OK;
}

static void end_work(weft_mpi_run *run)
{
    int num_pending = 0;
    for (int i = 0; i < WEFT_MPI_NUM_SLOTS; i++)
        num_pending += run->work->slots[i].batch.num_pending;
    if (num_pending == 0)
        weft_mpi_work_give_back(run->comm, run->work);
    else
        weft_mpi_work_abandon(run->work);
}

weft_status weft_mpi_run_rounds(weft_mpi_run *run)
{
    int priority = (int)run->comm->base.purpose;
    weft_status status = weft_engine_run(weft_mpi_engine(), priority, advance, run);
    end_work(run);
    WEFT_TRY(status);
    return WEFT_OK;
}

weft_status weft_mpi_run_init(weft_mpi_run *run, const weft_comm_op *op)
{
    *run = (weft_mpi_run){
        .comm = (weft_mpi_comm *)op->comm,
        .op = op,
        .first_tag = weft_mpi_first_tag(op->sequence),
    };
    weft_gate_enter(&run->pass, weft_mpi_gate(), &weft_mpi_get_limits()->gate, op->comm->purpose);
    WEFT_TRY(weft_mpi_work_take(run->comm, &run->work));
    for (int i = 0; i < WEFT_MPI_NUM_SLOTS; i++)
        run->work->slots[i].batch.pass = &run->pass;
    return WEFT_OK;
}
