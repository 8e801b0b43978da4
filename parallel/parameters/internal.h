/* What parameters.c and units.c share. */
#ifndef WEFT_PARALLEL_PARAMETERS_INTERNAL_H
#define WEFT_PARALLEL_PARAMETERS_INTERNAL_H

#include "core/arena.h"
#include "parallel/parameters/parameters.h"

/* Memory of a process that other processes of its machine map too. It has no name and is gone with
 * the last of them: memfd_create, which the others open through /proc. Zero is released. */
typedef struct weft_shared_memory {
    void *memory; /* begins at a page; cleared when it was made */
    size_t bytes;
    void *mapping;
    int fd; /* + 1; 0: closed */
} weft_shared_memory;

/* With which others find it. */
typedef struct weft_shared_key {
    uint64_t bytes, mark;
    int64_t pid;
    int32_t fd;
} weft_shared_key;

/* Of experts that ranks of a node share (parallel/parameters/parameters.h). */
typedef struct weft_experts_share {
    bool wanted, with_grads;
    weft_shared_memory own;
    weft_shared_key key;
    int size, rank;              /* of the group; 0: nobody joined */
    int *nodes;                  /* [size]: the lowest rank of each one's node */
    weft_shared_memory *members; /* [size]: those of this node; this rank's is `own` */
} weft_experts_share;

struct weft_parameters {
    const weft_groups *groups;
    weft_device *device;
    weft_dtype dtype;
    weft_arena arena;
    weft_placed **placed;
    int count, capacity;
    void *by_name; /* tsearch's tree of the parameters' names */
    bool laid_out;
    weft_section sections[WEFT_NUM_SECTIONS];
    weft_residency residency;
    weft_held_elements held; /* what this rank has memory for */
    weft_ring rings[2];      /* of gradients, of weights */
    const weft_look *look;   /* at gradients of units before they are summed; NULL: none */
    weft_experts_file file;
    weft_experts_share share;
    int num_sharers; /* of rows; 0: none are shared */
    weft_comm *sharers;
    weft_records *records; /* of the experts; NULL: they are in memory */
};

/* Allocates the rings; frees them. */
weft_status weft_parameters_make_rings(weft_parameters *parameters, bool with_grads) WEFT_CHECKED;
void weft_parameters_free_rings(weft_parameters *parameters);

/* Makes the memory of experts that ranks share; frees it. */
weft_status weft_parameters_make_share(weft_parameters *parameters, bool with_grads) WEFT_CHECKED;
void weft_parameters_free_share(weft_parameters *parameters);

/* Makes the experts' file and places. */
weft_status weft_parameters_make_records(weft_parameters *parameters, bool with_grads) WEFT_CHECKED;

/* parallel/parameters/matrices.c: checks a declared matrix, and fills placed->matrices. */
weft_status weft_placed_count_matrices(weft_placed *placed, const weft_coords *coords) WEFT_CHECKED;

#endif
