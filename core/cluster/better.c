#include "core/cluster/cluster.h"

#include <string.h>

/* Of its time, that a free network takes: a time of 0 would count as unknown. */
#define FREE 1e-12

static const struct better {
    unsigned parts;
    const char *text, *help;
} betters[WEFT_NUM_BETTERS] = {
#define ROW(name, parts, text, help) {parts, text, help},
    WEFT_BETTER_LIST(ROW)
#undef ROW
};

const char *weft_better_text(int better)
{
    return betters[better].text;
}

const char *weft_better_help(int better)
{
    return betters[better].help;
}

/* What a figure is multiplied by. */
static const struct {
    weft_better better;
    weft_figure figure;
    double by;
} figures[] = {
    {WEFT_BETTER_MEMORY, WEFT_FIGURE_MEMORY, 2},
    {WEFT_BETTER_MEMORY, WEFT_FIGURE_HOST_MEMORY, 2},
    {WEFT_BETTER_RATE, WEFT_FIGURE_PEAK_FP32, 2},
    {WEFT_BETTER_RATE, WEFT_FIGURE_PEAK_BF16, 2},
    {WEFT_BETTER_RATE, WEFT_FIGURE_PEAK_FP16, 2},
    {WEFT_BETTER_INSIDE, WEFT_FIGURE_INSIDE_BANDWIDTH, 2},
    {WEFT_BETTER_BETWEEN, WEFT_FIGURE_BETWEEN_BANDWIDTH, 2},
    {WEFT_BETTER_LATENCY, WEFT_FIGURE_INSIDE_LATENCY, 0.5},
    {WEFT_BETTER_LATENCY, WEFT_FIGURE_BETWEEN_LATENCY, 0.5},
    {WEFT_BETTER_NETWORK, WEFT_FIGURE_INSIDE_BANDWIDTH, 1 / FREE},
    {WEFT_BETTER_NETWORK, WEFT_FIGURE_BETWEEN_BANDWIDTH, 1 / FREE},
    {WEFT_BETTER_NETWORK, WEFT_FIGURE_INSIDE_LATENCY, FREE},
    {WEFT_BETTER_NETWORK, WEFT_FIGURE_BETWEEN_LATENCY, FREE},
};

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

static void better_hardware(weft_better better, weft_hardware *h)
{
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++)
        if (figures[i].better == better && weft_hardware_knows(h, figures[i].figure))
            h->figures[figures[i].figure] *= figures[i].by;
}

void weft_cluster_better(const weft_cluster *cluster, weft_better better, weft_cluster *out)
{
    *out = *cluster;
    better_hardware(better, &out->hardware);
    for (int g = 0; g < cluster->num_groups; g++)
        better_hardware(better, &out->groups[g].hardware);
    for (int i = 0; i < WEFT_NUM_COSTS; i++)
        if (betters[better].parts >> weft_cost_part_of((weft_cost_kind)i) & 1)
            better_cost(better, &out->costs[i]);
    if (better != WEFT_BETTER_RATE)
        return;
    for (int i = 0; i < cluster->num_products; i++)
        out->products[i].us /= 2;
    for (int i = 0; i < cluster->num_operations; i++)
        if (strcmp(cluster->operations[i].module, WEFT_MODULE_ATTENTION) == 0)
            out->operations[i].us /= 2;
}
