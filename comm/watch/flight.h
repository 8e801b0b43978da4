/* A rank's flight record: where it was when the job ended, and what it had issued. Private to
 * comm/. */
#ifndef WEFT_COMM_WATCH_FLIGHT_H
#define WEFT_COMM_WATCH_FLIGHT_H

#include "comm/watch/judge.h"

enum { WEFT_FLIGHT_OPERATIONS = 256 };

/* Writes FOLDER/flight/rank-N.json, whole or not at all; FOLDER must be there. Any thread. False:
 * errno says why. */
bool weft_flight_write(const char *folder, int rank, const char *node, const weft_answer *own);
/* Moves what an earlier job left in FOLDER/flight, if anything, to FOLDER/flight/last, in the place
 * of what is there. */
void weft_flight_set_aside(const char *folder);
/* Takes the right to speak for the job, which began at `since` (seconds of the epoch): writes
 * FOLDER/flight/verdict.json. False: another rank has it. Where the file cannot be written, true.
 */
bool weft_flight_claim(const char *folder, int64_t since, int rank, const weft_verdict *verdict,
                       const char *const *nodes);

#endif
