/* weft calibrate --import: each format, several together, and mistakes in them.
 * An argument names one test. */
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "launcher/measuring/import.h"
#include "tests/core/check.h"
#include "tests/launcher/child.h"

static const char matrix[] =
    "\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tNIC1\tNIC2\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID"
    "\x1b[0m\n"
    "GPU0\t X \tNV4\tNV4\tNV4\tPIX\tSYS\tSYS\t0-31\t0\t\tN/A\n"
    "GPU1\tNV4\t X \tNV4\tNV4\tPXB\tSYS\tSYS\t0-31\t0\t\tN/A\n"
    "GPU2\tNV4\tNV4\t X \tNV4\tSYS\tPIX\tNODE\t32-63\t1\t\tN/A\n"
    "GPU3\tNV4\tNV4\tNV4\t X \tSYS\tPXB\tNODE\t32-63\t1\t\tN/A\n"
    "NIC0\tPIX\tPXB\tSYS\tSYS\t X \tSYS\tSYS\t\t\t\t\n"
    "NIC1\tSYS\tSYS\tPIX\tPXB\tSYS\t X \tNODE\t\t\t\t\n"
    "NIC2\tSYS\tSYS\tNODE\tNODE\tSYS\tNODE\t X \t\t\t\t\n\n"
    "Legend:\n\n  X    = Self\n  NV#  = Connection traversing a bonded set of # NVLinks\n\n"
    "NIC Legend:\n\n  NIC0: mlx5_0\n";

static const char switches[] = "# two racks and a core\n"
                               "SwitchName=leaf1 Nodes=n[01-03],x7 LinkSpeed=100\n"
                               "switchname=leaf2 \\\n  nodes=n04,r[0-1]c[0-1]\n"
                               "SwitchName=core Switches=leaf[1-2]\n";

static const char rails[] = "SwitchName=r0l0 Nodes=n[0-2]\nSwitchName=r1l0 Nodes=n[0-2]\n"
                            "SwitchName=r0l1 Nodes=n[3-5]\nSwitchName=r1l1 Nodes=n[3-5]\n"
                            "SwitchName=top Switches=r0l0,r1l0,r0l1,r1l1\n";

static const char yaml_tree[] = "--- # of two racks\n- topology: topo1\n  cluster_default: True\n"
                                "  tree:\n    switches:\n      - switch: root # above all\n"
                                "        children: s[1-2]\n\n      - switch: s1\n"
                                "        nodes: \"n[01-03]\"\n      - switch: s2\n"
                                "        nodes: 'n[04-05],x'\n";

static const char yaml_blocks[] =
    "- topology: topo1\n  tree:\n    switches:\n    - switch: sw_root\n      nodes: n[01-04]\n"
    "- topology: topo2\n  cluster_default: true\n  block:\n    block_sizes:\n      - 4\n"
    "      - 8\n    blocks:\n    - block: b1\n      nodes: n[01-04]\n    - block: b2\n"
    "      nodes: n[05-08]\n- topology: topo3\n  flat: True\n";

static const char blocks[] = "BlockName=b1 Nodes=n[0-3]\nBlockName=b2 Nodes=n[4-7]\n"
                             "BlockSizes=4,8\n";

