/* Working memory of running operations. A communicator keeps what it allocated, so steps allocate
 * nothing once each kind of operation has run. */
#include "comm/mpi/mpi_comm.h"
#include "comm/mpi/tree.h"

#include <stdlib.h>

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
    weft_mpi_sharded_free(work->sharded);
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

weft_status weft_mpi_batch_reserve(weft_mpi_batch *batch)
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
