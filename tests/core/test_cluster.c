#include "core/cluster.h"

#include <math.h>

#include "tests/core/temporary.h"

/* --- numbers ------------------------------------------------------------------------------- */

static weft_cluster sample(void)
{
    weft_cluster c = {.name = "two \"nodes\" \xc3\xa9\n", .num_nodes = 2, .ranks_per_node = 4};
    c.interference = weft_interference_none();
    c.interference.alpha[WEFT_WORK_COMP][WEFT_WORK_COMM] = 0.8125;
    c.interference.alpha[WEFT_WORK_MEM][WEFT_WORK_ALL] = 1.0 / 3;
    c.costs[WEFT_COST_ALL_TO_ALL] = (weft_cost){
        .peak = 1.25e8,
        .curve = {.num_points = 3, .volume = {0, 1000, 4e6}, .time_us = {0, 50.5, 35000.1}}};
    c.costs[WEFT_COST_GEMM_BF16].peak = 1e12 / 3;
    for (int i = 0; i < WEFT_CURVE_MAX_POINTS; i++) {
        weft_curve *curve = &c.costs[WEFT_COST_GEMM_BF16].curve;
        curve->num_points = i + 1;
        curve->volume[i] = ldexp(1.1, i);
        curve->time_us[i] = 7 + i / 7.0;
    }
    return c;
}

static void costs_are_priced(void **state)
{
    (void)state;
    weft_cluster c = sample();
    assert_true(weft_cluster_knows(&c, WEFT_COST_ALL_TO_ALL));
    assert_false(weft_cluster_knows(&c, WEFT_COST_COPY));
    assert_true(weft_cluster_us(&c, WEFT_COST_ALL_TO_ALL, 1000) == 50.5);
    assert_true(weft_cluster_us(&c, WEFT_COST_ALL_TO_ALL, 500) == 25.25);
    assert_true(weft_cluster_us(&c, WEFT_COST_ALL_TO_ALL, 0) == 0);
    assert_true(weft_cluster_us(&c, WEFT_COST_ALL_TO_ALL, -1) == 0);
    /* r = volume / time / peak */
    double r = weft_cluster_efficiency(&c, WEFT_COST_ALL_TO_ALL, 4e6);
    assert_true(fabs(r - 4e6 / 35000.1e-6 / 1.25e8) < 1e-12);
    assert_true(r > 0.91 && r < 0.92);
    c.costs[WEFT_COST_ALL_TO_ALL].peak = 1e6; /* a message that beats the link by its burst */
    assert_true(weft_cluster_efficiency(&c, WEFT_COST_ALL_TO_ALL, 4e6) == 1);
}

static void texts_are_distinct(void **state)
{
    (void)state;
    for (int i = 0; i < WEFT_NUM_COSTS; i++) {
        weft_cost_kind kind = (weft_cost_kind)i;
        assert_true(*weft_cost_help(kind));
        assert_string_equal(weft_cost_unit(kind),
                            strncmp(weft_cost_text(kind), "gemm", 4) ? "bytes" : "FLOPs");
        for (int j = 0; j < i; j++)
            assert_string_not_equal(weft_cost_text(kind), weft_cost_text((weft_cost_kind)j));
    }
    assert_string_equal(weft_work_class_text(WEFT_WORK_ALL), "all");
    weft_interference none = weft_interference_none();
    for (int y = 0; y < WEFT_NUM_WORK_CLASSES; y++)
        for (int x = 0; x <= WEFT_WORK_ALL; x++)
            assert_true(none.alpha[y][x] == 1);
}

/* --- files --------------------------------------------------------------------------------- */

