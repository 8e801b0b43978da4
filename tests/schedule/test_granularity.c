/* MPMoE Algorithm 1 against trying every number of partitions. */
#include "tests/schedule/programs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "schedule/moe/choose.h"

static const int one_to_eight[] = {1, 2, 3, 4, 5, 6, 7, 8};

static weft_granularity fresh(void)
{
    weft_granularity g;
    weft_granularity_init(&g, one_to_eight, 8);
    return g;
}

/* Too coarse: nothing overlaps (B / n); too fine: overhead (n). The best n is the integer beside
 * sqrt(share B / overhead), so it rises with B. */
typedef struct profile {
    double share, overhead_us;
} profile;

static double time_us(const profile *p, double tokens, int n)
{
    return tokens + p->share * tokens / n + p->overhead_us * n;
}

static int best_by_trying(const profile *p, double tokens)
{
    int best = 1;
    for (int n = 2; n <= 8; n++)
        if (time_us(p, tokens, n) < time_us(p, tokens, best))
            best = n;
    return best;
}

/* Runs the search of one B to its end. */
static int search(weft_granularity *g, const profile *p, double tokens, int *num_trials)
{
    int n;
    bool trial;
    for (int i = 0;; i++) {
        assert_true(i < 9);
        weft_granularity_next(g, tokens, &n, &trial);
        if (!trial)
            return n;
        weft_granularity_report(g, tokens, n, time_us(p, tokens, n));
        ++*num_trials;
    }
}

static void ranges_are_sound(const weft_granularity *g)
{
    for (int i = 0; i < g->num_ranges; i++) {
        assert_true(g->ranges[i].floor <= g->ranges[i].ceil);
        if (i == 0)
            continue;
        assert_true(g->ranges[i - 1].n < g->ranges[i].n);
        assert_true(g->ranges[i - 1].ceil < g->ranges[i].floor);
    }
    assert_true(g->num_ranges <= g->num_candidates);
}

CASE(same_as_trying_all)
{
    const profile profiles[] = {{1, 10}, {0.5, 100}, {0.9, 1}, {0.01, 50}, {1, 1e6}};
    for (size_t i = 0; i < sizeof(profiles) / sizeof(profiles[0]); i++) {
        const profile *p = &profiles[i];
        weft_granularity g = fresh();
        uint64_t random = 3 + i;
        int num_trials = 0;
        for (int step = 0; step < 2000; step++) {
            const double tokens = 1 + floor(exp(next_random(&random, 10000) / 10000.0 * 12));
            const int n = search(&g, p, tokens, &num_trials);
            if (tokens > 1)
                assert_int_equal(n, best_by_trying(p, tokens));
            ranges_are_sound(&g);
        }
        /* 2000 steps of trying all 8 would be 16000; boundaries are few. */
        if (num_trials > 400)
            fail_msg("%d trials for profile %zu", num_trials, i);
    }
}

CASE(stops_at_the_turn)
{
    const profile p = {1, 100}; /* 1000 tokens: sqrt(10), so 3 */
    weft_granularity g = fresh();
    int num_trials = 0;
    assert_int_equal(search(&g, &p, 1000, &num_trials), 3);
    assert_int_equal(num_trials, 4); /* 1, 2, 3, and 4 is slower */
    assert_int_equal(search(&g, &p, 1000, &num_trials), 3);
    assert_int_equal(num_trials, 4); /* remembered */
    assert_true(weft_granularity_us(&g, 1000) == time_us(&p, 1000, 3));
    assert_true(weft_granularity_us(&g, 2000) == 2 * time_us(&p, 1000, 3));

    /* Larger B start at 3, smaller ones end there. */
    assert_int_equal(search(&g, &p, 1900, &num_trials), 4);
    assert_int_equal(num_trials, 4 + 3); /* 3, 4, 5 */
    assert_int_equal(search(&g, &p, 1500, &num_trials), 4);
    assert_int_equal(num_trials, 7 + 2); /* 3, 4 are all there is between */
    assert_int_equal(search(&g, &p, 1700, &num_trials), 4);
    assert_int_equal(num_trials, 9); /* in the range 1500 to 1900 */
    assert_int_equal(search(&g, &p, 100, &num_trials), 1);
    assert_int_equal(num_trials, 9 + 2);
    assert_int_equal(search(&g, &p, 50, &num_trials), 1); /* from 0 to 100 */
    assert_int_equal(search(&g, &p, 1e9, &num_trials), 8);
    const int before = num_trials;
    assert_int_equal(search(&g, &p, 2e9, &num_trials), 8); /* from 1e9 to infinity */
    assert_int_equal(num_trials, before);
}

