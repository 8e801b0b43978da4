/* A cluster at the ends of its numbers, by hand. */
#include "core/cluster/cluster.h"

#include <math.h>

#include "core/cluster/internal.h"
#include "tests/core/check.h"

static const char text[] =
    "{\"num_nodes\": 3, \"ranks_per_node\": 8,"
    " \"device\": {\"memory_bytes\": 8e10, \"memory_bandwidth\": 2e12, \"launch_us\": 4,"
    "  \"multiprocessors\": 108, \"peak\": {\"bf16\": 3e14},"
    "  \"efficiency\": {\"gemm\": [[1e9, 0.5], [1e11, 0.9]]}},"
    " \"between\": {\"cards\": 8, \"bandwidth\": 1e10, \"eager_bytes\": 4096, \"levels\": ["
    "  {\"nodes\": 2, \"oversubscription\": 1.1}, {\"nodes\": 3, \"oversubscription\": 4}]},"
    " \"node\": {\"watts\": 5000},"
    " \"costs\": {\"message\": {\"peak\": 1e8, \"points\": [[1000, 10], [9000, 90]]},"
    "  \"copy\": {\"peak\": 1e9, \"points\": [[1000, 1]]}},"
    " \"products\": [[\"bf16\", 2, 3, 4, 30]],"
    " \"operations\": [[\"loss\", \"forward\", \"bf16\", 512, 60]],"
    " \"groups\": [{\"num_nodes\": 2}, {\"num_nodes\": 1, \"device\": {\"peak\": {\"bf16\": "
    "1e14}}}],"
    " \"sources\": {\"device.peak\": [\"datasheet\", \"sheet\", 0.25],"
    "  \"device.launch_us\": [\"datasheet\", \"sheet\"],"
    "  \"device.efficiency\": [\"assumed\", \"\", 0.2],"
    "  \"groups[1].device\": [\"measured\", \"there\", 0.5],"
    "  \"between.levels\": [\"assumed\", \"\", 1],"
    "  \"costs.copy\": [\"measured\", \"weft calibrate\", 0.01],"
    "  \"products\": [\"measured\", \"weft calibrate\", 0.5]}}";

static weft_cluster given(void)
{
    weft_cluster c;
    weft_arena arena = {0};
    OK(weft_cluster_parse("given.json", text, &arena, &c));
    weft_arena_release(&arena);
    return c;
}

static void same_but_rounding(double value, double wanted)
{
    if (!(fabs(value - wanted) <= 1e-12 * fabs(wanted)))
        fail_msg("%.17g instead of %.17g", value, wanted);
}

CASE(spreads_are_the_file_s_or_their_class)
{
    const weft_cluster c = given();
    same_but_rounding(weft_cluster_spread(&c, -1, "device.peak.bf16"), 0.25);
    same_but_rounding(weft_cluster_spread(&c, 0, "device.peak.bf16"), 0.25);
    same_but_rounding(weft_cluster_spread(&c, 1, "device.peak.bf16"), 0.5);
    same_but_rounding(weft_cluster_spread(&c, -1, "device.launch_us"), 0.05); /* a data sheet's */
    same_but_rounding(weft_cluster_spread(&c, -1, "between.bandwidth"),
                      0.2);                                                /* nobody's: assumed */
    same_but_rounding(weft_cluster_spread(&c, -1, "costs.message"), 0.05); /* measured */
    same_but_rounding(weft_cluster_spread(&c, -1, "costs.copy"), 0.05);    /* at the least */
    same_but_rounding(weft_cluster_spread(&c, -1, "products"), 0.5);
    same_but_rounding(weft_cluster_spread(&c, -1, "operations"), 0.05);
    static const char *const exact[] = {"device.memory_bytes", "device.multiprocessors",
                                        "between.cards", "between.eager_bytes", "node.watts"};
    for (size_t i = 0; i < sizeof exact / sizeof *exact; i++)
        assert_true(weft_cluster_spread(&c, -1, exact[i]) == 0);
    assert_int_equal(weft_cluster_class(&c, -1, "costs.message"), WEFT_SOURCE_MEASURED);
    assert_int_equal(weft_cluster_class(&c, -1, "between.bandwidth"), WEFT_SOURCE_ASSUMED);
    assert_int_equal(weft_cluster_class(&c, -1, "device.peak.fp32"), WEFT_SOURCE_DATASHEET);
}

