/* What the watchdog knows of its own rank, and of those beside it. */
#ifndef WEFT_COMM_WATCH_STATE_H
#define WEFT_COMM_WATCH_STATE_H

#include "comm/watch/watch.h"
#include "comm/watch/judge.h"

/* Seconds since `since_us`, without those in which this process was stopped. The thread's alone. */
double weft_watch_age_s(double since_us);
/* At each turn of the thread: finds out whether it was stopped since the last one. */
void weft_watch_tick(void);
/* Where this rank is, and whether a limit has passed. */
void weft_watch_look(weft_answer *out);
/* The same, but of its exchanges that which has the number of `like`'s, where it has issued that.
 */
void weft_watch_look_for(const weft_answer *like, weft_answer *out);
/* How long a rank's watchdog may be silent, whatever the rank is in: as long as a step may last. */
double weft_watch_silence_limit_s(void);
const char *weft_watch_folder(void);
/* Whether the ranks' starter takes them down. */
bool weft_watch_is_ending(void);
/* Before the thread starts, in phase SETUP; after it has ended. WEFT_MEMORY. */
weft_status weft_watch_begin(const weft_watch_options *options) WEFT_CHECKED;
void weft_watch_end(void);
bool weft_watch_is_running(void);

#endif
