/* What a CUDA device has beyond the common contract: workspaces, kinds of memory, and errors that
 * say what is missing. */
#include "core/device/cuda/cuda.h"

#include <dlfcn.h>
#include <weft/kernels.h>

#include "core/device/device.h"
#include "tests/core/lanes.h"

static size_t bytes_in_use(const weft_device *device)
{
    weft_device_stats stats;
    weft_device_get_stats(device, &stats);
    return stats.bytes_now;
}

CASE(a_workspace_is_the_lanes_own)
{
    bench *t = *state;
    void *first, *again, *other, *none = &first;
    assert_int_equal(bytes_in_use(t->device), 0);
    OK(weft_cuda_workspace(t->a, 100, &first));
    assert_int_equal(bytes_in_use(t->device), WEFT_CUDA_WORKSPACE_BYTES);
    OK(weft_cuda_workspace(t->a, WEFT_CUDA_WORKSPACE_BYTES, &again));
    assert_ptr_equal(again, first);
    OK(weft_cuda_workspace(t->b, 0, &other));
    assert_ptr_not_equal(other, first);
    assert_int_equal(bytes_in_use(t->device), 2 * WEFT_CUDA_WORKSPACE_BYTES);
    assert_true(weft_cuda_is_device_memory(first));
    assert_int_equal((uintptr_t)first % 256, 0);
    FAILS(weft_cuda_workspace(t->a, WEFT_CUDA_WORKSPACE_BYTES + 1, &none), WEFT_INTERNAL,
          "lane alpha: a kernel asks 33554433 bytes");
    assert_ptr_equal(none, &first);
}

CASE(a_workspace_needs_room_in_the_budget)
{
    weft_device *device;
    weft_lane *lane;
    void *memory;
    OK(weft_device_create_cuda(0, 1000, &device));
    OK(weft_lane_create(device, 0, "narrow", &lane));
    FAILS(weft_cuda_workspace(lane, 1, &memory), WEFT_MEMORY, "CUDA workspace asked 32 MiB");
    weft_lane_destroy(lane);
    weft_device_destroy(device);
}

typedef struct fill_args {
    unsigned char *to;
    size_t count;
} fill_args;

static weft_status lane_fill(const void *args)
{
    const fill_args *a = args;
    sleep_us(5000);
    memset(a->to, 7, a->count);
    return WEFT_OK;
}

static atomic_bool may_fill;

static weft_status fill_when_allowed(const void *args)
{
    for (int i = 0; i < 50000 && !atomic_load(&may_fill); i++)
        sleep_us(100);
    if (!atomic_load(&may_fill))
        return WEFT_ERROR(WEFT_DEVICE, "pinning memory waits for the lane");
    return lane_fill(args);
}

CASE(a_pinned_workspace_grows_while_its_lane_is_busy)
{
    bench *t = *state;
    void *small, *same, *large;
    weft_device_stats stats;
    OK(weft_cuda_pinned_workspace(t->a, 1000, &small));
    OK(weft_cuda_pinned_workspace(t->a, 4096, &same));
    assert_ptr_equal(small, same);
    fill_args fill = {.to = small, .count = 4096};
    atomic_store(&may_fill, false);
    OK(SUBMIT(t->a, fill_when_allowed, fill));
    OK(weft_cuda_pinned_workspace(t->a, 100000, &large));
    memset(large, 1, 100000);
    OK(weft_cuda_pinned_workspace(t->a, 10, &same));
    assert_ptr_equal(large, same);
    atomic_store(&may_fill, true);
    assert_false(weft_cuda_is_device_memory(large));
    OK(weft_lane_sync(t->a));
    weft_device_get_stats(t->device, &stats);
    assert_int_equal(stats.pinned_bytes_now, 4096 + 128 * 1024);
}

/* The first product of a shape may load a kernel, for which the driver waits until all streams are
 * idle while it keeps other threads out: the second function has to get through meanwhile. */
