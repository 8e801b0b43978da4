/* What a config leaves open of a mesh, chosen by what a layer takes on a cluster: how attention
 * sees the whole sequence over context-parallel ranks (parallel.cp_comm_type "auto"), and in how
 * many chunks tensor-parallel products are cut, beside which rows travel (parallel.tp_comm_overlap
 * without tp_comm_overlap_chunks). One rank chooses for all. */
#ifndef WEFT_LAUNCHER_PLANNING_MESH_CHOICE_H
#define WEFT_LAUNCHER_PLANNING_MESH_CHOICE_H

#include "launcher/planning/moe_choice.h"
#include "schedule/choose.h"

/* Plain: one rank tells it to others. */
typedef struct weft_mesh_choice {
    bool has_form;                         /* it was open; else the config says it, or cp is 1 */
    char reason[WEFT_CHOICE_REASON_BYTES]; /* the form, what it takes, and what others would */
    int64_t sizes[2], chunks[2];           /* what weft_mesh_keep writes */
    weft_moe_nodes nodes;                  /* that the mesh's groups lie on */
} weft_mesh_choice;

/* Whether the form is left open on this mesh. */
bool weft_mesh_leaves_form(const weft_config *config, const weft_mesh *mesh);
/* Prices the forms that are legal here, forward, backward and recomputed, and attention and an MLP
 * in 1, 2, 4, 8 and 16 chunks as long as more are faster, and puts what takes least into the mesh.
 * Ties go to p2p, all_gather, a2a, and a2a+p2p of the fewest neighbours, and to fewer chunks.
 * Without a cluster chunks stay as they are. topology NULL: the ranks lie on the cluster file's
 * nodes; as they do where the file was measured on as many ranks divided into other nodes. Errors:
 * WEFT_CONFIG with the key: no cluster, a figure that it lacks; those of the cluster file. Pure but
 * for reading the file. */
weft_status weft_mesh_choose(const weft_config *config, const weft_topology *topology,
                             weft_mesh *mesh, weft_mesh_choice *out) WEFT_CHECKED;
/* Writes what was chosen over what was left open, for the config of a checkpoint, which borrows
 * from the choice. */
void weft_mesh_keep(weft_mesh_choice *choice, const weft_mesh *mesh, weft_parallel_options *out);

#endif
