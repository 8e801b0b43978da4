/* Control traffic of groups that span nodes goes along a tree: inside a node to its first member,
 * between those by a binomial tree to rank 0, and back the same way. A group of W ranks on N nodes
 * sends at most 2 (W - 1) messages in each round, at most 2 (N - 1) of them between nodes.
 *
 * What a rank brings travels with the rank's number, and rank 0 puts it together: a reduction folds
 * there in rank order, and so has the bits that it has inside one node. */
#ifndef WEFT_COMM_MPI_TREE_H
#define WEFT_COMM_MPI_TREE_H

#include "comm/mpi/mpi_comm.h"

typedef struct weft_mpi_branch {
    int rank;         /* of the group */
    size_t num_ranks; /* this one and those below it */
} weft_mpi_branch;

typedef struct weft_mpi_tree {
    int parent; /* -1: rank 0, the root */
    int num_children;
    size_t num_ranks; /* this one and those below it */
    weft_mpi_branch children[];
} weft_mpi_tree;

enum { WEFT_MPI_MAX_LEADER_CHILDREN = 31 };

/* The binomial tree of `count` leaders: the parent of leader `index` (-1 for 0) and its children in
 * ascending order. Returns how many. Pure. */
int weft_mpi_leader_children(int index, int count, int *out_parent,
                             int out_children[WEFT_MPI_MAX_LEADER_CHILDREN]);

/* The tree of a new group, malloc'ed; NULL where all its ranks share a node. Collective over it. */
weft_status weft_mpi_tree_create(MPI_Comm handle, weft_mpi_tree **out) WEFT_CHECKED;

/* True for all_reduce, all_gather and gather of a group with a tree. */
bool weft_mpi_tree_serves(const weft_comm_op *op);
/* Fills in step, num_rounds and piece for them. */
void weft_mpi_tree_prepare(weft_mpi_run *run);

#endif
