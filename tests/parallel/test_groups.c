/* The communicators of several meshes of 8 ranks have the members that the mesh says. */

#include "comm/mpi/mpi_comm.h"
#include "parallel/mesh/mesh.h"
#include "parallel/topology/topology.h"
#include "tests/expect.h"

enum { WORLD = 8 };

typedef struct shape {
    int tp, pp, ep, etp;
    weft_expert_binding binding;
    const char *order;
} shape;

static const shape shapes[] = {
    {1, 1, 0, 0, WEFT_BINDING_DP, "tp-cp-ep-dp-pp"},
    {8, 1, 0, 0, WEFT_BINDING_TP, "tp-cp-ep-dp-pp"},
    {2, 2, 0, 0, WEFT_BINDING_TP, "tp-cp-ep-dp-pp"},
    {2, 2, 4, 1, WEFT_BINDING_DP, "tp-cp-ep-dp-pp"},
    {2, 1, 2, 2, WEFT_BINDING_DP, "tp-cp-ep-dp-pp"},
    {1, 4, 2, 1, WEFT_BINDING_DP, "tp-cp-ep-dp-pp"},
    {1, 8, 1, 1, WEFT_BINDING_DP, "tp-cp-ep-dp-pp"},
    {2, 2, 0, 0, WEFT_BINDING_TP, "tp-cp-ep-pp-dp"},
    {2, 4, 0, 0, WEFT_BINDING_TP, "dp-pp-ep-tp-cp"},
};

static void check_members(const weft_comm *comm, const int *members, int count, const char *what)
{
    EXPECT(comm != NULL, "%s has no communicator", what);
    if (!comm)
        return;
    EXPECT(weft_comm_size(comm) == count, "%s: %d members, not %d", what, weft_comm_size(comm),
           count);
    EXPECT(!strcmp(weft_comm_name(comm), what), "%s is called %s", what, weft_comm_name(comm));
    for (int i = 0; i < count && i < weft_comm_size(comm); i++)
        EXPECT(weft_comm_world_rank(comm, i) == members[i], "%s member %d: rank %d, not %d", what,
               i, weft_comm_world_rank(comm, i), members[i]);
}

/* Sums the ranks of a group through the communicator itself. */
static void check_works(weft_comm *comm, const int *members, int count, const char *what)
{
    int64_t sum = 0, wanted = 0;
    for (int i = 0; i < count; i++)
        wanted += members[i];
    sum = comm ? weft_comm_world_rank(comm, weft_comm_rank(comm)) : 0;
    if (comm)
        EXPECT_OK(weft_comm_all_reduce_host(comm, &sum, 1, WEFT_I64, WEFT_REDUCE_SUM));
    EXPECT(!comm || sum == wanted, "%s sums to %lld, not %lld", what, (long long)sum,
           (long long)wanted);
}

/* Of what a run does, exactly what it uses is there, besides groups of one. */
static void check_uses(weft_comm *world, const weft_mesh *mesh)
{
    static const struct {
        weft_groups_use use;
        unsigned axes; /* bits */
    } cases[] = {
        {{.reduces = false}, 1u << WEFT_AXIS_TP | 1u << WEFT_AXIS_PP},
        {{.reduces = true, .ties = true},
         1u << WEFT_AXIS_TP | 1u << WEFT_AXIS_PP | 1u << WEFT_AXIS_DP_CP},
        {{.experts = true, .travels = true},
         1u << WEFT_AXIS_TP | 1u << WEFT_AXIS_PP | 1u << WEFT_AXIS_EP | 1u << WEFT_AXIS_ETP},
        {{.reduces = true, .experts = true},
         1u << WEFT_AXIS_TP | 1u << WEFT_AXIS_PP | 1u << WEFT_AXIS_DP_CP | 1u << WEFT_AXIS_EDP},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        weft_groups groups = {0};
        EXPECT_OK(weft_groups_create(world, mesh, &cases[i].use, &groups));
        for (weft_axis axis = WEFT_AXIS_NONE + 1; axis < WEFT_NUM_AXES; axis++) {
            int members[WORLD], rank = weft_comm_rank(world);
            int count = weft_mesh_group(mesh, axis, rank, members, WORLD);
            bool is_used = count == 1 || (cases[i].axes >> axis & 1) != 0;
            if (is_used)
                check_members(groups.by_axis[axis], members, count, weft_axis_text(axis));
            EXPECT(is_used == (groups.by_axis[axis] != NULL), "case %zu: %s", i,
                   weft_axis_text(axis));
        }
        EXPECT(cases[i].use.ties || !groups.embedding, "embeddings that nobody ties");
        weft_groups_release(&groups);
    }
}

