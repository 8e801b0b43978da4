#include "schedule/pipeline/lowering.h"

#include <stdlib.h>
#include <string.h>

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

static int32_t *free_at(const weft_lowering *l, int stage, int m)
{
    return &l->free_at[l->slots->stash.of[at_chunk(l, stage, m)]];
}

static int32_t take_gradient(const weft_lowering *l, int stage, int m, int32_t now,
                             int32_t *out_free_at)
{
    return weft_lowering_take(l, WEFT_POOL_GRADIENT, now, l->times->ends[1][at_stage(l, stage, m)],
                              out_free_at);
}

enum { NUM_OPERANDS = 5 }; /* most of a task here */

/* Appends a task with its operands' slots; in the first run counts it. *out_index may be NULL. */
static weft_status add_task(weft_lowering *l, weft_task task, int chunk, int m,
                            const int32_t operands[NUM_OPERANDS], uint32_t *out_index)
{
    task.micro_batch = m;
    task.chunk = (int16_t)chunk;
    for (int i = 0; l->builder && i < NUM_OPERANDS; i++)
        task.operands[i] = (int16_t)(operands[i] < 0 ? -1 : weft_lowering_row(l, operands[i]));
    return l->builder ? weft_program_append(l->builder, &task, NULL, 0, out_index) : WEFT_OK;
}

static weft_status add_pass(weft_lowering *l, weft_task task, int stage, int m,
                            const int32_t operands[NUM_OPERANDS])
{
    uint32_t index = 0;
    l->num_tasks += !l->builder;
    WEFT_TRY(add_task(l, task, stage / l->p, m, operands, &index));
    if (task.kind == WEFT_TASK_BACKWARD && task.flow != WEFT_FLOW_INPUT)
        l->last_backward[stage / l->p] = index;
    return WEFT_OK;
}

static void add_message(weft_lowering *l, weft_task_kind kind, weft_flow flow, int stage, int other,
                        int m, int32_t at, int32_t operand, int32_t is_free_at)
{
    const bool sends = kind == WEFT_TASK_SEND;
    uint32_t *num = sends ? &l->num_sends : &l->num_receives;
    if (!l->builder)
        (sends ? l->sends : l->receives)[(*num)++] =
            (weft_lowered_message){.kind = kind,
                                   .flow = flow,
                                   .micro_batch = m,
                                   .chunk = stage / l->p,
                                   .peer = rank_of(l, other),
                                   .operand = operand,
                                   .at = at,
                                   .free_at = is_free_at,
                                   .compute = l->compute};
}

/* The slot for what a compute makes for virtual stage `user`: the user's own slot if the user is on
 * this rank, else one of pool `out`, from which a SEND is made. */
static int32_t make_output(weft_lowering *l, weft_flow flow, int out, int stage, int user, int m,
                           int32_t now)
{
    const int backward = flow == WEFT_FLOW_GRADIENT;
    if (rank_of(l, user) == l->rank) {
        int32_t *slot = &l->held[at_chunk(l, user, m)];
        return backward ? *slot = take_gradient(l, user, m, now, NULL) : activation_of(l, user, m);
    }
    const int32_t at = l->times->starts[backward][at_stage(l, user, m)];
    const int32_t slot = weft_lowering_take(l, out, now, at, NULL);
    add_message(l, WEFT_TASK_SEND, flow, stage, user, m, at, slot, 0);
    return slot;
}

/* The slot of a compute's input; makes a RECEIVE unless this rank has made the input. */
static int32_t take_input(weft_lowering *l, weft_flow flow, int stage, int maker, int m,
                          int32_t now)
{
    const int backward = flow == WEFT_FLOW_GRADIENT;
    if (rank_of(l, maker) == l->rank)
        return backward ? l->held[at_chunk(l, stage, m)] : activation_of(l, stage, m);
    int32_t is_free_at = backward ? 0 : *free_at(l, stage, m);
    const int32_t slot =
        backward ? take_gradient(l, stage, m, now, &is_free_at) : activation_of(l, stage, m);
    add_message(l, WEFT_TASK_RECEIVE, flow, stage, maker, m, now, slot, is_free_at);
    return slot;
}

