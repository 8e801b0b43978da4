/* Machines from descriptions, this process' share of this one, and where TP may lie. */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/log.h"
#include "parallel/topology/topology.h"
#include "parallel/topology/internal.h"
#include "tests/core/check.h"

CASE(test_synthetic_machine)
{
    weft_machine machine;
    assert_int_equal(
        weft_machine_discover("package:2 numa:1(memory=1073741824) core:8 pu:2", &machine),
        WEFT_OK);
    assert_int_equal(machine.num_numa_nodes, 2);
    assert_int_equal(machine.num_cores, 16);
    assert_int_equal(machine.num_processing_units, 32);
    assert_int_equal(machine.memory_bytes, UINT64_C(2) << 30);
    assert_string_equal(machine.hostname, "synthetic");

    assert_int_equal(weft_machine_discover("pu:3", &machine), WEFT_OK);
    assert_int_equal(machine.num_cores, 3); /* no core level: its threads are counted */
}

/* On two NUMA nodes of four units. */
CASE(test_parts)
{
    static const struct {
        int index, count;
        const char *units;
        int sharers;
    } rows[] = {{0, 1, "0-7", 1}, {0, 2, "0-3", 1}, {1, 2, "4-7", 1}, {0, 3, "0-3", 2},
                {1, 3, "0-3", 2}, {2, 3, "4-7", 1}, {3, 8, "0-3", 4}, {4, 8, "4-7", 4}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char units[256];
        int sharers;
        assert_int_equal(
            weft_machine_part("numa:2 core:4 pu:1", rows[i].index, rows[i].count, units, &sharers),
            WEFT_OK);
        assert_string_equal(units, rows[i].units);
        assert_int_equal(sharers, rows[i].sharers);
    }
}

