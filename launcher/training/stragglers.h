/* Ranks that compute longer than others of their pipeline stage, which have the same to do. Rank 0
 * judges. The times are of the CPU's compute lanes, without waits (core/busy.h). */
#ifndef WEFT_LAUNCHER_TRAINING_STRAGGLERS_H
#define WEFT_LAUNCHER_TRAINING_STRAGGLERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/comm.h"
#include "launcher/training/links.h"

enum { WEFT_STRAGGLER_NODE_BYTES = 64 };

/* What is known of a rank. */
typedef struct weft_straggler {
    int stage;
    char node[WEFT_STRAGGLER_NODE_BYTES];
    int64_t num_slow, num_well; /* steps without a break */
    bool told;
} weft_straggler;

typedef struct weft_stragglers {
    double factor; /* 0: nobody looks */
    int64_t steps; /* in a row, that make a straggler */
    int num_ranks;
    weft_straggler *ranks; /* rank 0's, as all below */
    double *ms, *sorted;   /* by rank, of the last step; the same, rising */
    int slowest;           /* rank */
    weft_links links;
} weft_stragglers;

/* Collective. `stage`: this rank's. `world` of one rank: nobody looks. */
weft_status weft_stragglers_create(weft_stragglers *stragglers, double factor, int64_t steps,
                                   int stage, weft_comm *world) WEFT_CHECKED;
/* Fills in the step's times, of which `own_ms` is this rank's. Collective; nothing where nobody
 * looks. */
weft_status weft_stragglers_gather(weft_stragglers *stragglers, double own_ms,
                                   weft_comm *world) WEFT_CHECKED;
/* Judges the times. Returns a rank that has just become a straggler, and writes a line about it of
 * at most `capacity` bytes; -1: there is none. Rank 0. */
int weft_stragglers_judge(weft_stragglers *stragglers, int64_t step, char *out, size_t capacity);
void weft_stragglers_release(weft_stragglers *stragglers);

#endif
