#include "schedule/pipeline.h"

#include <stdlib.h>
#include <string.h>

#include "schedule/operands.h"
#include "schedule/update.h"

/* Slots of one kind, of one chunk or of all: who takes one gets the one that has been free longest,
 * or a new one. Entries from `head` on are in the order in which they come free. */
typedef struct pool {
    struct pool_entry {
        int64_t free_at;
        int32_t index;
    } * entries;
    uint32_t head, tail;
    int num_rows, first;
} pool;

static int32_t take(pool *from, int64_t now, int64_t free_at)
{
    const bool is_free = from->head < from->tail && from->entries[from->head].free_at <= now;
    const int32_t index = is_free ? from->entries[from->head++].index : from->num_rows++;
    uint32_t at = from->tail++;
    for (; at > from->head && from->entries[at - 1].free_at > free_at; at--)
        from->entries[at] = from->entries[at - 1];
    from->entries[at] = (struct pool_entry){free_at, index};
    return index;
}

/* A message that a rank sends, and when it is wanted. */
typedef struct message {
    weft_task send;
    int64_t at;
} message;

/* One rank's program while it is lowered. Operands of tasks name a pool's slot until all pools are
 * known: pool * POOL_SLOTS + index. */
enum { POOL_SLOTS = 1 << 20, POOL_OUTPUT = 0, POOL_GRADIENT, POOL_INPUT_GRADIENT, POOL_ACTIVATION };

typedef struct lowering {
    const weft_pipeline_shape *shape;
    int rank, p, v, m;
    const weft_order *order;
    const int64_t *starts; /* of its computes */
    int64_t *times[2];     /* starts by [forward, backward][virtual stage][m] */
    /* Slots by [chunk][m]: x and dy that this rank's own chunks hand over; stashes. */
    int32_t *held[2], *stash;
    pool *pools;
    weft_task *tasks;
    uint32_t num_tasks;
    message *sends;
    size_t num_sends, next_send;
    uint32_t *last_backward; /* of each chunk */
    int in_flight, max_in_flight;
} lowering;

static size_t at_stage(const lowering *l, int stage, int m)
{
    return (size_t)stage * (size_t)l->m + (size_t)m;
}

static size_t at_chunk(const lowering *l, int stage, int m)
{
    return at_stage(l, stage / l->p, m);
}

static int64_t end_of(const lowering *l, int backward, int stage, int m)
{
    return l->times[backward][at_stage(l, stage, m)] +
           (backward ? WEFT_BACKWARD_TIME : WEFT_FORWARD_TIME);
}

static int32_t take_slot(const lowering *l, int pool_index, int64_t now, int64_t free_at)
{
    return pool_index * POOL_SLOTS + take(&l->pools[pool_index], now, free_at);
}

/* A forward's input, and its stash, until the backward is done. */
static int32_t take_activation(const lowering *l, int stage, int m, int64_t now)
{
    const int64_t end = end_of(l, !l->shape->forward_only, stage, m);
    return take_slot(l, POOL_ACTIVATION + stage / l->p, now, end);
}

static weft_task *add_task(lowering *l, weft_task_kind kind, weft_flow flow, int stage, int m)
{
    weft_task *task = &l->tasks[l->num_tasks++];
    *task = weft_task_of(kind, flow);
    task->micro_batch = m;
    task->chunk = stage / l->p;
    return task;
}

/* What a compute makes for the virtual stage `user`: it lies with the user if that is on this rank,
 * else it is sent from a slot of `out`. */
static int32_t make_output(lowering *l, weft_flow flow, int out, int stage, int user, int m,
                           int64_t now)
{
    const int backward = flow == WEFT_FLOW_GRADIENT;
    if (user % l->p == l->rank) {
        int32_t *slot = &l->held[backward][at_chunk(l, user, m)];
        *slot = backward ? take_slot(l, POOL_GRADIENT, now, end_of(l, true, user, m))
                         : take_activation(l, user, m, now);
        return *slot;
    }
    message *sent = &l->sends[l->num_sends++];
    sent->at = l->times[backward][at_stage(l, user, m)];
    sent->send = weft_task_of(WEFT_TASK_SEND, flow);
    sent->send.micro_batch = m;
    sent->send.chunk = stage / l->p;
    sent->send.peer = user % l->p;
    sent->send.operands[0] = take_slot(l, out, now, sent->at);
    return sent->send.operands[0];
}

