#include "schedule/pipeline/order_time.h"

#include <stdio.h>

#include "schedule/pipeline/order_slots.h"

static double *end_of(const weft_order_timer *t, int stage, int micro_batch, bool gradient)
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

double weft_order_cost_us(const weft_order_costs *costs, int kind, int stage)
{
    if (!costs)
        return (double)weft_compute_time(kind);
    const double input_us = kind == WEFT_COMPUTE_WEIGHT ? 0 : costs->input_us[stage];
    return kind == WEFT_COMPUTE_FORWARD ? costs->forward_us[stage]
           : kind == WEFT_COMPUTE_INPUT ? input_us
                                        : input_us + costs->weight_us[stage];
}

static void look_at(weft_order_timer *t, int rank)
{
    if (!t->is_ready[rank])
        t->ready[t->num_ready++] = rank;
    t->is_ready[rank] = true;
}

/* When the compute's input is there; below 0: not yet. */
static double input_at(const weft_order_timer *t, int rank, int stage, const weft_compute *c)
{
    const int needed = needed_stage(t->shape, stage, c->kind);
    if (needed < 0)
        return 0;
    const double end = *end_of(t, needed, c->micro_batch, c->kind != WEFT_COMPUTE_FORWARD);
    const bool travels = t->costs && end >= 0 && rank_of(t->shape, needed) != rank;
    return travels ? end + t->costs->message_us : end;
}

/* The number of computes that begin and end together with the rank's next one, itself included. */
static uint32_t num_together(const weft_order_timer *t, int rank)
{
    return t->shape->pairs && t->orders[rank].computes[t->heads[rank]].is_paired ? 2 : 1;
}

/* When the inputs of the rank's next computes are there. */
static double inputs_at(const weft_order_timer *t, int rank, uint32_t count)
{
    double at = 0;
    for (uint32_t i = 0; i < count; i++) {
        const weft_compute *c = &t->orders[rank].computes[t->heads[rank] + i];
        const double of_one = input_at(t, rank, stage_of(t->shape, rank, c), c);
        if (of_one < 0)
            return of_one;
        at = of_one > at ? of_one : at;
    }
    return at;
}

/* Tells the rank that waits for the compute. */
static void finish(weft_order_timer *t, int rank, const weft_compute *c)
{
    const bool gradient = c->kind != WEFT_COMPUTE_FORWARD;
    const int stage = stage_of(t->shape, rank, c), next = stage + (gradient ? -1 : 1);
    if (c->kind == WEFT_COMPUTE_WEIGHT)
        return;
    *end_of(t, stage, c->micro_batch, gradient) = t->now[rank];
    if (next >= 0 && next < t->shape->num_ranks * t->shape->num_chunks &&
        rank_of(t->shape, next) != rank)
        look_at(t, rank_of(t->shape, next));
}

/* Advances the rank as far as its inputs allow. */
static void advance(weft_order_timer *t, int rank)
{
    for (uint32_t count; t->heads[rank] < t->orders[rank].count; t->heads[rank] += count) {
        const weft_compute *c = &t->orders[rank].computes[t->heads[rank]];
        count = num_together(t, rank);
        const double after = inputs_at(t, rank, count);
        if (after < 0)
            return;
        const double start = after > t->now[rank] ? after : t->now[rank];
        t->now[rank] = start;
        for (uint32_t i = 0; i < count; i++) {
            t->starts[rank][t->heads[rank] + i] = start;
            t->now[rank] +=
                weft_order_cost_us(t->costs, c[i].kind, stage_of(t->shape, rank, &c[i]));
        }
        for (uint32_t i = 0; i < count; i++)
            finish(t, rank, &c[i]);
    }
}

static void put_cell(char *text, size_t bytes, int stage, int kind, int micro_batch)
{
    snprintf(text, bytes, "%d%c%d", stage, weft_compute_letter(kind), micro_batch);
}

