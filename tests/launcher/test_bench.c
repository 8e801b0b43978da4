/* What benches share, and how the verb answers wrong words. */
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "launcher/measuring/bench.h"
#include "tests/core/check.h"
#include "tests/launcher/child.h"
#include "tests/launcher/svg.h"

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

CASE(bars_are_drawn_to_scale)
{
    static const char *const groups[] = {"a < b & c", "second"}, *const labels[] = {"one", "two"};
    static const weft_spread values[] = {{10, 9, 12, 5}, {6, 6, 6, 5}, {.count = 0}, {1, 1, 1, 1}};
    weft_bars bars = {"Title", "ms", "n: <partitions>", 2, 2, groups, labels, values};
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    OK(weft_bars_write_svg(&bars, out));
    fclose(out);
    assert_true(svg_is_well_formed(text));
    assert_non_null(strstr(text, "a &lt; b &amp; c"));
    assert_non_null(strstr(text, ">n: &lt;partitions&gt;</text>"));
    assert_non_null(strstr(text, "bars: medians; whiskers: quartiles"));
    /* The bars alone have this colour: 10, 6 and 1; the one of no value is not drawn. */
    double widths[4];
    int num = 0;
    for (const char *at = text; (at = strstr(at, "<rect")) != NULL; at++) {
        const char *width = strstr(at, "width=\""), *end = strstr(at, "/>");
        const char *fill = strstr(at, "#3b76d1");
        if (fill && fill < end && num < 4)
            widths[num++] = strtod(width + 7, NULL);
    }
    assert_int_equal(num, 3);
    assert_true(fabs(widths[1] / widths[0] - 0.6) < 1e-3);
    assert_true(widths[2] > widths[0]); /* longest of its group */
    free(text);
}

CASE(files_are_written_whole_or_not_at_all)
{
    char folder[32];
    assert_true(child_folder_enter(folder));
    const char *const one[] = {"one"};
    weft_bars bars = {.title = "t",
                      .unit = "ms",
                      .legend = "",
                      .num_groups = 1,
                      .num_bars = 1,
                      .groups = one,
                      .labels = one,
                      .values = &(weft_spread){1, 1, 1, 1}};
    OK(weft_bench_write_svg(&bars, "out.svg"));
    assert_int_equal(access("out.svg", R_OK), 0);
    assert_int_equal(access("out.svg.partial", F_OK), -1);
    FAILS(weft_bench_write_svg(&bars, "nowhere/out.svg"), WEFT_FILE,
          "nowhere/out.svg: cannot write");
    child_folder_leave(folder);
}

static void expect_refusal(const char *const *args, const char *wanted)
{
    child c;
    child_run(&c, args, NULL);
    assert_int_equal(c.exit_code, 2);
    assert_true(child_is_line(c.err));
    assert_non_null(strstr(c.err, wanted));
    child_release(&c);
}

CASE(wrong_words_are_answered_with_near_ones)
{
    child c;
    CHILD_RUN(&c, "bench", "--help");
    assert_int_equal(c.exit_code, 0);
    assert_non_null(strstr(c.out, "all-to-all"));
    assert_non_null(strstr(c.out, "moe-layer"));
    child_release(&c);
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
    child_release(&c);
}

int main(void)
{
    return run_cases(NULL, NULL);
}
