/* Prices against formulas and against a reference that relaxes every constraint until none moves.
 */
#include "tests/schedule/programs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "schedule/price/price.h"

/* Whole microseconds, so that every sum is exact. */
typedef struct costs {
    double forward_us, backward_us, message_us;
    uint64_t seed; /* 0: the same everywhere; else every task costs its own */
    enum { NONE, ALL, ODD, GRADIENTS, NUM_BUFFERS } buffers; /* which messages */
} costs;

static double cost_of(const void *context, int stage, const weft_task *task)
{
    const costs *c = context;
    uint64_t random = c->seed + (uint64_t)stage * 1000003u + task->kind * 10007u +
                      task->flow * 101u + (uint64_t)(task->micro_batch + 1) * 17u;
    const double more = c->seed ? (double)next_random(&random, 20) : 0;
    switch (task->kind) {
    case WEFT_TASK_FORWARD:
        return c->forward_us + more;
    case WEFT_TASK_BACKWARD:
        return c->backward_us + more;
    case WEFT_TASK_SEND:
        return c->message_us + more;
    case WEFT_TASK_RECEIVE:
        fail_msg("a message's time is asked of its SEND");
        return 0;
    default:
        return more;
    }
}

static bool buffered_of(const void *context, int stage, const weft_task *send)
{
    const costs *c = context;
    (void)stage;
    if (send->kind != WEFT_TASK_SEND)
        fail_msg("whether it is buffered is asked of a message's SEND");
    return c->buffers == ALL || (c->buffers == ODD && send->micro_batch % 2) ||
           (c->buffers == GRADIENTS && send->flow == WEFT_FLOW_GRADIENT);
}

static weft_price price_of(program_set *set, const costs *c, weft_trace *trace)
{
    weft_price price = {0};
    const weft_pricing pricing = {
        .cost = cost_of, .buffered = c->buffers ? buffered_of : NULL, .context = c, .trace = trace};
    OK(weft_program_price(set->programs, set->shape.num_stages, &pricing, &set->arena, &price));
    return price;
}

/* Free messages: (m + p - 1)(F + B), and the bubble's share is (p - 1) / (m + p - 1), for GPipe and
 * 1F1B alike (Narayanan et al. 2021, section 2.2: t_pb / t_id = (p - 1) / m). */
CASE(ideal_pipeline)
{
    const costs cases[] = {
        {1, 2, 0, 0, NONE}, {1, 1, 0, 0, NONE}, {3, 1, 0, 0, ALL}, {2, 5, 0, 0, ODD}};
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++)
        for (int p = 1; p <= 8; p++)
            for (int m = 1; m <= 16; m++)
                for (int kind = 0; kind < 2; kind++) {
                    program_set set = make_set(kind, p, m, false);
                    const weft_price price = price_of(&set, &cases[c], NULL);
                    const double one = cases[c].forward_us + cases[c].backward_us;
                    assert_true(price.makespan_us == (m + p - 1) * one);
                    assert_true(fabs(price.bubble_share - (p - 1.0) / (m + p - 1)) < 1e-15 * m);
                    for (int i = 0; i < p; i++)
                        assert_true(price.busy_us[i] == m * one);
                    release_set(&set);
                }
}

/* The reference: start times as the least solution of "no earlier than" constraints. */
typedef struct reference {
    const program_set *set;
    const costs *costs;
    double starts[MAX_STAGES][MAX_EDIT_TASKS];
    double durations[MAX_STAGES][MAX_EDIT_TASKS]; /* of a message's both ends */
    int32_t other[MAX_STAGES][MAX_EDIT_TASKS];    /* the receive of a send, the send of a receive */
    bool buffered[MAX_STAGES][MAX_EDIT_TASKS];
} reference;

static void list_durations(reference *r)
{
    for (int s = 0; s < r->set->shape.num_stages; s++)
        for (uint32_t i = 0; i < r->set->programs[s].num_tasks; i++) {
            const weft_task *task = &r->set->programs[s].tasks[i];
            const bool sends = task->kind == WEFT_TASK_SEND;
            int from = s;
            r->starts[s][i] = 0;
            r->other[s][i] = -1;
            r->buffered[s][i] = false;
            if (sends || task->kind == WEFT_TASK_RECEIVE) {
                const weft_program *peer = &r->set->programs[task->peer];
                r->other[s][i] =
                    (int32_t)find_task(peer, sends ? WEFT_TASK_RECEIVE : WEFT_TASK_SEND, task->flow,
                                       task->micro_batch);
                from = sends ? s : task->peer;
                task = sends ? task : &peer->tasks[r->other[s][i]];
                r->buffered[s][i] = buffered_of(r->costs, from, task);
            }
            r->durations[s][i] = cost_of(r->costs, from, task);
        }
}

