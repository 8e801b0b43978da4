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
    const bool *is_split;  /* [chunk][m]: the program has the backward in two halves */
    const bool *is_paired; /* [2][chunk][m]: it has the forward, the backward, in a pair */
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

static bool is_paired(const list *l, weft_task_kind kind, int micro_batch)
{
    const int m = l->shape->num_micro_batches, v = (l->last + 1) / l->shape->num_stages;
    return l->shape->pairs &&
           l->is_paired[((kind == WEFT_TASK_BACKWARD) * v + l->chunk) * m + micro_batch];
}

/* A task of the micro-batch, if the stage has its values, and for a message, if the other end is on
 * another rank. */
static void add_part(list *l, weft_task_kind kind, weft_flow flow, int micro_batch)
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
    task->micro_batch = micro_batch;
    task->chunk = l->chunk;
    if (message)
        task->peer = peer;
    if (kind == WEFT_TASK_FORWARD && l->shape->host_waits && l->shape->host_waits[l->stage])
        task->flags = WEFT_TASK_HOST_WAITS;
    if (!message && flow != WEFT_FLOW_WEIGHT && is_paired(l, kind, micro_batch))
        task->flags |= WEFT_TASK_PAIRED;
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
        add_part(l, WEFT_TASK_RECOMPUTE, WEFT_FLOW_STASH, i);
        const bool is_split = l->is_split[l->chunk * m + i];
        add_part(l, WEFT_TASK_BACKWARD, is_split ? WEFT_FLOW_INPUT : WEFT_FLOW_NONE, i);
        if (is_split)
            add_part(l, WEFT_TASK_BACKWARD, WEFT_FLOW_WEIGHT, i);
        add_part(l, WEFT_TASK_SEND, WEFT_FLOW_GRADIENT, i);
    }
}

static bool ends_backward(const weft_task *task)
{
    return task->kind == WEFT_TASK_BACKWARD && task->flow != WEFT_FLOW_INPUT;
}

/* By chunk: the micro-batch of its last backward in the program; -1: there is none. By chunk and
 * micro-batch: whether the backward is in two halves; the forward, then the backward, in a pair. */
static void find_backwards(const weft_program *program, int num_chunks, int num_micro_batches,
                           int32_t *last, bool *is_split, bool *is_paired)
{
    const int all = num_chunks * num_micro_batches;
    for (int chunk = 0; chunk < num_chunks; chunk++)
        last[chunk] = -1;
    for (uint32_t i = 0; i < program->num_tasks; i++) {
        const weft_task *task = &program->tasks[i];
        const bool backward = task->kind == WEFT_TASK_BACKWARD;
        if ((!backward && task->kind != WEFT_TASK_FORWARD) || task->chunk < 0 ||
            task->chunk >= num_chunks || task->micro_batch < 0 ||
            task->micro_batch >= num_micro_batches)
            continue;
        const int at = task->chunk * num_micro_batches + task->micro_batch;
        if (task->flow != WEFT_FLOW_WEIGHT)
            is_paired[backward * all + at] = task->flags & WEFT_TASK_PAIRED;
        if (ends_backward(task))
            last[task->chunk] = task->micro_batch;
        else if (backward)
            is_split[at] = true;
    }
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
    const size_t all = (size_t)v * (size_t)shape->num_micro_batches;
    void *tasks, *waits, *batches, *splits, *pairs;
    uint32_t *last_backward;
    WEFT_TRY(weft_arena_alloc_array(scratch, 8 * all + weft_update_max_tasks(buckets),
                                    sizeof(weft_task), &tasks));
    WEFT_TRY(weft_arena_alloc_array(scratch, weft_update_max_waits(buckets, v), sizeof(weft_wait),
                                    &waits));
    WEFT_TRY(weft_arena_alloc_array(scratch, (size_t)v, sizeof(int32_t), &batches));
    WEFT_TRY(WEFT_ARRAY(scratch, (size_t)v, &last_backward));
    WEFT_TRY(weft_arena_alloc_array(scratch, all, sizeof(bool), &splits));
    WEFT_TRY(weft_arena_alloc_array(scratch, 2 * all, sizeof(bool), &pairs));
    const int32_t *last_batch = batches;
    find_backwards(&q->programs[rank], v, shape->num_micro_batches, batches, splits, pairs);
    list l = {.shape = shape,
              .rank = rank,
              .last = p * v - 1,
              .is_split = splits,
              .is_paired = pairs,
              .list = {tasks, waits, 0, 0}};
    for (int chunk = 0; chunk < v; chunk++) {
        uint32_t i = l.list.num_tasks;
        l.chunk = chunk;
        l.stage = weft_stage_of(shape->is_v, p, rank, chunk);
        list_stage(&l);
        last_backward[chunk] = UINT32_MAX;
        for (; i < l.list.num_tasks; i++)
            if (ends_backward(&l.list.tasks[i]) && l.list.tasks[i].micro_batch == last_batch[chunk])
                last_backward[chunk] = i;
    }
    if (!shape->forward_only)
        weft_update_expect(buckets, last_backward, v, &l.list);
    *out = (weft_expectation){
        .tasks = tasks,
        .num_tasks = l.list.num_tasks,
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