CASE(functions_run_while_a_kernel_is_loaded)
{
    enum { NUM = 5 };
    bench *t = *state;
    unsigned char bytes[16] = {0};
    const fill_args fill = {.to = bytes, .count = sizeof bytes};
    void *memory;
    OK(weft_device_alloc(t->device, WEFT_SPACE_DEVICE, 3 * 64 * 64 * sizeof(float), "matrices",
                         &memory));
    float *a = memory, *b = a + 64 * 64, *c = b + 64 * 64;
    OK(weft_lane_zero(t->b, memory, 3 * 64 * 64 * sizeof(float)));
    for (size_t i = 1; i <= NUM; i++) {
        OK(SUBMIT(t->a, lane_fill, fill));
        OK(SUBMIT(t->a, lane_fill, fill));
        OK(weft_gemm(t->b,
                     &WEFT_ARGS(weft_gemm_args, .dtype = WEFT_F32, .c_dtype = WEFT_F32, .m = 8 * i,
                                .n = 16 + 8 * i, .k = 64 - 8 * i, .a = a, .b = b, .c = c)));
        OK(weft_lane_sync(t->b));
    }
    OK(weft_lane_sync(t->a));
    assert_int_equal(bytes[15], 7);
    weft_device_free(t->device, WEFT_SPACE_DEVICE, memory, 3 * 64 * 64 * sizeof(float));
}

/* The worker looks for a sign that will never come, until someone tells it. */
CASE(a_fault_on_the_device_ends_the_wait)
{
    bench *t = *state;
    unsigned char bytes[16];
    const fill_args fill = {.to = bytes, .count = sizeof bytes};
    void *symbol = dlsym(RTLD_DEFAULT, "weft_emulate_break");
    void (*break_device)(cudaError_t);
    if (!symbol)
        skip(); /* a GPU's context could not be mended */
    memcpy(&break_device, &symbol, sizeof symbol);
    for (int full = 0; full < 2; full++) {
        weft_lane *lane;
        OK(weft_lane_create(t->device, 0, "gamma", &lane));
        weft_status status = SUBMIT(lane, lane_fill, fill);
        if (status == WEFT_OK)
            status = SUBMIT(lane, lane_fill, fill);
        assert_true(full || status == WEFT_OK); /* a device that was lost once may refuse at once */
        break_device(cudaErrorIllegalAddress);
        for (int i = 0; full && status == WEFT_OK; i++)
            status = SUBMIT(lane, lane_fill, fill);
        FAILS(weft_lane_sync(lane), WEFT_DEVICE, "illegal memory access");
        break_device(cudaSuccess);
        weft_lane_destroy(lane);
    }
}

CASE(memory_is_told_apart)
{
    bench *t = *state;
    void *device, *pinned;
    int ordinary;
    OK(weft_device_alloc(t->device, WEFT_SPACE_DEVICE, 5000, "device", &device));
    OK(weft_device_alloc(t->device, WEFT_SPACE_PINNED, 5000, "pinned", &pinned));
    assert_true(weft_cuda_is_device_memory(device));
    assert_true(weft_cuda_is_device_memory((char *)device + 4999));
    assert_false(weft_cuda_is_device_memory(pinned));
    assert_false(weft_cuda_is_device_memory(&ordinary));
    assert_false(weft_cuda_is_device_memory(NULL));
    weft_device_free(t->device, WEFT_SPACE_DEVICE, device, 5000);
    weft_device_free(t->device, WEFT_SPACE_PINNED, pinned, 5000);
}

CASE(lanes_are_streams)
{
    bench *t = *state;
    weft_device *cpu;
    weft_lane *lane;
    OK(weft_device_create_cpu(1, 0, &cpu));
    OK(weft_lane_create(cpu, 0, "plain", &lane));
    assert_true(weft_lane_is_cuda(t->a));
    assert_false(weft_lane_is_cuda(lane));
    assert_ptr_not_equal(weft_cuda_stream(t->a), weft_cuda_stream(t->b));
    assert_int_equal(weft_cuda_index(t->device), 0);
    assert_true(weft_cuda_num_multiprocessors(t->device) > 0);
    weft_lane_destroy(lane);
    weft_device_destroy(cpu);
}

CASE(two_devices_share_a_gpu)
{
    bench *t = *state;
    weft_device *second;
    void *memory;
    OK(weft_device_create_cuda(0, 2000, &second));
    OK(weft_device_alloc(second, WEFT_SPACE_DEVICE, 2000, "all", &memory));
    assert_int_equal(bytes_in_use(second), 2000);
    assert_int_equal(bytes_in_use(t->device), 0);
    weft_device_free(second, WEFT_SPACE_DEVICE, memory, 2000);
    weft_device_destroy(second);
}

