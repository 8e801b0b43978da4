/* The timeline of one step, as files. */
#ifndef WEFT_LAUNCHER_TRAINING_TIMELINE_H
#define WEFT_LAUNCHER_TRAINING_TIMELINE_H

#include "core/trace.h"
#include "parallel/mesh.h"

/* Writes DIR/trace.json and DIR/trace.svg, of all ranks' slices: each rank by its place on the
 * mesh, and in the title how long the step took and the bubble, the share of that time in which the
 * ranks' compute lanes stood idle. Errors: WEFT_FILE, WEFT_MEMORY. */
weft_status weft_timeline_write(weft_trace *trace, const weft_mesh *mesh, int64_t step,
                                const char *dir) WEFT_CHECKED;

#endif
