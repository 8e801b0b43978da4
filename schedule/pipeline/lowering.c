#include "schedule/pipeline/lowering.h"

#include <stdlib.h>

#include "schedule/pipeline/update.h"

static size_t at_stage(const weft_lowering *l, int stage, int m)
{
    return (size_t)stage * (size_t)l->m + (size_t)m;
}

static size_t at_chunk(const weft_lowering *l, int stage, int m)
{
    return at_stage(l, stage / l->p, m);
}

static int rank_of(const weft_lowering *l, int stage)
{
    return weft_rank_of_stage(l->shape->is_v, l->p, stage);
}

/* The slot of a forward's input and stash, until the backward is done. */
static int32_t activation_of(const weft_lowering *l, int stage, int m)
{
    return WEFT_POOL_ACTIVATION * WEFT_POOL_SLOTS + l->slots->stash.of[at_chunk(l, stage, m)];
}

static int32_t deferred_of(const weft_lowering *l, int stage, int m)
{
    return WEFT_POOL_DEFERRED * WEFT_POOL_SLOTS + l->slots->deferred.of[at_chunk(l, stage, m)];
}

static int64_t *free_at(const weft_lowering *l, int stage, int m)
{
    return &l->free_at[l->slots->stash.of[at_chunk(l, stage, m)]];
}

static int32_t take_gradient(const weft_lowering *l, int stage, int m, int64_t now,
                             int64_t *out_free_at)
{
    return weft_lowering_take(l, WEFT_POOL_GRADIENT, now, l->times->ends[1][at_stage(l, stage, m)],
                              out_free_at);
}

static weft_task *add_task(weft_lowering *l, weft_task_kind kind, weft_flow flow, int stage, int m)
{
    weft_task *task = &l->tasks[l->num_tasks++];
    *task = weft_task_of(kind, flow);
    task->micro_batch = m;
    task->chunk = stage / l->p;
    return task;
}

static weft_lowered_message message(const weft_lowering *l, weft_task_kind kind, weft_flow flow,
                                    int stage, int other, int m, int64_t at)
{
    weft_lowered_message out = {weft_task_of(kind, flow), at, 0, l->compute};
    out.task.micro_batch = m;
    out.task.chunk = stage / l->p;
    out.task.peer = rank_of(l, other);
    return out;
}

/* The slot for what a compute makes for virtual stage `user`: the user's own slot if the user is on
 * this rank, else one of pool `out`, from which a SEND is made. */
static int32_t make_output(weft_lowering *l, weft_flow flow, int out, int stage, int user, int m,
                           int64_t now)
{
    const int backward = flow == WEFT_FLOW_GRADIENT;
    if (rank_of(l, user) == l->rank) {
        int32_t *slot = &l->held[at_chunk(l, user, m)];
        return backward ? *slot = take_gradient(l, user, m, now, NULL) : activation_of(l, user, m);
    }
    const int64_t at = l->times->starts[backward][at_stage(l, user, m)];
    weft_lowered_message *sent = &l->sends[l->num_sends++];
    *sent = message(l, WEFT_TASK_SEND, flow, stage, user, m, at);
    sent->task.operands[0] = weft_lowering_take(l, out, now, at, NULL);
    return sent->task.operands[0];
}

/* The slot of a compute's input; makes a RECEIVE unless this rank has made the input. */
static int32_t take_input(weft_lowering *l, weft_flow flow, int stage, int maker, int m,
                          int64_t now)
{
    const int backward = flow == WEFT_FLOW_GRADIENT;
    if (rank_of(l, maker) == l->rank)
        return backward ? l->held[at_chunk(l, stage, m)] : activation_of(l, stage, m);
    weft_lowered_message *received = &l->receives[l->num_receives++];
    *received = message(l, WEFT_TASK_RECEIVE, flow, stage, maker, m, now);
    if (backward) {
        received->task.operands[0] = take_gradient(l, stage, m, now, &received->free_at);
    } else {
        received->task.operands[0] = activation_of(l, stage, m);
        received->free_at = *free_at(l, stage, m);
    }
    return received->task.operands[0];
}

static void lower_forward(weft_lowering *l, int stage, int m, int64_t now)
{
    const int last = l->p * l->v - 1;
    const int32_t x =
        stage == 0 ? -1 : take_input(l, WEFT_FLOW_ACTIVATION, stage, stage - 1, m, now);
    weft_task *task = add_task(l, WEFT_TASK_FORWARD, WEFT_FLOW_NONE, stage, m);
    if (l->shape->host_waits && l->shape->host_waits[stage])
        task->flags = WEFT_TASK_HOST_WAITS;
    task->operands[0] = x;
    task->operands[1] = activation_of(l, stage, m);
    if (stage < last)
        task->operands[2] =
            make_output(l, WEFT_FLOW_ACTIVATION, WEFT_POOL_OUTPUT, stage, stage + 1, m, now);
    if (++l->in_flight > l->max_in_flight)
        l->max_in_flight = l->in_flight;
    if (l->shape->forward_only)
        *free_at(l, stage, m) = l->times->ends[0][at_stage(l, stage, m)];
}

static void end_backward(weft_lowering *l, int stage, int m)
{
    l->in_flight--;
    *free_at(l, stage, m) = l->times->over[at_stage(l, stage, m)];
}

