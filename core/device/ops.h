/* What a device backend is: base structs to embed as first members and one const table.
 *
 * The public functions in device.c and memory.c are the only callers of a slot. They check
 * arguments, keep the budget and the high-water marks, and fail allocations when a test asks, so a
 * backend has only what is particular to it. All slots are required but those of graphs. */
#ifndef WEFT_CORE_DEVICE_OPS_H
#define WEFT_CORE_DEVICE_OPS_H

#include <stdatomic.h>

#include <weft/device.h>

#include "core/device/device.h"

typedef struct weft_device_ops {
    const char *name;
    /* 64-byte aligned; bytes may be 0. NULL when memory is out: the caller writes the error. */
    void *(*alloc)(weft_device *, weft_space, size_t bytes);
    void (*free)(weft_device *, weft_space, void *, size_t bytes);
    /* Makes host memory of others fit for copies that run beside other work, and ends that. */
    bool (*pin)(weft_device *, void *memory, size_t bytes);
    void (*unpin)(weft_device *, void *memory);
    weft_status (*lane_create)(weft_device *, int priority, const char *name, weft_lane **out);
    void (*lane_destroy)(weft_lane *);
    weft_status (*event_create)(weft_device *, weft_event **out);
    void (*event_destroy)(weft_event *);
    weft_status (*record)(weft_lane *, weft_event *);
    weft_status (*wait)(weft_lane *, const weft_event *);
    weft_status (*wait_host)(const weft_event *);
    weft_status (*sync)(weft_lane *);
    weft_status (*copy)(weft_lane *, void *to, const void *from, size_t bytes);
    weft_status (*zero)(weft_lane *, void *to, size_t bytes);
    weft_status (*submit)(weft_lane *, const char *label, weft_lane_function, const void *args,
                          size_t num_bytes);
    void (*destroy)(weft_device *);
    /* All four or none. */
    weft_status (*graph_begin)(weft_lane *);
    weft_status (*graph_end)(weft_lane *, weft_graph **out);
    weft_status (*graph_replay)(weft_graph *, weft_lane *);
    void (*graph_destroy)(weft_graph *);
} weft_device_ops;

typedef struct weft_device_usage { /* of one space, or of one purpose in both */
    atomic_size_t now, peak;
} weft_device_usage;

/* An allocation: where it lies, and its purpose. */
typedef struct weft_device_block {
    const void *memory;
    size_t bytes;
    weft_space space;
    weft_memory_purpose purpose;
    bool counts; /* in the device's usage */
} weft_device_block;
typedef struct weft_device_blocks {
    weft_device_block *items;
    size_t count, capacity;
} weft_device_blocks;

/* One direction of a paced link, or a paced file. */
typedef struct weft_paced_way {
    int64_t free_ns; /* when what left last arrives */
    int64_t owed_ns; /* how late the last wait for that ended */
} weft_paced_way;

struct weft_device {
    const weft_device_ops *ops;
    int num_threads;
    size_t budget_bytes;
    weft_device_usage usage[2]; /* by weft_space */
    weft_device_usage purposes[WEFT_NUM_MEMORY_PURPOSES];
    atomic_size_t pinned_now[WEFT_NUM_MEMORY_PURPOSES]; /* each one's part in WEFT_SPACE_PINNED */
    weft_device_blocks blocks;                          /* memory.c */
    atomic_uint_least64_t num_allocs;
    struct weft_lane *lanes;      /* all of them, kept by device.c */
    weft_pace pace;               /* of a CPU device */
    atomic_int_least64_t late_ns; /* lost behind the pace: weft_device_take_late */
    weft_paced_way link[2];       /* by the space that is copied to */
    weft_paced_way file;
    atomic_int_least64_t link_late_ns; /* weft_device_take_link_late */
    atomic_int_least64_t file_late_ns; /* weft_device_take_file_late */
};

struct weft_lane {
    weft_device *device;
    struct weft_lane *next; /* of the device's lanes */
    const char *name;
    bool is_experts;              /* work enqueued now is the experts' */
    atomic_int_least64_t busy_ns; /* weft_lane_take_busy */
    double ended_us;              /* weft_lane_ended_us; its thread's */
};

struct weft_event {
    weft_device *device;
};

struct weft_graph {
    weft_device *device;
};

/* The space of the allocation that an address lies in; false: it lies in none of this device's. Any
 * thread. */
bool weft_device_space_of(const weft_device *device, const void *memory, weft_space *out);

#endif