static const char xml[] =
    "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n"
    "<!-- <object> -->\n<topology version=\"2.0\">\n"
    "  <object type=\"Machine\" os_index=\"0\" gp_index=\"1\">\n"
    "    <info name=\"HostName\" value=\"a &amp; b\"/>\n"
    "    <object type=\"NUMANode\" os_index=\"0\" local_memory=\"64000000000\">\n"
    "      <page_type size=\"4096\" count=\"15625000\"/>\n    </object>\n"
    "    <object type=\"NUMANode\" os_index=\"1\" local_memory=\"64000000000\"/>\n"
    "    <object type=\"Bridge\" gp_index=\"9\" bridge_type=\"0-1\">\n"
    "      <object type=\"PCIDev\" pci_busid=\"0000:07:00.0\" pci_type=\"0302 [10de:20b2] "
    "[10de:1463] a1\" pci_link_speed=\"31.507692\">\n"
    "        <object type=\"OSDev\" gp_index=\"20\" name=\"cuda0\" subtype=\"CUDA\" "
    "osdev_type=\"5\">\n          <info name=\"Backend\" value=\"CUDA\"/>\n"
    "          <info name=\"GPUModel\" value=\"NVIDIA A100-SXM4-80GB\"/>\n"
    "          <info name=\"CUDAGlobalMemorySize\" value=\"82825216\"/>\n"
    "          <info name=\"CUDAMultiProcessors\" value=\"108\"/>\n        </object>\n"
    "        <object type=\"OSDev\" name=\"nvml0\" subtype=\"NVML\" osdev_type=\"1\"/>\n"
    "      </object>\n"
    "      <object type=\"PCIDev\" pci_type=\"0302 [10de:20b2] [10de:1463] a1\">\n"
    "        <object type=\"OSDev\" name=\"cuda1\" subtype=\"CUDA\" osdev_type=\"5\">\n"
    "          <info name=\"GPUModel\" value=\"NVIDIA A100-SXM4-80GB\"/>\n"
    "          <info name=\"CUDAGlobalMemorySize\" value=\"82825216\"/>\n"
    "          <info name=\"CUDAMultiProcessors\" value=\"108\"/>\n        </object>\n"
    "      </object>\n"
    "      <object type=\"OSDev\" name=\"mlx5_0\" osdev_type=\"3\"/>\n    </object>\n"
    "  </object>\n  <support name=\"discovery.pu\"/>\n</topology>\n";

#define HEADER                                                                                     \
    "#\n#                                                              out-of-place              " \
    "         in-place\n"                                                                          \
    "#       size         count      type   redop    root     time   algbw   busbw #wrong     "    \
    "time   algbw   busbw #wrong\n"                                                                \
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            "    \
    "(us)  (GB/s)  (GB/s)\n"
#define ONE_NODE                                                                                   \
    "# Using devices\n"                                                                            \
    "#  Rank  0 Group  0 Pid 11 on    n01 device  0 [0x07] NVIDIA A100-SXM4-80GB\n"                \
    "#  Rank  1 Group  0 Pid 12 on    n01 device  1 [0x0f] NVIDIA A100-SXM4-80GB\n"                \
    "#  Rank  2 Group  0 Pid 13 on    n01 device  2 [0x47] NVIDIA A100-SXM4-80GB\n"                \
    "#  Rank  3 Group  0 Pid 14 on    n01 device  3 [0x4e] NVIDIA A100-SXM4-80GB\n"
/* Two nodes of two ranks: groups by place in the node, and one of all. */
#define TWO_NODES(group)                                                                           \
    "# Using devices\n"                                                                            \
    "#  Rank  0 Group  0 Pid 11 on n01 device  0 [0000:07:00] NVIDIA H100 80GB HBM3\n"             \
    "#  Rank  1 Group  " group " Pid 12 on n01 device  1 [0000:0f:00] NVIDIA H100 80GB HBM3\n"     \
    "#  Rank  2 Group  0 Pid 13 on n02 device  0 [0000:07:00] NVIDIA H100 80GB HBM3\n"             \
    "#  Rank  3 Group  " group " Pid 14 on n02 device  1 [0000:0f:00] NVIDIA H100 80GB HBM3\n"

/* The first says which test it is, the second does not. */
static const char reduce[] =
    "$ mpirun -np 4 ./build/all_reduce_perf -b 0 -e 1M\n# nThread 1 nGpus 1\n" ONE_NODE HEADER
    "           0             0     float     sum      -1     5.00    0.00    0.00      0     "
    "5.00    0.00    0.00      0\n"
    "        1024           256     float     sum      -1    20.00    0.05    0.08      0    "
    "19.50    0.05    0.08      0\n"
    "n01:11:11 [0] NCCL INFO something\n"
    "     1048576        262144     float     sum      -1    40.00   26.21   39.32      0    "
    "39.00   26.89   40.33      0\n"
    "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 20.0\n";
