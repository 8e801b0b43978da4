/* The mesh against a second, independent count of Megatron's rank groups; its rules. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layers/model/model.h"
#include "parallel/mesh/mesh.h"
#include "parallel/mesh/internal.h"
#include "schedule/options.h"
#include "schedule/pipeline/pipeline.h"
#include "tests/core/check.h"

enum { MAX_RANKS = 64 };

/* A sanitizer takes one mesh of so many to try its suggestions on. */
#ifdef WEFT_SANITIZED
enum { STRIDE = 7 };
#else
enum { STRIDE = 1 };
#endif

static weft_parallel_options plain(void)
{
    return (weft_parallel_options){.tensor_model_parallel_size = 1,
                                   .pipeline_model_parallel_size = 1,
                                   .context_parallel_size = 1,
                                   .expert_binding = WEFT_BINDING_DP,
                                   .order = "tp-cp-ep-dp-pp"};
}

static void assert_builds(const weft_parallel_options *options, int world, int64_t num_experts,
                          weft_mesh *out)
{
    weft_status status = weft_mesh_build_plain(options, world, num_experts, out);
    if (status != WEFT_OK)
        fail_msg("%s", weft_error_get()->text);
}

/* The reference: sizes by name, counted through an order string. */

typedef struct sizes {
    int tp, cp, ep, dp, pp;
} sizes;

static int size_named(const sizes *s, const char *name)
{
    return !strncmp(name, "tp", 2)   ? s->tp
           : !strncmp(name, "cp", 2) ? s->cp
           : !strncmp(name, "ep", 2) ? s->ep
           : !strncmp(name, "dp", 2) ? s->dp
                                     : s->pp;
}

/* The smallest rank of `rank`'s group along the axes in `mask` ("tp", "cp-dp"): its digits on them
 * set to zero. Ranks of one group, and only they, have it in common. */
static int reference_base(const char *order, const sizes *s, const char *mask, int rank)
{
    int stride = 1, base = rank;
    for (const char *name = order;; name += 3) {
        int size = size_named(s, name);
        char letters[3] = {name[0], name[1], '\0'};
        if (strstr(mask, letters))
            base -= rank / stride % size * stride;
        stride *= size;
        if (!name[2])
            return base;
    }
}

static void assert_groups_are(const weft_mesh *mesh, weft_axis axis, const char *order,
                              const sizes *s, const char *mask)
{
    int color_of_base[MAX_RANKS], members[MAX_RANKS] = {0};
    memset(color_of_base, -1, sizeof color_of_base);
    for (int rank = 0; rank < mesh->world; rank++) {
        int base = reference_base(order, s, mask, rank);
        int color = weft_mesh_color(mesh, axis, rank);
        assert_true(color >= 0 && color < mesh->world);
        if (color_of_base[base] < 0) { /* no other group may have this colour */
            for (int other = 0; other < mesh->world; other++)
                assert_int_not_equal(color_of_base[other], color);
            color_of_base[base] = color;
        }
        assert_int_equal(color_of_base[base], color);
        members[base]++;
    }
    int size = weft_mesh_coords(mesh, 0).size[axis];
    for (int base = 0; base < mesh->world; base++)
        assert_true(members[base] == 0 || members[base] == size);
}

/* Groups list their members in the order of their coordinates, every rank in exactly one. */
static void assert_group_lists(const weft_mesh *mesh, weft_axis axis)
{
    bool seen[MAX_RANKS] = {false};
    for (int rank = 0; rank < mesh->world; rank++) {
        weft_coords coords = weft_mesh_coords(mesh, rank);
        int group[MAX_RANKS];
        int size = weft_mesh_group(mesh, axis, rank, group, MAX_RANKS);
        assert_int_equal(size, coords.size[axis]);
        assert_int_equal(group[coords.at[axis]], rank);
        if (coords.at[axis] != 0)
            continue;
        for (int i = 0; i < size; i++) {
            assert_int_equal(weft_mesh_coords(mesh, group[i]).at[axis], i);
            assert_int_equal(weft_mesh_color(mesh, axis, group[i]),
                             weft_mesh_color(mesh, axis, rank));
            assert_false(seen[group[i]]);
            seen[group[i]] = true;
        }
    }
    for (int rank = 0; rank < mesh->world; rank++)
        assert_true(seen[rank]);
}

