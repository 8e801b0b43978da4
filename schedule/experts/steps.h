/* Proves two consecutive steps of experts that the host steps beside the next forward: no task of
 * the second step runs too early for unfinished tasks of the first, nor any task too early for the
 * other programs of its own step. Pure.
 *
 * The checker unrolls the step's program twice, and in every pass its body (schedule/body.h), of
 * which it takes what the lanes of computation and of experts do. Lanes are FIFOs; bodies have
 * lanes to_device, to_host, host and file of their own (the step's tasks may come between those of
 * file). The proof assumes no other order: neither that a run ends, nor that the host enqueues
 * late. Which expert
 * stands at a position is unknown and differs between micro-batches, so a condition must hold for
 * every expert that may stand there. An expert without rows has no task that waits.
 *
 *  1. no weights are read, on the host or where they are kept, before their expert's update of the
 *     step before is over, and none are updated while a pass of the step may read them;
 *  2. no gradient is written before the update of the step before has read it, and none is read
 *     before all micro-batches have been added;
 *  3. of experts in a file nothing is read before the gradient has landed and the step before is
 *     over, and nothing is reduced, summed or stepped before it is read;
 *  4. no slot of a ring is overwritten while another layer, or the step before, needs it. A task
 *     waits for the last uses of its slot by layers before (layers/tier/run.h). */
#ifndef WEFT_SCHEDULE_EXPERTS_STEPS_H
#define WEFT_SCHEDULE_EXPERTS_STEPS_H

#include "core/bucket.h"
#include "schedule/experts/experts.h"

/* An MoE layer with offloaded experts; the step has a bucket for each position. */
typedef struct weft_experts_layer {
    int layer, chunk; /* the layer's numbers in its buckets */
    weft_experts_shape shape;
} weft_experts_layer;

/* Of a chunk's passes. */
typedef struct weft_experts_bodies {
    const weft_program *forward, *backward;
} weft_experts_bodies;

typedef struct weft_experts_steps {
    const weft_program *step; /* one rank's program; few micro-batches stand for many */
    const weft_buckets *buckets;
    const weft_experts_layer *layers; /* in the model's order */
    int num_layers;
    const weft_experts_bodies *bodies; /* by chunk */
    int num_chunks;
    bool drains; /* the second step begins when all lanes have ended the first (`after`) */
} weft_experts_steps;

/* The programs must have passed their own checkers. WEFT_INTERNAL names the task, step and layer
 * that may come too early, and for what. */
weft_status weft_program_experts_check_steps(const weft_experts_steps *steps) WEFT_CHECKED;

#endif
