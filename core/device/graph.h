/* Graphs: a stretch of a lane's work, kept to be enqueued again by one call (CUDA graphs).
 *
 * Between begin and end the lane does not run what is enqueued but keeps it: kernels, products,
 * copies between device and pinned memory, zeroing, with their arguments of that moment. Meanwhile
 * the lane refuses functions, events, waits and syncs from any thread, since a graph could not
 * repeat them. A replay's kernels read what memory holds at the replay. The CPU device has no
 * graphs. */
#ifndef WEFT_CORE_DEVICE_GRAPH_H
#define WEFT_CORE_DEVICE_GRAPH_H

#include <weft/device.h>

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

#endif
