/* The watchdog: ends a job whose ranks make no more progress, and says which rank is missing.
 *
 * Each rank has a thread that looks ten times a second at what the rank is in (a phase, and the
 * oldest exchange in flight) and for how long. Ranks tell each other by datagrams (UDP; inside a
 * machine by its loopback), beside MPI and NCCL, which may be silent: twice a second each rank
 * shows the *head*, the lowest rank that answers, that it lives. The head keeps nothing: when a
 * limit has passed anywhere it asks all ranks where they are. Who does not answer within a second
 * is missing; else the answers say who has not come to the exchange that others wait in. The head
 * prints one line, every rank writes its flight record and leaves with the exit code of WEFT_HUNG.
 * Nobody waits for MPI.
 *
 * Where whoever started the ranks takes them down, as after a rank was killed, the lowest rank that
 * lives finds out who is dead and where others waited for it: it writes the verdict without ending
 * anything, and every rank its flight record.
 *
 * Silence alone is no alarm. Time in which a rank itself was stopped (a debugger) does not count
 * for it. An exchange may wait for a rank that is in another phase, such as saving, as long as that
 * phase's own limit allows. */
#ifndef WEFT_COMM_WATCH_WATCH_H
#define WEFT_COMM_WATCH_WATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "comm/comm.h"

typedef enum weft_watch_phase {
    WEFT_WATCH_SETUP,
    WEFT_WATCH_LOAD,
    WEFT_WATCH_FIRST_STEP, /* and the first evaluation */
    WEFT_WATCH_STEP,
    WEFT_WATCH_OUTPUT, /* between steps, on rank 0; limited as a save */
    WEFT_WATCH_SAVE,
    WEFT_WATCH_NUM_PHASES,
    WEFT_WATCH_EXCHANGE = WEFT_WATCH_NUM_PHASES, /* no phase, but has a limit: within a step */
    WEFT_WATCH_NUM_LIMITS,
} weft_watch_phase;

typedef struct weft_watch_options {
    double limit_s[WEFT_WATCH_NUM_LIMITS]; /* the least that each limit is; above 0 */
    double factor;                         /* of the longest of the last 16 */
    const char *folder;      /* RUN: flight records go to RUN/flight, if RUN is there; copied */
    bool (*is_ending)(void); /* the starter takes the ranks down; any thread; NULL: never */
} weft_watch_options;

/* "setup", "first step", ...; static. */
const char *weft_watch_phase_text(int phase);

/* Starts this process' watchdog, in phase SETUP; before MPI starts. Until weft_watch_connect it
 * knows of no other rank. Errors: WEFT_MEMORY. */
weft_status weft_watch_start(const weft_watch_options *options, int rank, int size) WEFT_CHECKED;
/* Exchanges where the ranks' watchdogs are. Collective over the world. Does nothing without a
 * start. */
weft_status weft_watch_connect(weft_comm *world) WEFT_CHECKED;
/* Moves what an earlier job left in FOLDER/flight to FOLDER/flight/last: the records of the last
 * fault stay. One rank does. */
void weft_watch_set_aside(const char *folder);
/* The phase from here on, and the step that it is of. Any one thread at a time; costs 100 ns. Does
 * nothing without a start. Entering STEP again ends one step and begins another. */
void weft_watch_enter(weft_watch_phase phase, int64_t step);
/* The phase's time begins anew: what is waited for beyond the ranks has a limit of its own. As
 * enter. */
void weft_watch_go_on(void);
/* Where a limit's least is below what the same took lately: says so in `text`, once a limit. */
bool weft_watch_find_low(char *text, size_t bytes);
/* Before this rank takes the job down: finds out whether some rank's calls differ from others', ""
 * where nothing says so, and has all ranks write their flight records. Any thread; takes at most
 * 2.5 s. Does nothing without a connection. */
void weft_watch_record_all(char *out, size_t bytes);
/* Ends the thread. */
void weft_watch_stop(void);

enum { WEFT_MAX_STOPPED = 16 };

/* The ranks that a process has started on this machine. */
typedef struct weft_siblings {
    int first; /* the lowest rank that is not stopped; -1: none is known */
    int num_stopped;
    int stopped[WEFT_MAX_STOPPED]; /* by SIGSTOP, the first of them that were found */
} weft_siblings;
void weft_siblings_look(int parent, weft_siblings *out);

enum { WEFT_WATCH_PLACE_BYTES = 640 };

/* What tells one verdict in FOLDER/flight from another. */
typedef struct weft_watch_mark {
    uint64_t file;
    int64_t s, ns;
} weft_watch_mark;

weft_watch_mark weft_watch_mark_verdict(const char *folder);
/* Where a killed rank was, by a verdict that is not `old`: "in step 3; rank 0 waited for it in ..."
 * False: none tells. */
bool weft_watch_find_killed(const char *folder, const weft_watch_mark *old, int rank, char *out,
                            size_t bytes);

#endif
