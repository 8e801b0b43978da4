/* The CPU device. A lane is a worker thread fed by a ring of fixed slots with one producer and one
 * consumer. Both ends are counters that only rise: `submitted` and `done`. A point on a lane, hence
 * an event, is a value of `done`; whoever waits for work, for room or for a point waits for a
 * counter to reach a value. */
#include <weft/device.h>

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/counter.h"
#include "core/device_ops.h"

enum {
    RING_SLOTS = 1024,
    HUGE_PAGE = 2 * 1024 * 1024,
    /* From this size on memory is mapped apart, in huge pages: faulting in small ones costs more
     * than much of the arithmetic done in them. */
    MAPPED_BYTES = 4 * 1024 * 1024,
};

/* The part of a lane that events point to. It is counted, since an event or another lane's wait
 * may outlive the lane. */
typedef struct timeline {
    weft_counter done;
    atomic_int num_owners;
    atomic_uint_least64_t failed_at; /* points from here on failed; UINT64_MAX: none */
    weft_error error;                /* written once, before failed_at */
} timeline;

typedef struct slot {
    weft_lane_function function; /* NULL ends the thread */
    const char *label;
    _Alignas(16) unsigned char args[WEFT_LANE_MAX_ARGS_BYTES];
} slot;

typedef struct cpu_lane {
    weft_lane base;
    timeline *line;
    pthread_t thread;
    int priority;
    weft_counter submitted;
    slot slots[RING_SLOTS];
} cpu_lane;

typedef struct cpu_event {
    weft_event base;
    timeline *line; /* NULL: never recorded */
    uint64_t point;
} cpu_event;

static _Thread_local const weft_device *current_device;

const weft_device *weft_lane_current_device(void)
{
    return current_device;
}

static timeline *timeline_create(void)
{
    timeline *line = aligned_alloc(WEFT_CACHE_LINE, sizeof *line);
    if (!line)
        return NULL;
    memset(line, 0, sizeof *line);
    weft_counter_init(&line->done);
    atomic_init(&line->num_owners, 1);
    atomic_init(&line->failed_at, UINT64_MAX);
    return line;
}

static timeline *timeline_retain(timeline *line)
{
    if (line)
        atomic_fetch_add(&line->num_owners, 1);
    return line;
}

static void timeline_release(timeline *line)
{
    if (!line || atomic_fetch_sub(&line->num_owners, 1) > 1)
        return;
    weft_counter_release(&line->done);
    free(line);
}

static bool timeline_failed(const timeline *line)
{
    return atomic_load(&line->failed_at) != UINT64_MAX;
}

/* The lane's first error as this thread's own, WEFT_OK when there is none. */
static weft_status timeline_status(const timeline *line)
{
    return timeline_failed(line) ? weft_error_put(&line->error) : WEFT_OK;
}

typedef struct wait_args {
    timeline *line; /* owned by the slot */
    uint64_t point;
} wait_args;

static weft_status run_wait(const void *args)
{
    const wait_args *a = args;
    weft_status status = WEFT_OK;
    weft_counter_wait(&a->line->done, a->point);
    if (atomic_load(&a->line->failed_at) <= a->point)
        status = weft_error_put(&a->line->error);
    timeline_release(a->line);
    return status;
}

static weft_status run_slot(const cpu_lane *lane, const slot *s)
{
    if (s->function == run_wait) /* the error handed on already tells where it comes from */
        return run_wait(s->args);
    weft_error_clear();
    weft_status status = s->function(s->args);
    if (status == WEFT_OK)
        return WEFT_OK;
    if (weft_error_get()->status != status)
        (void)WEFT_ERROR(status, "%s", weft_status_text(status));
    return weft_error_context(status, "lane %s, %s", lane->base.name, s->label);
}

/* After the first error slots are only emptied. */
static void skip_slot(const slot *s)
{
    if (s->function == run_wait)
        timeline_release(((const wait_args *)s->args)->line);
}

static void *lane_main(void *arg)
{
    cpu_lane *lane = arg;
    timeline *line = lane->line;
    char name[16];
    snprintf(name, sizeof name, "%s", lane->base.name);
    pthread_setname_np(pthread_self(), name);
    if (lane->priority > 0) { /* a wish: a refusal changes speed, never results */
        id_t thread = (id_t)syscall(SYS_gettid);
        setpriority(PRIO_PROCESS, thread, getpriority(PRIO_PROCESS, thread) + lane->priority);
    }
    current_device = lane->base.device;

    for (uint64_t n = 0;; n++) {
        weft_counter_wait(&lane->submitted, n + 1);
        const slot *s = &lane->slots[n % RING_SLOTS];
        if (!s->function)
            return NULL;
        if (timeline_failed(line)) {
            skip_slot(s);
        } else if (run_slot(lane, s) != WEFT_OK) {
            weft_error_take(&line->error);
            atomic_store(&line->failed_at, n + 1);
        }
        weft_counter_raise(&line->done, n + 1);
    }
}

