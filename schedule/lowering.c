#include "schedule/lowering.h"

#include <stdlib.h>

#include "schedule/update.h"

static size_t at_stage(const weft_lowering *l, int stage, int m)
{
    return (size_t)stage * (size_t)l->m + (size_t)m;
}

static size_t at_chunk(const weft_lowering *l, int stage, int m)
{
    return at_stage(l, stage / l->p, m);
}

static int64_t end_of(const weft_lowering *l, int backward, int stage, int m)
{
    return l->times[backward][at_stage(l, stage, m)] +
           (backward ? WEFT_BACKWARD_TIME : WEFT_FORWARD_TIME);
}

/* A forward's input, and its stash, until the backward is done. */
static int32_t take_activation(const weft_lowering *l, int stage, int m, int64_t now)
{
    const int64_t end = end_of(l, !l->shape->forward_only, stage, m);
    return weft_lowering_take(l, WEFT_POOL_ACTIVATION + stage / l->p, now, end);
}

static weft_task *add_task(weft_lowering *l, weft_task_kind kind, weft_flow flow, int stage, int m)
{
    weft_task *task = &l->tasks[l->num_tasks++];
    *task = weft_task_of(kind, flow);
    task->micro_batch = m;
    task->chunk = stage / l->p;
    return task;
}

/* What a compute makes for the virtual stage `user`: it lies with the user if that is on this rank,
 * else it is sent from a slot of `out`. */
static int32_t make_output(weft_lowering *l, weft_flow flow, int out, int stage, int user, int m,
                           int64_t now)
{
    const int backward = flow == WEFT_FLOW_GRADIENT;
    if (user % l->p == l->rank) {
        int32_t *slot = &l->held[backward][at_chunk(l, user, m)];
        *slot = backward ? weft_lowering_take(l, WEFT_POOL_GRADIENT, now, end_of(l, true, user, m))
                         : take_activation(l, user, m, now);
        return *slot;
    }
    weft_lowered_message *sent = &l->sends[l->num_sends++];
    sent->at = l->times[backward][at_stage(l, user, m)];
    sent->send = weft_task_of(WEFT_TASK_SEND, flow);
    sent->send.micro_batch = m;
    sent->send.chunk = stage / l->p;
    sent->send.peer = user % l->p;
    sent->send.operands[0] = weft_lowering_take(l, out, now, sent->at);
    return sent->send.operands[0];
}

/* The slot in which a compute finds its input, which is received right now unless it lies there. */
static int32_t take_input(weft_lowering *l, weft_flow flow, int stage, int maker, int m,
                          int64_t now)
{
    const int backward = flow == WEFT_FLOW_GRADIENT;
    if (maker % l->p == l->rank)
        return l->held[backward][at_chunk(l, stage, m)];
    const int32_t slot =
        backward ? weft_lowering_take(l, WEFT_POOL_GRADIENT, now, end_of(l, true, stage, m))
                 : take_activation(l, stage, m, now);
    weft_task *receive = add_task(l, WEFT_TASK_RECEIVE, flow, stage, m);
    receive->peer = maker % l->p;
    receive->operands[0] = slot;
    return slot;
}

static void lower_forward(weft_lowering *l, int stage, int m, int64_t now)
{
    const int last = l->p * l->v - 1;
    const int32_t x =
        stage == 0 ? -1 : take_input(l, WEFT_FLOW_ACTIVATION, stage, stage - 1, m, now);
    const int32_t stash = x < 0 ? take_activation(l, stage, m, now) : x;
    l->stash[at_chunk(l, stage, m)] = stash;
    weft_task *task = add_task(l, WEFT_TASK_FORWARD, WEFT_FLOW_NONE, stage, m);
    if (l->shape->host_waits && l->shape->host_waits[stage])
        task->flags = WEFT_TASK_HOST_WAITS;
    task->operands[0] = x;
    task->operands[1] = stash;
    if (stage < last)
        task->operands[2] =
            make_output(l, WEFT_FLOW_ACTIVATION, WEFT_POOL_OUTPUT, stage, stage + 1, m, now);
    if (++l->in_flight > l->max_in_flight)
        l->max_in_flight = l->in_flight;
}

