/* Which number of a rank's own state is none: a moment, a master or a weight that is not finite
 * makes every later step bad, whatever its data. */
#ifndef WEFT_PARALLEL_OPTIMIZER_STATE_LOOK_H
#define WEFT_PARALLEL_OPTIMIZER_STATE_LOOK_H

#include "parallel/optimizer/optimizer.h"

enum { WEFT_STATE_LOOK_BYTES = WEFT_MAX_NAME_BYTES + 96 };

/* Fills in "exp_avg of NAME on rank 2 (layer 3) is nan", of moments before masters before weights,
 * of the lowest rank that has one; "": all are finite (files of experts are not read). An
 * exp_avg_sq below 0 is as bad. The caller has drained the lanes that write them. Enqueues on
 * `lane` and waits for it. Collective over the world. */
weft_status weft_state_find_bad(weft_optimizer *optimizer, weft_lane *lane,
                                char out[WEFT_STATE_LOOK_BYTES]) WEFT_CHECKED;

#endif
