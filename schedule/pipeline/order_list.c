#include "schedule/pipeline/order_list.h"

#include <math.h>

/* What a rank would do next. */
typedef struct choice {
    double start; /* INFINITY: nothing */
    int kind, chunk;
} choice;

typedef struct list {
    const weft_order_shape *shape;
    const weft_order_costs *costs;
    const weft_list_rule *rule;
    weft_order *orders;
    double *ends[2]; /* of forwards and gradients, [virtual stage][micro-batch]; below 0: not yet */
    int *done[3];    /* forwards, gradients, weights: [rank][chunk] */
    double *now;     /* of each rank */
    uint64_t *held[2], *most[2]; /* bytes of each rank: of stashes, of what backwards leave */
    int *in_flight;              /* virtual stages of each rank */
    choice *next;
} list;

static int stage_of(const list *l, int rank, int chunk)
{
    return weft_stage_of(l->shape->is_v, l->shape->num_ranks, rank, chunk);
}

static int *done_of(const list *l, int what, int rank, int chunk)
{
    return &l->done[what][rank * l->shape->num_chunks + chunk];
}

static double *end_of(const list *l, int gradient, int stage, int m)
{
    return &l->ends[gradient][(size_t)stage * (size_t)l->shape->num_micro_batches + (size_t)m];
}

static uint64_t bytes_of(const uint64_t *bytes, int index)
{
    return bytes ? bytes[index] : 0;
}

/* Both have slots of their own: what one ever took the other does not get. */
static bool has_room(const list *l, int rank, int deferred, uint64_t bytes)
{
    const uint64_t limit = bytes_of(l->costs->limit_bytes, rank);
    const uint64_t now = l->held[deferred][rank] + bytes, most = l->most[deferred][rank];
    return limit == 0 || (now > most ? now : most) + l->most[!deferred][rank] <= limit;
}

static void reserve(const list *l, int rank, int deferred, uint64_t bytes)
{
    const uint64_t now = l->held[deferred][rank] + bytes;
    l->most[deferred][rank] = now > l->most[deferred][rank] ? now : l->most[deferred][rank];
}

/* The stashes of a micro-batch that enters the chunk, and goes on through the later ones. */
static uint64_t stashes_from(const list *l, int rank, int chunk)
{
    uint64_t bytes = 0;
    for (int c = chunk; c < l->shape->num_chunks; c++)
        bytes += bytes_of(l->costs->stash_bytes, stage_of(l, rank, c));
    return bytes;
}

/* Whether a micro-batch that enters the chunk can go on through the later ones. */
static bool may_enter(const list *l, int rank, int chunk)
{
    const int p = l->shape->num_ranks, v = l->shape->num_chunks;
    int most = (int)(l->rule->ahead * p * v) - (l->rule->fewer_late ? rank : 0);
    most = most < v ? v : most;
    return has_room(l, rank, false, stashes_from(l, rank, chunk)) &&
           (l->rule->ahead == 0 || l->in_flight[rank] + v - chunk <= most);
}

/* When the chunk's next forward or gradient could start; INFINITY: not known yet. */
static double start_of(const list *l, int rank, int chunk, int gradient)
{
    const int m = *done_of(l, gradient, rank, chunk), stage = stage_of(l, rank, chunk);
    const int needed = stage + (gradient ? 1 : -1);
    const int num_stages = l->shape->num_ranks * l->shape->num_chunks;
    if (m == l->shape->num_micro_batches || (gradient && m == *done_of(l, 0, rank, chunk)))
        return INFINITY;
    if (needed < 0 || needed == num_stages)
        return l->now[rank];
    const double end = *end_of(l, gradient, needed, m);
    const bool travels = weft_rank_of_stage(l->shape->is_v, l->shape->num_ranks, needed) != rank;
    if (end < 0)
        return INFINITY;
    return fmax(l->now[rank], travels ? end + l->costs->message_us : end);
}

/* Weights' gradients that fit the gap until `until`. */
static choice fill(const list *l, int rank, double until)
{
    for (int chunk = 0; chunk < l->shape->num_chunks; chunk++) {
        const double us = l->costs->weight_us[stage_of(l, rank, chunk)];
        if (*done_of(l, 2, rank, chunk) < *done_of(l, 1, rank, chunk) &&
            l->now[rank] + us * (1 - l->rule->overlap) <= until)
            return (choice){l->now[rank], WEFT_COMPUTE_WEIGHT, chunk};
    }
    return (choice){INFINITY, WEFT_COMPUTE_WEIGHT, 0};
}

/* The input's gradient; where what it leaves has no room, the weights' gradients that wait, or if
 * none do, the whole backward. */
static choice halve(const list *l, int rank, int chunk, double start)
{
    if (has_room(l, rank, true, bytes_of(l->costs->deferred_bytes, stage_of(l, rank, chunk))))
        return (choice){start, WEFT_COMPUTE_INPUT, chunk};
    if (*done_of(l, 2, rank, chunk) < *done_of(l, 1, rank, chunk))
        return (choice){l->now[rank], WEFT_COMPUTE_WEIGHT, chunk};
    return (choice){start, WEFT_COMPUTE_BACKWARD, chunk};
}

