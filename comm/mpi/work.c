/* Working memory of running operations. A communicator keeps what it made, so a steady state
 * allocates nothing. */
#include "comm/mpi/mpi_comm.h"

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

static bool slot_init(weft_mpi_slot *slot, size_t size)
{
    weft_mpi_batch *batch = &slot->batch;
    size_t capacity = 2 * size;
    batch->requests = calloc(capacity, sizeof *batch->requests);
    batch->messages = calloc(capacity, sizeof *batch->messages);
    batch->statuses = calloc(capacity, sizeof *batch->statuses);
    batch->indices = calloc(capacity, sizeof *batch->indices);
    batch->capacity = (int)capacity;
    return batch->requests && batch->messages && batch->statuses && batch->indices;
}

static weft_mpi_work *work_create(size_t size)
{
    weft_mpi_work *work = calloc(1, sizeof *work);
    if (!work)
        return NULL;
    work->offsets = calloc(2 * size, sizeof *work->offsets);
    work->inputs = calloc(size, sizeof *work->inputs);
    bool ok = work->offsets && work->inputs;
    for (int i = 0; i < WEFT_MPI_NUM_SLOTS; i++)
        ok = slot_init(&work->slots[i], size) && ok;
    if (!ok) {
        work_free(work);
        return NULL;
    }
    return work;
}

weft_status weft_mpi_work_take(weft_mpi_comm *comm, weft_mpi_work **out)
{
    pthread_mutex_lock(&comm->base.lock);
    weft_mpi_work *work = comm->free_work;
    if (work) {
        comm->free_work = work->next_free;
    } else {
        work = work_create((size_t)comm->base.size);
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
