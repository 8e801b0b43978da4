/* The parts of weft_nodes_measure. Private to launcher/. */
#ifndef WEFT_LAUNCHER_MEASURING_NODES_INTERNAL_H
#define WEFT_LAUNCHER_MEASURING_NODES_INTERNAL_H

#include "launcher/measuring/nodes.h"

/* A node, as all ranks know it. */
typedef struct weft_nodes_place {
    int first_rank, num_ranks; /* of the node; its ranks need not follow each other */
    int node;                  /* which node, by first ranks */
    int place;                 /* in the node */
    char name[WEFT_NODES_NAME_BYTES];
} weft_nodes_place;

/* What measuring runs on. */
typedef struct weft_nodes_rig {
    weft_comm *world;
    weft_device *device;
    weft_lane *lane;
    weft_nodes_options options;
    weft_nodes_place *places; /* [ranks] */
    int num_nodes, fewest;    /* the fewest ranks that a node has */
    size_t width;             /* of a product: M = N = K */
    void *a, *b, *c;          /* width * width floats each */
    size_t bytes;             /* of a copy, and the most of a message */
    char *from, *to;
} weft_nodes_rig;

/* For so many seconds each; collective. A link's numbers go to `own` where they are better. */
weft_status weft_nodes_measure_links(weft_nodes_rig *rig, double seconds,
                                     weft_nodes_rank *own) WEFT_CHECKED;
/* Local: what cannot be written or read is own->fault. */
void weft_nodes_measure_disk(const char *folder, double seconds, weft_nodes_rank *own);

#endif