/* A RECEIVE of a buffered message ends when both it has begun and the message is there. */
static double end_of(const reference *r, int stage, uint32_t index)
{
    const weft_task *task = &r->set->programs[stage].tasks[index];
    const double start = r->starts[stage][index];
    if (!r->buffered[stage][index] || task->kind == WEFT_TASK_SEND)
        return start + r->durations[stage][index];
    return fmax(start, r->starts[task->peer][r->other[stage][index]] + r->durations[stage][index]);
}

/* When its lane and what it waits for are through. */
static double ready_at(const reference *r, int stage, uint32_t index)
{
    const weft_program *program = &r->set->programs[stage];
    const weft_task *task = &program->tasks[index];
    double ready = 0;
    for (uint32_t j = 0; j < index; j++) {
        bool before = program->tasks[j].lane == task->lane;
        for (uint32_t w = 0; w < task->num_waits; w++)
            before |= program->waits[task->first_wait + w].task == j;
        if (before)
            ready = fmax(ready, end_of(r, stage, j));
    }
    return ready;
}

static double least_start(const reference *r, int stage, uint32_t index)
{
    const weft_task *task = &r->set->programs[stage].tasks[index];
    double least = fmax(r->starts[stage][index], ready_at(r, stage, index));
    if (r->other[stage][index] >= 0 && !(r->buffered[stage][index] && task->kind == WEFT_TASK_SEND))
        least = fmax(least, r->starts[task->peer][r->other[stage][index]]);
    for (int s = 0; s < r->set->shape.num_stages && task->kind == WEFT_TASK_NORM; s++)
        least = fmax(least, r->starts[s][find_task(&r->set->programs[s], WEFT_TASK_NORM,
                                                   WEFT_FLOW_NONE, -1)]); /* all ranks meet */
    return least;
}

/* Raises starts until no constraint is broken. Returns the makespan. */
static double relax(const program_set *set, const costs *c, reference *r)
{
    double makespan = 0;
    r->set = set;
    r->costs = c;
    list_durations(r);
    for (bool moved = true; moved;) {
        moved = false;
        for (int s = 0; s < set->shape.num_stages; s++)
            for (uint32_t i = 0; i < set->programs[s].num_tasks; i++) {
                const double least = least_start(r, s, i);
                moved |= least > r->starts[s][i];
                r->starts[s][i] = least;
                makespan = fmax(makespan, end_of(r, s, i));
            }
    }
    return makespan;
}

CASE(against_reference)
{
    static reference wanted;
    uint64_t random = 3;
    for (int round = 0; round < 200; round++) {
        program_set set = make_set(next_random(&random, 2), 1 + (int)next_random(&random, 6),
                                   1 + (int)next_random(&random, 10), next_random(&random, 4) == 0);
        const costs c = {next_random(&random, 9), next_random(&random, 9), next_random(&random, 9),
                         next_random(&random, 2) * (uint64_t)(round + 1), round % NUM_BUFFERS};
        weft_trace *trace;
        OK(weft_trace_create(&trace));
        const weft_price price = price_of(&set, &c, trace);
        assert_true(price.makespan_us == relax(&set, &c, &wanted));
        for (int s = 0; s < set.shape.num_stages; s++)
            for (uint32_t i = 0; i < set.programs[s].num_tasks; i++) {
                assert_true(price.spans[s][i].start_us == wanted.starts[s][i]);
                assert_true(price.spans[s][i].end_us == end_of(&wanted, s, i));
            }

        /* A slice for every task, where the reference puts it. */
        size_t num_tasks = 0;
        for (int s = 0; s < set.shape.num_stages; s++)
            num_tasks += set.programs[s].num_tasks;
        assert_int_equal(weft_trace_count(trace), num_tasks);
        for (size_t i = 0; i < num_tasks; i++) {
            const weft_slice *slice = &weft_trace_slices(trace)[i];
            const weft_program *program = &set.programs[slice->rank];
            uint32_t t = 0;
            for (; t < program->num_tasks; t++)
                if (wanted.starts[slice->rank][t] == slice->start_us &&
                    program->tasks[t].lane == slice->lane &&
                    program->tasks[t].micro_batch == slice->micro_batch &&
                    strcmp(weft_task_kind_text(program->tasks[t].kind), slice->category) == 0)
                    break;
            assert_true(t < program->num_tasks);
            assert_int_equal(slice->stage, slice->rank);
        }
        weft_trace_destroy(trace);
        release_set(&set);
    }
}