static void check_equal(const weft_cluster *a, const weft_cluster *b)
{
    assert_string_equal(a->name, b->name);
    assert_int_equal(a->num_nodes, b->num_nodes);
    assert_int_equal(a->ranks_per_node, b->ranks_per_node);
    assert_memory_equal(&a->interference, &b->interference, sizeof a->interference);
    for (int i = 0; i < WEFT_NUM_COSTS; i++) {
        const weft_cost *x = &a->costs[i], *y = &b->costs[i];
        assert_int_equal(x->curve.num_points, y->curve.num_points);
        assert_true(x->peak == y->peak);
        for (int p = 0; p < x->curve.num_points; p++)
            assert_true(x->curve.volume[p] == y->curve.volume[p] &&
                        x->curve.time_us[p] == y->curve.time_us[p]);
    }
}

static void a_file_reads_back_to_the_bit(void **state)
{
    (void)state;
    const char *path = temporary_path("cluster.json");
    weft_cluster wrote = sample(), read;
    OK(weft_cluster_write(&wrote, path));
    memset(&read, 0xa5, sizeof read);
    OK(weft_cluster_read(path, &read));
    check_equal(&wrote, &read);
    assert_int_equal(access(temporary_path("cluster.json.partial"), F_OK), -1);
    OK(weft_cluster_write(&read, path)); /* over itself */
    OK(weft_cluster_read(path, &wrote));
    check_equal(&wrote, &read);
}

static weft_status read_text(const char *text, weft_cluster *out)
{
    const char *path = temporary_path("given.json");
    temporary_write(path, text, strlen(text));
    return weft_cluster_read(path, out);
}

static void a_file_by_hand_is_short(void **state)
{
    (void)state;
    weft_cluster c;
    OK(read_text("\xef\xbb\xbf// two machines\n{\"num_nodes\": 2, \"ranks_per_node\": 4}", &c));
    assert_string_equal(c.name, "");
    assert_false(weft_cluster_knows(&c, WEFT_COST_ALL_TO_ALL));
    assert_true(c.interference.alpha[0][1] == 1);
    OK(read_text("{\"num_nodes\": 2, \"ranks_per_node\": 4, \"costs\": {\"message\":"
                 " {\"peak\": 1e8, \"latency_us\": 30}, \"copy\": {\"points\": [[100, 10],"
                 " [4000, 20], [5000, 50]]}}}",
                 &c));
    assert_true(fabs(weft_cluster_us(&c, WEFT_COST_MESSAGE, 1e6) - (30 + 1e4)) < 1e-6);
    assert_true(c.costs[WEFT_COST_MESSAGE].peak == 1e8);
    assert_true(c.costs[WEFT_COST_COPY].peak == 4000 / (20 * 1e-6)); /* the best of the three */
    assert_true(weft_cluster_efficiency(&c, WEFT_COST_COPY, 4000) == 1);
}

#define HEAD "{\"num_nodes\": 2, \"ranks_per_node\": 4, "
#define COPY(text) HEAD "\"costs\": {\"copy\": " text "}}"
#define POINTS(text) COPY("{\"peak\": 1e9, \"points\": " text "}")
#define ALPHA(text) HEAD "\"interference\": " text "}"

