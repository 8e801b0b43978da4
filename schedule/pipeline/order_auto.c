#include "schedule/pipeline/order_auto.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "schedule/pipeline/order_slots.h"
#include "schedule/pipeline/order_time.h"

/* --- orders by list scheduling --------------------------------------------------------------- */

/* Time goes on, and a rank that is free takes the first of what could start, by a rule. */

typedef struct list_rule {
    bool forward_first; /* before gradients */
    bool late_first;    /* later virtual stages of a rank before earlier ones */
    double overlap;     /* weights' gradients fill a gap that they overrun by up to this share */
    double ahead;       /* virtual stages in flight on a rank, as a multiple of p v; 0: any */
    bool fewer_late;    /* of later ranks one less each */
} list_rule;

/* What a rank would do next. */
typedef struct choice {
    double start; /* INFINITY: nothing */
    int kind, chunk;
} choice;

typedef struct list {
    const weft_order_shape *shape;
    const weft_order_costs *costs;
    const list_rule *rule;
    weft_order *orders;
    double *ends[2]; /* of forwards and gradients, [virtual stage][micro-batch]; below 0: not yet */
    int *done[3];    /* forwards, gradients, weights: [rank][chunk] */
    double *now;     /* of each rank */
    uint64_t *held[2], *most[2]; /* bytes of each rank: of stashes, of what backwards leave */
    int *in_flight;              /* virtual stages of each rank */
    choice *next;
} list;

static int listed_stage(const list *l, int rank, int chunk)
{
    return weft_stage_of(l->shape->is_v, l->shape->num_ranks, rank, chunk);
}

static int *done_of(const list *l, int what, int rank, int chunk)
{
    return &l->done[what][rank * l->shape->num_chunks + chunk];
}

static double *listed_end(const list *l, int gradient, int stage, int m)
{
    return &l->ends[gradient][(size_t)stage * (size_t)l->shape->num_micro_batches + (size_t)m];
}

static uint64_t listed_bytes(const uint64_t *bytes, int index)
{
    return bytes ? bytes[index] : 0;
}

/* Both have slots of their own: what one ever took the other does not get. */
static bool has_room(const list *l, int rank, int deferred, uint64_t bytes)
{
    const uint64_t limit = listed_bytes(l->costs->limit_bytes, rank);
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
        bytes += listed_bytes(l->costs->stash_bytes, listed_stage(l, rank, c));
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
    const int m = *done_of(l, gradient, rank, chunk), stage = listed_stage(l, rank, chunk);
    const int needed = stage + (gradient ? 1 : -1);
    const int num_stages = l->shape->num_ranks * l->shape->num_chunks;
    if (m == l->shape->num_micro_batches || (gradient && m == *done_of(l, 0, rank, chunk)))
        return INFINITY;
    if (needed < 0 || needed == num_stages)
        return l->now[rank];
    const double end = *listed_end(l, gradient, needed, m);
    const bool travels = weft_rank_of_stage(l->shape->is_v, l->shape->num_ranks, needed) != rank;
    if (end < 0)
        return INFINITY;
    return fmax(l->now[rank], travels ? end + l->costs->message_us : end);
}