static void lower_backward(weft_lowering *l, int stage, int m, int64_t now)
{
    const int last = l->p * l->v - 1;
    int32_t again = -1;
    const int32_t dy =
        stage == last ? -1 : take_input(l, WEFT_FLOW_GRADIENT, stage, stage + 1, m, now);
    if (l->shape->recomputes && l->shape->recomputes[stage]) {
        weft_task *recompute = add_task(l, WEFT_TASK_RECOMPUTE, WEFT_FLOW_STASH, stage, m);
        recompute->operands[0] = l->stash[at_chunk(l, stage, m)];
        recompute->operands[1] = again = weft_lowering_take(l, WEFT_POOL_RECOMPUTED, now, now);
    }
    weft_task *task = add_task(l, WEFT_TASK_BACKWARD, WEFT_FLOW_NONE, stage, m);
    task->operands[0] = l->stash[at_chunk(l, stage, m)];
    task->operands[1] = dy;
    task->operands[3] = again;
    if (stage > 0)
        task->operands[2] =
            make_output(l, WEFT_FLOW_GRADIENT, WEFT_POOL_INPUT_GRADIENT, stage, stage - 1, m, now);
    l->in_flight--;
}

/* All ranks agree on this order: no rank wants two messages at once. */
static int compare_messages(const void *a, const void *b)
{
    const weft_lowered_message *x = a, *y = b;
    if (x->at != y->at)
        return x->at < y->at ? -1 : 1;
    return x->send.peer - y->send.peer;
}

void weft_lowering_run(weft_lowering *l)
{
    for (uint32_t i = 0; i < l->order->count; i++) {
        const weft_compute *c = &l->order->computes[i];
        const int stage = c->chunk * l->p + l->rank;
        if (c->backward)
            lower_backward(l, stage, c->micro_batch, l->starts[i]);
        else
            lower_forward(l, stage, c->micro_batch, l->starts[i]);
    }
    qsort(l->sends, l->num_sends, sizeof(weft_lowered_message), compare_messages);
}

static bool is_compute(const weft_task *task)
{
    return task->kind == WEFT_TASK_FORWARD || task->kind == WEFT_TASK_BACKWARD;
}

/* Appends a task with its operands' slots. */
static weft_status append(const weft_lowering *l, weft_program_builder *builder,
                          const weft_task *task, uint32_t *out_index)
{
    weft_task placed = *task;
    for (int i = 0; i < WEFT_TASK_MAX_OPERANDS; i++)
        if (task->operands[i] >= 0)
            placed.operands[i] = weft_lowering_row(l, task->operands[i]);
    return weft_program_append(builder, &placed, NULL, 0, out_index);
}

/* What is wanted by the time that the compute starts is sent before it and what it receives. */
static weft_status append_sends(weft_lowering *l, weft_program_builder *builder, int64_t until)
{
    while (l->next_send < l->num_sends && l->sends[l->next_send].at <= until)
        WEFT_TRY(append(l, builder, &l->sends[l->next_send++].send, NULL));
    return WEFT_OK;
}

static const weft_buckets *buckets_of(const weft_lowering *l)
{
    static const weft_buckets none;
    return l->shape->buckets ? &l->shape->buckets[l->rank] : &none;
}

static weft_status append_all(weft_lowering *l, weft_program_builder *builder)
{
    uint32_t compute = 0, index = 0;
    for (uint32_t i = 0; i < l->num_tasks; i++) {
        WEFT_TRY(append_sends(l, builder, l->starts[compute]));
        WEFT_TRY(append(l, builder, &l->tasks[i], &index));
        compute += is_compute(&l->tasks[i]);
        if (l->tasks[i].kind == WEFT_TASK_BACKWARD)
            l->last_backward[l->tasks[i].chunk] = index;
    }
    WEFT_TRY(append_sends(l, builder, INT64_MAX));
    return l->shape->forward_only
               ? WEFT_OK
               : weft_program_append_update(builder, buckets_of(l), l->last_backward, index);
}

weft_status weft_lowering_finish(weft_lowering *l, weft_arena *arena, const int *training,
                                 weft_program *out)
{
    int num_held = 0;
    for (int i = WEFT_POOL_ACTIVATION; i < l->v + WEFT_POOL_ACTIVATION; i++)
        num_held += weft_lowering_num_slots(l, i);
    weft_program_builder *builder;
    const weft_buckets *buckets = buckets_of(l);
    const uint32_t num_tasks = l->num_tasks + (uint32_t)l->num_sends +
                               (l->shape->forward_only ? 0 : weft_update_max_tasks(buckets));
    WEFT_TRY(weft_program_builder_create(arena, &builder));
    WEFT_TRY(weft_program_expect(builder, num_tasks, 2 * num_tasks, l->scratch));
    WEFT_TRY(weft_lowering_add_slots(l, builder, training));
    WEFT_TRY(append_all(l, builder));
    return weft_program_finish(builder, l->shape->forward_only ? num_held : l->max_in_flight, out);
}
