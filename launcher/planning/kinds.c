#include "launcher/planning/kinds.h"

static const weft_axis waiting_axes[] = {WEFT_AXIS_TP, WEFT_AXIS_CP, WEFT_AXIS_EP, WEFT_AXIS_ETP};
enum { NUM_WAITING_AXES = sizeof waiting_axes / sizeof *waiting_axes };

/* Kinds by rank, and by the color of groups over one axis. */
typedef struct spread {
    const weft_mesh *mesh;
    uint32_t *of_rank, *of_group;
    int *colors;
} spread;

/* Ranks get the kinds of all their groups' members; true: a rank got more. */
static bool spread_over(spread *s, weft_axis axis)
{
    bool grew = false;
    for (int r = 0; r < s->mesh->world; r++) {
        s->colors[r] = weft_mesh_color(s->mesh, axis, r);
        s->of_group[s->colors[r]] = 0;
    }
    for (int r = 0; r < s->mesh->world; r++)
        s->of_group[s->colors[r]] |= s->of_rank[r];
    for (int r = 0; r < s->mesh->world; r++) {
        grew |= s->of_group[s->colors[r]] != s->of_rank[r];
        s->of_rank[r] = s->of_group[s->colors[r]];
    }
    return grew;
}

static uint32_t kind_of(const weft_cluster *cluster, int rank)
{
    const int group = weft_cluster_group_of(cluster, rank / cluster->ranks_per_node);
    return group < 0 ? 0 : 1u << group;
}

static weft_status find(const weft_cluster *cluster, const weft_mesh *mesh, weft_arena *scratch,
                        weft_stage_kinds *out)
{
    spread s = {.mesh = mesh};
    void *memory;
    WEFT_TRY(weft_arena_alloc_array(scratch, (size_t)mesh->world, sizeof(uint32_t), &memory));
    s.of_rank = memory;
    WEFT_TRY(weft_arena_alloc_array(scratch, (size_t)mesh->world, sizeof(uint32_t), &memory));
    s.of_group = memory;
    WEFT_TRY(weft_arena_alloc_array(scratch, (size_t)mesh->world, sizeof(int), &memory));
    s.colors = memory;
    const weft_coords first = weft_mesh_coords(mesh, 0);
    for (int r = 0; r < mesh->world; r++) {
        s.of_rank[r] = kind_of(cluster, r);
        out[weft_mesh_coords(mesh, r).at[WEFT_AXIS_PP]].all |= s.of_rank[r];
    }
    for (bool grew = true; grew;) {
        grew = false;
        for (int i = 0; i < NUM_WAITING_AXES; i++)
            grew |= first.size[waiting_axes[i]] > 1 && spread_over(&s, waiting_axes[i]);
    }
    for (int r = 0; r < mesh->world; r++)
        out[weft_mesh_coords(mesh, r).at[WEFT_AXIS_PP]].together[s.of_rank[r]] = true;
    return WEFT_OK;
}

weft_status weft_stage_kinds_find(const weft_cluster *cluster, const weft_mesh *mesh,
                                  weft_arena *arena, weft_stage_kinds **out)
{
    void *memory;
    WEFT_TRY(weft_arena_alloc_array(arena, (size_t)mesh->pp, sizeof **out, &memory));
    *out = memory;
    if (cluster->num_groups == 0) {
        for (int stage = 0; stage < mesh->pp; stage++)
            (*out)[stage].together[0] = true;
        return WEFT_OK;
    }
    weft_arena scratch = {0};
    const weft_status status = find(cluster, mesh, &scratch, *out);
    weft_arena_release(&scratch);
    return status;
}

int64_t weft_kind_num_ranks(const weft_cluster *cluster, const weft_mesh *mesh, int group)
{
    int64_t first = 0, end = mesh->world;
    if (group < 0)
        return mesh->world;
    for (int g = 0; g < group; g++)
        first += (int64_t)cluster->groups[g].num_nodes * cluster->ranks_per_node;
    end = first + (int64_t)cluster->groups[group].num_nodes * cluster->ranks_per_node;
    end = end < mesh->world ? end : mesh->world;
    return end > first ? end - first : 0;
}
