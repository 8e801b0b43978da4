#include "launcher/planning/places.h"

#include <math.h>

#include "core/arena.h"
#include "schedule/context.h"

double weft_places_leaving_share(const weft_mesh *mesh, const weft_cluster *cluster, int rank,
                                 weft_axis axis, int ahead)
{
    const int each = cluster->ranks_per_node, first = rank / each * each;
    int leaving = 0, count = 0;
    for (int r = first; r < first + each && r < mesh->world; r++, count++) {
        weft_coords c = weft_mesh_coords(mesh, r);
        c.at[axis] = (c.at[axis] + ahead + c.size[axis]) % c.size[axis];
        const int other = weft_mesh_rank(mesh, c.at[WEFT_AXIS_TP], c.at[WEFT_AXIS_CP],
                                         c.at[WEFT_AXIS_DP], c.at[WEFT_AXIS_PP]);
        leaving += other / each != r / each;
    }
    return (double)leaving / count;
}

uint32_t weft_places_kinds(const weft_cluster *cluster, int world)
{
    uint32_t kinds = 0;
    for (int r = 0; r < world && cluster->num_groups > 0; r += cluster->ranks_per_node) {
        const int group = weft_cluster_group_of(cluster, r / cluster->ranks_per_node);
        kinds |= group < 0 ? 0 : 1u << group;
    }
    return kinds;
}

int weft_places_fullest_node(const weft_topology *topology)
{
    int most = 1, here = 0;
    if (!topology->node_of)
        return topology->ranks_per_node;
    for (int r = 0; r < topology->world; r++) {
        here = r > 0 && topology->node_of[r] == topology->node_of[r - 1] ? here + 1 : 1;
        most = here > most ? here : most;
    }
    return most;
}

/* Of a group's parts, each `size` ranks that are `stride` apart, the one with the fewest ranks on
 * one node. */
static weft_group widest_part(const weft_cluster *cluster, const int *ranks, int num, int size,
                              int stride, bool direct, int *part)
{
    weft_group widest = {.size = 0};
    for (int i = 0; i < num / size; i++) {
        const int first = stride > 1 ? i : i * size;
        for (int k = 0; k < size; k++)
            part[k] = ranks[first + k * stride];
        const weft_group group = weft_group_of(cluster, part, size, direct);
        if (widest.size == 0 || group.near < widest.near)
            widest = group;
    }
    return widest;
}

static void find_parts(const weft_mesh *mesh, const weft_cluster *cluster, int rank, bool direct,
                       const int *ranks, int *part, weft_site *site)
{
    const int inner = mesh->cp_comm_type == WEFT_CONTEXT_A2A       ? mesh->cp
                      : mesh->cp_comm_type == WEFT_CONTEXT_A2A_P2P ? mesh->cp_inner
                                                                   : 1;
    site->heads = widest_part(cluster, ranks, mesh->cp, inner, 1, direct, part);
    site->ring = widest_part(cluster, ranks, mesh->cp, mesh->cp / inner, inner, direct, part);
    if (site->ring.near < site->ring.size)
        site->ring.sharing =
            fmax(1, site->ring.sharing *
                        weft_places_leaving_share(mesh, cluster, rank, WEFT_AXIS_CP, inner));
}

static bool is_of_gradients(int axis)
{
    return axis == WEFT_AXIS_DP || axis == WEFT_AXIS_EDP || axis == WEFT_AXIS_DP_CP;
}

weft_status weft_places_groups(const weft_mesh *mesh, const weft_cluster *cluster, int rank,
                               bool direct, bool gradients, weft_site *site)
{
    weft_arena scratch = {0};
    int *ranks = NULL, *part = NULL;
    const weft_coords at = weft_mesh_coords(mesh, rank);
    int most = 1;
    for (int axis = WEFT_AXIS_NONE + 1; axis < WEFT_NUM_AXES; axis++)
        if ((gradients || !is_of_gradients(axis)) && at.size[axis] > most)
            most = at.size[axis];
    weft_status status = WEFT_ARRAY(&scratch, (size_t)most, &ranks);
    if (status == WEFT_OK)
        status = WEFT_ARRAY(&scratch, (size_t)mesh->cp, &part);
    for (int axis = WEFT_AXIS_NONE + 1; axis < WEFT_NUM_AXES && status == WEFT_OK; axis++) {
        if (!gradients && is_of_gradients(axis))
            continue;
        const int size = weft_mesh_group_rising(mesh, (weft_axis)axis, rank, ranks, most);
        site->groups[axis] = weft_group_of(cluster, ranks, size, direct);
        if (axis == WEFT_AXIS_CP && mesh->cp > 1)
            find_parts(mesh, cluster, rank, direct, ranks, part, site);
    }
    weft_arena_release(&scratch);
    return status;
}
