#include "core/cluster/cluster.h"

#include <string.h>

/* Of its time, that a free network takes: a time of 0 would count as unknown. */
#define FREE 1e-12

static const char *const texts[WEFT_NUM_BETTERS] = {
#define ROW(name, text, help) text,
    WEFT_BETTER_LIST(ROW)
#undef ROW
};

const char *weft_better_text(int better)
{
    return texts[better];
}

static const char *const helps[WEFT_NUM_BETTERS] = {
#define ROW(name, text, help) help,
    WEFT_BETTER_LIST(ROW)
#undef ROW
};

const char *weft_better_help(int better)
{
    return helps[better];
}

enum { INSIDE = 1, BETWEEN = 2, PRODUCTS = 4 };

/* What a cost is of. */
static unsigned part_of(int kind)
{
    switch (kind) {
    case WEFT_COST_ALL_TO_ALL_INSIDE:
    case WEFT_COST_ALL_GATHER:
    case WEFT_COST_ALL_REDUCE:
    case WEFT_COST_MESSAGE_INSIDE:
    case WEFT_COST_REDUCE_SCATTER:
        return INSIDE;
    case WEFT_COST_ALL_TO_ALL:
    case WEFT_COST_ALL_REDUCE_BETWEEN:
    case WEFT_COST_MESSAGE:
    case WEFT_COST_ALL_GATHER_BETWEEN:
    case WEFT_COST_REDUCE_SCATTER_BETWEEN:
        return BETWEEN;
    case WEFT_COST_GEMM_FP32:
    case WEFT_COST_GEMM_BF16:
    case WEFT_COST_ATTENTION_FP32:
    case WEFT_COST_ATTENTION_BF16:
        return PRODUCTS;
    default:
        return 0;
    }
}

static unsigned parts_of(weft_better better)
{
    return better == WEFT_BETTER_BETWEEN  ? BETWEEN
           : better == WEFT_BETTER_INSIDE ? INSIDE
           : better == WEFT_BETTER_RATE   ? PRODUCTS
           : better == WEFT_BETTER_MEMORY ? 0
                                          : INSIDE | BETWEEN;
}

static void better_cost(weft_better better, weft_cost *cost)
{
    const double first = cost->curve.num_points > 0 ? cost->curve.time_us[0] : 0;
    for (int i = 0; i < cost->curve.num_points; i++) {
        double *us = &cost->curve.time_us[i];
        const double startup = *us < first ? *us : first; /* a curve may fall */
        if (better == WEFT_BETTER_NETWORK)
            *us *= FREE;
        else if (better == WEFT_BETTER_LATENCY)
            *us -= startup / 2;
        else
            *us = startup + (*us - startup) / 2;
    }
    if (better == WEFT_BETTER_NETWORK)
        cost->peak /= FREE;
    else if (better != WEFT_BETTER_LATENCY)
        cost->peak *= 2;
}

static void multiply(weft_hardware *h, weft_figure figure, double by)
{
    if (weft_hardware_knows(h, figure))
        h->figures[figure] *= by;
}

static void better_hardware(weft_better better, weft_hardware *h)
{
    const double rate = better == WEFT_BETTER_NETWORK ? 1 / FREE : 2,
                 latency = better == WEFT_BETTER_NETWORK ? FREE : 0.5;
    const unsigned parts = parts_of(better);
    switch (better) {
    case WEFT_BETTER_MEMORY:
        multiply(h, WEFT_FIGURE_MEMORY, 2);
        multiply(h, WEFT_FIGURE_HOST_MEMORY, 2);
        return;
    case WEFT_BETTER_RATE:
        multiply(h, WEFT_FIGURE_PEAK_FP32, 2);
        multiply(h, WEFT_FIGURE_PEAK_BF16, 2);
        multiply(h, WEFT_FIGURE_PEAK_FP16, 2);
        return;
    case WEFT_BETTER_BETWEEN:
    case WEFT_BETTER_INSIDE:
    case WEFT_BETTER_NETWORK:
        if (parts & INSIDE)
            multiply(h, WEFT_FIGURE_INSIDE_BANDWIDTH, rate);
        if (parts & BETWEEN)
            multiply(h, WEFT_FIGURE_BETWEEN_BANDWIDTH, rate);
        break;
    default:
        break;
    }
    if (better == WEFT_BETTER_LATENCY || better == WEFT_BETTER_NETWORK) {
        multiply(h, WEFT_FIGURE_INSIDE_LATENCY, latency);
        multiply(h, WEFT_FIGURE_BETWEEN_LATENCY, latency);
    }
}

void weft_cluster_better(const weft_cluster *cluster, weft_better better, weft_cluster *out)
{
    *out = *cluster;
    better_hardware(better, &out->hardware);
    for (int g = 0; g < cluster->num_groups; g++)
        better_hardware(better, &out->groups[g].hardware);
    for (int i = 0; i < WEFT_NUM_COSTS; i++)
        if (part_of(i) & parts_of(better))
            better_cost(better, &out->costs[i]);
    if (better != WEFT_BETTER_RATE)
        return;
    for (int i = 0; i < cluster->num_products; i++)
        out->products[i].us /= 2;
    for (int i = 0; i < cluster->num_operations; i++)
        if (strcmp(cluster->operations[i].module, WEFT_MODULE_ATTENTION) == 0)
            out->operations[i].us /= 2;
}
