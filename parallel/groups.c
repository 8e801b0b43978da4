#include "parallel/groups.h"

#include <string.h>

/* Purposes decide who goes first on a shared link. Both expert axes serve the dispatch. */
static const weft_comm_purpose purposes[WEFT_NUM_AXES] = {
    [WEFT_AXIS_TP] = WEFT_PURPOSE_TENSOR, [WEFT_AXIS_CP] = WEFT_PURPOSE_CONTEXT,
    [WEFT_AXIS_DP] = WEFT_PURPOSE_DATA,   [WEFT_AXIS_PP] = WEFT_PURPOSE_PIPELINE,
    [WEFT_AXIS_EP] = WEFT_PURPOSE_EXPERT, [WEFT_AXIS_ETP] = WEFT_PURPOSE_EXPERT,
    [WEFT_AXIS_EDP] = WEFT_PURPOSE_DATA,  [WEFT_AXIS_DP_CP] = WEFT_PURPOSE_DATA,
};

static weft_status init(weft_groups *groups)
{
    const weft_mesh *mesh = &groups->mesh;
    int rank = groups->coords.rank;
    for (weft_axis axis = WEFT_AXIS_NONE + 1; axis < WEFT_NUM_AXES; axis++)
        WEFT_TRY(weft_comm_split(groups->world, weft_mesh_color(mesh, axis, rank),
                                 groups->coords.at[axis], weft_axis_text(axis), purposes[axis],
                                 &groups->by_axis[axis]));

    int stage = groups->coords.at[WEFT_AXIS_PP];
    bool holds_embedding = mesh->pp > 1 && (stage == 0 || stage == mesh->pp - 1);
    WEFT_TRY(weft_comm_split(groups->world,
                             holds_embedding ? weft_mesh_color(mesh, WEFT_AXIS_PP, rank) : -1,
                             stage, "embedding", WEFT_PURPOSE_DATA, &groups->embedding));
    return weft_comm_split(groups->world, groups->coords.at[WEFT_AXIS_DP], rank, "model",
                           WEFT_PURPOSE_CONTROL, &groups->model);
}

weft_status weft_groups_create(weft_comm *world, const weft_mesh *mesh, weft_groups *out)
{
    if (weft_comm_size(world) != mesh->world)
        return WEFT_ERROR(WEFT_INTERNAL, "a mesh of %d ranks in a world of %d", mesh->world,
                          weft_comm_size(world));
    weft_groups groups = {.mesh = *mesh, .world = world};
    groups.coords = weft_mesh_coords(mesh, weft_comm_rank(world));
    weft_status status = weft_comm_agree(world, init(&groups));
    if (status != WEFT_OK) {
        weft_groups_release(&groups);
        return weft_error_frame(__FILE__, __LINE__, __func__, status);
    }
    *out = groups;
    return WEFT_OK;
}

void weft_groups_release(weft_groups *groups)
{
    if (!groups)
        return;
    for (int axis = 0; axis < WEFT_NUM_AXES; axis++)
        weft_comm_destroy(groups->by_axis[axis]);
    weft_comm_destroy(groups->embedding);
    weft_comm_destroy(groups->model);
    memset(groups, 0, sizeof *groups);
}
