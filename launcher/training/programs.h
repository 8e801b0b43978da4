/* The programs that a rank runs. The first rank of each pipeline makes and checks the programs of
 * all its stages, and sends every other rank its own: programs that run together were checked
 * together, and no program is made twice in a pipeline. */
#ifndef WEFT_LAUNCHER_TRAINING_PROGRAMS_H
#define WEFT_LAUNCHER_TRAINING_PROGRAMS_H

#include "parallel/mesh/mesh.h"
#include "schedule/pipeline/pipeline.h"

/* This rank's program of the shape, from the arena. Collective over the pipeline; its ranks return
 * the same status. */
weft_status weft_programs_share(const weft_groups *groups, const weft_pipeline_shape *shape,
                                weft_arena *arena, weft_program *out) WEFT_CHECKED;

#endif