static void assert_bijection(const weft_mesh *mesh)
{
    for (int rank = 0; rank < mesh->world; rank++) {
        weft_coords c = weft_mesh_coords(mesh, rank);
        for (int axis = 0; axis < WEFT_NUM_AXES; axis++)
            assert_true(c.at[axis] >= 0 && c.at[axis] < c.size[axis]);
        assert_int_equal(weft_mesh_rank(mesh, c.at[WEFT_AXIS_TP], c.at[WEFT_AXIS_CP],
                                        c.at[WEFT_AXIS_DP], c.at[WEFT_AXIS_PP]),
                         rank);
        assert_int_equal(c.at[WEFT_AXIS_DP_CP], c.at[WEFT_AXIS_DP] * mesh->cp + c.at[WEFT_AXIS_CP]);
    }
}

static void assert_dense_groups(const weft_mesh *mesh)
{
    sizes dense = {mesh->tp, mesh->cp, 1, mesh->dp, mesh->pp};
    assert_int_equal(mesh->tp * mesh->cp * mesh->dp * mesh->pp, mesh->world);
    assert_bijection(mesh);
    assert_groups_are(mesh, WEFT_AXIS_TP, mesh->order, &dense, "tp");
    assert_groups_are(mesh, WEFT_AXIS_CP, mesh->order, &dense, "cp");
    assert_groups_are(mesh, WEFT_AXIS_DP, mesh->order, &dense, "dp");
    assert_groups_are(mesh, WEFT_AXIS_PP, mesh->order, &dense, "pp");
    assert_groups_are(mesh, WEFT_AXIS_DP_CP, mesh->order, &dense, "dp-cp");
}

static void assert_expert_groups(const weft_mesh *mesh)
{
    sizes expert = {mesh->etp, 1, mesh->ep, mesh->edp, mesh->pp};
    assert_int_equal(mesh->etp * mesh->ep * mesh->edp * mesh->pp, mesh->world);
    assert_groups_are(mesh, WEFT_AXIS_ETP, mesh->order, &expert, "tp");
    assert_groups_are(mesh, WEFT_AXIS_EP, mesh->order, &expert, "ep");
    assert_groups_are(mesh, WEFT_AXIS_EDP, mesh->order, &expert, "dp");
    /* the same pipeline groups in both grids */
    assert_groups_are(mesh, WEFT_AXIS_PP, mesh->order, &expert, "pp");
}

CASE(test_every_mesh_of_up_to_64_ranks)
{
    int meshes = 0;
    for (int world = 1; world <= MAX_RANKS; world++)
        for (int tp = 1; tp <= world; tp++)
            for (int cp = 1; cp * tp <= world; cp++)
                for (int pp = 1; pp * cp * tp <= world; pp++) {
                    if (world % (tp * cp * pp))
                        continue;
                    weft_parallel_options o = plain();
                    weft_mesh mesh;
                    o.tensor_model_parallel_size = tp;
                    o.context_parallel_size = cp;
                    o.pipeline_model_parallel_size = pp;
                    assert_builds(&o, world, 0, &mesh);
                    assert_dense_groups(&mesh);
                    assert_expert_groups(&mesh);

                    o.expert_binding = WEFT_BINDING_TP;
                    assert_builds(&o, world, 4 * tp, &mesh);
                    assert_int_equal(mesh.ep, tp);
                    assert_int_equal(mesh.etp, 1);
                    assert_expert_groups(&mesh);
                    sizes dense = {tp, cp, 1, mesh.dp, pp};
                    assert_groups_are(&mesh, WEFT_AXIS_EP, mesh.order, &dense, "tp");

                    o.expert_binding = WEFT_BINDING_DP;
                    int stage = world / pp;
                    for (int etp = 1; etp <= tp; etp += tp > 1 ? tp - 1 : 1)
                        for (int ep = 1; ep * etp <= stage; ep++) {
                            if (stage % (ep * etp))
                                continue;
                            o.expert_tensor_parallel_size = etp;
                            o.expert_model_parallel_size = ep;
                            assert_builds(&o, world, 2 * ep, &mesh);
                            assert_int_equal(mesh.ep, ep);
                            assert_int_equal(mesh.etp, etp);
                            assert_expert_groups(&mesh);
                            if (etp > 1) /* a split expert lies on one tensor-parallel group */
                                assert_groups_are(&mesh, WEFT_AXIS_ETP, mesh.order, &dense, "tp");
                            meshes++;
                        }
                }
    assert_true(meshes > 3000);
}

