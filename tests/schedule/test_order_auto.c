/* Orders made from costs, against the fixed kinds and against all orders of small pipelines. */
#include "tests/schedule/programs.h"

#include <stdlib.h>
#include <string.h>

#include "schedule/options.h"
#include "schedule/pipeline/order_auto.h"

enum { MAX_RANKS = 16, MAX_VIRTUAL = 64, NUM_DRAWS = 60, NUM_SMALL = 600 };

/* Costs with their memory. */
typedef struct drawn {
    double forward_us[MAX_VIRTUAL], input_us[MAX_VIRTUAL], weight_us[MAX_VIRTUAL];
    uint64_t stash_bytes[MAX_VIRTUAL], deferred_bytes[MAX_VIRTUAL], limit_bytes[MAX_RANKS];
    weft_order_costs costs;
} drawn;

/* Whole microseconds, so that sums are exact. limited: of half of the ranks, from one micro-batch's
 * stashes on. */
static void draw_costs(uint64_t *random, const weft_order_shape *shape, bool limited, drawn *d)
{
    const int p = shape->num_ranks, v = shape->num_chunks;
    *d = (drawn){.costs = {.forward_us = d->forward_us,
                           .input_us = d->input_us,
                           .weight_us = d->weight_us,
                           .message_us = next_random(random, 4),
                           .stash_bytes = d->stash_bytes,
                           .deferred_bytes = d->deferred_bytes,
                           .limit_bytes = d->limit_bytes}};
    for (int s = 0; s < p * v; s++) {
        d->forward_us[s] = 4 + next_random(random, 9);
        d->input_us[s] = 4 + next_random(random, 9);
        d->weight_us[s] = 4 + next_random(random, 9);
        d->stash_bytes[s] = 10;
        d->deferred_bytes[s] = next_random(random, 5);
    }
    for (int rank = 0; limited && rank < p; rank++)
        d->limit_bytes[rank] =
            next_random(random, 2) ? 10 * (uint64_t)v + next_random(random, 20 * (uint32_t)p) : 0;
}

/* The makespan, once the order is known to be whole and to fit. */
static double judge(const weft_order_shape *shape, const drawn *d, const weft_order *orders)
{
    double makespan = 0;
    uint64_t peaks[MAX_RANKS];
    ASSERT_OK(weft_order_simulate(shape, orders, &d->costs, &makespan, peaks));
    for (int rank = 0; rank < shape->num_ranks; rank++) {
        const uint64_t limit = d->limit_bytes[rank];
        assert_true(limit == 0 || peaks[rank] <= limit);
    }
    weft_arena arena = {0};
    weft_order read[MAX_RANKS];
    char *text = order_text(shape, orders);
    ASSERT_OK(weft_order_parse(text, shape, &arena, read));
    weft_arena_release(&arena);
    free(text);
    return makespan;
}

static double best_kind(const weft_order_shape *shape, const drawn *d)
{
    double best = 1e30;
    for (int kind = 0; kind < WEFT_PIPELINE_AUTO; kind++) {
        if (!weft_order_has_layout((weft_pipeline_kind)kind, shape))
            continue;
        weft_arena arena = {0};
        weft_order made[MAX_RANKS];
        uint64_t peaks[MAX_RANKS];
        double makespan = 0;
        bool fits = true;
        ASSERT_OK(weft_order_make((weft_pipeline_kind)kind, shape, &arena, made));
        ASSERT_OK(weft_order_simulate(shape, made, &d->costs, &makespan, peaks));
        for (int rank = 0; rank < shape->num_ranks; rank++)
            fits = fits && (d->limit_bytes[rank] == 0 || peaks[rank] <= d->limit_bytes[rank]);
        if (fits && makespan < best)
            best = makespan;
        weft_arena_release(&arena);
    }
    return best;
}

static weft_order_shape draw_shape(uint64_t *random, int max_ranks, int max_batches)
{
    weft_order_shape shape = {.num_ranks = 1 + (int)next_random(random, (uint32_t)max_ranks),
                              .num_chunks = 1 + (int)next_random(random, 3),
                              .num_micro_batches =
                                  1 + (int)next_random(random, (uint32_t)max_batches)};
    shape.is_v = shape.num_chunks == 2 && next_random(random, 2);
    return shape;
}