static const char exchange[] = ONE_NODE HEADER
    "     1048576         65536     float    none      -1    50.00   20.97   15.73      0    "
    "50.10   20.93   15.70    N/A\n"
    "     4194304        262144     float    none      -1   100.00   41.94   31.46      0   "
    "100.10   41.90   31.43    N/A\n";
static const char split[] = "# Collective test starting: reduce_scatter_perf\n" TWO_NODES("1")
    HEADER "     1048576        131072     float     sum      -1   100.00   10.49    5.24      0   "
           "100.00   10.49    5.24      0\n";
static const char mixed[] = "# Collective test starting: alltoall_perf\n" TWO_NODES("0") HEADER
    "     1048576         65536     float    none      -1   100.00   10.49    7.86      0   "
    "100.00   10.49    7.86    N/A\n"
    "# Collective test starting: all_gather_perf\n" TWO_NODES("0") HEADER
    "     1048576         65536     float    none      -1   100.00   10.49    7.86      0   "
    "100.00   10.49    7.86      0\n";
static const char old_gather[] =
    "#   Rank  0 Pid  11 on n01 device  0 [0x07] Tesla V100\n"
    "#   Rank  1 Pid  12 on n01 device  1 [0x0f] Tesla V100\n"
    "#       size         count    type   redop     time   algbw   busbw  error     time   algbw   "
    "busbw  error\n"
    "     1048576        131072   float             50.00   20.97   10.49  0e+00    49.00   21.40  "
    " 10.70  0e+00\n";

static weft_arena arena;

static void take(weft_import *import, const char *file, const char *text)
{
    OK(weft_import_take(import, file, text, &arena));
}

static weft_import *start(void)
{
    static weft_import import;
    weft_arena_reset(&arena);
    weft_import_start(&import);
    return &import;
}

static weft_import *imported(const char *file, const char *text, int num_nodes, int ranks_per_node)
{
    weft_import *import = start();
    take(import, file, text);
    OK(weft_import_finish(import, num_nodes, ranks_per_node, NULL));
    return import;
}

/* Of two levels; 0: any number of nodes. */
static void assert_tree(const weft_import *import, int num_nodes, int below_leaves, int below_root)
{
    const weft_cluster *c = &import->cluster;
    assert_int_equal(c->num_nodes, num_nodes);
    assert_int_equal(c->num_levels, 2);
    assert_true(below_leaves == 0 || c->levels[0].nodes == below_leaves);
    assert_true(below_root == 0 || c->levels[1].nodes == below_root);
}

static void assert_note(const weft_import *import, const char *part)
{
    for (int i = 0; i < import->num_notes; i++)
        if (strstr(import->notes[i], part))
            return;
    fail_msg("no note of %s", part);
}

static double figure(const weft_import *import, weft_figure figure)
{
    assert_true(weft_hardware_knows(&import->cluster.hardware, figure));
    return import->cluster.hardware.figures[figure];
}

CASE(matrices_give_devices_and_links)
{
    weft_import *import = imported("topo.txt", matrix, 0, 0);
    assert_int_equal(import->cluster.ranks_per_node, 4);
    assert_int_equal(import->cluster.num_nodes, 1);
    assert_true(figure(import, WEFT_FIGURE_CARDS) == 2); /* the third is near no GPU */
    assert_true(figure(import, WEFT_FIGURE_INSIDE_BANDWIDTH) == 12 * 25e9);
    assert_int_equal(weft_cluster_source(&import->cluster, -1, "inside.bandwidth")->class_,
                     WEFT_SOURCE_ASSUMED);
    assert_int_equal(weft_cluster_source(&import->cluster, -1, "between.cards")->class_,
                     WEFT_SOURCE_MEASURED);
    assert_note(import, "near a GPU");
    assert_note(import, "num_nodes");
    /* Behind switches every pair shows all of a GPU's links. */
    char text[4096], row[256];
    snprintf(text, sizeof text, "\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\n");
    for (int i = 0; i < 4; i++) {
        snprintf(row, sizeof row, "GPU%d\t%s\t%s\t%s\t%s\t0-31\n", i, i == 0 ? "X" : "NV12",
                 i == 1 ? "X" : "NV12", i == 2 ? "X" : "NV12", i == 3 ? "X" : "NV12");
        strcat(text, row);
    }
    import = start();
    take(import, "topo.txt", text);
    assert_true(figure(import, WEFT_FIGURE_INSIDE_BANDWIDTH) == 12 * 25e9);
    assert_note(import, "no network card");
    /* PCIe's rate is not in the file. */
    import = start();
    take(import, "t", "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tPHB\t0-63\nGPU1\tPHB\t X \t0-63\n");
    assert_false(weft_hardware_knows(&import->cluster.hardware, WEFT_FIGURE_INSIDE_BANDWIDTH));
    assert_note(import, "PCIe");
}

