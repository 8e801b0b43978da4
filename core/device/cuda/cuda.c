/* The CUDA device: finding and opening it; its slots: lanes, events, copies, graphs, and CUDA's
 * errors as statuses. */
#include <cuda.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/device/cuda/cuda.h"
#include "core/device/device.h"
#include "core/device/ops.h"
#include "core/device/worker.h"
#include "core/trace/trace.h"

/* cuStreamWaitValue64, cuStreamWriteValue64 */
typedef CUresult (*cuda_stream_value)(CUstream, CUdeviceptr, cuuint64_t, unsigned flags);

typedef struct cuda_device {
    weft_device base;
    int index, num_multiprocessors;
    cudaMemPool_t pool;
    cudaStream_t pool_stream; /* orders the pool's allocations and frees */
    cuda_stream_value wait_value, write_value;
    atomic_int lost; /* the cudaError_t of a failed wait for a stream: no stream goes on after it */
} cuda_device;

/* In pinned memory, a cache line each. The GPU writes `reached` and reads `passed`. */
typedef struct cuda_counters {
    _Alignas(WEFT_CACHE_LINE) atomic_uint_least64_t reached; /* slots that the stream has come to */
    _Alignas(WEFT_CACHE_LINE) atomic_uint_least64_t passed;  /* slots that the worker has done */
} cuda_counters;

enum { NUM_PINNED_SIZES = 48 };

typedef struct cuda_lane {
    weft_lane base;
    weft_timeline *line; /* its points are the worker's slots; kernels make none */
    cudaStream_t stream;
    cuda_counters *counters;
    CUdeviceptr reached_address, passed_address;
    weft_worker *worker; /* NULL until something needs it */
    void *workspace;
    void *pinned[NUM_PINNED_SIZES]; /* by powers of two */
    int pinned_size;                /* the largest one so far: the one in use */
    bool capturing;                 /* a graph keeps the lane's work */
} cuda_lane;

typedef struct cuda_event {
    weft_event base;
    cudaEvent_t event;
    weft_mark mark;
} cuda_event;

weft_status weft_cuda_status(const char *file, int line, const char *function, const char *call,
                             cudaError_t error)
{
    if (error == cudaSuccess)
        return WEFT_OK;
    (void)cudaGetLastError();             /* reported here, so it is not the next call's */
    int length = (int)strcspn(call, "("); /* without the arguments, unless it begins with one */
    return weft_error_set(file, line, function, WEFT_DEVICE, "%.*s: %s (%s)",
                          length ? length : (int)strlen(call), call, cudaGetErrorString(error),
                          cudaGetErrorName(error));
}

/* Makes the device current on the calling thread. */
static void cuda_enter(const cuda_device *device)
{
    static _Thread_local int current = -1;
    if (current == device->index)
        return;
    if (cudaSetDevice(device->index) == cudaSuccess) /* else the next call says what is wrong */
        current = device->index;
}

/* Graphs of a CUDA lane's work. */

typedef struct cuda_graph {
    weft_graph base;
    cudaGraphExec_t exec;
} cuda_graph;

/* WEFT_INTERNAL while a graph keeps the lane's work, since a graph cannot repeat `what`. */
static weft_status cuda_graph_refuses(const cuda_lane *lane, const char *what)
{
    if (!lane->capturing)
        return WEFT_OK;
    return WEFT_ERROR(WEFT_INTERNAL, "lane %s: %s while a graph takes its work", lane->base.name,
                      what);
}

/* Other threads go on as they do: a lane's worker may allocate pinned memory meanwhile. */
static weft_status cuda_graph_begin(weft_lane *base)
{
    cuda_lane *lane = (cuda_lane *)base;
    WEFT_TRY(weft_timeline_status(lane->line));
    WEFT_TRY(cuda_graph_refuses(lane, "another graph"));
    cuda_enter((cuda_device *)base->device);
    WEFT_TRY(WEFT_CUDA(cudaStreamBeginCapture(lane->stream, cudaStreamCaptureModeThreadLocal)));
    lane->capturing = true;
    return WEFT_OK;
}

static void cuda_graph_destroy(weft_graph *base)
{
    cuda_graph *graph = (cuda_graph *)base;
    cuda_enter((cuda_device *)base->device);
    if (graph->exec)
        (void)cudaGraphExecDestroy(graph->exec);
    free(graph);
}