/* Whether no SEND of a solution waits for its receiver. */
static bool always_ready(const reference *r)
{
    for (int s = 0; s < r->set->shape.num_stages; s++)
        for (uint32_t i = 0; i < r->set->programs[s].num_tasks; i++)
            if (r->set->programs[s].tasks[i].kind == WEFT_TASK_SEND &&
                r->starts[s][i] > ready_at(r, s, i))
                return false;
    return true;
}

/* Messages that do not wait for their receivers never make a step longer, and change nothing where
 * receivers are ready. */
CASE(buffered_messages_are_no_slower)
{
    static reference waiting;
    uint64_t random = 5;
    int num_faster = 0, num_ready = 0;
    for (int round = 0; round < 120; round++) {
        program_set set = make_set(next_random(&random, 2), 2 + (int)next_random(&random, 4),
                                   1 + (int)next_random(&random, 8), next_random(&random, 4) == 0);
        costs c = {next_random(&random, 9), next_random(&random, 9), next_random(&random, 9),
                   next_random(&random, 2) * (uint64_t)(round + 1), NONE};
        const weft_price waits = price_of(&set, &c, NULL);
        (void)relax(&set, &c, &waiting);
        const bool ready = always_ready(&waiting);
        for (c.buffers = ALL; c.buffers < NUM_BUFFERS; c.buffers++) {
            const weft_price price = price_of(&set, &c, NULL);
            assert_true(price.makespan_us <= waits.makespan_us);
            num_faster += price.makespan_us < waits.makespan_us;
            for (int s = 0; s < set.shape.num_stages && ready; s++)
                assert_memory_equal(price.spans[s], waits.spans[s],
                                    set.programs[s].num_tasks * sizeof **price.spans);
        }
        num_ready += ready;
        release_set(&set);
    }
    assert_true(num_faster > 10 && num_ready > 10);
}

CASE(deadlock_and_memory)
{
    static edit edited;
    const costs c = {1, 2, 1, 0, NONE};
    program_set set = make_set(WEFT_PIPELINE_1F1B, 3, 4, false);
    edit_open(&set, 1, &edited);
    drop_task(&edited, find_task(&set.programs[1], WEFT_TASK_SEND, WEFT_FLOW_GRADIENT, 3));
    edit_close(&edited, &set);
    weft_price price;
    FAILS(weft_program_price(set.programs, 3, &(weft_pricing){.cost = cost_of, .context = &c},
                             &set.arena, &price),
          WEFT_INTERNAL, "deadlock: stage 0 task ");
    release_set(&set);

    set = make_set(WEFT_PIPELINE_1F1B, 3, 4, false);
    weft_status status = WEFT_MEMORY;
    int failures = 0;
    for (int n = 1; status != WEFT_OK; n++) {
        weft_alloc_fail_after(n);
        status = weft_program_price(
            set.programs, 3, &(weft_pricing){.cost = cost_of, .context = &c}, &set.arena, &price);
        weft_alloc_fail_after(0);
        assert_true(status == WEFT_OK || status == WEFT_MEMORY);
        failures += status != WEFT_OK;
    }
    assert_true(failures > 5);
    release_set(&set);
}

/* Two tasks of one stage that both need a link all the time take twice as long together; one that
 * needs it for half its time, two thirds more. */
static void half_links(const void *context, int stage, const weft_task *task,
                       double out_us[WEFT_MAX_LINKS])
{
    (void)context;
    (void)stage;
    out_us[1] = task->kind == WEFT_TASK_SEND ? 6 : task->kind == WEFT_TASK_FORWARD ? 2 : 0;
}

static double link_cost(const void *context, int stage, const weft_task *task)
{
    (void)context;
    (void)stage;
    return task->kind == WEFT_TASK_SEND ? 6 : 4;
}