CASE(switches_are_levels)
{
    weft_import *import = start();
    take(import, "topology.conf", switches);
    OK(weft_import_finish(import, 0, 4, "c"));
    const weft_cluster *c = &import->cluster;
    assert_tree(import, 9, 4, 9);
    assert_true(c->levels[1].oversubscription == 1);
    assert_note(import, "4 to 5 nodes");
    assert_note(import, "oversubscribed");
    import = imported("topology.conf", blocks, 0, 4);
    assert_tree(import, 8, 0, 8);
}

/* Slurm warns of both, and goes on. */
CASE(rails_and_trees_without_a_root_are_read)
{
    weft_import *import = imported("topology.conf", rails, 0, 4);
    assert_tree(import, 6, 3, 6);
    assert_note(import, "6 nodes below several switches (rails): counted once");
    /* A root of each rail: each joins all nodes. */
    import = imported("topology.conf",
                      "SwitchName=a Nodes=n[0-1]\nSwitchName=b Nodes=n[2-3]\n"
                      "SwitchName=c Nodes=n[0-1]\nSwitchName=d Nodes=n[2-3]\n"
                      "SwitchName=s Switches=a,b\nSwitchName=t Switches=c,d\n",
                      0, 4);
    assert_tree(import, 4, 0, 0);
    import = imported("topology.conf",
                      "SwitchName=f Nodes=fs[1-3]\nSwitchName=a Nodes=n[0-3]\n"
                      "SwitchName=b Nodes=n[4-7]\nSwitchName=s Switches=a,b\n",
                      0, 4);
    assert_tree(import, 8, 4, 0);
    assert_note(import, "no switch joins all 11 nodes");
    assert_note(import, "taken are the 8 below s, the most");
}

CASE(slurm_yaml_is_read)
{
    weft_import *import = imported("topology.yaml", yaml_tree, 0, 4);
    assert_tree(import, 6, 3, 6);
    /* The manual's form; what is the cluster's default is taken. */
    import = imported("topology.yaml", yaml_blocks, 0, 4);
    assert_tree(import, 8, 4, 8);
    assert_note(import, "of 3 topologies topo2 is taken (cluster_default)");
    import = imported("y",
                      "- topology: a\n  block:\n    block_sizes: [2,  4 ]\n    blocks:\n"
                      "    - block: b\n      nodes: n[0-1]\n    - block: c\n      nodes: n[2-3]\n"
                      "- topology: b\n  flat: true\n",
                      0, 4);
    assert_int_equal(import->cluster.num_levels, 2);
    assert_note(import, "of 2 topologies a is taken, the first");
}

CASE(xml_gives_a_node)
{
    weft_import *import = imported("node.xml", xml, 3, 0);
    const weft_cluster *c = &import->cluster;
    assert_int_equal(c->num_nodes, 3);
    assert_int_equal(c->ranks_per_node, 2);
    assert_string_equal(c->name, "a & b");
    assert_string_equal(c->hardware.device_name, "NVIDIA A100-SXM4-80GB");
    assert_true(figure(import, WEFT_FIGURE_MEMORY) == 82825216.0 * 1024);
    assert_true(figure(import, WEFT_FIGURE_MULTIPROCESSORS) == 108);
    assert_true(figure(import, WEFT_FIGURE_HOST_MEMORY) == 128e9);
    assert_true(figure(import, WEFT_FIGURE_CARDS) == 1);
    assert_note(import, "device.memory_bandwidth");
}

