/* Comparing all ranks of a job and the nodes that they are on: what each computes and copies, what
 * travels between nodes, what a node's disk takes; and who stands out.
 *
 * Every rank measures at the same time as the others and for a bounded time, so that ranks which
 * share something share it alike. Links are measured by pairs of nodes, all pairs of a round at
 * once (a round-robin tournament by the circle method), each round by another rank of the nodes. */
#ifndef WEFT_LAUNCHER_MEASURING_NODES_H
#define WEFT_LAUNCHER_MEASURING_NODES_H

#include <stdbool.h>
#include <stdio.h>

#include "comm/comm.h"
#include "launcher/report/report.h"

typedef enum weft_nodes_kind {
    WEFT_NODES_COMPUTE, /* FLOP/s of an fp32 product */
    WEFT_NODES_MEMORY,  /* bytes/s of a copy in the device's memory */
    WEFT_NODES_LINK,    /* bytes/s each way, both ways at once */
    WEFT_NODES_LATENCY, /* us, one way */
    WEFT_NODES_WRITE,   /* bytes/s, with fdatasync */
    WEFT_NODES_READ,    /* bytes/s, where the page cache was dropped */
    WEFT_NUM_NODES_KINDS
} weft_nodes_kind;
/* "compute", ...; "compute_flops", ...: the key in JSON. Static. */
const char *weft_nodes_kind_text(weft_nodes_kind kind);
const char *weft_nodes_kind_key(weft_nodes_kind kind);

/* Of 8 nodes each meets each; of more it meets so many. */
enum { WEFT_NODES_MAX_ROUNDS = 8, WEFT_NODES_NAME_BYTES = 64 };

/* A rank's link to a rank of another node; value[WEFT_NODES_LINK], value[WEFT_NODES_LATENCY]. */
typedef struct weft_nodes_link {
    int peer; /* rank; -1: none */
    double bytes_per_s, latency_us;
} weft_nodes_link;

/* What a rank has found. */
typedef struct weft_nodes_rank {
    char node[WEFT_NODES_NAME_BYTES];   /* the host's name */
    int first_rank;                     /* of its node */
    double value[WEFT_NUM_NODES_KINDS]; /* its own, not of links; 0: not measured */
    weft_nodes_link links[WEFT_NODES_MAX_ROUNDS];
    char fault[256]; /* why its node's disk could not be measured; "": it could */
    char apart[256]; /* of a folder that is another than on other nodes; "": it is not */
} weft_nodes_rank;

/* What stands out: a rank, a node (of its first rank), or a link where `peer` is not -1. */
typedef struct weft_nodes_odd {
    weft_nodes_kind kind;
    int rank, peer;
    bool is_node;         /* all of its links, or its disk */
    double value, median; /* of all it was compared with; value 0: it failed, or is apart */
    double factor;        /* how many times worse than the median */
} weft_nodes_odd;

typedef struct weft_nodes_options {
    double seconds;     /* the most in all, about; more than 0 */
    double factor;      /* so many times worse than the median of the others is odd; above 1 */
    const char *folder; /* whose disk is measured */
    bool is_shared;     /* which has to be one folder of all nodes */
    void (*entering)(const char *what); /* tells what begins; NULL: nobody is told */
} weft_nodes_options;

/* The result, on rank 0; elsewhere all but the counts is empty. */
typedef struct weft_nodes {
    int num_ranks, num_nodes, num_odd;
    weft_nodes_rank *ranks; /* [num_ranks] */
    weft_nodes_odd *odd;    /* [num_odd] */
    weft_arena arena;       /* of both */
} weft_nodes;

/* Measures and judges. What stands out is measured again, twice at most, as long as there is time,
 * and the best of each counts: a disturbance passes, a fault stays. num_odd is the same on all
 * ranks. A GPU's links go by MPI, through pinned memory. Where the folder has to be one, each node
 * leaves a small file there for a moment and sees whose others are there: nodes that do not see
 * those of most are apart, and their disks count no more. Collective over the world. Errors:
 * WEFT_CONFIG (no node can write to the folder), WEFT_MEMORY, WEFT_COMM, WEFT_DEVICE. */
weft_status weft_nodes_measure(weft_comm *world, weft_device *device,
                               const weft_nodes_options *options, weft_nodes *out) WEFT_CHECKED;
void weft_nodes_release(weft_nodes *nodes);

/* Pure. Who stands out; returns how many, of which the first `capacity` are written. The median is
 * the upper one of the others. A node's links count by the best of them: one that is slow makes
 * all of its links slow, and no other's. Links stand out by themselves where neither of their nodes
 * does. Of two nodes with one link between them nobody stands out by it. A latency has to be 100 us
 * longer, too. */
int weft_nodes_judge(const weft_nodes_rank *ranks, int num_ranks, double factor,
                     weft_nodes_odd *out, int capacity);
/* Whom node `node` of `num_nodes` meets in a round; -1: nobody, or there is no such round. */
int weft_nodes_peer(int node, int num_nodes, int round);

/* Each node, and what stands out. Rank 0. */
void weft_nodes_report(weft_report *report, const weft_nodes *nodes,
                       const weft_nodes_options *options);

#endif
