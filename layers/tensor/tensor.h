/* Tensor-parallel products in chunks of rows, whose gathers and reductions run beside them
 * (schedule/tensor.h): parallel.tp_comm_overlap. Each product is a program inside the layer,
 * between its own parts (layers/pass/parts.h). One thread drives a model. Private to layers/.
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
#include "layers/pass/parts.h"
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
/* A chunk's rows of a tensor in the order of gathered rows, and of one that this rank has alone. */
weft_tensor weft_chunk_of(const weft_tensor *all, const weft_chunks *chunks, int chunk);
weft_tensor weft_chunk_own(const weft_tensor *own, const weft_chunks *chunks, int chunk);
/* Copy a chunk from gathered rows' order into tokens' order, and back. */
weft_status weft_chunk_place(weft_pass *pass, const weft_chunks *chunks, int chunk,
                             const weft_tensor *gathered, const weft_tensor *placed) WEFT_CHECKED;
weft_status weft_chunk_take(weft_pass *pass, const weft_chunks *chunks, int chunk,
                            const weft_tensor *placed, const weft_tensor *gathered) WEFT_CHECKED;

/* Gathers all chunks on the pass' lane. Collective over tp. */
weft_status weft_chunks_gather(weft_pass *pass, const weft_chunks *chunks, const weft_tensor *own,
                               const weft_tensor *gathered) WEFT_CHECKED;

/* What a product is for: ENTER gathers rows and reads them, EXIT reduces what it makes; of
 * backwards, MAKING: also the weights' gradients, GATHERING: of rows gathered beside. */
#define WEFT_CUT_LIST(X)                                                                           \
    X(ENTER, .gathers = true, .multiplies = true, .reads = true)                                   \
    X(EXIT, .multiplies = true, .reduces = true)                                                   \
    X(ENTER_BACK, .backward = true, .gathers = true, .multiplies = true, .reads = true)            \
    X(ENTER_BACK_MAKING, .backward = true, .gathers = true, .multiplies = true, .reads = true,     \
      .weights = true)                                                                             \
    X(EXIT_BACK, .backward = true, .multiplies = true, .reduces = true)                            \
    X(EXIT_BACK_MAKING, .backward = true, .multiplies = true, .reduces = true, .weights = true)    \
    X(EXIT_BACK_GATHERING, .backward = true, .gathers = true, .multiplies = true, .reduces = true, \
      .weights = true)
typedef enum weft_cut {
#define WEFT_CUT_ENUM(name, ...) WEFT_CUT_##name,
    WEFT_CUT_LIST(WEFT_CUT_ENUM)
#undef WEFT_CUT_ENUM
        WEFT_NUM_CUTS
} weft_cut;

/* A product whose program's tasks are enqueued; the layer's state keeps it. */
typedef struct weft_tensor_call {
    weft_chunks chunks;
    const char *module;         /* static: of what travels, and of what does not name its own */
    weft_tensor from, gathered; /* what is gathered: this rank's rows, and all */
    weft_tensor partial, to;    /* what is summed, and where the sum goes; they may be one tensor
                                   without sequence parallelism */
    weft_status (*multiply)(void *context, weft_pass *pass, int chunk);
    weft_status (*make_weights)(void *context, weft_pass *pass);
    void *context;
} weft_tensor_call;

typedef struct weft_tensor_runtime weft_tensor_runtime;
/* chunks: the counts that products may have. Errors: WEFT_MEMORY, WEFT_DEVICE. */
weft_status weft_tensor_runtime_create(weft_device *device, const int chunks[2],
                                       weft_tensor_runtime **out) WEFT_CHECKED;
void weft_tensor_runtime_destroy(weft_tensor_runtime *runtime); /* NULL is legal */
/* The plan of a program that weft_tensor_inside gave; false: it gave none such. */
bool weft_tensor_plan_of(const weft_tensor_runtime *runtime, const weft_program *program,
                         weft_tensor_plan *out);
/* On which all rows of chunks travel. */
weft_lane *weft_tensor_runtime_lane(const weft_tensor_runtime *runtime);
/* The product's program, as the layer's number `place`. chunks: in several. */
weft_inside weft_tensor_inside(const weft_tensor_runtime *runtime, weft_cut product,
                               const weft_chunks *chunks, int place);
/* Enqueues the part, a task of the program, on its lane. Collective over tp. */
weft_status weft_tensor_run_part(weft_pass *pass, const weft_tensor_call *call,
                                 const weft_body_part *at, weft_lane *lane) WEFT_CHECKED;

#endif
