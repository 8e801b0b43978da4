/* The mesh's communicators: one a group this rank is in. */
#ifndef WEFT_PARALLEL_GROUPS_H
#define WEFT_PARALLEL_GROUPS_H

#include "comm/comm.h"
#include "parallel/mesh.h"

typedef struct weft_groups {
    weft_mesh mesh;
    weft_coords coords;
    weft_comm *world;                  /* borrowed */
    weft_comm *by_axis[WEFT_NUM_AXES]; /* NULL for WEFT_AXIS_NONE; self for size 1 */
    weft_comm *embedding; /* first and last stage, for tied embeddings; NULL on other stages and
                             when pp is 1 */
    weft_comm *model;     /* all ranks of one data-parallel replica: tp x cp x pp */
} weft_groups;

/* Collective over world. */
weft_status weft_groups_create(weft_comm *world, const weft_mesh *mesh,
                               weft_groups *out) WEFT_CHECKED;
void weft_groups_release(weft_groups *groups);

#endif
