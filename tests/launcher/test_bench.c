/* What benches share, and how the verb answers wrong words. */
#include <math.h>

#include "launcher/measuring/bench.h"
#include "tests/core/check.h"
#include "tests/launcher/child.h"

static void expect_spread(double *values, int num, double low, double median, double high)
{
    weft_spread s = weft_spread_of(values, num);
    assert_int_equal(s.count, num);
    assert_true(fabs(s.low - low) < 1e-12);
    assert_true(fabs(s.median - median) < 1e-12);
    assert_true(fabs(s.high - high) < 1e-12);
}

CASE(spreads_are_medians_and_quartiles)
{
    double one[] = {7}, two[] = {4, 2}, four[] = {4, 1, 3, 2};
    double nine[] = {9, 1, 8, 2, 7, 3, 6, 4, 1e9};
    expect_spread(one, 1, 7, 7, 7);
    expect_spread(two, 2, 2.5, 3, 3.5);
    expect_spread(four, 4, 1.75, 2.5, 3.25);
    expect_spread(nine, 9, 3, 6, 8); /* 1 2 3 4 6 7 8 9 and one far out */
    assert_true(nine[0] == 1 && nine[8] == 1e9);
}

CASE(what_is_left_is_as_what_was)
{
    assert_string_equal(weft_bench_left(5e6, 0, 10).text, "");
    assert_string_equal(weft_bench_left(5e6, 1, 10).text, ", about 45 s left");
    assert_string_equal(weft_bench_left(60e6, 1, 31).text, ", about 30 min left");
    assert_string_equal(weft_bench_left(5e6, 10, 10).text, ", about 0 us left");
}

static void expect_refusal(const char *const *args, const char *wanted)
{
    child c;
    child_run(&c, args, NULL);
    assert_int_equal(c.exit_code, 2);
    assert_true(child_is_line(c.err));
    assert_non_null(strstr(c.err, wanted));
}

CASE(wrong_words_are_answered_with_near_ones)
{
    child c;
    CHILD_RUN(&c, "bench", "--help");
    assert_int_equal(c.exit_code, 0);
    assert_non_null(strstr(c.out, "all-to-all"));
    assert_non_null(strstr(c.out, "moe-layer"));
    expect_refusal(WORDS("bench", "all-to-al"), "did you mean all-to-all?");
    expect_refusal(WORDS("bench", "all-to-all", "--forms", "o1_papr"), "did you mean o1_paper?");
    expect_refusal(WORDS("bench", "all-to-all", "--sizes", "4MX"), "--sizes 4MX");
    expect_refusal(WORDS("bench", "moe-layer", "--partitions", "4,2"),
                   "--partitions: 2 stands behind 4: they must rise");
    expect_refusal(WORDS("bench", "moe-layer", "--json", "x.json"), "x.json: unexpected");
    expect_refusal(WORDS("bench", "all-to-all", "--chunks", "0"), "--chunks 0");
    /* One rank has nobody to exchange with. */
    expect_refusal(WORDS("bench", "all-to-all"), "two ranks are needed");
}

/* The table comes at the end: until then a line says what is measured. */
CASE(a_bench_says_what_it_measures)
{
    child c;
    CHILD_RUN(&c, "bench", "moe-layer", "--memory", "--tokens", "64", "--hidden", "32", "--ffn",
              "32", "--partitions", "2", "--json");
    assert_int_equal(c.exit_code, 0);
    assert_string_equal(c.err, "weft bench: 64 tokens, M 32, H 32: n 2, s1\n");
    assert_int_equal(c.out[0], '{');
}
