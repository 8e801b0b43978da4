/* weft train, behind its command line: the run, from the config to the last save. */
#ifndef WEFT_LAUNCHER_TRAINING_TRAIN_H
#define WEFT_LAUNCHER_TRAINING_TRAIN_H

#include "launcher/planning/config.h"
#include "launcher/training/run_folder.h"

/* What the command line asks for. */
typedef struct weft_training {
    weft_config_source source;
    weft_run_folder run;
    bool json, dry_run;
    double began_us; /* weft_now_us, when the command began */
} weft_training;

/* Trains, with ranks that it starts where no launcher has, by argc and argv, the verb's; prints
 * what fails. Returns the process' exit code. */
int weft_train(weft_training *asked, int argc, char **argv, weft_arena *arena);

#endif
