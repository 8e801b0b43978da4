/* What the emulation of CUDA promises: threads that do things together, launches that CUDA refuses,
 * streams, events, and mistakes that end the process with a line that names them. */
#include "kernels/cuda/cuda.cuh"

#include <cuda.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/expect.h"

static cudaStream_t stream;

static void must(cudaError_t error, int line)
{
    if (error == cudaSuccess)
        return;
    fprintf(stderr, "line %d: %s\n", line, cudaGetErrorName(error));
    exit(1);
}
#define MUST(call) must((call), __LINE__)

/* Pinned memory, which kernels and the host share. */
template <typename T> static T *pinned(size_t count)
{
    void *memory = NULL;
    MUST(cudaHostAlloc(&memory, count * sizeof(T), cudaHostAllocDefault));
    return static_cast<T *>(memory);
}

static void pause_ms(int ms)
{
    const struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&t, NULL);
}

static bool is_backward(void)
{
    const char *order = getenv("WEFT_EMULATE_ORDER");
    return order && !strcmp(order, "backward");
}

/* Each thread passes its number to the next ten times, round the block. */
template <int size> static __global__ void __launch_bounds__(size) pass_round(int *out)
{
    __shared__ int passed[size];
    WEFT_DYNAMIC_SHARED(int, again);
    const int self = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    int held = self;
    for (int i = 0; i < 10; i++) {
        int *slots = i % 2 ? again : passed;
        slots[(self + 1) % size] = held;
        __syncthreads();
        held = slots[self];
    }
    const int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    out[block * size + self] = held;
}

static void threads_meet_at_barriers()
{
    constexpr int size = 96, num_blocks = 2 * 3 * 2;
    int *out = pinned<int>(size * num_blocks);
    EXPECT_OK(WEFT_LAUNCH(pass_round<size>, dim3(2, 3, 2), dim3(8, 4, 3), size * sizeof(int),
                          stream, out));
    MUST(cudaStreamSynchronize(stream));
    for (int i = 0; i < size * num_blocks; i++)
        EXPECT(out[i] == (i + size - 10) % size, "thread %d of block %d holds %d", i % size,
               i / size, out[i]);
    MUST(cudaFreeHost(out));
}

static __global__ void vote_in_warps(unsigned *out)
{
    const unsigned lane = threadIdx.x;
    unsigned odd = 0;
    if (lane % 2)
        odd = __ballot_sync(0xaaaaaaaau, lane > 16);
    __syncwarp();
    const unsigned whole = __ballot_sync(WHOLE_WARP, lane < 5);
    const int any = __any_sync(WHOLE_WARP, lane == 3);
    if (lane == 7) {
        out[0] = odd;
        out[1] = whole;
        out[2] = any && !__any_sync(1u << 7, 0);
    }
}

static void votes_are_counted()
{
    unsigned *bits = pinned<unsigned>(3);
    EXPECT_OK(WEFT_LAUNCH(vote_in_warps, 1, 32, 0, stream, bits));
    MUST(cudaStreamSynchronize(stream));
    EXPECT(bits[0] == 0xaaaa0000u && bits[1] == 0x1f && bits[2], "%08x %08x %u", bits[0], bits[1],
           bits[2]);
    MUST(cudaFreeHost(bits));
}

/* All ways of shuffling, in groups of `width`. */
template <typename T> static __global__ void shuffle(T *out, int width)
{
    const unsigned lane = threadIdx.x % WARP;
    const T mine = static_cast<T>(static_cast<float>(lane) + 0.5f);
    T *row = out + 4 * threadIdx.x;
    row[0] = __shfl_sync(WHOLE_WARP, mine, 3, width);
    row[1] = __shfl_xor_sync(WHOLE_WARP, mine, 5, width);
    row[2] = __shfl_up_sync(WHOLE_WARP, mine, 2, width);
    row[3] = __shfl_down_sync(WHOLE_WARP, mine, 6, width);
}

