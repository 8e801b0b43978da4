/* Two steps, one behind the other, of experts that the host steps while the next forward runs:
 * proves that no task of the second comes too early for what the first still does, and none of
 * either for the other levels of its own step. Pure.
 *
 * The step's program is unrolled twice, and in every pass its layers' programs of experts
 * (schedule/experts.h). Lanes are FIFOs; the lanes to_device, to_host and host of the experts'
 * programs are FIFOs of their own; so is taken to be their lane file, whose tasks the step's may
 * come between. Nothing else is taken for ordered: not that a run ends, nor that the host enqueues
 * late. Which expert stands at a position is not known and differs between micro-batches, so what
 * must be over for an expert must be over for all experts that may be there. An expert without rows
 * has no task that waits.
 *
 *  1. no weights are read, on the host or where they are kept, before their expert's update of the
 *     step before is over, and none are updated while a pass of the step may read them;
 *  2. no gradient is written before the update of the step before has read it, and none is read
 *     before all micro-batches have been added;
 *  3. of experts in a file nothing is read before the gradient has landed and the step before is
 *     over, and nothing is reduced, summed or stepped before it is read;
 *  4. no slot of a ring is overwritten while another layer, or the step before, needs it. First
 * uses of a program come behind the last ones before it, as who runs it orders them. */
#ifndef WEFT_SCHEDULE_EXPERTS_STEPS_H
#define WEFT_SCHEDULE_EXPERTS_STEPS_H

#include "core/bucket.h"
#include "schedule/experts.h"

/* An MoE layer whose experts are offloaded: a bucket of the step's for each position. */
typedef struct weft_experts_layer {
    int layer, chunk; /* as its buckets have them */
    weft_experts_shape shape;
    const weft_program *forward, *backward;
} weft_experts_layer;

typedef struct weft_experts_steps {
    const weft_program *step; /* a rank's; one of few micro-batches stands for one of many */
    const weft_buckets *buckets;
    const weft_experts_layer *layers; /* in the model's order */
    int num_layers;
    bool drains; /* the second step begins when all lanes have ended the first (`after`) */
} weft_experts_steps;

/* The programs have passed their own checkers. WEFT_INTERNAL: which task of which step and layer
 * may come too early, and for what. */
weft_status weft_program_experts_check_steps(const weft_experts_steps *steps) WEFT_CHECKED;

#endif
