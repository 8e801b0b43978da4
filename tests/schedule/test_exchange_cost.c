/* The all-to-all's formulas against numbers by hand, a recurrence over chunks and stages, and
 * priced programs; the choice against trying everything. */
#include "tests/schedule/programs.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "schedule/exchange/exchange.h"
#include "schedule/price/price.h"

/* Between nodes 100 B/us after 100 us, inside 8 times that after 10 us, copies after 1 us. */
static weft_cluster example(double gather_rate, double copy_rate)
{
    weft_cluster cluster = {.name = "example", .interference = weft_interference_none()};
    cluster.costs[WEFT_COST_ALL_TO_ALL] =
        (weft_cost){.curve = weft_curve_linear(100, 100), .peak = 100e6};
    cluster.costs[WEFT_COST_ALL_GATHER] =
        (weft_cost){.curve = weft_curve_linear(10, gather_rate), .peak = gather_rate * 1e6};
    cluster.costs[WEFT_COST_COPY] =
        (weft_cost){.curve = weft_curve_linear(1, copy_rate), .peak = copy_rate * 1e6};
    return cluster;
}

static const weft_exchange_shape four_by_two = {.bytes = 4e6, .t = 4, .e = 2, .minimal_bytes = 1e5};

CASE(hand_computed)
{
    const weft_cluster c = example(800, 4000);
    const weft_exchange_shape *s = &four_by_two;
    /* 2e6 / 100 + 100 */
    close_to(weft_exchange_us(&c, s, WEFT_EXCHANGE_BASELINE, 1), 20100);
    /* all-to-all 5e5 / 100 + 100, all-gather 4e6 / 800 + 10, copy 4e6 / 4000 + 1 */
    close_to(weft_exchange_us(&c, s, WEFT_EXCHANGE_O1_PAPER, 1), 5100 + 5010 + 1001);
    /* half of it is there already */
    close_to(weft_exchange_us(&c, s, WEFT_EXCHANGE_O1, 1), 5100 + 2510 + 501);
    /* two chunks: 2600, 1260, 251; the all-to-all is the slowest */
    close_to(weft_exchange_us(&c, s, WEFT_EXCHANGE_O2, 2), 2 * 2600 + 1260 + 251);
    close_to(weft_exchange_us(&c, s, WEFT_EXCHANGE_O3, 2), 2 * 2600 + 1260 + 251);
    close_to(weft_exchange_us(&c, s, WEFT_EXCHANGE_DIRECT, 2), 2 * 2600 + 1260);
    close_to(weft_exchange_us(&c, s, WEFT_EXCHANGE_DIRECT, 4), 4 * 1350 + 635);

    const weft_exchange_costs costs = weft_exchange_costs_of(&c, s, WEFT_EXCHANGE_O2, 2);
    close_to(costs.all_to_all_us, 2600);
    close_to(costs.all_gather_us, 1260);
    close_to(costs.copy_us, 251);
}

static double real(uint64_t *random, double low, double high)
{
    return low + (high - low) * next_random(random, 100001) / 1e5;
}

static weft_curve random_curve(uint64_t *random)
{
    weft_curve curve = {.num_points = 2 + (int)next_random(random, 8)};
    double volume = 0, us = real(random, 1, 200);
    for (int i = 0; i < curve.num_points; i++) {
        curve.volume[i] = volume += real(random, 1e3, 1e6);
        curve.time_us[i] = us += real(random, 0, 1e4);
    }
    return curve;
}

static weft_cluster random_cluster(uint64_t *random)
{
    weft_cluster cluster = {.name = "random", .interference = weft_interference_none()};
    for (int kind = 0; kind < WEFT_NUM_COSTS; kind++)
        cluster.costs[kind].curve = random_curve(random);
    return cluster;
}

static weft_exchange_shape random_shape(uint64_t *random)
{
    return (weft_exchange_shape){.bytes = real(random, 1e3, 1e8),
                                 .t = 1 + (int)next_random(random, 8),
                                 .e = 1 + (int)next_random(random, 8),
                                 .minimal_bytes = real(random, 1, 1e6)};
}

static double later(double a, double b)
{
    return a > b ? a : b;
}

/* When the last chunk leaves the last stage, chunk by chunk. */
static double by_recurrence(weft_exchange_costs costs, bool copy_beside_gather, int num_chunks)
{
    double sent = 0, gathered = 0, placed = 0;
    for (int i = 0; i < num_chunks; i++) {
        sent += costs.all_to_all_us;
        const double gather_free = copy_beside_gather ? gathered : placed;
        gathered = later(sent, gather_free) + costs.all_gather_us;
        placed = later(gathered, placed) + costs.copy_us;
    }
    return placed;
}