/* Follows the chain of waits: after num_ranks steps it stands on a circle. */
static weft_status circle(const weft_order_timer *t, int rank)
{
    const int p = t->shape->num_ranks;
    char text[WEFT_ERROR_TEXT_BYTES / 2] = "";
    size_t used = 0;
    int first = -1;
    for (int step = 0; rank != first; step++) {
        const weft_compute *c = &t->orders[rank].computes[t->heads[rank]];
        c += inputs_at(t, rank, 1) >= 0; /* of a pair the other one waits */
        const int stage = stage_of(t->shape, rank, c);
        const int needed = needed_stage(t->shape, stage, c->kind);
        const int32_t *columns = t->orders[rank].columns;
        char mine[32], other[32], place[48] = "";
        put_cell(mine, sizeof(mine), stage, c->kind, c->micro_batch);
        put_cell(other, sizeof(other), needed, c->kind, c->micro_batch);
        if (columns)
            snprintf(place, sizeof place, " (line %d, column %d)", rank + 1,
                     (int)columns[c - t->orders[rank].computes]);
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

weft_status weft_order_timer_start(const weft_order_shape *shape, const weft_order_costs *costs,
                                   weft_arena *arena, weft_order_timer *out)
{
    const size_t p = (size_t)shape->num_ranks;
    const size_t of_rank = (size_t)shape->num_chunks * (size_t)shape->num_micro_batches;
    *out = (weft_order_timer){.shape = shape, .costs = costs};
    for (int i = 0; i < 2; i++) {
        WEFT_TRY(WEFT_ARRAY(arena, p * of_rank, &out->ends[i]));
    }
    WEFT_TRY(WEFT_ARRAY(arena, p, &out->starts));
    for (size_t rank = 0; rank < p; rank++) {
        WEFT_TRY(WEFT_ARRAY(arena, 3 * of_rank, &out->starts[rank]));
    }
    WEFT_TRY(WEFT_ARRAY(arena, p, &out->heads));
    WEFT_TRY(WEFT_ARRAY(arena, p, &out->now));
    WEFT_TRY(WEFT_ARRAY(arena, p, &out->ready));
    return WEFT_ARRAY(arena, p, &out->is_ready);
}

/* The rank that stands first; -1: all are done. */
static int run(weft_order_timer *t, const weft_order *orders)
{
    const int p = t->shape->num_ranks;
    const int of_rank = t->shape->num_chunks * t->shape->num_micro_batches;
    t->orders = orders;
    for (int i = 0; i < p * of_rank; i++)
        t->ends[0][i] = t->ends[1][i] = -1;
    for (int rank = p - 1; rank >= 0; rank--) {
        t->heads[rank] = 0;
        t->now[rank] = 0;
        look_at(t, rank);
    }
    while (t->num_ready > 0) {
        const int rank = t->ready[--t->num_ready];
        t->is_ready[rank] = false;
        advance(t, rank);
    }
    for (int rank = 0; rank < p; rank++)
        if (t->heads[rank] < orders[rank].count)
            return rank;
    return -1;
}

static double makespan_of(const weft_order_timer *t)
{
    double end = 0;
    for (int rank = 0; rank < t->shape->num_ranks; rank++)
        end = t->now[rank] > end ? t->now[rank] : end;
    return end;
}

double weft_order_timer_run(weft_order_timer *timer, const weft_order *orders)
{
    return run(timer, orders) < 0 ? makespan_of(timer) : -1;
}

static weft_status time_order(weft_order_timer *t, const weft_order_shape *shape,
                              const weft_order_costs *costs, const weft_order *orders,
                              weft_arena *scratch)
{
    WEFT_TRY(weft_order_timer_start(shape, costs, scratch, t));
    const int stands = run(t, orders);
    return stands < 0 ? WEFT_OK : circle(t, stands);
}

static weft_status find_slots(const weft_order_shape *shape, const weft_order_costs *costs,
                              const weft_order *orders, weft_arena *scratch, uint64_t *slot_bytes)
{
    weft_order_slots slots;
    WEFT_TRY(
        weft_order_slots_start(shape, costs->stash_bytes, costs->deferred_bytes, scratch, &slots));
    for (int rank = 0; rank < shape->num_ranks; rank++) {
        weft_order_slots_find(shape, rank, &orders[rank], &slots);
        slot_bytes[rank] = weft_order_slots_bytes(shape, rank, &slots, costs->boundary_bytes);
    }
    return WEFT_OK;
}

weft_status weft_order_simulate(const weft_order_shape *shape, const weft_order *orders,
                                const weft_order_costs *costs, double *out_makespan_us,
                                uint64_t *slot_bytes)
{
    weft_arena scratch = {0};
    weft_order_timer t;
    weft_status status = time_order(&t, shape, costs, orders, &scratch);
    if (status == WEFT_OK && slot_bytes)
        status = find_slots(shape, costs, orders, &scratch, slot_bytes);
    if (status == WEFT_OK)
        *out_makespan_us = makespan_of(&t);
    weft_arena_release(&scratch);
    WEFT_TRY(status);
    return WEFT_OK;
}

static weft_status copy_starts(const weft_order_timer *t, weft_arena *arena, int32_t **starts)
{
    for (int rank = 0; rank < t->shape->num_ranks; rank++) {
        const uint32_t count = t->orders[rank].count;
        WEFT_TRY(WEFT_ARRAY(arena, count, &starts[rank]));
        for (uint32_t i = 0; i < count; i++)
            starts[rank][i] = 1 + (int32_t)t->starts[rank][i];
    }
    return WEFT_OK;
}

weft_status weft_order_time(const weft_order_shape *shape, const weft_order *orders,
                            weft_arena *arena, int32_t **starts)
{
    weft_arena scratch = {0};
    weft_order_timer t;
    weft_status status = time_order(&t, shape, NULL, orders, &scratch);
    if (status == WEFT_OK)
        status = copy_starts(&t, arena, starts);
    weft_arena_release(&scratch);
    WEFT_TRY(status);
    return WEFT_OK;
}
