/* Orders of compute that take backwards in two halves or lay virtual stages in a V: what papers say
 * of them, and what holds of every kind. */
#include "tests/schedule/programs.h"

#include <stdlib.h>
#include <string.h>

#include "schedule/pipeline/order_slots.h"
#include "schedule/pipeline/order_time.h"

enum { MAX_RANKS = 12 };

/* An order with F = I = W = 1 and free messages; memory counts virtual stages in flight. */
typedef struct timed {
    weft_arena arena;
    weft_order_shape shape;
    weft_order orders[MAX_STAGES];
    double makespan, idle; /* idle: the most of a rank between its first and its last compute */
    int peak;              /* virtual stages in flight, of the rank that has most */
} timed;

/* The most forwards of the chunk, -1 of all, whose backward is not over. */
static int most_in_flight(const weft_order *order, int chunk)
{
    int now = 0, most = 0;
    for (uint32_t i = 0; i < order->count; i++) {
        const weft_compute *c = &order->computes[i];
        if (chunk >= 0 && c->chunk != chunk)
            continue;
        now += c->kind == WEFT_COMPUTE_FORWARD;
        most = now > most ? now : most;
        now -= c->kind == WEFT_COMPUTE_BACKWARD || c->kind == WEFT_COMPUTE_WEIGHT;
    }
    return most;
}

static timed time_kind(weft_pipeline_kind kind, int p, int v, int m)
{
    double one[MAX_STAGES * 4];
    for (int s = 0; s < MAX_STAGES * 4; s++)
        one[s] = 1;
    const weft_order_costs costs = {.forward_us = one, .input_us = one, .weight_us = one};
    timed t = {.shape = {.num_ranks = p,
                         .num_chunks = v,
                         .num_micro_batches = m,
                         .is_v = weft_pipeline_kind_is_v((int)kind)}};
    OK(weft_order_make(kind, &t.shape, &t.arena, t.orders));
    OK(weft_order_simulate(&t.shape, t.orders, &costs, &t.makespan, NULL));
    weft_order_timer timer;
    OK(weft_order_timer_start(&t.shape, &costs, &t.arena, &timer));
    assert_true(weft_order_timer_run(&timer, t.orders) == t.makespan);
    for (int rank = 0; rank < p; rank++) {
        const double idle = timer.now[rank] - timer.starts[rank][0] - 3 * m * v;
        t.idle = idle > t.idle ? idle : t.idle;
        const int peak = most_in_flight(&t.orders[rank], -1);
        t.peak = peak > t.peak ? peak : t.peak;
    }
    return t;
}

/* Qi et al. 2024, Zero Bubble, table 1 (ZB-H1): the bubble is (p - 1)(F + I - W), a third of
 * 1F1B's, and no rank holds more micro-batches than 1F1B's first, p. With v virtual stages the
 * bubble is as many computes, and p v virtual stages are held. */
CASE(zb_h1)
{
    for (int p = 1; p <= MAX_RANKS; p++)
        for (int v = 1; v <= 3; v++)
            for (int m = p; m <= 4 * p; m += v == 1 ? 1 : p) {
                timed t = time_kind(WEFT_PIPELINE_ZB_H1, p, v, m);
                assert_true(t.makespan == 3 * m * v + p - 1);
                assert_int_equal(t.peak, p * v);
                weft_arena_release(&t.arena);
            }
}

/* Ibid., section 6: once a rank has begun it is never idle, and the stage of 2p halves holds no
 * more than 1F1B's p whole ones. */
CASE(zbv)
{
    for (int p = 1; p <= MAX_RANKS; p++)
        for (int m = 2 * p; m <= 5 * p; m++) {
            timed t = time_kind(WEFT_PIPELINE_ZBV, p, 2, m);
            assert_true(t.idle == 0);
            assert_true(t.makespan == 6 * m + p - 1);
            assert_int_equal(t.peak, 2 * p);
            weft_arena_release(&t.arena);
        }
}

/* Qi et al. 2024, Controllable Memory, table 1: half and a third of 1F1B's memory, 2p halves, and
 * what is constant; the bubble stays below 1F1B's 6 (p - 1). DualPipeV: 2p + 1 halves, and the
 * bubble of ZB-H1. */