template <typename T> static void shuffles_of(int width)
{
    T *out = pinned<T>(64 * 4);
    EXPECT_OK(WEFT_LAUNCH(shuffle<T>, 1, 64, 0, stream, out, width));
    MUST(cudaStreamSynchronize(stream));
    for (int i = 0; i < 64; i++) {
        const int lane = i % 32, first = lane / width * width, l = lane - first;
        const int from[4] = {first + 3 % width, (lane ^ 5) < first + width ? lane ^ 5 : lane,
                             l < 2 ? lane : lane - 2, l + 6 < width ? lane + 6 : lane};
        for (int k = 0; k < 4; k++) {
            const T wanted = static_cast<T>(static_cast<float>(from[k]) + 0.5f);
            EXPECT(!memcmp(&out[4 * i + k], &wanted, sizeof wanted),
                   "thread %d, shuffle %d of width %d, %zu bytes", i, k, width, sizeof(T));
        }
    }
    MUST(cudaFreeHost(out));
}

static void shuffles_move_values()
{
    for (int width = 4; width <= 32; width *= 2) {
        shuffles_of<int>(width);
        shuffles_of<float>(width);
        shuffles_of<double>(width);
        shuffles_of<unsigned long long>(width);
        shuffles_of<__half>(width);
        shuffles_of<__nv_bfloat16>(width);
    }
}

static __global__ void reduce(float *out)
{
    __shared__ float space[32];
    const float x = static_cast<float>(threadIdx.x);
    const float sum = block_sum(x, space), largest = block_max(x - 500.0f, space);
    out[2 * threadIdx.x] = sum;
    out[2 * threadIdx.x + 1] = largest;
}

static void blocks_reduce()
{
    float *out = pinned<float>(2 * 1024);
    for (int size : {32, 96, 1024}) {
        EXPECT_OK(WEFT_LAUNCH(reduce, 1, size, 0, stream, out));
        MUST(cudaStreamSynchronize(stream));
        for (int i = 0; i < size; i++)
            EXPECT(out[2 * i] == size * (size - 1) / 2 && out[2 * i + 1] == size - 501,
                   "thread %d of %d: sum %g, largest %g", i, size, out[2 * i], out[2 * i + 1]);
    }
    MUST(cudaFreeHost(out));
}

struct totals {
    int count, smallest;
    unsigned long long many;
    float sum;
    double wide;
};

static __global__ void collect(totals *t)
{
    const int self = threadIdx.x + blockIdx.x * blockDim.x;
    atomicAdd(&t->count, 1);
    atomicMin(&t->smallest, self);
    atomicAdd(&t->many, 1ull << 40);
    atomicAdd(&t->sum, 0.5f);
    atomicAdd(&t->wide, 0.25);
}

static void atomics_add_up()
{
    totals *t = pinned<totals>(1);
    *t = totals{};
    t->smallest = 1000;
    EXPECT_OK(WEFT_LAUNCH(collect, 4, 64, 0, stream, t));
    MUST(cudaStreamSynchronize(stream));
    EXPECT(t->count == 256 && t->smallest == 0 && t->many == 256ull << 40 && t->sum == 128.0f &&
               t->wide == 64.0,
           "count %d, from %d, sum %g", t->count, t->smallest, t->sum);
    MUST(cudaFreeHost(t));
}

template <typename T> static __global__ void read_fresh_shared(T *out)
{
    __shared__ T fixed[64];
    WEFT_DYNAMIC_SHARED(T, asked);
    out[2 * threadIdx.x] = fixed[threadIdx.x];
    out[2 * threadIdx.x + 1] = asked[threadIdx.x];
    __syncthreads();
    fixed[threadIdx.x] = asked[threadIdx.x] = 1;
}

static void shared_memory_starts_as_nan()
{
    float *out = pinned<float>(128);
    EXPECT_OK(WEFT_LAUNCH(read_fresh_shared<float>, 2, 64, 256, stream, out));
    MUST(cudaStreamSynchronize(stream));
    for (int i = 0; i < 128; i++)
        EXPECT(out[i] != out[i], "%s shared memory of thread %d holds %g",
               i % 2 ? "dynamic" : "static", i / 2, out[i]);
    MUST(cudaFreeHost(out));
}

/* Who writes last, where nobody waits for anybody. */
static __global__ void race(int *out)
{
    *out = threadIdx.x + blockIdx.x * blockDim.x;
}

