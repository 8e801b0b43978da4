/* Generators of pipeline programs. Pure: the same shape gives the same bytes.
 *
 * Slots of a stage (num_slots in all): ring `activation` of max_in_flight slots: slot
 * a(m) = m % ring holds micro-batch m's input of this stage and everything its backward needs;
 * ring `output` of two slots for activations being sent on; ring `gradient` of two slots for
 * gradients received; ring `input gradient` of two slots for gradients being sent back. Rings of
 * two let the next micro-batch be computed or received while this one is still sent or used. The
 * forward_only program of a stage uses slots of its training program alone, so that evaluation
 * takes no memory of its own: of the activations two, so that one micro-batch arrives while another
 * is computed, or one where training has no more.
 *
 * A step of one stage: for its m micro-batches forwards and backwards in the schedule's order,
 * RECEIVE and SEND where a neighbour exists, then one REDUCE (gradient reduction; it overlaps the
 * last backward inside the executor) and one STEP (optimizer). */
#ifndef WEFT_SCHEDULE_PIPELINE_H
#define WEFT_SCHEDULE_PIPELINE_H

#include "schedule/program.h"

typedef enum weft_pipeline_kind { WEFT_PIPELINE_1F1B, WEFT_PIPELINE_GPIPE } weft_pipeline_kind;

typedef struct weft_pipeline_shape {
    weft_pipeline_kind kind;
    int num_stages, num_micro_batches;
    bool forward_only; /* evaluation: no backward, reduce or step */
} weft_pipeline_shape;

/* The slots, for executors: the first slot of each ring, -1 where the stage has no use for it (no
 * such neighbour, or forward_only). */
typedef struct weft_pipeline_slots {
    int activation, num_activation;       /* num_activation is the ring's length */
    int output, gradient, input_gradient; /* rings of two each */
    int num_slots;
} weft_pipeline_slots;
weft_pipeline_slots weft_pipeline_slots_of(const weft_pipeline_shape *shape, int stage);

/* 1F1B (PipeDream-flush; Narayanan et al. 2021, §2.2): stage i runs p - i - 1 forwards first, then
 * one forward one backward; at most p - i micro-batches in flight. GPipe (Huang et al. 2019): all
 * forwards, then all backwards; m in flight. Errors: WEFT_CONFIG for a shape without stages or
 * micro-batches, WEFT_MEMORY. */
weft_status weft_program_pipeline(const weft_pipeline_shape *shape, int stage, weft_arena *arena,
                                  weft_program *out) WEFT_CHECKED;

#endif
