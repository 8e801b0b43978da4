/* When experts in a file are used next, by which records leave host memory (parallel/records.h):
 * the step's program is the same every step, so a layer's next visit stands where it stood in the
 * step before; inside a visit the experts' order is known when its rows are counted, and that of
 * the visit behind it is taken to be the same, or where the direction turns its reverse. Behind the
 * visits of a step its update uses all experts, for the norm and to step them.
 *
 * Times are visit << 24 | order in it. In a first step and in evaluations a layer is taken to come
 * again after all others. Private to layers/. */
#ifndef WEFT_LAYERS_TIER_USES_H
#define WEFT_LAYERS_TIER_USES_H

#include "core/arena.h"
#include "parallel/records.h"

typedef struct weft_tier_visits {
    int32_t *layers; /* twice its index, and 1 where it goes backward */
    int count;
} weft_tier_visits;

typedef struct weft_tier_uses {
    weft_records *records; /* NULL: experts are in memory, and nothing here does anything */
    int num_layers, num_experts, capacity;
    bool ahead; /* a layer's experts step behind its last backward, before the one below */
    bool training, knows;         /* visits of the step before */
    weft_tier_visits before, now; /* `now`: of the step at hand */
    uint64_t start, clock;        /* the first visit's number; of the one at hand */
} weft_tier_uses;

weft_status weft_tier_uses_init(weft_tier_uses *uses, weft_records *records, int num_layers,
                                int num_experts, weft_arena *arena) WEFT_CHECKED;
void weft_tier_uses_begin(weft_tier_uses *uses, bool training);

/* A visit of a layer, by index among those with experts. */
void weft_tier_uses_visit(weft_tier_uses *uses, int layer, bool backward);
/* The record is used in it again, as use number `order`; */
void weft_tier_uses_again(weft_tier_uses *uses, int32_t record, int order);
/* or in a later one, in the same order, `turned` where that goes the other way. */
void weft_tier_uses_later(weft_tier_uses *uses, int32_t record, int order, int turned);
/* The update's norm and step of a record, whose layer's first is given. */
void weft_tier_uses_update(weft_tier_uses *uses, int layer, int32_t first, int32_t record,
                           bool is_step);

#endif
