#include "launcher/measuring/calibrate.h"

#include <math.h>
#include <string.h>

#include "core/text.h"
#include "launcher/report/report.h"

enum { MOST_SPREAD = 10 }; /* that a cluster's file says */

/* "31 %", "2.5 times", "at least 10 times": between quartiles, of the median. */
static weft_counted spread_text(double spread)
{
    weft_counted out;
    if (spread < 0.995)
        snprintf(out.text, sizeof out.text, "%.2g %%", 100 * spread);
    else
        snprintf(out.text, sizeof out.text, "%s%.2g times", spread < MOST_SPREAD ? "" : "at least ",
                 spread);
    return out;
}

static void print_cost(const weft_cluster *cluster, weft_cost_kind kind, weft_report *r)
{
    const weft_cost *cost = &cluster->costs[kind];
    const bool is_bytes = weft_cost_unit(kind)[0] == 'b';
    const char *unit = is_bytes ? "B/s" : "FLOP/s";
    char key[48], spread[64] = "";
    snprintf(key, sizeof key, "costs.%s", weft_cost_text(kind));
    const weft_source *source = weft_cluster_source(cluster, -1, key);
    if (source && source->spread > 0)
        snprintf(spread, sizeof spread, ", spread %s", spread_text(source->spread).text);
    weft_report_line(r, "\n%s: %s, peak %s%s", weft_cost_text(kind), weft_cost_help(kind),
                     weft_scaled_text(cost->peak, 1000, unit).text, spread);
    weft_report_open(r, WEFT_REPORT_TABLE, NULL);
    for (int i = 0; i < cost->curve.num_points; i++) {
        const double volume = cost->curve.volume[i], us = cost->curve.time_us[i];
        weft_report_record(r);
        weft_report_cell(
            r, is_bytes ? "bytes" : "work", "%s",
            weft_scaled_text(volume, is_bytes ? 1024 : 1000, is_bytes ? "B" : "FLOP").text);
        weft_report_row(r, NULL, "time", WEFT_UNIT_SECONDS, us / 1e6);
        weft_report_cell(r, "rate", "%s",
                         weft_scaled_text(us > 0 ? volume / (us * 1e-6) : 0, 1000, unit).text);
        weft_report_row(r, NULL, "of the peak", WEFT_UNIT_SHARE,
                        weft_cluster_efficiency(cluster, kind, volume));
    }
    weft_report_close(r);
}

/* "31 % of", "2.5 times". */
static weft_counted of_median(double spread)
{
    weft_counted out = spread_text(spread);
    if (strchr(out.text, '%'))
        strcat(out.text, " of");
    return out;
}

static bool is_scattered(const weft_source *source)
{
    return source->class_ == WEFT_SOURCE_MEASURED && source->spread > WEFT_CALIBRATE_MOST_SPREAD;
}

void weft_calibrate_warn(const weft_cluster *cluster, FILE *out)
{
    const weft_source *worst = NULL;
    int num = 0, num_measured = 0;
    for (int i = 0; i < cluster->num_sources; i++) {
        const weft_source *source = &cluster->sources[i];
        num_measured += source->class_ == WEFT_SOURCE_MEASURED;
        if (!is_scattered(source))
            continue;
        num++;
        worst = !worst || source->spread > worst->spread ? source : worst;
    }
    if (!worst)
        return;
    fputs("weft calibrate: ", out);
    if (num > 1)
        fprintf(out, "%d of %d measured numbers are uncertain (--json: all spreads), most of all ",
                num, num_measured);
    fprintf(out,
            "%s: half of its measurements spread over %s the median; measure again on a quiet "
            "machine\n",
            worst->key, of_median(worst->spread).text);
}

/* What was measured of messages beside their curve. */
static void print_eager(const weft_cluster *cluster, weft_figure figure, const char *place,
                        weft_report *r)
{
    const double bytes = cluster->hardware.figures[figure];
    if (!weft_hardware_knows(&cluster->hardware, figure))
        return;
    if (bytes > 0)
        weft_report_line(r, "\n%s: messages %s of up to %s travel before their receivers ask",
                         weft_figure_path(figure), place, weft_bytes_text(bytes).text);
    else
        weft_report_line(r, "\n%s: no message %s travels before its receiver asks",
                         weft_figure_path(figure), place);
}

static void print_unknown(const weft_cluster *cluster, bool is_imported, FILE *out)
{
    const bool is_alone = !is_imported && cluster->num_nodes * cluster->ranks_per_node == 1;
    bool any = false;
    for (int i = 0; i < WEFT_NUM_COSTS; i++) {
        if (weft_cluster_knows(cluster, (weft_cost_kind)i))
            continue;
        fprintf(out, "%s%s", any ? ", " : "\nnot measured: ", weft_cost_text((weft_cost_kind)i));
        any = true;
    }
    fputs(any ? "\n" : "", out);
    if (is_alone)
        fputs("one rank has no links: to measure them start it as training runs, such as by mpirun "
              "-n 4 weft calibrate\n",
              out);
}

static void print_interference(const weft_cluster *cluster, weft_report *r)
{
    const bool is_alone =
        cluster->num_nodes * cluster->ranks_per_node == 1; /* who has no messages */
    weft_report_line(r, "\nspeed of each beside others, as a share of its speed alone:");
    weft_report_open(r, WEFT_REPORT_TABLE, NULL);
    for (int y = 0; y < WEFT_NUM_WORK_CLASSES; y++) {
        weft_report_record(r);
        weft_report_cell(r, "", "%s", weft_work_class_text(y));
        for (int x = 0; x <= WEFT_WORK_ALL; x++) {
            const bool is_none =
                x == y || (is_alone && (x == WEFT_WORK_COMM || y == WEFT_WORK_COMM));
            weft_report_row(r, NULL, weft_work_class_text(x), WEFT_UNIT_FIXED,
                            is_none ? (double)NAN : cluster->interference.alpha[y][x]);
        }
    }
    weft_report_close(r);
}

weft_status weft_calibrate_print(const weft_cluster *cluster, bool is_imported, FILE *out)
{
    const weft_interference none = weft_interference_none();
    weft_report r;
    weft_report_begin(&r, WEFT_REPORT_TEXT);
    weft_report_line(&r, "%s: %s %s of %s", *cluster->name ? cluster->name : "a cluster",
                     is_imported ? "imported:" : "measured on",
                     weft_count_text(cluster->num_nodes, "node").text,
                     weft_count_text(cluster->ranks_per_node, "rank").text);
    for (int i = 0; i < WEFT_NUM_COSTS; i++)
        if (weft_cluster_knows(cluster, (weft_cost_kind)i))
            print_cost(cluster, (weft_cost_kind)i, &r);
    print_eager(cluster, WEFT_FIGURE_INSIDE_EAGER, "inside a node", &r);
    print_eager(cluster, WEFT_FIGURE_BETWEEN_EAGER, "between nodes", &r);
    if (r.out)
        print_unknown(cluster, is_imported, r.out);
    if (memcmp(&none, &cluster->interference, sizeof none) == 0)
        weft_report_line(&r, "interference: not measured, taken for none");
    else
        print_interference(cluster, &r);
    return weft_report_end(&r, WEFT_OK, out);
}
