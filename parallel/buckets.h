/* The shapes of a stage's buckets. Pure. */
#ifndef WEFT_PARALLEL_BUCKETS_H
#define WEFT_PARALLEL_BUCKETS_H

#include "core/arena.h"
#include "core/bucket.h"
#include "parallel/parameters.h"

/* The buckets of a stage's sections. */
typedef struct weft_cut_sections {
    const weft_bucket *buckets[WEFT_NUM_SECTIONS];
    int num_buckets[WEFT_NUM_SECTIONS];
} weft_cut_sections;

/* The order in which all ranks of a stage start their reductions: buckets that are complete while
 * the last backward still runs (overlap), by layer, the dense ones first where one layer completes
 * both; then those of sections that are summed first, which wait for the end: a sum between the
 * first and the last stage would hold up the buckets behind it. distributed: ZeRO-1. The chunks
 * are 0. */
weft_status weft_buckets_order(const weft_cut_sections *sections, const weft_mesh *mesh,
                               bool overlap, bool distributed, weft_arena *arena,
                               weft_buckets *out) WEFT_CHECKED;

#endif
