/* How a run learns that it shall stop.
 *
 * SIGINT, SIGHUP, SIGTERM and SIGUSR1 mean the same, and so does a standard output whose reader has
 * gone: the step in progress ends, a checkpoint is saved, the exit code is WEFT_EXIT_STOPPED. A
 * second SIGINT ends the process at once.
 *
 * The wish is a state, not an event. `weft train` that starts its own ranks keeps it in a page that
 * they map and read after each step, so that it is neither lost while they start nor kills one that
 * is not ready for a signal. */
#ifndef WEFT_LAUNCHER_PROCESS_STOP_H
#define WEFT_LAUNCHER_PROCESS_STOP_H

#include <stdbool.h>
#include <stdint.h>

#include <weft/status.h>

/* Catches the signals, and ignores SIGPIPE. A SIGHUP that is ignored (nohup) stays so. */
void weft_stop_catch_signals(void);
bool weft_stop_asked(void);
void weft_stop_ask(void);
/* `seconds` after a signal has asked for the stop, a process that trains says so in one line and
 * ends with WEFT_STOP_KILLED; 0, as at first: never. One that starts ranks sees to them itself. */
void weft_stop_set_timeout(int64_t seconds);
int weft_stop_timeout(void);

enum { WEFT_STOP_KILLED = 128 + 9, WEFT_STOP_INTERRUPTED = 128 + 2 };

/* In the process that starts ranks, before it does: puts the wish into a page, whose place ranks
 * find in the environment. From here on SIGINT is only counted. */
weft_status weft_stop_share(void) WEFT_CHECKED;
int weft_stop_num_interrupts(void);
/* In a rank: maps that page, where the environment names one; WEFT_COMM when who made it is gone.
 */
weft_status weft_stop_join(void) WEFT_CHECKED;

/* In a rank: the job has stopped as asked, and saved. Its starter learns it, whatever mpirun says.
 */
void weft_stop_tell_saved(void);
bool weft_stop_is_saved(void);

/* In a rank: the kernel kills this process when the one that started it (mpirun, its daemon) ends.
 */
void weft_stop_with_parent(void);

#endif
