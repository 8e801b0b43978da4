#include "parallel/mesh/mesh.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "parallel/mesh/internal.h"

enum { NUM_LETTERS = 5 };

const char *weft_axis_text(weft_axis axis)
{
    static const char *const texts[WEFT_NUM_AXES] = {
        [WEFT_AXIS_NONE] = "none", [WEFT_AXIS_TP] = "tp",   [WEFT_AXIS_CP] = "cp",
        [WEFT_AXIS_DP] = "dp",     [WEFT_AXIS_PP] = "pp",   [WEFT_AXIS_EP] = "ep",
        [WEFT_AXIS_ETP] = "etp",   [WEFT_AXIS_EDP] = "edp", [WEFT_AXIS_DP_CP] = "dp-cp",
    };
    return axis >= 0 && axis < WEFT_NUM_AXES ? texts[axis] : "?";
}

weft_place weft_coords_place(const weft_coords *c, int world)
{
#define PLACE(axis)                                                                                \
    {                                                                                              \
        c->at[WEFT_AXIS_##axis], c->size[WEFT_AXIS_##axis]                                         \
    }
    return (weft_place){.world = {c->rank, world},
                        .tp = PLACE(TP),
                        .cp = PLACE(CP),
                        .dp = PLACE(DP),
                        .pp = PLACE(PP),
                        .ep = PLACE(EP),
                        .etp = PLACE(ETP),
                        .edp = PLACE(EDP)};
#undef PLACE
}

/* Axes and sizes, the fastest first. */
typedef struct grid {
    int num_axes;
    weft_axis axis[NUM_LETTERS];
    int size[NUM_LETTERS];
} grid;

static int axis_size(const weft_mesh *mesh, weft_axis axis)
{
    switch (axis) {
    case WEFT_AXIS_TP:
        return mesh->tp;
    case WEFT_AXIS_CP:
        return mesh->cp;
    case WEFT_AXIS_DP:
        return mesh->dp;
    case WEFT_AXIS_PP:
        return mesh->pp;
    case WEFT_AXIS_EP:
        return mesh->ep;
    case WEFT_AXIS_ETP:
        return mesh->etp;
    case WEFT_AXIS_EDP:
        return mesh->edp;
    case WEFT_AXIS_DP_CP:
        return mesh->dp * mesh->cp;
    default:
        return 1;
    }
}

/* The axis that a letter pair of the order stands for; NONE: it does not count in that grid. The
 * order is checked: its first letters tell the pairs apart. */
static weft_axis letter_axis(const char *letters, bool expert)
{
    switch (letters[0]) {
    case 't':
        return expert ? WEFT_AXIS_ETP : WEFT_AXIS_TP;
    case 'c':
        return expert ? WEFT_AXIS_NONE : WEFT_AXIS_CP;
    case 'e':
        return expert ? WEFT_AXIS_EP : WEFT_AXIS_NONE;
    case 'd':
        return expert ? WEFT_AXIS_EDP : WEFT_AXIS_DP;
    case 'p':
        return WEFT_AXIS_PP;
    default:
        return WEFT_AXIS_NONE;
    }
}

static grid make_grid(const weft_mesh *mesh, bool expert)
{
    grid made = {0};
    for (int i = 0; i < NUM_LETTERS; i++) {
        weft_axis axis = letter_axis(mesh->order + 3 * i, expert);
        if (axis == WEFT_AXIS_NONE)
            continue;
        made.axis[made.num_axes] = axis;
        made.size[made.num_axes++] = axis_size(mesh, axis);
    }
    return made;
}

/* How far apart neighbours along `axis` are. */
static int grid_stride(const grid *g, weft_axis axis)
{
    int stride = 1;
    for (int i = 0; i < g->num_axes && g->axis[i] != axis; i++)
        stride *= g->size[i];
    return stride;
}

/* The same grid inside one pipeline stage. */
static grid grid_of_stage(const grid *whole)
{
    grid stage = {0};
    for (int i = 0; i < whole->num_axes; i++) {
        if (whole->axis[i] == WEFT_AXIS_PP)
            continue;
        stage.axis[stage.num_axes] = whole->axis[i];
        stage.size[stage.num_axes++] = whole->size[i];
    }
    return stage;
}

static void unravel(const grid *g, int index, int *at)
{
    for (int i = 0; i < g->num_axes; i++) {
        at[g->axis[i]] = index % g->size[i];
        index /= g->size[i];
    }
}

weft_coords weft_mesh_coords(const weft_mesh *mesh, int rank)
{
    assert(rank >= 0 && rank < mesh->world);
    weft_coords coords = {.rank = rank};
    for (int axis = 0; axis < WEFT_NUM_AXES; axis++)
        coords.size[axis] = axis_size(mesh, (weft_axis)axis);

    grid dense = make_grid(mesh, false);
    unravel(&dense, rank, coords.at);
    coords.at[WEFT_AXIS_DP_CP] = coords.at[WEFT_AXIS_DP] * mesh->cp + coords.at[WEFT_AXIS_CP];

    if (mesh->binding == WEFT_BINDING_TP) {
        coords.at[WEFT_AXIS_EP] = coords.at[WEFT_AXIS_TP];
        coords.at[WEFT_AXIS_EDP] = coords.at[WEFT_AXIS_DP_CP];
        return coords;
    }
    /* The expert grid counts the ranks of one stage, which both grids share. */
    int stride = grid_stride(&dense, WEFT_AXIS_PP);
    int index = rank % stride + rank / (stride * mesh->pp) * stride;
    grid expert = make_grid(mesh, true);
    grid stage = grid_of_stage(&expert);
    unravel(&stage, index, coords.at);
    return coords;
}

int weft_mesh_stride(const weft_mesh *mesh, bool expert, weft_axis axis)
{
    grid g = make_grid(mesh, expert);
    return grid_stride(&g, axis);
}

int weft_mesh_last_stage(const weft_mesh *mesh)
{
    return mesh->stages_in_v ? 0 : mesh->pp - 1;
}

bool weft_mesh_parts_ends(const weft_mesh *mesh)
{
    return weft_mesh_last_stage(mesh) > 0;
}

int weft_mesh_rank(const weft_mesh *mesh, int tp, int cp, int dp, int pp)
{
    int at[WEFT_NUM_AXES] = {0};
    at[WEFT_AXIS_TP] = tp;
    at[WEFT_AXIS_CP] = cp;
    at[WEFT_AXIS_DP] = dp;
    at[WEFT_AXIS_PP] = pp;
    grid dense = make_grid(mesh, false);
    int rank = 0;
    for (int i = 0; i < dense.num_axes; i++)
        rank += at[dense.axis[i]] * grid_stride(&dense, dense.axis[i]);
    return rank;
}

/* Numbers the groups along `axis` by the coordinates on the other axes of its grid. */
static int group_color(const weft_coords *coords, weft_axis axis)
{
    static const weft_axis dense[] = {WEFT_AXIS_TP, WEFT_AXIS_CP, WEFT_AXIS_DP, WEFT_AXIS_PP};
    static const weft_axis expert[] = {WEFT_AXIS_ETP, WEFT_AXIS_EP, WEFT_AXIS_EDP, WEFT_AXIS_PP};
    if (axis == WEFT_AXIS_NONE)
        return coords->rank;
    bool is_expert = axis == WEFT_AXIS_EP || axis == WEFT_AXIS_ETP || axis == WEFT_AXIS_EDP;
    const weft_axis *axes = is_expert ? expert : dense;
    int color = 0;
    for (int i = 0; i < 4; i++) {
        bool inside = axes[i] == axis || (axis == WEFT_AXIS_DP_CP &&
                                          (axes[i] == WEFT_AXIS_DP || axes[i] == WEFT_AXIS_CP));
        if (!inside)
            color = color * coords->size[axes[i]] + coords->at[axes[i]];
    }
    return color;
}

int weft_mesh_color(const weft_mesh *mesh, weft_axis axis, int rank)
{
    weft_coords coords = weft_mesh_coords(mesh, rank);
    return group_color(&coords, axis);
}

/* The rank at these coordinates of the expert grid. */
static int expert_rank(const weft_mesh *mesh, const int at[WEFT_NUM_AXES])
{
    grid expert = make_grid(mesh, true), stage = grid_of_stage(&expert);
    int index = 0;
    for (int i = 0; i < stage.num_axes; i++)
        index += at[stage.axis[i]] * grid_stride(&stage, stage.axis[i]);
    int stride = weft_mesh_stride(mesh, false, WEFT_AXIS_PP);
    return index % stride + (index / stride * mesh->pp + at[WEFT_AXIS_PP]) * stride;
}

int weft_mesh_member(const weft_mesh *mesh, weft_axis axis, const weft_coords *coords, int place)
{
    int at[WEFT_NUM_AXES];
    memcpy(at, coords->at, sizeof at);
    if (mesh->binding == WEFT_BINDING_TP && axis == WEFT_AXIS_EP)
        axis = WEFT_AXIS_TP;
    if (mesh->binding == WEFT_BINDING_TP && axis == WEFT_AXIS_EDP)
        axis = WEFT_AXIS_DP_CP;
    if (axis_size(mesh, axis) == 1)
        return coords->rank;
    at[axis] = place;
    if (axis == WEFT_AXIS_EP || axis == WEFT_AXIS_ETP || axis == WEFT_AXIS_EDP)
        return expert_rank(mesh, at);
    if (axis == WEFT_AXIS_DP_CP) {
        at[WEFT_AXIS_DP] = place / mesh->cp;
        at[WEFT_AXIS_CP] = place % mesh->cp;
    }
    return weft_mesh_rank(mesh, at[WEFT_AXIS_TP], at[WEFT_AXIS_CP], at[WEFT_AXIS_DP],
                          at[WEFT_AXIS_PP]);
}

/* Members are as far apart as neighbours are; of DP and CP together, as they are along each. */
static void list_ranks(const weft_mesh *mesh, weft_axis axis, int first, int count, int *out)
{
    const grid dense = make_grid(mesh, false);
    axis = axis == WEFT_AXIS_EP ? WEFT_AXIS_TP : axis == WEFT_AXIS_EDP ? WEFT_AXIS_DP_CP : axis;
    const bool both = axis == WEFT_AXIS_DP_CP;
    const int inner = both ? mesh->cp : axis_size(mesh, axis);
    const int step = grid_stride(&dense, both ? WEFT_AXIS_CP : axis);
    const int outer_step = grid_stride(&dense, WEFT_AXIS_DP);
    for (int i = 0; i < count; i++)
        out[i] = first + i % inner * step + i / inner * outer_step;
}

/* The expert grid counts the ranks of one stage, of which so many lie together. */
static void list_experts(const weft_mesh *mesh, weft_axis axis, int first, int count, int *out)
{
    const grid expert = make_grid(mesh, true), stage = grid_of_stage(&expert);
    const int together = weft_mesh_stride(mesh, false, WEFT_AXIS_PP), apart = together * mesh->pp;
    const int own = first % apart / together * together, step = grid_stride(&stage, axis);
    const int from = first / apart * together + first % together;
    for (int i = 0; i < count; i++) {
        const int index = from + i * step;
        out[i] = index / together * apart + own + index % together;
    }
}

int weft_mesh_group(const weft_mesh *mesh, weft_axis axis, int rank, int *out, int capacity)
{
    const weft_coords coords = weft_mesh_coords(mesh, rank);
    const int size = axis_size(mesh, axis), first = weft_mesh_member(mesh, axis, &coords, 0);
    const bool is_own = mesh->binding != WEFT_BINDING_TP; /* else the dense grid's */
    const bool of_experts = axis == WEFT_AXIS_EP || axis == WEFT_AXIS_EDP;
    const int count = size < capacity ? size : capacity;
    if (axis == WEFT_AXIS_ETP || (of_experts && is_own))
        list_experts(mesh, axis, first, count, out);
    else
        list_ranks(mesh, axis, first, count, out);
    return size;
}

static int compare_ranks(const void *a, const void *b)
{
    const int x = *(const int *)a, y = *(const int *)b;
    return (x > y) - (x < y);
}

int weft_mesh_group_rising(const weft_mesh *mesh, weft_axis axis, int rank, int *out, int capacity)
{
    const int size = weft_mesh_group(mesh, axis, rank, out, capacity);
    bool rises = true;
    for (int i = 1; i < size; i++)
        rises &= out[i - 1] < out[i];
    if (!rises)
        qsort(out, (size_t)size, sizeof *out, compare_ranks);
    return size;
}

bool weft_mesh_is_vertical(const weft_mesh *mesh)
{
    weft_coords first = weft_mesh_coords(mesh, 0);
    for (int place = 1; place < mesh->ep; place++) {
        weft_coords member =
            weft_mesh_coords(mesh, weft_mesh_member(mesh, WEFT_AXIS_EP, &first, place));
        if (member.at[WEFT_AXIS_CP] != first.at[WEFT_AXIS_CP])
            return true;
    }
    return false;
}

static const char *expansion(const weft_mesh *mesh)
{
    if (mesh->cp == 1 || mesh->ep == 1 || mesh->binding == WEFT_BINDING_TP)
        return "";
    return weft_mesh_is_vertical(mesh) ? ", along cp: vertical" : ", across cp: horizontal";
}

void weft_mesh_print(const weft_mesh *mesh, char *out, size_t capacity)
{
    char context[24] = "", experts[96] = "", split[24] = "";
    if (mesh->cp > 1)
        snprintf(context, sizeof context, ", cp %d", mesh->cp);
    if (mesh->etp > 1)
        snprintf(split, sizeof split, ", etp %d", mesh->etp);
    if (mesh->ep > 1 || mesh->etp > 1)
        snprintf(experts, sizeof experts, ", ep %d%s (binding %s%s)", mesh->ep, split,
                 mesh->binding == WEFT_BINDING_TP ? "tp" : "dp", expansion(mesh));
    snprintf(out, capacity, "tp %d, pp %d, dp %d%s%s%s", mesh->tp, mesh->pp, mesh->dp, context,
             experts, mesh->sequence_parallel ? ", sequence parallel" : "");
}
