/* The CPU device as an emulated accelerator: FLOPs, and bytes between device and host memory, take
 * the time that they would take at a pace.
 *
 * With WEFT_PACE_ALL a kernel computes, and then its lane waits until the kernel's FLOPs would have
 * taken their time. Results are right, and a machine of few cores serves many ranks as long as it
 * computes faster than the pace. With WEFT_PACE_EXPERTS the lane skips the experts' kernels, waits
 * for their time instead, and runs all others unpaced. Kernels without FLOPs, which memory bounds
 * on an accelerator too, take their own time. The CPU's kernels call this (kernels/cpu/backend.c).
 *
 * A lane that ends a task late owes that time: sleepers wake late, and a rank without a core
 * computes late. Its next waits are shorter by what it owes, so that the lane's total is right. A
 * lane owes at most a bound; time beyond the bound is lost, and counted.
 *
 * The link to host memory has a pace of its own, each direction apart: a copy between
 * WEFT_SPACE_DEVICE and WEFT_SPACE_PINNED copies, and then its lane waits until the bytes would
 * have travelled. Copies of all lanes in one direction share it in turn; the other direction is
 * another's. What a direction is late with, it owes as a lane does. Copies among pinned memory,
 * inside the device and of memory that is not the device's have no pace.
 *
 * The file of experts has a pace, too. Reads and writes take turns: one of them goes to the disk,
 * and then waits until its bytes would have gone. */
#ifndef WEFT_CORE_DEVICE_PACE_H
#define WEFT_CORE_DEVICE_PACE_H

#include <weft/device.h>

typedef enum weft_pace_work {
    WEFT_PACE_EXPERTS, /* work marked as the experts' is not computed and writes nothing: its FLOPs
                          take their time and no core. All else computes, unpaced */
    WEFT_PACE_ALL,     /* every kernel computes, and takes its FLOPs' time */
} weft_pace_work;

typedef struct weft_pace {
    double flops; /* FLOP/s; 0: no pace */
    weft_pace_work work;
    double link; /* bytes/s of the link to host memory, each way; 0: no pace */
    double file; /* bytes/s read from the experts' file, or written; 0: no pace */
} weft_pace;

/* Call it while the device's lanes are idle. Only the CPU device heeds it. */
void weft_device_set_pace(weft_device *device, weft_pace pace);
/* Seconds that the device's lanes lost behind the pace since the last call. */
double weft_device_take_late(weft_device *device);
/* The same of the link's two directions together. */
double weft_device_take_link_late(weft_device *device);
/* The same of the file. */
double weft_device_take_file_late(weft_device *device);

/* Marks work enqueued from now on as the experts', or not. */
void weft_lane_mark_experts(weft_lane *lane, bool are_experts);

/* For the CPU's kernels. Whether to skip a kernel enqueued now; pass enqueues a wait for its FLOPs'
 * time instead. */
bool weft_pace_passes_over(const weft_lane *lane);
weft_status weft_pace_pass(weft_lane *lane, const char *label, double flops) WEFT_CHECKED;
/* On a lane's own thread, before a kernel and after it. end waits as WEFT_PACE_ALL has it. */
int64_t weft_pace_start_ns(void);
void weft_pace_end(int64_t start_ns, double flops);

/* Around a copy of `bytes` over the paced link, on any thread. start gives the time at which the
 * last of them arrives, behind what is on its way already; end waits for it. */
int64_t weft_pace_link_start(weft_device *device, weft_space to, int64_t start_ns, size_t bytes);
void weft_pace_link_end(weft_device *device, weft_space to, int64_t end_ns);
/* The same around what is read from the experts' file or written to it; without a pace, nothing. */
int64_t weft_pace_file_start(weft_device *device, int64_t start_ns, size_t bytes);
void weft_pace_file_end(weft_device *device, int64_t end_ns);
/* For the CPU device: a copy in host memory as a lane's function, at the link's pace where it
 * crosses the link. `args`: a weft_copy_args (core/device/worker.h). */
weft_status weft_pace_run_copy(const void *args) WEFT_CHECKED;

#endif