/* Calls `visit` with each of the 120 orders. */
static void each_order(void (*visit)(const char *order, int world), int world)
{
    static const char *const names[] = {"tp", "cp", "ep", "dp", "pp"};
    for (int code = 0; code < 3125; code++) {
        int pick[5], used = 0;
        for (int i = 0, rest = code; i < 5; i++, rest /= 5) {
            pick[i] = rest % 5;
            used |= 1 << pick[i];
        }
        if (used != 31)
            continue;
        char order[16];
        snprintf(order, sizeof order, "%s-%s-%s-%s-%s", names[pick[0]], names[pick[1]],
                 names[pick[2]], names[pick[3]], names[pick[4]]);
        visit(order, world);
    }
}

/* Megatron accepts an order exactly when both grids give the same pipeline groups; a split expert
 * must further lie on one tensor-parallel group. */
static bool same_groups(const char *order, int world, const sizes *a, const sizes *b,
                        const char *mask)
{
    for (int rank = 0; rank < world; rank++)
        if (reference_base(order, a, mask, rank) != reference_base(order, b, mask, rank))
            return false;
    return true;
}

static int orders_accepted, orders_refused;

static void check_order_on(const char *order, int world)
{
    for (int tp = 1; tp <= world; tp++)
        for (int cp = 1; cp * tp <= world; cp++)
            for (int pp = 1; pp * cp * tp <= world; pp++) {
                if (world % (tp * cp * pp))
                    continue;
                weft_parallel_options o = plain();
                weft_mesh mesh;
                o.order = order;
                o.tensor_model_parallel_size = tp;
                o.context_parallel_size = cp;
                o.pipeline_model_parallel_size = pp;
                assert_builds(&o, world, 0, &mesh);
                assert_dense_groups(&mesh);
                o.expert_binding = WEFT_BINDING_TP;
                assert_builds(&o, world, tp, &mesh);
                sizes dense = {tp, cp, 1, mesh.dp, pp};
                assert_groups_are(&mesh, WEFT_AXIS_EP, order, &dense, "tp");
                assert_groups_are(&mesh, WEFT_AXIS_EDP, order, &dense, "dp-cp");

                o.expert_binding = WEFT_BINDING_DP;
                int stage = world / pp;
                for (int etp = 1; etp <= tp; etp += tp > 1 ? tp - 1 : 1)
                    for (int ep = 1; ep * etp <= stage; ep++) {
                        if (stage % (ep * etp))
                            continue;
                        sizes expert = {etp, 1, ep, stage / (ep * etp), pp};
                        bool legal = same_groups(order, world, &dense, &expert, "pp") &&
                                     (etp == 1 || same_groups(order, world, &dense, &expert, "tp"));
                        o.expert_tensor_parallel_size = etp;
                        o.expert_model_parallel_size = ep;
                        weft_status status = weft_mesh_build_plain(&o, world, ep, &mesh);
                        assert_int_equal(status, legal ? WEFT_OK : WEFT_CONFIG);
                        if (legal)
                            assert_expert_groups(&mesh);
                        else
                            assert_non_null(strstr(weft_error_get()->text, order));
                        *(legal ? &orders_accepted : &orders_refused) += 1;
                    }
            }
}

CASE(test_every_order)
{
    each_order(check_order_on, 8);
    each_order(check_order_on, 12);
    assert_true(orders_accepted > 1000);
    assert_true(orders_refused > 1000);
}

