/* Where a mesh's groups lie on a cluster's nodes, which ranks fill in order. Pure. */
#ifndef WEFT_LAUNCHER_PLANNING_PLACES_H
#define WEFT_LAUNCHER_PLANNING_PLACES_H

#include "parallel/mesh/mesh.h"
#include "parallel/topology/topology.h"
#include "schedule/cost/cost.h"

/* Fills the site's groups with those of `rank`, and heads and ring as the mesh's cp_comm_type has
 * them: of equal parts the one that lies on most nodes, for which the others wait. direct: as in
 * weft_group. gradients false: without their groups (DP, EDP, DP_CP), which passes of layers do not
 * talk over and which may have as many ranks as there are. WEFT_MEMORY. */
weft_status weft_places_groups(const weft_mesh *mesh, const weft_cluster *cluster, int rank,
                               bool direct, bool gradients, weft_site *site) WEFT_CHECKED;
/* The kinds of the nodes that hold ranks below `world`, as in weft_site. */
uint32_t weft_places_kinds(const weft_cluster *cluster, int world);
/* The most ranks that one node has. */
int weft_places_fullest_node(const weft_topology *topology);
/* Of the ranks of a rank's node, those whose message to the rank `ahead` of theirs along an axis of
 * the dense grid leaves it. */
double weft_places_leaving_share(const weft_mesh *mesh, const weft_cluster *cluster, int rank,
                                 weft_axis axis, int ahead);

#endif
