/* Graphs: a stretch of a lane's work that is kept, to be enqueued again at once (CUDA graphs).
 *
 * Between begin and end what is enqueued on the lane is not run but kept: kernels, products,
 * copies between device and pinned memory, zeroing, with the arguments they are given now. Nothing
 * else may be asked of that lane meanwhile, by any thread: functions, events, waits and syncs are
 * refused, since a graph could not repeat them. What its kernels read at a replay is what stands in
 * memory then. Lanes of the CPU device keep nothing. */
#ifndef WEFT_CORE_GRAPH_H
#define WEFT_CORE_GRAPH_H

#include <weft/device.h>

typedef struct weft_graph weft_graph;

/* Whether work of the device's lanes can be kept. */
bool weft_device_has_graphs(const weft_device *device);

/* One thread captures one lane at a time, and ends what it began. Kernels must have run before:
 * what they allocate at first they must not allocate now. Errors: WEFT_DEVICE, WEFT_INTERNAL. */
weft_status weft_graph_begin(weft_lane *lane) WEFT_CHECKED;
/* The work so far, which has not run. `out` NULL: drops it. Errors: WEFT_DEVICE, when CUDA met
 * something that it cannot keep; the lane goes on either way. */
weft_status weft_graph_end(weft_lane *lane, weft_graph **out) WEFT_CHECKED;
/* Enqueues the work once. Any lane of the same device. */
weft_status weft_graph_replay(weft_graph *graph, weft_lane *lane) WEFT_CHECKED;
/* When no replay is under way. NULL is legal. */
void weft_graph_destroy(weft_graph *graph);

#endif