/* Brought to the device now, so that the first replay is as quick as others. */
static weft_status instantiate(cuda_lane *lane, cudaGraph_t graph, weft_graph **out)
{
    cuda_graph *made = calloc(1, sizeof *made);
    if (!made)
        return WEFT_ERROR(WEFT_MEMORY, "out of host memory: graph");
    made->base.device = lane->base.device;
    weft_status status = WEFT_CUDA(cudaGraphInstantiate(&made->exec, graph, 0));
    if (status == WEFT_OK)
        status = WEFT_CUDA(cudaGraphUpload(made->exec, lane->stream));
    if (status != WEFT_OK) {
        cuda_graph_destroy(&made->base);
        return status;
    }
    *out = &made->base;
    return WEFT_OK;
}

static weft_status cuda_graph_end(weft_lane *base, weft_graph **out)
{
    cuda_lane *lane = (cuda_lane *)base;
    cudaGraph_t graph = NULL;
    cuda_enter((cuda_device *)base->device);
    weft_status status = WEFT_CUDA(cudaStreamEndCapture(lane->stream, &graph));
    lane->capturing = false;
    if (status == WEFT_OK && out)
        status = instantiate(lane, graph, out);
    if (graph)
        (void)cudaGraphDestroy(graph);
    return status == WEFT_OK ? WEFT_OK : weft_error_context(status, "lane %s: graph", base->name);
}

static weft_status cuda_graph_replay(weft_graph *base, weft_lane *base_lane)
{
    cuda_lane *lane = (cuda_lane *)base_lane;
    WEFT_TRY(weft_timeline_status(lane->line));
    WEFT_TRY(cuda_graph_refuses(lane, "another graph"));
    cuda_enter((cuda_device *)base->device);
    weft_status status = WEFT_CUDA(cudaGraphLaunch(((cuda_graph *)base)->exec, lane->stream));
    return status == WEFT_OK ? WEFT_OK
                             : weft_error_context(status, "lane %s: graph", base_lane->name);
}

/* The CUDA device: memory, lanes and events. */

enum { SPIN_US = 20, POLL_NS = 20000 };

/* --- memory -------------------------------------------------------------------------------- */

/* Ready for every lane at return, hence the wait for the pool's own stream, where nothing but
 * allocations stand. */
static void *alloc_device(cuda_device *device, size_t bytes)
{
    void *memory = NULL;
    cudaError_t error =
        cudaMallocFromPoolAsync(&memory, bytes ? bytes : 1, device->pool, device->pool_stream);
    if (error == cudaSuccess)
        error = cudaStreamSynchronize(device->pool_stream);
    return error == cudaSuccess ? memory : NULL;
}

static void *cuda_alloc(weft_device *base, weft_space space, size_t bytes)
{
    cuda_device *device = (cuda_device *)base;
    void *memory = NULL;
    if (bytes > SIZE_MAX / 2)
        return NULL;
    cuda_enter(device);
    if (space == WEFT_SPACE_DEVICE)
        memory = alloc_device(device, bytes);
    else if (cudaHostAlloc(&memory, bytes ? bytes : 1,
                           cudaHostAllocPortable | cudaHostAllocMapped) != cudaSuccess)
        memory = NULL;
    if (!memory)
        (void)cudaGetLastError(); /* or the next launch would be blamed for it */
    return memory;
}

static void cuda_free(weft_device *base, weft_space space, void *memory, size_t bytes)
{
    cuda_device *device = (cuda_device *)base;
    (void)bytes;
    cuda_enter(device);
    if (space == WEFT_SPACE_DEVICE)
        (void)cudaFreeAsync(memory, device->pool_stream);
    else
        (void)cudaFreeHost(memory);
}

static bool cuda_pin(weft_device *base, void *memory, size_t bytes)
{
    cuda_enter((cuda_device *)base);
    if (cudaHostRegister(memory, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped) ==
        cudaSuccess)
        return true;
    (void)cudaGetLastError();
    return false;
}

static void cuda_unpin(weft_device *base, void *memory)
{
    cuda_enter((cuda_device *)base);
    (void)cudaHostUnregister(memory);
}

