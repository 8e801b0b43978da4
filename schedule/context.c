#include "schedule/context.h"

#include <stdio.h>
#include <string.h>

#include "schedule/build.h"
#include "schedule/check.h"

static const char *const form_texts[WEFT_NUM_CONTEXT_FORMS] = {
#define ROW(name, text) text,
    WEFT_CONTEXT_FORM_LIST(ROW)
#undef ROW
};

const char *weft_context_form_text(int form)
{
    return form >= 0 && form < WEFT_NUM_CONTEXT_FORMS ? form_texts[form] : "?";
}

int weft_context_blocks(const weft_context_plan *plan)
{
    return plan->form == WEFT_CONTEXT_ALL_GATHER ? 1 : plan->cp / plan->inner;
}

int weft_context_shares(const weft_context_plan *plan)
{
    const int others = weft_context_blocks(plan) - 1;
    return plan->form == WEFT_CONTEXT_ALL_GATHER ? 1 : others < 2 ? others : 2;
}

static weft_status check_plan(const weft_context_plan *plan)
{
    const int form = (int)plan->form, cp = plan->cp, inner = plan->inner;
    if (form < 0 || form >= WEFT_NUM_CONTEXT_FORMS)
        return WEFT_ERROR(WEFT_CONFIG, "no form %d of attention over context-parallel ranks", form);
    if (cp < 2 || cp > WEFT_CONTEXT_MAX_RANKS)
        return WEFT_ERROR(WEFT_CONFIG,
                          "attention over %d context-parallel ranks: 2 to %d are "
                          "possible",
                          cp, WEFT_CONTEXT_MAX_RANKS);
    const bool fits = form == WEFT_CONTEXT_A2A       ? inner == cp
                      : form == WEFT_CONTEXT_A2A_P2P ? inner > 1 && inner < cp && cp % inner == 0
                                                     : inner == 1;
    if (!fits)
        return WEFT_ERROR(WEFT_CONFIG, "%s over %d ranks cannot deal heads among %d",
                          weft_context_form_text(form), cp, inner);
    return WEFT_OK;
}

/* What a form does besides attending. */
static bool exchanges(const weft_context_plan *plan)
{
    return plan->inner > 1;
}

static bool gathers(const weft_context_plan *plan)
{
    return plan->form == WEFT_CONTEXT_ALL_GATHER;
}

static bool rings(const weft_context_plan *plan)
{
    return weft_context_blocks(plan) > 1;
}

/* A program while it is written: first slot and number of each kind. */
typedef struct writer {
    weft_program_builder *builder;
    const weft_context_plan *plan;
    int first[WEFT_NUM_SLOT_KINDS], length[WEFT_NUM_SLOT_KINDS];
    bool backward;
    weft_task *expected; /* the checker's list, without slot numbers; NULL: a program is written */
    uint32_t num_expected;
} writer;

static weft_status add_slots(writer *w)
{
    const weft_context_plan *plan = w->plan;
    const bool back = w->backward, has_keys = rings(plan) || gathers(plan);
    const struct {
        weft_slot_kind holds;
        int length;
    } rows[] = {
        /* First what both directions have. */
        {WEFT_SLOT_HEADS, exchanges(plan)},
        {WEFT_SLOT_HOME, exchanges(plan) || gathers(plan)},
        {WEFT_SLOT_KEYS, rings(plan) ? 2 : has_keys},
        {WEFT_SLOT_PARTIAL, 1},
        {WEFT_SLOT_RESULT, !back && exchanges(plan)},
        {WEFT_SLOT_HEADS_GRADIENT, back && exchanges(plan)},
        {WEFT_SLOT_OWN_GRADIENT, back && !gathers(plan)},
        {WEFT_SLOT_KEYS_GRADIENT, back ? weft_context_shares(plan) : 0},
        {WEFT_SLOT_ARRIVED, back && has_keys},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const weft_slot slot = {.holds = rows[i].holds, .chunk = -1};
        w->length[rows[i].holds] = rows[i].length;
        WEFT_TRY(
            weft_program_add_slots(w->builder, &slot, rows[i].length, &w->first[rows[i].holds]));
    }
    return WEFT_OK;
}

