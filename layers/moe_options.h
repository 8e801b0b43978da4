/* How MoE layers run. */
#ifndef WEFT_LAYERS_MOE_OPTIONS_H
#define WEFT_LAYERS_MOE_OPTIONS_H

#include "schedule/exchange.h"
#include "schedule/moe_layer.h"
#include "schedule/pass.h"

/* Rows over those that balanced routing brings: at a rank's experts, leaving it, and of the largest
 * partition over its share. 0: 1, or that of all partitions. */
typedef struct weft_moe_load {
    double rows, sent, part_rows, part_sent;
} weft_moe_load;

/* Those at which a rank's memory took most: what passes keep on the device and in pinned memory,
 * what is recomputed, each slot of what is offloaded, scratch. */
typedef struct weft_moe_held_loads {
    weft_moe_load passes, pinned, recomputed, offloaded[WEFT_PASS_OFFLOAD_SLOTS], scratch;
} weft_moe_held_loads;

/* How MoE layers whose tokens travel run. Zero: synchronous, nothing reused, the plain all-to-all.
 */
typedef struct weft_moe_options {
    weft_moe_pipeline pipeline; /* num_partitions 0: 1 */
    weft_exchange_form form;    /* where experts are tensor-sharded too */
    int num_chunks;             /* of form; 0: 1, or of direct a default by size */
    weft_moe_load load;         /* in plans: the fullest rank's */
} weft_moe_options;

#endif
