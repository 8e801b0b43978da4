/* What parameters.c and units.c share. */
#ifndef WEFT_PARALLEL_PARAMETERS_INTERNAL_H
#define WEFT_PARALLEL_PARAMETERS_INTERNAL_H

#include "core/arena.h"
#include "parallel/parameters.h"

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
};

/* Allocates the rings; frees them. */
weft_status weft_parameters_make_rings(weft_parameters *parameters, bool with_grads) WEFT_CHECKED;
void weft_parameters_free_rings(weft_parameters *parameters);

#endif
