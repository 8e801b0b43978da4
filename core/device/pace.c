#include "core/device/device.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <time.h>

#include "core/clock.h"
#include "core/device/ops.h"
#include "core/device/worker.h"

enum {
    /* Several turns of other threads on this thread's core. A lane that owes more has computed for
     * long at less than the pace: made up at once, that would be a time without any pace. */
    MOST_OWED_NS = 50 * 1000 * 1000,
};

static _Thread_local int64_t owed_ns; /* by the lane that this thread runs */

void weft_device_set_pace(weft_device *device, weft_pace pace)
{
    device->pace = pace;
    for (int i = 0; i < 2; i++)
        device->link[i] = (weft_paced_way){0};
    device->file = (weft_paced_way){0};
}

weft_pace weft_device_pace(const weft_device *device)
{
    return device->pace;
}

double weft_device_take_late(weft_device *device)
{
    return (double)atomic_exchange(&device->late_ns, 0) * 1e-9;
}

double weft_device_take_link_late(weft_device *device)
{
    return (double)atomic_exchange(&device->link_late_ns, 0) * 1e-9;
}

double weft_device_take_file_late(weft_device *device)
{
    return (double)atomic_exchange(&device->file_late_ns, 0) * 1e-9;
}

void weft_lane_mark_experts(weft_lane *lane, bool are_experts)
{
    lane->is_experts = are_experts;
}

bool weft_pace_passes_over(const weft_lane *lane)
{
    const weft_pace *pace = &lane->device->pace;
    return lane->is_experts && pace->flops > 0 && pace->work == WEFT_PACE_EXPERTS;
}

static void wait_until(int64_t ns)
{
    struct timespec end = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &end, NULL) == EINTR)
        continue;
}

static void take_time(weft_device *device, int64_t start_ns, double flops)
{
    double ns = fmin(1e9 * flops / device->pace.flops, 1e15);
    int64_t end = start_ns + (int64_t)ns - owed_ns, now = weft_now_ns();
    const int64_t busy_ns = now - start_ns > (int64_t)ns ? now - start_ns : (int64_t)ns;
    if (now < end) {
        wait_until(end);
        now = weft_now_ns();
    }
    weft_busy_note_waited(now - start_ns - busy_ns); /* whatever it owed */
    owed_ns = now - end;
    if (owed_ns > MOST_OWED_NS) {
        atomic_fetch_add(&device->late_ns, owed_ns - MOST_OWED_NS);
        owed_ns = MOST_OWED_NS;
    }
}

void weft_pace_end(int64_t start_ns, double flops)
{
    weft_device *device = weft_lane_current_device();
    if (device && device->pace.flops > 0 && device->pace.work == WEFT_PACE_ALL && flops > 0)
        take_time(device, start_ns, flops);
}

static weft_status run_pass(const void *flops)
{
    take_time(weft_lane_current_device(), weft_now_ns(), *(const double *)flops);
    return WEFT_OK;
}

weft_status weft_pace_pass(weft_lane *lane, const char *label, double flops)
{
    return flops > 0 ? weft_lane_submit(lane, label, run_pass, &flops, sizeof flops) : WEFT_OK;
}

/* --- the link to host memory, and a file --------------------------------------------------- */

static pthread_mutex_t way_lock = PTHREAD_MUTEX_INITIALIZER; /* of every device's ways */

static int64_t start_way(weft_paced_way *way, double rate, int64_t start_ns, size_t bytes)
{
    const double ns = fmin(1e9 * (double)bytes / rate, 1e15);
    pthread_mutex_lock(&way_lock);
    const int64_t ready = start_ns - way->owed_ns;
    const int64_t end = (ready > way->free_ns ? ready : way->free_ns) + (int64_t)ns;
    way->owed_ns = 0;
    way->free_ns = end;
    pthread_mutex_unlock(&way_lock);
    return end;
}

static void end_way(weft_paced_way *way, int64_t end_ns, atomic_int_least64_t *late_ns)
{
    int64_t now = weft_now_ns();
    if (now < end_ns) {
        wait_until(end_ns);
        now = weft_now_ns();
    }
    pthread_mutex_lock(&way_lock);
    if (way->free_ns == end_ns) { /* what has left behind it already is not held up */
        const int64_t late = now - end_ns;
        way->owed_ns = late < MOST_OWED_NS ? late : MOST_OWED_NS;
        atomic_fetch_add(late_ns, late - way->owed_ns);
    }
    pthread_mutex_unlock(&way_lock);
}

/* Whether a copy takes the link, and to which space. */
static bool crosses_link(const weft_device *device, const weft_copy_args *copy, weft_space *out_to)
{
    weft_space from;
    return device->pace.link > 0 && weft_device_space_of(device, copy->to, out_to) &&
           weft_device_space_of(device, copy->from, &from) && from != *out_to;
}

int64_t weft_pace_link_start(weft_device *device, weft_space to, int64_t start_ns, size_t bytes)
{
    return start_way(&device->link[to], device->pace.link, start_ns, bytes);
}

void weft_pace_link_end(weft_device *device, weft_space to, int64_t end_ns)
{
    end_way(&device->link[to], end_ns, &device->link_late_ns);
}

int64_t weft_pace_file_start(weft_device *device, int64_t start_ns, size_t bytes)
{
    return device->pace.file > 0 ? start_way(&device->file, device->pace.file, start_ns, bytes) : 0;
}

void weft_pace_file_end(weft_device *device, int64_t end_ns)
{
    if (device->pace.file > 0)
        end_way(&device->file, end_ns, &device->file_late_ns);
}

weft_status weft_pace_run_copy(const void *args)
{
    const weft_copy_args *copy = args;
    weft_device *device = weft_lane_current_device();
    weft_space to;
    if (!crosses_link(device, copy, &to))
        return weft_run_copy(args);
    const int64_t end = weft_pace_link_start(device, to, weft_now_ns(), copy->bytes);
    WEFT_TRY(weft_run_copy(args));
    weft_pace_link_end(device, to, end);
    return WEFT_OK;
}
