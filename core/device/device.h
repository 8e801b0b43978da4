/* What a device offers beyond <weft/device.h>: its pace, how long its lanes compute, graphs, memory
 * of others, and its GPU's name. The door of this room. */
#ifndef WEFT_CORE_DEVICE_DEVICE_H
#define WEFT_CORE_DEVICE_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include <weft/device.h>
#include <weft/operation.h>

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
weft_pace weft_device_pace(const weft_device *device);
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
/* On a lane's own thread, after a kernel that began at a time of weft_now_ns. Waits as
 * WEFT_PACE_ALL has it. */
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

/* How long lanes compute: what their threads spend in functions submitted to them, without waits
 * for other lanes and for other ranks. Of the CPU device; elsewhere 0. */

/* On any thread: so much of the time of the function that runs there is not computing; below 0: it
 * counts as more than it took. */
void weft_busy_note_waited(int64_t ns);
/* Seconds since the last call. */
double weft_lane_take_busy(weft_lane *lane);
/* When the last function ended that was submitted to an idle lane (core/clock.h); 0: none did. */
double weft_lane_ended_us(const weft_lane *lane);

/* Graphs: a stretch of a lane's work, kept to be enqueued again by one call (CUDA graphs).
 *
 * Between begin and end the lane does not run what is enqueued but keeps it: kernels, products,
 * copies between device and pinned memory, zeroing, with their arguments of that moment. Meanwhile
 * the lane refuses functions, events, waits and syncs from any thread, since a graph could not
 * repeat them. A replay's kernels read what memory holds at the replay. The CPU device has no
 * graphs. */

typedef struct weft_graph weft_graph;

/* Whether the device has graphs. */
bool weft_device_has_graphs(const weft_device *device);

/* A thread captures one lane at a time and ends it itself. The work must have run once before: what
 * kernels allocate at first use they must not allocate now. Errors: WEFT_DEVICE, WEFT_INTERNAL. */
weft_status weft_graph_begin(weft_lane *lane) WEFT_CHECKED;
/* Gives the work since begin, which has not run; `out` NULL drops it. The lane runs work again
 * afterwards, also on errors. Errors: WEFT_DEVICE (CUDA met something that it cannot keep). */
weft_status weft_graph_end(weft_lane *lane, weft_graph **out) WEFT_CHECKED;
/* Enqueues the work once, on any lane of the same device. */
weft_status weft_graph_replay(weft_graph *graph, weft_lane *lane) WEFT_CHECKED;
/* No replay may be under way. NULL is legal. */
void weft_graph_destroy(weft_graph *graph);

/* Host memory that no device allocated: what processes of a node share. */

/* From here on the memory is as of WEFT_SPACE_PINNED: copies run beside other work, links are
 * paced. counts: as this process' own; what another process has counted is not counted again.
 * `memory` begins at a page, stays the caller's, and outlives what the device does with it. Errors:
 * WEFT_MEMORY. */
weft_status weft_device_adopt(weft_device *device, weft_memory_purpose purpose, void *memory,
                              size_t bytes, bool counts, const char *name) WEFT_CHECKED;
/* Waits first for the device's lanes. NULL is legal. */
void weft_device_disown(weft_device *device, void *memory, size_t bytes);

/* What names a GPU to other libraries. */

enum { WEFT_GPU_BUS_BYTES = 32 };
/* "0000:41:00.0": the place on the PCI bus of a CUDA device's GPU. False: the CPU, or CUDA does not
 * tell. */
bool weft_device_gpu_bus(const weft_device *device, char out[WEFT_GPU_BUS_BYTES]);

/* --- the device that runs nothing ------------------------------------------------------------ */

/* The device `note`: it keeps what is enqueued and runs nothing.
 *
 * Its device memory has addresses and no bytes: touching it is a fault. Pinned memory is real,
 * since hosts read counts there. Kernels (kernels/note) and communicators (comm/note) enqueue
 * operations
 * (<weft/operation.h>); functions of a host, copies and zeroing are kept by name and never run.
 * Lanes and events keep who waits for whom. Nothing ever waits. One thread drives it. */
typedef enum weft_noted_kind {
    WEFT_NOTED_OPERATION,
    WEFT_NOTED_COPY,
    WEFT_NOTED_ZERO,
    WEFT_NOTED_HOST, /* a function of the host */
    WEFT_NOTED_RECORD,
    WEFT_NOTED_WAIT,
    WEFT_NOTED_PIECE, /* no work: memory of its own */
    /* Kept with ranges alone: */
    WEFT_NOTED_TOUCH,     /* what a kernel or a communicator reads and writes */
    WEFT_NOTED_HOST_WAIT, /* the host waits for an event; no lane */
    WEFT_NOTED_SYNC       /* the host waits for the lane */
} weft_noted_kind;

typedef struct weft_noted {
    weft_noted_kind kind;
    const weft_lane *lane;
    weft_operation operation; /* OPERATION; COPY, ZERO and PIECE: bytes; TOUCH: module */
    const char *label;        /* HOST, TOUCH; static */
    const weft_event *event;  /* RECORD, WAIT, HOST_WAIT */
    void *to;                 /* COPY, PIECE */
    const void *from;         /* COPY */
    const char *kernel;       /* OPERATION: "gemm", static, and its arguments, where calls are */
    const void *args;         /* kept; those of one call share them */
    int entry;                /* OPERATION: a description's, once it is listed */
    size_t first_range, num_ranges; /* COPY, ZERO, TOUCH: in weft_noted_ranges */
} weft_noted;