/* The slot in which a compute finds its input, which is received right now unless it lies there. */
static int32_t take_input(lowering *l, weft_flow flow, int stage, int maker, int m, int64_t now)
{
    const int backward = flow == WEFT_FLOW_GRADIENT;
    if (maker % l->p == l->rank)
        return l->held[backward][at_chunk(l, stage, m)];
    const int32_t slot = backward ? take_slot(l, POOL_GRADIENT, now, end_of(l, true, stage, m))
                                  : take_activation(l, stage, m, now);
    weft_task *receive = add_task(l, WEFT_TASK_RECEIVE, flow, stage, m);
    receive->peer = maker % l->p;
    receive->operands[0] = slot;
    return slot;
}

static void lower_forward(lowering *l, int stage, int m, int64_t now)
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
            make_output(l, WEFT_FLOW_ACTIVATION, POOL_OUTPUT, stage, stage + 1, m, now);
    if (++l->in_flight > l->max_in_flight)
        l->max_in_flight = l->in_flight;
}

static void lower_backward(lowering *l, int stage, int m, int64_t now)
{
    const int last = l->p * l->v - 1;
    const int32_t dy =
        stage == last ? -1 : take_input(l, WEFT_FLOW_GRADIENT, stage, stage + 1, m, now);
    weft_task *task = add_task(l, WEFT_TASK_BACKWARD, WEFT_FLOW_NONE, stage, m);
    task->operands[0] = l->stash[at_chunk(l, stage, m)];
    task->operands[1] = dy;
    if (stage > 0)
        task->operands[2] =
            make_output(l, WEFT_FLOW_GRADIENT, POOL_INPUT_GRADIENT, stage, stage - 1, m, now);
    l->in_flight--;
}

/* All ranks agree on this order: no rank wants two messages at once. */
static int compare_messages(const void *a, const void *b)
{
    const message *x = a, *y = b;
    if (x->at != y->at)
        return x->at < y->at ? -1 : 1;
    return x->send.peer - y->send.peer;
}

static void lower_computes(lowering *l)
{
    for (uint32_t i = 0; i < l->order->count; i++) {
        const weft_compute *c = &l->order->computes[i];
        const int stage = c->chunk * l->p + l->rank;
        if (c->backward)
            lower_backward(l, stage, c->micro_batch, l->starts[i]);
        else
            lower_forward(l, stage, c->micro_batch, l->starts[i]);
    }
    qsort(l->sends, l->num_sends, sizeof(message), compare_messages);
}

static bool is_compute(const weft_task *task)
{
    return task->kind == WEFT_TASK_FORWARD || task->kind == WEFT_TASK_BACKWARD;
}

/* Gives pools their rows of the program's table. Training's has two at least of what travels; the
 * forward_only one has training's, those that it does not use without bytes. */
static weft_status add_slots(const lowering *l, weft_program_builder *builder, const int *training)
{
    static const weft_slot_kind kinds[] = {WEFT_SLOT_OUTPUT, WEFT_SLOT_GRADIENT,
                                           WEFT_SLOT_INPUT_GRADIENT};
    for (int i = 0; i < l->v + POOL_ACTIVATION; i++) {
        /* Activations first. */
        const int index = i < l->v ? POOL_ACTIVATION + i : i - l->v;
        pool *rows = &l->pools[index];
        const bool is_activation = index >= POOL_ACTIVATION;
        const int chunk = is_activation ? i : -1;
        weft_slot slot = {
            .holds = is_activation ? WEFT_SLOT_ACTIVATION : kinds[index],
            .chunk = chunk,
            .bytes = is_activation && l->rank == 0 && i == 0 ? 0 : l->shape->boundary_bytes};
        int32_t first;
        WEFT_TRY(weft_program_add_slots(builder, &slot, rows->num_rows, &first));
        rows->first = first;
        slot.bytes = 0;
        if (is_activation && training)
            WEFT_TRY(
                weft_program_add_slots(builder, &slot, training[index] - rows->num_rows, NULL));
    }
    return WEFT_OK;
}

/* Appends a task with its operands' slots. */
static weft_status append(const lowering *l, weft_program_builder *builder, const weft_task *task,
                          uint32_t *out_index)
{
    weft_task placed = *task;
    for (int i = 0; i < WEFT_TASK_MAX_OPERANDS; i++)
        if (task->operands[i] >= 0)
            placed.operands[i] =
                l->pools[task->operands[i] / POOL_SLOTS].first + task->operands[i] % POOL_SLOTS;
    return weft_program_append(builder, &placed, NULL, 0, out_index);
}

/* What is wanted by the time that the compute starts is sent before it and what it receives. */
static weft_status append_sends(lowering *l, weft_program_builder *builder, int64_t until)
{
    while (l->next_send < l->num_sends && l->sends[l->next_send].at <= until)
        WEFT_TRY(append(l, builder, &l->sends[l->next_send++].send, NULL));
    return WEFT_OK;
}

