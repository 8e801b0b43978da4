#include "parallel/topology/topology.h"

#include <hwloc.h>
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "parallel/probe.h"
#include "parallel/topology/internal.h"

static weft_status load(const char *synthetic, hwloc_topology_t *out)
{
    hwloc_topology_t topology;
    if (hwloc_topology_init(&topology))
        return WEFT_ERROR(WEFT_MEMORY, "hwloc: no memory for a topology");
    if (synthetic && hwloc_topology_set_synthetic(topology, synthetic)) {
        hwloc_topology_destroy(topology);
        return WEFT_ERROR(WEFT_CONFIG,
                          "hwloc does not understand the machine description '%.200s'; an example "
                          "is 'numa:2 core:8 pu:1'",
                          synthetic);
    }
    if (hwloc_topology_load(topology)) {
        hwloc_topology_destroy(topology);
        return WEFT_ERROR(WEFT_DEVICE, "hwloc could not read this machine's topology");
    }
    *out = topology;
    return WEFT_OK;
}

static int count_of(hwloc_topology_t topology, hwloc_obj_type_t type)
{
    int count = hwloc_get_nbobjs_by_type(topology, type);
    return count > 0 ? count : 0;
}

weft_status weft_machine_discover(const char *synthetic, weft_machine *out)
{
    hwloc_topology_t topology = NULL;
    WEFT_TRY(load(synthetic, &topology));
    weft_machine machine = {0};
    machine.num_cores = count_of(topology, HWLOC_OBJ_CORE);
    machine.num_processing_units = count_of(topology, HWLOC_OBJ_PU);
    machine.num_numa_nodes = count_of(topology, HWLOC_OBJ_NUMANODE);
    if (!machine.num_cores) /* some virtual machines show threads alone */
        machine.num_cores = machine.num_processing_units;

    hwloc_obj_t root = hwloc_get_root_obj(topology);
    machine.memory_bytes = root->total_memory;
    /* Memory plugged in while running may be missing from the nodes that hwloc reads. */
    uint64_t physical = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    if (!synthetic && physical > machine.memory_bytes)
        machine.memory_bytes = physical;
    hwloc_obj_t package = hwloc_get_obj_by_type(topology, HWLOC_OBJ_PACKAGE, 0);
    const char *model = package ? hwloc_obj_get_info_by_name(package, "CPUModel") : NULL;
    if (!model)
        model = hwloc_obj_get_info_by_name(root, "CPUModel");
    if (model)
        snprintf(machine.cpu_model, sizeof machine.cpu_model, "%s", model);
    if (synthetic)
        snprintf(machine.hostname, sizeof machine.hostname, "synthetic");
    else if (gethostname(machine.hostname, sizeof machine.hostname - 1))
        machine.hostname[0] = '\0';
    hwloc_topology_destroy(topology);
    *out = machine;
    return WEFT_OK;
}

/* Cores of which at least one processing unit is in this process' binding. */
static int bound_cores(hwloc_topology_t topology)
{
    hwloc_bitmap_t binding = hwloc_bitmap_alloc();
    int cores = 0;
    if (binding && !hwloc_get_cpubind(topology, binding, HWLOC_CPUBIND_PROCESS)) {
        hwloc_obj_t core = NULL;
        while ((core = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, core)))
            cores += hwloc_bitmap_intersects(core->cpuset, binding);
        if (!cores) {
            hwloc_bitmap_and(binding, binding, hwloc_topology_get_allowed_cpuset(topology));
            cores = hwloc_bitmap_weight(binding);
        }
    }
    hwloc_bitmap_free(binding);
    return cores;
}

int weft_machine_allowed_cores(void)
{
    hwloc_topology_t topology = NULL;
    int cores = 0;
    if (load(NULL, &topology) == WEFT_OK) {
        cores = bound_cores(topology);
        hwloc_topology_destroy(topology);
    } else {
        weft_error_clear(); /* the kernel's own count, below, always answers */
    }
    if (cores < 1)
        cores = (int)sysconf(_SC_NPROCESSORS_ONLN);
    int quota = weft_cpu_quota("");
    if (quota && quota < cores)
        cores = quota;
    return cores < 1 ? 1 : cores;
}

weft_status weft_topology_discover(weft_comm *world, weft_arena *arena, weft_topology *out)
{
    weft_comm *node = NULL;
    WEFT_TRY(weft_comm_split_node(world, &node));
    int leader = weft_comm_world_rank(node, 0);
    weft_comm_destroy(node);

    weft_topology topology = {.world = weft_comm_size(world)};
    bool collects = weft_comm_rank(world) == 0;
    size_t count = collects ? (size_t)topology.world : 0;
    WEFT_TRY(weft_comm_agree(
        world, weft_arena_alloc_array(arena, count, sizeof(int), (void **)&topology.node_of)));
    WEFT_TRY(weft_comm_gather_host(world, &leader, topology.node_of, sizeof leader));

    /* A rank's entry is its leader until it is renumbered; a leader comes before its followers, so
     * its entry is a number by then. */
    for (int rank = 0; collects && rank < topology.world; rank++) {
        int first = topology.node_of[rank];
        topology.node_of[rank] = first == rank ? topology.num_nodes++ : topology.node_of[first];
    }
    if (!collects)
        topology.node_of = NULL;
    WEFT_TRY(weft_comm_broadcast_host(world, &topology.num_nodes, sizeof topology.num_nodes, 0));
    *out = topology;
    return WEFT_OK;
}

void weft_probe_hwloc(weft_probe *out)
{
    unsigned found = hwloc_get_api_version();
    char version[32];
    if (found == HWLOC_API_VERSION) /* the library tells its interface's version alone */
        snprintf(version, sizeof version, "%s", HWLOC_VERSION);
    else
        snprintf(version, sizeof version, "API %u.%u.%u", found >> 16, found >> 8 & 0xff,
                 found & 0xff);
    weft_machine machine;
    if (found >> 16 != HWLOC_API_VERSION >> 16)
        weft_probe_say(out, WEFT_PROBE_BROKEN, version, "compiled for version %d",
                       HWLOC_API_VERSION >> 16);
    else if (weft_machine_discover(NULL, &machine) != WEFT_OK)
        weft_probe_say_error(out, version);
    else
        weft_probe_say(out, WEFT_PROBE_WORKS, version,
                       "%d cores (%d for this process), %d threads, %d NUMA node%s, %" PRIu64
                       " GiB",
                       machine.num_cores, weft_machine_allowed_cores(),
                       machine.num_processing_units, machine.num_numa_nodes,
                       machine.num_numa_nodes == 1 ? "" : "s", machine.memory_bytes >> 30);
}
