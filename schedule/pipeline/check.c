#include <stdio.h>
#include <string.h>

#include "schedule/check.h"
#include "schedule/pipeline/pipeline.h"
#include "schedule/pipeline/update.h"

/* What one stage must do, while it is listed. */
typedef struct list {
    const weft_pipeline_shape *shape;
    int rank, stage, last; /* stage, last: of all virtual stages */
    int chunk;
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
    if (operand->value == WEFT_VALUE_RECOMPUTED)
        return l->shape->recomputes && l->shape->recomputes[l->stage];
    return true;
}

static weft_task *add(list *l, weft_task_kind kind, weft_flow flow)
{
    weft_task *task = &l->list.tasks[l->list.num_tasks++];
    *task = weft_task_of(kind, flow);
    return task;
}

/* A task of every micro-batch, if the stage has its values, and for a message, if the other end is
 * on another rank. */
static void add_part(list *l, weft_task_kind kind, weft_flow flow)
{
    const weft_operands *operands = weft_operands_of((int)kind, (int)flow);
    const bool message = kind == WEFT_TASK_SEND || kind == WEFT_TASK_RECEIVE;
    const bool downwards = (kind == WEFT_TASK_SEND) == (flow == WEFT_FLOW_ACTIVATION);
    if (message && !has_value(l, &operands->rows[0]))
        return;
    const int peer = weft_rank_of_stage(l->shape->is_v, l->shape->num_stages,
                                        message ? l->stage + (downwards ? 1 : -1) : 0);
    if (message && peer == l->rank)
        return;
    if (kind == WEFT_TASK_RECOMPUTE && !has_value(l, &operands->rows[1]))
        return;
    weft_task *task = add(l, kind, flow);
    task->micro_batch = 0;
    task->chunk = (int16_t)l->chunk;
    if (message)
        task->peer = peer;
    if (kind == WEFT_TASK_FORWARD && l->shape->host_waits && l->shape->host_waits[l->stage])
        task->flags = WEFT_TASK_HOST_WAITS;
    for (int i = 0; i < operands->count; i++)
        task->operands[i] = has_value(l, &operands->rows[i]) ? 0 : -1;
}

/* Backwards whole and in halves: the program says which has which. */
static void list_stage(list *l)
{
    add_part(l, WEFT_TASK_RECEIVE, WEFT_FLOW_ACTIVATION);
    add_part(l, WEFT_TASK_FORWARD, WEFT_FLOW_NONE);
    add_part(l, WEFT_TASK_SEND, WEFT_FLOW_ACTIVATION);
    if (l->shape->forward_only)
        return;
    add_part(l, WEFT_TASK_RECEIVE, WEFT_FLOW_GRADIENT);
    add_part(l, WEFT_TASK_RECOMPUTE, WEFT_FLOW_STASH);
    add_part(l, WEFT_TASK_BACKWARD, WEFT_FLOW_NONE);
    add_part(l, WEFT_TASK_BACKWARD, WEFT_FLOW_INPUT);
    add_part(l, WEFT_TASK_BACKWARD, WEFT_FLOW_WEIGHT);
    add_part(l, WEFT_TASK_SEND, WEFT_FLOW_GRADIENT);
}

enum { PARTS_OF_STAGE = 9 };

/* A rank's backwards in its program. */
typedef struct backwards {
    int num_micro_batches;
    bool *is_split;     /* [chunk][m]: in two halves */
    int32_t *last_flow; /* by chunk: of the last one to end; -1: there is none */
} backwards;

static weft_status find_backwards(const weft_program *program, int num_chunks,
                                  int num_micro_batches, weft_arena *arena, backwards *out)
{
    void *split, *last;
    const size_t v = (size_t)num_chunks;
    WEFT_TRY(weft_arena_alloc_array(arena, v * (size_t)num_micro_batches, sizeof(bool), &split));
    WEFT_TRY(weft_arena_alloc_array(arena, v, sizeof(int32_t), &last));
    *out = (backwards){num_micro_batches, split, last};
    for (int chunk = 0; chunk < num_chunks; chunk++)
        out->last_flow[chunk] = -1;
    for (uint32_t i = 0; i < program->num_tasks; i++) {
        const weft_task *task = &program->tasks[i];
        if (task->kind != WEFT_TASK_BACKWARD || task->chunk < 0 || task->chunk >= num_chunks ||
            task->micro_batch < 0 || task->micro_batch >= num_micro_batches)
            continue;
        if (task->flow == WEFT_FLOW_INPUT)
            out->is_split[task->chunk * num_micro_batches + task->micro_batch] = true;
        else
            out->last_flow[task->chunk] = task->flow;
    }
    return WEFT_OK;
}

