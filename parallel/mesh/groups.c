#include "parallel/mesh/mesh.h"

#include <string.h>

#include "comm/comm.h"
#include "comm/note/note.h"

/* Purposes decide who goes first on a shared link. Both expert axes serve the dispatch. */
static const weft_comm_purpose purposes[WEFT_NUM_AXES] = {
    [WEFT_AXIS_TP] = WEFT_PURPOSE_TENSOR, [WEFT_AXIS_CP] = WEFT_PURPOSE_CONTEXT,
    [WEFT_AXIS_DP] = WEFT_PURPOSE_DATA,   [WEFT_AXIS_PP] = WEFT_PURPOSE_PIPELINE,
    [WEFT_AXIS_EP] = WEFT_PURPOSE_EXPERT, [WEFT_AXIS_ETP] = WEFT_PURPOSE_EXPERT,
    [WEFT_AXIS_EDP] = WEFT_PURPOSE_DATA,  [WEFT_AXIS_DP_CP] = WEFT_PURPOSE_DATA,
};

static bool groups_use_axis(const weft_groups_use *use, weft_axis axis)
{
    const bool uses[WEFT_NUM_AXES] = {
        [WEFT_AXIS_TP] = true,
        [WEFT_AXIS_PP] = true,
        [WEFT_AXIS_CP] = true,
        [WEFT_AXIS_DP] = use->sums || use->balances,
        [WEFT_AXIS_EP] = use->sums || use->travels,
        [WEFT_AXIS_ETP] = use->sums || use->travels,
        [WEFT_AXIS_EDP] = use->sums || (use->reduces && use->experts),
        [WEFT_AXIS_DP_CP] = use->sums || use->reduces,
    };
    return uses[axis];
}

static weft_status create_gathers(weft_groups *groups, const weft_groups_use *use)
{
    const struct {
        weft_axis axis;
        const char *name;
        bool used;
        weft_comm **group;
    } rows[] = {{WEFT_AXIS_DP_CP, "gather", use->gathers, &groups->gather_dense},
                {WEFT_AXIS_EDP, "gather of experts",
                 use->experts && (use->gathers || use->gathers_on_host), &groups->gather_experts}};
    const weft_coords *coords = &groups->coords;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].used && coords->size[rows[i].axis] > 1)
            WEFT_TRY(weft_comm_split(
                groups->world, weft_mesh_color(&groups->mesh, rows[i].axis, coords->rank),
                coords->at[rows[i].axis], rows[i].name, WEFT_PURPOSE_DATA, rows[i].group));
    return WEFT_OK;
}

static weft_status init(weft_groups *groups, const weft_groups_use *use)
{
    const weft_mesh *mesh = &groups->mesh;
    const weft_coords *coords = &groups->coords;
    for (weft_axis axis = WEFT_AXIS_NONE + 1; axis < WEFT_NUM_AXES; axis++) {
        const char *name = weft_axis_text(axis);
        weft_comm **group = &groups->by_axis[axis];
        if (coords->size[axis] == 1) /* on every rank */
            WEFT_TRY(weft_comm_alone(groups->world, name, purposes[axis], group));
        else if (groups_use_axis(use, axis))
            WEFT_TRY(weft_comm_split(groups->world, weft_mesh_color(mesh, axis, coords->rank),
                                     coords->at[axis], name, purposes[axis], group));
    }
    WEFT_TRY(create_gathers(groups, use));
    if (!weft_mesh_parts_ends(mesh) || !use->ties)
        return WEFT_OK;
    int stage = coords->at[WEFT_AXIS_PP];
    bool holds_embedding = stage == 0 || stage == mesh->pp - 1;
    return weft_comm_split(groups->world,
                           holds_embedding ? weft_mesh_color(mesh, WEFT_AXIS_PP, coords->rank) : -1,
                           stage, "embedding", WEFT_PURPOSE_DATA, &groups->embedding);
}

weft_status weft_groups_create(weft_comm *world, const weft_mesh *mesh, const weft_groups_use *use,
                               weft_groups *out)
{
    static const weft_groups_use all = {true, true, true, true, true, true, true, true};
    if (weft_comm_size(world) != mesh->world)
        return WEFT_ERROR(WEFT_INTERNAL, "a mesh of %d ranks in a world of %d", mesh->world,
                          weft_comm_size(world));
    weft_groups groups = {.mesh = *mesh, .world = world};
    groups.coords = weft_mesh_coords(mesh, weft_comm_rank(world));
    weft_status status = weft_comm_agree(world, init(&groups, use ? use : &all));
    if (status != WEFT_OK) {
        weft_groups_release(&groups);
        return weft_error_frame(__FILE__, __LINE__, __func__, status);
    }
    *out = groups;
    return WEFT_OK;
}

static weft_status init_noted(weft_groups *groups)
{
    const weft_coords *coords = &groups->coords;
    const struct {
        weft_axis axis;
        weft_comm **group;
    } gathers[] = {{WEFT_AXIS_DP_CP, &groups->gather_dense},
                   {WEFT_AXIS_EDP, &groups->gather_experts}};
    for (weft_axis axis = WEFT_AXIS_NONE + 1; axis < WEFT_NUM_AXES; axis++)
        WEFT_TRY(weft_comm_create_note(weft_axis_text(axis), axis, coords->at[axis],
                                       coords->size[axis], &groups->by_axis[axis]));
    for (int i = 0; i < 2; i++)
        WEFT_TRY(weft_comm_create_note("gather", gathers[i].axis, coords->at[gathers[i].axis],
                                       coords->size[gathers[i].axis], gathers[i].group));
    return groups->mesh.pp > 1
               ? weft_comm_create_note("embedding", WEFT_AXIS_PP, 0, 2, &groups->embedding)
               : WEFT_OK;
}

weft_status weft_groups_create_note(weft_comm *world, const weft_mesh *mesh,
                                    const weft_coords *coords, weft_groups *out)
{
    weft_groups groups = {.mesh = *mesh, .coords = *coords, .world = world};
    const weft_status status = init_noted(&groups);
    if (status == WEFT_OK)
        *out = groups;
    else
        weft_groups_release(&groups);
    return status;
}

void weft_groups_release(weft_groups *groups)
{
    if (!groups)
        return;
    for (int axis = 0; axis < WEFT_NUM_AXES; axis++)
        weft_comm_destroy(groups->by_axis[axis]);
    weft_comm_destroy(groups->embedding);
    weft_comm_destroy(groups->gather_dense);
    weft_comm_destroy(groups->gather_experts);
    memset(groups, 0, sizeof *groups);
}
