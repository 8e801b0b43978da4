/* Devices, lanes and events.
 *
 * A device owns memory with a budget and a high-water mark. A lane is an ordered queue of work
 * with a priority: a CUDA stream, or on the CPU a worker thread with a FIFO. An event is a point
 * on a lane that other lanes and the host can wait for.
 *
 * Invariants: one lane runs its work in order; lanes run beside each other. An error poisons its
 * lane: the lane skips what is submitted later, and every call that submits to it, records, waits
 * or syncs on it, or waits for its events returns the first error (core/device/cuda/cuda.h says
 * what a GPU does with kernels it already has). The caller keeps operands valid until an event
 * recorded after the work has completed. Any thread may submit, one at a time to each lane.
 */
#ifndef WEFT_DEVICE_H
#define WEFT_DEVICE_H

#include <stdint.h>

#include "status.h"
#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weft_device weft_device;
typedef struct weft_lane weft_lane;
typedef struct weft_event weft_event;

typedef enum weft_space {
    WEFT_SPACE_DEVICE, /* counted against the budget */
    WEFT_SPACE_PINNED, /* host memory that the device copies to and from at full speed */
} weft_space;

/* What memory is for: name, text. STAGING and PINNED are host memory. */
#define WEFT_MEMORY_LIST(X)                                                                        \
    X(WEIGHTS, "weights")                                                                          \
    X(GRADIENTS, "gradients")                                                                      \
    X(OPTIMIZER, "optimizer")     /* masters and moments */                                        \
    X(ACTIVATIONS, "activations") /* stashed from forward to backward */                           \
    X(SCRATCH, "scratch")                                                                          \
    X(MESSAGES, "messages") /* between stages: sent, received, not used up */                      \
    X(OTHER, "other")                                                                              \
    X(STAGING, "staging")    /* what copies, checkpoints and communication pass through */         \
    X(PINNED, "pinned host") /* what the host reads and writes: tokens, metrics, counts */

typedef enum weft_memory_purpose {
#define WEFT_MEMORY_ENUM(name, text) WEFT_MEMORY_##name,
    WEFT_MEMORY_LIST(WEFT_MEMORY_ENUM)
#undef WEFT_MEMORY_ENUM
        WEFT_NUM_MEMORY_PURPOSES
} weft_memory_purpose;
const char *weft_memory_text(weft_memory_purpose purpose); /* static */

/* Bytes of one purpose, in both spaces. Fixed: returned by value. */
typedef struct weft_memory_use {
    size_t bytes_now, bytes_peak;
} weft_memory_use;

/* Fixed: the caller provides the memory. */
typedef struct weft_device_stats {
    size_t bytes_now, bytes_peak; /* WEFT_SPACE_DEVICE */
    size_t pinned_bytes_now, pinned_bytes_peak;
    size_t budget_bytes; /* 0: no limit */
    uint64_t num_allocs; /* calls so far: a test shows by it that a step makes none */
} weft_device_stats;

/* Creates the CPU device. `num_threads`: OpenMP threads a kernel may use (0: all cores this
 * process is bound to). `budget_bytes`: limit of WEFT_SPACE_DEVICE (0: none). Errors: WEFT_CONFIG
 * (a negative number of threads), WEFT_MEMORY. */
weft_status weft_device_create_cpu(int num_threads, size_t budget_bytes,
                                   weft_device **out) WEFT_CHECKED;
/* Creates CUDA's device number `index` (as CUDA_VISIBLE_DEVICES numbers them). Errors: WEFT_CONFIG
 * (this build has no CUDA; no such index), WEFT_DEVICE (no driver or no GPU, in CUDA's words). */
weft_status weft_device_create_cuda(int index, size_t budget_bytes, weft_device **out) WEFT_CHECKED;
/* The number of CUDA devices. 0 without CUDA, a driver or a GPU; *out_why then says which is
 * missing (static; out_why may be NULL). */
int weft_device_num_cuda(const char **out_why);
/* The caller first destroys its lanes and events and frees its memory. NULL is legal. */
void weft_device_destroy(weft_device *device);

