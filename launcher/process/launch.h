/* Starting the ranks: `weft train`, `weft eval` and `weft calibrate --for` outside a launcher start
 * mpirun themselves. */
#ifndef WEFT_LAUNCHER_PROCESS_LAUNCH_H
#define WEFT_LAUNCHER_PROCESS_LAUNCH_H

#include <weft/status.h>

/* Runs mpirun with `world` copies of argv (argv[0] resolved to this binary's own path, argv[1] the
 * verb) on this machine alone, and waits for it; *exit_code is the job's. The ranks talk through
 * shared memory, and mpirun listens on the loopback. It has a process group of its own: a
 * terminal's signals reach this process alone, which tells the ranks (launcher/process/stop.h). It
 * kills a job that does not stop within weft_stop_set_timeout (WEFT_STOP_KILLED), or at a second
 * SIGINT (WEFT_STOP_INTERRUPTED). It makes one line of what mpirun says about a job that failed,
 * and passes on the ranks' words unchanged. Of a rank that is killed it says where it was, as far
 * as flight records in `run` tell (NULL: none do). Rank 0's stdout is a pipe, so WEFT_TTY names the
 * user's terminal to the ranks; empty: there is none. Errors: WEFT_COMM where mpirun cannot be
 * started. */
weft_status weft_launch_mpirun(int world, int argc, char **argv, const char *run,
                               int *exit_code) WEFT_CHECKED;
/* The rank that mpirun said was killed by a signal, in the last of these; -1: it said so of none.
 */
int weft_launch_killed_rank(void);

#endif
