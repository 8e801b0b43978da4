/* The number of samples a step, which train.rampup_batch_size lets grow: [start, increment,
 * samples], as Megatron-LM's --rampup-batch-size. From `start` it rises by `increment` each time
 * that samples / ((global_batch_size - start) / increment) more samples are consumed, and is
 * global_batch_size from `samples` on. It follows from the samples consumed alone, so that a run
 * that is resumed, on whatever mesh, goes on with the same batches. Pure. */
#ifndef WEFT_LAUNCHER_PLANNING_RAMP_H
#define WEFT_LAUNCHER_PLANNING_RAMP_H

#include "launcher/planning/config.h"
#include "parallel/optimizer/optimizer.h"
#include "schedule/pipeline/pipeline.h"

/* Errors: WEFT_CONFIG, with the key. */
weft_status weft_ramp_check(const weft_train_options *train) WEFT_CHECKED;
/* The greatest number of samples that divides every batch: micro_batch_size x dp divides it. */
int64_t weft_ramp_unit(const weft_train_options *train);
/* How many sizes there are below global_batch_size, 0: none; and these, rising. */
int weft_ramp_num_sizes(const weft_train_options *train);
int64_t weft_ramp_size(const weft_train_options *train, int index);
/* Samples of the step behind `consumed` samples. */
int64_t weft_ramp_batch(const weft_train_options *train, int64_t consumed);
/* Samples of the first `steps` steps of a run. */
int64_t weft_ramp_samples(const weft_train_options *train, int64_t steps);
/* The learning rate of an update, from 1: the schedule counts samples, in steps of
 * global_batch_size. */
double weft_ramp_lr(const weft_train_options *train, const weft_lr_schedule *lr, int64_t update);
/* "2 to 8 samples": of a step. */
const char *weft_ramp_text(const weft_train_options *train, char out[96]);

/* Which slot of `whole`, the program of more micro-batches, each slot of `part` takes: out [part's
 * slots]. Both are of this pipeline rank of the shape. False: `part` has slots that `whole` has
 * not. */
bool weft_ramp_fit_slots(const weft_program *part, const weft_program *whole,
                         const weft_pipeline_shape *shape, int rank, int *out);

#endif
