/* The trainer: one rank's part of a training job.
 *
 * Set-up phases end in agreement over the world, so that every rank returns the same status. A
 * step runs this stage's pipeline program; a rank that finds an error inside a step prints it and
 * takes the job down. */
#ifndef WEFT_LAUNCHER_TRAINING_TRAINER_H
#define WEFT_LAUNCHER_TRAINING_TRAINER_H

#include "launcher/training/result.h"
#include "launcher/training/state.h"
#include "layers/outline/footprint.h"

/* Makes device, mesh, data, model, optimizer and programs. Fills config.model.vocab_size 0 from the
 * dataset's tokenizer. Collective over world. */
weft_status weft_trainer_create(weft_trainer *trainer, const weft_config *config,
                                const weft_config_source *source, weft_comm *world,
                                weft_arena *arena) WEFT_CHECKED;
/* The same without what training alone needs: no gradients, no optimizer, no measuring. It starts
 * from a checkpoint and evaluates. Collective over world. */
weft_status weft_trainer_create_evaluating(weft_trainer *trainer, const weft_config *config,
                                           const weft_config_source *source, weft_comm *world,
                                           weft_arena *arena) WEFT_CHECKED;
void weft_trainer_release(weft_trainer *trainer);
/* This rank's planned memory, with balanced routing. */
weft_status weft_trainer_footprint(const weft_trainer *trainer, weft_footprint *out) WEFT_CHECKED;
/* The same at the loads that its MoE layers had when they took most. */
weft_status weft_trainer_footprint_at_load(const weft_trainer *trainer,
                                           weft_footprint *out) WEFT_CHECKED;

/* Fresh weights, or those of a checkpoint folder. Collective. */
weft_status weft_trainer_start(weft_trainer *trainer, const char *checkpoint) WEFT_CHECKED;
/* One optimizer step, or none where out->rewinds. Collective. */
weft_status weft_trainer_step(weft_trainer *trainer, weft_step_result *out) WEFT_CHECKED;
/* Mean loss over the labels of the first eval_iters global batches of a split, in the order of the
 * dataset; where the split ends it starts again. A stop that is asked for ends it behind the batch
 * that runs. WEFT_DIVERGED where the loss is not finite, WEFT_CONFIG where no label bears one.
 * Collective. */
weft_status weft_trainer_evaluate(weft_trainer *trainer, weft_split_kind split,
                                  weft_evaluation *out) WEFT_CHECKED;
/* Warns where that wants more samples than the split holds. Not collective. */
void weft_trainer_tell_repeats(const weft_trainer *trainer, weft_split_kind split);
/* Saves under `dir`/step-N. Collective. */
weft_status weft_trainer_save(weft_trainer *trainer, const char *dir) WEFT_CHECKED;
/* Hands the state over to trainer->writer, which saves it so (weft_checkpoint_begin); dir NULL:
 * into nodes' memory (weft_copies_begin). Collective. */
weft_status weft_trainer_begin_save(weft_trainer *trainer, const char *dir,
                                    const weft_checkpoint_keep *keep) WEFT_CHECKED;
/* Brings the kept timeline of the ranks that log.trace_ranks names to rank 0. Collective. */
weft_status weft_trainer_collect_trace(weft_trainer *trainer) WEFT_CHECKED;
/* Rank 0, behind that: as trace.json and trace.svg in `dir`. WEFT_FILE: it may try again. */
weft_status weft_trainer_write_trace(const weft_trainer *trainer, const char *dir) WEFT_CHECKED;

#endif