static weft_status append_update(const lowering *l, weft_program_builder *builder, uint32_t end)
{
    static const weft_buckets none;
    const weft_buckets *buckets = l->shape->buckets ? &l->shape->buckets[l->rank] : &none;
    return weft_program_append_update(builder, buckets, l->last_backward, end);
}

static weft_status append_all(lowering *l, weft_program_builder *builder)
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
    return l->shape->forward_only ? WEFT_OK : append_update(l, builder, index);
}

static weft_status start(lowering *l, weft_arena *scratch, const int *training)
{
    const size_t all = (size_t)l->v * (size_t)l->m;
    void *memory;
    for (int i = 0; i < 2; i++) {
        WEFT_TRY(weft_arena_alloc_array(scratch, all, sizeof(int32_t), &memory));
        l->held[i] = memory;
    }
    WEFT_TRY(weft_arena_alloc_array(scratch, all, sizeof(int32_t), &memory));
    l->stash = memory;
    WEFT_TRY(weft_arena_alloc_array(scratch, 4 * all, sizeof(weft_task), &memory));
    l->tasks = memory;
    WEFT_TRY(weft_arena_alloc_array(scratch, 2 * all, sizeof(message), &memory));
    l->sends = memory;
    WEFT_TRY(weft_arena_alloc_array(scratch, (size_t)l->v, sizeof(uint32_t), &memory));
    l->last_backward = memory;
    WEFT_TRY(
        weft_arena_alloc_array(scratch, (size_t)(l->v + POOL_ACTIVATION), sizeof(pool), &memory));
    l->pools = memory;
    for (int i = 0; i < l->v + POOL_ACTIVATION; i++) {
        const bool is_activation = i >= POOL_ACTIVATION;
        const bool is_used = is_activation            ? training != NULL
                             : i == POOL_OUTPUT       ? l->p > 1 && (l->v > 1 || l->rank < l->p - 1)
                             : l->shape->forward_only ? false
                             : i == POOL_GRADIENT     ? l->v > 1 || l->rank < l->p - 1
                                                      : l->p > 1 && (l->v > 1 || l->rank > 0);
        const size_t most = is_activation ? (size_t)l->m : all;
        WEFT_TRY(weft_arena_alloc_array(scratch, most + 2, sizeof(struct pool_entry), &memory));
        l->pools[i] = (pool){.entries = memory};
        int rows = is_used ? 2 : 0;
        if (is_activation && training && training[i] < rows)
            rows = training[i];
        while (l->pools[i].num_rows < rows)
            l->pools[i].entries[l->pools[i].tail++] =
                (struct pool_entry){0, l->pools[i].num_rows++};
    }
    return WEFT_OK;
}

/* training: rows of each pool of the training program, where this one only evaluates. out_rows:
 * those of this one; a NULL program: these alone are wanted. */
static weft_status lower(const weft_pipeline_shape *shape, int rank, const weft_order *order,
                         int64_t *const *times, const int64_t *starts, const int *training,
                         weft_arena *scratch, weft_arena *arena, int *out_rows, weft_program *out)
{
    lowering l = {.shape = shape,
                  .rank = rank,
                  .p = shape->num_stages,
                  .v = shape->num_chunks ? shape->num_chunks : 1,
                  .m = shape->num_micro_batches,
                  .order = order,
                  .starts = starts,
                  .times = {times[0], times[1]}};
    WEFT_TRY(start(&l, scratch, training));
    lower_computes(&l);
    for (int i = 0; i < l.v + POOL_ACTIVATION; i++)
        out_rows[i] = l.pools[i].num_rows;
    if (!out)
        return WEFT_OK;
    int num_held = 0;
    for (int i = POOL_ACTIVATION; i < l.v + POOL_ACTIVATION; i++)
        num_held += l.pools[i].num_rows;
    weft_program_builder *builder;
    WEFT_TRY(weft_program_builder_create(arena, &builder));
    WEFT_TRY(add_slots(&l, builder, training));
    WEFT_TRY(append_all(&l, builder));
    return weft_program_finish(builder, shape->forward_only ? num_held : l.max_in_flight, out);
}

weft_order_shape weft_pipeline_order_shape(const weft_pipeline_shape *shape)
{
    return (weft_order_shape){.num_ranks = shape->num_stages,
                              .num_chunks = shape->num_chunks ? shape->num_chunks : 1,
                              .num_micro_batches = shape->num_micro_batches,
                              .group_size = shape->group_size};
}