static choice choose(const list *l, int rank)
{
    const int v = l->shape->num_chunks;
    choice best = {INFINITY, 0, 0};
    for (int i = 0; i < 2; i++) {
        const int gradient = l->rule->forward_first ? i : 1 - i;
        for (int k = 0; k < v; k++) {
            const int chunk = l->rule->late_first ? v - 1 - k : k;
            const double start = start_of(l, rank, chunk, gradient);
            if (start >= best.start || (!gradient && !may_enter(l, rank, chunk)))
                continue;
            best = gradient ? halve(l, rank, chunk, start)
                            : (choice){start, WEFT_COMPUTE_FORWARD, chunk};
        }
    }
    if (best.start <= l->now[rank])
        return best;
    const choice gap = fill(l, rank, best.start);
    return gap.start < best.start ? gap : best;
}

static void start(list *l, int rank)
{
    const choice c = l->next[rank];
    const int stage = stage_of(l, rank, c.chunk);
    const bool forward = c.kind == WEFT_COMPUTE_FORWARD;
    const uint64_t stash = bytes_of(l->costs->stash_bytes, stage);
    const uint64_t deferred = bytes_of(l->costs->deferred_bytes, stage);
    const int what = forward ? 0 : c.kind == WEFT_COMPUTE_WEIGHT ? 2 : 1;
    const int m = (*done_of(l, what, rank, c.chunk))++;
    weft_order *order = &l->orders[rank];
    order->computes[order->count++] = (weft_compute){m, c.chunk, c.kind, 0};
    l->now[rank] = c.start + weft_order_cost_us(l->costs, c.kind, stage);
    if (what < 2)
        *end_of(l, what, stage, m) = l->now[rank];
    if (forward) {
        reserve(l, rank, false, stashes_from(l, rank, c.chunk));
        l->held[false][rank] += stash;
        l->in_flight[rank]++;
    } else if (c.kind == WEFT_COMPUTE_INPUT) {
        reserve(l, rank, true, deferred);
        l->held[true][rank] += deferred;
    } else {
        l->held[false][rank] -= stash;
        l->held[true][rank] -= what == 2 ? deferred : 0;
        l->in_flight[rank]--;
        if (what == 1)
            (*done_of(l, 2, rank, c.chunk))++;
    }
    l->next[rank] = choose(l, rank);
    const int next = what == 2 ? -1 : stage + (forward ? 1 : -1);
    if (next >= 0 && next < l->shape->num_ranks * l->shape->num_chunks) {
        const int other = weft_rank_of_stage(l->shape->is_v, l->shape->num_ranks, next);
        l->next[other] = choose(l, other);
    }
}

static weft_status begin(list *l, weft_arena *scratch)
{
    const size_t p = (size_t)l->shape->num_ranks, v = (size_t)l->shape->num_chunks;
    const size_t all = p * v * (size_t)l->shape->num_micro_batches;
    void *memory;
    for (int i = 0; i < 2; i++) {
        WEFT_TRY(WEFT_ARRAY(scratch, all, &l->ends[i]));
        for (size_t k = 0; k < all; k++)
            l->ends[i][k] = -1;
    }
    for (int i = 0; i < 3; i++) {
        WEFT_TRY(WEFT_ARRAY(scratch, p * v, &l->done[i]));
    }
    WEFT_TRY(WEFT_ARRAY(scratch, p, &l->now));
    WEFT_TRY(weft_arena_alloc_array(scratch, 4 * p, sizeof(uint64_t), &memory));
    for (int i = 0; i < 2; i++) {
        l->held[i] = (uint64_t *)memory + 2 * i * (int)p;
        l->most[i] = l->held[i] + p;
    }
    for (int rank = 0; rank < (int)p; rank++)
        reserve(l, rank, false, stashes_from(l, rank, 0));
    WEFT_TRY(WEFT_ARRAY(scratch, p, &l->in_flight));
    return WEFT_ARRAY(scratch, p, &l->next);
}

weft_status weft_order_list(const weft_order_shape *shape, const weft_order_costs *costs,
                            const weft_list_rule *rule, weft_arena *scratch, weft_order *orders)
{
    list l = {.shape = shape, .costs = costs, .rule = rule, .orders = orders};
    WEFT_TRY(begin(&l, scratch));
    for (int rank = 0; rank < shape->num_ranks; rank++) {
        orders[rank].count = 0;
        l.next[rank] = choose(&l, rank);
    }
    for (;;) {
        int first = 0;
        for (int rank = 1; rank < shape->num_ranks; rank++)
            if (l.next[rank].start < l.next[first].start)
                first = rank;
        if (l.next[first].start == INFINITY)
            return WEFT_OK;
        start(&l, first);
    }
}
