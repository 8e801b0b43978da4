/* Shard specs: which axis splits which dimension of a parameter's global shape. Pure.
 *
 * Dimension d is split over axis[d] in equal parts of ceil(global / size). The last part may be
 * short (a vocabulary that TP does not divide): its local tensor has the full part's size, and
 * elements beyond the global shape are padding: zero, never trained, never saved. */
#ifndef WEFT_PARALLEL_PARAMETERS_SHARD_H
#define WEFT_PARALLEL_PARAMETERS_SHARD_H

#include <stddef.h>
#include <stdint.h>

#include <weft/tensor.h>

#include "parallel/mesh/mesh.h"

typedef struct weft_shard {
    int num_dims;
    size_t global_dims[WEFT_MAX_DIMS];
    weft_axis axis[WEFT_MAX_DIMS]; /* WEFT_AXIS_NONE, TP, ETP or EP */
} weft_shard;

/* This rank's part. */
typedef struct weft_box {
    int num_dims;
    size_t global_dims[WEFT_MAX_DIMS];
    size_t start[WEFT_MAX_DIMS]; /* in the global tensor */
    size_t local[WEFT_MAX_DIMS]; /* local shape, padding included */
    size_t valid[WEFT_MAX_DIMS]; /* local shape that lies inside the global one; may be 0 */
} weft_box;

weft_box weft_shard_box(const weft_shard *shard, const weft_coords *coords);
size_t weft_box_count(const weft_box *box); /* local elements, padding included */
/* The global index of a local element; false in the padding. */
bool weft_box_global_index(const weft_box *box, size_t local, size_t *out);

/* A hyperslab of the global tensor and where it starts in the local buffer. */
typedef struct weft_slab {
    size_t start[WEFT_MAX_DIMS], count[WEFT_MAX_DIMS]; /* global */
    size_t local_offset;                               /* elements from the local tensor's start */
    /* the slab is contiguous in the local buffer */
} weft_slab;

/* Cuts local elements [first, first + count) of the row-major local tensor into slabs that are
 * contiguous locally and boxes globally, leaving out padding; calls `visit` for each, stops at its
 * first error. */
typedef weft_status (*weft_slab_function)(void *context, const weft_slab *slab);
weft_status weft_box_visit(const weft_box *box, size_t first, size_t count,
                           weft_slab_function visit, void *context) WEFT_CHECKED;

#endif