bool weft_cuda_is_device_memory(const void *memory)
{
    struct cudaPointerAttributes attributes;
    if (cudaPointerGetAttributes(&attributes, memory) != cudaSuccess) {
        (void)cudaGetLastError();
        return false;
    }
    return attributes.type == cudaMemoryTypeDevice;
}

weft_status weft_cuda_workspace(weft_lane *base, size_t bytes, void **out)
{
    cuda_lane *lane = (cuda_lane *)base;
    if (bytes > WEFT_CUDA_WORKSPACE_BYTES)
        return WEFT_ERROR(WEFT_INTERNAL, "lane %s: a kernel asks %zu bytes of the workspace's %d",
                          base->name, bytes, (int)WEFT_CUDA_WORKSPACE_BYTES);
    if (!lane->workspace)
        WEFT_TRY(weft_device_alloc_for(base->device, WEFT_SPACE_DEVICE, WEFT_MEMORY_SCRATCH,
                                       WEFT_CUDA_WORKSPACE_BYTES, "CUDA workspace",
                                       &lane->workspace));
    *out = lane->workspace;
    return WEFT_OK;
}

static size_t pinned_bytes(int size)
{
    return (size_t)4096 << size;
}

/* Smaller ones stay: work may be under way there, and freeing pinned memory waits for the whole
 * device, hence for functions on other lanes, which may wait for a peer that waits as well. */
weft_status weft_cuda_pinned_workspace(weft_lane *base, size_t bytes, void **out)
{
    cuda_lane *lane = (cuda_lane *)base;
    int size = lane->pinned_size;
    while (size < NUM_PINNED_SIZES - 1 && pinned_bytes(size) < bytes)
        size++;
    if (!lane->pinned[size])
        WEFT_TRY(weft_device_alloc_for(base->device, WEFT_SPACE_PINNED, WEFT_MEMORY_STAGING,
                                       pinned_bytes(size), "CUDA pinned workspace",
                                       &lane->pinned[size]));
    lane->pinned_size = size;
    *out = lane->pinned[size];
    return WEFT_OK;
}

/* --- lanes --------------------------------------------------------------------------------- */

cudaStream_t weft_cuda_stream(weft_lane *lane)
{
    cuda_enter((cuda_device *)lane->device);
    return ((cuda_lane *)lane)->stream;
}

/* What waiting for a stream ended in. Where that is an error, the workers must not wait on. */
static cudaError_t noticed(weft_device *device, cudaError_t error)
{
    if (error != cudaSuccess)
        atomic_store(&((cuda_device *)device)->lost, (int)error);
    return error;
}

/* CUDA's numbers fall as priority rises. */
static int stream_priority(int priority)
{
    int least = 0, greatest = 0;
    if (cudaDeviceGetStreamPriorityRange(&least, &greatest) != cudaSuccess)
        return 0;
    return priority < least - greatest ? greatest + priority : least;
}

static void cuda_lane_destroy(weft_lane *base)
{
    cuda_lane *lane = (cuda_lane *)base;
    cuda_enter((cuda_device *)base->device);
    if (lane->stream && noticed(base->device, cudaStreamSynchronize(lane->stream)) != cudaSuccess)
        (void)cudaGetLastError();
    weft_worker_destroy(lane->worker);
    if (lane->counters)
        (void)cudaFreeHost(lane->counters);
    weft_device_free(base->device, WEFT_SPACE_DEVICE, lane->workspace, WEFT_CUDA_WORKSPACE_BYTES);
    for (int size = 0; size < NUM_PINNED_SIZES; size++)
        weft_device_free(base->device, WEFT_SPACE_PINNED, lane->pinned[size], pinned_bytes(size));
    if (lane->stream)
        (void)cudaStreamDestroy(lane->stream);
    weft_timeline_release(lane->line);
    free(lane);
}

/* Now, and not with the worker: other lanes may stand still then, and pinning may wait for them. */
static weft_status create_counters(cuda_lane *lane)
{
    void *counters, *address;
    WEFT_TRY(WEFT_CUDA(cudaHostAlloc(&counters, sizeof *lane->counters,
                                     cudaHostAllocPortable | cudaHostAllocMapped)));
    lane->counters = counters;
    atomic_init(&lane->counters->reached, 0);
    atomic_init(&lane->counters->passed, 0);
    WEFT_TRY(WEFT_CUDA(cudaHostGetDevicePointer(&address, counters, 0)));
    lane->reached_address = (CUdeviceptr)(uintptr_t)address + offsetof(cuda_counters, reached);
    lane->passed_address = (CUdeviceptr)(uintptr_t)address + offsetof(cuda_counters, passed);
    return WEFT_OK;
}

