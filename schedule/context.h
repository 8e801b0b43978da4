/* Attention over context-parallel ranks, as programs. Each of cp ranks has 1 / cp of a sequence's
 * rows; keys and values travel, or heads do.
 *
 *   form        forward                            backward
 *   p2p         a ring: block i + 1's keys and     the keys again; behind them each block's
 *               values travel while block i is     fp32 gradient, to which each rank adds
 *               computed (Liu et al. 2023)         its share, its owner last
 *   all_gather  all keys and values at once        a reduce-scatter of fp32 gradients
 *               (Llama 3, arXiv 2407.21783)
 *   a2a         heads for sequence: a rank has     the same with the gradients
 *               all rows of 1 / cp of the heads
 *               (Jacobs et al. 2023, Ulysses)
 *   a2a+p2p     a2a among `inner` neighbours, a    both
 *               ring over the cp / inner groups
 *               (Fang and Zhao 2024, USP)
 *
 * A part is a block of keys: part 0 is the rank's own, part i that of the group i behind this one.
 * All ranks run the same program. Queries attend block after block: output and log-sum-exp add up
 * in fp32 in the slot `partial`, and place rounds them once; in backward `partial` is the queries'
 * gradient. Keys have two slots: shift fills one while attend reads the other.
 *
 * In backward attend writes this rank's share of a block's gradient; sum adds what arrived from the
 * rank before. A ring attends its own block (flow `own`) in two parts, so that the first keys and
 * the last gradient travel beside computation. Part 0 attends the early half of the queries, a
 * quarter of the work; part `blocks` attends the late half after all other blocks, and place adds
 * that share to the gradient that came home. The first keys leave before the gradient's heads do.
 *
 * The backward of p2p with cp 3, where a block computes as long as its keys and gradient travel
 * (lanes compute, send, reduce; 0 early and 0 late are the own block):
 *
 *   compute  | 0 early     | attend 1    | sum 1 | attend 2       | sum 2 | 0 late         | place
 *   send     | keys 0 -> 1 | keys 1 -> 2 |
 *   reduce                                       | gradient 1 -> 2|       | gradient 2 -> 0|
 *
 * Forward and backward, with the slots' numbers, stand in tests/schedule/test_context.c. Operands:
 * schedule/values.h. Pure. */
#ifndef WEFT_SCHEDULE_CONTEXT_H
#define WEFT_SCHEDULE_CONTEXT_H

#include "core/cluster/cluster.h"
#include "core/trace/trace.h"
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
    int inner; /* neighbours that exchange heads: cp for a2a, a divisor of cp for a2a+p2p, else 1 */
} weft_context_plan;
/* Blocks that a rank's queries see one after the other: the ring's length, else 1. */
int weft_context_blocks(const weft_context_plan *plan);
/* Slots of keys' gradients beside the own one, in backward: one is sent, the next written. */
int weft_context_shares(const weft_context_plan *plan);

/* One direction's program. Errors: WEFT_CONFIG, WEFT_MEMORY. */
weft_status weft_program_context(const weft_context_plan *plan, bool backward, weft_arena *arena,
                                 weft_program *out) WEFT_CHECKED;
/* How much of a block's work an ATTEND of such a program does, where the sequence is cut head to
 * tail: 1, or what a part of a ring's own block takes. Of other tasks 1. */
double weft_context_share_of(const weft_program *program, const weft_task *task);
/* Proves that every block is attended once and in order (a ring's own block in its two parts), that
 * tasks use keys, shares and sums of the right block, and that no task overwrites what another
 * still needs. WEFT_INTERNAL with the task's index and text. */
weft_status weft_program_context_check(const weft_context_plan *plan, const weft_program *forward,
                                       const weft_program *backward) WEFT_CHECKED;

#endif
