/* Copies of each rank's state in nodes' memory (checkpoint.peer_copies): the rank's own node has
 * one, and K other nodes. A snapshot is taken as for an asynchronous save, and the rank's writer
 * puts it into files of a folder in memory, which outlive all of the job's processes, here and on
 * the peers' nodes, over TCP. A start that follows looks for the newest step whose states are all
 * there, on whatever nodes it has, and makes a checkpoint of it, which any mesh loads.
 *
 * RUN/checkpoints/copies has the random name of a start's copies: PATH/weft-<name>/<node>/. Other
 * runs and other starts have others, so that nothing is mixed. */
#ifndef WEFT_PARALLEL_CHECKPOINT_COPIES_H
#define WEFT_PARALLEL_CHECKPOINT_COPIES_H

#include "parallel/checkpoint/writer.h"

typedef struct weft_copies_place {
    const char *dir;    /* RUN/checkpoints, which all ranks share */
    const char *path;   /* a folder in each node's own memory */
    const char *node;   /* this node's name; NULL: its host name */
    int ranks_per_node; /* 0: as the machines say */
} weft_copies_place;

/* The ranks of nodes, for who copies to whom. */
typedef struct weft_copies_nodes {
    int num_nodes;
    int *node_of, *position_of; /* by rank: its node, and its place there */
    int *first;                 /* by node, and the end: where its ranks begin in `ranks` */
    int *ranks;
} weft_copies_nodes;

/* node_of: [world], nodes in the order of their first ranks. Memory from the arena. Pure. */
weft_status weft_copies_find_nodes(const int *node_of, int world, weft_arena *arena,
                                   weft_copies_nodes *out) WEFT_CHECKED;
/* Who holds copy k (from 1) of a rank's state: the rank of its position, k nodes on. Pure. */
int weft_copies_peer(const weft_copies_nodes *nodes, int rank, int k);

/* Takes the memory for `num_copies` copies on other nodes, two of each, `text_bytes` for config and
 * tokenizer among them, names them in place->dir, and starts those who receive. WEFT_CONFIG: too
 * few nodes, or host memory is short. WEFT_MEMORY, WEFT_FILE, WEFT_COMM: then nothing is left.
 * After weft_checkpoint_writer_reserve. Collective, agreed. */
weft_status weft_copies_reserve(weft_checkpoint_writer *writer, const weft_copies_place *place,
                                int num_copies, size_t text_bytes,
                                const weft_parameters *parameters,
                                const weft_optimizer *optimizer) WEFT_CHECKED;
/* Host memory that this rank has taken for them, until it gave it back; 0: there are none. */
size_t weft_copies_bytes(const weft_checkpoint_writer *writer);
/* As weft_checkpoint_begin, but into memory: weft_checkpoint_advance ends it, behind which all
 * copies are there, and publishes nothing. The texts are rank 0's. Collective. */
weft_status weft_copies_begin(weft_checkpoint_writer *writer, const weft_checkpoint_info *info,
                              const weft_parameters *parameters, const weft_optimizer *optimizer,
                              const char *config_text, const char *tokenizer_text) WEFT_CHECKED;
/* Forgets what all copies hold, where the run goes back behind it. None is under way. Rank-local.
 */
weft_status weft_copies_clear(weft_checkpoint_writer *writer) WEFT_CHECKED;
/* Gives the memory back: a checkpoint has all that it holds. Rank-local; without copies, nothing.
 */
void weft_copies_release(weft_checkpoint_writer *writer);

typedef struct weft_copies_found {
    int64_t step;   /* made a checkpoint; -1: none */
    uint64_t bytes; /* of its states */
    int num_ranks;  /* whose states they are */
    int64_t newest; /* step -1: newer than the checkpoint, but not whole; -1: none is newer */
    int missing;    /* the first rank whose state of that step is not there */
} weft_copies_found;

/* Whether an earlier start has left a name. Rank-local. */
bool weft_copies_are_named(const char *dir);
/* Makes the newest step that is newer than `newer_than` and whole in memory a checkpoint, the
 * latest, and gives the memory of that start back. A copy whose hash differs counts as lost, with a
 * line of the rank that reads it. WEFT_FILE: the checkpoint cannot be written; the memory stays.
 * Collective over world, agreed. */
weft_status weft_copies_restore(weft_comm *world, const weft_copies_place *place,
                                int64_t newer_than, weft_copies_found *out) WEFT_CHECKED;

#endif