static void races_show_by_order()
{
    int *out = pinned<int>(1);
    EXPECT_OK(WEFT_LAUNCH(race, 3, 64, 0, stream, out));
    MUST(cudaStreamSynchronize(stream));
    EXPECT(*out == (is_backward() ? 0 : 191), "%d wrote last", *out);
    MUST(cudaFreeHost(out));
}

static __global__ void copy_late(const int *in, int *out)
{
    __shared__ __align__(16) int there[8];
    if (threadIdx.x == 0)
        for (int i = 0; i < 8; i++)
            there[i] = -1;
    __syncthreads();
    if (threadIdx.x == 0) {
        weft_emulate_copy_async(there, in, 16, 16);
        weft_emulate_copy_commit();
        weft_emulate_copy_async(there + 4, in + 4, 16, 8);
        weft_emulate_copy_commit();
        out[0] = there[0];
        weft_emulate_copy_wait(1);
        out[1] = there[3];
        out[2] = there[4];
        weft_emulate_copy_wait(0);
        out[3] = there[5];
        out[4] = there[6];
    }
}

struct registers {
    float a[2];
};

/* A "matrix instruction": every lane gets the sum of all lanes' first registers. */
static __global__ void work_as_a_warp(float *out)
{
    for (int i = 0; i < 3; i++) {
        registers mine = {{static_cast<float>(threadIdx.x + i), -1.0f}};
        float sum = 0;
        emulate_warp(mine, [&](const registers *const *lanes) {
            for (int lane = 0; lane < 32; lane++)
                sum += lanes[lane]->a[0];
        });
        mine.a[0] = -1e9f;
        out[threadIdx.x * 3 + i] = sum;
    }
}

static void instructions_have_meanings()
{
    int *numbers = pinned<int>(13);
    for (int i = 0; i < 8; i++)
        numbers[i] = i;
    EXPECT_OK(WEFT_LAUNCH(copy_late, 1, 32, 0, stream, numbers, numbers + 8));
    MUST(cudaStreamSynchronize(stream));
    const int wanted[5] = {-1, 3, -1, 5, 0};
    EXPECT(!memcmp(numbers + 8, wanted, sizeof wanted), "%d %d %d %d %d", numbers[8], numbers[9],
           numbers[10], numbers[11], numbers[12]);
    MUST(cudaFreeHost(numbers));
    float *out = pinned<float>(64 * 3);
    EXPECT_OK(WEFT_LAUNCH(work_as_a_warp, 1, 64, 0, stream, out));
    MUST(cudaStreamSynchronize(stream));
    for (int i = 0; i < 64 * 3; i++)
        EXPECT(out[i] == 496 + 32 * (i / 96 * 32 + i % 3), "%d: %g", i, out[i]);
    MUST(cudaFreeHost(out));
}

static __global__ void nothing(int)
{
}
static __global__ void nothing_much(int)
{
}

