/* Tensor-parallel products in chunks of rows, whose gathers and reductions run beside them
 * (schedule/tensor.h): parallel.tp_comm_overlap. One thread drives a model. Private to layers/.
 *
 * Under sequence parallelism a rank has a run of the rows. Chunk i has the i-th part of each rank's
 * run, back to back: that is what one all-gather of these parts makes, and what one reduce-scatter
 * takes. So gathered rows are in an order of their own, [chunk, rank, row]; a layer whose rows do
 * not know of each other computes in it, another one finds each rank's piece where tokens' order
 * has it. Without sequence parallelism chunks are runs of all rows. */
#ifndef WEFT_LAYERS_TENSOR_TENSOR_H
#define WEFT_LAYERS_TENSOR_TENSOR_H

#include <weft/layer.h>

#include "comm/comm.h"
#include "schedule/run.h"
#include "schedule/tensor.h"

/* How this pass' rows are cut. */
typedef struct weft_chunks {
    int count;    /* 1: not at all */
    int pieces;   /* of a chunk: tp under sequence parallelism, else 1 */
    size_t rows;  /* of a piece */
    size_t apart; /* rows from one piece to the next in tokens' order */
} weft_chunks;
/* wanted: the chunks asked for; as many as divide the rows evenly, at most. Pure. */
weft_chunks weft_chunks_of(const weft_shape *shape, int wanted);
/* The same rows as one chunk. */
weft_chunks weft_chunks_whole(const weft_chunks *chunks);
/* A chunk's rows of a tensor in the order of gathered rows, and of one that this rank has alone. */
weft_tensor weft_chunk_of(const weft_tensor *all, const weft_chunks *chunks, int chunk);
weft_tensor weft_chunk_own(const weft_tensor *own, const weft_chunks *chunks, int chunk);
/* Copy a chunk from gathered rows' order into tokens' order, and back. */
weft_status weft_chunk_place(weft_pass *pass, const weft_chunks *chunks, int chunk,
                             const weft_tensor *gathered, const weft_tensor *placed) WEFT_CHECKED;
weft_status weft_chunk_take(weft_pass *pass, const weft_chunks *chunks, int chunk,
                            const weft_tensor *placed, const weft_tensor *gathered) WEFT_CHECKED;

/* One product. */
typedef struct weft_tensor_call {
    weft_tensor_plan plan; /* its chunks are those below */
    weft_chunks chunks;
    const char *module;         /* static: of what travels, and of what does not name its own */
    weft_tensor from, gathered; /* what is gathered: this rank's rows, and all */
    weft_tensor partial, to;    /* what is summed, and where the sum goes; they may be one tensor
                                   without sequence parallelism */
    weft_status (*multiply)(void *context, weft_pass *pass, int chunk);
    weft_status (*make_weights)(void *context, weft_pass *pass);
    void *context;
} weft_tensor_call;
/* Enqueues the program behind earlier work of the pass' lane, and makes that lane wait for its end.
 * Collective over tp. */
weft_status weft_tensor_run(weft_pass *pass, const weft_tensor_call *call) WEFT_CHECKED;

typedef struct weft_tensor_runtime weft_tensor_runtime;
/* tp: borrowed, as the device is. Errors: WEFT_MEMORY, WEFT_DEVICE. */
weft_status weft_tensor_runtime_create(weft_device *device, weft_comm *tp,
                                       weft_tensor_runtime **out) WEFT_CHECKED;
void weft_tensor_runtime_destroy(weft_tensor_runtime *runtime); /* NULL is legal */
/* Calls weft_comm_reserve on the compute lane and on the runtime's lane. */
weft_status weft_tensor_runtime_reserve(weft_tensor_runtime *runtime, weft_lane *compute,
                                        size_t bytes) WEFT_CHECKED;
/* The executor, for tests. */
const weft_executor *weft_tensor_executor(const weft_tensor_runtime *runtime);

#endif