/* Whether the current compute is one of a pair that runs as one. */
static bool is_paired(const weft_lowering *l)
{
    const weft_compute *c = &l->order->computes[l->compute];
    return l->shape->pairs && (c->is_paired || (l->compute > 0 && c[-1].is_paired));
}

static weft_task task_of(const weft_lowering *l, weft_task_kind kind, weft_flow flow)
{
    weft_task task = weft_task_of(kind, flow);
    task.flags = is_paired(l) ? WEFT_TASK_PAIRED : 0;
    return task;
}

static weft_status lower_forward(weft_lowering *l, int stage, int m, int32_t now)
{
    const int last = l->p * l->v - 1;
    const int32_t x =
        stage == 0 ? -1 : take_input(l, WEFT_FLOW_ACTIVATION, stage, stage - 1, m, now);
    const int32_t y = stage == last ? -1
                                    : make_output(l, WEFT_FLOW_ACTIVATION, WEFT_POOL_OUTPUT, stage,
                                                  stage + 1, m, now);
    weft_task task = task_of(l, WEFT_TASK_FORWARD, WEFT_FLOW_NONE);
    if (l->shape->host_waits && l->shape->host_waits[stage])
        task.flags |= WEFT_TASK_HOST_WAITS;
    if (++l->in_flight > l->max_in_flight)
        l->max_in_flight = l->in_flight;
    if (l->shape->forward_only)
        *free_at(l, stage, m) = l->times->ends[0][at_stage(l, stage, m)];
    return add_pass(l, task, stage, m, (int32_t[]){x, activation_of(l, stage, m), y, -1, -1});
}

static void end_backward(weft_lowering *l, int stage, int m)
{
    l->in_flight--;
    *free_at(l, stage, m) = l->times->over[at_stage(l, stage, m)];
}

static weft_status lower_backward(weft_lowering *l, int stage, int m, int32_t now, bool is_whole)
{
    const int last = l->p * l->v - 1;
    const int32_t stash = activation_of(l, stage, m);
    int32_t again = -1;
    const int32_t dy =
        stage == last ? -1 : take_input(l, WEFT_FLOW_GRADIENT, stage, stage + 1, m, now);
    if (l->shape->recomputes && l->shape->recomputes[stage]) {
        again = weft_lowering_take(l, WEFT_POOL_RECOMPUTED, now, now, NULL);
        WEFT_TRY(add_pass(l, weft_task_of(WEFT_TASK_RECOMPUTE, WEFT_FLOW_STASH), stage, m,
                          (int32_t[]){stash, again, -1, -1, -1}));
    }
    const int32_t dx = stage == 0 ? -1
                                  : make_output(l, WEFT_FLOW_GRADIENT, WEFT_POOL_INPUT_GRADIENT,
                                                stage, stage - 1, m, now);
    if (is_whole)
        end_backward(l, stage, m);
    return add_pass(l, task_of(l, WEFT_TASK_BACKWARD, is_whole ? WEFT_FLOW_NONE : WEFT_FLOW_INPUT),
                    stage, m,
                    (int32_t[]){stash, dy, dx, again, is_whole ? -1 : deferred_of(l, stage, m)});
}

static weft_status lower_weights(weft_lowering *l, int stage, int m)
{
    end_backward(l, stage, m);
    return add_pass(l, weft_task_of(WEFT_TASK_BACKWARD, WEFT_FLOW_WEIGHT), stage, m,
                    (int32_t[]){activation_of(l, stage, m), deferred_of(l, stage, m), -1, -1, -1});
}

static weft_status lower_compute(weft_lowering *l)
{
    const weft_compute *c = &l->order->computes[l->compute];
    const int stage = weft_stage_of(l->shape->is_v, l->p, l->rank, c->chunk);
    const int32_t now = l->starts[l->compute];
    if (c->kind == WEFT_COMPUTE_FORWARD)
        return lower_forward(l, stage, c->micro_batch, now);
    return c->kind == WEFT_COMPUTE_WEIGHT
               ? lower_weights(l, stage, c->micro_batch)
               : lower_backward(l, stage, c->micro_batch, now, c->kind == WEFT_COMPUTE_BACKWARD);
}

