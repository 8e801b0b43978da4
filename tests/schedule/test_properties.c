/* What holds of every schedule, over draws of p <= 8, v <= 4, m <= 32: with equal costs against
 * formulas, with random layouts and costs against bounds and against the programs' own waits.
 * WEFT_PROPERTY_DRAWS=10000: so many draws of each. */
#include "tests/schedule/programs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "parallel/mesh/mesh.h"
#include "schedule/price/price.h"

enum { MAX_RANKS = 8, MAX_CHUNKS = 4, MAX_LAYERS = 48, MAX_BUCKETS = 64 };

/* A kind that is made of a shape alone, and as many virtual stages as it takes. */
static weft_pipeline_kind draw_kind(uint64_t *random, int *num_chunks)
{
    const weft_pipeline_kind kind = (weft_pipeline_kind)next_random(random, WEFT_PIPELINE_AUTO);
    *num_chunks = 1 + (int)next_random(random, MAX_CHUNKS);
    if (weft_pipeline_kind_is_v((int)kind))
        *num_chunks = 2;
    else if (kind == WEFT_PIPELINE_INTERLEAVED && *num_chunks == 1)
        *num_chunks = MAX_CHUNKS;
    return kind;
}

/* Half of them of a multiple of p micro-batches. */
static weft_pipeline_shape draw_shape(uint64_t *random, bool host_waits[MAX_STAGES])
{
    int num_chunks;
    const weft_pipeline_kind kind = draw_kind(random, &num_chunks);
    weft_pipeline_shape shape = {.kind = kind,
                                 .is_v = weft_pipeline_kind_is_v((int)kind),
                                 .num_stages = 1 + (int)next_random(random, MAX_RANKS),
                                 .num_chunks = num_chunks,
                                 .num_micro_batches = 1 + (int)next_random(random, 32),
                                 .forward_only = next_random(random, 5) == 0,
                                 .boundary_bytes = 64};
    if (next_random(random, 2) == 0)
        shape.num_micro_batches =
            shape.num_stages * (1 + shape.num_micro_batches % (32 / shape.num_stages));
    else if (next_random(random, 2))
        shape.group_size = shape.num_stages + (int)next_random(random, 9);
    for (int s = 0; s < MAX_STAGES; s++)
        host_waits[s] = next_random(random, 3) == 0;
    if (next_random(random, 3) == 0)
        shape.host_waits = host_waits;
    return shape;
}

static void must_hold(bool holds, const weft_pipeline_shape *shape, const char *what, double number)
{
    if (!holds)
        fail_msg("%s p=%d v=%d m=%d N=%d forward_only=%d: %s %g",
                 weft_pipeline_kind_text((int)shape->kind), shape->num_stages, shape->num_chunks,
                 shape->num_micro_batches, shape->group_size, shape->forward_only, what, number);
}

static void must_pass(const program_set *set)
{
    const weft_status status = check_set(set);
    must_hold(status == WEFT_OK, &set->shape, weft_error_get()->text, status);
}

/* --- equal costs --------------------------------------------------------------------------- */

/* Cost of a forward and of a backward; messages are free. */
static double free_messages(const void *context, int stage, const weft_task *task)
{
    const double *us = context;
    (void)stage;
    return task->kind == WEFT_TASK_FORWARD ? us[0] : task->kind == WEFT_TASK_BACKWARD ? us[1] : 0;
}

static bool ends_backward(const weft_task *task)
{
    return task->kind == WEFT_TASK_BACKWARD && task->flow != WEFT_FLOW_INPUT;
}

static int most_held(const weft_program *program)
{
    int held = 0, most = 0;
    for (uint32_t i = 0; i < program->num_tasks; i++) {
        held += program->tasks[i].kind == WEFT_TASK_FORWARD;
        held -= ends_backward(&program->tasks[i]);
        most = held > most ? held : most;
    }
    return most;
}

/* Whole backwards, and groups of p micro-batches. */
static bool has_formula(const weft_pipeline_shape *shape)
{
    const bool is_whole = shape->num_chunks == 1 ||
                          (shape->num_micro_batches % shape->num_stages == 0 && !shape->group_size);
    return is_whole && shape->kind <= WEFT_PIPELINE_INTERLEAVED;
}

