/* How MoE layers run. */
#ifndef WEFT_LAYERS_MOE_OPTIONS_H
#define WEFT_LAYERS_MOE_OPTIONS_H

#include "schedule/exchange.h"
#include "schedule/moe_layer.h"

/* How MoE layers whose tokens travel run. Zero: synchronous, nothing reused, the plain all-to-all.
 */
typedef struct weft_moe_options {
    weft_moe_pipeline pipeline; /* num_partitions 0: 1 */
    weft_exchange_form form;    /* where experts are tensor-sharded too */
    int num_chunks;             /* of form; 0: 1, or of direct a default by size */
    double load;                /* in plans: rows at the fullest rank's experts over those that
                                   balanced routing brings; 0: 1 */
} weft_moe_options;

#endif
