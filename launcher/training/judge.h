/* A step whose numbers are wrong: found by the norm before anything is updated (weft_fault), run
 * again to see whose fault it is, and stopped, skipped or gone back from as reliability.on_bad_step
 * says. */
#ifndef WEFT_LAUNCHER_TRAINING_JUDGE_H
#define WEFT_LAUNCHER_TRAINING_JUDGE_H

#include "launcher/training/state.h"

/* What the runs say; as Megatron-LM's rerun state machine tells transient from persistent errors.
 */
typedef enum weft_verdict {
    WEFT_VERDICT_NONE,
    WEFT_VERDICT_TRANSIENT, /* run again it is well */
    WEFT_VERDICT_RANK,      /* wrong on this rank with whatever data, right elsewhere */
    WEFT_VERDICT_DATA,      /* wrong wherever these data are */
    WEFT_VERDICT_CODE,      /* wrong with these and other data, here and elsewhere */
    WEFT_VERDICT_OPEN       /* no replica to ask */
} weft_verdict;

/* What becomes of a step. */
typedef enum weft_outcome {
    WEFT_STEP_GOOD,    /* the first run was, or the second, which then has stepped */
    WEFT_STEP_SKIPPED, /* its batch is passed over, the weights stayed */
    WEFT_STEP_REWINDS  /* the caller loads a checkpoint, and goes on behind its batch */
} weft_outcome;

/* After the program of a step, before it counts. Warns with one line, or returns it: WEFT_FAULTY of
 * a rank that computes wrongly, else WEFT_DIVERGED, where the run is to stop. Collective over the
 * world. */
weft_status weft_trainer_judge(weft_trainer *trainer, int64_t step, weft_outcome *out) WEFT_CHECKED;

/* Back to a checkpoint folder of this run, but for the place in the data, and the count of bad
 * steps. Collective. */
weft_status weft_trainer_rewind(weft_trainer *trainer, const char *checkpoint) WEFT_CHECKED;
/* Compares what ranks hold alike (parallel/replicas.h) behind a step where it is due, and before
 * each save: what a run goes on from has been compared. WEFT_FAULTY where it differs and is not
 * mended. Collective over the world. */
weft_status weft_trainer_compare_replicas(weft_trainer *trainer, bool stops) WEFT_CHECKED;

/* Keeps the norm of a good step's gradients, which the verdict on a bad one tells. */
void weft_trainer_note_norm(weft_trainer *trainer, double norm);

#endif