/* Whether the task has an operand that not every form needs. */
static bool has_operand(const writer *w, const weft_task *task, const weft_operand *operand)
{
    switch (operand->value) {
    case WEFT_VALUE_HEADS:
    case WEFT_VALUE_HEADS_DY:
    case WEFT_VALUE_HEADS_DX:
    case WEFT_VALUE_HEADS_RESULT:
        return exchanges(w->plan);
    case WEFT_VALUE_KEYS:
        return rings(w->plan) || gathers(w->plan);
    case WEFT_VALUE_OWN_SHARE: /* the late half adds to the early half's share */
        return (operand->name != WEFT_OPERAND_X || task->part > 0) && !gathers(w->plan);
    case WEFT_VALUE_ARRIVED_GRADIENT: /* the first share has no predecessor */
        return task->kind == WEFT_TASK_SUM ? task->part > 1 : rings(w->plan) || gathers(w->plan);
    default:
        return true;
    }
}

/* Appends the task of a part. Parts use the slots of a kind in rotation. */
static weft_status append(writer *w, weft_task_kind kind, weft_flow flow, int part)
{
    const weft_operands *operands = weft_operands_of((int)kind, (int)flow);
    weft_task task = weft_task_of(kind, flow);
    task.part = part;
    for (int i = 0; i < operands->count; i++) {
        const weft_operand *row = &operands->rows[i];
        if (!has_operand(w, &task, row))
            continue;
        const weft_slot_kind holds = weft_value_slot_kind((int)row->value);
        const int block = part + row->next;
        task.operands[i] =
            w->expected ? 0 : w->first[holds] + (row->whole ? 0 : block % w->length[holds]);
    }
    if (!w->expected)
        return weft_program_append(w->builder, &task, NULL, 0, NULL);
    w->expected[w->num_expected++] = task;
    return WEFT_OK;
}

/* Exchanges heads for sequence: queries, keys and values forward, the result's gradient
 * backward. */
static weft_status append_heads(writer *w)
{
    if (!exchanges(w->plan))
        return WEFT_OK;
    WEFT_TRY(append(w, WEFT_TASK_PERMUTE, WEFT_FLOW_NONE, 0));
    return append(w, WEFT_TASK_DISPATCH, w->backward ? WEFT_FLOW_HEADS_GRADIENT : WEFT_FLOW_HEADS,
                  0);
}

/* Gathers all keys at once, or sends the first block's. */
static weft_status append_keys(writer *w)
{
    if (gathers(w->plan)) {
        WEFT_TRY(append(w, WEFT_TASK_PERMUTE, WEFT_FLOW_NONE, 0));
        return append(w, WEFT_TASK_GATHER, WEFT_FLOW_KEYS, 0);
    }
    if (!rings(w->plan))
        return WEFT_OK;
    WEFT_TRY(append(w, WEFT_TASK_PERMUTE, WEFT_FLOW_KEYS, 0));
    return append(w, WEFT_TASK_SHIFT, WEFT_FLOW_KEYS, 0);
}

/* Queries attend the blocks in order, while the next block's keys travel. */
static weft_status append_forward(writer *w)
{
    const int blocks = weft_context_blocks(w->plan);
    WEFT_TRY(append_heads(w));
    WEFT_TRY(append_keys(w));
    for (int i = 0; i < blocks; i++) {
        if (i > 0 && i + 1 < blocks)
            WEFT_TRY(append(w, WEFT_TASK_SHIFT, WEFT_FLOW_KEYS, i));
        WEFT_TRY(append(w, WEFT_TASK_ATTEND, WEFT_FLOW_ACTIVATION, i));
    }
    return append(w, WEFT_TASK_PLACE, WEFT_FLOW_ACTIVATION, blocks - 1);
}

/* Early queries of the own block hide the first keys' travel, late ones the gradient's last hop. */
static weft_status append_ring_backward(writer *w)
{
    const int blocks = weft_context_blocks(w->plan);
    WEFT_TRY(append(w, WEFT_TASK_ATTEND, WEFT_FLOW_OWN, 0));
    for (int i = 1; i < blocks; i++) {
        if (i + 1 < blocks)
            WEFT_TRY(append(w, WEFT_TASK_SHIFT, WEFT_FLOW_KEYS, i));
        WEFT_TRY(append(w, WEFT_TASK_ATTEND, WEFT_FLOW_GRADIENT, i));
        WEFT_TRY(append(w, WEFT_TASK_SUM, WEFT_FLOW_KEYS, i));
        WEFT_TRY(append(w, WEFT_TASK_SHIFT, WEFT_FLOW_GRADIENT, i));
    }
    WEFT_TRY(append(w, WEFT_TASK_ATTEND, WEFT_FLOW_OWN, blocks));
    return append(w, WEFT_TASK_PLACE, WEFT_FLOW_GRADIENT, blocks);
}

