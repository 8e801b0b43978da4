/* Starting the ranks: `weft train` and `weft eval` outside a launcher start mpirun themselves. */
#ifndef WEFT_LAUNCHER_PROCESS_LAUNCH_H
#define WEFT_LAUNCHER_PROCESS_LAUNCH_H

#include <weft/status.h>

/* Runs mpirun with `world` copies of argv (argv[0] resolved to this binary's own path, argv[1] the
 * verb) on this machine alone, and waits for it; *exit_code is the job's. The ranks talk through
 * shared memory, and mpirun listens on the loopback. It has a process group of its own: what a
 * terminal sends reaches this process, and the ranks hear of it through launcher/process/stop.h. A
 * job that does not stop within weft_stop_set_timeout, or at a second SIGINT, is killed:
 * WEFT_STOP_KILLED, WEFT_STOP_INTERRUPTED. What mpirun says about a job that failed is put into one
 * line; the ranks' own words pass unchanged. WEFT_TTY names the user's terminal to the ranks, empty
 * where there is none: rank 0's stdout is a pipe. WEFT_COMM when it cannot be started. */
weft_status weft_launch_mpirun(int world, int argc, char **argv, int *exit_code) WEFT_CHECKED;

#endif
