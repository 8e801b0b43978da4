/* A cluster of which one part is better: figures, curves and rows, and what stays as it is. */
#include <math.h>

#include "core/cluster/cluster.h"
#include "tests/expect.h"

static weft_cluster sample(void)
{
    weft_cluster c = {.name = "sample", .num_nodes = 2, .ranks_per_node = 4};
    weft_hardware *h = &c.hardware;
    const weft_figure figures[] = {WEFT_FIGURE_MEMORY,           WEFT_FIGURE_HOST_MEMORY,
                                   WEFT_FIGURE_PEAK_BF16,        WEFT_FIGURE_INSIDE_BANDWIDTH,
                                   WEFT_FIGURE_INSIDE_LATENCY,   WEFT_FIGURE_BETWEEN_BANDWIDTH,
                                   WEFT_FIGURE_BETWEEN_LATENCY,  WEFT_FIGURE_HOST_LINK,
                                   WEFT_FIGURE_MEMORY_BANDWIDTH, WEFT_FIGURE_LAUNCH};
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++) {
        h->given |= 1u << figures[i];
        h->figures[figures[i]] = 100 + (double)i;
    }
    for (int i = 0; i < WEFT_NUM_COSTS; i++)
        c.costs[i] = (weft_cost){.curve = {3, {0, 1000, 3000}, {4, 14, 44}}, .peak = 7};
    c.num_products = c.num_operations = 1;
    c.products[0] = (weft_product){WEFT_COST_GEMM_BF16, 8, 8, 8, 30};
    c.operations[0] =
        (weft_timed_operation){.module = WEFT_MODULE_ATTENTION, .volume = 1, .us = 30};
    return c;
}

static const weft_cost_kind inside[] = {WEFT_COST_ALL_TO_ALL_INSIDE, WEFT_COST_ALL_GATHER,
                                        WEFT_COST_ALL_REDUCE, WEFT_COST_MESSAGE_INSIDE,
                                        WEFT_COST_REDUCE_SCATTER};
static const weft_cost_kind between[] = {WEFT_COST_ALL_TO_ALL, WEFT_COST_ALL_REDUCE_BETWEEN,
                                         WEFT_COST_MESSAGE, WEFT_COST_ALL_GATHER_BETWEEN,
                                         WEFT_COST_REDUCE_SCATTER_BETWEEN};
static const weft_cost_kind products[] = {WEFT_COST_GEMM_FP32, WEFT_COST_GEMM_BF16,
                                          WEFT_COST_ATTENTION_FP32, WEFT_COST_ATTENTION_BF16};

static bool is_one_of(int kind, const weft_cost_kind *kinds, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if ((int)kinds[i] == kind)
            return true;
    return false;
}
#define IS_ONE_OF(kind, kinds) is_one_of(kind, kinds, sizeof kinds / sizeof *kinds)

/* What a change does to the curve {0: 4, 1000: 14, 3000: 44}: its times and the peak. */
static void expect_costs(weft_better better, bool at_inside, bool at_between, bool at_products,
                         const double us[3], double peak)
{
    const weft_cluster before = sample();
    weft_cluster after;
    weft_cluster_better(&before, better, &after);
    for (int k = 0; k < WEFT_NUM_COSTS; k++) {
        const bool is_changed = (at_inside && IS_ONE_OF(k, inside)) ||
                                (at_between && IS_ONE_OF(k, between)) ||
                                (at_products && IS_ONE_OF(k, products));
        for (int i = 0; i < 3; i++)
            EXPECT_NEAR(after.costs[k].curve.time_us[i],
                        is_changed ? us[i] : before.costs[k].curve.time_us[i], 1e-12);
        EXPECT(fabs(after.costs[k].peak / (is_changed ? peak : 7) - 1) < 1e-12, "%s: %s",
               weft_better_text(better), weft_cost_text((weft_cost_kind)k));
    }
}