static void expect_point(const weft_import *import, weft_cost_kind kind, int i, double volume,
                         double us)
{
    const weft_curve *curve = &import->cluster.costs[kind].curve;
    if (curve->num_points <= i || fabs(curve->volume[i] - volume) > 1e-6 ||
        fabs(curve->time_us[i] - us) > 1e-9)
        fail_msg("%s has %d points: %g at %g", weft_cost_text(kind), curve->num_points,
                 curve->time_us[i], curve->volume[i]);
}

CASE(tests_give_curves)
{
    weft_import *import = start();
    take(import, "a.txt", reduce);
    take(import, "b.txt", exchange); /* which it is, its columns tell */
    OK(weft_import_finish(import, 0, 0, NULL));
    assert_int_equal(import->cluster.ranks_per_node, 4);
    assert_string_equal(import->cluster.hardware.device_name, "NVIDIA A100-SXM4-80GB");
    expect_point(import, WEFT_COST_ALL_REDUCE, 0, 1024, 20);
    expect_point(import, WEFT_COST_ALL_REDUCE, 1, 1048576, 40);
    expect_point(import, WEFT_COST_ALL_TO_ALL_INSIDE, 1, 4194304 * 0.75, 100);
    const weft_source *source = weft_cluster_source(&import->cluster, -1, "costs.all_reduce");
    assert_int_equal(source->class_, WEFT_SOURCE_MEASURED);
    assert_string_equal(source->where, "a.txt");
    assert_true(fabs(import->cluster.costs[WEFT_COST_ALL_REDUCE].peak * 40e-6 - 1048576) < 1e-3);
    /* Between nodes: by groups of a rank a node; of a whole all-to-all what leaves the node. */
    import = start();
    take(import, "split.txt", split);
    take(import, "mixed.txt", mixed);
    OK(weft_import_finish(import, 0, 0, NULL));
    assert_int_equal(import->cluster.num_nodes, 2);
    assert_int_equal(import->cluster.ranks_per_node, 2);
    expect_point(import, WEFT_COST_REDUCE_SCATTER_BETWEEN, 0, 1048576, 100);
    expect_point(import, WEFT_COST_ALL_TO_ALL, 0, 524288, 100);
    assert_false(weft_cluster_knows(&import->cluster, WEFT_COST_ALL_GATHER));
    assert_false(weft_cluster_knows(&import->cluster, WEFT_COST_ALL_GATHER_BETWEEN));
    assert_note(import, "mix links");
    /* Old tests do not tell all-gather from all-to-all: the file's name does. */
    import = start();
    assert_int_equal(weft_import_take(import, "old.txt", old_gather, &arena), WEFT_CONFIG);
    weft_error_clear();
    take(import, "logs/all_gather_perf.txt", old_gather);
    OK(weft_import_finish(import, 0, 0, NULL));
    expect_point(import, WEFT_COST_ALL_GATHER, 0, 1048576, 50);
    /* A part of a node's ranks is not how layers run. */
    import = imported("a.txt", reduce, 0, 8);
    assert_false(weft_cluster_knows(&import->cluster, WEFT_COST_ALL_REDUCE));
    assert_null(weft_cluster_source(&import->cluster, -1, "costs.all_reduce"));
    assert_note(import, "left out");
}

#define YAML "- topology: t\n  tree:\n    switches:\n"