static weft_status lane_init(cuda_lane *lane, int priority)
{
    lane->line = weft_timeline_create();
    if (!lane->line)
        return WEFT_ERROR(WEFT_MEMORY, "out of host memory: lane %s", lane->base.name);
    cuda_enter((cuda_device *)lane->base.device);
    WEFT_TRY(WEFT_CUDA(cudaStreamCreateWithPriority(&lane->stream, cudaStreamNonBlocking,
                                                    stream_priority(priority))));
    return create_counters(lane);
}

static weft_status cuda_lane_create(weft_device *device, int priority, const char *name,
                                    weft_lane **out)
{
    cuda_lane *lane = calloc(1, sizeof *lane);
    if (!lane)
        return WEFT_ERROR(WEFT_MEMORY, "out of host memory: lane %s", name);
    lane->base = (weft_lane){.device = device, .name = name};
    weft_status status = lane_init(lane, priority);
    if (status != WEFT_OK) {
        cuda_lane_destroy(&lane->base);
        return status;
    }
    *out = &lane->base;
    return WEFT_OK;
}

/* What enqueuing ended in. Where that failed, the lane's own error comes first. */
static weft_status enqueued(const cuda_lane *lane, weft_status status)
{
    if (status == WEFT_OK)
        return WEFT_OK;
    WEFT_TRY(weft_timeline_status(lane->line));
    return weft_error_context(status, "lane %s", lane->base.name);
}

/* The lane's own error, else what CUDA says. */
static weft_status lane_status(const cuda_lane *lane, weft_status status)
{
    WEFT_TRY(weft_timeline_status(lane->line));
    return enqueued(lane, status);
}

/* --- functions submitted to a lane --------------------------------------------------------- */

static bool has_come(const cuda_lane *lane, uint64_t n)
{
    return atomic_load_explicit(&lane->counters->reached, memory_order_acquire) > n;
}

/* By looking at memory, and without any call to CUDA: while some thread loads a kernel, the driver
 * keeps the others out until all streams are idle, also the one that stands here. */
static weft_status wait_for_stream(weft_lane *base, uint64_t n)
{
    const cuda_lane *lane = (const cuda_lane *)base;
    const cuda_device *device = (const cuda_device *)base->device;
    const double soon_us = weft_now_us() + SPIN_US;
    while (!has_come(lane, n)) {
        const cudaError_t error = (cudaError_t)atomic_load(&device->lost);
        if (error != cudaSuccess && !has_come(lane, n))
            return weft_cuda_status(__FILE__, __LINE__, __func__, "before its turn", error);
        if (weft_now_us() < soon_us)
            sched_yield();
        else
            nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
    }
    return WEFT_OK;
}

static void let_stream_pass(weft_lane *base, uint64_t n)
{
    cuda_lane *lane = (cuda_lane *)base;
    atomic_store_explicit(&lane->counters->passed, n + 1, memory_order_release);
}

static weft_status start_worker(cuda_lane *lane)
{
    if (lane->worker)
        return WEFT_OK;
    return weft_worker_create(&lane->base, lane->line, 0,
                              (weft_worker_hooks){wait_for_stream, let_stream_pass}, &lane->worker);
}

/* Until a slot is free, or CUDA has an error: then none may ever be. */
static weft_status wait_for_room(cuda_lane *lane)
{
    while (weft_worker_is_full(lane->worker)) {
        const cudaError_t error = cudaStreamQuery(lane->stream);
        if (error != cudaErrorNotReady)
            WEFT_TRY(WEFT_CUDA(noticed(lane->base.device, error)));
        nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
    }
    return WEFT_OK;
}

static weft_status value_status(const char *call, CUresult result)
{
    /* The driver's results have the runtime's numbers. */
    return weft_cuda_status(__FILE__, __LINE__, __func__, call, (cudaError_t)result);
}

