/* Makes curves from figures. */
#include <math.h>
#include <string.h>

#include "schedule/cost/cost.h"

enum { GEMM_WIDTH = 4096, NUM_POINTS = 16 };

static const struct shape {
    bool is_collective, between;
    weft_collective collective;
} shapes[WEFT_NUM_COSTS] = {
    [WEFT_COST_ALL_TO_ALL] = {true, true, WEFT_COLLECTIVE_ALL_TO_ALL},
    [WEFT_COST_ALL_TO_ALL_INSIDE] = {true, false, WEFT_COLLECTIVE_ALL_TO_ALL},
    [WEFT_COST_ALL_GATHER] = {true, false, WEFT_COLLECTIVE_ALL_GATHER},
    [WEFT_COST_ALL_REDUCE] = {true, false, WEFT_COLLECTIVE_ALL_REDUCE},
    [WEFT_COST_ALL_REDUCE_BETWEEN] = {true, true, WEFT_COLLECTIVE_ALL_REDUCE},
    [WEFT_COST_MESSAGE] = {true, true, WEFT_COLLECTIVE_MESSAGE},
    [WEFT_COST_MESSAGE_INSIDE] = {true, false, WEFT_COLLECTIVE_MESSAGE},
    [WEFT_COST_ALL_GATHER_BETWEEN] = {true, true, WEFT_COLLECTIVE_ALL_GATHER},
    [WEFT_COST_REDUCE_SCATTER] = {true, false, WEFT_COLLECTIVE_REDUCE_SCATTER},
    [WEFT_COST_REDUCE_SCATTER_BETWEEN] = {true, true, WEFT_COLLECTIVE_REDUCE_SCATTER},
};

/* A collective among all ranks of a node, or among one rank of each node. */
static weft_status collective_us(const weft_site *site, weft_cost_kind kind, double volume,
                                 weft_estimate *out)
{
    const weft_cluster *c = site->cluster;
    const bool between = shapes[kind].between;
    const double cards = fmax(c->hardware.figures[WEFT_FIGURE_CARDS], 1);
    const int ranks = between ? c->num_nodes : c->ranks_per_node;
    const weft_group group = {.size = ranks,
                              .near = between ? 1 : ranks,
                              .stride = 1,
                              .sharing = between ? fmax(c->ranks_per_node / cards, 1) : 1};
    if (shapes[kind].collective == WEFT_COLLECTIVE_ALL_TO_ALL && ranks > 1)
        volume *= ranks / (ranks - 1.0); /* adds the block that stays on the rank */
    return weft_collective_us(site, &group, shapes[kind].collective, volume, out);
}

/* Products of two bytes an element: fp16's on GPUs that have no others. */
static weft_dtype dtype_of(const weft_cluster *cluster, weft_cost_kind kind)
{
    const weft_hardware *h = weft_cluster_hardware(cluster, cluster->num_groups > 0 ? 0 : -1);
    if (kind != WEFT_COST_GEMM_BF16)
        return WEFT_F32;
    return weft_hardware_knows(h, WEFT_FIGURE_PEAK_FP16) &&
                   !weft_hardware_knows(h, WEFT_FIGURE_PEAK_BF16)
               ? WEFT_F16
               : WEFT_BF16;
}

static weft_status estimate(const weft_site *site, weft_cost_kind kind, double volume,
                            weft_estimate *out)
{
    if (shapes[kind].is_collective)
        return collective_us(site, kind, volume, out);
    if (kind != WEFT_COST_GEMM_FP32 && kind != WEFT_COST_GEMM_BF16)
        return weft_work_us(site, kind, volume, out);
    const weft_operation product = {.kind = WEFT_OPERATION_GEMM,
                                    .module = "linear",
                                    .dtype = dtype_of(site->cluster, kind),
                                    .m = (uint64_t)(volume / 2 / GEMM_WIDTH / GEMM_WIDTH),
                                    .n = GEMM_WIDTH,
                                    .k = GEMM_WIDTH,
                                    .flops = (uint64_t)volume};
    return weft_operation_us(site, &product, out);
}

static void complete(const weft_site *site, weft_cost_kind kind, weft_cost *cost)
{
    const bool is_gemm = kind == WEFT_COST_GEMM_FP32 || kind == WEFT_COST_GEMM_BF16;
    double volume = is_gemm ? 2.0 * GEMM_WIDTH * GEMM_WIDTH : 256;
    weft_curve curve = {0};
    double peak = 0;
    for (int i = 0; i < NUM_POINTS; i++, volume *= is_gemm ? 2 : 4) {
        weft_estimate out;
        const weft_status status = estimate(site, kind, volume, &out);
        if (status != WEFT_OK || !(out.us > 0)) {
            weft_error_clear();
            return;
        }
        curve.volume[i] = volume;
        curve.time_us[i] = out.us;
        curve.num_points = i + 1;
        peak = fmax(peak, volume / (out.us * 1e-6));
    }
    *cost = (weft_cost){.curve = curve, .peak = peak, .width = is_gemm ? GEMM_WIDTH : 0};
}

void weft_cost_complete(weft_cluster *cluster)
{
    weft_cluster figures = *cluster;
    const weft_site site = {.cluster = &figures};
    memset(figures.costs, 0, sizeof figures.costs);
    for (int i = 0; i < WEFT_NUM_COSTS; i++)
        if (!weft_cluster_knows(cluster, (weft_cost_kind)i))
            complete(&site, (weft_cost_kind)i, &cluster->costs[i]);
}