/* The bubble is (p - 1)(f + b) of one virtual stage, and a rank holds what the formulas say:
 * Narayanan et al. 2021, sections 2.2.1 and 2.2.2. */
static void judge(const weft_pipeline_shape *shape, double f, double b)
{
    const int p = shape->num_stages, v = shape->num_chunks, m = shape->num_micro_batches;
    program_set set = make_shaped_set(shape);
    must_pass(&set);
    const bool gpipe = shape->kind == WEFT_PIPELINE_GPIPE;
    if (!shape->forward_only && has_formula(shape) && !shape->host_waits) {
        const double us[] = {f, b};
        const weft_pricing pricing = {.cost = free_messages, .context = us};
        weft_price price;
        OK(weft_program_price(set.programs, p, &pricing, &set.arena, &price));
        const double idle = price.makespan_us - m * v * (f + b);
        must_hold(idle == (p - 1) * (f + b), shape, "idle", idle);
        for (int r = 0; r < p; r++) {
            const int ahead = v == 1 ? p - r : 2 * (p - r - 1) + (v - 1) * p + 1;
            const int wanted = gpipe || ahead > m * v ? m * v : ahead;
            must_hold(most_held(&set.programs[r]) == wanted, shape, "held, wanted", wanted);
        }
    }
    release_set(&set);
}

CASE(equal_costs)
{
    uint64_t random = 31;
    for (int draw = 0; draw < property_draws(); draw++) {
        bool host_waits[MAX_STAGES];
        const weft_pipeline_shape shape = draw_shape(&random, host_waits);
        judge(&shape, 1 + next_random(&random, 9), 1 + next_random(&random, 9));
    }
}

CASE(every_small_shape)
{
    for (int p = 1; p <= 4; p++)
        for (int v = 2; v <= 3; v++)
            for (int m = 1; m <= 9; m++)
                for (int forward_only = 0; forward_only < 2; forward_only++)
                    judge(&(weft_pipeline_shape){.num_stages = p,
                                                 .num_chunks = v,
                                                 .num_micro_batches = m,
                                                 .forward_only = forward_only,
                                                 .boundary_bytes = 8},
                          3, 5);
}

/* --- hosts that wait ----------------------------------------------------------------------- */

/* Every rank does one task at a time, in its program's order, and a message moves when both of its
 * ends have come to it. False: not all tasks were done. */
static bool ends_one_by_one(const program_set *set)
{
    const int p = set->shape.num_stages;
    uint32_t heads[MAX_STAGES] = {0};
    for (bool moved = true; moved;) {
        moved = false;
        for (int rank = 0; rank < p; rank++)
            for (; heads[rank] < set->programs[rank].num_tasks; heads[rank]++, moved = true) {
                const weft_task *task = &set->programs[rank].tasks[heads[rank]];
                if (task->kind == WEFT_TASK_RECEIVE)
                    break; /* its sender moves it */
                if (task->kind != WEFT_TASK_SEND)
                    continue;
                const weft_program *peer = &set->programs[task->peer];
                const uint32_t other = heads[task->peer];
                if (other == peer->num_tasks || peer->tasks[other].kind != WEFT_TASK_RECEIVE ||
                    peer->tasks[other].peer != rank ||
                    peer->tasks[other].micro_batch != task->micro_batch)
                    break;
                heads[task->peer]++;
            }
    }
    for (int rank = 0; rank < p; rank++)
        if (heads[rank] < set->programs[rank].num_tasks)
            return false;
    return true;
}

static uint32_t next_of_lane(const weft_program *program, int lane, uint32_t from)
{
    while (from < program->num_tasks && program->tasks[from].lane != lane)
        from++;
    return from;
}

