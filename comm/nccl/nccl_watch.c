/* The watchdog: closes the records of operations that have ended. When NCCL reports an error, or an
 * operation does not end before its deadline, it ends the job: a thread that waits for that lane
 * would wait for ever. */
#include "comm/nccl/nccl_comm.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/log.h"
#include "core/trace/trace.h"

enum {
    CAPACITY = 1024,
    MOST_AT_ONCE = 64, /* operations looked at a turn, oldest first */
    TURN_NS = 5000000,
    FULL_NS = 200000,
};

typedef struct entry {
    weft_nccl_comm *comm; /* NULL: ended or forgotten */
    ncclComm_t handle;
    weft_comm_op op; /* without rows */
    uint64_t ticket;
    double begun_us;
    cudaEvent_t done; /* kept for the next entry in this place */
} entry;

static struct {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    pthread_t thread;
    bool running, stopping;
    int device_index;
    uint64_t num_begun, num_ended; /* entry i sits at i % CAPACITY */
    entry ring[CAPACITY];
} watch = {.lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER};

/* Prints the error record and takes the job down. */
static void give_up(const entry *e, weft_status status)
{
    status = weft_comm_fail(&e->op, status);
    weft_log_error_record();
    e->comm->base.abort(weft_status_exit_code(status));
}

static weft_status check_group(const entry *e)
{
    ncclResult_t state = ncclSuccess;
    /* Who enqueues just now polls by itself. */
    if (pthread_mutex_trylock(&weft_nccl_order) != 0)
        return WEFT_OK;
    weft_status status = WEFT_NCCL(weft_nccl()->CommGetAsyncError(e->handle, &state));
    pthread_mutex_unlock(&weft_nccl_order);
    WEFT_TRY(status);
    return weft_nccl_status(__FILE__, __LINE__, __func__, "its work on the GPU", state);
}

/* Sets *out_ended, or finds what is wrong. */
static weft_status look_at(const entry *e, bool *out_ended)
{
    cudaError_t error = cudaEventQuery(e->done);
    *out_ended = error == cudaSuccess;
    if (*out_ended)
        return WEFT_OK;
    if (error != cudaErrorNotReady)
        return WEFT_CUDA(error);
    if (weft_now_us() - e->begun_us > 1e6 * WEFT_NCCL_DEADLINE_SECONDS)
        return WEFT_ERROR(WEFT_COMM, "not ended within %d s", (int)WEFT_NCCL_DEADLINE_SECONDS);
    return check_group(e);
}

static void look_at_all(void)
{
    int num_pending = 0;
    for (uint64_t i = watch.num_ended; i < watch.num_begun && num_pending < MOST_AT_ONCE; i++) {
        entry *e = &watch.ring[i % CAPACITY];
        bool ended = true;
        if (e->comm) {
            weft_status status = look_at(e, &ended);
            if (status != WEFT_OK)
                give_up(e, status);
            if (ended) {
                weft_comm_record_end(e->ticket);
                e->comm = NULL;
            }
        }
        num_pending += !ended;
        if (ended && i == watch.num_ended)
            watch.num_ended++;
    }
}

static void *run(void *unused)
{
    (void)unused;
    if (cudaSetDevice(watch.device_index) != cudaSuccess)
        (void)cudaGetLastError(); /* the queries say what is wrong */
    pthread_mutex_lock(&watch.lock);
    while (!watch.stopping) {
        if (watch.num_ended == watch.num_begun) {
            pthread_cond_wait(&watch.wake, &watch.lock);
            continue;
        }
        look_at_all();
        pthread_mutex_unlock(&watch.lock);
        nanosleep(&(struct timespec){.tv_nsec = TURN_NS}, NULL);
        pthread_mutex_lock(&watch.lock);
    }
    pthread_mutex_unlock(&watch.lock);
    return NULL;
}

weft_status weft_nccl_watch_start(int device_index)
{
    if (watch.running)
        return WEFT_OK;
    watch.device_index = device_index;
    watch.stopping = false;
    int error = pthread_create(&watch.thread, NULL, run, NULL);
    if (error)
        return WEFT_ERROR(WEFT_MEMORY, "no thread to watch NCCL (error %d)", error);
    watch.running = true;
    return WEFT_OK;
}

weft_status weft_nccl_watch(weft_nccl_comm *comm, ncclComm_t handle, const weft_comm_op *op,
                            cudaStream_t stream, uint64_t ticket)
{
    pthread_mutex_lock(&watch.lock);
    while (watch.num_begun - watch.num_ended == CAPACITY) {
        pthread_mutex_unlock(&watch.lock);
        nanosleep(&(struct timespec){.tv_nsec = FULL_NS}, NULL);
        pthread_mutex_lock(&watch.lock);
    }
    entry *e = &watch.ring[watch.num_begun % CAPACITY];
    weft_status status = WEFT_OK;
    if (!e->done)
        status = WEFT_CUDA(cudaEventCreateWithFlags(&e->done, cudaEventDisableTiming));
    if (status == WEFT_OK)
        status = WEFT_CUDA(cudaEventRecord(e->done, stream));
    if (status == WEFT_OK) {
        e->comm = comm;
        e->handle = handle;
        e->op = *op;
        e->op.rows = NULL;
        e->ticket = ticket;
        e->begun_us = weft_now_us();
        watch.num_begun++;
        pthread_cond_signal(&watch.wake);
    }
    pthread_mutex_unlock(&watch.lock);
    return status;
}

void weft_nccl_watch_forget(const weft_nccl_comm *comm)
{
    pthread_mutex_lock(&watch.lock);
    for (uint64_t i = watch.num_ended; i < watch.num_begun; i++) {
        entry *e = &watch.ring[i % CAPACITY];
        if (!e->comm || (e->comm != comm && e->op.inside != &comm->base))
            continue;
        if (cudaEventQuery(e->done) == cudaSuccess)
            weft_comm_record_end(e->ticket);
        e->comm = NULL;
    }
    pthread_mutex_unlock(&watch.lock);
}

void weft_nccl_watch_stop(void)
{
    if (!watch.running)
        return;
    pthread_mutex_lock(&watch.lock);
    watch.stopping = true;
    pthread_cond_signal(&watch.wake);
    pthread_mutex_unlock(&watch.lock);
    pthread_join(watch.thread, NULL);
    for (int i = 0; i < CAPACITY; i++)
        if (watch.ring[i].done)
            (void)cudaEventDestroy(watch.ring[i].done);
    memset(watch.ring, 0, sizeof watch.ring);
    watch.num_begun = watch.num_ended = 0;
    watch.running = false;
}