CASE(test_group_lists)
{
    static const char *const orders[] = {"tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp", "dp-tp-cp-ep-pp"};
    for (size_t i = 0; i < sizeof orders / sizeof orders[0]; i++) {
        weft_parallel_options o = plain();
        weft_mesh mesh;
        o.order = orders[i];
        o.tensor_model_parallel_size = 2;
        o.context_parallel_size = 3;
        o.pipeline_model_parallel_size = 2;
        o.expert_binding = WEFT_BINDING_TP;
        assert_builds(&o, 24, 4, &mesh);
        for (int axis = WEFT_AXIS_NONE; axis < WEFT_NUM_AXES; axis++)
            assert_group_lists(&mesh, (weft_axis)axis);
        o.expert_binding = WEFT_BINDING_DP;
        for (int etp = 1; etp <= 2; etp++) {
            o.expert_tensor_parallel_size = etp;
            o.expert_model_parallel_size = i == 1 ? 6 / etp : 2; /* both grids' pipelines agree */
            if (etp > 1 && i == 2) /* its tensor-parallel groups are not the experts' */
                continue;
            assert_builds(&o, 24, 12, &mesh);
            for (int axis = WEFT_AXIS_NONE; axis < WEFT_NUM_AXES; axis++)
                assert_group_lists(&mesh, (weft_axis)axis);
        }
    }
}

/* MoNTA, Fig. 12: the default order lays experts along CP, dp before cp lays them across it. PPMoE
 * §3.3.2: bound to tp, the experts of a layer are on one tensor-parallel group. */