/* Each lane does the same in the same order, in the same slots. */
static bool same_lanes(const weft_program *a, const weft_program *b)
{
    if (a->num_tasks != b->num_tasks || a->num_slots != b->num_slots ||
        a->max_in_flight != b->max_in_flight ||
        memcmp(a->slots, b->slots, (size_t)a->num_slots * sizeof *a->slots) != 0)
        return false;
    for (int lane = 0; lane < WEFT_NUM_LANES; lane++) {
        uint32_t i = next_of_lane(a, lane, 0), k = next_of_lane(b, lane, 0);
        for (; i < a->num_tasks && k < b->num_tasks;
             i = next_of_lane(a, lane, i + 1), k = next_of_lane(b, lane, k + 1)) {
            weft_task one = a->tasks[i], other = b->tasks[k];
            one.flags = other.flags = 0;
            one.first_wait = other.first_wait = 0; /* there are as many waits */
            if (memcmp(&one, &other, sizeof one) != 0)
                return false;
        }
        if (i < a->num_tasks || k < b->num_tasks)
            return false;
    }
    return true;
}

static double price_of(program_set *set, const double us[2])
{
    const weft_pricing pricing = {.cost = free_messages, .context = us};
    weft_price price;
    OK(weft_program_price(set->programs, set->shape.num_stages, &pricing, &set->arena, &price));
    return price.makespan_us;
}

/* Hosts that wait inside some forwards move messages to other places in the programs and change
 * nothing else; ranks may do one task at a time. */
CASE(hosts_move_messages_alone)
{
    uint64_t random = 7;
    int num_waiting = 0;
    for (int draw = 0; draw < property_draws(); draw++) {
        bool host_waits[MAX_STAGES];
        weft_pipeline_shape shape = draw_shape(&random, host_waits);
        const int num_stages = shape.num_stages * shape.num_chunks;
        bool any = false;
        for (int s = 0; s < num_stages; s++)
            any |= host_waits[s];
        shape.host_waits = NULL;
        program_set without = make_shaped_set(&shape);
        shape.host_waits = host_waits;
        program_set set = make_shaped_set(&shape);
        must_pass(&set);
        must_hold(!any || ends_one_by_one(&set), &shape, "stands, draw", draw);
        for (int rank = 0; rank < shape.num_stages; rank++)
            must_hold(same_lanes(&set.programs[rank], &without.programs[rank]), &shape,
                      "other lanes on rank", rank);
        num_waiting += any;
        release_set(&set);
        release_set(&without);
    }
    assert_in_range(num_waiting, property_draws() / 2, property_draws());
}

/* With free messages the bubble is that of the formula although hosts wait inside all forwards,
 * where backwards take at least as long as forwards; else it is a forward's time longer at most. */
CASE(hosts_wait_beside_messages)
{
    uint64_t random = 12;
    int num_judged = 0;
    for (int draw = 0; draw < property_draws(); draw++) {
        bool host_waits[MAX_STAGES];
        weft_pipeline_shape shape = draw_shape(&random, host_waits);
        for (int s = 0; s < MAX_STAGES; s++)
            host_waits[s] = true;
        shape.host_waits = host_waits;
        const double f = 1 + next_random(&random, 9), b = 1 + next_random(&random, 9);
        const int p = shape.num_stages, v = shape.num_chunks, m = shape.num_micro_batches;
        if (shape.forward_only || !has_formula(&shape))
            continue;
        program_set set = make_shaped_set(&shape);
        const double idle = price_of(&set, (const double[]){f, b}) - m * v * (f + b);
        const double formula = (p - 1) * (f + b);
        must_hold(idle >= formula && idle <= formula + (b < f ? f : 0), &shape, "idle", idle);
        num_judged++;
        release_set(&set);
    }
    assert_in_range(num_judged, property_draws() / 8, property_draws());
}

/* --- random layouts and costs -------------------------------------------------------------- */

/* A model's layers on virtual stages, some of which may be empty, with whole microseconds, so that
 * sums are exact; and the buckets of each rank. */
typedef struct drawn {
    weft_layout layout;
    int layer_us[MAX_LAYERS][2]; /* forward, backward */
    int message_us, bucket_us;
    weft_bucket_shape shapes[MAX_RANKS][MAX_BUCKETS];
    weft_buckets buckets[MAX_RANKS];
} drawn;

