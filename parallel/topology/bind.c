/* Which processing units a rank keeps to: those near its GPU, or a part of the machine. */
#include <hwloc.h>
#include <stdio.h>

#include "parallel/topology/internal.h"
#include "parallel/topology/topology.h"

/* With what hangs on PCI, unless the machine is a description. */
static weft_status load_with_devices(const char *synthetic, hwloc_topology_t *out)
{
    hwloc_topology_t topology;
    if (hwloc_topology_init(&topology))
        return WEFT_ERROR(WEFT_MEMORY, "hwloc: no memory for a topology");
    if ((synthetic && hwloc_topology_set_synthetic(topology, synthetic)) ||
        hwloc_topology_set_io_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_IMPORTANT) ||
        hwloc_topology_load(topology)) {
        hwloc_topology_destroy(topology);
        return WEFT_ERROR(WEFT_DEVICE, "hwloc could not read this machine's topology");
    }
    *out = topology;
    return WEFT_OK;
}

/* The NUMA node number `number` of those that `binding` has a share of; NULL: there are fewer. */
static hwloc_obj_t find_node(hwloc_topology_t topology, hwloc_const_bitmap_t binding, int number)
{
    hwloc_obj_t node = NULL;
    while ((node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, node)))
        if (hwloc_bitmap_intersects(node->cpuset, binding) && number-- == 0)
            return node;
    return NULL;
}

/* Consecutive processes lie on the same node, or have consecutive nodes. */
static void find_part(hwloc_topology_t topology, hwloc_const_bitmap_t binding, int index, int count,
                      hwloc_bitmap_t out, int *out_sharers)
{
    int nodes = 0;
    while (find_node(topology, binding, nodes))
        nodes++;
    const int first = (int)((int64_t)index * nodes / count);
    int end = (int)((int64_t)(index + 1) * nodes / count);
    end = end > first ? end : first + 1;
    *out_sharers = 0;
    for (int i = 0; i < count; i++)
        *out_sharers += (int)((int64_t)i * nodes / count) == first;
    hwloc_bitmap_zero(out);
    for (int i = first; i < end && i < nodes; i++)
        hwloc_bitmap_or(out, out, find_node(topology, binding, i)->cpuset);
}

static weft_status find_near(hwloc_topology_t topology, const char *bus, hwloc_bitmap_t out)
{
    hwloc_obj_t device = hwloc_get_pcidev_by_busidstring(topology, bus);
    hwloc_obj_t near = device ? hwloc_get_non_io_ancestor_obj(topology, device) : NULL;
    if (!near)
        return WEFT_ERROR(WEFT_DEVICE, "hwloc finds no GPU at %.30s on this machine", bus);
    hwloc_bitmap_copy(out, near->cpuset);
    return WEFT_OK;
}

static weft_status bind(hwloc_topology_t topology, hwloc_bitmap_t binding, const char *bus,
                        int index, int count, hwloc_bitmap_t part, int *out_sharers)
{
    if (hwloc_get_cpubind(topology, binding, HWLOC_CPUBIND_PROCESS))
        return WEFT_ERROR(WEFT_DEVICE, "the system does not say where this process may run");
    *out_sharers = count;
    if (bus)
        WEFT_TRY(find_near(topology, bus, part));
    else
        find_part(topology, binding, index, count, part, out_sharers);
    hwloc_bitmap_and(part, part, binding);
    if (hwloc_bitmap_iszero(part)) /* the launcher has bound it elsewhere */
        return WEFT_OK;
    if (hwloc_set_cpubind(topology, part, HWLOC_CPUBIND_PROCESS))
        return WEFT_ERROR(WEFT_DEVICE, "the system does not bind this process to a NUMA node");
    return WEFT_OK;
}

weft_status weft_machine_bind(const char *bus, int index, int count, int *out_sharers)
{
    hwloc_topology_t topology = NULL;
    WEFT_TRY(load_with_devices(NULL, &topology));
    hwloc_bitmap_t binding = hwloc_bitmap_alloc(), part = hwloc_bitmap_alloc();
    weft_status status = binding && part
                             ? bind(topology, binding, bus, index, count, part, out_sharers)
                             : WEFT_ERROR(WEFT_MEMORY, "hwloc: no memory for a binding");
    hwloc_bitmap_free(binding);
    hwloc_bitmap_free(part);
    hwloc_topology_destroy(topology);
    return status;
}

weft_status weft_machine_part(const char *synthetic, int index, int count, char out[256],
                              int *out_sharers)
{
    hwloc_topology_t topology = NULL;
    WEFT_TRY(load_with_devices(synthetic, &topology));
    hwloc_bitmap_t part = hwloc_bitmap_alloc();
    if (part) {
        find_part(topology, hwloc_topology_get_complete_cpuset(topology), index, count, part,
                  out_sharers);
        hwloc_bitmap_list_snprintf(out, 256, part);
    }
    hwloc_bitmap_free(part);
    hwloc_topology_destroy(topology);
    return part ? WEFT_OK : WEFT_ERROR(WEFT_MEMORY, "hwloc: no memory for a binding");
}
