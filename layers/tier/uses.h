/* Predicts the next use of experts in a file; the record used last leaves host memory
 * (parallel/records/records.h). Every step runs the same program, so a layer's next visit is where
 * it was in the previous step. A visit's order of experts is known once its rows are counted; the
 * visit behind it is assumed to have the same order, or the reverse where the direction turns.
 * After a step's visits its update uses all experts, for the norm and to step them.
 *
 * Times are visit << 24 | order within the visit. In a first step and in evaluations a layer is
 * assumed to come again after all others. */
#ifndef WEFT_LAYERS_TIER_USES_H
#define WEFT_LAYERS_TIER_USES_H

#include "core/arena.h"
#include "parallel/records/records.h"

typedef struct weft_tier_visits {
    int32_t *layers; /* 2 * index, + 1 for a backward */
    int count;
} weft_tier_visits;

typedef struct weft_tier_uses {
    weft_records *records; /* NULL: experts are in memory; no function here does anything */
    int num_layers, num_experts, capacity;
    bool ahead;                   /* experts are stepped behind their layer's last backward */
    bool training, knows;         /* knows: `before` has a step's visits */
    weft_tier_visits before, now; /* now: this step's */
    uint64_t start, clock;        /* numbers of the step's first visit; of the current one */
} weft_tier_uses;

weft_status weft_tier_uses_init(weft_tier_uses *uses, weft_records *records, int num_layers,
                                int num_experts, weft_arena *arena) WEFT_CHECKED;
void weft_tier_uses_begin(weft_tier_uses *uses, bool training);

/* Begins a visit of a layer, by index among layers with experts. */
void weft_tier_uses_visit(weft_tier_uses *uses, int layer, bool backward);
/* The visit uses the record again, as use number `order`. */
void weft_tier_uses_again(weft_tier_uses *uses, int32_t record, int order);
/* A later visit uses the record, in the same order, or with `turned` in reverse. */
void weft_tier_uses_later(weft_tier_uses *uses, int32_t record, int order, int turned);
/* The update uses a record, for the norm or its step. first: the layer's first record. */
void weft_tier_uses_update(weft_tier_uses *uses, int layer, int32_t first, int32_t record,
                           bool is_step);

#endif