/* The stream announces that it has come here, and waits until the function is done. */
static weft_status enqueue(cuda_lane *lane, const char *label, weft_lane_function function,
                           const void *args, size_t num_bytes)
{
    const cuda_device *device = (const cuda_device *)lane->base.device;
    WEFT_TRY(start_worker(lane));
    WEFT_TRY(wait_for_room(lane));
    const uint64_t n = weft_worker_pushed(lane->worker);
    WEFT_TRY(value_status("cuStreamWriteValue64",
                          device->write_value(lane->stream, lane->reached_address, n + 1,
                                              CU_STREAM_WRITE_VALUE_DEFAULT)));
    weft_worker_push(lane->worker, label, function, args, num_bytes);
    return value_status(
        "cuStreamWaitValue64",
        device->wait_value(lane->stream, lane->passed_address, n + 1, CU_STREAM_WAIT_VALUE_GEQ));
}

static weft_status cuda_submit(weft_lane *base, const char *label, weft_lane_function function,
                               const void *args, size_t num_bytes)
{
    cuda_lane *lane = (cuda_lane *)base;
    WEFT_TRY(weft_timeline_status(lane->line));
    WEFT_TRY(cuda_graph_refuses(lane, label));
    cuda_enter((cuda_device *)base->device);
    return enqueued(lane, enqueue(lane, label, function, args, num_bytes));
}

/* --- events -------------------------------------------------------------------------------- */

static weft_status cuda_event_create(weft_device *device, weft_event **out)
{
    cuda_event *event = calloc(1, sizeof *event);
    if (!event)
        return WEFT_ERROR(WEFT_MEMORY, "out of host memory: event");
    event->base.device = device;
    cuda_enter((cuda_device *)device);
    weft_status status = WEFT_CUDA(
        cudaEventCreateWithFlags(&event->event, cudaEventDisableTiming | cudaEventBlockingSync));
    if (status != WEFT_OK) {
        free(event);
        return status;
    }
    *out = &event->base;
    return WEFT_OK;
}

static void cuda_event_destroy(weft_event *base)
{
    cuda_event *event = (cuda_event *)base;
    cuda_enter((cuda_device *)base->device);
    (void)cudaEventDestroy(event->event);
    weft_timeline_release(event->mark.line);
    free(event);
}

static weft_status cuda_record(weft_lane *base, weft_event *base_event)
{
    cuda_lane *lane = (cuda_lane *)base;
    cuda_event *event = (cuda_event *)base_event;
    WEFT_TRY(cuda_graph_refuses(lane, "an event"));
    weft_mark_record(&event->mark, lane->line, lane->worker);
    cuda_enter((cuda_device *)base->device);
    return lane_status(lane, WEFT_CUDA(cudaEventRecord(event->event, lane->stream)));
}

/* The stream waits for the work, and the worker, where the other lane has functions that may still
 * fail, for their error. */
static weft_status cuda_wait(weft_lane *base, const weft_event *base_event)
{
    cuda_lane *lane = (cuda_lane *)base;
    const cuda_event *event = (const cuda_event *)base_event;
    WEFT_TRY(weft_timeline_status(lane->line));
    WEFT_TRY(cuda_graph_refuses(lane, "a wait"));
    if (!event->mark.line || event->mark.line == lane->line)
        return WEFT_OK;
    cuda_enter((cuda_device *)base->device);
    weft_status status = WEFT_OK;
    if (!weft_timeline_passed(event->mark.line, event->mark.point)) {
        status = start_worker(lane);
        if (status == WEFT_OK)
            status = wait_for_room(lane);
        if (status == WEFT_OK)
            weft_worker_push_wait(lane->worker, event->mark.line, event->mark.point);
    }
    if (status == WEFT_OK)
        status = WEFT_CUDA(cudaStreamWaitEvent(lane->stream, event->event, 0));
    return enqueued(lane, status);
}

static weft_status cuda_wait_host(const weft_event *base)
{
    const cuda_event *event = (const cuda_event *)base;
    if (!event->mark.line)
        return WEFT_OK;
    cuda_enter((cuda_device *)base->device);
    weft_status status = WEFT_CUDA(noticed(base->device, cudaEventSynchronize(event->event)));
    weft_counter_wait(&event->mark.line->done, event->mark.point);
    WEFT_TRY(weft_timeline_status(event->mark.line));
    return status;
}