CASE(chunks_in_a_row)
{
    uint64_t random = 11;
    for (int round = 0; round < 300; round++) {
        const weft_cluster c = random_cluster(&random);
        const weft_exchange_shape s = random_shape(&random);
        for (int form = WEFT_EXCHANGE_O2; form <= WEFT_EXCHANGE_DIRECT; form++)
            for (int n = 1; n <= 40; n += 1 + n / 4) {
                const weft_exchange_costs costs =
                    weft_exchange_costs_of(&c, &s, (weft_exchange_form)form, n);
                close_to(weft_exchange_us(&c, &s, (weft_exchange_form)form, n),
                         by_recurrence(costs, form != WEFT_EXCHANGE_O2, n));
            }
    }
}

static double task_us(const void *context, int stage, const weft_task *task)
{
    const weft_exchange_costs *costs = context;
    (void)stage;
    return task->kind == WEFT_TASK_DISPATCH ? costs->all_to_all_us
           : task->kind == WEFT_TASK_GATHER ? costs->all_gather_us
                                            : costs->copy_us;
}

/* The formula is the time of the form's program. */
CASE(programs_take_as_long)
{
    uint64_t random = 21;
    for (int round = 0; round < 60; round++) {
        const weft_cluster c = random_cluster(&random);
        const weft_exchange_shape s = random_shape(&random);
        for (int form = 0; form < WEFT_NUM_EXCHANGES; form++)
            for (int n = 1; n <= (form < WEFT_EXCHANGE_O2 ? 1 : 20); n += 1 + n / 4) {
                const weft_exchange_costs costs =
                    weft_exchange_costs_of(&c, &s, (weft_exchange_form)form, n);
                weft_arena arena = {0};
                weft_program program;
                weft_price price;
                OK(weft_program_exchange((weft_exchange_form)form, n, &arena, &program));
                OK(weft_program_price(&program, 1,
                                      &(weft_pricing){.cost = task_us, .context = &costs}, &arena,
                                      &price));
                close_to(weft_exchange_us(&c, &s, (weft_exchange_form)form, n), price.makespan_us);
                weft_arena_release(&arena);
            }
    }
}

static weft_exchange_choice choose(const weft_cluster *cluster, const weft_exchange_shape *shape,
                                   unsigned allowed)
{
    weft_exchange_choice choice;
    OK(weft_choose_exchange(cluster, shape, allowed, &choice));
    return choice;
}

/* No allowed form and number of chunks is faster, and all slices are large enough. */
CASE(best_of_all)
{
    uint64_t random = 5;
    int chunked = 0;
    for (int round = 0; round < 400; round++) {
        const weft_cluster c = random_cluster(&random);
        const weft_exchange_shape s = random_shape(&random);
        const unsigned allowed = next_random(&random, 1u << WEFT_NUM_EXCHANGES);
        const weft_exchange_choice choice = choose(&c, &s, allowed);
        assert_true(allowed == 0 || (allowed >> choice.form & 1));
        assert_true(choice.num_chunks == 1 ||
                    s.bytes / (choice.num_chunks * s.t) >= s.minimal_bytes);
        assert_true(choice.us == weft_exchange_us(&c, &s, choice.form, choice.num_chunks));
        for (int form = 0; form < WEFT_NUM_EXCHANGES; form++) {
            if (allowed && !(allowed >> form & 1)) {
                assert_int_equal(choice.best_chunks[form], 0);
                continue;
            }
            double least_us = INFINITY;
            for (int n = 1; n <= (form < WEFT_EXCHANGE_O2 ? 1 : WEFT_EXCHANGE_MAX_CHUNKS); n++)
                if (n == 1 || s.bytes / (n * s.t) >= s.minimal_bytes)
                    least_us =
                        fmin(least_us, weft_exchange_us(&c, &s, (weft_exchange_form)form, n));
            assert_true(choice.best_us[form] == least_us);
            assert_true(choice.us <= least_us);
        }
        chunked += choice.num_chunks > 1;

        const weft_exchange_choice again = choose(&c, &s, allowed);
        assert_true(again.form == choice.form && again.num_chunks == choice.num_chunks);
        assert_string_equal(again.reason, choice.reason);
    }
    assert_true(chunked > 50); /* or nothing was tried above */
}

/* Latency a > 0 and everything linear: the best N of direct balances (N - 1) latencies of the
 * all-to-all against the last all-gather, N* = sqrt(gather / latency). */
