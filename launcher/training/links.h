/* Links between nodes that are slower than the others, found by short exchanges of the nodes' first
 * ranks in a ring, each with the one behind it. A slow link makes both exchanges of its node slow,
 * so a node's time is the shorter of its two: a ring needs three nodes. What counts is the shortest
 * of the last looks, since a busy core makes some of them long. All first ranks know all times, and
 * so, without a word, when the next look is: they take at most 1/300 of the time where no link is
 * slow. Rank 0 judges. */
#ifndef WEFT_LAUNCHER_TRAINING_LINKS_H
#define WEFT_LAUNCHER_TRAINING_LINKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/comm.h"

enum { WEFT_LINK_NODE_BYTES = 64, WEFT_LINK_LOOKS = 5 };

/* What is known of a node. */
typedef struct weft_node_link {
    char node[WEFT_LINK_NODE_BYTES];
    double ms[WEFT_LINK_LOOKS]; /* at look i, if it is the last: i % WEFT_LINK_LOOKS */
    int num_well;               /* looks without a break */
    bool told;
} weft_node_link;

typedef struct weft_links {
    double factor;
    int64_t steps;     /* a slow link is one for so many */
    weft_comm *ring;   /* of the nodes' first ranks; NULL: this is none, or nobody looks */
    int64_t next_step; /* in which links are looked at again */
    int num_nodes;
    double *ring_ms; /* of the last look, one way, from a node to the next; the first ranks' */
    void *message;
    /* Rank 0's: */
    weft_node_link *nodes;
    int64_t look_steps[WEFT_LINK_LOOKS];
    int num_looks;
    double *ms, *sorted; /* of the last look, by node; the same, rising */
} weft_links;

/* Collective. Fewer than three nodes, or a factor of 0: nobody looks. */
weft_status weft_links_create(weft_links *links, double factor, int64_t steps, int num_nodes,
                              weft_comm *world) WEFT_CHECKED;
/* Behind a step that took `step_ms`, the same on all ranks: exchanges where it is time.
 * *out_looked: did. Collective over the first ranks, nothing elsewhere. */
weft_status weft_links_look(weft_links *links, int64_t step, double step_ms,
                            bool *out_looked) WEFT_CHECKED;
/* Judges what ring_ms says. Returns a node whose link has just become a slow one, and writes a line
 * about it of at most `capacity` bytes; -1: there is none. Rank 0. */
int weft_links_judge(weft_links *links, int64_t step, char *out, size_t capacity);
void weft_links_release(weft_links *links);

#endif