/* What a backward does that forward has done, too. */
typedef enum weft_note_again {
    WEFT_NOTE_NEW,
    WEFT_NOTE_AGAIN,    /* what backward needs in any case */
    WEFT_NOTE_REPEATED, /* because forward did not keep it */
} weft_note_again;

/* What operations noted from now on are. */
typedef struct weft_note_scope {
    const char *module; /* static; NULL: as the operation is called */
    bool backward;      /* of a pass; below: in one */
    weft_note_again again;
    weft_inner inner; /* and the task, as in weft_operation */
    int task, flow;
} weft_note_scope;

weft_status weft_device_create_note(weft_device **out) WEFT_CHECKED;
/* False: another device. */
bool weft_device_is_note(const weft_device *device);

/* The scope of what any lane of the device enqueues. Changes it, and returns what it was; on
 * another device does nothing. */
weft_note_scope weft_note_enter(weft_device *device, weft_note_scope scope);
weft_note_scope weft_note_scope_of(const weft_device *device);
/* Names the module of what the lane's device enqueues, until the next name: "linear_qkv". Static.
 * NULL: none. Returns the name before. On another device it does nothing. */
const char *weft_note_module(const weft_lane *lane, const char *module);

/* Says that a program's task enqueues what follows, and returns the scope before. NONE: the scope
 * stays. */
weft_note_scope weft_note_task(const weft_lane *lane, weft_inner inner, int task, int flow);
/* Goes back to a scope. */
void weft_note_leave(const weft_lane *lane, weft_note_scope scope);
/* Sets the scope's `again`, and returns what it was. */
weft_note_again weft_note_redoes(const weft_lane *lane, weft_note_again again);
/* WEFT_TRY of a call whose operations, and what it stashes, are of this module. */
#define WEFT_TRY_AS(lane, module, call)                                                            \
    do {                                                                                           \
        const char *outer_module = weft_note_module(lane, module);                                 \
        WEFT_TRY(call);                                                                            \
        weft_note_module(lane, outer_module);                                                      \
    } while (0)

/* Enqueues an operation: its module, where it has none, is the scope's, or "own". Its phase is
 * FORWARD outside a backward; in one FORWARD becomes RECOMPUTE, as does all that the scope says to
 * be done again. Nothing is kept of a count of 0. WEFT_MEMORY. */
weft_status weft_note_operation(weft_lane *lane, const weft_operation *operation) WEFT_CHECKED;
/* Enqueues the operations of a kernel's call. */
weft_status weft_note_call(weft_lane *lane, const char *kernel, const void *args, size_t args_bytes,
                           const weft_operation *operations, int count) WEFT_CHECKED;
/* Notes a piece of memory that a layer keeps. */
weft_status weft_note_piece(weft_lane *lane, void *memory, size_t bytes) WEFT_CHECKED;
/* From now on notes keep what kernels are called with, so that another device, which outlives this
 * one, can make the calls again; pinned memory is that device's. */
void weft_note_keep_calls(weft_device *device, weft_device *other);
bool weft_note_keeps_calls(const weft_device *device);
/* Whether an address is of such a device's memory. */
bool weft_note_has(const void *memory);
/* All that was enqueued since the device was made, or since the last clear. Borrowed. */
weft_noted *weft_notes(const weft_device *device, size_t *out_count);
void weft_notes_clear(weft_device *device);

/* --- races ------------------------------------------------------------------------------------ */

/* A proof that lanes do not disturb each other: no two operations of different lanes touch the same
 * bytes, one of them writing, without an order. Order is a lane's own; from an event's record to
 * what waits for it; and from what the host waits for to all that it enqueues later.
 *
 * Ranges of copies and zeroing are the device's to know, those of kernels and collectives follow
 * from their arguments (kernels/note, comm/note). A function of the host (weft_lane_submit) is
 * opaque: it has the ranges that its caller notes beside it, or none. What the host itself reads
 * and writes between calls is not noted. */

/* `rows` rows (0: one) of `bytes` each, `stride` bytes apart. */
typedef struct weft_range {
    const char *name; /* of the operand: "dy"; static */
    const void *base; /* NULL: nothing */
    size_t bytes, rows, stride;
    bool writes;
} weft_range;

/* From now on the device, with nothing enqueued yet, keeps ranges and the host's waits. */
void weft_notes_keep_ranges(weft_device *device);
/* Whether the lane's device is such a one. */
bool weft_lane_keeps_ranges(const weft_lane *lane);
/* Notes what an operation touches, under the scope's module; elsewhere does nothing. label: static.
 * WEFT_MEMORY. */
weft_status weft_note_ranges(weft_lane *lane, const char *label, const weft_range *ranges,
                             size_t count) WEFT_CHECKED;
/* Of all notes. Borrowed. */
const weft_range *weft_noted_ranges(const weft_device *device);

/* Two operations without an order, in the order of their notes. */
typedef struct weft_race {
    const weft_noted *notes[2];  /* NULL: there is no race */
    const weft_range *ranges[2]; /* theirs that meet */
    const void *base;            /* the first bytes that both touch */
    size_t bytes;
} weft_race;

/* The first pair; *out is zero where everything is ordered. Pure: the lanes of the notes are
 * compared, and read by weft_race_text alone. An event waited for before its record here is
 * complete. WEFT_MEMORY. */
weft_status weft_race_find(const weft_noted *notes, size_t count, const weft_range *ranges,
                           weft_race *out) WEFT_CHECKED;
/* "lane expert: all_to_all of dispatch reads send, and lane compute: ...". */
typedef struct weft_race_words {
    char text[320];
} weft_race_words;
weft_race_words weft_race_text(const weft_race *race);

#endif
