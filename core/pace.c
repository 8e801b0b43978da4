#include "core/pace.h"

#include <errno.h>
#include <math.h>
#include <time.h>

#include "core/device_ops.h"

enum {
    /* Several turns of other threads on this thread's core. A lane that owes more has computed for
     * long at less than the pace: made up at once, that would be a time without any pace. */
    MOST_OWED_NS = 50 * 1000 * 1000,
};

static _Thread_local int64_t owed_ns; /* by the lane that this thread runs */

void weft_device_set_pace(weft_device *device, weft_pace pace)
{
    device->pace = pace;
}

double weft_device_take_late(weft_device *device)
{
    return (double)atomic_exchange(&device->late_ns, 0) * 1e-9;
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

int64_t weft_pace_start_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
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
    int64_t end = start_ns + (int64_t)ns - owed_ns, now = weft_pace_start_ns();
    if (now < end) {
        wait_until(end);
        now = weft_pace_start_ns();
    }
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
    take_time(weft_lane_current_device(), weft_pace_start_ns(), *(const double *)flops);
    return WEFT_OK;
}

weft_status weft_pace_pass(weft_lane *lane, const char *label, double flops)
{
    return flops > 0 ? weft_lane_submit(lane, label, run_pass, &flops, sizeof flops) : WEFT_OK;
}
