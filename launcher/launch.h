/* Starting the ranks: `weft train` outside a launcher starts mpirun itself. */
#ifndef WEFT_LAUNCHER_LAUNCH_H
#define WEFT_LAUNCHER_LAUNCH_H

#include <weft/status.h>

/* Replaces this process by mpirun with `world` copies of argv (argv[0] resolved to this binary's
 * own path). Returns only on failure: WEFT_COMM. The ranks know from WEFT_TTY whether the progress
 * line may rewrite itself: rank 0's stdout is a pipe to mpirun. */
weft_status weft_launch_mpirun(int world, int argc, char **argv) WEFT_CHECKED;

#endif