static const struct wrong {
    const char *text, *wanted;
} wrongs[] = {
    {"", ":1:1: not valid JSON: the text is empty"},
    {"[]", ":1:1: expected an object, got an array"},
    {"{\n \"num_nodes\": 2,}", ":2:16: not valid JSON: nothing follows"},
    {"{\"ranks_per_node\": 4}", ":1:1: num_nodes: missing"},
    {"{\"num_nodes\": 4}", ":1:1: ranks_per_node: missing"},
    {"{\"num_nodes\": 0, \"ranks_per_node\": 4}", ":1:15: num_nodes: 0 is not a whole"},
    {"{\"num_nodes\": 1.5, \"ranks_per_node\": 4}", ":1:15: num_nodes: 1.5 is not a whole"},
    {"{\"num_nodes\": \"2\"}", ":1:15: num_nodes: expected a number, got a string"},
    {"{\"num_node\": 2}", ":1:2: num_node: unknown key; did you mean num_nodes?"},
    {"{\"zzz\": 2}", ":1:2: zzz: unknown key; the keys are name, num_nodes"},
    {"{\"num_nodes\": 2,\n \"num_nodes\": 2}",
     ":2:2: num_nodes: given twice; first at line 1, column 2"},
    {"{\"\\ud83d\": 2}", ":1:2: a \\u escape is half"},
    {HEAD "\"name\": 5}", ":1:47: name: expected a string, got a number"},
    {HEAD "\"name\": \"\\ud83d\"}", ":1:47: name: a \\u escape is half"},
    {HEAD "\"name\": \"0123456789012345678901234567890123456789012345678901234567890123\"}",
     "name: longer than 63 bytes"},
    {HEAD "\"costs\": []}", "costs: expected an object of costs, got an array"},
    {HEAD "\"costs\": {\"all_to_al\": {}}}",
     ":1:49: costs.all_to_al: unknown key; did you mean costs.all_to_all?"},
    {COPY("3"), "costs.copy: expected an object, got a number"},
    {COPY("{}"), "costs.copy: needs either points or latency_us"},
    {COPY("{\"points\": [[1, 1]], \"latency_us\": 1}"), "costs.copy: needs either points or"},
    {COPY("{\"latency_us\": 1}"), "costs.copy: latency_us needs a peak"},
    {COPY("{\"latency_us\": -1, \"peak\": 2e9}"), "costs.copy.latency_us: -1 µs is not a time"},
    {COPY("{\"latency\": 1}"), "costs.copy.latency: unknown key; did you mean costs.copy.lat"},
    {COPY("{\"peak\": 0, \"latency_us\": 1}"), "costs.copy.peak: 0 is not positive"},
    {COPY("{\"peak\": 1e999, \"latency_us\": 1}"), "costs.copy.peak: 1e999 is too large"},
    {COPY("{\"peak\": null, \"latency_us\": 1}"), "costs.copy.peak: expected a number, got null"},
    {POINTS("{}"), "costs.copy.points: expected an array of [volume, microseconds], got an obj"},
    {POINTS("[]"), "costs.copy.points: a curve needs a point"},
    {POINTS("[5]"), "costs.copy.points[0]: expected [volume, microseconds], got a number"},
    {POINTS("[[1]]"), "costs.copy.points[0]: expected [volume, microseconds], got 1 numbers"},
    {POINTS("[[1, 2, 3]]"), "costs.copy.points[0]: expected [volume, microseconds], got 3 num"},
    {POINTS("[[1, 2], [1, 3]]"), "costs.copy.points[1]: the volume 1 does not rise above 1"},
    {POINTS("[[4, 2], [3, 3]]"), "costs.copy.points[1]: the volume 3 does not rise above 4"},
    {POINTS("[[-1, 2]]"), "costs.copy.points[0]: the volume -1 does not rise above 0"},
    {POINTS("[[1, 0]]"), "costs.copy.points[0]: 0 µs is not a time"},
    {POINTS("[[1, -2]]"), "costs.copy.points[0]: -2 µs is not a time"},
    {POINTS("[[1, \"x\"]]"), "costs.copy.points[0]: expected a number, got a string"},
    {COPY("{\"points\": [[0, 0]]}"), "costs.copy.points: no rate follows from these"},
    {POINTS("[[1,1],[2,1],[3,1],[4,1],[5,1],[6,1],[7,1],[8,1],[9,1],[10,1],[11,1],[12,1],[13,1],"
            "[14,1],[15,1],[16,1],[17,1],[18,1],[19,1],[20,1],[21,1],[22,1],[23,1],[24,1],[25,1],"
            "[26,1],[27,1],[28,1],[29,1],[30,1],[31,1],[32,1],[33,1]]"),
     "costs.copy.points[32]: a curve has at most 32 points"},
    /* Numbers that no machine has: GB/s for B/s, seconds for microseconds, TFLOP/s for FLOP/s. */
    {COPY("{\"peak\": 12.5, \"latency_us\": 1}"),
     ":1:66: costs.copy.peak: 12.5 bytes/s, where 1e+03 to"},
    {POINTS("[[1048576, 1e-4]]"),
     "costs.copy.points[0]: 1.05e+16 bytes/s, where 1e+03 to 1e+14 are"},
    {HEAD "\"costs\": {\"gemm_bf16\": {\"peak\": 989, \"latency_us\": 1}}}",
     "costs.gemm_bf16.peak: 989 FLOPs/s, where 1e+06 to 1e+17 are possible: volumes are in FLOPs"},
    {HEAD "\"costs\": {\"message\": {\"peak\": 2e13, \"latency_us\": 1}}}",
     "costs.message.peak: 2e+13"},
    {ALPHA("[[1,1,0.01,1],[1,1,1,1],[1,1,1,1]]"),
     ":1:56: interference[0]: 0.01 of its speed is left to comp beside mem, where sharing leaves "
     "0.25 or more: measure again with weft calibrate on idle cores, or leave interference out"},
    {ALPHA("[[1,1,1,1],[1,1,1,0.15],[1,1,1,1]]"), "0.15 of its speed is left to comm beside all"},
    {ALPHA("1"), ":1:55: interference: expected three rows of four numbers, got a number"},
    {ALPHA("[[1,1,1,1],[1,1,1,1]]"), "interference: expected three rows of four numbers, got 2"},
    {ALPHA("[[1,1,1,1],[1,1,1,1],[1,1,1,1],[1,1,1,1]]"), "of four numbers, got 4 rows"},
    {ALPHA("[[1,1,1],[1,1,1,1],[1,1,1,1]]"), "interference[0]: expected four numbers, got 3"},
    {ALPHA("[[1,0,1,1],[1,1,1,1],[1,1,1,1]]"), "interference[0]: 0 is no share of speed: of comp"},
    {ALPHA("[[1,1,1,1],[1,1,1,1],[1,1,1,3]]"), "interference[2]: 3 is no share of speed: of mem"},
    {ALPHA("[[1,1,1,1],[1,0.5,1,1],[1,1,1,1]]"), "interference[1]: 0.5 where comm is beside its"},
};

