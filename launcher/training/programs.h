/* The programs that a rank runs. The first rank of each pipeline makes those of all its stages and
 * checks them, and sends every other rank its own: what runs together was checked together, and all
 * ranks of a world make no more programs than there are. */
#ifndef WEFT_LAUNCHER_TRAINING_PROGRAMS_H
#define WEFT_LAUNCHER_TRAINING_PROGRAMS_H

#include "parallel/groups.h"
#include "schedule/pipeline.h"

/* This rank's program of the shape, from the arena. Collective over the pipeline; its ranks return
 * the same status. */
weft_status weft_programs_share(const weft_groups *groups, const weft_pipeline_shape *shape,
                                weft_arena *arena, weft_program *out) WEFT_CHECKED;

#endif
