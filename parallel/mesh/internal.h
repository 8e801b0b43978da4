/* Shared by mesh.c (the grids), rules.c (the rules of a legal mesh) and their tests. */
#ifndef WEFT_PARALLEL_MESH_INTERNAL_H
#define WEFT_PARALLEL_MESH_INTERNAL_H

#include "parallel/mesh/mesh.h"

/* weft_mesh_build, whose errors do not say what would fit. */
weft_status weft_mesh_build_plain(const weft_parallel_options *options, int world,
                                  int64_t num_experts, weft_mesh *out) WEFT_CHECKED;
/* The distance in ranks between neighbours along `axis` of the dense or the expert grid. */
int weft_mesh_stride(const weft_mesh *mesh, bool expert, weft_axis axis);

#endif
