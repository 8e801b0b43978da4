/* What a stage's MoE layers share: how tokens travel, the programs, and the lanes
 * beside the compute lane that their tasks run on. One thread drives a model. */
#ifndef WEFT_LAYERS_MOE_MOE_H
#define WEFT_LAYERS_MOE_MOE_H

#include "comm/comm.h"
#include "layers/moe/options.h"
#include "layers/pass/runner.h"

/* The programs of one (n, S). */
typedef struct weft_moe_plan {
    weft_moe_pipeline pipeline;
    weft_program programs[2]; /* forward, backward */
    /* Of forwards, of backwards: [num_slots], while one layer's program is enqueued. A backward has
     * forwards, too, which run again. */
    void **memory[2][2];
} weft_moe_plan;

enum { WEFT_MOE_MAX_PLANS = 64 };

typedef struct weft_moe_runtime {
    weft_device *device; /* borrowed */
    weft_moe_options options;
    bool exchange;                    /* tokens travel: the lanes exist */
    weft_lane *lanes[WEFT_NUM_LANES]; /* expert, offload, prefetch */
    weft_arena arena;
    weft_moe_plan plans[WEFT_MOE_MAX_PLANS];
    int num_plans;
    const weft_moe_plan *current;  /* the next forward's */
    weft_moe_plan replaced;        /* holds replaced programs; `current` points here */
    weft_program exchange_program; /* the form's, where it runs as a program; */
    weft_runner exchanging;        /* its lanes: gather, place */
    size_t direct_chunk_bytes;     /* of a block; equal on every rank; 0: by size */
} weft_moe_runtime;

/* exchange: the model has layers whose tokens travel. block_bytes: what a rank sends another under
 * balanced routing, to be cut into options.num_chunks. Errors: WEFT_CONFIG (n or form out of
 * range), WEFT_MEMORY, WEFT_DEVICE. */
weft_status weft_moe_runtime_create(weft_device *device, const weft_moe_options *options,
                                    bool exchange, size_t block_bytes,
                                    weft_moe_runtime **out) WEFT_CHECKED;
void weft_moe_runtime_destroy(weft_moe_runtime *runtime); /* NULL is legal */
/* Calls weft_comm_reserve on the compute lane and on the runtime's lanes. */
weft_status weft_moe_runtime_reserve(const weft_moe_runtime *runtime, const weft_comm *ep,
                                     weft_lane *compute, size_t bytes) WEFT_CHECKED;
/* Adds the lanes of a body's tasks with this compute lane; one that another owner has set stays. */
void weft_moe_runtime_lanes(const weft_moe_runtime *runtime, weft_lane *compute,
                            weft_lane *lanes[WEFT_NUM_LANES]);
/* Sets (n, S) for the next forwards. Call it between steps: it may allocate. */
weft_status weft_moe_runtime_use(weft_moe_runtime *runtime,
                                 const weft_moe_pipeline *pipeline) WEFT_CHECKED;
/* Lets forwards use these programs instead of the current pipeline's, until the next
 * weft_moe_runtime_use. Borrowed. */
void weft_moe_runtime_replace(weft_moe_runtime *runtime, const weft_program programs[2]);

/* --- the all-to-all: weft_moe_exchange and measurements run the same code ------------------ */

/* Where staging areas come from; their memory must last until the enqueued work is done. */
typedef struct weft_exchange_memory {
    void *context;
    weft_status (*device)(void *context, size_t bytes, void **out);
    weft_status (*host)(void *context, size_t bytes, void **out);
} weft_exchange_memory;

/* The all-to-all over `ep`, enqueued on `lane`, in the runtime's form and chunks; the runtime was
 * created with `exchange` true. Every rank of `etp` holds the same `send` and passes equal sizes,
 * as for weft_all_to_all. A single rank in `etp` uses the baseline. Collective over ep and etp.
 * Errors: the memory's, WEFT_COMM, the lanes' own. */
weft_status weft_moe_exchange_over(weft_moe_runtime *runtime, weft_comm *ep, weft_comm *etp,
                                   const weft_exchange_memory *memory, weft_lane *lane,
                                   const void *send, const size_t *send_bytes, void *recv,
                                   const size_t *recv_bytes) WEFT_CHECKED;

#endif