CASE(wrong_files_are_one_line)
{
    static const struct {
        const char *text, *error;
    } cases[] = {
        {"", "f:1: not hwloc's XML"},
        {"hello\n", "f:1: not hwloc's XML"},
        {"<html>\n<b></b></html>\n", "f:1: hwloc XML: begins with another tag"},
        {"<topology>\n<object type=\"Machine\">\n</topology>\n", "f:3: hwloc XML: an end"},
        {"<topology>\n<object type=\"Machine>\n", "f:3: hwloc XML"},
        {"<topology>\n<object type=Machine>\n", "f:2: hwloc XML"},
        {"<topology>\n<object type=\"NUMANode\" local_memory=\"much\"/></topology>", "f:2: "},
        {"<topology>\n", "f:2: hwloc XML: ends before"},
        {"<topology>\n<object type=\"NUMANode\" local_memory=\"12\"/></topology>",
         "host.memory_bytes: 12 bytes is not possible"},
        {"\tGPU0\tGPU1\nGPU0\t X \tNV4\nGPU1\tNV4\n", "f:3: GPU1 has 1 cells"},
        {"\tGPU0\tGPU1\nGPU0\t X \tNV\nGPU1\tNV4\t X\n", "f:2: GPU0: \"NV\" is no way"},
        {"\tGPU0\tGPU1\nGPU0\t X \tNV4\n", "f:1: the header has 2 GPUs"},
        {"Legend:\nGPU0 GPU1\n", "f:1: no header"},
        {"GPU0\t X \tNV4\nGPU1\tNV4\t X\n", "f:1: a row, and no header"},
        {"SwitchName=a Nodes=n[1-\n", "f:1: \"n[1-\": no list"},
        {"SwitchName=a Nodes=n[5-2]\n", "f:1: \"n[5-2]\": no list"},
        {"SwitchName=a Nodes=n[1,]\n", "f:1: \"n[1,]\": no list"},
        {"\nSwitchName=a\n", "f:2: a joins nothing"},
        {"SwitchName=a Nodes=n\nSwitchName=a Nodes=m\n", "f:2: a is there already, in line 1"},
        {"SwitchName=a Nodes=n\nSwitchName=b Switches=c\n", "f:2: b: no switch c"},
        {"SwitchName=b Switches=b\n", "f:1: b is below itself"},
        {"\nSwitchName=a Nodes=n1,n1\n", "f:2: node n1 is there already, in line 2"},
        {"SwitchName=a Node=n\n", "f:1: \"Node\" is not expected here; did you mean Nodes?"},
        {"SwitchName=a Nodes=n\nBlockSizes=x\n", "f:2: BlockSizes: \"x\""},
        {"SwitchName=a Nodes=n[0-99999],m[0-99999],o[0-99999]\n", "f:1: more than"},
        {"- topology: t\n  flat: true\n", "f:1: topology.yaml: t has no switches and no blocks"},
        {"- topology: t\n  trees:\n", "f:2: topology.yaml: \"trees\" is not expected here; did you "
                                      "mean tree?"},
        {YAML "    - switch: a\n      nods: n\n", "f:5: topology.yaml: \"nods\" is not expected"},
        {YAML "    - nodes: n\n", "f:4: topology.yaml: a switch or block begins with its name"},
        {YAML "    - switch: a\n      nodes: [n1, n2]\n", "f:5: topology.yaml: lists in brackets"},
        {YAML "    - switch: a\n     nodes: n\n", "f:5: topology.yaml: this stands under no line"},
        {YAML "    - switch: a\n\tnodes: n\n", "f:5: topology.yaml: a tab"},
        {YAML "    - switch: a\n      nodes: \"n\n", "f:5: topology.yaml: a quote without"},
        {YAML "    - switch: a\n      nodes:\n", "f:5: topology.yaml: nodes has no value"},
        {YAML "    - switch: a\n      nodes\n", "f:5: topology.yaml: neither \"key: value\""},
        {YAML "    - switch: a\n      children: b\n", "f:4: a: no switch b"},
        {"- topology: t\n  tree:\n  - switch: a\n", "f:3: topology.yaml: this belongs to no key"},
        {"- topology: t\n  block:\n    block_sizes: [4 8]\n",
         "f:3: topology.yaml: block_sizes: no"},
        {HEADER " 1024 256 float sum -1 20.0 0.05 0.08 0 20.0 0.05 0.08 0\n", "f:5: no lines with"},
        {ONE_NODE HEADER, "f:9: a table without sizes"},
        {ONE_NODE HEADER " 1024 256 float sum -1 x 0.05 0.08 0 20.0 0.05 0.08 0\n",
         "f:10: time \"x\" is no number"},
        {ONE_NODE HEADER " 1024 256 float sum -1 0 0.05 0.08 0 20.0 0.05 0.08 0\n",
         "f:10: time \"0\" is no number"},
        {ONE_NODE HEADER " 1024 256 float\n", "f:10: 3 columns, the table has 13"},
        {"all_reduce_perf\n" ONE_NODE HEADER
         " 1e18 256 float sum -1 1 0.05 0.08 0 20.0 0.05 0.08 0\n",
         "f:11: 1e+18 bytes in 1 us: no link"},
        {"#  Rank  0 Pid 1 on a device 0 [0x07] X\n#  Rank  7 Pid 1 on a device 0 [0x07] "
         "X\n" HEADER,
         "f:2: not the line of rank 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        weft_import *import = start();
        if (weft_import_take(import, "f", cases[i].text, &arena) != WEFT_CONFIG ||
            !strstr(weft_error_get()->text, cases[i].error))
            fail_msg("case %zu: \"%s\", not \"%s\"", i, weft_error_get()->text, cases[i].error);
        assert_int_equal(import->cluster.ranks_per_node, 0); /* as before */
        weft_error_clear();
    }
    weft_import *import = start();
    take(import, "topology.conf", switches);
    assert_int_equal(weft_import_finish(import, 0, 0, NULL), WEFT_CONFIG);
    assert_non_null(strstr(weft_error_get()->text, "--ranks-per-node"));
    weft_error_clear();
}

/* `text` with `before` in front of each line, and without the first '#' of a line where asked. */
static void label(const char *text, const char *before, bool drops_hash, char out[8192])
{
    size_t used = 0;
    for (const char *line = text; *line; line += strcspn(line, "\n") + 1) {
        const char *from = drops_hash && *line == '#' ? line + 1 : line;
        used += (size_t)snprintf(out + used, 8192 - used, "%s%.*s\n", before,
                                 (int)strcspn(from, "\n"), from);
    }
}

CASE(labelled_output_is_read)
{
    static const char *const labels[] = {"", "0: ", "12: ", "[1,0]<stdout>:", "[1,0]<stdout>: "};
    char text[8192];
    weft_import *import = start();
    take(import, "nccl.txt", reduce);
    const weft_cost wanted = import->cluster.costs[WEFT_COST_ALL_REDUCE];
    for (size_t i = 0; i < 2 * sizeof labels / sizeof *labels; i++) {
        label(reduce, labels[i / 2], i % 2 == 1, text);
        import = start();
        take(import, "nccl.txt", text);
        const weft_cost *got = &import->cluster.costs[WEFT_COST_ALL_REDUCE];
        assert_int_equal(got->curve.num_points, wanted.curve.num_points);
        assert_memory_equal(got->curve.time_us, wanted.curve.time_us, sizeof wanted.curve.time_us);
    }
}

CASE(what_a_test_calls_wrong_is_refused)
{
    char text[8192], *at;
    weft_import *import = start();
    snprintf(text, sizeof text, "%s", reduce);
    at = strstr(text, "0 OK");
    memcpy(at, "12 FAILED", 9);
    FAILS(weft_import_take(import, "f", text, &arena), WEFT_CONFIG, "the test says that it FAILED");
    for (int column = 0; column < 2; column++) { /* out of place, in place */
        snprintf(text, sizeof text, "%s", reduce);
        at = strstr(text, column ? "40.33      0" : "39.32      0");
        at[11] = '7';
        import = start();
        FAILS(weft_import_take(import, "f", text, &arena), WEFT_CONFIG,
              "#wrong is 7: the test calls its own results wrong");
    }
    /* Each process by itself, as mpirun starts a test that knows no MPI. */
    text[0] = '\0';
    for (int i = 0; i < 2; i++)
        strcat(text,
               "#  Rank  0 Group  0 Pid   11 on      n01 device  0 [0x07] NVIDIA A100\n" HEADER
               "     1048576        262144     float     sum      -1    40.00   26.21   26.21"
               "      0    39.00   26.89   26.89      0\n");
    import = start();
    FAILS(weft_import_take(import, "f", text, &arena), WEFT_CONFIG,
          "2 tables, each of one rank alone: the test was built without MPI");
}

CASE(counts_that_differ_are_told)
{
    weft_import *import = start();
    take(import, "a", matrix);
    take(import, "b", xml);
    assert_note(import, "ranks_per_node: b says 2, an earlier file 4: 4 it is");
    OK(weft_import_finish(import, 0, 3, NULL));
    assert_note(import, "ranks_per_node: a file says 4, --ranks-per-node 3: 3 it is");
    assert_int_equal(import->cluster.ranks_per_node, 3);
}

/* --- the verb ------------------------------------------------------------------------------ */

CASE(the_verb_writes_a_cluster)
{
    char folder[32], base[1200];
    child c;
    weft_cluster cluster;
    assert_true(child_folder_enter(folder));
    assert_true(child_write("topo.txt", matrix) && child_write("topology.conf", switches) &&
                child_write("nccl.txt", reduce) && child_write("bad.txt", "nothing\n"));
    snprintf(base, sizeof base, "%s/examples/clusters/a100-80gb.json", getenv("WEFT_SOURCE_DIR"));
    const char *const *args = WORDS("calibrate", "--import", "topo.txt", "topology.conf",
                                    "nccl.txt", "--out", "cluster.json", "--name", "mine");
    child_run(&c, args, NULL);
    if (c.exit_code != 0)
        fail_msg("%s", c.err);
    assert_non_null(strstr(c.err, "oversubscribed"));
    assert_non_null(strstr(c.out, "mine: imported: 9 nodes of 4 ranks"));
    OK(weft_cluster_read("cluster.json", &cluster));
    assert_string_equal(cluster.name, "mine");
    assert_int_equal(cluster.num_nodes, 9);
    assert_int_equal(cluster.ranks_per_node, 4);
    assert_true(weft_cluster_knows(&cluster, WEFT_COST_ALL_REDUCE));
    /* Over a data sheet's figures, which stay where no file says otherwise. */
    const char *const *over = WORDS("calibrate", "--import", base, "nccl.txt", "--ranks-per-node",
                                    "4", "--nodes", "2", "--out", "over.json", "--json");
    child_run(&c, over, NULL);
    if (c.exit_code != 0)
        fail_msg("%s", c.err);
    OK(weft_cluster_read("over.json", &cluster));
    assert_int_equal(cluster.num_nodes, 2);
    assert_true(cluster.hardware.figures[WEFT_FIGURE_PEAK_BF16] == 312e12);
    assert_true(weft_cluster_knows(&cluster, WEFT_COST_ALL_REDUCE));
    /* What a test ran on, 4 ranks of a node that has 8, is not what the cluster's file has. */
    const char *kept[] = {"calibrate", "--import", base, "nccl.txt", "--out", "kept.json", NULL};
    child_run(&c, kept, NULL);
    if (c.exit_code != 0)
        fail_msg("%s", c.err);
    assert_non_null(strstr(c.err, "ran 4 ranks of a node, which has 8: left out"));
    OK(weft_cluster_read("kept.json", &cluster));
    assert_int_equal(cluster.ranks_per_node, 8);
    assert_false(weft_cluster_knows(&cluster, WEFT_COST_ALL_REDUCE));
    static const char *const wrong[][9] = {
        {"calibrate", "--import", "bad.txt", "--out", "x.json"},
        {"calibrate", "--import", "none.txt", "--out", "x.json"},
        {"calibrate", "--import", "topology.conf", "--out", "x.json"},
        {"calibrate", "--import", "topo.txt", "--quick", "--out", "x.json"},
        {"calibrate", "topo.txt", "--out", "x.json"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        child_run(&c, wrong[i], NULL);
        if (c.exit_code != 2 || !child_is_line(c.err))
            fail_msg("case %zu: exit %d: %s", i, c.exit_code, c.err);
    }
    assert_true(access("x.json", F_OK) != 0);
    child_folder_leave(folder);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const int failed = run_cases();
    weft_arena_release(&arena);
    return failed;
}
