#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/cuda/emulate_runtime.h"

/* An entry of a stream's queue. */
typedef struct operation {
    struct operation *next;
    void (*run)(void *argument);
    void *argument;
    bool on_device;
    cudaStream_t other; /* waits until this stream has done so many operations */
    uint64_t num_done;
} operation;

/* Streams are never freed, so that events may point to them: a destroyed one is used again, and
 * goes on counting. */
struct CUstream_st {
    cudaStream_t next;
    operation *first, **end;
    uint64_t num_enqueued, num_done;
    pthread_cond_t work;
    unsigned flags;
    int device, priority;
    bool live, served; /* has a thread */
};

struct CUevent_st {
    cudaStream_t stream; /* NULL before it is recorded */
    uint64_t ticket;
    unsigned flags;
    double seconds;
    unsigned num_pending; /* records under way */
    bool destroyed;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t progress = PTHREAD_COND_INITIALIZER;
static unsigned num_waiting; /* for progress */
static cudaStream_t streams;
static cudaStream_t default_streams[WEFT_EMULATE_MAX_DEVICES];

/* Until `stream` has done so much. Locked. */
static void await(cudaStream_t stream, uint64_t num_done)
{
    num_waiting++;
    while (stream->num_done < num_done)
        pthread_cond_wait(&progress, &lock);
    num_waiting--;
}

static void *serve(void *argument)
{
    cudaStream_t s = argument;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (!s->first && s->live)
            pthread_cond_wait(&s->work, &lock);
        operation *op = s->first;
        if (!op)
            break;
        if (op->other)
            await(op->other, op->num_done);
        if (op->run) {
            pthread_mutex_unlock(&lock);
            if (op->on_device)
                weft_emulate_on_device(op->run, op->argument);
            else
                op->run(op->argument);
            pthread_mutex_lock(&lock);
        }
        s->first = op->next;
        if (!s->first)
            s->end = &s->first;
        free(op);
        s->num_done++;
        if (num_waiting)
            pthread_cond_broadcast(&progress);
    }
    s->served = false;
    pthread_mutex_unlock(&lock);
    return NULL;
}

/* Locked. */
static cudaError_t create(int device, unsigned flags, int priority, cudaStream_t *out)
{
    cudaStream_t s = streams;
    pthread_t thread;
    while (s && (s->live || s->served))
        s = s->next;
    if (!s) {
        if (!(s = calloc(1, sizeof *s)))
            return cudaErrorMemoryAllocation;
        pthread_cond_init(&s->work, NULL);
        s->end = &s->first;
        s->next = streams;
        streams = s;
    }
    s->flags = flags;
    s->priority = priority;
    s->device = device;
    s->live = s->served = true;
    if (pthread_create(&thread, NULL, serve, s)) {
        s->live = s->served = false;
        return cudaErrorMemoryAllocation;
    }
    pthread_detach(thread);
    *out = s;
    return cudaSuccess;
}

/* The stream behind a handle, or NULL. Locked. */
static cudaStream_t find(cudaStream_t handle)
{
    if (!handle || handle == cudaStreamLegacy) {
        cudaStream_t *s = &default_streams[weft_emulate_device()];
        return *s || !create(weft_emulate_device(), 0, 0, s) ? *s : NULL;
    }
    for (cudaStream_t s = streams; s; s = s->next)
        if (s == handle && s->live)
            return s;
    return NULL;
}

bool weft_emulate_stream_valid(cudaStream_t stream)
{
    pthread_mutex_lock(&lock);
    const bool valid = weft_emulate_num_devices() && find(stream);
    pthread_mutex_unlock(&lock);
    return valid;
}

/* Locked. */
static void append(cudaStream_t s, operation *op)
{
    op->next = NULL;
    *s->end = op;
    s->end = &op->next;
    s->num_enqueued++;
    pthread_cond_signal(&s->work);
}

