/* The mesh's communicators: one a group that this rank is in and that the run uses. */
#ifndef WEFT_PARALLEL_MESH_GROUPS_H
#define WEFT_PARALLEL_MESH_GROUPS_H

#include "comm/comm.h"
#include "parallel/mesh/mesh.h"

typedef struct weft_groups {
    weft_mesh mesh;
    weft_coords coords;
    weft_comm *world;                  /* borrowed */
    weft_comm *by_axis[WEFT_NUM_AXES]; /* NULL for WEFT_AXIS_NONE, and where nothing uses it; self
                                          for size 1 */
    weft_comm *embedding;              /* first and last stage, for tied embeddings; else NULL */
    /* The ranks of dp x cp and of edp once more, for gathers beside reductions; NULL: not used. */
    weft_comm *gather_dense, *gather_experts;
} weft_groups;

/* Which groups a run uses, besides tp, cp and pp, which every run uses: checkpoints talk over pp.
 */
typedef struct weft_groups_use {
    bool reduces;         /* sums gradients over dp x cp */
    bool experts;         /* has experts: sums their gradients over edp */
    bool travels;         /* sends tokens of MoE layers over ep and etp */
    bool ties;            /* holds the same embeddings on first and last stage */
    bool sums;            /* has layers that may sum over any axis (weft_pass_all_reduce) */
    bool gathers;         /* gathers weights that the ranks of a gradient group share out */
    bool gathers_on_host; /* experts', in host memory, beside reductions */
} weft_groups_use;

/* use: the same on every rank; NULL: everything. Groups of one rank cost the others nothing.
 * Collective over world. */
weft_status weft_groups_create(weft_comm *world, const weft_mesh *mesh, const weft_groups_use *use,
                               weft_groups *out) WEFT_CHECKED;
void weft_groups_release(weft_groups *groups);

#endif
