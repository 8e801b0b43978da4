/* Generators of pipeline programs. Pure: the same shape gives the same bytes.
 *
 * Slots of a stage: max_in_flight of kind activation: micro-batch m's input of this stage and
 * everything its backward needs lie in slot m % max_in_flight; two of kind output for activations
 * being sent on; two of kind gradient for gradients received; two of kind input_gradient for
 * gradients being sent back. Two let the next micro-batch be computed or received while this one is
 * still sent or used. Slots have a boundary's bytes, activations of the first stage none. The
 * forward_only program of a stage has slots of its training program alone, under the same numbers,
 * so that evaluation takes no memory of its own: of the activations it uses two, so that one
 * micro-batch arrives while another is computed, or one where training has no more, and its table
 * gives the others no bytes.
 *
 * A step of one stage: for its m micro-batches forwards and backwards in the schedule's order,
 * RECEIVE and SEND where a neighbour exists, then the update (schedule/update.h). */
#ifndef WEFT_SCHEDULE_PIPELINE_H
#define WEFT_SCHEDULE_PIPELINE_H

#include "core/bucket.h"
#include "schedule/program.h"

typedef enum weft_pipeline_kind { WEFT_PIPELINE_1F1B, WEFT_PIPELINE_GPIPE } weft_pipeline_kind;

typedef struct weft_pipeline_shape {
    weft_pipeline_kind kind;
    int num_stages, num_micro_batches;
    bool forward_only;           /* evaluation: no backward, reduce or step */
    uint64_t boundary_bytes;     /* of what travels between stages, a micro-batch */
    const weft_buckets *buckets; /* [num_stages] of gradients; NULL: training has none */
} weft_pipeline_shape;

/* 1F1B (PipeDream-flush; Narayanan et al. 2021, §2.2): stage i runs p - i - 1 forwards first, then
 * one forward one backward; at most p - i micro-batches in flight. GPipe (Huang et al. 2019): all
 * forwards, then all backwards; m in flight. Errors: WEFT_CONFIG for a shape without stages or
 * micro-batches, WEFT_MEMORY. */
weft_status weft_program_pipeline(const weft_pipeline_shape *shape, int stage, weft_arena *arena,
                                  weft_program *out) WEFT_CHECKED;

/* Proves programs [num_stages] to be a step of that shape (schedule/check.h): every micro-batch
 * forwarded once and, unless forward_only, backwarded once; then the update. The schedule's kind
 * does not matter. Errors: as of weft_program_check. */
weft_status weft_program_pipeline_check(const weft_program *programs,
                                        const weft_pipeline_shape *shape) WEFT_CHECKED;

#endif