/* "cpu", "cuda". Static. */
const char *weft_device_name(const weft_device *device);
/* Threads a CPU kernel may use; 1 on a CUDA device. */
int weft_device_num_threads(const weft_device *device);
/* Bytes in use now, and the most there were. Any thread. */
void weft_device_get_stats(const weft_device *device, weft_device_stats *out);
weft_memory_use weft_device_memory_use(const weft_device *device, weft_memory_purpose purpose);
/* Sets the high-water marks, those of purposes too, to what is in use now. */
void weft_device_reset_peak(weft_device *device);

/* Memory is 64-byte aligned and not cleared. `name` (static string) names the allocation in errors.
 * Errors: WEFT_MEMORY, with the bytes asked for, those in use by purpose, and the budget. */
weft_status weft_device_alloc_for(weft_device *device, weft_space space,
                                  weft_memory_purpose purpose, size_t bytes, const char *name,
                                  void **out) WEFT_CHECKED;
/* The same for WEFT_MEMORY_OTHER. */
weft_status weft_device_alloc(weft_device *device, weft_space space, size_t bytes, const char *name,
                              void **out) WEFT_CHECKED;
/* Waits first for the device's lanes, which may still use the memory (weft_device_wait). `bytes`:
 * as allocated. NULL is legal. */
void weft_device_free(weft_device *device, weft_space space, void *memory, size_t bytes);

/* `priority`: 0 is served first, larger numbers later (a CUDA stream priority, a thread's nice
 * value). `name` is borrowed and shows in errors and thread lists. Errors: WEFT_MEMORY, WEFT_DEVICE
 * (no thread), WEFT_INTERNAL (a negative priority). */
weft_status weft_lane_create(weft_device *device, int priority, const char *name,
                             weft_lane **out) WEFT_CHECKED;
void weft_lane_destroy(weft_lane *lane); /* waits for what was submitted; NULL is legal */
/* Borrowed. */
weft_device *weft_lane_device(const weft_lane *lane);
const char *weft_lane_name(const weft_lane *lane);
/* Blocks until the device's lanes have done, or failed, all that was submitted to them. Call it
 * before freeing what lanes use. From a lane's own thread it returns at once. */
void weft_device_wait(weft_device *device);
/* The device whose lane the calling thread is, NULL on other threads: a CPU kernel asks it for its
 * number of threads. */
weft_device *weft_lane_current_device(void);

/* An event of this device's lanes, complete until it is recorded. Errors: WEFT_MEMORY. */
weft_status weft_event_create(weft_device *device, weft_event **out) WEFT_CHECKED;
/* Nothing may wait for it any more. NULL is legal. */
void weft_event_destroy(weft_event *event);

/* Marks this point of the lane; recording again moves the event. Lane and event are of one device,
 * here and in weft_lane_wait. */
weft_status weft_lane_record(weft_lane *lane, weft_event *event) WEFT_CHECKED;
/* Work submitted to `lane` from now on starts after the event's last recorded point. The call fixes
 * that point: recording the event again later does not move this wait. */
weft_status weft_lane_wait(weft_lane *lane, const weft_event *event) WEFT_CHECKED;
/* Blocks the calling thread until the event's recorded point has passed; returns that lane's error.
 */
weft_status weft_event_wait_host(const weft_event *event) WEFT_CHECKED;
/* Blocks until everything submitted to the lane is done; returns its error. */
weft_status weft_lane_sync(weft_lane *lane) WEFT_CHECKED;

/* Enqueue a copy, any space to any space, of areas that do not overlap; or zero bytes. Errors:
 * WEFT_INTERNAL (no memory given), or the lane's own. */
weft_status weft_lane_copy(weft_lane *lane, void *to, const void *from, size_t bytes) WEFT_CHECKED;
weft_status weft_lane_zero(weft_lane *lane, void *to, size_t bytes) WEFT_CHECKED;

/* A function that the lane's own thread runs when all work enqueued before it is done. It may
 * block. `args` points at a copy made at submit time. Its error poisons the lane. */
typedef weft_status (*weft_lane_function)(const void *args);
enum { WEFT_LANE_MAX_ARGS_BYTES = 384 };
/* Enqueues function(copy of args). num_bytes <= WEFT_LANE_MAX_ARGS_BYTES. `label` (static string)
 * names it in its error. Errors: WEFT_INTERNAL (no function, too many bytes), or the lane's own. */
weft_status weft_lane_submit(weft_lane *lane, const char *label, weft_lane_function function,
                             const void *args, size_t num_bytes) WEFT_CHECKED;

#ifdef __cplusplus
}
#endif
#endif
