/* How MoE layers run. */
#ifndef WEFT_LAYERS_MOE_OPTIONS_H
#define WEFT_LAYERS_MOE_OPTIONS_H

#include "schedule/exchange/exchange.h"
#include "schedule/moe/layer.h"
#include "schedule/pass.h"

/* Rows over those under balanced routing: at a rank's experts, leaving the rank, and in the largest
 * partition. 0 means 1, for the last the load of all partitions. */
typedef struct weft_moe_load {
    double rows, sent, part_rows, part_sent;
} weft_moe_load;

/* Who uses scratch; but for pairs forwards and backwards share it. */
typedef enum weft_scratch_use {
    WEFT_SCRATCH_FORWARD,
    WEFT_SCRATCH_BACKWARD, /* whole, and halves */
    WEFT_SCRATCH_LEAVING,  /* with pairs: a backward that leaves weights' gradients for later */
    WEFT_SCRATCH_LEFT,     /* with pairs: those, and the next layer's backward below */
    WEFT_NUM_SCRATCH_USES
} weft_scratch_use;

/* The loads at which a rank's memory peaked: kept on the device and in pinned memory, recomputed,
 * kept for the second half of a backward, each slot of offloaded stashes, scratch by use, and the
 * layer of the list that took it (-1: unknown, of all uses that share it). */
typedef struct weft_moe_held_loads {
    weft_moe_load passes, pinned, recomputed, deferred, offloaded[WEFT_PASS_OFFLOAD_SLOTS];
    weft_moe_load scratch[WEFT_NUM_SCRATCH_USES];
    int scratch_layer[WEFT_NUM_SCRATCH_USES];
} weft_moe_held_loads;

/* How MoE layers whose tokens travel run. Zero: synchronous, nothing reused, the plain all-to-all.
 */
typedef struct weft_moe_options {
    weft_moe_pipeline pipeline; /* num_partitions 0: 1 */
    weft_exchange_form form;    /* for tensor-sharded experts */
    int num_chunks;             /* the form's; 0: 1, for direct a default by size */
    bool as_one;                /* rehearsals alone: takes the form's staging, and notes the plain
                                   exchange, by whose time plans price forms */
    weft_moe_load load;         /* plans alone: the fullest rank's load */
} weft_moe_options;

#endif