static void bad_launches_are_refused()
{
    EXPECT_ERROR(WEFT_LAUNCH(nothing, 0, 32, 0, stream, 1), WEFT_DEVICE,
                 "cudaErrorInvalidConfiguration");
    EXPECT_ERROR(WEFT_LAUNCH(nothing, 1, 1025, 0, stream, 1), WEFT_DEVICE,
                 "cudaErrorInvalidConfiguration");
    EXPECT_ERROR(WEFT_LAUNCH(nothing, 1, dim3(2, 2, 65), 0, stream, 1), WEFT_DEVICE,
                 "cudaErrorInvalidConfiguration");
    EXPECT_ERROR(WEFT_LAUNCH(nothing, dim3(1, 65536), 32, 0, stream, 1), WEFT_DEVICE,
                 "cudaErrorInvalidConfiguration");
    EXPECT_ERROR(WEFT_LAUNCH(nothing, 1, 32, 48 * 1024 + 1, stream, 1), WEFT_DEVICE,
                 "cudaErrorInvalidValue");
    const cudaFuncAttribute shared = cudaFuncAttributeMaxDynamicSharedMemorySize;
    EXPECT(cudaFuncSetAttribute(nothing, shared, 227 * 1024 + 1) == cudaErrorInvalidValue,
           "more shared memory than there is");
    EXPECT(cudaGetLastError() == cudaErrorInvalidValue, "an error is kept");
    MUST(cudaFuncSetAttribute(nothing, shared, 227 * 1024));
    EXPECT_OK(WEFT_LAUNCH(nothing, 1, 32, 227 * 1024, stream, 1));
    EXPECT_ERROR(WEFT_LAUNCH(nothing_much, 1, 32, 227 * 1024, stream, 1), WEFT_DEVICE,
                 "cudaErrorInvalidValue");
    cudaStream_t gone;
    MUST(cudaStreamCreateWithFlags(&gone, cudaStreamNonBlocking));
    MUST(cudaStreamDestroy(gone));
    EXPECT_ERROR(WEFT_LAUNCH(nothing, 1, 32, 0, gone, 1), WEFT_DEVICE,
                 "cudaErrorInvalidResourceHandle");
    EXPECT(cudaGetLastError() == cudaSuccess, "an error is told once");
    EXPECT(cudaSetDevice(100) == cudaErrorInvalidDevice, "a device that is not there");
    EXPECT_ERROR(WEFT_LAUNCH(nothing, 1, 32, 0, stream, 1), WEFT_DEVICE, "cudaErrorInvalidDevice");
    EXPECT_OK(WEFT_LAUNCH(nothing, 1, 32, 0, stream, 1));
}

static __global__ void store(int *to, int value)
{
    *to = value;
}

static void CUDART_CB sleep_20_ms(void *)
{
    pause_ms(20);
}