static void wrong_files_are_one_line(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof wrongs / sizeof *wrongs; i++) {
        weft_cluster c = {.num_nodes = 77}, before = c;
        if (read_text(wrongs[i].text, &c) != WEFT_CONFIG)
            fail_msg("taken: %s", wrongs[i].text);
        const char *text = weft_error_get()->text;
        if (!strstr(text, "given.json:") || !strstr(text, wrongs[i].wanted) || strchr(text, '\n'))
            fail_msg("%s\ngave %s\nnot  %s", wrongs[i].text, text, wrongs[i].wanted);
        assert_memory_equal(&c, &before, sizeof c); /* written on success alone */
        weft_error_clear();
    }
    weft_cluster c;
    FAILS(weft_cluster_read(temporary_path("none.json"), &c), WEFT_FILE, "none.json");
    temporary_write(temporary_path("zero.json"), "{}\0{}", 5);
    FAILS(weft_cluster_read(temporary_path("zero.json"), &c), WEFT_CONFIG, "zero byte");
}

static void a_write_that_fails_leaves_what_was(void **state)
{
    (void)state;
    weft_cluster c = sample();
    weft_cluster still = c;
    still.interference.alpha[WEFT_WORK_COMM][WEFT_WORK_COMP] = 0.01;
    FAILS(weft_cluster_write(&still, temporary_path("still.json")), WEFT_CONFIG,
          "interference[1]: 0.01 of its speed is left to comm beside comp");
    assert_int_equal(access(temporary_path("still.json"), F_OK), -1);
    FAILS(weft_cluster_write(&c, temporary_path("none/cluster.json")), WEFT_FILE, "cannot write");
    FAILS(weft_cluster_write(&c, temporary_folder), WEFT_FILE, "cannot write"); /* a folder */
    char beside[128];
    snprintf(beside, sizeof beside, "%s.partial", temporary_folder);
    assert_int_equal(access(beside, F_OK), -1);
    FILE *full = fopen("/dev/full", "w");
    if (full) {
        FAILS(weft_cluster_print(&c, full), WEFT_FILE, "cannot write");
        fclose(full);
    }
}