static weft_status cuda_sync(weft_lane *base)
{
    cuda_lane *lane = (cuda_lane *)base;
    WEFT_TRY(cuda_graph_refuses(lane, "a sync"));
    cuda_enter((cuda_device *)base->device);
    weft_status status = WEFT_CUDA(noticed(base->device, cudaStreamSynchronize(lane->stream)));
    weft_counter_wait(&lane->line->done, weft_worker_pushed(lane->worker));
    return lane_status(lane, status);
}

/* --- copies -------------------------------------------------------------------------------- */

/* CUDA would hold the caller up with a copy from host to host. */
static weft_status cuda_copy(weft_lane *base, void *to, const void *from, size_t bytes)
{
    cuda_lane *lane = (cuda_lane *)base;
    WEFT_TRY(weft_timeline_status(lane->line));
    cuda_enter((cuda_device *)base->device);
    if (!weft_cuda_is_device_memory(to) && !weft_cuda_is_device_memory(from)) {
        weft_copy_args args = {.to = to, .from = from, .bytes = bytes};
        return cuda_submit(base, "copy", weft_run_copy, &args, sizeof args);
    }
    return enqueued(lane,
                    WEFT_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, lane->stream)));
}

static weft_status cuda_zero(weft_lane *base, void *to, size_t bytes)
{
    cuda_lane *lane = (cuda_lane *)base;
    WEFT_TRY(weft_timeline_status(lane->line));
    cuda_enter((cuda_device *)base->device);
    return enqueued(lane, WEFT_CUDA(cudaMemsetAsync(to, 0, bytes, lane->stream)));
}

static void cuda_device_destroy(weft_device *base)
{
    cuda_device *device = (cuda_device *)base;
    cuda_enter(device);
    if (device->pool_stream) {
        (void)cudaStreamSynchronize(device->pool_stream);
        (void)cudaStreamDestroy(device->pool_stream);
    }
    if (device->pool)
        (void)cudaMemPoolDestroy(device->pool);
    free(device);
}

static const weft_device_ops cuda_device_ops = {
    .name = "cuda",
    .alloc = cuda_alloc,
    .free = cuda_free,
    .pin = cuda_pin,
    .unpin = cuda_unpin,
    .lane_create = cuda_lane_create,
    .lane_destroy = cuda_lane_destroy,
    .event_create = cuda_event_create,
    .event_destroy = cuda_event_destroy,
    .record = cuda_record,
    .wait = cuda_wait,
    .wait_host = cuda_wait_host,
    .sync = cuda_sync,
    .copy = cuda_copy,
    .zero = cuda_zero,
    .submit = cuda_submit,
    .destroy = cuda_device_destroy,
    .graph_begin = cuda_graph_begin,
    .graph_end = cuda_graph_end,
    .graph_replay = cuda_graph_replay,
    .graph_destroy = cuda_graph_destroy,
};

bool weft_lane_is_cuda(const weft_lane *lane)
{
    return lane->device->ops == &cuda_device_ops;
}

/* --- finding devices and opening them -------------------------------------------------------- */

/* For streams in which a function stands, and which must not hold up what has nothing to do with
 * it. Read by the driver when it starts, hence before anything else asks CUDA. */
static void prepare_driver(void)
{
    /* Queues of their own: streams that share one of the driver's wait for each other. */
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    /* By default a kernel is loaded at its first launch, which waits for all streams, also for one
     * that waits for a rank which cannot go on before that launch. */
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
}

static const char *why_none(cudaError_t error)
{
    int driver = 0;
    if (error == cudaErrorNoDevice)
        return "the machine has no NVIDIA GPU, or CUDA_VISIBLE_DEVICES hides it";
    if (error != cudaErrorInsufficientDriver)
        return cudaGetErrorString(error);
    if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0)
        return "the machine has no NVIDIA driver (libcuda.so.1)";
    return "the machine's NVIDIA driver is older than the CUDA that Weft was built with";
}

int weft_device_num_cuda(const char **out_why)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    int count = 0;
    pthread_once(&once, prepare_driver);
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaSuccess && count > 0)
        return count;
    (void)cudaGetLastError();
    if (out_why)
        *out_why = why_none(error == cudaSuccess ? cudaErrorNoDevice : error);
    return 0;
}

int weft_cuda_index(const weft_device *device)
{
    return ((const cuda_device *)device)->index;
}