/* Locked. */
static cudaError_t append_wait(cudaStream_t s, cudaStream_t other, uint64_t num_done)
{
    if (s == other || other->num_done >= num_done)
        return cudaSuccess;
    operation *op = calloc(1, sizeof *op);
    if (!op)
        return cudaErrorMemoryAllocation;
    op->other = other;
    op->num_done = num_done;
    append(s, op);
    return cudaSuccess;
}

/* The default stream and those not created as non-blocking wait for each other. Locked. */
static cudaError_t order_with_default(cudaStream_t s)
{
    cudaStream_t whole = default_streams[s->device];
    if (s != whole)
        return whole && !(s->flags & cudaStreamNonBlocking)
                   ? append_wait(s, whole, whole->num_enqueued)
                   : cudaSuccess;
    for (cudaStream_t other = streams; other; other = other->next)
        if (other->live && other->device == s->device && !(other->flags & cudaStreamNonBlocking)) {
            const cudaError_t error = append_wait(s, other, other->num_enqueued);
            if (error)
                return error;
        }
    return cudaSuccess;
}

/* Locked. */
static cudaError_t enqueue(cudaStream_t handle, void (*run)(void *), void *argument, bool on_device)
{
    if (!weft_emulate_num_devices())
        return cudaErrorNoDevice;
    cudaStream_t s = find(handle);
    if (!s)
        return cudaErrorInvalidResourceHandle;
    operation *op = malloc(sizeof *op);
    const cudaError_t error = op ? order_with_default(s) : cudaErrorMemoryAllocation;
    if (error) {
        free(op);
        return error;
    }
    *op = (operation){.run = run, .argument = argument, .on_device = on_device};
    append(s, op);
    return cudaSuccess;
}

