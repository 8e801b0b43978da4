/* Attention over context-parallel ranks, as programs. Each of cp ranks has 1 / cp of a sequence's
 * rows; keys and values travel, or heads do.
 *
 *   form        forward                               backward
 *   p2p         a ring: block i + 1's keys and        the keys again, and behind them each block's
 *               values travel while block i is        gradient in fp32: from the next rank on each
 *               computed (Liu et al. 2023)            adds its share and hands it on, last the
 * owner all_gather  all keys and values at once           a reduce-scatter of fp32 gradients (Llama
 * 3, arXiv 2407.21783, §3.3.2) a2a         heads for sequence, so that a rank    the same with the
 * gradients has all rows of 1 / cp of the heads (Jacobs et al. 2023, Ulysses) a2a+p2p     a2a among
 * `inner` neighbours, then    both a ring over the cp / inner groups of them (Fang and Zhao 2024,
 * USP)
 *
 * A part is a block: part i that of the group of ranks i behind this one, 0 its own. All ranks run
 * the same program. Queries see blocks one after the other, so out and log-sum-exp are joined in
 * fp32 in the one slot `partial` and rounded once (place); in backward `partial` is the queries'
 * gradient. Keys have two slots: shift fills one while attend reads the other.
 *
 * In backward attend writes this rank's share of a block's gradient; sum adds what arrived from the
 * rank before. Nothing else is there to be computed while the first keys travel, nor while a
 * gradient comes home, so a ring attends its own block (flow `own`) in two parts: first the early
 * half of its queries, a quarter of the work; as part `blocks`, after all others, the late half.
 * place adds that share to what came home. The first keys leave before the gradient's heads do.
 *
 * p2p, backward, cp 3, of which each block takes as long as keys and a gradient travel together
 * (lanes compute, send, reduce; 0 early and late are the own block's):
 *
 *   compute  | 0 early     | attend 1    | sum 1 | attend 2       | sum 2 | 0 late         | place
 *   send     | keys 0 -> 1 | keys 1 -> 2 |
 *   reduce                                       | gradient 1 -> 2|       | gradient 2 -> 0|
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
/* Slots of keys' gradients beside the own one, in backward: while one is sent, the next is written.
 */
int weft_context_shares(const weft_context_plan *plan);

/* One direction's program. Errors: WEFT_CONFIG, WEFT_MEMORY. */
weft_status weft_program_context(const weft_context_plan *plan, bool backward, weft_arena *arena,
                                 weft_program *out) WEFT_CHECKED;
/* How much of a block's work an ATTEND of such a program does, where the sequence is cut head to
 * tail: 1, or what a part of a ring's own block takes. Of other tasks 1. */
double weft_context_share_of(const weft_program *program, const weft_task *task);
/* Proves that every block is attended once and in order (a ring's own in its two parts), that keys,
 * shares and sums are those of the block that is meant, and that nothing is overwritten while it is
 * needed. WEFT_INTERNAL with
 * the task's index and text. */
weft_status weft_program_context_check(const weft_context_plan *plan, const weft_program *forward,
                                       const weft_program *backward) WEFT_CHECKED;

#endif