static void events_order_streams()
{
    cudaStream_t first, second;
    cudaEvent_t event;
    int *x = pinned<int>(2), *device = NULL;
    MUST(cudaMalloc(reinterpret_cast<void **>(&device), 4));
    MUST(cudaStreamCreateWithPriority(&first, cudaStreamNonBlocking, -1));
    MUST(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
    MUST(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    MUST(cudaStreamWaitEvent(first, event, 0));               /* of nothing yet */
    EXPECT_OK(WEFT_LAUNCH(store, 1, 1, 0, first, device, 4)); /* which loads it */
    MUST(cudaLaunchHostFunc(first, sleep_20_ms, NULL));
    EXPECT_OK(WEFT_LAUNCH(store, 1, 1, 0, first, device, 5));
    MUST(cudaEventRecord(event, first));
    MUST(cudaStreamWaitEvent(second, event, 0));
    /* What the event becomes later does not matter to who waits already. */
    MUST(cudaLaunchHostFunc(first, sleep_20_ms, NULL));
    EXPECT_OK(WEFT_LAUNCH(store, 1, 1, 0, first, device, 6));
    MUST(cudaEventRecord(event, first));
    MUST(cudaMemcpyAsync(x, device, 4, cudaMemcpyDeviceToHost, second));
    EXPECT(cudaEventQuery(event) == cudaErrorNotReady, "the event came at once");
    EXPECT(cudaStreamQuery(first) == cudaErrorNotReady, "the stream is asynchronous");
    MUST(cudaStreamSynchronize(second));
    EXPECT(x[0] == 5, "read %d after the event", x[0]);
    MUST(cudaEventSynchronize(event));
    MUST(cudaMemcpyAsync(x, device, 4, cudaMemcpyDeviceToHost, second));
    MUST(cudaStreamSynchronize(second));
    EXPECT(x[0] == 6, "read %d at the end", x[0]);
    MUST(cudaEventDestroy(event));
    MUST(cudaStreamDestroy(first));
    MUST(cudaStreamDestroy(second));
    MUST(cudaFree(device));
    MUST(cudaFreeHost(x));
}

static void the_driver_waits_for_values()
{
    CUresult (*wait)(CUstream, CUdeviceptr, cuuint64_t, unsigned) = NULL;
    void *symbol = NULL;
    enum cudaDriverEntryPointQueryResult found;
    MUST(cudaGetDriverEntryPointByVersion("cuStreamWaitValue64", &symbol, CUDART_VERSION, 0,
                                          &found));
    EXPECT(found == cudaDriverEntryPointSuccess && symbol, "no cuStreamWaitValue64");
    memcpy(&wait, &symbol, sizeof wait);
    volatile uint64_t *flag = pinned<uint64_t>(1);
    int *x = pinned<int>(2);
    cudaStream_t waiting;
    MUST(cudaStreamCreateWithFlags(&waiting, cudaStreamNonBlocking));
    *flag = 0;
    x[0] = x[1] = 0;
    const CUdeviceptr address = reinterpret_cast<CUdeviceptr>(flag);
    EXPECT(!wait(waiting, address, 3, CU_STREAM_WAIT_VALUE_GEQ), "refused");
    EXPECT(wait(waiting, reinterpret_cast<CUdeviceptr>(&waiting), 3, CU_STREAM_WAIT_VALUE_GEQ),
           "memory of the host only");
    EXPECT_OK(WEFT_LAUNCH(store, 1, 1, 0, waiting, x, 1));
    EXPECT_OK(WEFT_LAUNCH(store, 1, 1, 0, stream, x + 1, 2));
    MUST(cudaStreamSynchronize(stream)); /* which goes on meanwhile */
    *flag = 2;
    pause_ms(5);
    EXPECT(x[0] == 0 && x[1] == 2, "x is %d, %d", x[0], x[1]);
    *flag = 4;
    MUST(cudaStreamSynchronize(waiting));
    EXPECT(x[0] == 1, "x is %d", x[0]);
    MUST(cudaStreamDestroy(waiting));
    MUST(cudaFreeHost(x));
    MUST(cudaFreeHost(const_cast<uint64_t *>(flag)));
}

static void memory_is_told_apart()
{
    void *device = NULL, *host = pinned<int>(4);
    int here = 0;
    cudaPointerAttributes a;
    const size_t total = static_cast<size_t>(8192) << 20; /* of a device */
    MUST(cudaMalloc(&device, 1 << 20));
    MUST(cudaPointerGetAttributes(&a, static_cast<char *>(device) + 5000));
    EXPECT(a.type == cudaMemoryTypeDevice && a.device == 0, "type %d", a.type);
    MUST(cudaPointerGetAttributes(&a, host));
    EXPECT(a.type == cudaMemoryTypeHost, "type %d", a.type);
    MUST(cudaPointerGetAttributes(&a, &here));
    EXPECT(a.type == cudaMemoryTypeUnregistered, "type %d", a.type);
    MUST(cudaMemcpyAsync(&here, device, sizeof here, cudaMemcpyDeviceToHost, stream));
    EXPECT(here == -1, "new memory holds %d", here);
    EXPECT(cudaMemcpyAsync(&here, device, 4, cudaMemcpyHostToDevice, stream) ==
               cudaErrorInvalidValue,
           "a copy of the wrong kind");
    EXPECT(cudaMalloc(&device, total) == cudaErrorMemoryAllocation, "more than remains");
    EXPECT(cudaGetLastError() == cudaErrorMemoryAllocation, "what was wrong is remembered");
    MUST(cudaPointerGetAttributes(&a, host));
    MUST(cudaFreeHost(host));
}

static __global__ void leave_early(int *out)
{
    if (threadIdx.x == 3)
        return;
    __syncthreads();
    *out = 1;
}
static __global__ void shuffle_alone(int *out)
{
    if (threadIdx.x != 5)
        *out = __shfl_xor_sync(WHOLE_WARP, 1, 1);
}
static __global__ void shuffle_outside_mask(int *out)
{
    *out = __shfl_xor_sync(0xffff, 1, 1);
}
static __global__ void do_different_things(int *out)
{
    if (threadIdx.x < 16)
        __syncwarp();
    else
        *out = __any_sync(WHOLE_WARP, 1);
}
static __global__ void overrun(int *memory)
{
    memory[1 << 30] = 1;
}

typedef void (*mistake)(int *device, int *host);

/* The mistake in a process of its own must end it with this text. */
static void expect_death(const char *wanted, mistake make)
{
    int ends[2];
    char text[4096];
    size_t length = 0;
    if (pipe(ends))
        exit(1);
    const pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], 2);
        int *device = NULL, *host = pinned<int>(4);
        MUST(cudaMalloc(reinterpret_cast<void **>(&device), 64));
        MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        make(device, host);
        MUST(cudaStreamSynchronize(stream));
        _exit(0);
    }
    close(ends[1]);
    for (ssize_t n; (n = read(ends[0], text + length, sizeof text - 1 - length)) > 0;)
        length += static_cast<size_t>(n);
    text[length] = '\0';
    close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT && strstr(text, wanted),
           "status %x, text \"%s\", not \"%s\"", status, text, wanted);
}

