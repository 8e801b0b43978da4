/* In how many chunks tensor-parallel products are cut, beside which rows travel, where the config
 * leaves it open (parallel.tp_comm_overlap without tp_comm_overlap_chunks): in those in which a
 * layer takes least time on a cluster. */
#ifndef WEFT_LAUNCHER_PLANNING_TENSOR_CHOICE_H
#define WEFT_LAUNCHER_PLANNING_TENSOR_CHOICE_H

#include "launcher/planning/config.h"
#include "parallel/topology/topology.h"

/* Prices attention and an MLP in 1, 2, 4, 8 and 16 chunks, forward and backward, as long as more
 * are faster, and puts the fastest into the mesh; without a cluster what is there stays. topology
 * NULL: as weft_context_choose. Errors: those of the cluster file. Pure but for reading the file.
 */
weft_status weft_tensor_choose(const weft_config *config, const weft_topology *topology,
                               weft_mesh *mesh) WEFT_CHECKED;

/* Writes what the mesh has over what was left open, for the config of a checkpoint. Borrows
 * numbers.
 */
void weft_tensor_keep(const weft_mesh *mesh, int64_t numbers[2], weft_parallel_options *out);

#endif
