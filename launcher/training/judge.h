/* Handles a step with wrong numbers. The norm finds it before any update (weft_fault); the trainer
 * runs it again to find the fault, then stops, skips or rewinds by reliability.on_bad_step. */
#ifndef WEFT_LAUNCHER_TRAINING_JUDGE_H
#define WEFT_LAUNCHER_TRAINING_JUDGE_H

#include "launcher/training/trainer.h"

/* The verdict of the runs, like that of Megatron-LM's rerun state machine. */
typedef enum weft_verdict {
    WEFT_VERDICT_NONE,
    WEFT_VERDICT_TRANSIENT, /* the second run is well */
    WEFT_VERDICT_RANK,      /* wrong on this rank with any data, right elsewhere */
    WEFT_VERDICT_DATA,      /* wrong on every rank with these data */
    WEFT_VERDICT_CODE,      /* wrong with these and other data, here and elsewhere */
    WEFT_VERDICT_OPEN       /* no replica to compare with */
} weft_verdict;

/* The outcome of a step. */
typedef enum weft_outcome {
    WEFT_STEP_GOOD,    /* the first run is good, or the second, which has updated */
    WEFT_STEP_SKIPPED, /* its batch is skipped, without an update */
    WEFT_STEP_REWINDS  /* the caller loads a checkpoint and continues behind the batch */
} weft_outcome;

/* Call it after a step's program, before the step counts. Warns with one line, or returns the line
 * as an error if the run is to stop: WEFT_FAULTY for a rank that computes wrongly, else
 * WEFT_DIVERGED. Collective over the world. */
weft_status weft_trainer_judge(weft_trainer *trainer, int64_t step, weft_outcome *out) WEFT_CHECKED;
/* Compares replicated state (parallel/optimizer/optimizer.h) behind a step if due, and before each
 * save, so that every checkpoint has been compared. WEFT_FAULTY: it differs and is not mended.
 * Collective over the world. */
weft_status weft_trainer_compare_replicas(weft_trainer *trainer, bool stops) WEFT_CHECKED;
/* Of what each rank updates (parallel/optimizer/optimizer.h): whether the step that begins leaves
 * hashes, because it is due or is followed by a save or a copy. */
void weft_trainer_leave_state(weft_trainer *trainer, int64_t step);
/* Behind a step that has updated, or not: WEFT_FAULTY: what it read was not what the step before
 * had left. Collective over the world. */
weft_status weft_trainer_check_state(weft_trainer *trainer, bool updated) WEFT_CHECKED;
/* Right before a save or a copy of the state that a step left, if that left hashes. Collective over
 * the world. */
weft_status weft_trainer_verify_state(weft_trainer *trainer) WEFT_CHECKED;

/* Keeps the norm of a good step's gradients, which the verdict on a bad one tells. */
void weft_trainer_note_norm(weft_trainer *trainer, const weft_step_result *result);

#endif