/* No fixed kind that fits is faster; the same costs give the same order; programs pass. */
static void not_worse_than_kinds(void **state)
{
    (void)state;
    uint64_t random = 5;
    for (int draw = 0; draw < NUM_DRAWS; draw++) {
        const weft_order_shape shape = draw_shape(&random, 6, 12);
        drawn d;
        draw_costs(&random, &shape, draw % 2, &d);
        weft_arena arena = {0};
        weft_order made[MAX_RANKS], again[MAX_RANKS];
        ASSERT_OK(weft_order_make_auto(&shape, &d.costs, &arena, made));
        assert_true(judge(&shape, &d, made) <= best_kind(&shape, &d));
        ASSERT_OK(weft_order_make_auto(&shape, &d.costs, &arena, again));
        assert_true(same_orders(&shape, made, again));
        program_set set =
            make_shaped_set(&(weft_pipeline_shape){.num_stages = shape.num_ranks,
                                                   .num_chunks = shape.num_chunks,
                                                   .num_micro_batches = shape.num_micro_batches,
                                                   .boundary_bytes = 8,
                                                   .orders = made,
                                                   .is_v = shape.is_v});
        ASSERT_OK(check_set(&set));
        release_set(&set);
        weft_arena_release(&arena);
    }
}

/* --- all orders ---------------------------------------------------------------------------- */

/* One chunk a rank. Micro-batches are alike, so some best order takes them in turn, and a rank's
 * order is a word of the letters F, I, W (B, where halves may not fit). */
typedef struct node {
    double now[3], forward[3][4], gradient[3][4]; /* ends; below 0: not yet */
    int count[3][3];                              /* forwards, gradients, weights of each rank */
    int held[3][2];                               /* stashes, deferred */
    int pending[3];                               /* what waits for its input; -1: nothing */
} node;

typedef struct tree {
    const drawn *d;
    int p, m;
    double target; /* is there an order below it? */
    long num_nodes;
} tree;

static double cost_of(const tree *t, int kind, int rank)
{
    return weft_order_cost_us(&t->d->costs, kind, rank);
}

/* Whether some rank cannot end below the target. */
static bool is_late(const tree *t, const node *n)
{
    double above = cost_of(t, WEFT_COMPUTE_WEIGHT, 0); /* behind a rank's last gradient */
    for (int r = 0; r < t->p; r++) {
        const int *c = n->count[r];
        const double f = cost_of(t, WEFT_COMPUTE_FORWARD, r);
        const double i = cost_of(t, WEFT_COMPUTE_INPUT, r);
        const double w = cost_of(t, WEFT_COMPUTE_WEIGHT, r);
        const double sends = n->now[r] + (t->m - c[0]) * f + (t->m - c[1]) * i;
        if (sends + (t->m - c[2]) * w >= t->target || (c[1] < t->m && sends + above >= t->target))
            return true;
        above += i + t->d->costs.message_us;
    }
    return false;
}

static double input_at(const tree *t, const node *n, int r, int kind)
{
    const bool forward = kind == WEFT_COMPUTE_FORWARD;
    const int needed = r + (forward ? -1 : 1);
    if (kind == WEFT_COMPUTE_WEIGHT || needed < 0 || needed == t->p)
        return 0;
    const double end =
        forward ? n->forward[needed][n->count[r][0]] : n->gradient[needed][n->count[r][1]];
    return end < 0 ? -1 : end + t->d->costs.message_us;
}

static bool may_do(const tree *t, const node *n, int r, int kind)
{
    const int *c = n->count[r];
    const uint64_t limit = t->d->limit_bytes[r];
    const uint64_t held = (uint64_t)n->held[r][0] * t->d->stash_bytes[r] +
                          (uint64_t)n->held[r][1] * t->d->deferred_bytes[r];
    if (kind == WEFT_COMPUTE_FORWARD)
        return c[0] < t->m && (limit == 0 || held + t->d->stash_bytes[r] <= limit);
    if (kind == WEFT_COMPUTE_WEIGHT)
        return c[2] < c[1];
    if (kind == WEFT_COMPUTE_INPUT)
        return c[1] < c[0] && (limit == 0 || held + t->d->deferred_bytes[r] <= limit);
    return c[1] < c[0] && c[1] == c[2] && limit > 0 && held + t->d->deferred_bytes[r] > limit;
}

