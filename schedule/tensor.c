#include "schedule/tensor.h"

#include <stdio.h>

#include "schedule/build.h"
#include "schedule/check.h"

static weft_status check_plan(const weft_tensor_plan *plan)
{
    if (plan->chunks < 1 || plan->chunks > WEFT_TENSOR_MAX_CHUNKS)
        return WEFT_ERROR(WEFT_CONFIG, "a product in %d chunks: 1 to %d are possible", plan->chunks,
                          WEFT_TENSOR_MAX_CHUNKS);
    if ((plan->reads && !(plan->gathers && plan->multiplies)) ||
        (plan->gathers && !plan->reads && !plan->weights) || (plan->reduces && !plan->multiplies) ||
        (plan->weights && !plan->backward))
        return WEFT_ERROR(WEFT_CONFIG, "a tensor-parallel product that has no such task");
    return WEFT_OK;
}

/* A program while it is written. */
typedef struct writer {
    const weft_tensor_plan *plan;
    weft_program_builder *builder;
    int32_t gathered, partial; /* first slots */
    weft_task *expected;       /* the checker's list; NULL: a program is written */
    uint32_t num_expected;
} writer;

static weft_status add_slots(writer *w)
{
    const weft_slot gathered = {.holds = WEFT_SLOT_GATHERED, .chunk = -1},
                    partial = {.holds = WEFT_SLOT_PARTIAL, .chunk = -1};
    const int n = w->plan->chunks;
    WEFT_TRY(weft_program_add_slots(w->builder, &gathered, w->plan->gathers ? n : 0, &w->gathered));
    return weft_program_add_slots(w->builder, &partial, w->plan->reduces ? n : 0, &w->partial);
}

/* Whether a chunk's product has the operand, or that of weights. */
static bool has_operand(const weft_tensor_plan *plan, const weft_task *task, weft_value value)
{
    if (task->kind != WEFT_TASK_PRODUCT)
        return true;
    if (value == WEFT_VALUE_PARTIAL_SUM)
        return plan->reduces;
    return task->flow == WEFT_FLOW_WEIGHT ? plan->gathers : plan->reads;
}

static weft_status append(writer *w, weft_task_kind kind, weft_flow flow, int chunk)
{
    const weft_operands *operands = weft_operands_of((int)kind, (int)flow);
    weft_task task = weft_task_of(kind, flow);
    task.part = (int16_t)chunk;
    for (int i = 0; i < operands->count; i++) {
        const weft_value value = operands->rows[i].value;
        const int32_t first = value == WEFT_VALUE_GATHERED ? w->gathered : w->partial;
        if (has_operand(w->plan, &task, value))
            task.operands[i] = (int16_t)(w->expected ? 0 : first + chunk);
    }
    if (!w->expected)
        return weft_program_append(w->builder, &task, NULL, 0, NULL);
    w->expected[w->num_expected++] = task;
    return WEFT_OK;
}

/* The last gather is behind all others. */
static weft_status append_all(writer *w)
{
    const weft_tensor_plan *plan = w->plan;
    const weft_flow flow = plan->backward ? WEFT_FLOW_GRADIENT : WEFT_FLOW_ACTIVATION;
    for (int i = 0; plan->gathers && i < plan->chunks; i++)
        WEFT_TRY(append(w, WEFT_TASK_GATHER, WEFT_FLOW_TENSOR, i));
    for (int i = 0; plan->multiplies && i < plan->chunks; i++) {
        WEFT_TRY(append(w, WEFT_TASK_PRODUCT, flow, i));
        if (plan->reduces)
            WEFT_TRY(append(w, WEFT_TASK_REDUCE, WEFT_FLOW_TENSOR, i));
    }
    return plan->weights ? append(w, WEFT_TASK_PRODUCT, WEFT_FLOW_WEIGHT, plan->chunks - 1)
                         : WEFT_OK;
}

weft_status weft_program_tensor(const weft_tensor_plan *plan, weft_arena *arena, weft_program *out)
{
    writer w = {.plan = plan};
    WEFT_TRY(check_plan(plan));
    WEFT_TRY(weft_program_builder_create(arena, &w.builder));
    WEFT_TRY(add_slots(&w));
    WEFT_TRY(append_all(&w));
    return weft_program_finish(w.builder, plan->chunks, out);
}

weft_status weft_program_tensor_check(const weft_tensor_plan *plan, const weft_program *program)
{
    weft_task tasks[3 * WEFT_TENSOR_MAX_CHUNKS + 1];
    writer w = {.plan = plan, .expected = tasks};
    WEFT_TRY(check_plan(plan));
    WEFT_TRY(append_all(&w));
    weft_expectation expected = {
        .tasks = tasks, .num_tasks = w.num_expected, .ordered = ~0u, .num_parts = plan->chunks};
    snprintf(expected.where, sizeof expected.where, "tensor-parallel %s",
             plan->backward ? "backward" : "forward");
    return weft_program_check(program, &expected, 1);
}