/* Times that contradict monotony are not seen: only n between the neighbours' are tried. */
CASE(contradiction)
{
    const profile p = {1, 100}, fewer = {1, 1e9}; /* by `fewer`, 1 is always best */
    weft_granularity g = fresh();
    int num_trials = 0;
    assert_int_equal(search(&g, &p, 1000, &num_trials), 3);
    assert_int_equal(search(&g, &fewer, 5000, &num_trials), 3);
    ranges_are_sound(&g);
    assert_int_equal(search(&g, &p, 3000, &num_trials), 3); /* 1000 to 5000 now */
    uint64_t random = 1;
    for (int step = 0; step < 500; step++) { /* noise alone */
        const profile noise = {next_random(&random, 1000) / 500.0, 100};
        search(&g, &noise, 1 + next_random(&random, 100000), &num_trials);
        ranges_are_sound(&g);
    }
}

CASE(one_search_at_a_time)
{
    const profile p = {1, 100};
    weft_granularity g = fresh();
    int n, num_trials = 0;
    bool trial;
    weft_granularity_next(&g, 1000, &n, &trial);
    assert_true(trial && n == 1);
    /* The same again until it is reported; other reports change nothing. */
    weft_granularity_next(&g, 1000, &n, &trial);
    assert_true(trial && n == 1);
    weft_granularity_report(&g, 1000, 2, 5);
    weft_granularity_report(&g, 999, 1, 5);
    weft_granularity_next(&g, 1000, &n, &trial);
    assert_true(trial && n == 1);
    weft_granularity_report(&g, 1000, 1, time_us(&p, 1000, 1));

    /* Another B in between is answered by its neighbour below, and the search goes on. */
    weft_granularity_next(&g, 500, &n, &trial);
    assert_true(!trial && n == 1);
    weft_granularity_next(&g, 1000, &n, &trial);
    assert_true(trial && n == 2);
    weft_granularity_report(&g, 1000, 2, time_us(&p, 1000, 2));

    /* If B does not come back, others get their turn. */
    int asked = 0;
    do
        weft_granularity_next(&g, 500 + asked, &n, &trial);
    while (!trial && ++asked < 1000);
    assert_true(trial && asked > 10 && asked < 200);
    assert_int_equal(search(&g, &p, 500 + asked, &num_trials), best_by_trying(&p, 500 + asked));
    assert_int_equal(search(&g, &p, 1000, &num_trials), 3);
}

CASE(odd_inputs)
{
    weft_granularity g;
    int n;
    bool trial;
    weft_granularity_init(&g, (int[]){4}, 1);
    weft_granularity_next(&g, 1e6, &n, &trial);
    assert_true(!trial && n == 4);

    g = fresh();
    weft_granularity_next(&g, 0, &n, &trial);
    assert_true(!trial && n == 1);
    weft_granularity_next(&g, 1, &n, &trial);
    assert_true(!trial && n == 1);
    assert_true(weft_granularity_us(&g, 10) == INFINITY);

    weft_granularity_report(&g, 0, 1, 5); /* nothing was asked for */
    assert_int_equal(g.num_cached, 0);

    /* A flat profile ends with the smallest n, and a measurement that is no number ends a search.
     */
    for (int i = 0; i < 8; i++) {
        weft_granularity_next(&g, 10, &n, &trial);
        assert_true(trial && n == i + 1);
        weft_granularity_report(&g, 10, n, 7);
    }
    weft_granularity_next(&g, 10, &n, &trial);
    assert_true(!trial && n == 1);
    weft_granularity_next(&g, 20, &n, &trial);
    weft_granularity_report(&g, 20, n, NAN);
    weft_granularity_next(&g, 20, &n, &trial);
    assert_true(!trial && n == 1);
}

/* More different B than the cache holds: the ranges go on answering. */
CASE(cache_wraps)
{
    const profile p = {1, 100};
    const int candidates[] = {1, 8};
    weft_granularity g;
    weft_granularity_init(&g, candidates, 2);
    int num_trials = 0;
    for (int i = 0; i < 2 * WEFT_GRANULARITY_MAX_CACHE; i++) /* rising: each one a new ceil */
        assert_int_equal(search(&g, &p, 2 + i * 0.5, &num_trials), 1);
    assert_int_equal(num_trials, 4 * WEFT_GRANULARITY_MAX_CACHE);
    assert_int_equal(g.num_cached, WEFT_GRANULARITY_MAX_CACHE);
    for (int i = 0; i < 2 * WEFT_GRANULARITY_MAX_CACHE; i++)
        assert_int_equal(search(&g, &p, 2 + i * 0.5, &num_trials), 1);
    assert_int_equal(num_trials, 4 * WEFT_GRANULARITY_MAX_CACHE);
}

