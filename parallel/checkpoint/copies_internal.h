/* Where copies lie: what those who write them and those who look for them share. */
#ifndef WEFT_PARALLEL_CHECKPOINT_COPIES_INTERNAL_H
#define WEFT_PARALLEL_CHECKPOINT_COPIES_INTERNAL_H

#include "parallel/checkpoint/checkpoint.h"
#include "parallel/checkpoint/keeper.h"

#define WEFT_COPIES_NAME "copies"

/* This rank among those of its node. */
typedef struct weft_copies_local {
    int node; /* the node's first rank */
    int rank, size;
} weft_copies_local;

/* Collective over world. */
weft_status weft_copies_find_local(weft_comm *world, const weft_copies_place *place,
                                   weft_copies_local *out) WEFT_CHECKED;
/* PATH/weft-<name>, and this node's folder there. */
weft_status weft_copies_folder(const weft_copies_place *place, uint64_t name, char *all, char *own,
                               size_t capacity) WEFT_CHECKED;

#endif
