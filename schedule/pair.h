/* Pairs: the forward of one micro-batch and the backward of another, whose parts are enqueued by
 * turns, so that one's all-to-all runs beside the other's computation (DeepSeek-AI, DualPipe, 2025;
 * Megatron-LM's overlap_moe_expert_parallel_comm). Pure.
 *
 * The rule: a strand's turn is what travels next, then what computes, up to what travels behind
 * that. So while one strand's rows travel, the compute lane has the other's turn. The rule looks at
 * kinds alone: ranks that run the same layers enqueue the collectives of a group in one order,
 * whatever the data. In a pair of MoE blocks the lanes then have, with the backward's parts in
 * small letters (a: attention and routing, d: dispatch, e: experts, c: combine):
 *
 *   compute  A   e   E   a   A   e ...
 *   expert   d   D   c   C   d   D ...
 *
 * A backward's part may leave work for which nothing waits: weights' gradients. What it leaves soon
 * comes behind its own turn, while its rows travel; the rest behind the forward's next turn, so
 * that what travels behind the forward's computation need not wait for all.
 */
#ifndef WEFT_SCHEDULE_PAIR_H
#define WEFT_SCHEDULE_PAIR_H

#include <stdbool.h>

#include "core/cluster/cluster.h"

typedef enum weft_part_kind {
    WEFT_PART_NONE, /* there is no such part */
    WEFT_PART_COMPUTES,
    WEFT_PART_TRAVELS, /* on a lane beside the compute lane */
} weft_part_kind;

enum {
    WEFT_PAIR_FORWARD,
    WEFT_PAIR_BACKWARD,
    WEFT_PAIR_STRANDS,
    WEFT_PAIR_LEFT = WEFT_PAIR_STRANDS /* what backward's parts left */
};
/* Layers that use memory for what they leave, by turns: a layer begins before what the one before
 * it left is enqueued. */
enum { WEFT_PAIR_LEAVERS = 2 };

/* Zero but for whose: WEFT_PAIR_BACKWARD is first. */
typedef struct weft_turns {
    int whose;
    bool computed; /* in this turn */
    bool soon;
} weft_turns;
typedef enum weft_pair_left {
    WEFT_LEFT_NONE,
    WEFT_LEFT_LATE,
    WEFT_LEFT_SOON, /* at least some of it */
} weft_pair_left;
/* The strand whose part comes next, by the kinds of each strand's next part and what backward's
 * parts left. WEFT_PAIR_LEFT: that comes next, all, or what comes soon where turns->soon. -1:
 * nothing comes. */
int weft_turns_next(weft_turns *turns, const weft_part_kind next[WEFT_PAIR_STRANDS],
                    weft_pair_left left);

/* A part and the microseconds that it takes. */
typedef struct weft_pair_part {
    weft_part_kind kind;
    double us;
    double soon_us, late_us; /* of the work that it leaves; of a backward alone */
} weft_pair_part;
/* How long the pair takes by simulation (schedule/price/price.h), on a lane that computes and one
 * on which all travels; a strand's parts come one behind the other. interference: NULL: none. */
weft_status weft_pair_price(const weft_pair_part *const parts[WEFT_PAIR_STRANDS],
                            const int counts[WEFT_PAIR_STRANDS],
                            const weft_interference *interference, double *out_us) WEFT_CHECKED;

#endif
