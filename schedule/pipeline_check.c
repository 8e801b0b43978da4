#include <stdio.h>
#include <string.h>

#include "schedule/check.h"
#include "schedule/pipeline.h"
#include "schedule/update.h"

/* What one stage must do, while it is listed. */
typedef struct list {
    const weft_pipeline_shape *shape;
    int rank, stage, last; /* stage, last: of all virtual stages */
    weft_task_list list;
} list;

/* The value travels between this stage and another, or is made and used by one stage. */
static bool has_value(const list *l, const weft_operand *operand)
{
    const int stage = l->stage + operand->next, last = l->last;
    if (operand->value == WEFT_VALUE_ACTIVATION)
        return stage > 0 && stage <= last;
    if (operand->value == WEFT_VALUE_GRADIENT)
        return stage >= 0 && stage < last;
    return true;
}

static weft_task *add(list *l, weft_task_kind kind, weft_flow flow)
{
    weft_task *task = &l->list.tasks[l->list.num_tasks++];
    *task = weft_task_of(kind, flow);
    return task;
}

/* A task of the micro-batch, if the stage has its values, and for a message, if the other end is on
 * another rank. */
static void add_part(list *l, weft_task_kind kind, weft_flow flow, int micro_batch)
{
    const weft_operands *operands = weft_operands_of((int)kind, (int)flow);
    const bool message = kind == WEFT_TASK_SEND || kind == WEFT_TASK_RECEIVE;
    const bool downwards = (kind == WEFT_TASK_SEND) == (flow == WEFT_FLOW_ACTIVATION);
    const int p = l->shape->num_stages, peer = (l->stage + p + (downwards ? 1 : -1)) % p;
    if (message && (peer == l->rank || !has_value(l, &operands->rows[0])))
        return;
    weft_task *task = add(l, kind, flow);
    task->micro_batch = micro_batch;
    task->chunk = l->stage / p;
    if (message)
        task->peer = peer;
    if (kind == WEFT_TASK_FORWARD && l->shape->host_waits && l->shape->host_waits[l->stage])
        task->flags = WEFT_TASK_HOST_WAITS;
    for (int i = 0; i < operands->count; i++)
        task->operands[i] = has_value(l, &operands->rows[i]) ? 0 : -1;
}

static void list_stage(list *l)
{
    const int m = l->shape->num_micro_batches;
    for (int i = 0; i < m; i++) {
        add_part(l, WEFT_TASK_RECEIVE, WEFT_FLOW_ACTIVATION, i);
        add_part(l, WEFT_TASK_FORWARD, WEFT_FLOW_NONE, i);
        add_part(l, WEFT_TASK_SEND, WEFT_FLOW_ACTIVATION, i);
        if (l->shape->forward_only)
            continue;
        add_part(l, WEFT_TASK_RECEIVE, WEFT_FLOW_GRADIENT, i);
        add_part(l, WEFT_TASK_BACKWARD, WEFT_FLOW_NONE, i);
        add_part(l, WEFT_TASK_SEND, WEFT_FLOW_GRADIENT, i);
    }
}

static weft_status expect(const weft_pipeline_shape *shape, int rank, weft_arena *scratch,
                          weft_expectation *out)
{
    static const weft_buckets none;
    const weft_buckets *buckets = shape->buckets ? &shape->buckets[rank] : &none;
    const int p = shape->num_stages, v = shape->num_chunks ? shape->num_chunks : 1;
    const size_t all = (size_t)v * (size_t)shape->num_micro_batches;
    const size_t most = weft_update_max_tasks(buckets);
    void *tasks, *waits;
    WEFT_TRY(weft_arena_alloc_array(scratch, 6 * all + most, sizeof(weft_task), &tasks));
    WEFT_TRY(weft_arena_alloc_array(scratch, (all + 1) * most, sizeof(weft_wait), &waits));
    list l = {.shape = shape, .rank = rank, .last = p * v - 1, .list = {tasks, waits, 0, 0}};
    for (int chunk = 0; chunk < v; chunk++) {
        l.stage = chunk * p + rank;
        list_stage(&l);
    }
    if (!shape->forward_only)
        weft_update_expect(buckets, &l.list);
    *out = (weft_expectation){
        .tasks = tasks,
        .num_tasks = l.list.num_tasks,
        .waits = waits,
        .ordered = weft_update_ordered(),
        .begins = WEFT_TASK_FORWARD,
        .ends = shape->forward_only ? WEFT_TASK_FORWARD : WEFT_TASK_BACKWARD,
    };
    snprintf(out->where, sizeof(out->where), "stage %d", rank);
    return WEFT_OK;
}

static weft_status check_all(const weft_program *programs, const weft_pipeline_shape *shape,
                             weft_arena *scratch)
{
    const int p = shape->num_stages;
    void *expected;
    WEFT_TRY(weft_arena_alloc_array(scratch, (size_t)p, sizeof(weft_expectation), &expected));
    for (int stage = 0; stage < p; stage++)
        WEFT_TRY(expect(shape, stage, scratch, (weft_expectation *)expected + stage));
    return weft_program_check(programs, expected, p);
}

weft_status weft_program_pipeline_check(const weft_program *programs,
                                        const weft_pipeline_shape *shape)
{
    if (shape->num_stages < 1 || shape->num_micro_batches < 1)
        return WEFT_ERROR(WEFT_INTERNAL, "no programs to check: %d stages, %d micro-batches",
                          shape->num_stages, shape->num_micro_batches);
    weft_arena scratch = {0};
    const weft_status status = check_all(programs, shape, &scratch);
    weft_arena_release(&scratch);
    WEFT_TRY(status);
    return WEFT_OK;
}