cudaError_t weft_emulate_enqueue(cudaStream_t stream, void (*run)(void *), void *argument,
                                 bool on_device)
{
    pthread_mutex_lock(&lock);
    const cudaError_t error = enqueue(stream, run, argument, on_device);
    pthread_mutex_unlock(&lock);
    return error;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority)
{
    if (!weft_emulate_num_devices())
        return weft_emulate_error(cudaErrorNoDevice);
    if (flags & ~(unsigned)cudaStreamNonBlocking)
        return weft_emulate_error(cudaErrorInvalidValue);
    pthread_mutex_lock(&lock);
    const cudaError_t error = create(weft_emulate_device(), flags, priority, out);
    pthread_mutex_unlock(&lock);
    return weft_emulate_error(error);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    return cudaStreamCreateWithPriority(out, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t *out)
{
    return cudaStreamCreateWithPriority(out, cudaStreamDefault, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    pthread_mutex_lock(&lock);
    cudaStream_t s = stream ? find(stream) : NULL;
    if (s) {
        s->live = false; /* its thread ends after what is enqueued */
        pthread_cond_signal(&s->work);
    }
    pthread_mutex_unlock(&lock);
    return weft_emulate_error(s ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    pthread_mutex_lock(&lock);
    cudaStream_t s = weft_emulate_num_devices() ? find(stream) : NULL;
    if (s && !order_with_default(s))
        await(s, s->num_enqueued);
    pthread_mutex_unlock(&lock);
    return weft_emulate_error(s ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    pthread_mutex_lock(&lock);
    cudaStream_t s = weft_emulate_num_devices() ? find(stream) : NULL;
    const bool idle = s && s->num_done == s->num_enqueued;
    pthread_mutex_unlock(&lock);
    if (s && !idle)
        return cudaErrorNotReady; /* not an error to be remembered */
    return weft_emulate_error(s ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *out)
{
    pthread_mutex_lock(&lock);
    cudaStream_t s = weft_emulate_num_devices() ? find(stream) : NULL;
    if (s)
        *out = s->priority;
    pthread_mutex_unlock(&lock);
    return weft_emulate_error(s ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

cudaError_t cudaDeviceSynchronize(void)
{
    if (!weft_emulate_num_devices())
        return weft_emulate_error(cudaErrorNoDevice);
    const int device = weft_emulate_device();
    pthread_mutex_lock(&lock);
    for (cudaStream_t s = streams; s; s = s->next)
        if (s->device == device)
            await(s, s->num_enqueued);
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

static void run_host_function(void *argument)
{
    struct {
        cudaHostFn_t function;
        void *data;
    } call;
    memcpy(&call, argument, sizeof call);
    free(argument);
    call.function(call.data);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data)
{
    const struct {
        cudaHostFn_t function;
        void *data;
    } call = {function, data};
    void *copy = function ? malloc(sizeof call) : NULL;
    if (!copy)
        return weft_emulate_error(function ? cudaErrorMemoryAllocation : cudaErrorInvalidValue);
    memcpy(copy, &call, sizeof call);
    const cudaError_t error = weft_emulate_enqueue(stream, run_host_function, copy, false);
    if (error)
        free(copy);
    return weft_emulate_error(error);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    if (!weft_emulate_num_devices())
        return weft_emulate_error(cudaErrorNoDevice);
    cudaEvent_t event = calloc(1, sizeof *event);
    if (!event)
        return weft_emulate_error(cudaErrorMemoryAllocation);
    event->flags = flags;
    *out = event;
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *out)
{
    return cudaEventCreateWithFlags(out, cudaEventDefault);
}

static void stamp(void *argument)
{
    cudaEvent_t event = argument;
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    pthread_mutex_lock(&lock);
    event->seconds = (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
    const bool unused = --event->num_pending == 0 && event->destroyed;
    pthread_mutex_unlock(&lock);
    if (unused)
        free(event);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    if (!event)
        return weft_emulate_error(cudaErrorInvalidResourceHandle);
    pthread_mutex_lock(&lock);
    event->destroyed = true;
    const bool unused = !event->num_pending;
    pthread_mutex_unlock(&lock);
    if (unused)
        free(event);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    pthread_mutex_lock(&lock);
    const cudaError_t error =
        event ? enqueue(stream, stamp, event, false) : cudaErrorInvalidResourceHandle;
    if (!error) {
        event->stream = find(stream);
        event->ticket = event->stream->num_enqueued;
        event->num_pending++;
    }
    pthread_mutex_unlock(&lock);
    return weft_emulate_error(error);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    (void)flags;
    pthread_mutex_lock(&lock);
    cudaStream_t s = weft_emulate_num_devices() ? find(stream) : NULL;
    cudaError_t error = s && event ? order_with_default(s) : cudaErrorInvalidResourceHandle;
    if (!error && event->stream)
        error = append_wait(s, event->stream, event->ticket);
    pthread_mutex_unlock(&lock);
    return weft_emulate_error(error);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    if (!event)
        return weft_emulate_error(cudaErrorInvalidResourceHandle);
    pthread_mutex_lock(&lock);
    if (event->stream)
        await(event->stream, event->ticket);
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

/* Locked. */
static bool reached(cudaEvent_t event)
{
    return !event->stream || event->stream->num_done >= event->ticket;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    if (!event)
        return weft_emulate_error(cudaErrorInvalidResourceHandle);
    pthread_mutex_lock(&lock);
    const bool is_reached = reached(event);
    pthread_mutex_unlock(&lock);
    return is_reached ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventElapsedTime(float *out_ms, cudaEvent_t start, cudaEvent_t end)
{
    cudaError_t error = cudaSuccess;
    pthread_mutex_lock(&lock);
    if (!start || !end || !start->stream || !end->stream ||
        ((start->flags | end->flags) & cudaEventDisableTiming))
        error = cudaErrorInvalidResourceHandle;
    else if (!reached(start) || !reached(end))
        error = cudaErrorNotReady;
    else
        *out_ms = (float)(1e3 * (end->seconds - start->seconds));
    pthread_mutex_unlock(&lock);
    return error == cudaErrorNotReady ? error : weft_emulate_error(error);
}
