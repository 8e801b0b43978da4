/* Which kinds of nodes a mesh lies on, where a cluster's nodes differ. Replicas of a stage that lie
 * on the same kinds are priced once. Pure. */
#ifndef WEFT_LAUNCHER_PLANNING_KINDS_H
#define WEFT_LAUNCHER_PLANNING_KINDS_H

#include "core/cluster/cluster.h"
#include "parallel/mesh/mesh.h"

/* Kinds are bits 1 << group of the cluster, as weft_site has them; 0: all nodes are alike. */
typedef struct weft_stage_kinds {
    uint32_t all; /* of all its ranks */
    /* By kinds: whether some ranks lie on exactly these together with all ranks for which they wait
     * inside a pass: the members of their groups over tp, cp, ep and etp, and of those' groups. */
    bool together[1 << WEFT_MAX_NODE_GROUPS];
} weft_stage_kinds;

/* Finds the kinds of each pipeline rank, [mesh->pp], from the arena. Linear in the ranks. */
weft_status weft_stage_kinds_find(const weft_cluster *cluster, const weft_mesh *mesh,
                                  weft_arena *arena, weft_stage_kinds **out) WEFT_CHECKED;

/* How many ranks of the mesh are on nodes of a group (-1, where nodes are alike: all). */
int64_t weft_kind_num_ranks(const weft_cluster *cluster, const weft_mesh *mesh, int group);

#endif