CASE(controlled_memory)
{
    for (int p = 2; p <= MAX_RANKS; p++)
        for (int m = 2 * p; m <= 5 * p; m++) {
            timed half = time_kind(WEFT_PIPELINE_V_HALF, p, 2, m);
            assert_in_range(half.peak, p, p + 3);
            assert_true(half.makespan < 6 * m + 6 * (p - 1));
            timed third = time_kind(WEFT_PIPELINE_V_MIN, p, 2, m);
            assert_in_range(third.peak, 2 * p / 3, 2 * p / 3 + 3);
            assert_true(third.makespan < 6 * m + 6 * (p - 1));
            timed dual = time_kind(WEFT_PIPELINE_DUALPIPEV, p, 2, m);
            assert_int_equal(dual.peak, 2 * p + 1);
            assert_true(dual.makespan == 6 * m + p - 1);
            weft_arena_release(&half.arena);
            weft_arena_release(&third.arena);
            weft_arena_release(&dual.arena);
        }
}

/* All chunks of a rank share slots: of alike ones there are as many as micro-batches in flight, and
 * one for an input that comes early, or in a V that lies where the next stage begins. That is never
 * more than each chunk's own peak. */
CASE(slots_are_shared)
{
    int num = 0;
    for (int kind = 0; kind < WEFT_PIPELINE_AUTO; kind++)
        for (int p = 1; p <= MAX_RANKS; p++)
            for (int v = 1; v <= 4; v++) {
                const weft_order_shape shape = {.num_ranks = p,
                                                .num_chunks = v,
                                                .num_micro_batches = 3 * p,
                                                .is_v = weft_pipeline_kind_is_v(kind)};
                weft_arena arena = {0};
                weft_order orders[MAX_STAGES];
                weft_order_slots slots;
                if (!weft_order_has_layout((weft_pipeline_kind)kind, &shape))
                    continue;
                OK(weft_order_make((weft_pipeline_kind)kind, &shape, &arena, orders));
                OK(weft_order_slots_start(&shape, NULL, NULL, &arena, &slots));
                for (int rank = 0; rank < p; rank++, num++) {
                    const int most = most_in_flight(&orders[rank], -1);
                    int apart = 0;
                    for (int chunk = 0; chunk < v; chunk++)
                        apart += most_in_flight(&orders[rank], chunk);
                    weft_order_slots_find(&shape, rank, &orders[rank], &slots);
                    assert_in_range(slots.stash.num, most, most + (v > 1));
                    assert_in_range(slots.stash.num, most, apart + (v > 1 && apart == most));
                }
                weft_arena_release(&arena);
            }
    assert_true(num > 500);
}

/* Chunks of different sizes: the large one gets the large slot, though the other has been free
 * longer; a slot grows only if no larger one is free. */
CASE(slots_fit)
{
    const uint64_t bytes[2] = {30, 10};
    const weft_order_shape shape = {.num_ranks = 1, .num_chunks = 2, .num_micro_batches = 2};
    weft_arena arena = {0};
    weft_order_slots slots;
    weft_compute in_turn[] = {{0, 0, WEFT_COMPUTE_FORWARD, 0},  {0, 1, WEFT_COMPUTE_FORWARD, 0},
                              {0, 1, WEFT_COMPUTE_BACKWARD, 0}, {0, 0, WEFT_COMPUTE_BACKWARD, 0},
                              {1, 0, WEFT_COMPUTE_FORWARD, 0},  {1, 1, WEFT_COMPUTE_FORWARD, 0},
                              {1, 1, WEFT_COMPUTE_BACKWARD, 0}, {1, 0, WEFT_COMPUTE_BACKWARD, 0}};
    OK(weft_order_slots_start(&shape, bytes, NULL, &arena, &slots));
    weft_order_slots_find(&shape, 0, &(weft_order){in_turn, 8, NULL}, &slots);
    assert_int_equal(slots.stash.num, 2);
    assert_true(slots.stash.slots[0].chunk == 0 && slots.stash.slots[1].chunk == 1);
    for (int m = 0; m < 2; m++)
        assert_true(slots.stash.of[m] == 0 && slots.stash.of[2 + m] == 1);
    assert_false(slots.stash.slots[0].receives);
    assert_int_equal(weft_order_slots_bytes(&shape, 0, &slots, 5), 45);
    weft_arena_release(&arena);
}