CASE(shared_links)
{
    program_set set = make_set(WEFT_PIPELINE_GPIPE, 2, 2, true);
    const weft_pricing alone = {.cost = link_cost},
                       shared = {.cost = link_cost, .links = half_links};
    weft_price price;
    /* F0 [0 4]; the message [4 10] beside F1 [4 8]; the second message [10 16] beside F0 of stage 1
     * [10 14], F1 of stage 1 [16 20]. */
    OK(weft_program_price(set.programs, 2, &alone, &set.arena, &price));
    assert_true(price.makespan_us == 20);
    /* The link is needed 1 + 1/2: both go on at 2/3. F1 [4 10], and the message has done 4 of 6 by
     * then: [4 12]; stage 1 then the same: [12 18] and [12 20], F1 of stage 1 [20 24]. */
    OK(weft_program_price(set.programs, 2, &shared, &set.arena, &price));
    assert_true(fabs(price.makespan_us - 24) < 1e-9);
    assert_true(fabs(price.busy_us[0] - 10) < 1e-9);
    release_set(&set);
}

static void message_links(const void *context, int stage, const weft_task *task,
                          double out_us[WEFT_MAX_LINKS])
{
    (void)context;
    (void)stage;
    out_us[0] = task->kind == WEFT_TASK_SEND ? 6 : 0;
}

/* Activations go one way and gradients the other, each as if the other were not. */
CASE(ways_of_links)
{
    program_set set = make_set(WEFT_PIPELINE_1F1B, 2, 6, false);
    const weft_pricing alone = {.cost = link_cost},
                       shared = {.cost = link_cost, .links = message_links};
    weft_price price, with;
    bool crossed = false;
    OK(weft_program_price(set.programs, 2, &alone, &set.arena, &price));
    OK(weft_program_price(set.programs, 2, &shared, &set.arena, &with));
    assert_true(price.makespan_us == with.makespan_us);
    for (uint32_t i = 0; i < set.programs[0].num_tasks; i++)
        for (uint32_t j = 0; j < set.programs[0].num_tasks; j++)
            crossed |= set.programs[0].tasks[i].kind == WEFT_TASK_SEND &&
                       set.programs[0].tasks[j].kind == WEFT_TASK_RECEIVE &&
                       price.spans[0][i].start_us < price.spans[0][j].end_us &&
                       price.spans[0][j].start_us < price.spans[0][i].end_us;
    assert_true(crossed);
    release_set(&set);
}

static bool all_buffered(const void *context, int stage, const weft_task *send)
{
    (void)context;
    (void)stage;
    return send->kind == WEFT_TASK_SEND;
}

/* An activation and a gradient come to stage 1 at once, by one way in; it asks for the gradient
 * first. */
