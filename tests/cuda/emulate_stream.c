#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/cuda/emulate_runtime.h"

enum { QUEUE_LENGTH = 1000 };

/* An entry of a stream's queue, or of a graph. */
typedef struct operation {
    struct operation *next;
    void (*run)(void *argument);
    bool on_device;
    cudaStream_t other; /* waits until this stream has done so many operations */
    uint64_t num_done;
    size_t bytes;
    _Alignas(16) unsigned char argument[];
} operation;

/* Both are this list. */
struct CUgraph_st {
    operation *first, **end;
};

/* Streams are never freed, so that events may point to them: a destroyed one is used again, and
 * goes on counting. */
struct CUstream_st {
    cudaStream_t next;
    operation *first, **end;
    uint64_t num_enqueued, num_done;
    pthread_cond_t work;
    unsigned flags;
    int device, priority;
    bool live, served;     /* has a thread */
    cudaGraph_t capturing; /* what is enqueued goes here; NULL: to the queue */
    bool spoiled;          /* by something that cannot be captured */
};

/* The stream that this thread captures. */
static _Thread_local cudaStream_t captured;

struct CUevent_st {
    cudaStream_t stream; /* NULL before it is recorded */
    uint64_t ticket;
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
    if (s->capturing) {
        *s->capturing->end = op;
        s->capturing->end = &op->next;
        return;
    }
    /* As far as a GPU's queue reaches: then the driver lets the caller wait. */
    if (s->num_enqueued - s->num_done >= QUEUE_LENGTH)
        await(s, s->num_enqueued - QUEUE_LENGTH + 1);
    *s->end = op;
    s->end = &op->next;
    s->num_enqueued++;
    pthread_cond_signal(&s->work);
}

/* With a copy of the argument. */
static operation *make_operation(void (*run)(void *), const void *argument, size_t bytes,
                                 bool on_device)
{
    operation *op = malloc(sizeof *op + bytes);
    if (!op)
        return NULL;
    *op = (operation){.run = run, .bytes = bytes, .on_device = on_device};
    if (bytes > 0)
        memcpy(op->argument, argument, bytes);
    return op;
}

/* Locked. A wait for what is not in the graph cannot be captured. */
static cudaError_t refuse_captured(cudaStream_t s)
{
    if (!s->capturing)
        return cudaSuccess;
    s->spoiled = true;
    return cudaErrorStreamCaptureUnsupported;
}

