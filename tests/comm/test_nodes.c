/* Control groups that span nodes: the tree that their operations go along, that an error of any
 * rank arrives everywhere with its reason, and that sums have the bits they have inside one node.
 * Nodes are emulated, and uneven: three ranks each, and what is left. */
#include "comm/mpi/tree.h"
#include "tests/comm/comm_test.h"

enum { RANKS_PER_NODE = 3, MAX_LEADERS = 16384 };

/* All leaders hang together, each below one parent, and the tree is as deep as the number's
 * logarithm. */
static void test_leaders(void)
{
    static const int counts[] = {1, 2, 3, 7, 8, 1000, 2048, MAX_LEADERS};
    static int parents[MAX_LEADERS], depths[MAX_LEADERS];
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        int count = counts[c], num_edges = 0, deepest = 0;
        for (int i = 0; i < count; i++)
            parents[i] = -1;
        for (int i = 0; i < count; i++) {
            int parent, children[WEFT_MPI_MAX_LEADER_CHILDREN];
            int num = weft_mpi_leader_children(i, count, &parent, children);
            EXPECT(parent == parents[i], "leader %d of %d below %d, not %d", i, count, parent,
                   parents[i]);
            depths[i] = parent < 0 ? 0 : depths[parent] + 1;
            deepest = depths[i] > deepest ? depths[i] : deepest;
            for (int k = 0; k < num; k++)
                parents[children[k]] = i;
            num_edges += num;
        }
        EXPECT(num_edges == count - 1, "%d leaders, %d edges", count, num_edges);
        EXPECT((1 << deepest) <= 2 * count, "%d leaders, %d deep", count, deepest);
    }
}

static weft_comm *make_control(test_setup *t)
{
    weft_comm *group;
    weft_mpi_set_limits(&(weft_mpi_limits){.ranks_per_node = RANKS_PER_NODE});
    setup_must(weft_comm_split(t->comm, 0, t->rank, "control", WEFT_PURPOSE_CONTROL, &group));
    return group;
}

/* Between nodes there is one edge less than nodes, and in all one less than ranks. */
static void test_shape(test_setup *t, weft_comm *control)
{
    const weft_mpi_tree *tree = ((weft_mpi_comm *)control)->tree;
    int64_t sums[2] = {0};
    if (t->size <= RANKS_PER_NODE) {
        EXPECT(!tree, "a tree inside one node");
        return;
    }
    EXPECT(tree, "no tree");
    if (!tree)
        return;
    for (int i = 0; i < tree->num_children; i++) {
        sums[0]++;
        sums[1] += tree->children[i].rank / RANKS_PER_NODE != t->rank / RANKS_PER_NODE;
    }
    EXPECT((tree->parent < 0) == (t->rank == 0), "parent %d", tree->parent);
    EXPECT(t->rank % RANKS_PER_NODE == 0 || tree->num_ranks == 1, "%zu ranks", tree->num_ranks);
    EXPECT(t->rank > 0 || tree->num_ranks == (size_t)t->size, "%zu ranks", tree->num_ranks);
    EXPECT_OK(weft_comm_all_reduce_host(t->comm, sums, 2, WEFT_I64, WEFT_REDUCE_SUM));
    EXPECT(sums[0] == t->size - 1, "%d edges", (int)sums[0]);
    EXPECT(sums[1] == (t->size - 1) / RANKS_PER_NODE, "%d edges between nodes", (int)sums[1]);
}

static void test_agreement(test_setup *t, weft_comm *control)
{
    char wanted[64];
    EXPECT_OK(weft_comm_agree(control, WEFT_OK));
    for (int bad = 0; bad < t->size; bad++) {
        weft_status status = WEFT_OK;
        if (t->rank == bad)
            status = WEFT_ERROR(WEFT_FILE, "shelf %d is empty", bad);
        snprintf(wanted, sizeof wanted, t->size > 1 ? "rank %d: shelf %d is empty" : "%.0dshelf %d",
                 bad, bad);
        EXPECT_ERROR(weft_comm_agree(control, status), WEFT_FILE, wanted);
    }
    /* The worst counts, and of equals the lowest rank's. */
    weft_status status = WEFT_OK;
    if (t->rank == t->size - 1)
        status = WEFT_ERROR(WEFT_CONFIG, "less bad");
    else
        status = WEFT_ERROR(WEFT_FILE, "broken on %d", t->rank);
    EXPECT_ERROR(weft_comm_agree(control, status), t->size > 1 ? WEFT_FILE : WEFT_CONFIG,
                 t->size > 1 ? "rank 0: broken on 0" : "less bad");
}

/* Bit by bit what the same ranks get inside one node. */
static void test_sums(test_setup *t, weft_comm *control)
{
    enum { COUNT = 9 };
    double flat[COUNT], tree[COUNT];
    for (int i = 0; i < COUNT; i++)
        flat[i] = tree[i] = (double)test_hash((uint64_t)t->rank, (uint64_t)i) / 3;
    EXPECT_OK(weft_comm_all_reduce_host(t->comm, flat, COUNT, WEFT_F64, WEFT_REDUCE_SUM));
    EXPECT_OK(weft_comm_all_reduce_host(control, tree, COUNT, WEFT_F64, WEFT_REDUCE_SUM));
    EXPECT(memcmp(flat, tree, sizeof flat) == 0, "%.17g against %.17g", tree[0], flat[0]);
}

static void test_gather(weft_comm *group, int rank, int size)
{
    int32_t mine[3] = {rank, 10 * rank, -rank}, all[3 * 16] = {0};
    EXPECT_OK(weft_comm_gather_host(group, mine, rank == 0 ? all : NULL, sizeof mine));
    for (int i = 0; rank == 0 && i < size; i++)
        EXPECT(all[3 * i] == i && all[3 * i + 1] == 10 * i && all[3 * i + 2] == -i,
               "rank %d brought %d", i, (int)all[3 * i]);
}

static void test_scatter(weft_comm *group, int rank, int size)
{
    int32_t all[3 * 16], mine[3] = {0};
    for (int i = 0; i < 3 * size; i++)
        all[i] = 7 * i;
    EXPECT_OK(weft_comm_scatter_host(group, rank == 0 ? all : NULL, mine, sizeof mine));
    EXPECT(memcmp(mine, &all[(size_t)3 * (size_t)rank], sizeof mine) == 0, "rank %d got %d", rank,
           (int)mine[0]);
}

static void test_node(test_setup *t, weft_comm *control)
{
    weft_comm *node;
    int first = t->rank / RANKS_PER_NODE * RANKS_PER_NODE;
    EXPECT_OK(weft_comm_split_node(control, &node));
    EXPECT(weft_comm_world_rank(node, 0) == first, "rank %d leads", weft_comm_world_rank(node, 0));
    EXPECT(weft_comm_size(node) ==
               (t->size - first < RANKS_PER_NODE ? t->size - first : RANKS_PER_NODE),
           "%d ranks", weft_comm_size(node));
    weft_comm_destroy(node);
}

int main(void)
{
    test_setup t;
    test_leaders();
    test_setup_init(&t);
    weft_comm *control = make_control(&t);
    if (t.size > 1) {
        test_shape(&t, control);
        test_node(&t, control);
    }
    test_agreement(&t, control);
    test_sums(&t, control);
    test_gather(control, t.rank, t.size);
    test_gather(t.comm, t.rank, t.size);
    test_scatter(control, t.rank, t.size);
    test_scatter(t.comm, t.rank, t.size);
    weft_mpi_set_limits(NULL);
    weft_comm_destroy(control);
    return test_setup_finish(&t);
}