static bool has_task(const void *context, const weft_task *task, int micro_batch)
{
    const backwards *b = context;
    return task->kind != WEFT_TASK_BACKWARD ||
           (task->flow == WEFT_FLOW_NONE) !=
               b->is_split[task->chunk * b->num_micro_batches + micro_batch];
}

/* A set and what it should be. */
typedef struct question {
    const weft_program *programs;
    const weft_pipeline_shape *shape;
} question;

static weft_status expect(const void *context, int rank, weft_arena *scratch, weft_expectation *out)
{
    static const weft_buckets none;
    const question *q = context;
    const weft_pipeline_shape *shape = q->shape;
    const weft_buckets *buckets = shape->buckets ? &shape->buckets[rank] : &none;
    const int p = shape->num_stages, v = shape->num_chunks ? shape->num_chunks : 1;
    void *tasks, *waits, *indices, *memory;
    WEFT_TRY(weft_arena_alloc_array(scratch,
                                    PARTS_OF_STAGE * (size_t)v + weft_update_max_tasks(buckets),
                                    sizeof(weft_task), &tasks));
    WEFT_TRY(weft_arena_alloc_array(scratch, weft_update_max_waits(buckets, v), sizeof(weft_wait),
                                    &waits));
    WEFT_TRY(weft_arena_alloc_array(scratch, (size_t)v, sizeof(uint32_t), &indices));
    WEFT_TRY(weft_arena_alloc(scratch, sizeof(backwards), &memory));
    uint32_t *last_backward = indices;
    backwards *of_rank = memory;
    WEFT_TRY(find_backwards(&q->programs[rank], v, shape->num_micro_batches, scratch, of_rank));
    list l = {.shape = shape, .rank = rank, .last = p * v - 1, .list = {tasks, waits, 0, 0}};
    for (int chunk = 0; chunk < v; chunk++) {
        uint32_t i = l.list.num_tasks;
        l.chunk = chunk;
        l.stage = weft_stage_of(shape->is_v, p, rank, chunk);
        list_stage(&l);
        last_backward[chunk] = UINT32_MAX;
        for (; i < l.list.num_tasks; i++)
            if (l.list.tasks[i].kind == WEFT_TASK_BACKWARD &&
                l.list.tasks[i].flow == of_rank->last_flow[chunk])
                last_backward[chunk] = i;
    }
    if (!shape->forward_only)
        weft_update_expect(buckets, last_backward, v, &l.list);
    *out = (weft_expectation){
        .tasks = tasks,
        .num_tasks = l.list.num_tasks,
        .num_micro_batches = shape->num_micro_batches,
        .has = has_task,
        .context = of_rank,
        .may_pair = shape->pairs,
        .waits = waits,
        .ordered = weft_update_ordered(),
        .begins = WEFT_TASK_FORWARD,
        .ends = shape->forward_only ? WEFT_TASK_FORWARD : WEFT_TASK_BACKWARD,
        .stash_bytes = shape->stash_bytes,
        .deferred_bytes = shape->deferred_bytes,
        .num_stages = p * v,
    };
    snprintf(out->where, sizeof(out->where), "stage %d", rank);
    return WEFT_OK;
}

weft_status weft_program_pipeline_check(const weft_program *programs,
                                        const weft_pipeline_shape *shape)
{
    if (shape->num_stages < 1 || shape->num_micro_batches < 1)
        return WEFT_ERROR(WEFT_INTERNAL, "no programs to check: %d stages, %d micro-batches",
                          shape->num_stages, shape->num_micro_batches);
    const question q = {programs, shape};
    return weft_program_check_by(programs, expect, &q, shape->num_stages);
}
