/* A cluster's file. What is taken makes sense, survives being written, and has prices. */

#include "core/cluster/cluster.h"
#include "core/cluster/internal.h"
#include "schedule/cost/cost.h"
#include "tests/fuzz/fuzz.h"

static weft_status print(const void *cluster, FILE *out)
{
    return weft_cluster_print(cluster, out);
}

static void check_prices(const weft_cluster *c)
{
    static const double volumes[] = {1, 1000, 12345678, 1e12};
    for (int i = 0; i < WEFT_NUM_COSTS; i++)
        for (size_t v = 0; v < sizeof volumes / sizeof *volumes; v++) {
            const double us = weft_cluster_us(c, (weft_cost_kind)i, volumes[v]);
            const double r = weft_cluster_efficiency(c, (weft_cost_kind)i, volumes[v]);
            FUZZ_CHECK(us >= 0 && r > 0 && r <= 1, "%s: %g us, %g",
                       weft_cost_text((weft_cost_kind)i), us, r);
        }
    for (int group = -1; group < c->num_groups; group++)
        for (int i = 0; i < WEFT_NUM_EFFICIENCIES; i++) {
            const double share =
                weft_share_at(&weft_cluster_hardware(c, group)->efficiencies[i], 12345678);
            FUZZ_CHECK(share > 0 && share <= 1, "%g", share);
        }
}

static void check_taken(const weft_cluster *c, weft_arena *arena)
{
    static weft_cluster other;
    FUZZ_CHECK(c->num_nodes >= 1 && c->ranks_per_node >= 1, "%d %d", c->num_nodes,
               c->ranks_per_node);
    check_prices(c);
    char *text = fuzz_printed(print, c);
    FUZZ_OK(weft_cluster_parse("written.json", text, arena, &other));
    char *again = fuzz_printed(print, &other);
    FUZZ_CHECK(strcmp(text, again) == 0, "%s\nbecame\n%s", text, again);
    free(text);
    free(again);
    weft_cost_complete(&other);
    check_prices(&other);
    for (int i = 0; i < WEFT_NUM_BETTERS; i++) {
        weft_cluster_better(c, (weft_better)i, &other);
        check_prices(&other);
    }
    for (int i = 0; i < WEFT_NUM_CLUSTER_ENDS; i++) {
        weft_cluster_at_end(c, (weft_cluster_end)i, &other);
        check_prices(&other);
    }
    other = *c;
    weft_cluster_set_pace(&other, 1e9);
    weft_cluster_set_link_pace(&other, 1e9);
    check_prices(&other);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static weft_cluster cluster;
    fuzz_parts parts;
    weft_arena arena = {0};
    fuzz_cut(data, size, 1, &parts);
    const weft_status status = weft_cluster_parse("given.json", parts.at[0], &arena, &cluster);
    if (status == WEFT_OK)
        check_taken(&cluster, &arena);
    else
        fuzz_refused(status);
    weft_arena_release(&arena);
    fuzz_release(&parts);
    return 0;
}