CASE(test_experts_lie_along_cp_or_across_it)
{
    static const struct {
        const char *order;
        int tp, ep;
        int members[4];
        const char *line;
        bool by_tp;
    } rows[] = {
        {"tp-cp-ep-dp-pp", 4, 4, {0, 1, 2, 3}, ", ep 4 (binding tp)", true},
        {"tp-cp-ep-dp-pp",
         1,
         2,
         {0, 1},
         "dp 4, cp 2, ep 2 (binding dp, along cp: vertical)",
         false},
        {"tp-cp-ep-dp-pp",
         1,
         4,
         {0, 1, 2, 3},
         "dp 4, cp 2, ep 4 (binding dp, along cp: vertical)",
         false},
        {"tp-ep-dp-cp-pp",
         1,
         4,
         {0, 1, 2, 3},
         "dp 4, cp 2, ep 4 (binding dp, across cp: hor",
         false},
        {"tp-ep-dp-cp-pp",
         2,
         2,
         {0, 1},
         "dp 2, cp 2, ep 2 (binding dp, across cp: horizontal)",
         false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        weft_parallel_options o = plain();
        weft_mesh mesh;
        int group[8];
        char line[128];
        o.tensor_model_parallel_size = rows[i].tp;
        o.context_parallel_size = 2;
        o.expert_model_parallel_size = rows[i].ep;
        o.expert_binding = rows[i].by_tp ? WEFT_BINDING_TP : WEFT_BINDING_DP;
        o.order = rows[i].order;
        assert_int_equal(weft_mesh_build(&o, 8, 8, &mesh), WEFT_OK);
        assert_int_equal(weft_mesh_group(&mesh, WEFT_AXIS_EP, 0, group, 8), rows[i].ep);
        assert_memory_equal(group, rows[i].members, (size_t)rows[i].ep * sizeof(int));
        weft_mesh_print(&mesh, line, sizeof line);
        assert_non_null(strstr(line, rows[i].line));
    }
}

/* --- what makes a mesh legal, what a refusal says, and the --mesh shorthand ------------------ */

typedef struct refusal {
    int world;
    int64_t num_experts;
    const char *text;
    weft_parallel_options options; /* fields left zero take plain()'s value */
} refusal;

static const refusal refusals[] = {
    {8, 0,
     "tensor_model_parallel_size 3 x pipeline 2 = 6 does not divide 8 ranks; tp 1, 2 or 4 would",
     .options.tensor_model_parallel_size = 3, .options.pipeline_model_parallel_size = 2},
    {8, 0,
     "pipeline_model_parallel_size 3 x tensor 1 = 3 does not divide 8 ranks; pp 1, 2, 4 or 8 would",
     .options.pipeline_model_parallel_size = 3},
    {8, 0,
     "tensor_model_parallel_size 3 x pipeline 3 = 9 does not divide 8 ranks; with pp 2, tp 1, 2 or "
     "4 would",
     .options.tensor_model_parallel_size = 3, .options.pipeline_model_parallel_size = 3},
    {4, 0,
     "tensor_model_parallel_size 2 x pipeline 4 = 8 does not divide 4 ranks; tp 1, or pp 1 or 2 "
     "would",
     .options.tensor_model_parallel_size = 2, .options.pipeline_model_parallel_size = 4},
    {4, 0, "tensor_model_parallel_size -2: at least 1", .options.tensor_model_parallel_size = -2},
    {4, 0, "data_parallel_size -1: at least 0", .options.data_parallel_size = -1},
    {4, 0, "is more than the 4 ranks", .options.tensor_model_parallel_size = INT64_MAX,
     .options.pipeline_model_parallel_size = INT64_MAX},
    {8, 0, "data_parallel_size 3: tensor 2 x context 1 x pipeline 1 leave 4 of 8 ranks; give 4",
     .options.tensor_model_parallel_size = 2, .options.data_parallel_size = 3},
    {8, 0,
     "context_parallel_size 3 x tensor 2 x pipeline 1 = 6 does not divide 8 ranks; cp 1, 2 or 4 "
     "would",
     .options.context_parallel_size = 3, .options.tensor_model_parallel_size = 2},
    {8, 0, "sequence_parallel has no effect with tensor_model_parallel_size 1; it needs tp above 1",
     .options.sequence_parallel = true},
    {8, 8,
     "expert_model_parallel_size 4: expert_binding tp puts the experts on the tensor-parallel "
     "ranks, so ep is tp, 2",
     .options.tensor_model_parallel_size = 2, .options.expert_binding = WEFT_BINDING_TP,
     .options.expert_model_parallel_size = 4},
    {8, 8, "expert_tensor_parallel_size 2: with expert_binding tp",
     .options.tensor_model_parallel_size = 2, .options.expert_binding = WEFT_BINDING_TP,
     .options.expert_tensor_parallel_size = 2},
    {8, 6,
     "tensor_model_parallel_size 4: expert_binding tp spreads num_experts 6 over the "
     "tensor-parallel ranks, which does not come out even (expert_binding dp need not); tp 1 or 2 "
     "would",
     .options.tensor_model_parallel_size = 4, .options.expert_binding = WEFT_BINDING_TP},
    {8, 8, "expert_tensor_parallel_size 2: 1 (experts whole) or tensor_model_parallel_size, 4",
     .options.tensor_model_parallel_size = 4, .options.expert_tensor_parallel_size = 2,
     .options.expert_binding = WEFT_BINDING_DP},
    {8, 6,
     "expert_model_parallel_size 3 x expert tensor 1 = 3 does not divide the 8 ranks of a pipeline "
     "stage; ep 1 or 2 would",
     .options.expert_model_parallel_size = 3, .options.expert_binding = WEFT_BINDING_DP},
    {8, 6, "expert_model_parallel_size 4 does not divide num_experts 6; ep 1 or 2 would",
     .options.expert_model_parallel_size = 4, .options.expert_binding = WEFT_BINDING_DP},
    {8, 6, "does not divide the 8 ranks of a pipeline stage",
     .options.expert_model_parallel_size = INT64_C(1) << 20,
     .options.expert_binding = WEFT_BINDING_DP},
    {8, 0, "expert_model_parallel_size 2: the model has no experts (num_experts 0)",
     .options.expert_model_parallel_size = 2, .options.expert_binding = WEFT_BINDING_DP},
    {8, 0, "expert_tensor_parallel_size 2: the model has no experts (num_experts 0)",
     .options.tensor_model_parallel_size = 2, .options.expert_tensor_parallel_size = 2,
     .options.expert_binding = WEFT_BINDING_DP},
    {8, 0, "order 'tp-dp-pp': each of tp, cp, ep, dp and pp once", .options.order = "tp-dp-pp"},
    {8, 0, "order 'tp-cp-ep-dp-dp': each of", .options.order = "tp-cp-ep-dp-dp"},
    {8, 0, "order 'tp-cp-ep-dp-xx': each of", .options.order = "tp-cp-ep-dp-xx"},
    {8, 0, "order 'tp_cp-ep-dp-pp': each of", .options.order = "tp_cp-ep-dp-pp"},
    {8, 0, "order '': each of", .options.order = ""},
    {8, 0, "each of", .options.order = "tp-cp-ep-dp-pp-pp-pp-pp-pp-pp-pp-pp"},
    {8, 8,
     "order tp-cp-ep-pp-dp: the dense grid (tp 2, cp 1, dp 2) and the expert grid (etp 1, ep 4, "
     "edp 1) would get different pipeline groups; put pp last",
     .options.tensor_model_parallel_size = 2, .options.pipeline_model_parallel_size = 2,
     .options.expert_model_parallel_size = 4, .options.expert_binding = WEFT_BINDING_DP,
     .options.order = "tp-cp-ep-pp-dp"},
    {8, 8,
     "order ep-tp-cp-dp-pp: with expert_tensor_parallel_size 2 the expert's shards would not lie "
     "on one tensor-parallel group; put tp first",
     .options.tensor_model_parallel_size = 2, .options.expert_model_parallel_size = 2,
     .options.expert_tensor_parallel_size = 2, .options.expert_binding = WEFT_BINDING_DP,
     .options.order = "ep-tp-cp-dp-pp"},
    {0, 0, "a mesh of 0 ranks", .options.order = NULL},
    {4, -1, "num_experts -1", .options.order = NULL},
};

CASE(test_refusals)
{
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        weft_parallel_options o = refusals[i].options, base = plain();
        if (!o.tensor_model_parallel_size)
            o.tensor_model_parallel_size = base.tensor_model_parallel_size;
        if (!o.pipeline_model_parallel_size)
            o.pipeline_model_parallel_size = base.pipeline_model_parallel_size;
        if (!o.context_parallel_size)
            o.context_parallel_size = base.context_parallel_size;
        weft_mesh mesh = {.world = -7};
        assert_int_equal(weft_mesh_build(&o, refusals[i].world, refusals[i].num_experts, &mesh),
                         WEFT_CONFIG);
        if (!strstr(weft_error_get()->text, refusals[i].text))
            fail_msg("\"%s\" lacks \"%s\"", weft_error_get()->text, refusals[i].text);
        assert_null(strchr(weft_error_get()->text, '\n'));
        /* About the key that it begins with, but for the number of ranks, which no key gives. */
        size_t bytes = strlen(weft_error_get()->key);
        assert_int_equal(bytes == 0, strncmp(weft_error_get()->text, "a mesh of", 9) == 0);
        assert_memory_equal(weft_error_get()->text, weft_error_get()->key, bytes);
        assert_int_equal(mesh.world, -7); /* written on success only */
    }
}