/* The fastest strategy at its own best n. */
CASE(strategies)
{
    const profile of[WEFT_NUM_REUSES] = {{1, 100}, {3, 200}, {2, 100}, {0.5, 100}, {0.7, 50}};
    weft_granularity g[WEFT_NUM_REUSES];
    for (unsigned allowed = 0; allowed < 1u << WEFT_NUM_REUSES; allowed++) {
        int best = -1;
        double best_us = INFINITY;
        for (int reuse = 0; reuse < WEFT_NUM_REUSES; reuse++) {
            g[reuse] = fresh();
            const double us = time_us(&of[reuse], 4000, best_by_trying(&of[reuse], 4000));
            if ((allowed == 0 || allowed >> reuse & 1) && us < best_us) {
                best = reuse;
                best_us = us;
            }
        }
        weft_moe_pipeline pipeline;
        bool trial;
        int num_trials = 0;
        while (weft_granularity_next_of(g, allowed, 4000, &pipeline, &trial), trial) {
            assert_true(allowed == 0 || allowed >> pipeline.reuse & 1);
            weft_granularity_report(&g[pipeline.reuse], 4000, pipeline.num_partitions,
                                    time_us(&of[pipeline.reuse], 4000, pipeline.num_partitions));
            assert_true(++num_trials <= 8 * WEFT_NUM_REUSES);
        }
        assert_int_equal(pipeline.reuse, best);
        assert_int_equal(pipeline.num_partitions, best_by_trying(&of[best], 4000));
    }
}

/* One step at a time over micro-batches of many sizes: every size gets its turn, and trials end. */
CASE(strategies_of_many_sizes)
{
    const profile of[WEFT_NUM_REUSES] = {{2, 100}, {3, 200}, {2.5, 100}, {0.5, 100}, {3, 50}};
    const double sizes[] = {30, 200, 900, 1100, 2500, 6000};
    weft_granularity g[WEFT_NUM_REUSES];
    for (int reuse = 0; reuse < WEFT_NUM_REUSES; reuse++)
        g[reuse] = fresh();
    uint64_t random = 9;
    int last_trial = 0;
    for (int step = 0; step < 20000; step++) {
        const double tokens = sizes[next_random(&random, 6)];
        weft_moe_pipeline pipeline;
        bool trial;
        weft_granularity_next_of(g, 0, tokens, &pipeline, &trial);
        if (trial) {
            last_trial = step;
            weft_granularity_report(&g[pipeline.reuse], tokens, pipeline.num_partitions,
                                    time_us(&of[pipeline.reuse], tokens, pipeline.num_partitions));
        }
    }
    assert_true(last_trial < 3000);
    for (int i = 0; i < 6; i++) {
        weft_moe_pipeline pipeline;
        bool trial;
        weft_granularity_next_of(g, 0, sizes[i], &pipeline, &trial);
        assert_int_equal(pipeline.num_partitions, best_by_trying(&of[pipeline.reuse], sizes[i]));
        if (sizes[i] >=
            900) /* 30 and 200 may never have been measured: n is 1 for all up to there */
            assert_int_equal(pipeline.reuse, WEFT_REUSE_S3);
    }
}

/* With n given there is nothing to search, but strategies are still measured against each other. */
CASE(strategies_of_one_n)
{
    const double times[WEFT_NUM_REUSES] = {50, 40, 20, 30, 60};
    weft_granularity g[WEFT_NUM_REUSES];
    for (int reuse = 0; reuse < WEFT_NUM_REUSES; reuse++)
        weft_granularity_init(&g[reuse], (int[]){4}, 1);
    weft_moe_pipeline pipeline;
    bool trial;
    int num_trials = 0;
    for (; weft_granularity_next_of(g, 0, 1000, &pipeline, &trial), trial; num_trials++) {
        assert_true(num_trials < WEFT_NUM_REUSES);
        assert_int_equal(pipeline.num_partitions, 4);
        weft_granularity_next_of(g, 0, 1000, &pipeline, &trial); /* asks for the same again */
        assert_true(trial && (int)pipeline.reuse == num_trials);
        weft_granularity_report(&g[pipeline.reuse], 1000, 4, times[pipeline.reuse]);
    }
    assert_int_equal(num_trials, WEFT_NUM_REUSES);
    assert_int_equal(pipeline.reuse, WEFT_REUSE_S2);
    assert_int_equal(pipeline.num_partitions, 4);
    /* one strategy alone: nothing to compare, nothing to try */
    weft_granularity_init(&g[WEFT_REUSE_S3], (int[]){4}, 1);
    weft_granularity_next_of(g, 1u << WEFT_REUSE_S3, 1000, &pipeline, &trial);
    assert_true(!trial && pipeline.reuse == WEFT_REUSE_S3);
}
