/* What a stage's MoE layers share: how tokens travel, the programs, and the lanes and executors
 * that run these beside the compute lane. One thread drives a model. Private to layers/. */
#ifndef WEFT_LAYERS_MOE_RUNTIME_H
#define WEFT_LAYERS_MOE_RUNTIME_H

#include "layers/pass/runner.h"
#include "layers/moe/options.h"

/* The programs of one (n, S). */
typedef struct weft_moe_plan {
    weft_moe_pipeline pipeline;
    weft_program programs[2]; /* forward, backward */
    void **memory[2];         /* [num_slots], while one layer's program is enqueued */
} weft_moe_plan;

enum { WEFT_MOE_MAX_PLANS = 64 };

typedef struct weft_moe_runtime {
    weft_moe_options options;
    bool exchange; /* tokens travel: the lanes below exist */
    weft_arena arena;
    weft_moe_plan plans[WEFT_MOE_MAX_PLANS];
    int num_plans;
    const weft_moe_plan *current;  /* the next forward's */
    weft_moe_plan replaced;        /* holds replaced programs; `current` points here */
    weft_runner runner;            /* lanes expert, gather, place, offload, prefetch */
    weft_program exchange_program; /* the form's, where it runs as a program */
    weft_executor exchange_executor;
    weft_event *exchanged[2];
    size_t direct_chunk_bytes; /* of a block; equal on every rank; 0: by size */
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
/* Sets (n, S) for the next forwards. Call it between steps: it may allocate. */
weft_status weft_moe_runtime_use(weft_moe_runtime *runtime,
                                 const weft_moe_pipeline *pipeline) WEFT_CHECKED;
/* Lets forwards use these programs instead of the current pipeline's, until the next
 * weft_moe_runtime_use. Borrowed. */
weft_status weft_moe_runtime_replace(weft_moe_runtime *runtime,
                                     const weft_program programs[2]) WEFT_CHECKED;

#endif