/* All ranks agree on this order: no rank wants two messages at once. */
static int compare_messages(const void *a, const void *b)
{
    const weft_lowered_message *x = a, *y = b;
    if (x->at != y->at)
        return x->at < y->at ? -1 : 1;
    if (x->peer != y->peer)
        return x->peer - y->peer;
    return (x->flow == WEFT_FLOW_GRADIENT) - (y->flow == WEFT_FLOW_GRADIENT);
}

weft_status weft_lowering_run(weft_lowering *l)
{
    for (; l->compute < l->order->count; l->compute++)
        WEFT_TRY(lower_compute(l));
    qsort(l->sends, l->num_sends, sizeof(weft_lowered_message), compare_messages);
    return WEFT_OK;
}

static weft_status append_message(weft_lowering *l, const weft_lowered_message *message)
{
    weft_task task = weft_task_of(message->kind, message->flow);
    task.peer = message->peer;
    return add_task(l, task, message->chunk, message->micro_batch,
                    (int32_t[]){message->operand, -1, -1, -1, -1}, NULL);
}

/* Appends the messages that are wanted by then. */
static weft_status append_wanted(weft_lowering *l, const weft_lowered_message *messages,
                                 uint32_t count, int32_t until, uint32_t *next)
{
    for (; *next < count && messages[*next].at <= until; ++*next)
        WEFT_TRY(append_message(l, &messages[*next]));
    return WEFT_OK;
}

/* Appends the messages that stand before the current compute, or behind all. */
static weft_status append_messages(weft_lowering *l)
{
    const int32_t until = l->compute < l->order->count ? l->starts[l->compute] : INT32_MAX;
    uint32_t *next = l->num_appended;
    if (!l->posts) {
        WEFT_TRY(append_wanted(l, l->sends, l->num_sends, until, &next[0]));
        return append_wanted(l, l->receives, l->num_receives, until, &next[1]);
    }
    for (; *next < l->posts->num_posted && l->posts->posted[*next].before <= l->compute; ++*next) {
        const weft_posted *posted = &l->posts->posted[*next];
        WEFT_TRY(append_message(l, &(posted->received ? l->receives : l->sends)[posted->index]));
    }
    return WEFT_OK;
}

static const weft_buckets *buckets_of(const weft_lowering *l)
{
    static const weft_buckets none;
    return l->shape->buckets ? &l->shape->buckets[l->rank] : &none;
}

static weft_status append_all(weft_lowering *l)
{
    uint32_t last = 0;
    weft_lowering_empty_pools(l);
    memset(l->free_at, 0, (size_t)l->v * (size_t)l->m * sizeof *l->free_at);
    for (l->compute = 0; l->compute < l->order->count; l->compute++) {
        WEFT_TRY(append_messages(l));
        WEFT_TRY(lower_compute(l));
    }
    WEFT_TRY(append_messages(l));
    for (int chunk = 0; chunk < l->v; chunk++)
        last = l->last_backward[chunk] > last ? l->last_backward[chunk] : last;
    return l->shape->forward_only ? WEFT_OK
                                  : weft_program_append_update(l->builder, buckets_of(l),
                                                               l->last_backward, l->v, last);
}

weft_status weft_lowering_finish(weft_lowering *l, weft_arena *arena, weft_program *out)
{
    const bool forward_only = l->shape->forward_only;
    const uint32_t num_tasks = l->num_tasks + l->num_sends + l->num_receives +
                               (forward_only ? 0 : weft_update_max_tasks(buckets_of(l)));
    WEFT_TRY(weft_program_builder_create(arena, &l->builder));
    WEFT_TRY(weft_program_expect(l->builder, num_tasks, 2 * num_tasks, l->scratch));
    WEFT_TRY(weft_lowering_add_slots(l, l->builder));
    WEFT_TRY(append_all(l));
    WEFT_TRY(weft_program_finish(l->builder, forward_only ? l->slots->stash.num : l->max_in_flight,
                                 out));
    out->is_v = l->shape->is_v;
    return WEFT_OK;
}
