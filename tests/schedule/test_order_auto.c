/* Orders made from costs, against the fixed kinds and against all orders of small pipelines. */
#include "tests/schedule/programs.h"

#include <stdlib.h>
#include <string.h>

#include "schedule/pipeline/order_auto.h"

enum { MAX_RANKS = 16, MAX_VIRTUAL = 64, NUM_SMALL = 600 };
#ifdef WEFT_SANITIZED
enum { NUM_DRAWS = 12 };
#else
enum { NUM_DRAWS = 60 };
#endif

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
    OK(weft_order_simulate(shape, orders, &d->costs, &makespan, peaks));
    for (int rank = 0; rank < shape->num_ranks; rank++) {
        const uint64_t limit = d->limit_bytes[rank];
        assert_true(limit == 0 || peaks[rank] <= limit);
    }
    weft_arena arena = {0};
    weft_order read[MAX_RANKS];
    char *text = order_text(shape, orders);
    OK(weft_order_parse(text, shape, &arena, read));
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
        OK(weft_order_make((weft_pipeline_kind)kind, shape, &arena, made));
        OK(weft_order_simulate(shape, made, &d->costs, &makespan, peaks));
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

enum { MAX_BUCKETS = 9 };

/* Of a layer a chunk: one on the device, or two experts in host memory, whose gradients land. An
 * order may end one chunk's backwards ahead of another's, whatever their numbers. */
static weft_buckets draw_buckets(uint64_t *random, int num_chunks,
                                 weft_bucket_shape out[MAX_BUCKETS])
{
    const bool at_once = next_random(random, 2);
    int count = 0;
    for (int chunk = num_chunks - 1; chunk >= 0; chunk--) {
        const bool experts = next_random(random, 2);
        const weft_lies lies = experts ? WEFT_LIES_ON_HOST : WEFT_LIES_ON_DEVICE;
        for (int i = 0; i <= experts; i++)
            out[count++] = (weft_bucket_shape){.layer = chunk,
                                               .chunk = chunk,
                                               .ranks = 1,
                                               .owners = 1,
                                               .residency = {lies, lies, lies},
                                               .at_once = experts && at_once,
                                               .elements = 32};
    }
    return (weft_buckets){out, count};
}

/* No fixed kind that fits is faster; the same costs give the same order; programs pass. */
CASE(not_worse_than_kinds)
{
    uint64_t random = 5;
    for (int draw = 0; draw < NUM_DRAWS; draw++) {
        const weft_order_shape shape = draw_shape(&random, 6, 12);
        drawn d;
        weft_bucket_shape of[MAX_RANKS][MAX_BUCKETS];
        weft_buckets buckets[MAX_RANKS];
        draw_costs(&random, &shape, draw % 2, &d);
        for (int rank = 0; rank < shape.num_ranks; rank++)
            buckets[rank] = draw_buckets(&random, shape.num_chunks, of[rank]);
        weft_arena arena = {0};
        weft_order made[MAX_RANKS], again[MAX_RANKS];
        OK(weft_order_make_auto(&shape, &d.costs, &arena, made));
        assert_true(judge(&shape, &d, made) <= best_kind(&shape, &d));
        OK(weft_order_make_auto(&shape, &d.costs, &arena, again));
        assert_true(same_orders(&shape, made, again));
        program_set set =
            make_shaped_set(&(weft_pipeline_shape){.num_stages = shape.num_ranks,
                                                   .num_chunks = shape.num_chunks,
                                                   .num_micro_batches = shape.num_micro_batches,
                                                   .boundary_bytes = 8,
                                                   .orders = made,
                                                   .buckets = buckets,
                                                   .is_v = shape.is_v});
        OK(check_set(&set));
        release_set(&set);
        weft_arena_release(&arena);
    }
}

/* --- all orders ---------------------------------------------------------------------------- */

enum { TREE_RANKS = 3, TREE_STAGES = 6, TREE_BATCHES = 4 };

/* Micro-batches are alike, so some best order takes them in turn, and a rank's order is a word of
 * the letters F, I, W (B, where halves may not fit) of each of its chunks. */
typedef struct node {
    double now[TREE_RANKS];
    double ends[2][TREE_STAGES][TREE_BATCHES]; /* of forwards and gradients; below 0: not yet */
    int count[TREE_STAGES][3];                 /* forwards, gradients, weights so far */
    struct slots {
        int num, free, just_freed; /* free: those just freed too, by the compute before */
    } stash[TREE_RANKS], deferred[TREE_RANKS];
    struct letter {
        int kind, stage;
    } pending[TREE_RANKS]; /* what waits for its input; stage -1: nothing */
} node;

typedef struct tree {
    const weft_order_shape *shape;
    const drawn *d;
    double target; /* is there an order below it? */
    long num_nodes;
} tree;

static int rank_of(const tree *t, int stage)
{
    return weft_rank_of_stage(t->shape->is_v, t->shape->num_ranks, stage);
}

static double cost_of(const tree *t, int kind, int stage)
{
    return weft_order_cost_us(&t->d->costs, kind, stage);
}

