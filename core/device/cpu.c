/* The CPU device. A lane is a worker thread, which runs kernels too (core/device/worker.h). */
#include <weft/device.h>

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "core/device/ops.h"
#include "core/device/worker.h"

enum {
    HUGE_PAGE = 2 * 1024 * 1024,
    /* From this size on memory is mapped apart, in huge pages: faulting in small ones costs more
     * than much of the arithmetic done in them. */
    MAPPED_BYTES = 4 * 1024 * 1024,
};

typedef struct cpu_lane {
    weft_lane base;
    weft_timeline *line;
    weft_worker *worker;
} cpu_lane;

typedef struct cpu_event {
    weft_event base;
    weft_mark mark;
} cpu_event;

static weft_status cpu_submit(weft_lane *base, const char *label, weft_lane_function function,
                              const void *args, size_t num_bytes)
{
    cpu_lane *lane = (cpu_lane *)base;
    WEFT_TRY(weft_timeline_status(lane->line));
    weft_worker_push(lane->worker, label, function, args, num_bytes);
    return WEFT_OK;
}

static weft_status cpu_record(weft_lane *base, weft_event *base_event)
{
    cpu_lane *lane = (cpu_lane *)base;
    cpu_event *event = (cpu_event *)base_event;
    weft_mark_record(&event->mark, lane->line, lane->worker);
    return weft_timeline_status(lane->line);
}

static weft_status cpu_wait(weft_lane *base, const weft_event *base_event)
{
    cpu_lane *lane = (cpu_lane *)base;
    const cpu_event *event = (const cpu_event *)base_event;
    WEFT_TRY(weft_timeline_status(lane->line));
    weft_timeline *line = event->mark.line;
    /* A lane's own points come before what it runs next, and a point that passed well holds nobody
     * up. */
    if (!line || line == lane->line || weft_timeline_passed(line, event->mark.point))
        return WEFT_OK;
    weft_worker_push_wait(lane->worker, line, event->mark.point);
    return WEFT_OK;
}

static weft_status cpu_wait_host(const weft_event *base)
{
    const cpu_event *event = (const cpu_event *)base;
    if (!event->mark.line)
        return WEFT_OK;
    weft_counter_wait(&event->mark.line->done, event->mark.point);
    return weft_timeline_status(event->mark.line);
}

static weft_status cpu_sync(weft_lane *base)
{
    cpu_lane *lane = (cpu_lane *)base;
    weft_counter_wait(&lane->line->done, weft_worker_pushed(lane->worker));
    return weft_timeline_status(lane->line);
}

static weft_status run_zero(const void *args)
{
    const weft_copy_args *a = args;
    memset(a->to, 0, a->bytes);
    return WEFT_OK;
}

static weft_status cpu_copy(weft_lane *lane, void *to, const void *from, size_t bytes)
{
    weft_copy_args args = {.to = to, .from = from, .bytes = bytes};
    return cpu_submit(lane, "copy", weft_pace_run_copy, &args, sizeof args);
}

static weft_status cpu_zero(weft_lane *lane, void *to, size_t bytes)
{
    weft_copy_args args = {.to = to, .bytes = bytes};
    return cpu_submit(lane, "zero", run_zero, &args, sizeof args);
}

static weft_status cpu_lane_create(weft_device *device, int priority, const char *name,
                                   weft_lane **out)
{
    cpu_lane *lane = calloc(1, sizeof *lane);
    weft_timeline *line = weft_timeline_create();
    weft_status status = WEFT_OK;
    if (!lane || !line) {
        status = WEFT_ERROR(WEFT_MEMORY, "out of host memory: lane %s", name);
    } else {
        *lane = (cpu_lane){.base = {.device = device, .name = name}, .line = line};
        status =
            weft_worker_create(&lane->base, line, priority, (weft_worker_hooks){0}, &lane->worker);
    }
    if (status != WEFT_OK) {
        weft_timeline_release(line);
        free(lane);
        return status;
    }
    *out = &lane->base;
    return WEFT_OK;
}

static void cpu_lane_destroy(weft_lane *base)
{
    cpu_lane *lane = (cpu_lane *)base;
    weft_worker_destroy(lane->worker);
    weft_timeline_release(lane->line);
    free(lane);
}

static weft_status cpu_event_create(weft_device *device, weft_event **out)
{
    cpu_event *event = calloc(1, sizeof *event);
    if (!event)
        return WEFT_ERROR(WEFT_MEMORY, "out of host memory: event");
    event->base.device = device;
    *out = &event->base;
    return WEFT_OK;
}

static void cpu_event_destroy(weft_event *base)
{
    cpu_event *event = (cpu_event *)base;
    weft_timeline_release(event->mark.line);
    free(event);
}

static size_t mapped_bytes(size_t bytes)
{
    return (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
}

static void *cpu_alloc(weft_device *device, weft_space space, size_t bytes)
{
    (void)device, (void)space;
    if (bytes > SIZE_MAX / 2)
        return NULL;
    if (bytes < MAPPED_BYTES)
        return aligned_alloc(WEFT_CACHE_LINE,
                             bytes / WEFT_CACHE_LINE * WEFT_CACHE_LINE + WEFT_CACHE_LINE);

    size_t length = mapped_bytes(bytes);
    unsigned char *map =
        mmap(NULL, length + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED)
        return NULL;
    size_t before = (HUGE_PAGE - (uintptr_t)map % HUGE_PAGE) % HUGE_PAGE;
    if (before > 0)
        munmap(map, before);
    if (before < HUGE_PAGE)
        munmap(map + before + length, HUGE_PAGE - before);
    madvise(map + before, length, MADV_HUGEPAGE);
    return map + before;
}

static void cpu_free(weft_device *device, weft_space space, void *memory, size_t bytes)
{
    (void)device, (void)space;
    if (bytes < MAPPED_BYTES)
        free(memory);
    else
        munmap(memory, mapped_bytes(bytes));
}

static void cpu_destroy(weft_device *device)
{
    free(device);
}

static bool cpu_pin(weft_device *device, void *memory, size_t bytes)
{
    (void)device, (void)memory, (void)bytes;
    return true;
}

static void cpu_unpin(weft_device *device, void *memory)
{
    (void)device, (void)memory;
}

static const weft_device_ops cpu_ops = {
    .name = "cpu",
    .alloc = cpu_alloc,
    .free = cpu_free,
    .pin = cpu_pin,
    .unpin = cpu_unpin,
    .lane_create = cpu_lane_create,
    .lane_destroy = cpu_lane_destroy,
    .event_create = cpu_event_create,
    .event_destroy = cpu_event_destroy,
    .record = cpu_record,
    .wait = cpu_wait,
    .wait_host = cpu_wait_host,
    .sync = cpu_sync,
    .copy = cpu_copy,
    .zero = cpu_zero,
    .submit = cpu_submit,
    .destroy = cpu_destroy,
};

static int num_bound_cores(void)
{
    cpu_set_t cores;
    return sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

weft_status weft_device_create_cpu(int num_threads, size_t budget_bytes, weft_device **out)
{
    if (num_threads < 0)
        return WEFT_ERROR(WEFT_CONFIG, "the cpu device cannot use %d threads", num_threads);
    weft_device *device = calloc(1, sizeof *device);
    if (!device)
        return WEFT_ERROR(WEFT_MEMORY, "out of host memory: cpu device");
    device->ops = &cpu_ops;
    device->num_threads = num_threads ? num_threads : num_bound_cores();
    device->budget_bytes = budget_bytes;
    *out = device;
    return WEFT_OK;
}
