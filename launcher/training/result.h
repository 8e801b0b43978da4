/* A step's result: sums over ranks, its peak, who was slow. Of the trainer alone. */
#ifndef WEFT_LAUNCHER_TRAINING_RESULT_H
#define WEFT_LAUNCHER_TRAINING_RESULT_H

#include "launcher/training/state.h"
#include "launcher/training/trainer.h"

/* What the tier's counters say by now is of no step: before the first. */
void weft_trainer_forget_counts(weft_trainer *trainer);
/* How MoE layers run in the step that begins. */
void weft_trainer_note_choice(weft_trainer *trainer, weft_step_result *out);
/* Fills in what the program that ran summed up to, in step_ms. Collective. */
weft_status weft_trainer_sums(weft_trainer *trainer, double step_ms,
                              weft_step_result *out) WEFT_CHECKED;
/* These, and each dataset's part, of a step of training; warns of ranks and links that are slow,
 * and once if compute falls behind device.pace. Collective. */
weft_status weft_trainer_result(weft_trainer *trainer, double step_ms,
                                weft_step_result *out) WEFT_CHECKED;

#endif
