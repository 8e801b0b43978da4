/* Attention over context-parallel ranks, as programs. Each of cp ranks has 1 / cp of a sequence's
 * rows; keys and values travel, or heads do.
 *
 *   form        forward                               backward
 *   p2p         a ring: block i + 1's keys and        the keys again, and behind them each block's
 *               values travel while block i is        gradient in fp32: every rank adds its share
 *               computed (Liu et al. 2023)            and hands it on, until it is home
 *   all_gather  all keys and values at once           a reduce-scatter of fp32 gradients
 *               (Llama 3, arXiv 2407.21783, §3.3.2)
 *   a2a         heads for sequence, so that a rank    the same with the gradients
 *               has all rows of 1 / cp of the heads
 *               (Jacobs et al. 2023, Ulysses)
 *   a2a+p2p     a2a among `inner` neighbours, then    both
 *               a ring over the cp / inner groups of
 *               them (Fang and Zhao 2024, USP)
 *
 * A part is a block: part i that of the group of ranks i behind this one, 0 its own. All ranks run
 * the same program. Queries see blocks one after the other, so out and log-sum-exp are joined in
 * fp32 in the one slot `partial` and rounded once (place); in backward `partial` is the queries'
 * gradient. Keys have two slots: shift fills one while attend reads the other. In backward attend
 * writes this rank's share of a block's gradient; sum adds what arrived from the rank before, while
 * the next block is being computed.
 *
 * One step of p2p, backward, cp 4 (lanes compute, send, reduce):
 *
 *   compute  | attend 1            | sum 1 | attend 2            | sum 2 | ...
 *   send     | shift keys 1 -> 2   |       | shift keys 2 -> 3   |
 *   reduce   | shift gradient 0->1 |       | shift gradient 1->2 |
 *
 * Forward and backward, with the slots' numbers, stand in tests/schedule/test_context.c. Operands:
 * schedule/values.h. Pure. */
#ifndef WEFT_SCHEDULE_CONTEXT_H
#define WEFT_SCHEDULE_CONTEXT_H

#include "core/cluster.h"
#include "core/trace.h"
#include "schedule/program.h"

#define WEFT_CONTEXT_FORM_LIST(X)                                                                  \
    X(P2P, "p2p") X(ALL_GATHER, "all_gather") X(A2A, "a2a") X(A2A_P2P, "a2a+p2p")
typedef enum weft_context_form {
#define WEFT_CONTEXT_FORM_ENUM(name, text) WEFT_CONTEXT_##name,
    WEFT_CONTEXT_FORM_LIST(WEFT_CONTEXT_FORM_ENUM)
#undef WEFT_CONTEXT_FORM_ENUM
        WEFT_NUM_CONTEXT_FORMS
} weft_context_form;
const char *weft_context_form_text(int form);

enum { WEFT_CONTEXT_MAX_RANKS = 1024 };

typedef struct weft_context_plan {
    weft_context_form form;
    int cp;
    int inner; /* neighbours that deal heads among themselves: cp for a2a, a divisor of cp for
                  a2a+p2p, else 1 */
} weft_context_plan;
/* Blocks that a rank's queries see one after the other: the ring's length, else 1. */
int weft_context_blocks(const weft_context_plan *plan);

/* One direction's program. Errors: WEFT_CONFIG, WEFT_MEMORY. */
weft_status weft_program_context(const weft_context_plan *plan, bool backward, weft_arena *arena,
                                 weft_program *out) WEFT_CHECKED;
/* Proves that every block is attended once and in order, that keys, shares and sums are those of
 * the block that is meant, and that nothing is overwritten while it is needed. WEFT_INTERNAL with
 * the task's index and text. */
weft_status weft_program_context_check(const weft_context_plan *plan, const weft_program *forward,
                                       const weft_program *backward) WEFT_CHECKED;

#endif
