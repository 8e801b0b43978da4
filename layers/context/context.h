/* The tasks of schedule/context.h's programs (attention over context-parallel ranks), which stand
 * between the layer's linears in place of the kernel that sees all keys. One thread drives a model.
 * Private to layers/. */
#ifndef WEFT_LAYERS_CONTEXT_CONTEXT_H
#define WEFT_LAYERS_CONTEXT_CONTEXT_H

#include <weft/kernels.h>

#include "comm/comm.h"
#include "layers/describe/describe.h"
#include "layers/pass/parts.h"
#include "parallel/sequence.h"
#include "schedule/context.h"
#include "schedule/run.h"

/* A TP rank's attention on one micro-batch: S / cp * B rows. Pure. */
typedef struct weft_context_shape {
    weft_context_plan plan;
    size_t rows, batch;
    size_t heads, groups, head_dim, value_dim;
    weft_dtype dtype;
} weft_context_shape;

weft_context_shape weft_context_shape_of(const weft_shape *shape, const weft_dims *dims);
/* Whether context-parallel ranks exchange heads. */
bool weft_context_deals(const weft_shape *shape);
/* Bytes of a call's scratch: the program's slots, and delta. */
size_t weft_context_scratch_bytes(const weft_context_shape *shape, bool backward);
/* Whether ranks exchange heads for rows; forward then keeps qkv and the result so, too. */
bool weft_context_exchanges(const weft_context_plan *plan);

/* One layer's micro-batch. Tensors of the shape's dtype unless said otherwise; W: (heads +
 * groups) * head_dim + groups * value_dim, packed by group. */
typedef struct weft_context_call {
    weft_context_shape shape;
    weft_attention_shape attention; /* scale, dropout's counters, and first_head of this TP rank */
    weft_attention_variant variant;
    const weft_sequence_cut *cut;
    const int32_t *first_seen; /* optional, [S, B]: as of weft_pass_first_seen */
    const void *qkv;           /* [rows, W] */
    void *heads;               /* [inner * rows, W / inner]; with an exchange: forward writes it */
    void *heads_out;           /* [inner * rows, heads / inner * value_dim]; likewise */
    void *out;                 /* [rows, heads * value_dim]; forward writes it */
    float *lse;                /* [heads * rows]; forward writes it */
    const void *dout;
    void *dqkv;    /* [rows, W]; backward writes it */
    float *dsinks; /* with sinks: [heads]; backward adds to it or, with overwrite, writes it */
    bool overwrite;
    void *scratch;
} weft_context_call;

typedef struct weft_context_runtime weft_context_runtime;

/* cp: the group that the sequence is cut over; borrowed, as the device is. Errors: WEFT_CONFIG (the
 * plan), WEFT_MEMORY, WEFT_DEVICE. */
weft_status weft_context_runtime_create(weft_device *device, weft_comm *cp,
                                        const weft_context_plan *plan,
                                        weft_context_runtime **out) WEFT_CHECKED;
void weft_context_runtime_destroy(weft_context_runtime *runtime); /* NULL is legal */
/* Calls weft_comm_reserve on the compute lane and on the runtime's lanes. */
weft_status weft_context_runtime_reserve(weft_context_runtime *runtime, weft_lane *compute,
                                         const weft_context_shape *shape) WEFT_CHECKED;
/* The program of a direction, as the layer's number `place`. */
weft_inside weft_context_inside(const weft_context_runtime *runtime, bool backward, int place);
/* Adds the lanes of a body's tasks. */
void weft_context_runtime_lanes(const weft_context_runtime *runtime,
                                weft_lane *lanes[WEFT_NUM_LANES]);

/* Sizes in elements. "Here" means the rows and heads that a rank attends: rows of `inner`
 * neighbours, 1 / inner of its heads. */
typedef struct weft_context_sizes {
    size_t width_qkv, width_out; /* of the layer's own rows, all heads */
    size_t rows, heads, groups;  /* here */
    size_t in_group, head_dim;   /* query heads of a group */
    size_t value_dim, pair;      /* a value; a key and a value */
    size_t queries;              /* a row's, of all heads here */
    size_t result, keys;         /* a row's result; its keys and values */
    size_t block_keys, all_keys; /* keys of a block; keys that one task attends, which are all
                                    ranks' for all_gather */
} weft_context_sizes;

/* A program of the layer that is being enqueued. */
typedef struct weft_context_work {
    weft_context_runtime *runtime;
    weft_context_call call;
    const weft_program *program;
    void **memory; /* by slot */
    bool *begun;   /* [cp * WEFT_DEAL_MAX_RUNS]: whether a run of queries was attended before */
    weft_context_sizes sizes;
    float *delta;
    bool backward;
} weft_context_work;

/* Readies a direction's program; in_backward: of a model's backward, where forwards run, too. The
 * caller enqueues its tasks in order, each on its lane, and calls end once `compute` is behind all
 * of them. Collective over cp. */
void weft_context_begin(weft_context_work *work, weft_context_runtime *runtime,
                        const weft_context_call *call, bool backward, bool in_backward);
weft_status weft_context_run_task(weft_context_work *work, const weft_task *task,
                                  weft_lane *lane) WEFT_CHECKED;
weft_status weft_context_end(const weft_context_work *work, weft_lane *compute) WEFT_CHECKED;

#endif
