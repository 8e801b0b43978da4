/* RUN/.alive: how whoever started the ranks knows that they live, on whatever machines they run.
 *
 * Rank 0 has the file locked (flock) for as long as it lives, and adds one to a number in it every
 * two seconds, from a thread that nothing else waits for: a file system that hangs holds up this
 * thread alone. Behind the number stands how far the start has come: "start", "steps" once the
 * first step begins, "end" where the rank ends by itself. Only a number that stands still in a file
 * that nobody has locked says that the rank is dead. */
#ifndef WEFT_LAUNCHER_PROCESS_ALIVE_H
#define WEFT_LAUNCHER_PROCESS_ALIVE_H

#include <stdbool.h>

/* Before ranks are started: nothing is left of an earlier start. */
void weft_alive_clear(const char *run);
/* In rank 0, when nothing more is forked that would keep the lock. Where the folder `run` is not
 * there yet or the file cannot be opened, nobody is told. */
void weft_alive_start(const char *run);
/* In rank 0: the first step begins. Starts what could not be started. */
void weft_alive_enter_steps(const char *run);
/* The rank ends by itself, and others may yet have to. Waits for the file system. */
void weft_alive_end(void);
/* Whether the last start of the run came to its first step. */
bool weft_alive_came_to_steps(const char *run);

#endif
