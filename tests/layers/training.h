/* Small training jobs on mock data: what tests of whole stacks stand on. */
#ifndef WEFT_TESTS_LAYERS_TRAINING_H
#define WEFT_TESTS_LAYERS_TRAINING_H

#include "launcher/training/trainer.h"

typedef struct training_case {
    const char *name;
    const char *model; /* fields of section "model" */
    const char *mesh;
    int global_batch; /* micro-batches of one sample */
    bool bf16;
    const char *parallel; /* more fields of section "parallel"; NULL: none */
    const char *train;    /* of "train", likewise */
    bool documents;       /* packed, which token 3 ends */
} training_case;

typedef struct training {
    weft_arena arena;
    weft_trainer trainer;
} training;

/* A trainer with fresh weights. On failure the reason is printed and the job is taken down, since
 * other ranks may wait. Collective. */
void training_start(training *t, const training_case *c, weft_comm *world);
void training_step(training *t, weft_step_result *out);
void training_release(training *t);

/* The losses of `steps` steps; false when one is not finite. Collective. */
bool training_losses(const training_case *c, weft_comm *world, int steps, double *out);

#endif