static void draw_layout(uint64_t *random, const weft_pipeline_shape *shape, drawn *d)
{
    const int p = shape->num_stages, v = shape->num_chunks, num_stages = p * v,
              n = 2 + (int)next_random(random, MAX_LAYERS - 1);
    int on_stage[MAX_RANKS * MAX_CHUNKS] = {0};
    on_stage[0]++;
    on_stage[num_stages - 1]++;
    for (int l = 2; l < n; l++)
        on_stage[next_random(random, (uint32_t)num_stages)]++;
    d->layout =
        (weft_layout){.num_ranks = p, .num_chunks = v, .num_layers = n, .is_v = shape->is_v};
    for (int s = 0; s < num_stages; s++)
        d->layout.first[s + 1] = (uint16_t)(d->layout.first[s] + on_stage[s]);
    for (int l = 0; l < n; l++)
        for (int backward = 0; backward < 2; backward++)
            d->layer_us[l][backward] = (int)next_random(random, 12);
    d->message_us = (int)next_random(random, 4);
    d->bucket_us = (int)next_random(random, 4);
}

/* Of the last layers first; the layers of a chunk in one bucket or in several, and now and then a
 * section at the end that is summed first. */
static void draw_buckets(uint64_t *random, drawn *d)
{
    for (int rank = 0; rank < d->layout.num_ranks; rank++) {
        int count = 0, first, end;
        for (int chunk = d->layout.num_chunks - 1; chunk >= 0; chunk--) {
            weft_layout_range(&d->layout, rank, chunk, &first, &end);
            for (int l = end - 1; l >= first; l--)
                if (l == first || next_random(random, 3) == 0)
                    d->shapes[rank][count++] =
                        (weft_bucket_shape){.layer = l,
                                            .chunk = chunk,
                                            .ranks = next_random(random, 4) > 0 ? 2 : 1,
                                            .owners = 1 + (int32_t)next_random(random, 2),
                                            .elements = 32};
        }
        if (next_random(random, 2))
            d->shapes[rank][count++] = (weft_bucket_shape){
                .layer = -1, .sum = WEFT_BUCKET_SUM_TIED, .ranks = 2, .elements = 32};
        d->buckets[rank] = (weft_buckets){d->shapes[rank], count};
    }
}

static double compute_us(const drawn *d, int rank, int chunk, int backward, int from)
{
    int first, end, us = 0;
    weft_layout_range(&d->layout, rank, chunk, &first, &end);
    for (int l = first > from ? first : from; l < end; l++)
        us += d->layer_us[l][backward];
    return us;
}

static double drawn_us(const void *context, int rank, const weft_task *task)
{
    const drawn *d = context;
    switch (task->kind) {
    case WEFT_TASK_FORWARD:
        return compute_us(d, rank, task->chunk, 0, 0);
    case WEFT_TASK_BACKWARD: /* an input's half takes a third */
        return compute_us(d, rank, task->chunk, 1, 0) * (task->flow == WEFT_FLOW_INPUT    ? 1
                                                         : task->flow == WEFT_FLOW_WEIGHT ? 2
                                                                                          : 3);
    case WEFT_TASK_SEND:
        return d->message_us;
    default:
        return d->bucket_us;
    }
}

/* A layer's gradients are final when its backward and those above it are over. */
static double drawn_share(const void *context, int rank, const weft_task *task, int layer,
                          const weft_task *waiting)
{
    const double all = compute_us(context, rank, task->chunk, 1, 0);
    (void)waiting;
    return all > 0 ? compute_us(context, rank, task->chunk, 1, layer) / all : 1;
}

/* The times that computes would end at, were there nothing but their dependencies; the last of
 * them. `order` is walked as often as it takes. */
