#include "core/cluster/cluster.h"

#include <math.h>

#include "core/cluster/internal.h"
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

CASE(costs_are_priced)
{
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

CASE(texts_are_distinct)
{
    for (int i = 0; i < WEFT_NUM_COSTS; i++) {
        weft_cost_kind kind = (weft_cost_kind)i;
        assert_true(*weft_cost_help(kind));
        bool computes =
            !strncmp(weft_cost_text(kind), "gemm", 4) || !strncmp(weft_cost_text(kind), "att", 3);
        assert_string_equal(weft_cost_unit(kind), computes ? "FLOPs" : "bytes");
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

static void check_hardware(const weft_hardware *a, const weft_hardware *b)
{
    assert_string_equal(a->device_name, b->device_name);
    assert_int_equal(a->given, b->given);
    assert_memory_equal(a->figures, b->figures, sizeof a->figures);
    assert_memory_equal(a->efficiencies, b->efficiencies, sizeof a->efficiencies);
}

static void check_sections(const weft_cluster *a, const weft_cluster *b)
{
    check_hardware(&a->hardware, &b->hardware);
    assert_string_equal(a->currency, b->currency);
    assert_int_equal(a->num_levels, b->num_levels);
    assert_memory_equal(a->levels, b->levels, sizeof a->levels);
    assert_int_equal(a->num_groups, b->num_groups);
    for (int i = 0; i < a->num_groups; i++) {
        const weft_node_group *x = &a->groups[i], *y = &b->groups[i];
        check_hardware(&x->hardware, &y->hardware);
        assert_int_equal(x->num_nodes, y->num_nodes);
        assert_int_equal(x->own_figures, y->own_figures);
        assert_int_equal(x->own_efficiencies, y->own_efficiencies);
        assert_int_equal(x->own_name, y->own_name);
    }
    assert_int_equal(a->num_sources, b->num_sources);
    for (int i = 0; i < a->num_sources; i++) {
        assert_string_equal(a->sources[i].key, b->sources[i].key);
        assert_string_equal(a->sources[i].where, b->sources[i].where);
        assert_int_equal(a->sources[i].class_, b->sources[i].class_);
        assert_true(a->sources[i].spread == b->sources[i].spread);
    }
    assert_int_equal(a->num_products, b->num_products);
    assert_memory_equal(a->products, b->products, sizeof a->products);
    assert_int_equal(a->num_operations, b->num_operations);
    for (int i = 0; i < a->num_operations; i++) {
        const weft_timed_operation *x = &a->operations[i], *y = &b->operations[i];
        assert_string_equal(x->module, y->module);
        assert_true(x->phase == y->phase && x->dtype == y->dtype);
        assert_true(x->volume == y->volume && x->us == y->us);
    }
}

static void check_equal(const weft_cluster *a, const weft_cluster *b)
{
    check_sections(a, b);
    assert_string_equal(a->name, b->name);
    assert_int_equal(a->num_nodes, b->num_nodes);
    assert_int_equal(a->ranks_per_node, b->ranks_per_node);
    assert_memory_equal(&a->interference, &b->interference, sizeof a->interference);
    for (int i = 0; i < WEFT_NUM_COSTS; i++) {
        const weft_cost *x = &a->costs[i], *y = &b->costs[i];
        assert_int_equal(x->curve.num_points, y->curve.num_points);
        assert_int_equal(x->width, y->width);
        assert_true(x->peak == y->peak);
        for (int p = 0; p < x->curve.num_points; p++)
            assert_true(x->curve.volume[p] == y->curve.volume[p] &&
                        x->curve.time_us[p] == y->curve.time_us[p]);
    }
}

CASE(a_file_reads_back_to_the_bit)
{
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

/* As from a file, which a disk under load would take its time over. */
static weft_status read_text(const char *text, weft_cluster *out)
{
    weft_arena arena = {0};
    weft_status status = weft_cluster_parse("given.json", text, &arena, out);
    weft_arena_release(&arena);
    return status;
}

/* A file of calibrate's as it was before there was more than costs. */
CASE(a_file_without_hardware_stays_as_it_is)
{
    static const char text[] =
        "{\n"
        "  \"name\": \"n\",\n"
        "  \"num_nodes\": 2,\n"
        "  \"ranks_per_node\": 2,\n"
        "  \"costs\": {\n"
        "    \"all_to_all\": {\"peak\": 11958034, \"points\": [[256, 380.56], [1024, 380.56],\n"
        "      [4096, 498.55], [16384, 1384.6], [65536, 5494.9]]},\n"
        "    \"copy\": {\"peak\": 1e+10, \"points\": [[256, 0.5]]}\n"
        "  },\n"
        "  \"interference\": [\n"
        "    [1, 0.706, 0.538, 0.396],\n"
        "    [0.622, 1, 0.678, 0.346],\n"
        "    [0.44, 0.467, 1, 0.452]\n"
        "  ]\n"
        "}\n";
    static const char none[] = "{\n"
                               "  \"name\": \"\",\n"
                               "  \"num_nodes\": 1,\n"
                               "  \"ranks_per_node\": 1,\n"
                               "  \"costs\": {}\n"
                               "}\n";
    const char *path = temporary_path("old.json");
    for (int i = 0; i < 2; i++) {
        weft_cluster c;
        size_t bytes;
        OK(read_text(i ? none : text, &c));
        OK(weft_cluster_write(&c, path));
        char *back = (char *)temporary_read(path, &bytes);
        assert_int_equal(bytes, strlen(i ? none : text));
        assert_memory_equal(back, i ? none : text, bytes);
        free(back);
    }
}

CASE(a_file_by_hand_is_short)
{
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

/* Every key that there is. */
static const char everything[] =
    "{\n"
    "  \"name\": \"two kinds\",\n"
    "  \"num_nodes\": 6,\n"
    "  \"ranks_per_node\": 8,\n"
    "  \"device\": {\n"
    "    \"name\": \"G \\\"1\\\"\",\n"
    "    \"memory_bytes\": 8e+10,\n"
    "    \"reserved_bytes\": 0,\n"
    "    \"memory_bandwidth\": 2.039e+12,\n"
    "    \"launch_us\": 4,\n"
    "    \"multiprocessors\": 108,\n"
    "    \"tile_m\": 256,\n"
    "    \"tile_n\": 128,\n"
    "    \"wave_us\": 1.5,\n"
    "    \"peak\": {\"fp32\": 1.95e+13, \"bf16\": 3.12e+14, \"fp16\": 3.12e+14},\n"
    "    \"efficiency\": {\"gemm\": [[1e+09, 0.5], [1e+11, 0.85]],\n"
    "      \"attention\": [[1024, 0.4]], \"memory\": [[1000000, 0.25], [100000000, 0.9]]}\n"
    "  },\n"
    "  \"inside\": {\n"
    "    \"bandwidth\": 3e+11,\n"
    "    \"latency_us\": 2.5,\n"
    "    \"eager_bytes\": 0,\n"
    "    \"efficiency\": [[1000000, 0.8]]\n"
    "  },\n"
    "  \"between\": {\n"
    "    \"cards\": 8,\n"
    "    \"bandwidth\": 2.5e+10,\n"
    "    \"latency_us\": 5,\n"
    "    \"eager_bytes\": 1048576,\n"
    "    \"efficiency\": [[1000000, 0.9]],\n"
    "    \"levels\": [{\"nodes\": 2, \"oversubscription\": 1}, {\"nodes\": 6, "
    "\"oversubscription\": 2.5}]\n"
    "  },\n"
    "  \"host\": {\n"
    "    \"memory_bytes\": 2e+12,\n"
    "    \"link_bandwidth\": 3.2e+10,\n"
    "    \"memory_bandwidth\": 4e+11\n"
    "  },\n"
    "  \"storage\": {\n"
    "    \"write\": 1e+10,\n"
    "    \"read\": 2e+10\n"
    "  },\n"
    "  \"node\": {\n"
    "    \"hours_between_failures\": 50000,\n"
    "    \"restart_s\": 300,\n"
    "    \"price_per_hour\": 18.5,\n"
    "    \"watts\": 10200,\n"
    "    \"currency\": \"EUR\"\n"
    "  },\n"
    "  \"costs\": {\n"
    "    \"gemm_bf16\": {\"peak\": 2.5e+14, \"width\": 4096, \"points\": [[1e+09, 20],\n"
    "      [1e+12, 4000]]},\n"
    "    \"adamw\": {\"peak\": 1e+12, \"points\": [[1000000, 5]]}\n"
    "  },\n"
    "  \"interference\": [\n"
    "    [1, 0.9, 1, 0.9],\n"
    "    [0.8, 1, 1, 0.8],\n"
    "    [1, 1, 1, 1]\n"
    "  ],\n"
    "  \"products\": [\n"
    "    [\"bf16\", 2048, 12288, 4096, 901.5],\n"
    "    [\"fp32\", 1, 1, 1, 3]\n"
    "  ],\n"
    "  \"operations\": [\n"
    "    [\"core_attention\", \"forward\", \"bf16\", 4194304, 26.4],\n"
    "    [\"activation\", \"input gradient\", \"fp32\", 65536.5, 3]\n"
    "  ],\n"
    "  \"groups\": [\n"
    "    {\n"
    "      \"num_nodes\": 4\n"
    "    },\n"
    "    {\n"
    "      \"num_nodes\": 2,\n"
    "      \"device\": {\"name\": \"G2\", \"memory_bytes\": 4e+10, \"peak\": {\"bf16\": "
    "1.25e+14},\n"
    "        \"efficiency\": {\"gemm\": [[1e+09, 0.6]]}},\n"
    "      \"between\": {\"cards\": 4},\n"
    "      \"node\": {\"price_per_hour\": 9}\n"
    "    }\n"
    "  ],\n"
    "  \"sources\": {\n"
    "    \"device\": [\"datasheet\", \"G1's sheet\"],\n"
    "    \"device.efficiency\": [\"assumed\", \"\", 0.1],\n"
    "    \"between.levels\": [\"assumed\", \"the floor plan\"],\n"
    "    \"costs.gemm_bf16\": [\"measured\", \"weft calibrate\", 0.02],\n"
    "    \"groups[1].device\": [\"datasheet\", \"G2's sheet\"],\n"
    "    \"products\": [\"measured\", \"weft calibrate --for\"],\n"
    "    \"operations\": [\"measured\", \"weft calibrate --for\"]\n"
    "  }\n"
    "}\n";

/* As it is printed; to free. */
static char *printed(const weft_cluster *cluster)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    assert_non_null(out);
    OK(weft_cluster_print(cluster, out));
    fclose(out);
    return text;
}

CASE(every_key_is_read_and_written)
{
    weft_cluster c;
    OK(read_text(everything, &c));
    char *text = printed(&c);
    assert_string_equal(text, everything);
    free(text);
    const weft_hardware *h = weft_cluster_hardware(&c, -1);
    for (int i = 0; i < WEFT_NUM_FIGURES; i++)
        assert_true(weft_hardware_knows(h, (weft_figure)i));
    assert_true(h->figures[WEFT_FIGURE_PEAK_BF16] == 312e12);
    assert_true(h->figures[WEFT_FIGURE_RESERVED] == 0);
    assert_true(h->figures[WEFT_FIGURE_INSIDE_EAGER] == 0);
    assert_true(h->figures[WEFT_FIGURE_BETWEEN_EAGER] == 1 << 20);
    assert_true(weft_share_at(&h->efficiencies[WEFT_EFFICIENCY_GEMM], 1e12) == 0.85);
    assert_true(c.levels[1].oversubscription == 2.5);
    assert_int_equal(c.costs[WEFT_COST_GEMM_BF16].width, 4096);
    assert_true(c.products[0].n == 12288 && c.products[0].us == 901.5);
    assert_string_equal(c.operations[1].module, "activation");
    assert_int_equal(c.operations[1].phase, WEFT_PHASE_INPUT_GRADIENT);
    /* Nodes that differ have the rest from all. */
    assert_int_equal(weft_cluster_group_of(&c, 3), 0);
    assert_int_equal(weft_cluster_group_of(&c, 4), 1);
    assert_int_equal(weft_cluster_group_of(&c, 6), -1);
    const weft_hardware *two = weft_cluster_hardware(&c, 1);
    assert_string_equal(two->device_name, "G2");
    assert_true(two->figures[WEFT_FIGURE_PEAK_BF16] == 125e12);
    assert_true(two->figures[WEFT_FIGURE_PEAK_FP16] == 312e12);
    assert_true(two->figures[WEFT_FIGURE_CARDS] == 4);
    assert_true(two->figures[WEFT_FIGURE_PRICE] == 9 && two->figures[WEFT_FIGURE_WATTS] == 10200);
    assert_string_equal(c.currency, "EUR");
    assert_string_equal(weft_cluster_hardware(&c, 0)->device_name, "G \"1\"");
}

CASE(sources_cover_what_is_below)
{
    weft_cluster c;
    OK(read_text(everything, &c));
    const weft_source *s = weft_cluster_source(&c, -1, "device.peak.bf16");
    assert_string_equal(s->where, "G1's sheet");
    assert_int_equal(s->class_, WEFT_SOURCE_DATASHEET);
    assert_ptr_equal(weft_cluster_source(&c, 0, "device.peak.bf16"), s);
    assert_string_equal(weft_cluster_source(&c, 1, "device.peak.bf16")->where, "G2's sheet");
    assert_string_equal(weft_cluster_source(&c, 1, "device.memory_bandwidth")->where, "G2's sheet");
    c.sources[4].key[0] = '-'; /* without it: nobody says of its own, all's of the others */
    assert_null(weft_cluster_source(&c, 1, "device.peak.bf16"));
    assert_null(weft_cluster_source(&c, 1, "device.efficiency.gemm"));
    assert_ptr_equal(weft_cluster_source(&c, 1, "device.memory_bandwidth"), s);
    s = weft_cluster_source(&c, -1, "device.efficiency.gemm");
    assert_int_equal(s->class_, WEFT_SOURCE_ASSUMED);
    assert_true(s->spread == 0.1);
    assert_null(weft_cluster_source(&c, -1, "inside.bandwidth"));
    assert_null(weft_cluster_source(&c, -1, "devices"));
    assert_string_equal(weft_source_class_text(WEFT_SOURCE_SCALED), "scaled");
}

/* What a share curve reaches between its points is a time between theirs. */
CASE(shares_keep_times_rising)
{
    weft_share_curve curve = {.num_points = 2, .volume = {1e6, 1e8}, .share = {0.1, 0.8}};
    assert_true(weft_share_at(&(weft_share_curve){0}, 5) == 1);
    assert_true(weft_share_at(&curve, 1) == 0.1 && weft_share_at(&curve, 1e12) == 0.8);
    /* Ten times 1e6 in its time, and 1e8 / 0.8: half way between them. */
    double half = 0.5 * (1e6 + 1e8);
    assert_true(fabs(half / weft_share_at(&curve, half) - 0.5 * (1e7 + 1.25e8)) < 1);
    double before = 0;
    for (double v = 1e5; v < 1e10; v *= 1.1) {
        double us = v / weft_share_at(&curve, v);
        assert_true(us > before);
        before = us;
    }
}

#define HEAD "{\"num_nodes\": 2, \"ranks_per_node\": 4, "
#define COPY(text) HEAD "\"costs\": {\"copy\": " text "}}"
#define POINTS(text) COPY("{\"peak\": 1e9, \"points\": " text "}")
#define ALPHA(text) HEAD "\"interference\": " text "}"
#define DEVICE(text) HEAD "\"device\": {" text "}}"
#define LEVELS(text) HEAD "\"between\": {\"levels\": [" text "]}}"
#define SOURCE(text) HEAD "\"storage\": {\"write\": 1e9}, \"sources\": {" text "}}"

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
     ":1:66: costs.copy.peak: 12.5 bytes/s, where 1e+06 to"},
    {POINTS("[[1048576, 1e-4]]"),
     "costs.copy.points[0]: 1.05e+16 bytes/s, where 1e+06 to 1e+14 are"},
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
    /* Hardware: units, shares, counts. */
    {DEVICE("\"peak\": {\"bf16\": 312}"), ":1:67: device.peak.bf16: 312 FLOP/s: meant 312e12?"},
    {DEVICE("\"peak\": {\"fp32\": 19.5}"), "device.peak.fp32: 19.5 FLOP/s: meant 19.5e12?"},
    {DEVICE("\"peak\": {\"bf16\": 0.989}"), "device.peak.bf16: 0.989 FLOP/s: meant 0.989e15?"},
    {DEVICE("\"peak\": {\"bf16\": 1e30}"), "device.peak.bf16: 1e+30 FLOP/s: meant 1e+15?"},
    {DEVICE("\"peak\": {\"bf16\": -1}"), "device.peak.bf16: -1 FLOP/s is not possible: bf16 prod"},
    {DEVICE("\"peak\": {\"bf16\": 0}"), "device.peak.bf16: 0 FLOP/s is not possible"},
    {DEVICE("\"peak\": {\"fp8\": 1e15}"),
     "device.peak.fp8: unknown key; the keys are fp32, bf16, fp16"},
    {DEVICE("\"peak\": 312e12"), "device.peak: expected an object, got a number"},
    {DEVICE("\"memory_bytes\": 80"), "device.memory_bytes: 80 bytes: meant 80e9?"},
    {DEVICE("\"memory_bandwidth\": 3.35"), "device.memory_bandwidth: 3.35 bytes/s: meant 3.35e12?"},
    {DEVICE("\"launch_us\": 4e-6"), "device.launch_us: 4e-06 us: meant 4?"},
    {DEVICE("\"memory_bandwidth\": 3350"), "memory_bandwidth: 3350 bytes/s: meant 3350e9?"},
    {DEVICE("\"memory_bytes\": 1e6"), "device.memory_bytes: 1e+06 bytes: meant 1e+"},
    {DEVICE("\"memory_bytes\": 81920"), "device.memory_bytes: 81920 bytes: meant 81920e6?"},
    {DEVICE("\"reserved_bytes\": 1.5"), "device.reserved_bytes: 1.5 bytes: meant 1.5e6?"},
    {DEVICE("\"peak\": {\"fp16\": 989000}"), "peak.fp16: 989000 FLOP/s: meant 989000e9?"},
    {DEVICE("\"launch_us\": 4000"), "device.launch_us: 4000 us: meant 4?"},
    {DEVICE("\"wave_us\": 1e-6"), "device.wave_us: 1e-06 us: meant 1?"},
    {HEAD "\"inside\": {\"bandwidth\": 450000}}", "bandwidth: 450000 bytes/s: meant 450000e6?"},
    {HEAD "\"inside\": {\"latency_us\": 2e-6}}", "inside.latency_us: 2e-06 us: meant 2?"},
    {HEAD "\"inside\": {\"latency_us\": 2000}}", "inside.latency_us: 2000 us: meant 2?"},
    {HEAD "\"between\": {\"bandwidth\": 50000}}", "bandwidth: 50000 bytes/s: meant 50000e6?"},
    {HEAD "\"between\": {\"latency_us\": 5e-6}}", "between.latency_us: 5e-06 us: meant 5?"},
    {HEAD "\"host\": {\"memory_bytes\": 2048}}", "host.memory_bytes: 2048 bytes: meant 2048e9?"},
    {HEAD "\"host\": {\"link_bandwidth\": 64}}", "link_bandwidth: 64 bytes/s: meant 64e9?"},
    {HEAD "\"storage\": {\"write\": 7}}", "storage.write: 7 bytes/s: meant 7e9?"},
    {HEAD "\"storage\": {\"read\": 7000}}", "storage.read: 7000 bytes/s: meant 7000e6?"},
    {HEAD "\"costs\": {\"memory\": {\"peak\": 3350, \"latency_us\": 1}}}",
     "costs.memory.peak: 3.35e+03 bytes/s, where 1e+06 to"},
    {HEAD "\"costs\": {\"message\": {\"peak\": 50000, \"latency_us\": 1}}}",
     "costs.message.peak: 5e+04 bytes/s, where 1e+05 to"},
    {SOURCE("\"device.memory_bandwidth\": [\"datasheet\", \"x\"]"),
     "sources.device.memory_bandwidth: device.memory_bandwidth is missing"},
    {DEVICE("\"launch_us\": -4"), "device.launch_us: -4 us is not possible"},
    {DEVICE("\"multiprocessors\": 1.5"), "device.multiprocessors: 1.5 is not possible"},
    {DEVICE("\"memory_bytes\": 1e9, \"reserved_bytes\": 2e9"),
     "device.reserved_bytes: 2e+09 bytes of a device's 1e+09"},
    {DEVICE("\"name\": 3"), "device.name: expected a string, got a number"},
    {DEVICE("\"memory_byte\": 3"),
     "device.memory_byte: unknown key; did you mean device.memory_bytes?"},
    {DEVICE("\"efficiency\": {\"gemm\": [[1e9, 1.01]]}"),
     ":1:74: device.efficiency.gemm[0]: an efficiency of 1.01, where 1e-6 to 1 are possible: per "
     "cent?"},
    {DEVICE("\"efficiency\": {\"gemm\": [[1e9, 0]]}"), "gemm[0]: an efficiency of 0, where"},
    {DEVICE("\"efficiency\": {\"gemm\": [[0, 1]]}"), "gemm[0]: the volume 0 does not rise above 0"},
    {DEVICE("\"efficiency\": {\"gemm\": [[1e9, 0.1], [2e9, 0.3]]}"),
     "gemm[1]: a volume of 2e+09 would take less time than one of 1e+09"},
    {DEVICE("\"efficiency\": {\"attention\": [[1e9, 0.5]]}"),
     "device.efficiency.attention[0]: a volume of 1e+09 keys: FLOPs?"},
    {DEVICE("\"efficiency\": {\"gemm\": []}"),
     "device.efficiency.gemm: an efficiency needs a point"},
    {HEAD "\"inside\": {\"bandwidth\": 600}}", "inside.bandwidth: 600 bytes/s: meant 600e9?"},
    {HEAD "\"between\": {\"bandwidth\": 50}}", "between.bandwidth: 50 bytes/s: meant 50e9?"},
    {HEAD "\"between\": {\"cards\": 0}}", "between.cards: 0 is not possible: network cards"},
    {HEAD "\"between\": {\"eager_bytes\": -1}}",
     "between.eager_bytes: -1 bytes is not possible: the largest message between nodes"},
    {HEAD "\"inside\": {\"eager\": 4096}}", "inside.eager: unknown key"},
    {LEVELS("{\"nodes\": 4}"), "between.levels[0].oversubscription: missing"},
    {LEVELS("{\"nodes\": 1, \"oversubscription\": 2}"),
     "between.levels[0].nodes: 1 nodes, where the level below joins 1"},
    {LEVELS("{\"nodes\": 4, \"oversubscription\": 0.5}"),
     "levels[0].oversubscription: 0.5, where 1"},
    {LEVELS("1"), "between.levels[0]: expected an object, got a number"},
    {HEAD "\"node\": {\"watts\": 10.2}}", "node.watts: 10.2 W: meant 10.2e3?"},
    {HEAD "\"node\": {\"price_per_hour\": 0}}", "node.price_per_hour: 0 /h is not possible: what"},
    {HEAD "\"node\": {\"price_per_hours\": 3}}", "unknown key; did you mean node.price_per_hour?"},
    {HEAD "\"node\": {\"hours_between_failures\": 0.5}}", "failures: 0.5 h: meant 0.5e3?"},
    {HEAD "\"node\": {\"currency\": 3}}", "node.currency: expected a string, got a number"},
    {HEAD "\"node\": {\"currency\": \"0123456789012345\"}}", "currency: longer than 15 bytes"},
    {HEAD "\"groups\": [{\"num_nodes\": 2, \"node\": {\"currency\": \"EUR\"}}]}",
     "groups[0].node.currency: the currency is one for all nodes: give it there"},
    {HEAD "\"storage\": {\"writes\": 1e9}}",
     "storage.writes: unknown key; did you mean storage.write"},
    {HEAD "\"products\": [[\"bf16\", 2, 3, 4]]}", "products[0]: expected [type, m, n, k, micro"},
    {HEAD "\"products\": [[\"fp8\", 2, 3, 4, 5]]}", "products[0]: expected fp32 or bf16"},
    {HEAD "\"products\": [[\"fp32\", 2.5, 3, 4, 5]]}", "products[0]: 2.5 is no number of rows"},
    {HEAD "\"operations\": {}}", "operations: expected an array of operations"},
    {HEAD "\"operations\": [[\"loss\", \"forward\", \"fp32\", 4]]}",
     "operations[0]: expected [module, phase, type, volume, microseconds], got 4 values"},
    {HEAD "\"operations\": [[\"loss\", \"onward\", \"fp32\", 4, 5]]}",
     "operations[0]: \"onward\" is no phase"},
    {HEAD "\"operations\": [[\"loss\", \"forward\", \"fp8\", 4, 5]]}",
     "operations[0]: expected fp32 or bf16"},
    {HEAD "\"operations\": [[\"loss\", \"forward\", \"fp32\", 4, 0]]}",
     "operations[0]: 0 is not positive"},
    {HEAD "\"products\": [[\"fp32\", 1e6, 1e6, 1e6, 1]]}", "products[0]: 2e+24 FLOPs/s, where"},
    {COPY("{\"peak\": 1e9, \"latency_us\": 1, \"width\": 64}"), "costs.copy.width: unknown key"},
    {HEAD "\"groups\": [{}]}", "groups[0].num_nodes: missing"},
    {HEAD "\"groups\": [{\"num_nodes\": 3}]}", "groups: they have 3 nodes, num_nodes says 2"},
    {HEAD "\"groups\": [{\"num_nodes\": 2, \"device\": {\"peak\": {\"fp16\": 1}}}]}",
     "groups[0].device.peak.fp16: 1 FLOP/s: meant 1e12?"},
    {HEAD "\"groups\": [{\"num_nodes\": 2, \"between\": {\"levels\": []}}]}",
     "groups[0].between.levels: the network is one for all nodes"},
    {HEAD "\"groups\": [{\"num_nodes\": 2, \"costs\": {}}]}", "groups[0].costs: unknown key"},
    {SOURCE("\"device.peak\": [\"measured\", \"x\"]"),
     "sources.device.peak: the file has no such key"},
    {SOURCE("\"groups[0]\": [\"measured\", \"x\"]"), "sources.groups[0]: the file has no such key"},
    {SOURCE("\"storage\": [\"measured\"]"),
     "sources.storage: expected [\"measured\", \"datasheet\""},
    {SOURCE("\"storage\": [\"guessed\", \"x\"]"),
     "sources.storage: expected measured, datasheet, published or"},
    {SOURCE("\"storage\": [\"scaled\", \"x\"]"),
     "sources.storage: expected measured, datasheet, published or"},
    {SOURCE("\"storage\": [\"assumed\", \"x\", 20]"),
     "sources.storage: a spread of 20, where 0.05"},
    {SOURCE("\"storage\": [\"assumed\", \"x\", 0, 1]"), "sources.storage: expected [\"measured\""},
    {SOURCE("\"storage\": [\"assumed\", \"\"], \"storage\": [\"assumed\", \"\"]"), "given twice"},
};

CASE(wrong_files_are_one_line)
{
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

CASE(a_write_that_fails_leaves_what_was)
{
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

AROUND(.set_up = temporary_create, .tear_down = temporary_remove)
