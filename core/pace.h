/* The CPU device as an emulated accelerator: FLOPs take the time that they would take at a pace.
 *
 * A kernel that executes FLOPs computes, and then its lane waits until they would have taken their
 * time: what it gives is right, and a machine of few cores serves many ranks, as long as computing
 * is faster than the pace. Kernels without FLOPs, which memory bounds on an accelerator too, take
 * what they take. The CPU's kernels call this (kernels/cpu/backend.c), and nobody else needs to
 * know.
 *
 * A lane owes the time by which it passed the end that a task should have had: sleepers wake late,
 * and a rank without a core computes late. Its next waits are shorter by that, so that a lane's
 * total is right. What it owes is bounded, and beyond the bound it is lost and counted. */
#ifndef WEFT_CORE_PACE_H
#define WEFT_CORE_PACE_H

#include <weft/device.h>

typedef enum weft_pace_work {
    WEFT_PACE_EXPERTS, /* what lanes are marked for as the experts' is not computed, and gives
                          nothing: its FLOPs take their time and no core. All else computes */
    WEFT_PACE_ALL,     /* every kernel computes, and takes its FLOPs' time */
} weft_pace_work;

typedef struct weft_pace {
    double flops; /* FLOP/s; 0: none, every kernel takes what it takes */
    weft_pace_work work;
} weft_pace;

/* While the device's lanes are idle. On other devices than the CPU's it has no effect. */
void weft_device_set_pace(weft_device *device, weft_pace pace);
/* Seconds by which the device's lanes fell behind the pace for good since the last call. */
double weft_device_take_late(weft_device *device);

/* Whether what is enqueued from now on is the experts' work. */
void weft_lane_mark_experts(weft_lane *lane, bool are_experts);

/* For the CPU's kernels. Whether what is enqueued now is to be passed over; and enqueues the time
 * that its FLOPs take instead. */
bool weft_pace_passes_over(const weft_lane *lane);
weft_status weft_pace_pass(weft_lane *lane, const char *label, double flops) WEFT_CHECKED;
/* On a lane's own thread, around a kernel: when it starts, and that it has ended. */
int64_t weft_pace_start_ns(void);
void weft_pace_end(int64_t start_ns, double flops);

#endif
