/* Training on a mesh, for tests that compare what meshes give. */
#ifndef WEFT_TESTS_LAUNCHER_MESHES_H
#define WEFT_TESTS_LAUNCHER_MESHES_H

#include "launcher/training/trainer.h"

typedef struct mesh_training {
    const char *name, *model; /* JSON of section "model" */
    const char *mesh;
    const char *parallel;   /* more keys of section "parallel", each behind a comma; NULL: none */
    const char *train;      /* more keys of section "train", likewise */
    int batch, steps;       /* sequences a step */
    const char *from;       /* the checkpoint to start from; NULL: none */
    const char *checkpoint; /* the folder to leave one in; NULL: none */
    const char *set[12];    /* over all that, as by --set; up to the first NULL */
} mesh_training;

/* Trains on all of the world's ranks; results [steps]. The first step must run what is planned
 * (tests/launcher/planned.h). Ends the world's ranks where it cannot. */
void mesh_run(weft_comm *world, const mesh_training *what, weft_step_result *results);

#endif