/* Each of a chunk's micro-batches once in each half, in ascending order, weights behind inputs. */
static void judge_rank(const weft_order_shape *shape, const weft_order *order)
{
    int next[4][WEFT_NUM_COMPUTES] = {{0}};
    for (uint32_t i = 0; i < order->count; i++) {
        const weft_compute *c = &order->computes[i];
        int *n = next[c->chunk];
        const bool sends = weft_compute_sends_gradient(c->kind);
        if (c->kind == WEFT_COMPUTE_FORWARD)
            assert_int_equal(c->micro_batch, n[WEFT_COMPUTE_FORWARD]++);
        if (sends)
            assert_int_equal(c->micro_batch, n[WEFT_COMPUTE_INPUT]++);
        if (c->kind == WEFT_COMPUTE_BACKWARD || c->kind == WEFT_COMPUTE_WEIGHT)
            assert_int_equal(c->micro_batch, n[WEFT_COMPUTE_WEIGHT]++);
        assert_true(n[WEFT_COMPUTE_INPUT] <= n[WEFT_COMPUTE_FORWARD]);
        assert_true(n[WEFT_COMPUTE_WEIGHT] <= n[WEFT_COMPUTE_INPUT]);
        if (c->is_paired) {
            assert_true(i + 1 < order->count && !c[1].is_paired);
            assert_true(shape->pairs || c->chunk != c[1].chunk);
            assert_int_equal(c->kind, WEFT_COMPUTE_FORWARD);
            assert_true(weft_compute_sends_gradient(c[1].kind));
        }
    }
    for (int chunk = 0; chunk < shape->num_chunks; chunk++) {
        assert_int_equal(next[chunk][WEFT_COMPUTE_FORWARD], shape->num_micro_batches);
        assert_int_equal(next[chunk][WEFT_COMPUTE_WEIGHT], shape->num_micro_batches);
    }
}

CASE(every_small_shape)
{
    for (int kind = 0; kind < WEFT_PIPELINE_AUTO; kind++)
        for (int p = 1; p <= 6; p++)
            for (int v = kind == WEFT_PIPELINE_INTERLEAVED ? 2 : 1; v <= 3; v++)
                for (int m = 1; m <= 3 * p + 1; m++) {
                    if (weft_pipeline_kind_is_v(kind) && v != 2)
                        continue;
                    timed t = time_kind((weft_pipeline_kind)kind, p, v, m);
                    for (int rank = 0; rank < p; rank++)
                        judge_rank(&t.shape, &t.orders[rank]);
                    weft_arena_release(&t.arena);
                }
}

/* Whichever messages wait, all pass the checker. A rank in step with the others is never idle
 * between its first backward and its last forward: whole pairs of a rank stand back to back. */
static void pairs_of(weft_pipeline_kind kind)
{
    for (int p = 1; p <= 5; p++)
        for (int v = 1; v <= 3; v++)
            for (int m = 1; m <= 4 * p + 1; m++) {
                bool host_waits[MAX_STAGES];
                for (int s = 0; s < MAX_STAGES; s++)
                    host_waits[s] = true;
                weft_pipeline_shape shape = {.kind = kind,
                                             .num_stages = p,
                                             .num_chunks = v,
                                             .num_micro_batches = m,
                                             .boundary_bytes = 8,
                                             .pairs = true};
                const weft_order_shape order = weft_pipeline_order_shape(&shape);
                weft_arena arena = {0};
                weft_order orders[MAX_STAGES];
                int32_t *starts[MAX_STAGES];
                OK(weft_order_make(kind, &order, &arena, orders));
                OK(weft_order_time(&order, orders, &arena, starts));
                for (int rank = 0; rank < p; rank++) {
                    int num_pairs = 0;
                    int64_t last = -1;
                    judge_rank(&order, &orders[rank]);
                    for (uint32_t i = 0; i < orders[rank].count; i++) {
                        if (!orders[rank].computes[i].is_paired)
                            continue;
                        assert_true(starts[rank][i] == starts[rank][i + 1]);
                        if (num_pairs++ > 0 && v == 1 && kind == WEFT_PIPELINE_1F1B)
                            assert_true(starts[rank][i] == last + 17);
                        last = starts[rank][i];
                    }
                    if (v == 1)
                        assert_int_equal(num_pairs,
                                         m < 2 * (p - rank) ? 0 : m - 2 * (p - rank) + 1);
                }
                weft_arena_release(&arena);
                for (int waits = 0; waits < 2; waits++) {
                    shape.host_waits = waits ? host_waits : NULL;
                    program_set set = make_shaped_set(&shape);
                    if (check_set(&set) != WEFT_OK)
                        fail_msg("p=%d v=%d m=%d: %s", p, v, m, weft_error_get()->text);
                    release_set(&set);
                }
            }
}

CASE(pairs)
{
    pairs_of(WEFT_PIPELINE_1F1B);
    pairs_of(WEFT_PIPELINE_ZB_H1);
}

