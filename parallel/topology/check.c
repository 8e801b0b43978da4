#include "parallel/topology/topology.h"

#include <stdlib.h>

#include "core/log.h"

int weft_topology_node(const weft_topology *topology, int rank)
{
    return topology->node_of ? topology->node_of[rank] : rank / topology->ranks_per_node;
}

static int64_t common_multiple(int a, int b)
{
    int x = a, y = b;
    while (y > 0) {
        const int rest = x % y;
        x = y;
        y = rest;
    }
    return (int64_t)(a / x) * b;
}

/* The ranks that show where all groups along an axis lie. Consecutive ranks of one stage hold whole
 * groups where a group's span divides them; then groups lie alike, on nodes of so many ranks,
 * from one common multiple of node and span to the next. */
static int num_shown(const weft_topology *topology, const weft_mesh *mesh, weft_axis axis)
{
    int last = 0, size = weft_mesh_coords(mesh, 0).size[axis];
    const weft_coords first = weft_mesh_coords(mesh, 0);
    if (topology->node_of)
        return mesh->world;
    for (int i = 0; i < size; i++) {
        const int member = weft_mesh_member(mesh, axis, &first, i);
        last = member > last ? member : last;
    }
    const int span = size > 1 ? last / (size - 1) * size : 1;
    const int block = mesh->pp > 1 ? weft_mesh_rank(mesh, 0, 0, 0, 1) : mesh->world;
    const int64_t period = common_multiple(span, topology->ranks_per_node);
    return block % span == 0 && mesh->world % period == 0 ? (int)period : mesh->world;
}

/* The first rank whose tensor-parallel group began on another node, or -1. */
static int first_astray(const weft_topology *topology, const weft_mesh *mesh, int *out_leader)
{
    const int num = num_shown(topology, mesh, WEFT_AXIS_TP);
    for (int rank = 0; rank < num; rank++) {
        weft_coords coords = weft_mesh_coords(mesh, rank);
        int leader = weft_mesh_rank(mesh, 0, coords.at[WEFT_AXIS_CP], coords.at[WEFT_AXIS_DP],
                                    coords.at[WEFT_AXIS_PP]);
        if (weft_topology_node(topology, rank) != weft_topology_node(topology, leader)) {
            *out_leader = leader;
            return rank;
        }
    }
    return -1;
}

/* The largest part of tp that the ranks from the leader of a group on fill its node with. */
static int inner_size(const weft_topology *topology, const weft_mesh *mesh, int leader)
{
    const weft_coords at = weft_mesh_coords(mesh, leader);
    const int node = weft_topology_node(topology, leader);
    int near = 0;
    for (int tp = 0; tp < mesh->tp; tp++) {
        const int rank =
            weft_mesh_rank(mesh, tp, at.at[WEFT_AXIS_CP], at.at[WEFT_AXIS_DP], at.at[WEFT_AXIS_PP]);
        near += weft_topology_node(topology, rank) == node;
    }
    while (mesh->tp % near != 0)
        near--;
    return near;
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
                     leader, weft_topology_node(topology, leader), rank,
                     weft_topology_node(topology, rank));
        return WEFT_OK;
    }
    return WEFT_KEY_ERROR("parallel.tensor_model_parallel_size",
                          " %d: rank %d is on node %d, but rank %d of its tensor-parallel group is "
                          "on node %d, and it must stay inside a node; %d would "
                          "(allow_tp_across_nodes overrides)",
                          mesh->tp, rank, weft_topology_node(topology, rank), leader,
                          weft_topology_node(topology, leader), inner_size(topology, mesh, leader));
}

static int compare_nodes(const void *a, const void *b)
{
    const int *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

/* The shortest run of equal entries. */
static int shortest_run(const int *sorted, int count)
{
    int shortest = count, first = 0;
    for (int i = 1; i <= count; i++)
        if (i == count || sorted[i] != sorted[first]) {
            shortest = i - first < shortest ? i - first : shortest;
            first = i;
        }
    return shortest;
}

weft_status weft_topology_inside(const weft_topology *topology, const weft_mesh *mesh,
                                 weft_axis axis, int *out)
{
    int fewest = mesh->world, size = weft_mesh_coords(mesh, 0).size[axis];
    int *nodes = malloc((size_t)size * sizeof *nodes);
    if (!nodes)
        return WEFT_ERROR(WEFT_MEMORY, "no memory for the nodes of a group of %d", size);
    const int num = num_shown(topology, mesh, axis);
    for (int rank = 0; rank < num; rank++) {
        weft_coords coords = weft_mesh_coords(mesh, rank);
        if (coords.at[axis] != 0) /* its group has been looked at */
            continue;
        for (int i = 0; i < size; i++)
            nodes[i] = weft_topology_node(topology, weft_mesh_member(mesh, axis, &coords, i));
        qsort(nodes, (size_t)size, sizeof *nodes, compare_nodes);
        int run = shortest_run(nodes, size);
        fewest = run < fewest ? run : fewest;
    }
    free(nodes);
    *out = fewest;
    return WEFT_OK;
}