CASE(interior_optimum)
{
    const weft_cluster c = example(800, 4000);
    /* T(N) = 100 N + 5000 + 10 + 2500 / N: least at N = 5 */
    const weft_exchange_choice choice = choose(&c, &four_by_two, 1u << WEFT_EXCHANGE_DIRECT);
    assert_int_equal(choice.num_chunks, 5);
    close_to(choice.us, 500 + 5000 + 10 + 500);

    weft_exchange_shape coarse = four_by_two;
    coarse.minimal_bytes = 4e5; /* slices of I / (N t) = 1e6 / N: at most 2 */
    assert_int_equal(choose(&c, &coarse, 1u << WEFT_EXCHANGE_DIRECT).num_chunks, 2);
    coarse.minimal_bytes = 1e9;
    assert_int_equal(choose(&c, &coarse, 1u << WEFT_EXCHANGE_DIRECT).num_chunks, 1);

    coarse.num_chunks = 7; /* given: size does not matter, and only chunked forms heed it */
    const weft_exchange_choice given = choose(&c, &coarse, 0);
    assert_int_equal(given.num_chunks, 7);
    close_to(given.best_us[WEFT_EXCHANGE_O2], weft_exchange_us(&c, &coarse, WEFT_EXCHANGE_O2, 7));
    assert_int_equal(given.best_chunks[WEFT_EXCHANGE_O1], 1);

    const weft_exchange_choice whole = choose(&c, &four_by_two, 0);
    assert_int_equal(whole.form, WEFT_EXCHANGE_DIRECT);
    assert_non_null(strstr(whole.reason, "direct x5: 6.01 ms (baseline 20.1 ms; o1_paper 11.11 ms; "
                                         "o1 8.111 ms; o2 x"));
}

CASE(degenerate)
{
    const weft_cluster c = example(800, 4000);
    weft_exchange_shape one_node = four_by_two;
    one_node.e = 1;
    weft_exchange_choice choice = choose(&c, &one_node, 0);
    assert_int_equal(choice.form, WEFT_EXCHANGE_BASELINE);
    close_to(choice.us, 0);
    weft_exchange_shape unsharded = four_by_two;
    unsharded.t = 1;
    choice = choose(&c, &unsharded, 0);
    assert_int_equal(choice.form, WEFT_EXCHANGE_BASELINE);
    close_to(choice.us, 20100);
    weft_exchange_shape nothing = four_by_two;
    nothing.bytes = 0;
    choice = choose(&c, &nothing, 0);
    assert_int_equal(choice.form, WEFT_EXCHANGE_BASELINE);
    close_to(choice.us, 0);

    /* Slower inside a node than between nodes: everything but the baseline loses. */
    const weft_cluster slow = example(20, 20);
    assert_int_equal(choose(&slow, &four_by_two, 0).form, WEFT_EXCHANGE_BASELINE);
}

CASE(refusals)
{
    weft_exchange_choice choice = {.num_chunks = -7};
    weft_cluster c = example(800, 4000);
    c.costs[WEFT_COST_COPY] = (weft_cost){0};
    FAILS(weft_choose_exchange(&c, &four_by_two, 0, &choice), WEFT_CONFIG, "costs.copy");
    assert_int_equal(choice.num_chunks, -7);
    /* direct needs no copies, the baseline no all-gather, one node nothing */
    const unsigned direct = 1u << WEFT_EXCHANGE_DIRECT, baseline = 1u << WEFT_EXCHANGE_BASELINE;
    choose(&c, &four_by_two, direct | baseline);
    c.costs[WEFT_COST_ALL_GATHER] = (weft_cost){0};
    FAILS(weft_choose_exchange(&c, &four_by_two, direct, &choice), WEFT_CONFIG,
          "costs.all_gather is not known, and the all-to-all form direct");
    choose(&c, &four_by_two, baseline);
    c.costs[WEFT_COST_ALL_TO_ALL] = (weft_cost){0};
    FAILS(weft_choose_exchange(&c, &four_by_two, baseline, &choice), WEFT_CONFIG,
          "costs.all_to_all ");
    weft_exchange_shape one_node = four_by_two;
    one_node.e = 1;
    choose(&c, &one_node, baseline | direct);

    weft_exchange_shape wrong = four_by_two;
    wrong.minimal_bytes = 0;
    FAILS(weft_choose_exchange(&c, &wrong, 0, &choice), WEFT_CONFIG, "at least 0 bytes");
    wrong = four_by_two;
    wrong.bytes = NAN;
    FAILS(weft_choose_exchange(&c, &wrong, 0, &choice), WEFT_CONFIG, "no all-to-all of");
    wrong = four_by_two;
    wrong.num_chunks = 257;
    FAILS(weft_choose_exchange(&c, &wrong, 0, &choice), WEFT_CONFIG, "257 chunks");
    wrong = four_by_two;
    wrong.t = 0;
    FAILS(weft_choose_exchange(&c, &wrong, 0, &choice), WEFT_CONFIG, "over 0 ranks");
    FAILS(weft_choose_exchange(&c, &four_by_two, 64, &choice), WEFT_CONFIG, "forms 0x40");
}