/* A pair is a forward of one chunk and a backward of the other: of dualpipev a whole one, of zbv,
 * which has all in two halves, its input's half. */
static void pairs_in_a_v_of(weft_pipeline_kind kind)
{
    for (int p = 1; p <= 6; p++)
        for (int m = 1; m <= 5 * p + 1; m++) {
            bool host_waits[MAX_STAGES];
            int num_pairs = 0;
            for (int s = 0; s < MAX_STAGES; s++)
                host_waits[s] = true;
            weft_pipeline_shape shape = {.kind = kind,
                                         .num_stages = p,
                                         .num_chunks = 2,
                                         .num_micro_batches = m,
                                         .boundary_bytes = 8,
                                         .is_v = true,
                                         .pairs = true};
            for (int waits = 0; waits < 2; waits++) {
                shape.host_waits = waits ? host_waits : NULL;
                program_set set = make_shaped_set(&shape);
                if (check_set(&set) != WEFT_OK)
                    fail_msg("p=%d m=%d: %s", p, m, weft_error_get()->text);
                for (uint32_t i = 0; i < set.programs[p - 1].num_tasks; i++) {
                    const weft_task *task = &set.programs[p - 1].tasks[i];
                    num_pairs += weft_task_opens_pair(task);
                    assert_true(kind == WEFT_PIPELINE_DUALPIPEV ||
                                task->kind != WEFT_TASK_BACKWARD || task->flow != WEFT_FLOW_NONE);
                }
                release_set(&set);
            }
            assert_true(m <= 2 * p || num_pairs > 0);
        }
}

CASE(pairs_in_a_v)
{
    pairs_in_a_v_of(WEFT_PIPELINE_DUALPIPEV);
    pairs_in_a_v_of(WEFT_PIPELINE_ZBV);
}

/* What is made for the chunk with the fewest bytes is refused where others use it. */
static int refuse_small_slots(program_set *set)
{
    int num = 0;
    for (int rank = 0; rank < set->shape.num_stages; rank++) {
        weft_program *program = &set->programs[rank];
        const weft_program whole = *program;
        weft_slot slots[1024];
        assert_true(program->num_slots <= 1024);
        memcpy(slots, program->slots, (size_t)program->num_slots * sizeof *slots);
        program->slots = slots;
        for (int i = 0; i < program->num_slots; i++)
            for (int chunk = 0; slots[i].chunk >= 0 && chunk < set->shape.num_chunks; chunk++) {
                const uint64_t *bytes = slots[i].holds == WEFT_SLOT_ACTIVATION
                                            ? set->shape.stash_bytes
                                            : set->shape.deferred_bytes;
                const int p = set->shape.num_stages, made_for = slots[i].chunk;
                if (bytes[weft_stage_of(set->shape.is_v, p, rank, chunk)] >=
                    bytes[weft_stage_of(set->shape.is_v, p, rank, made_for)])
                    continue;
                slots[i].chunk = chunk;
                FAILS(check_set(set), WEFT_INTERNAL, "which is made for chunk ");
                slots[i].chunk = made_for;
                num++;
            }
        *program = whole;
    }
    return num;
}

/* Every kind's programs pass the checker. */
CASE(draws)
{
    uint64_t random = 21;
    int num_small = 0;
    for (int draw = 0; draw < 10 * property_draws(); draw++) {
        const int kind = (int)next_random(&random, WEFT_PIPELINE_AUTO);
        const bool is_v = weft_pipeline_kind_is_v(kind);
        const int least = kind == WEFT_PIPELINE_INTERLEAVED ? 2 : 1;
        bool host_waits[MAX_STAGES];
        uint64_t bytes[2][MAX_STAGES];
        for (int s = 0; s < MAX_STAGES; s++) {
            host_waits[s] = next_random(&random, 3) == 0;
            bytes[0][s] = next_random(&random, 4);
            bytes[1][s] = next_random(&random, 4);
        }
        weft_pipeline_shape shape = {.kind = (weft_pipeline_kind)kind,
                                     .is_v = is_v,
                                     .num_stages = 1 + (int)next_random(&random, 5),
                                     .num_micro_batches = 1 + (int)next_random(&random, 11),
                                     .forward_only = next_random(&random, 8) == 0,
                                     .boundary_bytes = 8};
        shape.num_chunks = is_v ? 2 : least + (int)next_random(&random, 3);
        if (next_random(&random, 2))
            shape.host_waits = host_waits;
        if (next_random(&random, 4) == 0)
            shape.group_size = shape.num_stages + (int)next_random(&random, 4);
        if (next_random(&random, 4)) {
            shape.stash_bytes = bytes[0];
            shape.deferred_bytes = bytes[1];
        }
        program_set set = make_shaped_set(&shape);
        if (check_set(&set) != WEFT_OK)
            fail_msg("draw %d, %s: %s", draw, weft_pipeline_kind_text(kind),
                     weft_error_get()->text);
        if (shape.stash_bytes && draw % 20 == 0)
            num_small += refuse_small_slots(&set);
        release_set(&set);
    }
    assert_true(num_small > 100);
}