/* Reads "NAME 1, 2 or 4" out of a refusal; returns how many numbers follow. */
static int suggestions(const char *text, const char *name, int64_t *out)
{
    const char *at = strstr(text, name);
    int count = 0;
    at = at ? at + strlen(name) : "";
    for (char *end; *at >= '0' && *at <= '9'; at = end) {
        out[count++] = strtoll(at, &end, 10);
        end += !strncmp(end, ", ", 2) ? 2 : !strncmp(end, " or ", 4) ? 4 : 0;
    }
    return count;
}

/* What a refusal says would fit, fits; what it leaves out, does not. */
CASE(test_suggestions_hold)
{
    int refused = 0;
    for (int world = 1; world <= 24; world++)
        for (int tp = 1; tp <= 6; tp++)
            for (int ep = 1; ep <= 9; ep++) {
                weft_parallel_options o = plain();
                weft_mesh mesh;
                int64_t fits[64];
                o.tensor_model_parallel_size = tp;
                o.pipeline_model_parallel_size = 2;
                if (world % 2)
                    continue;
                if (weft_mesh_build(&o, world, 0, &mesh) != WEFT_OK) {
                    int count = suggestions(weft_error_get()->text, "; tp ", fits);
                    assert_true(count > 0);
                    for (int other = 1, i = 0; other <= world; other++) {
                        o.tensor_model_parallel_size = other;
                        bool builds = weft_mesh_build(&o, world, 0, &mesh) == WEFT_OK;
                        assert_int_equal(builds, i < count && fits[i] == other);
                        i += builds;
                    }
                    refused++;
                    continue;
                }
                o.expert_model_parallel_size = ep;
                o.expert_tensor_parallel_size = ep % 2 ? tp : 1;
                if (weft_mesh_build(&o, world, 12, &mesh) == WEFT_OK)
                    continue;
                int count = suggestions(weft_error_get()->text, "; ep ", fits);
                assert_true(count > 0);
                for (int other = 1, i = 0; other <= world; other++) {
                    o.expert_model_parallel_size = other;
                    bool builds = weft_mesh_build(&o, world, 12, &mesh) == WEFT_OK;
                    assert_int_equal(builds, i < count && fits[i] == other);
                    i += builds;
                }
                refused++;
            }
    assert_true(refused > 100);
}