static double least_makespan(const program_set *set, const drawn *d)
{
    const int p = set->shape.num_stages, last = p * set->shape.num_chunks - 1;
    static double ends[2][MAX_RANKS * MAX_CHUNKS][32];
    double least = 0;
    uint32_t heads[MAX_RANKS] = {0};
    double now[MAX_RANKS] = {0};
    memset(ends, 0xff, sizeof ends); /* NaN: not yet */
    for (bool moved = true; moved;) {
        moved = false;
        for (int rank = 0; rank < p; rank++)
            for (; heads[rank] < set->programs[rank].num_tasks; heads[rank]++, moved = true) {
                const weft_task *task = &set->programs[rank].tasks[heads[rank]];
                const bool backward = task->kind == WEFT_TASK_BACKWARD;
                if (!backward && task->kind != WEFT_TASK_FORWARD)
                    continue;
                if (backward && task->flow == WEFT_FLOW_WEIGHT) {
                    now[rank] += drawn_us(d, rank, task);
                    least = fmax(least, now[rank]);
                    continue;
                }
                const int stage = weft_stage_of(set->shape.is_v, p, rank, task->chunk);
                const int m = task->micro_batch;
                const int needed = stage + (backward ? 1 : -1);
                const double after = needed < 0 || needed > last ? 0 : ends[backward][needed][m];
                if (isnan(after))
                    break;
                now[rank] = fmax(now[rank], after) + drawn_us(d, rank, task);
                ends[backward][stage][m] = now[rank];
                least = fmax(least, now[rank]);
            }
    }
    for (int rank = 0; rank < p; rank++)
        assert_int_equal(heads[rank], set->programs[rank].num_tasks);
    return least;
}

/* No task starts before what it waits for, and lanes do one thing at a time. */
static void judge_timeline(const program_set *set, const drawn *d, const weft_price *price)
{
    for (int rank = 0; rank < set->shape.num_stages; rank++) {
        const weft_program *program = &set->programs[rank];
        double free_at[WEFT_NUM_LANES] = {0};
        for (uint32_t i = 0; i < program->num_tasks; i++) {
            const weft_task *task = &program->tasks[i];
            const weft_span span = price->spans[rank][i];
            double after = free_at[task->lane];
            for (uint32_t w = 0; w < task->num_waits; w++) {
                const weft_wait wait = program->waits[task->first_wait + w];
                const weft_span other = price->spans[rank][wait.task];
                const double share =
                    wait.point < 0
                        ? 1
                        : drawn_share(d, rank, &program->tasks[wait.task], wait.point, task);
                after = fmax(after, other.start_us + share * (other.end_us - other.start_us));
            }
            must_hold(span.start_us >= after - 1e-9, &set->shape, "early by us",
                      after - span.start_us);
            free_at[task->lane] = span.end_us;
        }
    }
}

static void judge_costs(const weft_pipeline_shape *shape, const drawn *d)
{
    program_set set = make_shaped_set(shape);
    must_pass(&set);
    const weft_pricing pricing = {.cost = drawn_us, .point = drawn_share, .context = d};
    weft_price price;
    double all = 0;
    OK(weft_program_price(set.programs, shape->num_stages, &pricing, &set.arena, &price));
    for (int rank = 0; rank < shape->num_stages; rank++) {
        double busy = 0;
        for (uint32_t i = 0; i < set.programs[rank].num_tasks; i++) {
            const weft_task *task = &set.programs[rank].tasks[i];
            const double us = task->kind == WEFT_TASK_RECEIVE ? 0 : drawn_us(d, rank, task);
            busy += task->lane == WEFT_LANE_COMPUTE ? us : 0;
            all += us;
        }
        const weft_idle idle = weft_price_idle(&set.programs[rank], &price, rank);
        const double sum = busy + idle.message_us + idle.reduce_us + idle.bubble_us;
        must_hold(fabs(price.busy_us[rank] - busy) < 1e-6, shape, "busy", price.busy_us[rank]);
        must_hold(fabs(sum - price.makespan_us) < 1e-6, shape, "busy and idle sum to", sum);
        must_hold(idle.message_us >= 0 && idle.reduce_us >= 0 && idle.bubble_us >= -1e-6, shape,
                  "bubble", idle.bubble_us);
    }
    const double least = least_makespan(&set, d);
    must_hold(price.makespan_us >= least - 1e-6 && price.makespan_us <= all + 1e-6, shape,
              "makespan", price.makespan_us);
    judge_timeline(&set, d, &price);
    release_set(&set);
}

CASE(random_layouts_and_costs)
{
    uint64_t random = 4;
    for (int draw = 0; draw < property_draws(); draw++) {
        bool host_waits[MAX_STAGES];
        static drawn d;
        weft_pipeline_shape shape = draw_shape(&random, host_waits);
        draw_layout(&random, &shape, &d);
        draw_buckets(&random, &d);
        shape.buckets = d.buckets;
        judge_costs(&shape, &d);
    }
}
