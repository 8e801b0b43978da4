#include "schedule/pipeline/order_time.h"

#include <stdio.h>

/* The virtual stages' computes in time. */
typedef struct timing {
    const weft_order_shape *shape;
    const weft_order *orders;
    int64_t **starts;
    int64_t *ends[2]; /* of forwards and of what makes gradients, [virtual stage][micro-batch]; 0:
                         not yet */
    uint32_t *heads;  /* of each rank: what it does next */
    int64_t *now;     /* of each rank: the end of what it did last */
    int *ready;       /* a stack of ranks that may go on */
    bool *is_ready;
    int num_ready;
} timing;

static int64_t *end_of(const timing *t, int stage, int micro_batch, bool gradient)
{
    return &t->ends[gradient]
                   [(size_t)stage * (size_t)t->shape->num_micro_batches + (size_t)micro_batch];
}

/* The virtual stage of a compute, and that whose compute it waits for; -1: none. */
static int stage_of(const weft_order_shape *shape, int rank, const weft_compute *compute)
{
    return weft_stage_of(shape->is_v, shape->num_ranks, rank, compute->chunk);
}

static int needed_stage(const weft_order_shape *shape, int stage, int kind)
{
    const int needed = stage + (kind == WEFT_COMPUTE_FORWARD ? -1 : 1);
    return kind != WEFT_COMPUTE_WEIGHT && needed < shape->num_ranks * shape->num_chunks ? needed
                                                                                        : -1;
}

static int rank_of(const weft_order_shape *shape, int stage)
{
    return weft_rank_of_stage(shape->is_v, shape->num_ranks, stage);
}

static void look_at(timing *t, int rank)
{
    if (!t->is_ready[rank])
        t->ready[t->num_ready++] = rank;
    t->is_ready[rank] = true;
}

/* Advances the rank as far as its inputs allow. */
static void advance(timing *t, int rank)
{
    const int num_stages = t->shape->num_ranks * t->shape->num_chunks;
    for (; t->heads[rank] < t->orders[rank].count; t->heads[rank]++) {
        const weft_compute *c = &t->orders[rank].computes[t->heads[rank]];
        const bool gradient = c->kind != WEFT_COMPUTE_FORWARD;
        const int stage = stage_of(t->shape, rank, c);
        const int needed = needed_stage(t->shape, stage, c->kind);
        const int64_t after = needed < 0 ? 1 : *end_of(t, needed, c->micro_batch, gradient);
        if (after == 0)
            return;
        const int64_t start = after > t->now[rank] ? after : t->now[rank];
        t->starts[rank][t->heads[rank]] = start;
        t->now[rank] = start + weft_compute_time(c->kind);
        if (c->kind == WEFT_COMPUTE_WEIGHT)
            continue;
        *end_of(t, stage, c->micro_batch, gradient) = t->now[rank];
        const int next = stage + (gradient ? -1 : 1);
        if (next >= 0 && next < num_stages && rank_of(t->shape, next) != rank)
            look_at(t, rank_of(t->shape, next));
    }
}

static void put_cell(char *text, size_t bytes, int stage, int kind, int micro_batch)
{
    snprintf(text, bytes, "%d%c%d", stage, weft_compute_letter(kind), micro_batch);
}

/* Follows the chain of waits: after num_ranks steps it stands on a circle. */
static weft_status circle(const timing *t, int rank)
{
    const int p = t->shape->num_ranks;
    char text[WEFT_ERROR_TEXT_BYTES / 2] = "";
    size_t used = 0;
    int first = -1;
    for (int step = 0; rank != first; step++) {
        const weft_compute *c = &t->orders[rank].computes[t->heads[rank]];
        const int stage = stage_of(t->shape, rank, c);
        const int needed = needed_stage(t->shape, stage, c->kind);
        const int32_t *columns = t->orders[rank].columns;
        char mine[32], other[32], place[48] = "";
        put_cell(mine, sizeof(mine), stage, c->kind, c->micro_batch);
        put_cell(other, sizeof(other), needed, c->kind, c->micro_batch);
        if (columns)
            snprintf(place, sizeof place, " (line %d, column %d)", rank + 1,
                     (int)columns[t->heads[rank]]);
        if (step == p)
            first = rank;
        if (step >= p && used < sizeof(text))
            used += (size_t)snprintf(text + used, sizeof(text) - used,
                                     "%srank %d stands at %s%s and waits for %s of rank %d",
                                     used ? ", " : "", rank, mine, place, other,
                                     rank_of(t->shape, needed));
        rank = rank_of(t->shape, needed);
        if (step < p)
            first = -1;
    }
    return WEFT_ERROR(WEFT_CONFIG, "the order of compute never ends: %s", text);
}
static weft_status start_timing(timing *t, weft_arena *scratch)
{
    const weft_order_shape *shape = t->shape;
    const size_t p = (size_t)shape->num_ranks;
    const size_t all = p * (size_t)shape->num_chunks * (size_t)shape->num_micro_batches;
    void *memory;
    for (int i = 0; i < 2; i++) {
        WEFT_TRY(weft_arena_alloc_array(scratch, all, sizeof(int64_t), &memory));
        t->ends[i] = memory;
    }
    WEFT_TRY(weft_arena_alloc_array(scratch, p, sizeof(uint32_t), &memory));
    t->heads = memory;
    WEFT_TRY(weft_arena_alloc_array(scratch, p, sizeof(int64_t), &memory));
    t->now = memory;
    WEFT_TRY(weft_arena_alloc_array(scratch, p, sizeof(int), &memory));
    t->ready = memory;
    WEFT_TRY(weft_arena_alloc_array(scratch, p, sizeof(bool), &memory));
    t->is_ready = memory;
    return WEFT_OK;
}

static weft_status run_timing(timing *t, weft_arena *scratch)
{
    WEFT_TRY(start_timing(t, scratch));
    for (int rank = 0; rank < t->shape->num_ranks; rank++)
        look_at(t, rank);
    while (t->num_ready > 0) {
        const int rank = t->ready[--t->num_ready];
        t->is_ready[rank] = false;
        advance(t, rank);
    }
    for (int rank = 0; rank < t->shape->num_ranks; rank++)
        if (t->heads[rank] < t->orders[rank].count)
            return circle(t, rank);
    return WEFT_OK;
}

weft_status weft_order_time(const weft_order_shape *shape, const weft_order *orders,
                            weft_arena *arena, int64_t **starts)
{
    for (int rank = 0; rank < shape->num_ranks; rank++) {
        void *memory;
        WEFT_TRY(weft_arena_alloc_array(arena, orders[rank].count, sizeof(int64_t), &memory));
        starts[rank] = memory;
    }
    weft_arena scratch = {0};
    timing t = {.shape = shape, .orders = orders, .starts = starts};
    const weft_status status = run_timing(&t, &scratch);
    weft_arena_release(&scratch);
    WEFT_TRY(status);
    return WEFT_OK;
}