/* Locked. */
static cudaError_t append_wait(cudaStream_t s, cudaStream_t other, uint64_t num_done)
{
    if (s == other || other->num_done >= num_done)
        return cudaSuccess;
    const cudaError_t error = refuse_captured(s);
    if (error)
        return error;
    operation *op = make_operation(NULL, NULL, 0, false);
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
static cudaError_t enqueue(cudaStream_t handle, void (*run)(void *), const void *argument,
                           size_t bytes, bool on_device)
{
    if (!weft_emulate_num_devices())
        return cudaErrorNoDevice;
    cudaStream_t s = find(handle);
    if (!s)
        return cudaErrorInvalidResourceHandle;
    operation *op = make_operation(run, argument, bytes, on_device);
    const cudaError_t error = op ? order_with_default(s) : cudaErrorMemoryAllocation;
    if (error) {
        free(op);
        return error;
    }
    append(s, op);
    return cudaSuccess;
}

cudaError_t weft_emulate_enqueue(cudaStream_t stream, void (*run)(void *), const void *argument,
                                 size_t bytes, bool on_device)
{
    weft_emulate_enter();
    pthread_mutex_lock(&lock);
    const cudaError_t error = enqueue(stream, run, argument, bytes, on_device);
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

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    weft_emulate_enter();
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
    weft_emulate_enter();
    pthread_mutex_lock(&lock);
    cudaStream_t s = weft_emulate_num_devices() ? find(stream) : NULL;
    cudaError_t error = s ? refuse_captured(s) : cudaErrorInvalidResourceHandle;
    if (!error && !order_with_default(s))
        await(s, s->num_enqueued);
    pthread_mutex_unlock(&lock);
    return weft_emulate_error(error ? error : weft_emulate_broken());
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    weft_emulate_enter();
    pthread_mutex_lock(&lock);
    cudaStream_t s = weft_emulate_num_devices() ? find(stream) : NULL;
    const bool idle = s && s->num_done == s->num_enqueued;
    pthread_mutex_unlock(&lock);
    if (weft_emulate_broken())
        return weft_emulate_error(weft_emulate_broken());
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

void weft_emulate_drain(int device)
{
    pthread_mutex_lock(&lock);
    for (cudaStream_t s = streams; s; s = s->next)
        if (s->device == device)
            await(s, s->num_enqueued);
    pthread_mutex_unlock(&lock);
}

cudaError_t cudaDeviceSynchronize(void)
{
    if (!weft_emulate_num_devices())
        return weft_emulate_error(cudaErrorNoDevice);
    if (weft_emulate_spoils_capture())
        return weft_emulate_error(cudaErrorStreamCaptureUnsupported);
    weft_emulate_enter();
    weft_emulate_drain(weft_emulate_device());
    return cudaSuccess;
}

typedef struct host_call {
    cudaHostFn_t function;
    void *data;
} host_call;

static void run_host_function(void *argument)
{
    const host_call *call = argument;
    call->function(call->data);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data)
{
    const host_call call = {function, data};
    return weft_emulate_error(
        function ? weft_emulate_enqueue(stream, run_host_function, &call, sizeof call, false)
                 : cudaErrorInvalidValue);
}

/* --- graphs -------------------------------------------------------------------------------- */

bool weft_emulate_spoils_capture(void)
{
    if (captured)
        captured->spoiled = true;
    return captured;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    cudaError_t error = cudaSuccess;
    cudaGraph_t graph = calloc(1, sizeof *graph);
    pthread_mutex_lock(&lock);
    cudaStream_t s = weft_emulate_num_devices() && stream ? find(stream) : NULL;
    if (!s || mode != cudaStreamCaptureModeThreadLocal)
        error = cudaErrorInvalidValue;
    else if (captured || s->capturing)
        error = cudaErrorIllegalState;
    else if (!graph)
        error = cudaErrorMemoryAllocation;
    else {
        graph->end = &graph->first;
        captured = s;
        s->capturing = graph;
        s->spoiled = false;
    }
    pthread_mutex_unlock(&lock);
    if (error)
        free(graph);
    return weft_emulate_error(error);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    if (!graph)
        return weft_emulate_error(cudaErrorInvalidValue);
    for (operation *op = graph->first, *next; op; op = next) {
        next = op->next;
        free(op);
    }
    free(graph);
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out)
{
    cudaGraph_t graph = NULL;
    bool spoiled = false;
    pthread_mutex_lock(&lock);
    cudaStream_t s = weft_emulate_num_devices() ? find(stream) : NULL;
    if (s && s == captured) {
        graph = s->capturing;
        spoiled = s->spoiled;
        s->capturing = NULL;
        captured = NULL;
    }
    pthread_mutex_unlock(&lock);
    *out = NULL;
    if (!graph)
        return weft_emulate_error(cudaErrorIllegalState);
    if (spoiled) {
        cudaGraphDestroy(graph);
        return weft_emulate_error(cudaErrorStreamCaptureInvalidated);
    }
    *out = graph;
    return cudaSuccess;
}

/* Appends copies of the list. */
static cudaError_t append_copies(cudaStream_t s, const operation *list)
{
    for (const operation *op = list; op; op = op->next) {
        operation *copy = make_operation(op->run, op->argument, op->bytes, op->on_device);
        if (!copy)
            return cudaErrorMemoryAllocation;
        append(s, copy);
    }
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags)
{
    struct CUstream_st taker = {0};
    (void)flags;
    if (!graph)
        return weft_emulate_error(cudaErrorInvalidValue);
    cudaGraph_t copy = calloc(1, sizeof *copy);
    if (!copy)
        return weft_emulate_error(cudaErrorMemoryAllocation);
    copy->end = &copy->first;
    taker.capturing = copy;
    const cudaError_t error = append_copies(&taker, graph->first);
    if (error)
        cudaGraphDestroy(copy);
    else
        *out = (cudaGraphExec_t)copy;
    return weft_emulate_error(error);
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream)
{
    return weft_emulate_error(exec && weft_emulate_stream_valid(stream) ? cudaSuccess
                                                                        : cudaErrorInvalidValue);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    pthread_mutex_lock(&lock);
    cudaStream_t s = weft_emulate_num_devices() ? find(stream) : NULL;
    cudaError_t error = s && exec ? order_with_default(s) : cudaErrorInvalidValue;
    if (!error)
        error = append_copies(s, ((cudaGraph_t)exec)->first);
    pthread_mutex_unlock(&lock);
    return weft_emulate_error(error);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    return cudaGraphDestroy((cudaGraph_t)exec);
}

/* --- events -------------------------------------------------------------------------------- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    (void)flags;
    if (!weft_emulate_num_devices())
        return weft_emulate_error(cudaErrorNoDevice);
    cudaEvent_t event = calloc(1, sizeof *event);
    if (!event)
        return weft_emulate_error(cudaErrorMemoryAllocation);
    *out = event;
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    weft_emulate_enter();
    if (!event)
        return weft_emulate_error(cudaErrorInvalidResourceHandle);
    free(event);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    weft_emulate_enter();
    pthread_mutex_lock(&lock);
    cudaStream_t s = weft_emulate_num_devices() ? find(stream) : NULL;
    cudaError_t error = s && event ? refuse_captured(s) : cudaErrorInvalidResourceHandle;
    if (!error)
        error = order_with_default(s);
    if (!error) {
        event->stream = s;
        event->ticket = s->num_enqueued;
    }
    pthread_mutex_unlock(&lock);
    return weft_emulate_error(error);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    (void)flags;
    weft_emulate_enter();
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
    weft_emulate_enter();
    if (!event)
        return weft_emulate_error(cudaErrorInvalidResourceHandle);
    pthread_mutex_lock(&lock);
    if (event->stream)
        await(event->stream, event->ticket);
    pthread_mutex_unlock(&lock);
    return weft_emulate_error(weft_emulate_broken());
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    weft_emulate_enter();
    if (!event)
        return weft_emulate_error(cudaErrorInvalidResourceHandle);
    pthread_mutex_lock(&lock);
    const bool reached = !event->stream || event->stream->num_done >= event->ticket;
    pthread_mutex_unlock(&lock);
    return reached ? cudaSuccess : cudaErrorNotReady;
}
