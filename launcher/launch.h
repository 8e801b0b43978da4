/* Starting the ranks: `weft train` and `weft eval` outside a launcher start mpirun themselves. */
#ifndef WEFT_LAUNCHER_LAUNCH_H
#define WEFT_LAUNCHER_LAUNCH_H

#include <weft/status.h>

/* Runs mpirun with `world` copies of argv (argv[0] resolved to this binary's own path, argv[1] the
 * verb) and waits for it; *exit_code is the job's. SIGTERM and SIGUSR1 to this process reach the
 * ranks as SIGUSR1: mpirun would give them a second to die in, and a checkpoint takes longer. What
 * mpirun says about a job that failed is put into one line; the ranks' own words pass unchanged.
 * WEFT_TTY names the user's terminal to the ranks, empty where there is none: rank 0's stdout is a
 * pipe to mpirun. WEFT_COMM when it cannot be started. */
weft_status weft_launch_mpirun(int world, int argc, char **argv, int *exit_code) WEFT_CHECKED;

#endif
