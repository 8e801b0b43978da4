/* Ranks that `weft train` started are started again after a fault: from the newest checkpoint that
 * is whole, as by --resume, with the same mesh. Private to launcher/. */
#ifndef WEFT_LAUNCHER_TRAINING_RESTARTS_H
#define WEFT_LAUNCHER_TRAINING_RESTARTS_H

#include "launcher/planning/reliability.h"
#include "launcher/training/run_folder.h"

/* Whether a job that ends so may go on: a rank was killed by a signal, the device, the
 * communication or a file failed (a disk that failed once reads the next time), ranks no longer got
 * on, or one computed wrongly. Not where the next start would meet the same (bad config, a
 * checkpoint of a newer Weft, memory that is short, divergence, a bug), and not at a stop. */
bool weft_restarts_is_fault(int exit_code);

/* weft_launch_mpirun with argv (argv[1] the verb), and again after each fault, at most
 * options->max_restarts times, unless the job was asked to stop: one line on standard error each
 * time. It waits restart_delay_s before, twice as long after each start that came no further than
 * the starts before it, 10 minutes at most. Four starts in a row that end alike end it: in the
 * same step, with the same exit code, and without the same ranks. *exit_code: the last start's;
 * of a stop while it waits WEFT_EXIT_STOPPED where there is a checkpoint. */
weft_status weft_restarts_run(const weft_reliability_options *options,
                              const weft_run_folder *folder, int world, int argc, char **argv,
                              int *exit_code) WEFT_CHECKED;

#endif
