/* What is inside the tasks of an MoE layer's program (schedule/moe/layer.h): the chunks of an
 * exchange, and experts beyond device memory, one by one (schedule/experts/experts.h). Both stand
 * in the place of their task as a pass's layers have theirs (schedule/body.h):
 *
 *   dispatch              begins the exchange
 *     dispatch, gather, place of each chunk
 *   dispatch              its end
 *   expert                puts a partition's rows in the experts' order
 *     write, read, upload, expert, download, accumulate of each position of its run
 *   expert                puts the answers in the rows' order
 *
 * A partition has a slice of the experts' program, whose waits reach across partitions: a layer has
 * the whole program once. Only what computes waits for the partition's rows, since the other lanes
 * run on. So weights come up while rows travel, and while the layers before are computed. Pure. */
#ifndef WEFT_SCHEDULE_MOE_INSIDE_H
#define WEFT_SCHEDULE_MOE_INSIDE_H

#include "core/arena.h"
#include "schedule/program.h"

typedef struct weft_moe_inside {
    const weft_program *exchange; /* a form's (schedule/exchange/exchange.h); NULL, or without
                                     tasks: exchanges are one task each */
    const weft_program *experts;  /* forward's, backward's; NULL: a partition's experts are one
                                     task */
    int num_positions;            /* of the experts' programs, and how many partitions' runs */
    int num_partitions;           /* share them (weft_moe_run_of) */
} weft_moe_inside;

/* The slots of `layer`, an MoE layer's program, come first, then those of the exchange. Errors:
 * WEFT_MEMORY; WEFT_CONFIG where a program has no room for so many. */
weft_status weft_program_moe_inside(const weft_program *layer, const weft_moe_inside *inside,
                                    weft_arena *arena, weft_program *out) WEFT_CHECKED;
/* weft_program_body_check of it. */
weft_status weft_program_moe_inside_check(const weft_program *layer, const weft_moe_inside *inside,
                                          const weft_program *program) WEFT_CHECKED;

#endif
