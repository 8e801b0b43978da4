/* Between mesh.c (the grids), mesh_rules.c (what makes a legal mesh) and their tests. Context
 * parallelism is refused to users; the arithmetic beneath is complete, and tested through here. */
#ifndef WEFT_PARALLEL_MESH_INTERNAL_H
#define WEFT_PARALLEL_MESH_INTERNAL_H

#include "parallel/mesh.h"

/* weft_mesh_build without what would fit; `allow_context` lets context_parallel_size exceed 1. */
weft_status weft_mesh_build_context(const weft_parallel_options *options, int world,
                                    int64_t num_experts, bool allow_context,
                                    weft_mesh *out) WEFT_CHECKED;
/* How far apart neighbours along `axis` are, in ranks, when all ranks are counted through the dense
 * or the expert grid. */
int weft_mesh_stride(const weft_mesh *mesh, bool expert, weft_axis axis);

#endif