static void row_is(weft_pipeline_kind kind, const weft_order_shape *shape, int rank,
                   const char *wanted)
{
    weft_arena arena = {0};
    weft_order orders[MAX_STAGES];
    OK(weft_order_make(kind, shape, &arena, orders));
    char *text = order_text(shape, orders), *row = text;
    for (; rank > 0; rank--)
        row = strchr(row, '\n') + 1;
    *strchr(row, '\n') = '\0';
    assert_string_equal(row, wanted);
    free(text);
    weft_arena_release(&arena);
}

/* Rows of files in PyTorch's test/distributed/pipelining/artifacts: zb1p_2rank_2stagep_compute.csv,
 * where B is written for I and idle cells are empty, and dualpipev_4rank_10mb.csv. */
CASE(pytorch_rows)
{
    row_is(WEFT_PIPELINE_ZB_H1,
           &(weft_order_shape){.num_ranks = 2, .num_chunks = 2, .num_micro_batches = 8}, 1,
           "1F0,1F1,3F0,3I0,3F1,3I1,3W0,1F2,1I0,3W1,1F3,1I1,1W0,3F2,3I2,1W1,3F3,3I3,3W2,1F4,1I2,"
           "3W3,1F5,1I3,1W2,3F4,3I4,1W3,3F5,3I5,3W4,1F6,1I4,3W5,1F7,1I5,1W4,3F6,3I6,1W5,3F7,3I7,"
           "3W6,1I6,3W7,1I7,1W6,1W7");
    row_is(
        WEFT_PIPELINE_DUALPIPEV,
        &(weft_order_shape){.num_ranks = 4, .num_chunks = 2, .num_micro_batches = 10, .is_v = true},
        2,
        "2F0,2F1,2F2,5F0,2F3,5F1,2F4,5F2,5I0,5W0,5F3,(2F5;5B1)OVERLAP_F_B,(5F4;2B0)OVERLAP_F_B,"
        "(2F6;5B2)OVERLAP_F_B,(5F5;2B1)OVERLAP_F_B,(2F7;5B3)OVERLAP_F_B,(5F6;2B2)OVERLAP_F_B,"
        "(2F8;5B4)OVERLAP_F_B,(5F7;2B3)OVERLAP_F_B,(2F9;5B5)OVERLAP_F_B,(5F8;2B4)OVERLAP_F_B,"
        "5B6,(5F9;2B5)OVERLAP_F_B,5B7,2B6,5B8,2I7,5I9,2I8,2W7,2I9,5W9,2W8,2W9");
}

CASE(refuses)
{
    weft_arena arena = {0};
    weft_order made[4];
    weft_order_shape shape = {.num_ranks = 2, .num_chunks = 1, .num_micro_batches = 4};
    FAILS(weft_order_make(WEFT_PIPELINE_INTERLEAVED, &shape, &arena, made), WEFT_CONFIG,
          "1; the schedule interleaved has 2 or more");
    shape.is_v = true;
    for (int kind = WEFT_PIPELINE_ZBV; kind <= WEFT_PIPELINE_DUALPIPEV; kind++)
        FAILS(weft_order_make((weft_pipeline_kind)kind, &shape, &arena, made), WEFT_CONFIG,
              "1; a schedule with stages in a V has 2");
    assert_int_equal(weft_order_make(WEFT_PIPELINE_ZBV, &shape, &arena, made), WEFT_CONFIG);
    assert_string_equal(weft_error_get()->key, "parallel.num_virtual_stages_per_pipeline_rank");
    weft_error_clear();
    shape.num_chunks = 2;
    FAILS(weft_order_make(WEFT_PIPELINE_ZB_H1, &shape, &arena, made), WEFT_CONFIG,
          "the schedule zb_h1 has virtual stages in a loop, not in a V");
    shape.is_v = false;
    FAILS(weft_order_make(WEFT_PIPELINE_AUTO, &shape, &arena, made), WEFT_INTERNAL,
          "made from costs");
    weft_arena_release(&arena);
}
