/* Where the ranks run: hwloc for this machine, MPI_COMM_TYPE_SHARED for nodes.
 *
 * hwloc types live only in topology.c. */
#ifndef WEFT_PARALLEL_TOPOLOGY_TOPOLOGY_H
#define WEFT_PARALLEL_TOPOLOGY_TOPOLOGY_H

#include <stdint.h>

#include <weft/status.h>

#include "comm/comm.h"
#include "parallel/mesh/mesh.h"

/* This machine, as hwloc sees it (or a synthetic/XML description for tests). */
typedef struct weft_machine {
    int num_cores, num_processing_units, num_numa_nodes;
    uint64_t memory_bytes;
    char hostname[64];
    char cpu_model[96];
} weft_machine;

/* `synthetic`: NULL for this machine, else an hwloc synthetic description such as
 * "numa:2 core:8 pu:1". */
weft_status weft_machine_discover(const char *synthetic, weft_machine *out) WEFT_CHECKED;
/* Cores this process may run on (its binding), from hwloc. */
int weft_machine_allowed_cores(void);
/* Binds this process to the NUMA node of the device at `bus` ("0000:07:00.0"), or, where it is
 * NULL, to its part of the machine's nodes, as `index` of `count` processes. Keeps to the binding
 * that it has. *out_sharers: how many of the `count` get that part. WEFT_DEVICE: no such device;
 * the system refuses. */
weft_status weft_machine_bind(const char *bus, int index, int count, int *out_sharers) WEFT_CHECKED;
/* Bytes of memory that the machine and this process's control groups leave;
 * UINT64_MAX: neither says. */
uint64_t weft_machine_memory_left(void);

/* The node of each rank: from a table, or nodes of so many consecutive ranks. */
typedef struct weft_topology {
    int world, num_nodes;
    int *node_of; /* [world]; NULL: none */
    int ranks_per_node;
} weft_topology;
int weft_topology_node(const weft_topology *topology, int rank);

/* Numbers nodes in the order of their first ranks. Rank 0 alone gets the table, from the arena:
 * rank 0 decides by it and tells the others. Collective over world. */
weft_status weft_topology_discover(weft_comm *world, weft_arena *arena,
                                   weft_topology *out) WEFT_CHECKED;
/* TP must lie inside a node: WEFT_CONFIG names the first rank that breaks it, its node and its
 * peers' node. `allow` turns the refusal into a warning. A weft_mesh_request's check calls it, so
 * that the refusal says what would fit. Pure. */
weft_status weft_topology_check(const weft_topology *topology, const weft_mesh *mesh,
                                bool allow) WEFT_CHECKED;
/* The fewest ranks that a group along `axis` has on one of its nodes. Pure: W log W for W ranks,
 * and memory for one group. */
weft_status weft_topology_inside(const weft_topology *topology, const weft_mesh *mesh,
                                 weft_axis axis, int *out) WEFT_CHECKED;

#endif