static void expect_figures(weft_better better, const weft_figure *changed, int num, double by,
                           double latency)
{
    const weft_cluster before = sample();
    weft_cluster after;
    weft_cluster_better(&before, better, &after);
    for (int f = 0; f < WEFT_NUM_FIGURES; f++) {
        double wanted = before.hardware.figures[f];
        for (int i = 0; i < num; i++)
            wanted *= (int)changed[i] == f ? by : 1;
        if (f == WEFT_FIGURE_INSIDE_LATENCY || f == WEFT_FIGURE_BETWEEN_LATENCY)
            wanted *= latency;
        EXPECT(fabs(after.hardware.figures[f] - wanted) <= 1e-12 * wanted, "%s: %s is %g, not %g",
               weft_better_text(better), weft_figure_path((weft_figure)f),
               after.hardware.figures[f], wanted);
    }
}

/* Times that fall: nothing that is better takes longer, or less than no time. */
static void falling_curves_stay_above_zero(void)
{
    weft_cluster before = sample(), after;
    for (int k = 0; k < WEFT_NUM_COSTS; k++)
        before.costs[k].curve = (weft_curve){3, {0, 1000, 3000}, {40, 8, 9}};
    for (int better = 0; better < WEFT_NUM_BETTERS; better++) {
        weft_cluster_better(&before, (weft_better)better, &after);
        for (int k = 0; k < WEFT_NUM_COSTS; k++)
            for (int i = 0; i < 3; i++) {
                const double us = after.costs[k].curve.time_us[i];
                EXPECT(us > 0 && us <= before.costs[k].curve.time_us[i], "%s: %s: %g us",
                       weft_better_text(better), weft_cost_text((weft_cost_kind)k), us);
            }
    }
}

int main(void)
{
    const double faster[] = {4, 9, 24}, later[] = {2, 12, 42}, none[] = {4e-12, 14e-12, 44e-12};
    expect_costs(WEFT_BETTER_INSIDE, true, false, false, faster, 14);
    expect_costs(WEFT_BETTER_BETWEEN, false, true, false, faster, 14);
    expect_costs(WEFT_BETTER_RATE, false, false, true, faster, 14);
    expect_costs(WEFT_BETTER_LATENCY, true, true, false, later, 7);
    expect_costs(WEFT_BETTER_NETWORK, true, true, false, none, 7e12);
    expect_costs(WEFT_BETTER_MEMORY, false, false, false, none, 7);
    expect_figures(WEFT_BETTER_INSIDE, (const weft_figure[]){WEFT_FIGURE_INSIDE_BANDWIDTH}, 1, 2,
                   1);
    expect_figures(WEFT_BETTER_BETWEEN, (const weft_figure[]){WEFT_FIGURE_BETWEEN_BANDWIDTH}, 1, 2,
                   1);
    expect_figures(WEFT_BETTER_RATE, (const weft_figure[]){WEFT_FIGURE_PEAK_BF16}, 1, 2, 1);
    expect_figures(WEFT_BETTER_MEMORY,
                   (const weft_figure[]){WEFT_FIGURE_MEMORY, WEFT_FIGURE_HOST_MEMORY}, 2, 2, 1);
    expect_figures(WEFT_BETTER_LATENCY, NULL, 0, 1, 0.5);
    expect_figures(
        WEFT_BETTER_NETWORK,
        (const weft_figure[]){WEFT_FIGURE_INSIDE_BANDWIDTH, WEFT_FIGURE_BETWEEN_BANDWIDTH}, 2, 1e12,
        1e-12);
    const weft_cluster before = sample();
    weft_cluster after;
    weft_cluster_better(&before, WEFT_BETTER_RATE, &after);
    EXPECT(after.products[0].us == 15 && after.operations[0].us == 15, "rows");
    weft_cluster_better(&before, WEFT_BETTER_INSIDE, &after);
    EXPECT(after.products[0].us == 30 && after.operations[0].us == 30, "rows");
    falling_curves_stay_above_zero();
    return expect_finish();
}