/* Weights' gradients that fit the gap until `until`. */
static choice fill(const list *l, int rank, double until)
{
    for (int chunk = 0; chunk < l->shape->num_chunks; chunk++) {
        const double us = l->costs->weight_us[listed_stage(l, rank, chunk)];
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
    if (has_room(l, rank, true,
                 listed_bytes(l->costs->deferred_bytes, listed_stage(l, rank, chunk))))
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
    const int stage = listed_stage(l, rank, c.chunk);
    const bool forward = c.kind == WEFT_COMPUTE_FORWARD;
    const uint64_t stash = listed_bytes(l->costs->stash_bytes, stage);
    const uint64_t deferred = listed_bytes(l->costs->deferred_bytes, stage);
    const int what = forward ? 0 : c.kind == WEFT_COMPUTE_WEIGHT ? 2 : 1;
    const int m = (*done_of(l, what, rank, c.chunk))++;
    weft_order *order = &l->orders[rank];
    order->computes[order->count++] = (weft_compute){m, c.chunk, c.kind, 0};
    l->now[rank] = c.start + weft_order_cost_us(l->costs, c.kind, stage);
    if (what < 2)
        *listed_end(l, what, stage, m) = l->now[rank];
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

static weft_status begin_list(list *l, weft_arena *scratch)
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

/* Appends each rank's order; `orders` have room for three computes of each virtual stage and
 * micro-batch. Keeps costs' limits, each at least the stashes of one micro-batch: a forward starts
 * if the rank's later stages still have room for a micro-batch, and a backward is whole where
 * halves have none. So no rank ever waits for room that cannot come. */
static weft_status order_list(const weft_order_shape *shape, const weft_order_costs *costs,
                              const list_rule *rule, weft_arena *scratch, weft_order *orders)
{
    list l = {.shape = shape, .costs = costs, .rule = rule, .orders = orders};
    WEFT_TRY(begin_list(&l, scratch));
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

enum {
    NUM_KEPT = 4,        /* candidates that are improved */
    MAX_TRIES = 24000,   /* moves of all of them */
    MAX_TIMED = 4000000, /* computes that are timed for these moves */
    REACH = 8,           /* the farthest that a compute moves */
};

/* Orders of all ranks with room for every backward in halves. */
typedef struct candidate {
    weft_order *orders;
    double makespan; /* below 0: none */
    uint64_t bytes;  /* of all ranks */
} candidate;

typedef struct search {
    const weft_order_shape *shape;
    const weft_order_costs *costs;
    weft_order_timer timer;
    weft_order_slots slots;   /* of the rank that was last looked at */
    uint64_t *list_limits;    /* [num_ranks] */
    size_t per_rank;          /* the most computes of a rank */
    candidate kept[NUM_KEPT]; /* the best first */
    candidate now, trial;
    uint32_t *positions[2]; /* of forwards and gradients in their ranks, [virtual stage][m] */
    struct place {
        int rank;
        uint32_t at;
    } * path; /* computes on the critical path, the last first */
    uint32_t path_length;
    uint64_t random;
} search;

static weft_status allocate(const search *s, weft_arena *arena, weft_order **out)
{
    void *memory;
    weft_order *orders;
    WEFT_TRY(WEFT_ARRAY(arena, (size_t)s->shape->num_ranks, &orders));
    for (int rank = 0; rank < s->shape->num_ranks; rank++) {
        WEFT_TRY(weft_arena_alloc_array(arena, s->per_rank, sizeof(weft_compute), &memory));
        orders[rank] = (weft_order){.computes = memory};
    }
    *out = orders;
    return WEFT_OK;
}

static void copy(const search *s, const weft_order *from, weft_order *to)
{
    for (int rank = 0; rank < s->shape->num_ranks; rank++) {
        to[rank].count = from[rank].count;
        memcpy(to[rank].computes, from[rank].computes, from[rank].count * sizeof(weft_compute));
    }
}

/* Of one micro-batch on the rank. */
static uint64_t stash_bytes(const weft_order_shape *shape, const weft_order_costs *costs, int rank)
{
    uint64_t bytes = 0;
    for (int chunk = 0; costs->stash_bytes && chunk < shape->num_chunks; chunk++)
        bytes += costs->stash_bytes[weft_stage_of(shape->is_v, shape->num_ranks, rank, chunk)];
    return bytes;
}

static uint64_t bytes_of(search *s, int rank, const weft_order *order)
{
    weft_order_slots_find(s->shape, rank, order, &s->slots);
    return weft_order_slots_bytes(s->shape, rank, &s->slots, s->costs->boundary_bytes);
}

static bool rank_fits(search *s, int rank, const weft_order *order)
{
    const uint64_t limit = s->costs->limit_bytes ? s->costs->limit_bytes[rank] : 0;
    return limit == 0 || bytes_of(s, rank, order) <= limit;
}

/* Keeps the orders if they fit and are among the best; of two that take as long the one with fewer
 * bytes. */
static void offer(search *s, const weft_order *orders)
{
    uint64_t bytes = 0;
    for (int rank = 0; rank < s->shape->num_ranks; rank++) {
        if (!rank_fits(s, rank, &orders[rank]))
            return;
        bytes += bytes_of(s, rank, &orders[rank]);
    }
    const double makespan = weft_order_timer_run(&s->timer, orders);
    int at = 0;
    while (at < NUM_KEPT && s->kept[at].makespan >= 0 && s->kept[at].makespan < makespan)
        at++;
    if (at == NUM_KEPT)
        return;
    candidate last = s->kept[NUM_KEPT - 1];
    const bool ties = s->kept[at].makespan == makespan;
    if (ties && s->kept[at].bytes <= bytes)
        return;
    if (ties)
        last = s->kept[at];
    else
        memmove(&s->kept[at + 1], &s->kept[at], (size_t)(NUM_KEPT - 1 - at) * sizeof last);
    last.makespan = makespan;
    last.bytes = bytes;
    copy(s, orders, last.orders);
    s->kept[at] = last;
}

static weft_status offer_kinds(search *s)
{
    for (int kind = 0; kind < WEFT_PIPELINE_AUTO; kind++) {
        weft_arena scratch = {0};
        weft_status status = WEFT_OK;
        if (weft_order_has_layout((weft_pipeline_kind)kind, s->shape)) {
            void *made;
            status = weft_arena_alloc_array(&scratch, (size_t)s->shape->num_ranks,
                                            sizeof(weft_order), &made);
            if (status == WEFT_OK)
                status = weft_order_make((weft_pipeline_kind)kind, s->shape, &scratch, made);
            if (status == WEFT_OK)
                offer(s, made);
        }
        weft_arena_release(&scratch);
        WEFT_TRY(status);
    }
    return WEFT_OK;
}

/* Lowers the limits by which lists count to what leaves room for all their slots; false: there is
 * room, or none to lower. */
static bool lower_limits(search *s, const weft_order *orders)
{
    bool lowered = false;
    for (int rank = 0; s->costs->limit_bytes && rank < s->shape->num_ranks; rank++) {
        const uint64_t limit = s->costs->limit_bytes[rank];
        const uint64_t bytes = limit > 0 ? bytes_of(s, rank, &orders[rank]) : 0;
        if (bytes <= limit)
            continue;
        const uint64_t least = stash_bytes(s->shape, s->costs, rank), more = bytes - limit;
        lowered = lowered || s->list_limits[rank] > least;
        s->list_limits[rank] =
            s->list_limits[rank] > least + more ? s->list_limits[rank] - more : least;
    }
    return lowered;
}

static weft_status offer_list(search *s, const list_rule *rule)
{
    weft_order_costs costs = *s->costs;
    if (costs.limit_bytes) {
        memcpy(s->list_limits, costs.limit_bytes,
               (size_t)s->shape->num_ranks * sizeof *s->list_limits);
        costs.limit_bytes = s->list_limits;
    }
    do {
        weft_arena scratch = {0};
        const weft_status status = order_list(s->shape, &costs, rule, &scratch, s->trial.orders);
        weft_arena_release(&scratch);
        WEFT_TRY(status);
    } while (lower_limits(s, s->trial.orders));
    offer(s, s->trial.orders);
    return WEFT_OK;
}

static weft_status offer_lists(search *s)
{
    static const double overlaps[] = {0, 0.5, 1}, aheads[] = {0, 1, 1, 1.5, 2};
    const int num_chunks = s->shape->num_chunks > 1 ? 2 : 1;
    for (int i = 0; i < 2 * 3 * 5 * num_chunks; i++)
        WEFT_TRY(offer_list(s, &(list_rule){.forward_first = i % 2,
                                            .overlap = overlaps[i / 2 % 3],
                                            .ahead = aheads[i / 6 % 5],
                                            .fewer_late = i / 6 % 5 == 2,
                                            .late_first = i / 30}));
    return WEFT_OK;
}

static int below(search *s, int bound)
{
    s->random = s->random * 6364136223846793005u + 1442695040888963407u;
    return (int)((s->random >> 33) % (uint64_t)bound);
}

static size_t at_stage(const search *s, int stage, int m)
{
    return (size_t)stage * (size_t)s->shape->num_micro_batches + (size_t)m;
}

static int stage_of(const search *s, int rank, const weft_compute *c)
{
    return weft_stage_of(s->shape->is_v, s->shape->num_ranks, rank, c->chunk);
}

static double end_of(const search *s, const weft_order *orders, int rank, uint32_t at)
{
    const weft_compute *c = &orders[rank].computes[at];
    return s->timer.starts[rank][at] + weft_order_cost_us(s->costs, c->kind, stage_of(s, rank, c));
}

/* Fills the path, from the starts of the timer's last run: each compute begins when the one before
 * it ends. */
static void find_path(search *s, const weft_order *orders)
{
    const int p = s->shape->num_ranks;
    struct place here = {0, 0};
    double last = -1;
    for (int rank = 0; rank < p; rank++) {
        for (uint32_t i = 0; i < orders[rank].count; i++) {
            const weft_compute *c = &orders[rank].computes[i];
            if (c->kind != WEFT_COMPUTE_WEIGHT)
                s->positions[c->kind != WEFT_COMPUTE_FORWARD]
                            [at_stage(s, stage_of(s, rank, c), c->micro_batch)] = i;
        }
        if (s->timer.now[rank] > last) {
            last = s->timer.now[rank];
            here = (struct place){rank, orders[rank].count - 1};
        }
    }
    for (s->path_length = 0;;) {
        s->path[s->path_length++] = here;
        const double start = s->timer.starts[here.rank][here.at];
        if (start <= 0)
            return;
        if (here.at > 0 && end_of(s, orders, here.rank, here.at - 1) >= start) {
            here.at--;
            continue;
        }
        const weft_compute *c = &orders[here.rank].computes[here.at];
        const bool gradient = c->kind != WEFT_COMPUTE_FORWARD;
        const int needed = stage_of(s, here.rank, c) + (gradient ? 1 : -1);
        here.rank = weft_rank_of_stage(s->shape->is_v, p, needed);
        here.at = s->positions[gradient][at_stage(s, needed, c->micro_batch)];
    }
}

/* Of one chunk the order of micro-batches stays, and a micro-batch's own computes stay in turn. */
static bool may_pass(const weft_compute *a, const weft_compute *b)
{
    const bool same_kind = (a->kind == WEFT_COMPUTE_FORWARD) == (b->kind == WEFT_COMPUTE_FORWARD) &&
                           (a->kind == b->kind || a->kind == WEFT_COMPUTE_BACKWARD ||
                            b->kind == WEFT_COMPUTE_BACKWARD);
    return a->chunk != b->chunk || (!same_kind && a->micro_batch != b->micro_batch);
}

/* Moves the compute by up to `steps`, as far as it may go; returns where it is then. */
static uint32_t move(const weft_order *order, uint32_t at, int steps)
{
    weft_compute *c = order->computes;
    for (; steps != 0; steps += steps < 0 ? 1 : -1) {
        const uint32_t to = steps < 0 ? at - 1 : at + 1; /* wraps below 0 */
        if (to >= order->count || !may_pass(&c[at], &c[to]))
            break;
        const weft_compute moved = c[at];
        c[at] = c[to];
        c[to] = moved;
        at = to;
    }
    return at;
}

/* Cuts a whole backward in halves, or joins halves that stand side by side; the second call undoes
 * the first. False: it is neither. */
static bool cut_or_join(weft_order *order, uint32_t at)
{
    weft_compute *c = &order->computes[at], *next = c + 1;
    if (c->kind == WEFT_COMPUTE_BACKWARD) {
        memmove(next + 1, next, (order->count++ - at - 1) * sizeof *c);
        *next = *c;
        next->kind = WEFT_COMPUTE_WEIGHT;
        c->kind = WEFT_COMPUTE_INPUT;
        return true;
    }
    if (c->kind != WEFT_COMPUTE_INPUT || at + 1 == order->count ||
        next->kind != WEFT_COMPUTE_WEIGHT || next->chunk != c->chunk ||
        next->micro_batch != c->micro_batch)
        return false;
    memmove(next, next + 1, (--order->count - at - 1) * sizeof *c);
    c->kind = WEFT_COMPUTE_BACKWARD;
    return true;
}

/* Improves kept[which] and keeps what is better than kept[0] there. Worse orders are gone through
 * too, by less and less. */
static void improve(search *s, int which, int num_tries)
{
    const weft_order *orders = s->now.orders;
    copy(s, s->kept[which].orders, s->now.orders);
    for (int rank = 0; rank < s->shape->num_ranks; rank++)
        for (uint32_t i = 0; i < orders[rank].count; i++)
            orders[rank].computes[i].is_paired = 0;
    double makespan = weft_order_timer_run(&s->timer, orders);
    find_path(s, orders);
    for (int i = 0; i < num_tries; i++) {
        struct place from = s->path[below(s, (int)s->path_length)];
        if (below(s, 4) == 0) { /* so that the path finds room of time or memory */
            from.rank = below(s, s->shape->num_ranks);
            from.at = (uint32_t)below(s, (int)orders[from.rank].count);
        }
        const int distance = 1 + below(s, REACH);
        const bool cuts = below(s, 16) == 0;
        weft_order *order = &s->now.orders[from.rank];
        const uint32_t to =
            cuts ? from.at : move(order, from.at, below(s, 2) ? distance : -distance);
        if (cuts ? !cut_or_join(order, to) : to == from.at)
            continue;
        const double allowed = makespan * (1 + 0.02 * (num_tries - i) / num_tries);
        const double tried =
            rank_fits(s, from.rank, order) ? weft_order_timer_run(&s->timer, orders) : -1;
        if (tried < 0 || tried > allowed) {
            if (cuts)
                cut_or_join(order, to);
            else
                move(order, to, (int)from.at - (int)to);
            continue;
        }
        makespan = tried;
        find_path(s, orders);
        if (makespan < s->kept[0].makespan) {
            s->kept[0].makespan = makespan;
            copy(s, orders, s->kept[0].orders);
        }
    }
}

/* The same order with all whole backwards in halves, where they fit. */
static void split(search *s, const candidate *from)
{
    for (int rank = 0; rank < s->shape->num_ranks; rank++) {
        weft_order *to = &s->trial.orders[rank];
        to->count = 0;
        for (uint32_t i = 0; i < from->orders[rank].count; i++) {
            weft_compute c = from->orders[rank].computes[i];
            const bool whole = c.kind == WEFT_COMPUTE_BACKWARD;
            c.kind = whole ? WEFT_COMPUTE_INPUT : c.kind;
            to->computes[to->count++] = c;
            c.kind = WEFT_COMPUTE_WEIGHT;
            if (whole)
                to->computes[to->count++] = c;
        }
    }
    offer(s, s->trial.orders);
}

static weft_status begin(search *s, weft_arena *scratch)
{
    const size_t all = (size_t)s->shape->num_ranks * s->per_rank;
    for (int i = 0; i < NUM_KEPT; i++) {
        WEFT_TRY(allocate(s, scratch, &s->kept[i].orders));
        s->kept[i].makespan = -1;
    }
    WEFT_TRY(allocate(s, scratch, &s->now.orders));
    WEFT_TRY(allocate(s, scratch, &s->trial.orders));
    for (int i = 0; i < 2; i++) {
        WEFT_TRY(WEFT_ARRAY(scratch, all, &s->positions[i]));
    }
    WEFT_TRY(WEFT_ARRAY(scratch, all, &s->path));
    WEFT_TRY(WEFT_ARRAY(scratch, (size_t)s->shape->num_ranks, &s->list_limits));
    WEFT_TRY(weft_order_slots_start(s->shape, s->costs->stash_bytes, s->costs->deferred_bytes,
                                    scratch, &s->slots));
    return weft_order_timer_start(s->shape, s->costs, scratch, &s->timer);
}

/* No order is shorter: a rank begins when the first forward has come down to it. */
static double least_makespan(const search *s)
{
    double least = 0, first_us = 0;
    for (int rank = 0; rank < s->shape->num_ranks; rank++) {
        double work_us = 0;
        for (int chunk = 0; chunk < s->shape->num_chunks; chunk++) {
            const int stage = weft_stage_of(s->shape->is_v, s->shape->num_ranks, rank, chunk);
            work_us += weft_order_cost_us(s->costs, WEFT_COMPUTE_FORWARD, stage) +
                       weft_order_cost_us(s->costs, WEFT_COMPUTE_BACKWARD, stage);
        }
        work_us = first_us + s->shape->num_micro_batches * work_us;
        least = work_us > least ? work_us : least;
        first_us += s->costs->forward_us[rank] + s->costs->message_us;
    }
    return least;
}

static weft_status find_best(search *s, weft_arena *scratch)
{
    WEFT_TRY(begin(s, scratch));
    WEFT_TRY(offer_kinds(s));
    if (s->kept[0].makespan >= 0)
        split(s, &s->kept[0]);
    WEFT_TRY(offer_lists(s));
    const size_t all = (size_t)s->shape->num_ranks * s->per_rank;
    const size_t tries = MAX_TIMED / all < MAX_TRIES ? MAX_TIMED / all : MAX_TRIES;
    const double least = least_makespan(s);
    for (int i = NUM_KEPT - 1; i >= 0; i--)
        if (s->kept[i].makespan >= 0 && s->kept[0].makespan > least)
            improve(s, i, (int)(tries / NUM_KEPT));
    return WEFT_OK;
}

/* Each rank has room for a micro-batch's stashes. */
static weft_status check_limits(const weft_order_shape *shape, const weft_order_costs *costs)
{
    for (int rank = 0; costs->limit_bytes && rank < shape->num_ranks; rank++) {
        const uint64_t bytes = stash_bytes(shape, costs, rank);
        if (costs->limit_bytes[rank] > 0 && bytes > costs->limit_bytes[rank])
            return WEFT_ERROR(WEFT_MEMORY,
                              "no order of compute fits: a micro-batch takes %" PRIu64
                              " bytes of rank %d, which has %" PRIu64,
                              bytes, rank, costs->limit_bytes[rank]);
    }
    return WEFT_OK;
}

weft_status weft_order_make_auto(const weft_order_shape *shape, const weft_order_costs *costs,
                                 weft_arena *arena, weft_order *orders)
{
    WEFT_TRY(weft_order_check_shape(shape));
    WEFT_TRY(check_limits(shape, costs));
    search s = {.shape = shape,
                .costs = costs,
                .per_rank = 3 * (size_t)shape->num_chunks * (size_t)shape->num_micro_batches,
                .random = 1};
    weft_order *best;
    WEFT_TRY(allocate(&s, arena, &best));
    weft_arena scratch = {0};
    weft_status status = find_best(&s, &scratch);
    if (status == WEFT_OK && s.kept[0].makespan < 0)
        status = WEFT_ERROR(WEFT_MEMORY, "no order of compute fits: the slots of no order that was "
                                         "tried have room");
    if (status == WEFT_OK)
        copy(&s, s.kept[0].orders, best);
    weft_arena_release(&scratch);
    WEFT_TRY(status);
    memcpy(orders, best, (size_t)shape->num_ranks * sizeof(weft_order));
    return WEFT_OK;
}