bool weft_device_gpu_bus(const weft_device *device, char out[WEFT_GPU_BUS_BYTES])
{
    if (strcmp(weft_device_name(device), "cuda") != 0)
        return false;
    if (cudaDeviceGetPCIBusId(out, WEFT_GPU_BUS_BYTES, weft_cuda_index(device)) == cudaSuccess)
        return true;
    (void)cudaGetLastError();
    return false;
}

int weft_cuda_num_multiprocessors(const weft_device *device)
{
    return ((const cuda_device *)device)->num_multiprocessors;
}

static weft_status check_capability(int index)
{
    int major = 0, minor = 0, pools = 0;
    WEFT_TRY(WEFT_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index)));
    WEFT_TRY(WEFT_CUDA(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index)));
    WEFT_TRY(WEFT_CUDA(cudaDeviceGetAttribute(&pools, cudaDevAttrMemoryPoolsSupported, index)));
    if (major < 8)
        return WEFT_ERROR(WEFT_DEVICE, "compute capability %d.%d, but Weft needs 8.0 or later",
                          major, minor);
    if (!pools)
        return WEFT_ERROR(WEFT_DEVICE, "no memory pools (cudaDevAttrMemoryPoolsSupported)");
    return WEFT_OK;
}

/* Freed memory stays with the pool: a training step asks for the same again. */
static weft_status create_pool(cuda_device *device)
{
    uint64_t keep = UINT64_MAX;
    struct cudaMemPoolProps props;
    memset(&props, 0, sizeof props);
    props.allocType = cudaMemAllocationTypePinned;
    props.location.type = cudaMemLocationTypeDevice;
    props.location.id = device->index;
    WEFT_TRY(WEFT_CUDA(cudaMemPoolCreate(&device->pool, &props)));
    WEFT_TRY(
        WEFT_CUDA(cudaMemPoolSetAttribute(device->pool, cudaMemPoolAttrReleaseThreshold, &keep)));
    return WEFT_CUDA(cudaStreamCreateWithFlags(&device->pool_stream, cudaStreamNonBlocking));
}

static weft_status find_function(const char *name, cuda_stream_value *out)
{
    void *symbol = NULL;
    enum cudaDriverEntryPointQueryResult found;
    WEFT_TRY(WEFT_CUDA(
        cudaGetDriverEntryPointByVersion(name, &symbol, 12000, cudaEnableDefault, &found)));
    if (found != cudaDriverEntryPointSuccess || !symbol)
        return WEFT_ERROR(WEFT_DEVICE, "the NVIDIA driver lacks %s", name);
    memcpy(out, &symbol, sizeof symbol);
    return WEFT_OK;
}

static weft_status device_init(cuda_device *device)
{
    int index = device->index;
    WEFT_TRY(check_capability(index));
    WEFT_TRY(WEFT_CUDA(cudaSetDevice(index)));
    cuda_enter(device);
    WEFT_TRY(WEFT_CUDA(cudaDeviceGetAttribute(&device->num_multiprocessors,
                                              cudaDevAttrMultiProcessorCount, index)));
    WEFT_TRY(create_pool(device));
    WEFT_TRY(find_function("cuStreamWaitValue64", &device->wait_value));
    return find_function("cuStreamWriteValue64", &device->write_value);
}

weft_status weft_device_create_cuda(int index, size_t budget_bytes, weft_device **out)
{
    const char *why = "";
    int count = weft_device_num_cuda(&why);
    if (count == 0)
        return WEFT_ERROR(WEFT_DEVICE, "no CUDA device: %s", why);
    if (index < 0 || index >= count)
        return WEFT_ERROR(WEFT_CONFIG, "no CUDA device %d: the machine has %d, counted from 0",
                          index, count);
    cuda_device *device = calloc(1, sizeof *device);
    if (!device)
        return WEFT_ERROR(WEFT_MEMORY, "out of host memory: cuda device");
    device->base.ops = &cuda_device_ops;
    device->base.num_threads = 1;
    device->base.budget_bytes = budget_bytes;
    device->index = index;
    weft_status status = device_init(device);
    if (status != WEFT_OK) {
        weft_error_context(status, "CUDA device %d", index);
        cuda_device_destroy(&device->base);
        return status;
    }
    *out = &device->base;
    return WEFT_OK;
}