static void check_shape(weft_comm *world, const shape *s)
{
    weft_parallel_options options = {.tensor_model_parallel_size = s->tp,
                                     .pipeline_model_parallel_size = s->pp,
                                     .context_parallel_size = 1,
                                     .expert_model_parallel_size = s->ep,
                                     .expert_tensor_parallel_size = s->etp,
                                     .expert_binding = s->binding,
                                     .order = s->order};
    weft_mesh mesh;
    weft_groups groups = {0};
    int rank = weft_comm_rank(world), members[WORLD];
    EXPECT_OK(weft_mesh_build(&options, WORLD, 8, &mesh));
    EXPECT_OK(weft_groups_create(world, &mesh, NULL, &groups));
    EXPECT(groups.world == world && groups.coords.rank == rank, "not this world");
    EXPECT(groups.by_axis[WEFT_AXIS_NONE] == NULL, "a group along no axis");
    for (weft_axis axis = WEFT_AXIS_NONE + 1; axis < WEFT_NUM_AXES; axis++) {
        int count = weft_mesh_group(&mesh, axis, rank, members, WORLD);
        check_members(groups.by_axis[axis], members, count, weft_axis_text(axis));
        check_works(groups.by_axis[axis], members, count, weft_axis_text(axis));
        if (groups.by_axis[axis])
            EXPECT(weft_comm_rank(groups.by_axis[axis]) == groups.coords.at[axis],
                   "%s: not ordered by coordinate", weft_axis_text(axis));
    }

    int count = weft_mesh_group(&mesh, WEFT_AXIS_PP, rank, members, WORLD);
    int stage = groups.coords.at[WEFT_AXIS_PP];
    if (count > 1 && (stage == 0 || stage == count - 1)) {
        int ends[2] = {members[0], members[count - 1]};
        check_members(groups.embedding, ends, 2, "embedding");
        check_works(groups.embedding, ends, 2, "embedding");
    } else {
        EXPECT(groups.embedding == NULL, "stage %d of %d has an embedding group", stage, count);
    }

    weft_groups_release(&groups);
    EXPECT(groups.world == NULL && groups.by_axis[WEFT_AXIS_TP] == NULL,
           "released groups are not empty");
    if (s->ep > 1 && s->pp < 4)
        check_uses(world, &mesh);
}

/* All ranks of a test run on one machine. */
static void check_topology(weft_comm *world)
{
    weft_arena arena = {0};
    weft_topology topology = {0};
    EXPECT_OK(weft_topology_discover(world, &arena, &topology));
    EXPECT(topology.world == WORLD, "%d ranks", topology.world);
    EXPECT(topology.num_nodes == 1, "%d nodes", topology.num_nodes);
    for (int i = 0; topology.node_of && i < topology.world; i++)
        EXPECT(topology.node_of[i] == 0, "rank %d on node %d", i, topology.node_of[i]);
    weft_arena_release(&arena);
}

/* Of emulated nodes of 3, 3 and 2 ranks rank 0 has the table, all know the number. */
static void check_nodes(weft_comm *world)
{
    weft_arena arena = {0};
    weft_topology topology = {0};
    weft_comm *control;
    weft_mpi_set_limits(&(weft_mpi_limits){.ranks_per_node = 3});
    EXPECT_OK(weft_comm_split(world, 0, 0, "control", WEFT_PURPOSE_CONTROL, &control));
    EXPECT_OK(weft_topology_discover(control, &arena, &topology));
    EXPECT(topology.num_nodes == 3, "%d nodes", topology.num_nodes);
    EXPECT((topology.node_of != NULL) == (weft_comm_rank(world) == 0), "a table");
    for (int i = 0; topology.node_of && i < WORLD; i++)
        EXPECT(weft_topology_node(&topology, i) == i / 3, "rank %d on node %d", i,
               topology.node_of[i]);
    weft_mpi_set_limits(NULL);
    weft_comm_destroy(control);
    weft_arena_release(&arena);
}

int main(void)
{
    weft_comm *world = NULL;
    EXPECT_OK(weft_comm_create_world(&world));
    EXPECT(world && weft_comm_size(world) == WORLD, "run under 8 ranks");
    if (world && weft_comm_size(world) == WORLD) {
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
            check_shape(world, &shapes[i]);
        check_topology(world);
        check_nodes(world);
        weft_mesh mesh = {.world = WORLD / 2};
        weft_groups groups = {0};
        EXPECT_ERROR(weft_groups_create(world, &mesh, NULL, &groups), WEFT_INTERNAL,
                     "a mesh of 4 ranks in a world of 8");
    }
    weft_comm_destroy(world);
    return expect_finish();
}