/* Copies the work into the next slot, once that is free. */
static void push(cpu_lane *lane, const char *label, weft_lane_function function, const void *args,
                 size_t num_bytes)
{
    uint64_t n = weft_counter_value(&lane->submitted);
    if (n >= RING_SLOTS)
        weft_counter_wait(&lane->line->done, n - RING_SLOTS + 1);
    slot *s = &lane->slots[n % RING_SLOTS];
    s->function = function;
    s->label = label;
    if (num_bytes > 0)
        memcpy(s->args, args, num_bytes);
    weft_counter_raise(&lane->submitted, n + 1);
}

static weft_status cpu_submit(weft_lane *base, const char *label, weft_lane_function function,
                              const void *args, size_t num_bytes)
{
    cpu_lane *lane = (cpu_lane *)base;
    WEFT_TRY(timeline_status(lane->line));
    push(lane, label, function, args, num_bytes);
    return WEFT_OK;
}

static weft_status cpu_record(weft_lane *base, weft_event *base_event)
{
    cpu_lane *lane = (cpu_lane *)base;
    cpu_event *event = (cpu_event *)base_event;
    if (event->line != lane->line) {
        timeline_release(event->line);
        event->line = timeline_retain(lane->line);
    }
    event->point = weft_counter_value(&lane->submitted);
    return timeline_status(lane->line);
}

static weft_status cpu_wait(weft_lane *base, const weft_event *base_event)
{
    cpu_lane *lane = (cpu_lane *)base;
    const cpu_event *event = (const cpu_event *)base_event;
    WEFT_TRY(timeline_status(lane->line));
    timeline *line = event->line;
    /* A lane's own points come before what it runs next, and a point that passed well holds nobody
     * up. */
    if (!line || line == lane->line ||
        (weft_counter_value(&line->done) >= event->point && !timeline_failed(line)))
        return WEFT_OK;
    wait_args args = {.line = timeline_retain(line), .point = event->point};
    push(lane, "wait", run_wait, &args, sizeof args);
    return WEFT_OK;
}

static weft_status cpu_wait_host(const weft_event *base)
{
    const cpu_event *event = (const cpu_event *)base;
    if (!event->line)
        return WEFT_OK;
    weft_counter_wait(&event->line->done, event->point);
    return timeline_status(event->line);
}

static weft_status cpu_sync(weft_lane *base)
{
    cpu_lane *lane = (cpu_lane *)base;
    weft_counter_wait(&lane->line->done, weft_counter_value(&lane->submitted));
    return timeline_status(lane->line);
}

typedef struct copy_args {
    void *to;
    const void *from; /* unused by zero */
    size_t bytes;
} copy_args;

static weft_status run_copy(const void *args)
{
    const copy_args *a = args;
    memcpy(a->to, a->from, a->bytes);
    return WEFT_OK;
}

static weft_status run_zero(const void *args)
{
    const copy_args *a = args;
    memset(a->to, 0, a->bytes);
    return WEFT_OK;
}

static weft_status cpu_copy(weft_lane *lane, void *to, const void *from, size_t bytes)
{
    copy_args args = {.to = to, .from = from, .bytes = bytes};
    return cpu_submit(lane, "copy", run_copy, &args, sizeof args);
}

static weft_status cpu_zero(weft_lane *lane, void *to, size_t bytes)
{
    copy_args args = {.to = to, .bytes = bytes};
    return cpu_submit(lane, "zero", run_zero, &args, sizeof args);
}

/* Signals go to the threads the program made: a handler must not run amid a kernel. */
static int start_thread(cpu_lane *lane)
{
    sigset_t blocked, before;
    sigfillset(&blocked);
    for (size_t i = 0; i < 6; i++)
        sigdelset(&blocked, (const int[]){SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGPROF}[i]);
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    int error = pthread_create(&lane->thread, NULL, lane_main, lane);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

static weft_status cpu_lane_create(weft_device *device, int priority, const char *name,
                                   weft_lane **out)
{
    cpu_lane *lane = aligned_alloc(WEFT_CACHE_LINE, sizeof *lane);
    timeline *line = timeline_create();
    if (!lane || !line) {
        free(lane);
        timeline_release(line);
        return WEFT_ERROR(WEFT_MEMORY, "out of host memory: lane %s", name);
    }
    memset(lane, 0, offsetof(cpu_lane, slots));
    lane->base = (weft_lane){.device = device, .name = name};
    lane->line = line;
    lane->priority = priority;
    weft_counter_init(&lane->submitted);
    int error = start_thread(lane);
    if (error) {
        weft_counter_release(&lane->submitted);
        timeline_release(line);
        free(lane);
        return WEFT_ERROR(WEFT_DEVICE, "lane %s: no thread: %s", name, strerror(error));
    }
    *out = &lane->base;
    return WEFT_OK;
}

static void cpu_lane_destroy(weft_lane *base)
{
    cpu_lane *lane = (cpu_lane *)base;
    push(lane, "end", NULL, NULL, 0);
    pthread_join(lane->thread, NULL);
    weft_counter_release(&lane->submitted);
    timeline_release(lane->line);
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
    timeline_release(event->line);
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

static const weft_device_ops cpu_ops = {
    .name = "cpu",
    .alloc = cpu_alloc,
    .free = cpu_free,
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