static void do_it(const tree *t, node *n, int r, double after)
{
    const int kind = n->pending[r];
    int *c = n->count[r];
    n->now[r] = (after > n->now[r] ? after : n->now[r]) + cost_of(t, kind, r);
    if (kind == WEFT_COMPUTE_FORWARD)
        n->forward[r][c[0]] = n->now[r];
    else if (kind != WEFT_COMPUTE_WEIGHT)
        n->gradient[r][c[1]] = n->now[r];
    const bool ends = kind == WEFT_COMPUTE_WEIGHT || kind == WEFT_COMPUTE_BACKWARD;
    c[0] += kind == WEFT_COMPUTE_FORWARD;
    c[1] += weft_compute_sends_gradient(kind);
    c[2] += ends;
    n->held[r][0] += (kind == WEFT_COMPUTE_FORWARD) - ends;
    n->held[r][1] += (kind == WEFT_COMPUTE_INPUT) - (kind == WEFT_COMPUTE_WEIGHT);
    n->pending[r] = -1;
}

/* Does what waits as far as inputs have come. */
static void go_on(const tree *t, node *n)
{
    for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < t->p; r++) {
            const double after = n->pending[r] < 0 ? -1 : input_at(t, n, r, n->pending[r]);
            if (after < 0)
                continue;
            do_it(t, n, r, after);
            moved = true;
        }
    }
}

/* Whether an order ends before the target: the rank that is first branches on what it does next. */
static bool is_beaten(tree *t, const node *before)
{
    node n = *before;
    go_on(t, &n);
    t->num_nodes++;
    if (is_late(t, &n))
        return false;
    int first = -1;
    bool is_over = true;
    for (int r = 0; r < t->p; r++) {
        const bool more = n.count[r][2] < t->m;
        is_over = is_over && !more;
        if (more && n.pending[r] < 0 && (first < 0 || n.now[r] < n.now[first]))
            first = r;
    }
    if (first < 0)
        return is_over;
    for (int kind = 0; kind < WEFT_NUM_COMPUTES; kind++) {
        if (!may_do(t, &n, first, kind))
            continue;
        n.pending[first] = kind;
        if (is_beaten(t, &n))
            return true;
        n.pending[first] = -1;
    }
    return false;
}

/* No order at all is 1 % faster; the search finds those that are as fast. */
static void near_the_best_of_all(void **state)
{
    (void)state;
    uint64_t random = 9;
    long num_nodes = 0;
    for (int draw = 0; draw < NUM_SMALL; draw++) {
        const weft_order_shape shape = {.num_ranks = 1 + (int)next_random(&random, 3),
                                        .num_chunks = 1,
                                        .num_micro_batches = 1 + (int)next_random(&random, 4)};
        drawn d;
        draw_costs(&random, &shape, draw % 2, &d);
        weft_arena arena = {0};
        weft_order made[MAX_RANKS];
        ASSERT_OK(weft_order_make_auto(&shape, &d.costs, &arena, made));
        const double makespan = judge(&shape, &d, made);
        tree t = {&d, shape.num_ranks, shape.num_micro_batches, makespan + 1, 0};
        node root = {.pending = {-1, -1, -1}};
        for (int r = 0; r < 3; r++)
            for (int k = 0; k < 4; k++)
                root.forward[r][k] = root.gradient[r][k] = -1;
        assert_true(is_beaten(&t, &root));
        t.target = makespan / 1.01;
        if (is_beaten(&t, &root))
            fail_msg("draw %d, p=%d m=%d: an order takes less than %g us, auto %g", draw, t.p, t.m,
                     t.target, makespan);
        num_nodes += t.num_nodes;
        weft_arena_release(&arena);
    }
    print_message("%ld nodes\n", num_nodes);
}

static void refuses(void **state)
{
    (void)state;
    uint64_t random = 1;
    weft_arena arena = {0};
    weft_order made[MAX_RANKS];
    weft_order_shape shape = {.num_ranks = 2, .num_chunks = 2, .num_micro_batches = 3};
    drawn d;
    draw_costs(&random, &shape, false, &d);
    d.limit_bytes[1] = 19;
    ASSERT_ERROR(weft_order_make_auto(&shape, &d.costs, &arena, made), WEFT_CONFIG,
                 "no order of compute fits: a micro-batch takes 20 bytes of rank 1, which has 19");
    d.limit_bytes[1] = 20;
    ASSERT_OK(weft_order_make_auto(&shape, &d.costs, &arena, made));
    judge(&shape, &d, made);
    shape.num_micro_batches = 0;
    ASSERT_ERROR(weft_order_make_auto(&shape, &d.costs, &arena, made), WEFT_CONFIG, "no pipeline");
    weft_arena_release(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(not_worse_than_kinds),
        cmocka_unit_test(near_the_best_of_all),
        cmocka_unit_test(refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
