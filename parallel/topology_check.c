#include "parallel/topology.h"

#include "core/log.h"

/* The first rank whose tensor-parallel group began on another node, or -1. */
static int first_astray(const weft_topology *topology, const weft_mesh *mesh, int *out_leader)
{
    for (int rank = 0; rank < mesh->world; rank++) {
        weft_coords coords = weft_mesh_coords(mesh, rank);
        int leader = weft_mesh_rank(mesh, 0, coords.at[WEFT_AXIS_CP], coords.at[WEFT_AXIS_DP],
                                    coords.at[WEFT_AXIS_PP]);
        if (topology->node_of[rank] != topology->node_of[leader]) {
            *out_leader = leader;
            return rank;
        }
    }
    return -1;
}

weft_status weft_topology_check(const weft_topology *topology, const weft_mesh *mesh, bool allow)
{
    if (topology->world != mesh->world)
        return WEFT_ERROR(WEFT_INTERNAL, "a mesh of %d ranks on a topology of %d", mesh->world,
                          topology->world);
    int leader = 0;
    int rank = first_astray(topology, mesh, &leader);
    if (rank < 0)
        return WEFT_OK;
    if (allow) {
        if (weft_log_rank() == 0)
            weft_log(WEFT_LOG_WARN,
                     "tensor-parallel groups span nodes (rank %d on node %d, rank %d on node %d): "
                     "expect slow steps",
                     leader, topology->node_of[leader], rank, topology->node_of[rank]);
        return WEFT_OK;
    }
    return WEFT_KEY_ERROR("parallel.tensor_model_parallel_size",
                          " %d: rank %d is on node %d, but rank %d of its tensor-parallel group is "
                          "on node %d, and it must stay inside a node (allow_tp_across_nodes "
                          "overrides)",
                          mesh->tp, rank, topology->node_of[rank], leader,
                          topology->node_of[leader]);
}

int weft_topology_inside(const weft_topology *topology, const weft_mesh *mesh, weft_axis axis)
{
    int fewest = mesh->world;
    for (int rank = 0; rank < mesh->world; rank++) {
        int near = 0, color = weft_mesh_color(mesh, axis, rank);
        for (int other = 0; other < mesh->world; other++)
            near += weft_mesh_color(mesh, axis, other) == color &&
                    topology->node_of[other] == topology->node_of[rank];
        fewest = near < fewest ? near : fewest;
    }
    return fewest;
}