static void mistakes_end_the_process()
{
    expect_death("the host touched device memory at 0x",
                 [](int *device, int *) { *const_cast<volatile int *>(device) = 1; });
    expect_death("(allocated 64 bytes)",
                 [](int *device, int *host) { *host = const_cast<volatile int *>(device)[3]; });
    expect_death("thread (3,0,0) has left the kernel", [](int *device, int *) {
        EXPECT_OK(WEFT_LAUNCH(leave_early, 1, 64, 0, stream, device));
    });
    expect_death("kernel shuffle_alone, block (0,0,0): thread (0,0,0) waits at a shuffle with mask "
                 "ffffffff, thread (5,0,0) has left",
                 [](int *device, int *) {
                     EXPECT_OK(WEFT_LAUNCH(shuffle_alone, 1, 32, 0, stream, device));
                 });
    expect_death("the mask lacks this lane", [](int *device, int *) {
        EXPECT_OK(WEFT_LAUNCH(shuffle_outside_mask, 1, 32, 0, stream, device));
    });
    expect_death("lanes of one mask do different things", [](int *device, int *) {
        EXPECT_OK(WEFT_LAUNCH(do_different_things, 1, 32, 0, stream, device));
    });
    expect_death("the mask has lanes that the block has not", [](int *device, int *) {
        EXPECT_OK(WEFT_LAUNCH(shuffle_alone, 1, 4, 0, stream, device));
    });
    expect_death("host memory that is not pinned", [](int *, int *) {
        int here = 0;
        EXPECT_OK(WEFT_LAUNCH(store, 1, 1, 0, stream, &here, 1));
    });
    expect_death(
        "kernel overrun, block (0,0,0): thread (0,0,0) runs: it touched",
        [](int *device, int *) { EXPECT_OK(WEFT_LAUNCH(overrun, 1, 1, 0, stream, device)); });
    expect_death("which is not allocated",
                 [](int *device, int *) { MUST(cudaFreeAsync(device + 1, stream)); });
}

static void graphs_keep_kernels()
{
    int *x = pinned<int>(1);
    void *memory;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    x[0] = 0;
    MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    EXPECT_OK(WEFT_LAUNCH(store, 1, 1, 0, stream, x, 4));
    MUST(cudaStreamEndCapture(stream, &graph));
    MUST(cudaGraphInstantiate(&exec, graph, 0));
    MUST(cudaGraphDestroy(graph));
    MUST(cudaStreamSynchronize(stream));
    EXPECT(x[0] == 0, "what is captured ran");
    for (int turn = 0; turn < 2; turn++) {
        x[0] = 0;
        MUST(cudaGraphLaunch(exec, stream));
        MUST(cudaStreamSynchronize(stream));
        EXPECT(x[0] == 4, "turn %d: x is %d", turn, x[0]);
    }
    MUST(cudaGraphExecDestroy(exec));
    MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    EXPECT(cudaMalloc(&memory, 4) == cudaErrorStreamCaptureUnsupported, "allocated");
    EXPECT(cudaStreamEndCapture(stream, &graph) == cudaErrorStreamCaptureInvalidated && !graph,
           "captured");
    (void)cudaGetLastError();
    MUST(cudaFreeHost(x));
}

int main()
{
    mistakes_end_the_process(); /* first: a child has no streams of its parent's */
    MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    threads_meet_at_barriers();
    votes_are_counted();
    shuffles_move_values();
    blocks_reduce();
    atomics_add_up();
    shared_memory_starts_as_nan();
    races_show_by_order();
    instructions_have_meanings();
    bad_launches_are_refused();
    events_order_streams();
    the_driver_waits_for_values();
    memory_is_told_apart();
    graphs_keep_kernels();
    return expect_finish();
}