/* Whether some rank cannot end below the target. */
static bool is_late(const tree *t, const node *n)
{
    const int m = t->shape->num_micro_batches;
    double ends[TREE_RANKS];
    double behind = cost_of(t, WEFT_COMPUTE_WEIGHT, 0); /* a stage's last gradient */
    memcpy(ends, n->now, sizeof ends);
    for (int s = 0; s < t->shape->num_ranks * t->shape->num_chunks; s++) {
        const int *c = n->count[s], r = rank_of(t, s);
        const double i = cost_of(t, WEFT_COMPUTE_INPUT, s);
        const double sends = (m - c[0]) * cost_of(t, WEFT_COMPUTE_FORWARD, s) + (m - c[1]) * i;
        ends[r] += sends + (m - c[2]) * cost_of(t, WEFT_COMPUTE_WEIGHT, s);
        if (ends[r] >= t->target || (c[1] < m && n->now[r] + sends + behind >= t->target))
            return true;
        behind += i + (s + 1 < t->shape->num_ranks * t->shape->num_chunks && rank_of(t, s + 1) != r
                           ? t->d->costs.message_us
                           : 0);
    }
    return false;
}

/* Below 0: not yet there. */
static double input_at(const tree *t, const node *n, struct letter l)
{
    const bool gradient = l.kind != WEFT_COMPUTE_FORWARD;
    const int needed = l.stage + (gradient ? 1 : -1);
    if (l.kind == WEFT_COMPUTE_WEIGHT || needed < 0 ||
        needed == t->shape->num_ranks * t->shape->num_chunks)
        return 0;
    const double end = n->ends[gradient][needed][n->count[l.stage][gradient]];
    const bool travels = rank_of(t, needed) != rank_of(t, l.stage);
    return end >= 0 && travels ? end + t->d->costs.message_us : end;
}

/* Whether both stages are there, and on one rank. */
static bool is_own(const tree *t, int stage, int other)
{
    return other >= 0 && other < t->shape->num_ranks * t->shape->num_chunks &&
           rank_of(t, stage) == rank_of(t, other);
}

static void take_slot(struct slots *slots, bool early)
{
    const bool is_free = slots->free > (early ? slots->just_freed : 0);
    slots->num += !is_free;
    slots->free -= is_free;
    slots->just_freed = slots->free < slots->just_freed ? slots->free : slots->just_freed;
}

/* The slots once the compute is done. */
static void use_slots(const tree *t, struct letter l, struct slots *stash, struct slots *deferred)
{
    const bool loop = t->shape->num_chunks > 1 && !t->shape->is_v;
    int freed = l.kind == WEFT_COMPUTE_WEIGHT || l.kind == WEFT_COMPUTE_BACKWARD;
    if (l.kind == WEFT_COMPUTE_FORWARD && !is_own(t, l.stage, l.stage - 1))
        take_slot(stash, l.stage > 0 && loop);
    if (l.kind == WEFT_COMPUTE_FORWARD && is_own(t, l.stage, l.stage + 1))
        take_slot(stash, false);
    if (l.kind == WEFT_COMPUTE_INPUT)
        take_slot(deferred, false);
    deferred->free += l.kind == WEFT_COMPUTE_WEIGHT;
    stash->free += freed;
    stash->just_freed = freed;
}

static bool fits(const tree *t, const node *n, struct letter l)
{
    const int r = rank_of(t, l.stage);
    struct slots stash = n->stash[r], deferred = n->deferred[r];
    use_slots(t, l, &stash, &deferred);
    return t->d->limit_bytes[r] == 0 ||
           (uint64_t)stash.num * t->d->stash_bytes[l.stage] +
                   (uint64_t)deferred.num * t->d->deferred_bytes[l.stage] <=
               t->d->limit_bytes[r];
}

static bool may_do(const tree *t, const node *n, struct letter l)
{
    const int *c = n->count[l.stage];
    const bool has_room = fits(t, n, (struct letter){WEFT_COMPUTE_INPUT, l.stage});
    switch (l.kind) {
    case WEFT_COMPUTE_FORWARD:
        return c[0] < t->shape->num_micro_batches && fits(t, n, l);
    case WEFT_COMPUTE_WEIGHT:
        return c[2] < c[1];
    case WEFT_COMPUTE_INPUT:
        return c[1] < c[0] && has_room;
    default:
        return c[1] < c[0] && c[1] == c[2] && !has_room;
    }
}

static void do_it(const tree *t, node *n, int r, double after)
{
    const struct letter l = n->pending[r];
    int *c = n->count[l.stage];
    n->now[r] = (after > n->now[r] ? after : n->now[r]) + cost_of(t, l.kind, l.stage);
    use_slots(t, l, &n->stash[r], &n->deferred[r]);
    if (l.kind == WEFT_COMPUTE_FORWARD)
        n->ends[0][l.stage][c[0]++] = n->now[r];
    if (weft_compute_sends_gradient(l.kind))
        n->ends[1][l.stage][c[1]++] = n->now[r];
    c[2] += l.kind == WEFT_COMPUTE_WEIGHT || l.kind == WEFT_COMPUTE_BACKWARD;
    n->pending[r].stage = -1;
}