/* --- damaged files ------------------------------------------------------------------------- */

static uint64_t random_state = 20261121;

static uint32_t next_random(uint32_t limit)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(((random_state >> 32) * limit) >> 32);
}

/* Changes, removes or repeats a few bytes; or cuts the end. Returns the new length. */
static size_t damage(char *text, size_t bytes, size_t capacity)
{
    static const char *const pieces[] = {"{", "}", "[", "]",     "\"",   ",",   ":",    "-",
                                         "0", "9", ".", "1e999", "null", "\\u", "e-99", "//"};
    for (uint32_t i = 1 + next_random(3); i > 0; i--) {
        size_t at = next_random((uint32_t)bytes + 1);
        const char *piece = pieces[next_random(sizeof pieces / sizeof *pieces)];
        size_t cut = next_random(4), length = next_random(2) ? strlen(piece) : 0;
        if (next_random(16) == 0)
            bytes = at;
        cut = cut > bytes - at ? bytes - at : cut;
        if (bytes - cut + length >= capacity)
            continue;
        memmove(text + at + length, text + at + cut, bytes - at - cut);
        memcpy(text + at, piece, length);
        bytes = bytes - cut + length;
    }
    return bytes;
}

static void damage_never_crashes(void **state)
{
    (void)state;
    const char *path = temporary_path("damaged.json"), *again = temporary_path("again.json");
    weft_cluster good = sample();
    size_t bytes;
    int accepted = 0, refused = 0;
    OK(weft_cluster_write(&good, path));
    char *whole = (char *)temporary_read(path, &bytes), text[8192];
    assert_true(bytes < sizeof text / 2);
    for (int round = 0; round < 1500; round++) {
        weft_cluster c, back;
        memcpy(text, whole, bytes);
        temporary_write(path, text, damage(text, bytes, sizeof text));
        weft_status status = weft_cluster_read(path, &c);
        if (status == WEFT_OK) { /* what is taken makes sense and survives being written */
            accepted++;
            assert_true(c.num_nodes >= 1 && c.ranks_per_node >= 1);
            for (int i = 0; i < WEFT_NUM_COSTS; i++)
                if (weft_cluster_knows(&c, (weft_cost_kind)i)) {
                    double r = weft_cluster_efficiency(&c, (weft_cost_kind)i, 1000);
                    assert_true(r > 0 && r <= 1);
                }
            OK(weft_cluster_write(&c, again));
            OK(weft_cluster_read(again, &back));
            check_equal(&c, &back);
        } else {
            refused++;
            assert_int_equal(status, WEFT_CONFIG);
            assert_non_null(strstr(weft_error_get()->text, "damaged.json:"));
            assert_null(strchr(weft_error_get()->text, '\n'));
            weft_error_clear();
        }
    }
    free(whole);
    /* Both ways through must have been seen, or the damage is of no use. */
    assert_true(accepted > 50 && refused > 500);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(costs_are_priced),
        cmocka_unit_test(texts_are_distinct),
        cmocka_unit_test(a_file_reads_back_to_the_bit),
        cmocka_unit_test(a_file_by_hand_is_short),
        cmocka_unit_test(wrong_files_are_one_line),
        cmocka_unit_test(a_write_that_fails_leaves_what_was),
        cmocka_unit_test(damage_never_crashes),
    };
    return cmocka_run_group_tests(tests, temporary_create, temporary_remove);
}
