/* The shapes of a stage's buckets. Pure. */
#ifndef WEFT_PARALLEL_RESIDENCY_BUCKETS_H
#define WEFT_PARALLEL_RESIDENCY_BUCKETS_H

#include "core/arena.h"
#include "core/bucket.h"
#include "parallel/residency/residency.h"

/* Lists a stage's buckets in the order in which all its ranks start their reductions. First come
 * those that overlap with the last backward, from the last layer down, dense before expert where
 * one layer completes both. Then come those of sections that are summed before they are reduced:
 * they wait for the end of the backward, since a sum between the first and the last stage would
 * hold up the buckets behind it. Every shape's chunk is 0; those offloaded have no point yet, and
 * say not when they step. */
weft_status weft_buckets_order(const weft_cut_sections *sections, const weft_mesh *mesh,
                               const weft_residency *residency, weft_arena *arena,
                               weft_buckets *out) WEFT_CHECKED;

#endif