static weft_status check_model(const void *context, const weft_mesh *mesh)
{
    const weft_model_options *o = context;
    weft_layout layout;
    WEFT_TRY(weft_layout_build(&(weft_parallel_options){0}, mesh->pp, (int)o->num_layers + 2, NULL,
                               &layout));
    return weft_model_check_mesh(o, mesh, o->num_layers, 1);
}

/* The same with a model on the mesh, and where the mesh says how many ranks there are (world 0). */
CASE(test_suggestions_fit_the_model)
{
    static const struct {
        const char *name;
        size_t offset;
    } rows[] = {
        {"tp ", offsetof(weft_parallel_options, tensor_model_parallel_size)},
        {"pp ", offsetof(weft_parallel_options, pipeline_model_parallel_size)},
        {"cp ", offsetof(weft_parallel_options, context_parallel_size)},
        {"ep ", offsetof(weft_parallel_options, expert_model_parallel_size)},
        {"etp ", offsetof(weft_parallel_options, expert_tensor_parallel_size)},
    };
    weft_model_options model = {.num_layers = 3,
                                .hidden_size = 96,
                                .ffn_hidden_size = 60,
                                .num_attention_heads = 12,
                                .num_query_groups = 6,
                                .kv_channels = 8,
                                .seq_length = 12,
                                .num_experts = 12,
                                .moe_router_topk = 2,
                                .moe_ffn_hidden_size = 60};
    int refused = 0, hinted = 0;
    for (int i = 0; i < 4 * 6 * 5 * 5 * 2 * 2; i += STRIDE) {
        static const int worlds[] = {0, 8, 12, 30};
        weft_parallel_options o = plain();
        weft_mesh_request request = {.options = &o,
                                     .world = worlds[i % 4],
                                     .num_experts = model.num_experts,
                                     .check = check_model,
                                     .context = &model};
        weft_mesh mesh;
        o.tensor_model_parallel_size = 1 + i / 4 % 6;
        o.pipeline_model_parallel_size = 1 + i / 24 % 5;
        o.expert_model_parallel_size = i / 120 % 5;
        o.expert_binding = i / 600 % 2 ? WEFT_BINDING_TP : WEFT_BINDING_DP;
        o.sequence_parallel = i / 1200 % 2;
        o.context_parallel_size = i % 13 < 12 ? 1 : 2;
        if (weft_mesh_build_for(&request, &mesh) == WEFT_OK)
            continue;
        refused++;
        char text[WEFT_ERROR_TEXT_BYTES];
        strcpy(text, weft_error_get()->text);
        for (size_t s = 0; s < sizeof rows / sizeof *rows; s++) {
            char wanted[2][16]; /* a list begins either way */
            int64_t fits[64];
            snprintf(wanted[0], sizeof wanted[0], "; %s", rows[s].name);
            snprintf(wanted[1], sizeof wanted[1], ", or %s", rows[s].name);
            int count = suggestions(text, wanted[0], fits);
            if (count == 0)
                count = suggestions(text, wanted[1], fits);
            int64_t *value = (int64_t *)((char *)&o + rows[s].offset), asked = *value;
            for (int other = 1, at = 0; count > 0 && other <= 30; other++) {
                *value = other;
                bool builds = weft_mesh_build_for(&request, &mesh) == WEFT_OK;
                if (builds != (at < count && fits[at] == other))
                    fail_msg("%s: %s%d", text, rows[s].name, other);
                at += builds;
            }
            *value = asked;
            hinted += count > 0;
        }
    }
    if (refused < 500 / STRIDE || hinted < refused / 2)
        fail_msg("%d refused, %d with values", refused, hinted);
}

static weft_schedule_options schedule;

/* What --mesh may name besides the mesh. */
static weft_option_section schedule_rows(void)
{
    return (weft_option_section){
        .rows = weft_schedule_rows, .num_rows = weft_num_schedule_rows, .target = &schedule};
}