CASE(ends_move_rates_and_times)
{
    const weft_cluster c = given();
    weft_cluster fast, slow;
    weft_cluster_at_end(&c, WEFT_CLUSTER_FAST, &fast);
    weft_cluster_at_end(&c, WEFT_CLUSTER_SLOW, &slow);
    const double *f = fast.hardware.figures, *s = slow.hardware.figures;
    same_but_rounding(f[WEFT_FIGURE_PEAK_BF16], 3e14 * 1.25);
    same_but_rounding(s[WEFT_FIGURE_PEAK_BF16], 3e14 / 1.25);
    same_but_rounding(f[WEFT_FIGURE_LAUNCH], 4 / 1.05);
    same_but_rounding(s[WEFT_FIGURE_LAUNCH], 4 * 1.05);
    same_but_rounding(f[WEFT_FIGURE_BETWEEN_BANDWIDTH], 1.2e10);
    same_but_rounding(f[WEFT_FIGURE_MEMORY], 8e10);
    same_but_rounding(s[WEFT_FIGURE_MULTIPROCESSORS], 108);
    same_but_rounding(s[WEFT_FIGURE_BETWEEN_EAGER], 4096);
    same_but_rounding(fast.groups[1].hardware.figures[WEFT_FIGURE_PEAK_BF16], 1.5e14);
    same_but_rounding(fast.groups[0].hardware.figures[WEFT_FIGURE_PEAK_BF16], 3e14 * 1.25);
    const weft_share_curve *shares = &fast.hardware.efficiencies[WEFT_EFFICIENCY_GEMM];
    same_but_rounding(shares->share[0], 0.6);
    same_but_rounding(shares->share[1], 1); /* not 1.08 */
    same_but_rounding(slow.hardware.efficiencies[WEFT_EFFICIENCY_GEMM].share[1], 0.75);
    same_but_rounding(fast.levels[0].oversubscription, 1);
    same_but_rounding(fast.levels[1].oversubscription, 2);
    same_but_rounding(slow.levels[1].oversubscription, 8);
    same_but_rounding(weft_cluster_us(&fast, WEFT_COST_MESSAGE, 5000), 50 / 1.05);
    same_but_rounding(weft_cluster_us(&slow, WEFT_COST_MESSAGE, 5000), 50 * 1.05);
    same_but_rounding(fast.costs[WEFT_COST_MESSAGE].peak, 1.05e8);
    same_but_rounding(slow.products[0].us, 45);
    same_but_rounding(slow.operations[0].us, 63);
    assert_int_equal(slow.num_nodes, 3);
    assert_true(slow.hardware.given == c.hardware.given);
}

/* A pace is no measurement of the products that it replaces. */
CASE(a_pace_forgets_what_was_measured)
{
    weft_cluster c = given();
    const int num_sources = c.num_sources;
    c.costs[WEFT_COST_GEMM_FP32] = c.costs[WEFT_COST_COPY];
    c.sources[c.num_sources++] =
        (weft_source){"costs.gemm_fp32", WEFT_SOURCE_MEASURED, "weft calibrate", 0.7};
    same_but_rounding(weft_cluster_spread(&c, -1, "costs.gemm_fp32"), 0.7);
    weft_cluster_set_pace(&c, 1e9);
    same_but_rounding(weft_cluster_spread(&c, -1, "costs.gemm_fp32"), 0.05);
    assert_int_equal(c.num_sources, num_sources);
}
