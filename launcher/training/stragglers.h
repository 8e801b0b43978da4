/* Finds ranks that compute longer than others of their pipeline stage, which have equal work. Rank
 * 0 judges, by times of the CPU's compute lanes without waits (core/device/device.h). */
#ifndef WEFT_LAUNCHER_TRAINING_STRAGGLERS_H
#define WEFT_LAUNCHER_TRAINING_STRAGGLERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/comm.h"
#include "core/arena.h"

/* Finds slow links between nodes: the nodes' first ranks form a ring and measure short exchanges
 * with their neighbours. A slow link slows both exchanges of its node, so the shorter of the two is
 * the node's time; hence a ring has at least three nodes. The shortest of the last measurements
 * counts, since a busy core makes some long. All first ranks know all times, and so when to measure
 * next: measurements take at most 1/300 of the time while no link is slow. Rank 0 judges. */

enum { WEFT_LINK_NODE_BYTES = 64, WEFT_LINK_LOOKS = 5 };

/* The record of a node. */
typedef struct weft_node_link {
    char node[WEFT_LINK_NODE_BYTES];
    double ms[WEFT_LINK_LOOKS]; /* a ring buffer: measurement i at i % WEFT_LINK_LOOKS */
    int num_well;               /* consecutive measurements in which it was well */
    bool told;
} weft_node_link;

typedef struct weft_links {
    double factor;
    int64_t steps;     /* a link must be slow for so many steps */
    weft_comm *ring;   /* the nodes' first ranks; NULL: not measured, or not here */
    int64_t next_step; /* of the next measurement */
    int num_nodes;
    double *ring_ms; /* the last measurement, one way, from a node to the next; on first ranks */
    void *message;
    /* Rank 0's: */
    weft_node_link *nodes;
    int64_t look_steps[WEFT_LINK_LOOKS];
    int num_looks;
    double *ms, *sorted; /* the last measurement, by node; the same, rising */
    weft_arena arena;    /* of all of them */
} weft_links;

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
    weft_arena arena;      /* of all of them */
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

/* Collective. With fewer than three nodes, or a factor of 0, links are not measured. */
weft_status weft_links_create(weft_links *links, double factor, int64_t steps, int num_nodes,
                              weft_comm *world) WEFT_CHECKED;
/* After a step of `step_ms`, equal on all ranks: measures if due. *out_looked: whether it did.
 * Collective over the first ranks, nothing elsewhere. */
weft_status weft_links_look(weft_links *links, int64_t step, double step_ms,
                            bool *out_looked) WEFT_CHECKED;
/* Judges ring_ms. Returns a node whose link has just become slow, and writes a line about it of at
 * most `capacity` bytes; -1: none. Rank 0. */
int weft_links_judge(weft_links *links, int64_t step, char *out, size_t capacity);
void weft_links_release(weft_links *links);

#endif