CASE(test_alias)
{
    weft_arena arena = {0};
    weft_option_section all = schedule_rows();
    weft_parallel_options o = plain();
    o.tensor_model_parallel_size = 2;
    o.pipeline_model_parallel_size = 3;
    o.expert_model_parallel_size = 2;
    o.data_parallel_size = 5;
    o.sequence_parallel = true;
    o.expert_binding = WEFT_BINDING_TP;
    assert_int_equal(weft_mesh_apply_alias("tp=1", &arena, &o, NULL), WEFT_OK);
    assert_int_equal(o.tensor_model_parallel_size, 1);
    assert_int_equal(o.pipeline_model_parallel_size, 1);
    assert_int_equal(o.expert_model_parallel_size, 0);
    assert_int_equal(o.data_parallel_size, 0);
    assert_false(o.sequence_parallel);
    assert_int_equal(o.expert_binding, WEFT_BINDING_TP); /* not a size: stays */

    assert_int_equal(weft_mesh_apply_alias("tp=4,pp=2,cp=1,ep=8,etp=4,dp=3,binding=dp,sp=1,zero=0,"
                                           "schedule=gpipe,order=tp-cp-ep-pp-dp",
                                           &arena, &o, &all),
                     WEFT_OK);
    assert_int_equal(o.tensor_model_parallel_size, 4);
    assert_int_equal(o.pipeline_model_parallel_size, 2);
    assert_int_equal(o.context_parallel_size, 1);
    assert_int_equal(o.expert_model_parallel_size, 8);
    assert_int_equal(o.expert_tensor_parallel_size, 4);
    assert_int_equal(o.data_parallel_size, 3);
    assert_int_equal(o.expert_binding, WEFT_BINDING_DP);
    assert_true(o.sequence_parallel);
    assert_false(o.use_distributed_optimizer);
    assert_int_equal(schedule.pipeline_schedule, WEFT_PIPELINE_GPIPE);
    assert_string_equal(o.order, "tp-cp-ep-pp-dp");

    assert_int_equal(weft_mesh_apply_alias("tp=4,sp=false", &arena, &o, NULL), WEFT_OK);
    assert_false(o.sequence_parallel);
    assert_int_equal(weft_mesh_apply_alias("tp=4,sp=true", &arena, &o, NULL), WEFT_OK);
    assert_true(o.sequence_parallel);

    /* a layout has commas of its own */
    assert_int_equal(weft_mesh_apply_alias("layout=Et,t|t,L,tp=4,pp=2", &arena, &o, &all), WEFT_OK);
    assert_string_equal(o.pipeline_model_parallel_layout, "Et,t|t,L");
    assert_int_equal(o.pipeline_model_parallel_size, 2);

    /* a larger tp keeps the file's sequence_parallel */
    assert_int_equal(weft_mesh_apply_alias("tp=2", &arena, &o, NULL), WEFT_OK);
    assert_true(o.sequence_parallel);
    weft_arena_release(&arena);
}

CASE(test_alias_refusals)
{
    static const struct {
        const char *alias, *text;
    } rows[] = {
        {"tp=0", "--mesh tp=0: 0 is out of range: 1 to "},
        {"tp=two", "--mesh tp=two: expected an integer of 1 to "},
        {"tp=2x", "--mesh tp=2x:"},
        {"tp= 2", "--mesh tp= 2:"},

        {"tp=-1", "--mesh tp=-1:"},
        {"tp=99999999999999999999", "--mesh tp=99999999999999999999:"},
        {"tp", "--mesh 'tp': not name=value"},
        {"tp=", "--mesh 'tp=': not name=value"},
        {"", "--mesh '': not name=value"},
        {"tp=2,,pp=2", "--mesh '': not name=value"},
        {"tp=2,tp=2", "--mesh tp: given twice"},
        {"bindin=tp", "--mesh bindin: unknown name; did you mean binding?"},
        {"sp=yes", "--mesh sp=yes: expected true or false, got \"yes\""},
        {"binding=pp", "--mesh binding=pp: expected tp or dp, got \"pp\"; did you mean tp?"},
        {"schedule=1f", "--mesh schedule=1f: expected 1f1b, gpipe, "},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        weft_arena arena = {0};
        weft_option_section all = schedule_rows();
        weft_parallel_options o = plain(), before = o;
        assert_int_equal(weft_mesh_apply_alias(rows[i].alias, &arena, &o, &all), WEFT_CONFIG);
        weft_arena_release(&arena);
        if (!strstr(weft_error_get()->text, rows[i].text))
            fail_msg("\"%s\" lacks \"%s\"", weft_error_get()->text, rows[i].text);
        assert_memory_equal(&o, &before, sizeof o);
    }
}
