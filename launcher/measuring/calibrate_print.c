#include "launcher/measuring/calibrate.h"

#include <math.h>
#include <string.h>

#include "core/text.h"

/* 1.5 MiB, 2.1 MFLOP: four digits at most. */
static void volume_text(double volume, bool is_bytes, char out[32])
{
    static const char *const units[2][5] = {{"FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP"},
                                            {"B", "KiB", "MiB", "GiB", "TiB"}};
    double step = is_bytes ? 1024 : 1000;
    int unit = 0;
    for (; unit < 4 && volume >= step; unit++)
        volume /= step;
    snprintf(out, 32, "%.4g %s", volume, units[is_bytes][unit]);
}

static void rate_text(double rate, bool is_bytes, char out[32])
{
    static const char *const prefixes[] = {"", "k", "M", "G", "T"};
    int unit = 0;
    for (; unit < 4 && rate >= 1000; unit++)
        rate /= 1000;
    snprintf(out, 32, "%.3g %s%s/s", rate, prefixes[unit], is_bytes ? "B" : "FLOP");
}

static void time_text(double us, char out[32])
{
    if (us < 1e3)
        snprintf(out, 32, "%.4g us", us);
    else if (us < 1e6)
        snprintf(out, 32, "%.4g ms", us * 1e-3);
    else
        snprintf(out, 32, "%.4g s", us * 1e-6);
}

static void print_cost(const weft_cluster *cluster, weft_cost_kind kind, FILE *out)
{
    const weft_cost *cost = &cluster->costs[kind];
    bool is_bytes = weft_cost_unit(kind)[0] == 'b';
    char volume[32], time[32], rate[32], key[48];
    rate_text(cost->peak, is_bytes, rate);
    fprintf(out, "\n%s: %s, peak %s", weft_cost_text(kind), weft_cost_help(kind), rate);
    snprintf(key, sizeof key, "costs.%s", weft_cost_text(kind));
    const weft_source *source = weft_cluster_source(cluster, -1, key);
    if (source && source->spread > 0)
        fprintf(out, ", spread %.2g %%", 100 * source->spread);
    fprintf(out, "\n");
    for (int i = 0; i < cost->curve.num_points; i++) {
        double us = cost->curve.time_us[i];
        volume_text(cost->curve.volume[i], is_bytes, volume);
        time_text(us, time);
        rate_text(us > 0 ? cost->curve.volume[i] / (us * 1e-6) : 0, is_bytes, rate);
        fprintf(out, "  %12s  %11s  %13s  %5.1f %%\n", volume, time, rate,
                100 * weft_cluster_efficiency(cluster, kind, cost->curve.volume[i]));
    }
}

void weft_calibrate_warn(const weft_cluster *cluster, FILE *out)
{
    for (int i = 0; i < cluster->num_sources; i++) {
        const weft_source *source = &cluster->sources[i];
        if (source->class_ == WEFT_SOURCE_MEASURED && source->spread > WEFT_CALIBRATE_MOST_SPREAD)
            fprintf(out,
                    "weft calibrate: %s: half of its measurements spread over %s%.3g %% of the "
                    "median; measure again on a quiet machine\n",
                    source->key, source->spread < 10 ? "" : "at least ", 100 * source->spread);
    }
}

/* What was measured of messages beside their curve. */
static void print_eager(const weft_cluster *cluster, weft_figure figure, const char *place,
                        FILE *out)
{
    if (weft_hardware_knows(&cluster->hardware, figure))
        fprintf(out, "\n%s: messages %s of up to %s travel before their receivers ask\n",
                weft_figure_path(figure), place,
                weft_bytes_text(cluster->hardware.figures[figure]).text);
}

void weft_calibrate_print(const weft_cluster *cluster, bool is_imported, FILE *out)
{
    bool any_unknown = false;
    const bool is_alone =
        cluster->num_nodes * cluster->ranks_per_node == 1; /* who has no messages */
    const weft_interference none = weft_interference_none();
    fprintf(out, "%s: %s %s of %s\n", *cluster->name ? cluster->name : "a cluster",
            is_imported ? "imported:" : "measured on",
            weft_count_text(cluster->num_nodes, "node").text,
            weft_count_text(cluster->ranks_per_node, "rank").text);
    for (int i = 0; i < WEFT_NUM_COSTS; i++)
        if (weft_cluster_knows(cluster, (weft_cost_kind)i))
            print_cost(cluster, (weft_cost_kind)i, out);
    print_eager(cluster, WEFT_FIGURE_INSIDE_EAGER, "inside a node", out);
    print_eager(cluster, WEFT_FIGURE_BETWEEN_EAGER, "between nodes", out);
    for (int i = 0; i < WEFT_NUM_COSTS; i++) {
        if (weft_cluster_knows(cluster, (weft_cost_kind)i))
            continue;
        fprintf(out, "%s%s",
                any_unknown ? ", " : "\nnot measured: ", weft_cost_text((weft_cost_kind)i));
        any_unknown = true;
    }
    if (memcmp(&none, &cluster->interference, sizeof none) == 0) {
        fprintf(out, "%sinterference: not measured, taken for none\n", any_unknown ? "\n" : "");
        return;
    }
    fprintf(out, "%s\nspeed of each beside others, as a share of its speed alone:\n  %-6s",
            any_unknown ? "\n" : "", "");
    for (int x = 0; x <= WEFT_WORK_ALL; x++)
        fprintf(out, "  %6s", weft_work_class_text(x));
    for (int y = 0; y < WEFT_NUM_WORK_CLASSES; y++) {
        fprintf(out, "\n  %-6s", weft_work_class_text(y));
        for (int x = 0; x <= WEFT_WORK_ALL; x++) {
            if (x == y || (is_alone && (x == WEFT_WORK_COMM || y == WEFT_WORK_COMM)))
                fprintf(out, "  %6s", "-");
            else
                fprintf(out, "  %6.2f", cluster->interference.alpha[y][x]);
        }
    }
    fprintf(out, "\n");
}
