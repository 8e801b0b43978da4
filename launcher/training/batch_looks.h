/* Which micro-batch of a step that is run again has a gradient that is not finite. */
#ifndef WEFT_LAUNCHER_TRAINING_BATCH_LOOKS_H
#define WEFT_LAUNCHER_TRAINING_BATCH_LOOKS_H

#include "launcher/training/state.h"

/* Behind micro-batch m of a step that is run again: on this rank, whose backwards stand on `lane`.
 */
weft_status weft_trainer_look_at_batch(weft_trainer *trainer, int m, weft_lane *lane) WEFT_CHECKED;

#endif
