/* That a trainer runs what is planned: the programs of its step, of its passes and of its MoE
 * layers are those that `weft plan` prices and `weft schedule` prints for its config, byte for
 * byte. */
#ifndef WEFT_TESTS_LAUNCHER_PLANNED_H
#define WEFT_TESTS_LAUNCHER_PLANNED_H

#include "launcher/training/trainer.h"

/* Compares the programs that the trainer has, and from now on each task of the step's program that
 * its executor starts. One trainer at a time. */
void planned_begin(weft_trainer *trainer, const weft_config_source *source);
/* Since planned_begin one step ran, and all of its program. */
void planned_end(weft_trainer *trainer);

#endif