/* The keys need not wait for the gradient's heads. */
static weft_status append_backward(writer *w)
{
    WEFT_TRY(append_keys(w));
    WEFT_TRY(append_heads(w));
    if (rings(w->plan))
        return append_ring_backward(w);
    if (!gathers(w->plan)) {
        WEFT_TRY(append(w, WEFT_TASK_ATTEND, WEFT_FLOW_OWN, 0));
    } else {
        WEFT_TRY(append(w, WEFT_TASK_ATTEND, WEFT_FLOW_GRADIENT, 0));
        WEFT_TRY(append(w, WEFT_TASK_REDUCE, WEFT_FLOW_KEYS, 0));
    }
    return append(w, WEFT_TASK_PLACE, WEFT_FLOW_GRADIENT, 0);
}

/* Appends all tasks in an order that fits every lane. */
static weft_status append_all(writer *w)
{
    WEFT_TRY((w->backward ? append_backward : append_forward)(w));
    if (!exchanges(w->plan))
        return WEFT_OK;
    WEFT_TRY(
        append(w, WEFT_TASK_COMBINE, w->backward ? WEFT_FLOW_HEADS_GRADIENT : WEFT_FLOW_HEADS, 0));
    return append(w, WEFT_TASK_PLACE, WEFT_FLOW_HEADS, 0);
}

weft_status weft_program_context(const weft_context_plan *plan, bool backward, weft_arena *arena,
                                 weft_program *out)
{
    WEFT_TRY(check_plan(plan));
    writer w = {.plan = plan, .backward = backward};
    WEFT_TRY(weft_program_builder_create(arena, &w.builder));
    WEFT_TRY(add_slots(&w));
    WEFT_TRY(append_all(&w));
    return weft_program_finish(w.builder, weft_context_blocks(plan), out);
}

double weft_context_share_of(const weft_program *program, const weft_task *task)
{
    const bool is_ring = program->max_in_flight > 1; /* blocks */
    if (task->flow != WEFT_FLOW_OWN || !is_ring)
        return 1;
    return task->part == 0 ? 0.25 : 0.75;
}

/* The tasks are those that the generator writes, in any order that lanes, waits and `ordered`
 * allow; where their operands lie, and which waits they need, is the checker's to prove. */
static weft_status check_direction(const weft_context_plan *plan, bool backward,
                                   const weft_program *program, weft_arena *scratch)
{
    enum { A_BLOCK = 4, ONCE = 8 };
    void *memory;
    WEFT_TRY(weft_arena_alloc_array(scratch, (size_t)weft_context_blocks(plan) * A_BLOCK + ONCE,
                                    sizeof(weft_task), &memory));
    writer w = {.plan = plan, .backward = backward, .expected = memory};
    WEFT_TRY(append_all(&w));
    weft_expectation expected = {.tasks = w.expected, .num_tasks = w.num_expected, .ordered = ~0u};
    if (backward && exchanges(plan))
        expected.holds[expected.num_holds++] =
            (weft_holding){WEFT_SLOT_HEADS, WEFT_VALUE_HEADS, WEFT_BY_PART, -1, 0};
    snprintf(expected.where, sizeof expected.where, "%s %s",
             weft_context_form_text((int)plan->form), backward ? "backward" : "forward");
    return weft_program_check(program, &expected, 1);
}

weft_status weft_program_context_check(const weft_context_plan *plan, const weft_program *forward,
                                       const weft_program *backward)
{
    WEFT_TRY(check_plan(plan));
    weft_arena scratch = {0};
    weft_status status = check_direction(plan, false, forward, &scratch);
    if (status == WEFT_OK && backward)
        status = check_direction(plan, true, backward, &scratch);
    weft_arena_release(&scratch);
    WEFT_TRY(status);
    return WEFT_OK;
}
