/* weft train --dry-run: what a start checks, and what the run would be, without ranks. */
#ifndef WEFT_LAUNCHER_TRAINING_DRY_RUN_H
#define WEFT_LAUNCHER_TRAINING_DRY_RUN_H

#include "launcher/training/train.h"

/* Checks folder, mesh, device, data (every token), model, memory and what is loaded, as a start of
 * `world` ranks (0: as many as the config asks for) does before its first step, and prints them.
 * asked->source.keeps_nothing is set: nothing is written. `changes`: what is resumed otherwise than
 * it ran; NULL: nothing. Errors: those of the start. */
weft_status weft_dry_run(const weft_training *asked, const weft_config *config,
                         const weft_run_start *start, const char *changes, int world,
                         weft_arena *arena) WEFT_CHECKED;

#endif
