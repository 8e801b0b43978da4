/* The timeline of one step, as files. */
#ifndef WEFT_LAUNCHER_TRAINING_TIMELINE_H
#define WEFT_LAUNCHER_TRAINING_TIMELINE_H

#include <weft/list.h>

#include "comm/comm.h"
#include "core/trace/trace.h"
#include "parallel/mesh/mesh.h"

/* Whether a timeline of these ranks (an empty list: of all ranks) has that rank. */
bool weft_timeline_has(const weft_int_list *ranks, int rank);
/* Adds the slices of these ranks to rank 0's, one rank after the other. Collective over the world;
 * the statuses of the ranks may differ. Errors: WEFT_MEMORY. */
weft_status weft_timeline_collect(weft_trace *trace, weft_comm *world,
                                  const weft_int_list *ranks) WEFT_CHECKED;
/* Writes DIR/trace.json and DIR/trace.svg of the slices of these ranks: each rank by its place on
 * the mesh, and in the title how long the step took and the bubble, the share of that time in which
 * the ranks' compute lanes stood idle. Errors: WEFT_FILE, WEFT_MEMORY. */
weft_status weft_timeline_write(weft_trace *trace, const weft_mesh *mesh,
                                const weft_int_list *ranks, int64_t step,
                                const char *dir) WEFT_CHECKED;

#endif
