/* How attention sees the whole sequence over context-parallel ranks, where the config leaves it
 * open (parallel.cp_comm_type "auto"): in the form whose attention takes least time on a cluster.
 * One rank chooses for all. */
#ifndef WEFT_LAUNCHER_PLANNING_CONTEXT_CHOICE_H
#define WEFT_LAUNCHER_PLANNING_CONTEXT_CHOICE_H

#include "launcher/planning/config.h"
#include "parallel/topology/topology.h"
#include "schedule/choose.h"

/* Plain: one rank tells it to others. */
typedef struct weft_context_selection {
    bool chosen;                           /* else the config says it, or cp is 1 */
    int64_t sizes[2];                      /* hierarchical_context_parallel_sizes of a2a+p2p */
    char reason[WEFT_CHOICE_REASON_BYTES]; /* the form, what it takes, and what others would */
} weft_context_selection;

/* Whether it is left open on this mesh. */
bool weft_context_is_open(const weft_config *config, const weft_mesh *mesh);
/* Where it is open: prices the forms that are legal here, forward, backward and recomputed, and
 * puts the cheapest into the mesh. Ties go to p2p, all_gather, a2a, and a2a+p2p of the fewest
 * neighbours. topology NULL: the ranks lie on the cluster file's nodes; as they do where the
 * file was measured on as many ranks divided into other nodes. Errors: WEFT_CONFIG with the key: no
 * cluster, a figure that it lacks; those of the cluster file. Pure but for reading the file. */
weft_status weft_context_choose(const weft_config *config, const weft_topology *topology,
                                weft_mesh *mesh, weft_context_selection *out) WEFT_CHECKED;
/* Writes what was chosen over what was left open, for the config of a checkpoint. Borrows sizes. */
void weft_context_keep(const weft_context_selection *selection, const weft_mesh *mesh,
                       weft_parallel_options *out);

#endif
