/* Bodies: a pass's program in which the tasks of the programs inside its layers stand between the
 * layers' own parts. In the same way an MoE layer's program has the chunks of its exchanges. Pure.
 *
 *   0 layer compute activation layer=3 x=0 stash=1 y=2
 *   1 counts compute host layer=3
 *   2 permute compute layer=3 part=0 to=7
 *   3 dispatch expert activation layer=3 part=0 from=7 to=8 waits=2
 *   ...
 *   6 layer compute activation layer=3 x=0 stash=1 y=2 waits=5
 *
 * A layer's own parts have the operands of its task in the pass, and its first waits for what that
 * task waits for. A task of a program inside waits for the own part before; the own part behind a
 * program waits for all of it. A program's slots follow those of the pass; layers use them in turn.
 */
#ifndef WEFT_SCHEDULE_BODY_H
#define WEFT_SCHEDULE_BODY_H

#include "core/arena.h"
#include "schedule/program.h"

enum { WEFT_BODY_MAX_PROGRAMS = 16 }; /* different ones inside its layers */

typedef struct weft_body_part {
    const weft_program *program; /* inside the layer; NULL: the part is the layer's own */
    uint32_t task;               /* of the program */
    weft_lane_kind lane;         /* on which the part runs */
    int own;                     /* how many programs of the layer are before it */
} weft_body_part;

/* The part of a layer's task; false: it has no such part. Part 0 and the last are the layer's
 * own. */
typedef bool (*weft_body_parts)(const void *context, const weft_task *task, int part,
                                weft_body_part *out);

/* Errors: WEFT_MEMORY; WEFT_CONFIG where a program has no room for so many. */
weft_status weft_program_body(const weft_program *pass, weft_body_parts parts, const void *context,
                              weft_arena *arena, weft_program *out) WEFT_CHECKED;
/* Proves that a program is the pass's body: every layer's parts are there once and in order, with
 * the operands of its task or, in slots of the program's own, of the program's; a program's tasks
 * run between the own parts before and behind it; by lanes and waits alone, all that waits in the
 * pass or in a program waits here. WEFT_INTERNAL with the task's index and text. */
weft_status weft_program_body_check(const weft_program *pass, weft_body_parts parts,
                                    const void *context, const weft_program *body) WEFT_CHECKED;
/* Whether the task stands beside layers: a gather or a reduction of their parameters, a copy of
 * their stash. Any other is a part of a layer. */
bool weft_body_beside(const weft_task *task);
/* Whether a part on the lane travels while other parts compute; a ring's keys travel beside the
 * ring's own blocks. */
bool weft_body_travels(int lane);

#endif