static void lower_backward(weft_lowering *l, int stage, int m, int64_t now, bool is_whole)
{
    const int last = l->p * l->v - 1;
    int32_t again = -1;
    const int32_t dy =
        stage == last ? -1 : take_input(l, WEFT_FLOW_GRADIENT, stage, stage + 1, m, now);
    if (l->shape->recomputes && l->shape->recomputes[stage]) {
        weft_task *recompute = add_task(l, WEFT_TASK_RECOMPUTE, WEFT_FLOW_STASH, stage, m);
        recompute->operands[0] = activation_of(l, stage, m);
        recompute->operands[1] = again =
            weft_lowering_take(l, WEFT_POOL_RECOMPUTED, now, now, NULL);
    }
    weft_task *task =
        add_task(l, WEFT_TASK_BACKWARD, is_whole ? WEFT_FLOW_NONE : WEFT_FLOW_INPUT, stage, m);
    task->operands[0] = activation_of(l, stage, m);
    task->operands[1] = dy;
    task->operands[3] = again;
    task->operands[4] = is_whole ? -1 : deferred_of(l, stage, m);
    if (stage > 0)
        task->operands[2] =
            make_output(l, WEFT_FLOW_GRADIENT, WEFT_POOL_INPUT_GRADIENT, stage, stage - 1, m, now);
    if (is_whole)
        end_backward(l, stage, m);
}

static void lower_weights(weft_lowering *l, int stage, int m)
{
    weft_task *task = add_task(l, WEFT_TASK_BACKWARD, WEFT_FLOW_WEIGHT, stage, m);
    task->operands[0] = activation_of(l, stage, m);
    task->operands[1] = deferred_of(l, stage, m);
    end_backward(l, stage, m);
}

/* All ranks agree on this order: no rank wants two messages at once. */
static int compare_messages(const void *a, const void *b)
{
    const weft_lowered_message *x = a, *y = b;
    if (x->at != y->at)
        return x->at < y->at ? -1 : 1;
    if (x->task.peer != y->task.peer)
        return x->task.peer - y->task.peer;
    return (x->task.flow == WEFT_FLOW_GRADIENT) - (y->task.flow == WEFT_FLOW_GRADIENT);
}

/* Whether the compute is one of a pair that runs as one. */
static bool is_paired(const weft_lowering *l, uint32_t compute)
{
    const weft_compute *c = &l->order->computes[compute];
    return l->shape->pairs && (c->is_paired || (compute > 0 && c[-1].is_paired));
}

void weft_lowering_run(weft_lowering *l)
{
    for (; l->compute < l->order->count; l->compute++) {
        const weft_compute *c = &l->order->computes[l->compute];
        const int stage = weft_stage_of(l->shape->is_v, l->p, l->rank, c->chunk);
        if (c->kind == WEFT_COMPUTE_FORWARD)
            lower_forward(l, stage, c->micro_batch, l->starts[l->compute]);
        else if (c->kind == WEFT_COMPUTE_WEIGHT)
            lower_weights(l, stage, c->micro_batch);
        else
            lower_backward(l, stage, c->micro_batch, l->starts[l->compute],
                           c->kind == WEFT_COMPUTE_BACKWARD);
        if (is_paired(l, l->compute))
            l->tasks[l->num_tasks - 1].flags |= WEFT_TASK_PAIRED;
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

/* Appends the messages that are wanted by then. */
static weft_status append_wanted(const weft_lowering *l, weft_program_builder *builder,
                                 const weft_lowered_message *messages, uint32_t count,
                                 int64_t until, uint32_t *next)
{
    for (; *next < count && messages[*next].at <= until; ++*next)
        WEFT_TRY(append(l, builder, &messages[*next].task, NULL));
    return WEFT_OK;
}

/* Appends the messages that stand before a compute; the order's count: after all computes. */
static weft_status append_messages(weft_lowering *l, weft_program_builder *builder,
                                   uint32_t compute)
{
    const int64_t until = compute < l->order->count ? l->starts[compute] : INT64_MAX;
    uint32_t *next = l->num_appended;
    if (!l->posts) {
        WEFT_TRY(append_wanted(l, builder, l->sends, l->num_sends, until, &next[0]));
        return append_wanted(l, builder, l->receives, l->num_receives, until, &next[1]);
    }
    for (; *next < l->posts->num_posted && l->posts->posted[*next].before <= compute; ++*next) {
        const weft_posted *posted = &l->posts->posted[*next];
        const weft_lowered_message *messages = posted->received ? l->receives : l->sends;
        WEFT_TRY(append(l, builder, &messages[posted->index].task, NULL));
    }
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
        WEFT_TRY(append_messages(l, builder, compute));
        WEFT_TRY(append(l, builder, &l->tasks[i], &index));
        compute += is_compute(&l->tasks[i]);
        if (l->tasks[i].kind == WEFT_TASK_BACKWARD && l->tasks[i].flow != WEFT_FLOW_INPUT)
            l->last_backward[l->tasks[i].chunk] = index;
    }
    WEFT_TRY(append_messages(l, builder, compute));
    return l->shape->forward_only
               ? WEFT_OK
               : weft_program_append_update(builder, buckets_of(l), l->last_backward, l->v, index);
}

weft_status weft_lowering_finish(weft_lowering *l, weft_arena *arena, weft_program *out)
{
    weft_program_builder *builder;
    const bool forward_only = l->shape->forward_only;
    const uint32_t num_tasks = l->num_tasks + l->num_sends + l->num_receives +
                               (forward_only ? 0 : weft_update_max_tasks(buckets_of(l)));
    WEFT_TRY(weft_program_builder_create(arena, &builder));
    WEFT_TRY(weft_program_expect(builder, num_tasks, 2 * num_tasks, l->scratch));
    WEFT_TRY(weft_lowering_add_slots(l, builder));
    WEFT_TRY(append_all(l, builder));
    WEFT_TRY(
        weft_program_finish(builder, forward_only ? l->slots->stash.num : l->max_in_flight, out));
    out->is_v = l->shape->is_v;
    return WEFT_OK;
}
