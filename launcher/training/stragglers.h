/* Finds ranks that compute longer than others of their pipeline stage, which have equal work. Rank
 * 0 judges, by times of the CPU's compute lanes without waits (core/device/device.h). */
#ifndef WEFT_LAUNCHER_TRAINING_STRAGGLERS_H
#define WEFT_LAUNCHER_TRAINING_STRAGGLERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/comm.h"
#include "launcher/training/links.h"

enum { WEFT_STRAGGLER_NODE_BYTES = 64 };

/* The record of a rank. */
typedef struct weft_straggler {
    int stage;
    char node[WEFT_STRAGGLER_NODE_BYTES];
    int64_t num_slow, num_well; /* consecutive slow, and well, steps */
    bool told;
} weft_straggler;

typedef struct weft_stragglers {
    double factor; /* 0: off */
    int64_t steps; /* consecutive slow steps that make a straggler */
    int num_ranks;
    weft_straggler *ranks; /* rank 0 alone, like all fields below */
    double *ms, *sorted;   /* by rank, the last step's times; the same, rising */
    int slowest;           /* rank */
    weft_links links;
} weft_stragglers;

/* Collective. `stage`: this rank's. A world of one rank: off. */
weft_status weft_stragglers_create(weft_stragglers *stragglers, double factor, int64_t steps,
                                   int stage, weft_comm *world) WEFT_CHECKED;
/* Gathers the step's times; own_ms: this rank's. Collective; does nothing if off. */
weft_status weft_stragglers_gather(weft_stragglers *stragglers, double own_ms,
                                   weft_comm *world) WEFT_CHECKED;
/* Judges the times. Returns a rank that has just become a straggler, and writes a line about it of
 * at most `capacity` bytes; -1: none. Rank 0. */
int weft_stragglers_judge(weft_stragglers *stragglers, int64_t step, char *out, size_t capacity);
void weft_stragglers_release(weft_stragglers *stragglers);

#endif