CASE(two_messages_arrive)
{
    static const char *const texts[] = {
        "program in_flight=1\nslots 0-0 output bytes=8\n"
        "0 send send activation mb=0 chunk=0 peer=1 from=0\n",
        "program in_flight=1\nslots 0-0 activation chunk=0 bytes=8\nslots 1-1 gradient bytes=8\n"
        "0 receive receive gradient mb=0 chunk=0 peer=2 to=1\n"
        "1 receive receive activation mb=0 chunk=0 peer=0 to=0\n",
        "program in_flight=1\nslots 0-0 input_gradient bytes=8\n"
        "0 send send gradient mb=0 chunk=0 peer=1 from=0\n",
    };
    weft_arena arena = {0};
    weft_program programs[3];
    weft_pricing pricing = {.cost = link_cost, .links = message_links};
    for (int i = 0; i < 3; i++)
        OK(weft_program_parse(texts[i], &arena, &programs[i]));
    const struct {
        weft_send_buffered buffered;
        weft_task_links links;
        double gradient[2], activation[2];
    } cases[] = {{NULL, message_links, {0, 6}, {6, 12}},
                 {all_buffered, message_links, {0, 12}, {12, 12}},
                 {all_buffered, NULL, {0, 6}, {6, 6}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        weft_price price;
        pricing.buffered = cases[i].buffered;
        pricing.links = cases[i].links;
        OK(weft_program_price(programs, 3, &pricing, &arena, &price));
        const weft_span *spans = price.spans[1];
        assert_true(spans[0].start_us == cases[i].gradient[0]);
        assert_true(fabs(spans[0].end_us - cases[i].gradient[1]) < 1e-9);
        assert_true(fabs(spans[1].start_us - cases[i].activation[0]) < 1e-9);
        assert_true(fabs(spans[1].end_us - cases[i].activation[1]) < 1e-9);
    }
    weft_arena_release(&arena);
}

/* Busy and idle time sum to the makespan, whatever tasks cost; free messages are nothing waited
 * for. */
CASE(idle_time)
{
    for (int round = 1; round < 60; round++) {
        program_set set = make_set(round % 2, 1 + round % 5, 1 + round % 7, round % 3 == 0);
        const costs c = {3, 5, round % 4, round % 2 ? 0 : (uint64_t)round, round % NUM_BUFFERS};
        const weft_price price = price_of(&set, &c, NULL);
        for (int i = 0; i < set.shape.num_stages; i++) {
            const weft_idle idle = weft_price_idle(&set.programs[i], &price, i);
            const double sum = price.busy_us[i] + idle.message_us + idle.reduce_us + idle.bubble_us;
            assert_true(fabs(sum - price.makespan_us) < 1e-9 * (1 + price.makespan_us));
            assert_true(idle.message_us >= 0 && idle.reduce_us >= 0 && idle.bubble_us >= 0);
            assert_true(c.seed || c.message_us > 0 || idle.message_us == 0);
        }
        release_set(&set);
    }
    /* One micro-batch through two stages: the last waits for F0 and its message, the first for B0
     * and its message. */
    program_set set = make_set(WEFT_PIPELINE_1F1B, 2, 1, false);
    const weft_price price = price_of(&set, &(costs){3, 5, 2, 0, NONE}, NULL);
    const weft_idle first = weft_price_idle(&set.programs[0], &price, 0);
    const weft_idle last = weft_price_idle(&set.programs[1], &price, 1);
    assert_true(price.makespan_us == 20);
    assert_true(first.message_us == 2 && first.bubble_us == 10);
    assert_true(last.message_us == 2 && last.bubble_us == 10);
    release_set(&set);
}

static double point_cost(const void *context, int stage, const weft_task *task)
{
    (void)context;
    (void)stage;
    return task->kind == WEFT_TASK_FORWARD ? 4 : task->kind == WEFT_TASK_BACKWARD ? 8 : 3;
}

static double quarters(const void *context, int stage, const weft_task *task, int point,
                       const weft_task *waiting)
{
    (void)context;
    (void)stage;
    (void)waiting;
    return task->kind == WEFT_TASK_BACKWARD ? 1 - point / 4.0 : 1;
}

/* F [0 4], B [4 12] passes point 3 at 6 and point 1 at 10: reductions [6 9] and [10 13]. Where
 * points pass at the end they are [12 15] and [15 18]. */
CASE(points_amid_a_task)
{
    static const char text[] = "program in_flight=1\n"
                               "slots 0-0 activation chunk=0\n"
                               "0 forward compute mb=0 chunk=0 stash=0\n"
                               "1 backward compute mb=0 chunk=0 stash=0\n"
                               "2 reduce reduce bucket=0 waits=1@3\n"
                               "3 reduce reduce bucket=1 waits=1@1\n";
    weft_arena arena = {0};
    weft_program program;
    weft_price price;
    weft_pricing pricing = {.cost = point_cost, .point = quarters};
    OK(weft_program_parse(text, &arena, &program));
    OK(weft_program_price(&program, 1, &pricing, &arena, &price));
    assert_true(price.makespan_us == 13 && price.busy_us[0] == 12);
    assert_true(price.spans[0][2].start_us == 6 && price.spans[0][3].start_us == 10);
    assert_true(weft_price_idle(&program, &price, 0).reduce_us == 1);
    pricing.point = NULL;
    OK(weft_program_price(&program, 1, &pricing, &arena, &price));
    assert_true(price.makespan_us == 18);
    weft_arena_release(&arena);
}

/* Takes so much longer as it starts late, and tells when a gradient lands from then on. */
static double later(const void *context, int stage, const weft_task *task, double start_us)
{
    double *landed = *(double *const *)context;
    (void)stage;
    *landed = task->kind == WEFT_TASK_BACKWARD ? 0.5 : *landed;
    return task->kind == WEFT_TASK_BACKWARD ? start_us : 0;
}

static double lands_half_way(const void *context, int stage, const weft_task *task, int point,
                             const weft_task *waiting)
{
    return point == WEFT_POINT_LANDED ? **(double *const *)context
                                      : quarters(context, stage, task, point, waiting);
}

/* F [0 4], B [4 16] passes point 3 at 7, the landing of bucket 1's gradient at 10 and point 1
 * at 13.
 */
CASE(inside_a_task)
{
    static const char text[] = "program in_flight=1\n"
                               "slots 0-0 activation chunk=0\n"
                               "0 forward compute mb=0 chunk=0 stash=0\n"
                               "1 backward compute mb=0 chunk=0 stash=0\n"
                               "2 reduce reduce bucket=0 waits=1@3\n"
                               "3 reduce reduce bucket=1 waits=1@landed\n"
                               "4 reduce reduce bucket=2 waits=1@1\n";
    weft_arena arena = {0};
    weft_program program;
    weft_price price;
    double landed = 1, *at = &landed;
    const weft_pricing pricing = {
        .cost = point_cost, .inside = later, .point = lands_half_way, .context = &at};
    OK(weft_program_parse(text, &arena, &program));
    OK(weft_program_price(&program, 1, &pricing, &arena, &price));
    assert_true(price.makespan_us == 16 && price.busy_us[0] == 16);
    for (int i = 0; i < 3; i++)
        assert_true(price.spans[0][2 + i].start_us == 7 + 3 * i);
    weft_arena_release(&arena);
}

static double drawn_cost(const void *context, int stage, const weft_task *task)
{
    static const double costs_us[WEFT_NUM_TASK_KINDS] = {
        [WEFT_TASK_FORWARD] = 10, [WEFT_TASK_BACKWARD] = 20, [WEFT_TASK_SEND] = 1,
        [WEFT_TASK_REDUCE] = 8,   [WEFT_TASK_STEP] = 6,
    };
    (void)context;
    (void)stage;
    return costs_us[task->kind];
}

static int draw(const char *folder)
{
    static const char *const names[] = {"1f1b", "gpipe"};
    static const char *const titles[] = {"1F1B, 4 stages, 6 micro-batches",
                                         "GPipe, 4 stages, 6 micro-batches"};
    for (int kind = 0; kind < 2; kind++) {
        program_set set = make_set(kind, 4, 6, false);
        weft_trace *trace;
        weft_price price;
        char path[1024], bubble[64];
        snprintf(path, sizeof(path), "%s/schedules-%s.svg", folder, names[kind]);
        FILE *file = fopen(path, "w");
        if (!file || weft_trace_create(&trace) != WEFT_OK ||
            weft_program_price(set.programs, 4, &(weft_pricing){.cost = drawn_cost, .trace = trace},
                               &set.arena, &price) != WEFT_OK)
            return 1;
        snprintf(bubble, sizeof(bubble), "bubble %.0f %%", 100 * price.bubble_share);
        if (weft_trace_write_svg(trace, titles[kind], bubble, file) != WEFT_OK)
            return 1;
        printf("%s: %g us, bubble %.3f\n", titles[kind], price.makespan_us, price.bubble_share);
        fclose(file);
        weft_trace_destroy(trace);
        release_set(&set);
    }
    return 0;
}

CASE(every_slice_has_a_name)
{
    for (int kind = 0; kind < WEFT_NUM_TASK_KINDS; kind++)
        for (int flow = 0; flow < WEFT_NUM_FLOWS; flow++) {
            weft_task task = {.kind = (uint16_t)kind, .flow = (uint16_t)flow, .micro_batch = 3};
            weft_slice slice;
            weft_slice_of_task(&task, 0, 1, false, &slice);
            assert_true(slice.name[0] && !strchr(slice.name, '('));
            assert_int_equal(slice.name[strlen(slice.name) - 1], '3');
        }
}

/* The trace of a price explains the letters of every flow. */
CASE(every_letter_is_explained)
{
    program_set set = make_set(0, 4, 6, false);
    weft_trace *trace;
    weft_price price;
    assert_int_equal(weft_trace_create(&trace), WEFT_OK);
    assert_int_equal(weft_program_price(set.programs, 4,
                                        &(weft_pricing){.cost = drawn_cost, .trace = trace},
                                        &set.arena, &price),
                     WEFT_OK);
    for (int flow = 0; flow < WEFT_NUM_FLOWS; flow++) {
        const char *text = weft_trace_letters_text(trace, weft_flow_letters(flow));
        assert_true(text && (*text || !*weft_flow_letters(flow)));
    }
    weft_trace_destroy(trace);
    release_set(&set);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        return draw(argv[1]);
    return run_cases();
}
