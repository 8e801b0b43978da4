#include "core/cluster/cluster.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const double class_spreads[WEFT_NUM_SOURCE_CLASSES] = {
    [WEFT_SOURCE_MEASURED] = 0.05, [WEFT_SOURCE_SCALED] = 0.05, [WEFT_SOURCE_DATASHEET] = 0.05,
    [WEFT_SOURCE_PUBLISHED] = 0.1, [WEFT_SOURCE_ASSUMED] = 0.2,
};

static bool is_measurement(const char *path)
{
    return strncmp(path, "costs", 5) == 0 || strcmp(path, "products") == 0 ||
           strcmp(path, "operations") == 0;
}

static weft_source_class class_of(const weft_source *source, const char *path)
{
    return source                 ? source->class_
           : is_measurement(path) ? WEFT_SOURCE_MEASURED
                                  : WEFT_SOURCE_ASSUMED;
}

weft_source_class weft_cluster_class(const weft_cluster *cluster, int group, const char *path)
{
    return class_of(weft_cluster_source(cluster, group, path), path);
}

/* Figures are rates, times, or exact. */
static bool is_exact(const char *path)
{
    int i = 0;
    while (i < WEFT_NUM_FIGURES && strcmp(weft_figure_path((weft_figure)i), path) != 0)
        i++;
    const char *unit = i < WEFT_NUM_FIGURES ? weft_figure_unit((weft_figure)i) : "us";
    return strcmp(unit, "us") != 0 && strcmp(unit, "bytes/s") != 0 && strcmp(unit, "FLOP/s") != 0;
}

double weft_cluster_spread(const weft_cluster *cluster, int group, const char *path)
{
    if (is_exact(path))
        return 0;
    const weft_source *source = weft_cluster_source(cluster, group, path);
    const weft_source_class class_ = class_of(source, path);
    if (!source || !(source->spread > 0))
        return class_spreads[class_];
    return class_ == WEFT_SOURCE_MEASURED ? fmax(source->spread, class_spreads[class_])
                                          : source->spread;
}

/* What a rate is multiplied by, and a time divided by. */
static double gain_of(const weft_cluster *cluster, int group, const char *path,
                      weft_cluster_end end)
{
    const double most = 1 + weft_cluster_spread(cluster, group, path);
    return end == WEFT_CLUSTER_FAST ? most : 1 / most;
}

static void move_hardware(const weft_cluster *cluster, int group, weft_cluster_end end,
                          weft_hardware *h)
{
    for (int i = 0; i < WEFT_NUM_FIGURES; i++) {
        const double gain = gain_of(cluster, group, weft_figure_path((weft_figure)i), end);
        if (strcmp(weft_figure_unit((weft_figure)i), "us") == 0)
            h->figures[i] /= gain;
        else
            h->figures[i] *= gain;
    }
    for (int i = 0; i < WEFT_NUM_EFFICIENCIES; i++) {
        weft_share_curve *curve = &h->efficiencies[i];
        if (curve->num_points == 0)
            continue;
        const double gain =
            gain_of(cluster, group, weft_efficiency_path((weft_efficiency_kind)i), end);
        for (int n = 0; n < curve->num_points; n++)
            curve->share[n] = fmin(curve->share[n] * gain, 1);
    }
}

static void move_costs(const weft_cluster *cluster, weft_cluster_end end, weft_cluster *out)
{
    for (int i = 0; i < WEFT_NUM_COSTS; i++) {
        char path[48];
        weft_cost *cost = &out->costs[i];
        if (!weft_cluster_knows(cluster, (weft_cost_kind)i))
            continue;
        snprintf(path, sizeof path, "costs.%s", weft_cost_text((weft_cost_kind)i));
        const double gain = gain_of(cluster, -1, path, end);
        cost->peak *= gain;
        for (int n = 0; n < cost->curve.num_points; n++)
            cost->curve.time_us[n] /= gain;
    }
}

void weft_cluster_at_end(const weft_cluster *cluster, weft_cluster_end end, weft_cluster *out)
{
    *out = *cluster;
    move_hardware(cluster, -1, end, &out->hardware);
    for (int g = 0; g < cluster->num_groups; g++)
        move_hardware(cluster, g, end, &out->groups[g].hardware);
    move_costs(cluster, end, out);
    for (int i = 0; i < cluster->num_products; i++)
        out->products[i].us /= gain_of(cluster, -1, "products", end);
    for (int i = 0; i < cluster->num_operations; i++)
        out->operations[i].us /= gain_of(cluster, -1, "operations", end);
    for (int l = 0; l < cluster->num_levels; l++)
        out->levels[l].oversubscription = fmax(
            cluster->levels[l].oversubscription / gain_of(cluster, -1, "between.levels", end), 1);
}
