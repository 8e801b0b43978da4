/* Shared by mesh.c (the grids), mesh_rules.c (the rules of a legal mesh) and their tests. Weft
 * refuses context parallelism in configs; the arithmetic knows it, and tests reach it through this
 * header. */
#ifndef WEFT_PARALLEL_MESH_INTERNAL_H
#define WEFT_PARALLEL_MESH_INTERNAL_H

#include "parallel/mesh.h"

/* weft_mesh_build, whose errors do not say what would fit; `allow_context` lets
 * context_parallel_size exceed 1. */
weft_status weft_mesh_build_context(const weft_parallel_options *options, int world,
                                    int64_t num_experts, bool allow_context,
                                    weft_mesh *out) WEFT_CHECKED;
/* The distance in ranks between neighbours along `axis` of the dense or the expert grid. */
int weft_mesh_stride(const weft_mesh *mesh, bool expert, weft_axis axis);

#endif