/* Does what waits as far as inputs have come. */
static void go_on(const tree *t, node *n)
{
    for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < t->shape->num_ranks; r++) {
            const double after = n->pending[r].stage < 0 ? -1 : input_at(t, n, n->pending[r]);
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
    for (int s = 0; s < t->shape->num_ranks * t->shape->num_chunks; s++) {
        const int r = rank_of(t, s);
        const bool more = n.count[s][2] < t->shape->num_micro_batches;
        is_over = is_over && !more;
        if (more && n.pending[r].stage < 0 && (first < 0 || n.now[r] < n.now[first]))
            first = r;
    }
    if (first < 0)
        return is_over;
    for (int k = 0; k < WEFT_NUM_COMPUTES * t->shape->num_chunks; k++) {
        const struct letter l = {
            k % WEFT_NUM_COMPUTES,
            weft_stage_of(t->shape->is_v, t->shape->num_ranks, first, k / WEFT_NUM_COMPUTES)};
        if (!may_do(t, &n, l))
            continue;
        n.pending[first] = l;
        if (is_beaten(t, &n))
            return true;
        n.pending[first].stage = -1;
    }
    return false;
}

/* No order at all is 1 % faster, with two chunks 3 %; the search finds those that are as fast. */
CASE(near_the_best_of_all)
{
    uint64_t random = 9;
    long num_nodes = 0;
    for (int draw = 0; draw < NUM_SMALL; draw++) {
        const int v = draw % 4 ? 1 : 2; /* of two chunks there are too many orders for more */
        const weft_order_shape shape = {
            .num_ranks = 1 + (int)next_random(&random, v == 1 ? TREE_RANKS : 2),
            .num_chunks = v,
            .num_micro_batches = 1 + (int)next_random(&random, v == 1 ? TREE_BATCHES : 2),
            .is_v = draw % 8 == 0};
        drawn d;
        draw_costs(&random, &shape, draw % 3 == 0, &d);
        for (int s = 0; s < shape.num_ranks * v; s++) /* so that a rank's slots are alike */
            d.deferred_bytes[s] =
                d.deferred_bytes[weft_rank_of_stage(shape.is_v, shape.num_ranks, s)];
        weft_arena arena = {0};
        weft_order made[MAX_RANKS];
        OK(weft_order_make_auto(&shape, &d.costs, &arena, made));
        const double makespan = judge(&shape, &d, made);
        tree t = {&shape, &d, makespan + 1, 0};
        node root = {0};
        for (int r = 0; r < TREE_RANKS; r++)
            root.pending[r].stage = -1;
        for (int s = 0; s < TREE_STAGES; s++)
            for (int k = 0; k < TREE_BATCHES; k++)
                root.ends[0][s][k] = root.ends[1][s][k] = -1;
        assert_true(is_beaten(&t, &root));
        t.target = makespan / (v == 1 ? 1.01 : 1.03);
        if (is_beaten(&t, &root))
            fail_msg("draw %d, p=%d v=%d m=%d: an order takes less than %g us, auto %g", draw,
                     shape.num_ranks, v, shape.num_micro_batches, t.target, makespan);
        num_nodes += t.num_nodes;
        weft_arena_release(&arena);
    }
    print_message("%ld nodes\n", num_nodes);
}

CASE(refuses)
{
    uint64_t random = 1;
    weft_arena arena = {0};
    weft_order made[MAX_RANKS];
    weft_order_shape shape = {.num_ranks = 2, .num_chunks = 2, .num_micro_batches = 3};
    drawn d;
    draw_costs(&random, &shape, false, &d);
    d.limit_bytes[1] = 19;
    FAILS(weft_order_make_auto(&shape, &d.costs, &arena, made), WEFT_MEMORY,
          "no order of compute fits: a micro-batch takes 20 bytes of rank 1, which has 19");
    d.limit_bytes[1] = 20;
    OK(weft_order_make_auto(&shape, &d.costs, &arena, made));
    judge(&shape, &d, made);
    shape.num_micro_batches = 0;
    FAILS(weft_order_make_auto(&shape, &d.costs, &arena, made), WEFT_CONFIG, "no pipeline");
    weft_arena_release(&arena);
}

/* Wherever memory ends, it is said and nothing leaks. */
CASE(out_of_memory)
{
    uint64_t random = 1;
    const weft_order_shape shape = {.num_ranks = 2, .num_chunks = 1, .num_micro_batches = 300};
    drawn d;
    draw_costs(&random, &shape, false, &d);
    weft_status status = WEFT_MEMORY;
    int failures = 0;
    for (int n = 1; status != WEFT_OK; n++, failures++) {
        weft_arena arena = {0};
        weft_order made[MAX_RANKS];
        weft_alloc_fail_after(n);
        status = weft_order_make_auto(&shape, &d.costs, &arena, made);
        weft_alloc_fail_after(0);
        weft_arena_release(&arena);
        assert_true(status == WEFT_OK || status == WEFT_MEMORY);
    }
    assert_true(failures > 10);
}