/* The orders of all ranks in time. */
typedef struct timed {
    weft_order *orders;
    int64_t **starts, *times[2];
} timed;

static weft_status time_orders(const weft_order_shape *shape, weft_arena *scratch, timed *t)
{
    const size_t p = (size_t)shape->num_ranks;
    void *memory;
    WEFT_TRY(weft_arena_alloc_array(scratch, p, sizeof(int64_t *), &memory));
    t->starts = memory;
    for (int i = 0; i < 2; i++) {
        WEFT_TRY(weft_arena_alloc_array(
            scratch, p * (size_t)shape->num_chunks * (size_t)shape->num_micro_batches,
            sizeof(int64_t), &memory));
        t->times[i] = memory;
    }
    WEFT_TRY(weft_order_time(shape, t->orders, scratch, t->starts));
    for (int rank = 0; rank < shape->num_ranks; rank++)
        for (uint32_t i = 0; i < t->orders[rank].count; i++) {
            const weft_compute *c = &t->orders[rank].computes[i];
            const size_t stage = (size_t)(c->chunk * shape->num_ranks + rank);
            t->times[c->backward][stage * (size_t)shape->num_micro_batches +
                                  (size_t)c->micro_batch] = t->starts[rank][i];
        }
    return WEFT_OK;
}

static weft_status copy_forwards(const weft_order_shape *shape, const weft_order *orders,
                                 weft_arena *scratch, weft_order *out)
{
    for (int rank = 0; rank < shape->num_ranks; rank++) {
        void *memory;
        WEFT_TRY(
            weft_arena_alloc_array(scratch, orders[rank].count, sizeof(weft_compute), &memory));
        out[rank] = (weft_order){.computes = memory};
        for (uint32_t i = 0; i < orders[rank].count; i++)
            if (!orders[rank].computes[i].backward)
                out[rank].computes[out[rank].count++] = orders[rank].computes[i];
    }
    return WEFT_OK;
}

static weft_status lower_all(const weft_pipeline_shape *shape, weft_arena *scratch,
                             weft_arena *arena, weft_program *programs)
{
    const weft_order_shape order_shape = weft_pipeline_order_shape(shape);
    const size_t p = (size_t)shape->num_stages, v = (size_t)order_shape.num_chunks;
    timed training = {0}, forwards = {0};
    weft_pipeline_shape trained = *shape;
    trained.forward_only = false;
    void *memory;
    WEFT_TRY(weft_arena_alloc_array(scratch, p, sizeof(weft_order), &memory));
    training.orders = memory;
    if (shape->orders)
        memcpy(memory, shape->orders, p * sizeof(weft_order));
    else
        WEFT_TRY(weft_order_make(shape->kind, &order_shape, scratch, training.orders));
    WEFT_TRY(time_orders(&order_shape, scratch, &training));
    if (shape->forward_only) {
        WEFT_TRY(weft_arena_alloc_array(scratch, p, sizeof(weft_order), &memory));
        forwards.orders = memory;
        WEFT_TRY(copy_forwards(&order_shape, training.orders, scratch, forwards.orders));
        WEFT_TRY(time_orders(&order_shape, scratch, &forwards));
    }
    WEFT_TRY(weft_arena_alloc_array(scratch, 2 * (v + POOL_ACTIVATION), sizeof(int), &memory));
    int *rows = memory, *own_rows = rows + v + POOL_ACTIVATION;
    for (int rank = 0; rank < shape->num_stages; rank++) {
        weft_arena of_rank = {0};
        weft_status status =
            lower(&trained, rank, &training.orders[rank], training.times, training.starts[rank],
                  NULL, &of_rank, arena, rows, shape->forward_only ? NULL : &programs[rank]);
        if (status == WEFT_OK && shape->forward_only)
            status = lower(shape, rank, &forwards.orders[rank], forwards.times,
                           forwards.starts[rank], rows, &of_rank, arena, own_rows, &programs[rank]);
        weft_arena_release(&of_rank);
        WEFT_TRY(status);
    }
    return WEFT_OK;
}

weft_status weft_program_pipeline(const weft_pipeline_shape *shape, weft_arena *arena,
                                  weft_program *programs)
{
    if (shape->num_stages < 1 || shape->num_micro_batches < 1 || shape->num_chunks < 0)
        return WEFT_ERROR(WEFT_CONFIG, "no pipeline program for %d stages with %d micro-batches",
                          shape->num_stages, shape->num_micro_batches);
    weft_arena scratch = {0};
    const weft_status status = lower_all(shape, &scratch, arena, programs);
    weft_arena_release(&scratch);
    WEFT_TRY(status);
    return WEFT_OK;
}