static weft_status do_nothing(const void *args)
{
    (void)args;
    return WEFT_OK;
}

/* Two copies by way of the device, the second over zeroed bytes. */
CASE(a_graph_repeats_what_was_enqueued)
{
    bench *t = *state;
    enum { BYTES = 64 };
    void *memory, *pinned;
    weft_graph *graph;
    OK(weft_device_alloc(t->device, WEFT_SPACE_DEVICE, BYTES, "between", &memory));
    OK(weft_device_alloc(t->device, WEFT_SPACE_PINNED, 2 * BYTES, "ends", &pinned));
    unsigned char *from = pinned, *to = from + BYTES;
    memset(pinned, 5, 2 * BYTES);

    OK(weft_graph_begin(t->a));
    OK(weft_lane_copy(t->a, memory, from, BYTES));
    OK(weft_lane_zero(t->a, memory, BYTES / 2));
    OK(weft_lane_copy(t->a, to, memory, BYTES));
    OK(weft_graph_end(t->a, &graph));
    OK(weft_lane_sync(t->a));
    assert_int_equal(to[0], 5); /* nothing ran */
    for (int value = 1; value <= 3; value++) {
        memset(from, value, BYTES);
        OK(weft_graph_replay(graph, value == 2 ? t->b : t->a));
        OK(weft_lane_sync(t->a));
        OK(weft_lane_sync(t->b));
        assert_int_equal(to[0], 0);
        assert_int_equal(to[BYTES - 1], value);
    }
    weft_graph_destroy(graph);
    weft_device_free(t->device, WEFT_SPACE_PINNED, pinned, 2 * BYTES);
    weft_device_free(t->device, WEFT_SPACE_DEVICE, memory, BYTES);
}

CASE(a_graph_refuses_what_it_cannot_repeat)
{
    bench *t = *state;
    weft_event *event;
    OK(weft_event_create(t->device, &event));
    OK(weft_lane_record(t->b, event));
    OK(weft_graph_begin(t->a));
    FAILS(weft_lane_submit(t->a, "nothing", do_nothing, NULL, 0), WEFT_INTERNAL,
          "lane alpha: nothing while a graph takes its work");
    FAILS(weft_lane_record(t->a, event), WEFT_INTERNAL, "lane alpha: an event while");
    FAILS(weft_lane_wait(t->a, event), WEFT_INTERNAL, "lane alpha: a wait while");
    FAILS(weft_lane_sync(t->a), WEFT_INTERNAL, "lane alpha: a sync while");
    FAILS(weft_graph_begin(t->a), WEFT_INTERNAL, "lane alpha: another graph while");
    OK(weft_lane_submit(t->b, "nothing", do_nothing, NULL, 0)); /* other lanes go on */
    OK(weft_lane_sync(t->b));
    OK(weft_graph_end(t->a, NULL));
    OK(weft_lane_submit(t->a, "nothing", do_nothing, NULL, 0));
    OK(weft_lane_sync(t->a));
    weft_event_destroy(event);
}

CASE(what_is_missing_is_said)
{
    weft_device *device = NULL;
    FAILS(weft_device_create_cuda(99, 0, &device), WEFT_CONFIG, "no CUDA device 99");
    FAILS(weft_device_create_cuda(-1, 0, &device), WEFT_CONFIG, "no CUDA device -1");
    assert_null(device);
    OK(WEFT_CUDA(cudaSuccess));
    FAILS(weft_cuda_status(__FILE__, __LINE__, __func__, "cudaThing(a, b)", cudaErrorInvalidValue),
          WEFT_DEVICE, "cudaThing: invalid argument (cudaErrorInvalidValue)");
    FAILS(weft_cuda_status(__FILE__, __LINE__, __func__, "(kernel<T>)", cudaErrorInvalidValue),
          WEFT_DEVICE, "(kernel<T>): invalid argument");
}

AROUND(.before = bench_open, .after = bench_close)

int main(void)
{
    skip_without_device();
    return run_cases();
}
