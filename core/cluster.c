#include "core/cluster.h"

#include <math.h>

static const struct cost_texts {
    const char *text, *unit, *help;
} costs[WEFT_NUM_COSTS] = {
#define COST_TEXTS(name, text, unit, help) [WEFT_COST_##name] = {text, unit, help},
    WEFT_COST_LIST(COST_TEXTS)
#undef COST_TEXTS
};

const char *weft_cost_text(weft_cost_kind kind)
{
    return costs[kind].text;
}

const char *weft_cost_unit(weft_cost_kind kind)
{
    return costs[kind].unit;
}

const char *weft_cost_help(weft_cost_kind kind)
{
    return costs[kind].help;
}

const char *weft_work_class_text(int class_)
{
    static const char *const texts[] = {
        [WEFT_WORK_COMP] = "comp",
        [WEFT_WORK_COMM] = "comm",
        [WEFT_WORK_MEM] = "mem",
        [WEFT_WORK_ALL] = "all",
    };
    return texts[class_];
}

weft_interference weft_interference_none(void)
{
    weft_interference none;
    for (int y = 0; y < WEFT_NUM_WORK_CLASSES; y++)
        for (int x = 0; x <= WEFT_WORK_ALL; x++)
            none.alpha[y][x] = 1;
    return none;
}

double weft_cluster_us(const weft_cluster *cluster, weft_cost_kind kind, double volume)
{
    return volume > 0 ? weft_curve_time_us(&cluster->costs[kind].curve, volume) : 0;
}

bool weft_cluster_knows(const weft_cluster *cluster, weft_cost_kind kind)
{
    return cluster->costs[kind].curve.num_points > 0;
}

double weft_cluster_efficiency(const weft_cluster *cluster, weft_cost_kind kind, double volume)
{
    double us = weft_cluster_us(cluster, kind, volume), peak = cluster->costs[kind].peak;
    /* A small message may ride in a shaper's burst, faster than the link. */
    return us > 0 && peak > 0 ? fmin(volume / (us * 1e-6) / peak, 1) : 1;
}
