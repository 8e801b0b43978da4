/* How a run learns that it shall stop.
 *
 * SIGINT, SIGHUP, SIGTERM and SIGUSR1 mean the same, and so does a standard output whose reader has
 * gone: the run ends its step, saves a checkpoint and exits with WEFT_EXIT_STOPPED. A second SIGINT
 * ends the process at once.
 *
 * The wish is a state, not an event. A `weft train` that starts its own ranks keeps it in a page
 * that the ranks map and read after each step. So it is not lost while ranks start, and kills no
 * rank that is not ready for a signal. */
#ifndef WEFT_LAUNCHER_PROCESS_STOP_H
#define WEFT_LAUNCHER_PROCESS_STOP_H

#include <stdbool.h>
#include <stdint.h>

#include <weft/status.h>

/* Catches the signals, and ignores SIGPIPE. A SIGHUP that is ignored (nohup) stays so. */
void weft_stop_catch_signals(void);
/* The signals alone: of a search, which then ends with what it has and WEFT_EXIT_STOPPED. */
void weft_stop_catch_wishes(void);
bool weft_stop_asked(void);
/* By a SIGTERM of this process' parent: whoever started this rank ends it. */
bool weft_stop_is_ended(void);
void weft_stop_ask(void);
/* From here on this process answers the first signal with a line on stderr. A rank that a launcher
 * started answers SIGUSR1 alone: the others Open MPI sends to end ranks. Nothing in a rank of a
 * starter that shares its page: the starter answers. */
void weft_stop_speak(bool is_launched);
void weft_stop_be_silent(void);
/* `seconds` after a signal has asked for the stop, a process that trains says so in one line and
 * ends with WEFT_STOP_KILLED. 0, the default: never. A process that starts ranks kills them itself.
 */
void weft_stop_set_timeout(int64_t seconds);
int weft_stop_timeout(void);

enum { WEFT_STOP_KILLED = 128 + 9, WEFT_STOP_INTERRUPTED = 128 + 2 };

/* In the process that starts ranks, before it does: puts the wish into a page, whose place the
 * environment tells the ranks. From here on SIGINT is only counted. Again: the page stays. */
weft_status weft_stop_share(void) WEFT_CHECKED;
/* That asked this process to stop, of any kind; of SIGINT alone. */
int weft_stop_num_signals(void);
int weft_stop_num_interrupts(void);
/* In a rank: maps that page, where the environment names one. WEFT_COMM: its maker is gone. */
weft_status weft_stop_join(void) WEFT_CHECKED;

/* In a rank: an evaluation runs from here on, or not: so the answer to a signal says, and so that
 * of the job's starter. */
void weft_stop_set_evaluating(bool evaluates);
/* In a rank: tells the job's starter that the job has stopped as asked, and saved. */
void weft_stop_tell_saved(void);
bool weft_stop_is_saved(void);

/* In a rank: the kernel kills this process when the one that started it (mpirun, its daemon) ends.
 */
void weft_stop_with_parent(void);

#endif
