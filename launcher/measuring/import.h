/* A cluster from what other tools say of it: hwloc's XML, `nvidia-smi topo -m`, Slurm's
 * topology.conf or topology.yaml, the output of nccl-tests, and a cluster's own file, whose numbers
 * the others replace. Each is recognized by its content. What no file tells stays out and is noted.
 * Pure.
 *
 * Errors: WEFT_CONFIG, one line with file and line. */
#ifndef WEFT_LAUNCHER_MEASURING_IMPORT_H
#define WEFT_LAUNCHER_MEASURING_IMPORT_H

#include "core/arena.h"
#include "core/cluster/cluster.h"

enum { WEFT_IMPORT_MAX_NOTES = 24, WEFT_IMPORT_NOTE_BYTES = 224 };

typedef struct weft_import {
    weft_cluster cluster;
    bool has_nodes, has_ranks; /* a file tells them */
    /* Of curves of collectives: the ranks of a node that ran beside each other, and the file; 0:
     * not from nccl-tests. */
    int curve_ranks[WEFT_NUM_COSTS];
    const char *curve_files[WEFT_NUM_COSTS];
    int num_notes;
    char notes[WEFT_IMPORT_MAX_NOTES][WEFT_IMPORT_NOTE_BYTES];
} weft_import;

void weft_import_start(weft_import *import);
/* Takes the text of a file, of which `file` is the path; what is found later replaces what was
 * found before. The import borrows `file`. After an error it is as before. */
weft_status weft_import_take(weft_import *import, const char *file, const char *text,
                             weft_arena *arena) WEFT_CHECKED;
/* When all files are taken: counts that the caller gives (0: none) go before those of files. Drops
 * curves that do not hold for the node's ranks. WEFT_CONFIG: nobody tells how many ranks a node
 * has. */
weft_status weft_import_finish(weft_import *import, int num_nodes, int ranks_per_node,
                               const char *name) WEFT_CHECKED;

#endif