/* Bound to one processor, it stays there; no GPU is at an address without one. */
CASE(test_bind)
{
    cpu_set_t had, one, has;
    int sharers;
    assert_int_equal(sched_getaffinity(0, sizeof had, &had), 0);
    CPU_ZERO(&one);
    for (int i = 0; CPU_COUNT(&one) == 0; i++)
        if (CPU_ISSET(i, &had))
            CPU_SET(i, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(weft_machine_bind(NULL, 0, 2, &sharers), WEFT_OK);
    assert_int_equal(sched_getaffinity(0, sizeof has, &has), 0);
    assert_true(CPU_EQUAL(&one, &has));
    assert_int_equal(sharers, 2);
    assert_int_equal(weft_machine_bind("ffff:ff:1f.7", 0, 1, &sharers), WEFT_DEVICE);
    assert_non_null(strstr(weft_error_get()->text, "no GPU at ffff:ff:1f.7"));
    assert_int_equal(sched_setaffinity(0, sizeof had, &had), 0);
}

CASE(test_bad_synthetic_machine)
{
    weft_machine machine = {.num_cores = -7};
    assert_int_equal(weft_machine_discover("cores of gold", &machine), WEFT_CONFIG);
    assert_non_null(strstr(weft_error_get()->text, "'cores of gold'"));
    assert_int_equal(machine.num_cores, -7);
}

CASE(test_this_machine)
{
    weft_machine machine;
    char hostname[64] = "";
    assert_int_equal(weft_machine_discover(NULL, &machine), WEFT_OK);
    assert_true(machine.num_cores >= 1);
    assert_true(machine.num_processing_units >= machine.num_cores);
    assert_true(machine.memory_bytes > UINT64_C(64) << 20);
    assert_int_equal(gethostname(hostname, sizeof hostname - 1), 0);
    assert_string_equal(machine.hostname, hostname);
}

/* Bound to one processor, one core is allowed. */
CASE(test_allowed_cores_follow_the_binding)
{
    cpu_set_t before, one;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    int all = weft_machine_allowed_cores();
    assert_true(all >= 1 && all <= CPU_COUNT(&before));
    int first = 0;
    while (!CPU_ISSET(first, &before))
        first++;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    int bound = weft_machine_allowed_cores();
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
    assert_int_equal(bound, 1);
    assert_int_equal(weft_machine_allowed_cores(), all);
}

static void write_file(const char *root, const char *path, const char *text)
{
    char full[512];
    snprintf(full, sizeof full, "%s%s", root, path);
    for (char *slash = strchr(full + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        assert_true(!mkdir(full, 0700) || errno == EEXIST);
        *slash = '/';
    }
    FILE *file = fopen(full, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void remove_tree(const char *root)
{
    char command[512];
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    assert_int_equal(system(command), 0);
}

CASE(test_cpu_quota)
{
    char root[] = "/tmp/weft-quota-XXXXXX";
    assert_non_null(mkdtemp(root));
    assert_int_equal(weft_cpu_quota(root), 0); /* no control groups at all */

    write_file(root, "/proc/self/cgroup", "0::/slice/job\n");
    assert_int_equal(weft_cpu_quota(root), 0);
    write_file(root, "/sys/fs/cgroup/slice/job/cpu.max", "max 100000\n");
    assert_int_equal(weft_cpu_quota(root), 0);
    write_file(root, "/sys/fs/cgroup/slice/cpu.max", "250000 100000\n");
    assert_int_equal(weft_cpu_quota(root), 3); /* the group above limits; rounded up */
    write_file(root, "/sys/fs/cgroup/slice/job/cpu.max", "200000 100000\n");
    assert_int_equal(weft_cpu_quota(root), 2);
    write_file(root, "/sys/fs/cgroup/cpu.max", "50000 100000\n");
    assert_int_equal(weft_cpu_quota(root), 1);
    write_file(root, "/sys/fs/cgroup/cpu.max", "damaged");
    assert_int_equal(weft_cpu_quota(root), 2);

    /* version 1, beside an empty version 2 */
    write_file(root, "/proc/self/cgroup", "0::/\n5:memory:/m\n4:cpu,cpuacct:/job\n");
    write_file(root, "/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "-1\n");
    write_file(root, "/sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
    assert_int_equal(weft_cpu_quota(root), 0);
    write_file(root, "/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "400000\n");
    assert_int_equal(weft_cpu_quota(root), 4);
    remove_tree(root);
}

CASE(test_host_memory)
{
    char root[] = "/tmp/weft-memory-XXXXXX";
    assert_non_null(mkdtemp(root));
    assert_true(weft_host_memory_left(root) == UINT64_MAX); /* nothing says */
    write_file(root, "/proc/meminfo", "MemTotal:       4000 kB\nMemAvailable:    3000 kB\n");
    assert_true(weft_host_memory_left(root) == 3000 << 10);

    write_file(root, "/proc/self/cgroup", "0::/slice/job\n");
    assert_true(weft_host_memory_left(root) == 3000 << 10);
    write_file(root, "/sys/fs/cgroup/slice/job/memory.max", "max\n");
    write_file(root, "/sys/fs/cgroup/slice/job/memory.current", "900000\n");
    assert_true(weft_host_memory_left(root) == 3000 << 10);
    write_file(root, "/sys/fs/cgroup/slice/memory.max", "2000000\n"); /* the group above */
    assert_true(weft_host_memory_left(root) == 2000000);
    write_file(root, "/sys/fs/cgroup/slice/memory.current", "1500000\n");
    assert_true(weft_host_memory_left(root) == 500000);
    write_file(root, "/sys/fs/cgroup/slice/memory.stat", "inactive_anon 7\ninactive_file 300000\n");
    assert_true(weft_host_memory_left(root) == 800000); /* files' pages come back */
    write_file(root, "/sys/fs/cgroup/slice/job/memory.max", "1000000\n");
    assert_true(weft_host_memory_left(root) == 100000);
    write_file(root, "/sys/fs/cgroup/slice/job/memory.max", "800000\n");
    assert_true(weft_host_memory_left(root) == 0);

    /* version 1 */
    write_file(root, "/proc/self/cgroup", "0::/\n5:memory:/m\n4:cpu,cpuacct:/job\n");
    write_file(root, "/sys/fs/cgroup/memory/m/memory.limit_in_bytes", "700000\n");
    write_file(root, "/sys/fs/cgroup/memory/m/memory.usage_in_bytes", "600000\n");
    write_file(root, "/sys/fs/cgroup/memory/m/memory.stat", "total_inactive_file 100000\n");
    assert_true(weft_host_memory_left(root) == 200000);
    remove_tree(root);
    assert_true(weft_machine_memory_left() > 0);
}

static weft_mesh mesh_of(int world, int tp, int pp)
{
    weft_parallel_options o = {.tensor_model_parallel_size = tp,
                               .pipeline_model_parallel_size = pp,
                               .context_parallel_size = 1};
    weft_mesh mesh = {0};
    assert_int_equal(weft_mesh_build(&o, world, 0, &mesh), WEFT_OK);
    return mesh;
}

static weft_status check_nodes(const void *context, const weft_mesh *mesh)
{
    return weft_topology_check(context, mesh, false);
}

/* What a refusal by the nodes says would fit. */
static void assert_fits(const weft_topology *topology, int tp, const char *wanted)
{
    weft_parallel_options o = {.tensor_model_parallel_size = tp,
                               .pipeline_model_parallel_size = 1,
                               .context_parallel_size = 1};
    weft_mesh_request request = {
        .options = &o, .world = topology->world, .check = check_nodes, .context = topology};
    weft_mesh mesh;
    assert_int_equal(weft_mesh_build_for(&request, &mesh), WEFT_CONFIG);
    assert_non_null(strstr(weft_error_get()->text, wanted));
}

CASE(test_check_inside_nodes)
{
    int node_of[] = {0, 0, 0, 0, 1, 1, 1, 1};
    weft_topology two_nodes = {.world = 8, .num_nodes = 2, .node_of = node_of};
    for (int tp = 1; tp <= 4; tp *= 2) {
        weft_mesh mesh = mesh_of(8, tp, 1);
        assert_int_equal(weft_topology_check(&two_nodes, &mesh, false), WEFT_OK);
    }
    weft_mesh mesh = mesh_of(8, 8, 1);
    assert_int_equal(weft_topology_check(&two_nodes, &mesh, false), WEFT_CONFIG);
    const char *text = weft_error_get()->text;
    assert_non_null(strstr(text, "tensor_model_parallel_size 8: rank 4 is on node 1, but rank 0 of "
                                 "its tensor-parallel group is on node 0"));
    assert_fits(&two_nodes, 8, "; tp 1, 2 or 4 would");
}

/* Nodes of 3 ranks: groups of 2 straddle the border, only 1 and 3 fit. */
CASE(test_check_odd_nodes)
{
    int node_of[] = {0, 0, 0, 1, 1, 1};
    weft_topology topology = {.world = 6, .num_nodes = 2, .node_of = node_of};
    weft_mesh mesh = mesh_of(6, 2, 1);
    assert_int_equal(weft_topology_check(&topology, &mesh, false), WEFT_CONFIG);
    assert_non_null(strstr(weft_error_get()->text, "rank 3 is on node 1, but rank 2"));
    assert_fits(&topology, 2, "; tp 1 or 3 would");
    mesh = mesh_of(6, 6, 1);
    assert_int_equal(weft_topology_check(&topology, &mesh, false), WEFT_CONFIG);
    assert_fits(&topology, 6, "; tp 1 or 3 would");
    mesh = mesh_of(6, 3, 2);
    assert_int_equal(weft_topology_check(&topology, &mesh, false), WEFT_OK);
}

CASE(test_check_allowed)
{
    int node_of[] = {0, 1};
    weft_topology topology = {.world = 2, .num_nodes = 2, .node_of = node_of};
    weft_mesh mesh = mesh_of(2, 2, 1);
    weft_log_set_rank(1); /* the warning is rank 0's */
    assert_int_equal(weft_topology_check(&topology, &mesh, true), WEFT_OK);
    assert_int_equal(weft_topology_check(&topology, &mesh, false), WEFT_CONFIG);
    mesh = mesh_of(4, 1, 1);
    assert_int_equal(weft_topology_check(&topology, &mesh, false), WEFT_INTERNAL);
}

static int inside(const weft_topology *topology, const weft_mesh *mesh, weft_axis axis)
{
    int fewest = -1;
    assert_int_equal(weft_topology_inside(topology, mesh, axis, &fewest), WEFT_OK);
    return fewest;
}

CASE(test_inside)
{
    int node_of[] = {0, 0, 0, 1, 1, 1, 1, 1};
    weft_topology topology = {.world = 8, .num_nodes = 2, .node_of = node_of};
    weft_mesh mesh = mesh_of(8, 1, 1);
    assert_int_equal(inside(&topology, &mesh, WEFT_AXIS_DP), 3);
    mesh = mesh_of(8, 2, 1); /* dp groups: 0 2 4 6 and 1 3 5 7 */
    assert_int_equal(inside(&topology, &mesh, WEFT_AXIS_DP), 1);
    assert_int_equal(inside(&topology, &mesh, WEFT_AXIS_TP), 1);
    mesh = mesh_of(8, 1, 8);
    assert_int_equal(inside(&topology, &mesh, WEFT_AXIS_DP), 1);
}

/* Whatever the order, nodes of so many consecutive ranks are those that a list of them names. */
CASE(test_inside_by_count)
{
    enum { RANKS = 48 };
    static const char *const orders[] = {"tp-cp-ep-dp-pp", "tp-ep-dp-cp-pp", "tp-cp-ep-pp-dp",
                                         "tp-pp-cp-ep-dp"};
    static const int sizes[][4] = {{2, 1, 2, 4},  {1, 2, 4, 2}, {2, 3, 2, 4}, {4, 1, 3, 2},
                                   {1, 1, 12, 2}, {2, 2, 1, 6}, {1, 4, 2, 3}, {3, 1, 4, 2}};
    for (size_t i = 0; i < 4 * sizeof sizes / sizeof *sizes; i++)
        for (int each = 1; each <= RANKS; each++) {
            int node_of[RANKS];
            const int *s = sizes[i / 4];
            weft_parallel_options o = {.tensor_model_parallel_size = s[0],
                                       .context_parallel_size = s[1],
                                       .pipeline_model_parallel_size = s[2],
                                       .expert_model_parallel_size = s[3],
                                       .expert_binding = WEFT_BINDING_DP,
                                       .order = orders[i % 4]};
            weft_mesh mesh;
            if (RANKS % each != 0 || weft_mesh_build(&o, RANKS, 12, &mesh) != WEFT_OK)
                continue;
            for (int r = 0; r < RANKS; r++)
                node_of[r] = r / each;
            const weft_topology listed = {
                .world = RANKS, .num_nodes = RANKS / each, .node_of = node_of};
            const weft_topology counted = {
                .world = RANKS, .num_nodes = RANKS / each, .ranks_per_node = each};
            for (weft_axis axis = WEFT_AXIS_NONE + 1; axis < WEFT_NUM_AXES; axis++)
                assert_int_equal(inside(&counted, &mesh, axis), inside(&listed, &mesh, axis));
        }
}

/* The whole start-up's pure part on 131,072 ranks: work that grew with the square of them would not
 * end within the test's time. */
CASE(test_many_ranks)
{
    enum { RANKS = 131072, RANKS_A_NODE = 8, TP = 8, PP = 16 };
    weft_topology topology = {
        .world = RANKS, .num_nodes = RANKS / RANKS_A_NODE, .ranks_per_node = RANKS_A_NODE};
    weft_parallel_options o = {.tensor_model_parallel_size = TP,
                               .pipeline_model_parallel_size = PP,
                               .context_parallel_size = 1,
                               .expert_model_parallel_size = 64,
                               .expert_binding = WEFT_BINDING_DP};
    weft_mesh mesh;
    assert_int_equal(weft_mesh_build(&o, RANKS, 64, &mesh), WEFT_OK);
    assert_int_equal(weft_topology_check(&topology, &mesh, false), WEFT_OK);
    for (weft_axis axis = WEFT_AXIS_NONE + 1; axis < WEFT_NUM_AXES; axis++) {
        int wanted = axis == WEFT_AXIS_TP || axis == WEFT_AXIS_EP ? RANKS_A_NODE : 1;
        assert_int_equal(inside(&topology, &mesh, axis), wanted);
    }
    /* A pipeline of everything, and the refusal of what straddles nodes, with what would fit. */
    mesh = mesh_of(RANKS, 1, RANKS);
    assert_int_equal(inside(&topology, &mesh, WEFT_AXIS_PP), RANKS_A_NODE);
    assert_fits(&topology, 16, "; tp 1, 2, 4 or 8 would");
}
