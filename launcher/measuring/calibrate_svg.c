#include <math.h>
#include <string.h>

#include "core/text.h"
#include "launcher/measuring/calibrate.h"

enum {
    WIDTH = 860,
    MARGIN = 20,
    TITLE_HEIGHT = 34,
    PANEL_HEIGHT = 190, /* of the plot */
    PANEL_TITLE = 26,
    PANEL_FOOT = 44,
    LEFT = 66,
    RIGHT = 530, /* the legend stands beside it */
    LEGEND_STEP = 24,
    CELL_WIDTH = 92,
    CELL_HEIGHT = 30,
    NO_KIND = -1,
};

static const char ink[] = "#1c2333", faint[] = "#5b6678";

/* Costs that share a picture, since their volumes are alike. */
typedef struct panel {
    const char *title;
    int kinds[7]; /* a colour each at most; ends with NO_KIND */
} panel;

static const panel panels[] = {
    {"Between nodes",
     {WEFT_COST_ALL_TO_ALL, WEFT_COST_ALL_REDUCE_BETWEEN, WEFT_COST_ALL_GATHER_BETWEEN,
      WEFT_COST_REDUCE_SCATTER_BETWEEN, WEFT_COST_MESSAGE, NO_KIND}},
    {"Inside a node",
     {WEFT_COST_ALL_TO_ALL_INSIDE, WEFT_COST_ALL_REDUCE, WEFT_COST_ALL_GATHER,
      WEFT_COST_REDUCE_SCATTER, WEFT_COST_MESSAGE_INSIDE, NO_KIND}},
    {"Copies and memory",
     {WEFT_COST_COPY, WEFT_COST_TO_HOST, WEFT_COST_TO_DEVICE, WEFT_COST_MEMORY, WEFT_COST_ADAMW,
      WEFT_COST_ADAMW_HOST, NO_KIND}},
    {"Products and attention",
     {WEFT_COST_GEMM_FP32, WEFT_COST_GEMM_BF16, WEFT_COST_ATTENTION_FP32, WEFT_COST_ATTENTION_BF16,
      NO_KIND}},
    {"Storage",
     {WEFT_COST_STORAGE_WRITE, WEFT_COST_STORAGE_READ, WEFT_COST_DIRECT_WRITE,
      WEFT_COST_DIRECT_READ, NO_KIND}},
};
enum { NUM_PANELS = sizeof panels / sizeof panels[0] };

static const char *const colours[] = {"#3b76d1", "#c94f4f", "#2f9e63",
                                      "#8a5cc2", "#b07d2b", "#2a8c9a"};

static bool is_shown(const weft_cluster *cluster, const panel *p)
{
    for (int i = 0; p->kinds[i] != NO_KIND; i++)
        if (weft_cluster_knows(cluster, (weft_cost_kind)p->kinds[i]))
            return true;
    return false;
}

static void scaled_text(double value, double step, const char *unit, char out[32])
{
    static const char *const binary[] = {"", "Ki", "Mi", "Gi", "Ti", "Pi"};
    static const char *const decimal[] = {"", "k", "M", "G", "T", "P"};
    int prefix = 0;
    for (; prefix < 5 && value >= step * 0.9999; prefix++)
        value /= step;
    snprintf(out, 32, "%.3g %s%s", value, step > 1000 ? binary[prefix] : decimal[prefix], unit);
}

/* The logarithmic axis of a panel. */
typedef struct scale {
    double low, high; /* volumes */
    double top;       /* of the plot */
    bool is_bytes;
} scale;

static scale find_scale(const weft_cluster *cluster, const panel *p, double top)
{
    scale s = {.low = INFINITY, .top = top};
    s.is_bytes = weft_cost_unit((weft_cost_kind)p->kinds[0])[0] == 'b';
    for (int i = 0; p->kinds[i] != NO_KIND; i++) {
        const weft_curve *curve = &cluster->costs[p->kinds[i]].curve;
        for (int j = 0; j < curve->num_points; j++) {
            if (curve->volume[j] <= 0) /* no place on this axis */
                continue;
            s.low = fmin(s.low, curve->volume[j]);
            s.high = fmax(s.high, curve->volume[j]);
        }
    }
    if (!(s.high > 0)) /* a cost of its latency alone */
        s.low = s.high = 1;
    if (s.high <= s.low) {
        s.low /= 2;
        s.high *= 2;
    }
    return s;
}

static double x_of(const scale *s, double volume)
{
    return LEFT + log(volume / s->low) / log(s->high / s->low) * (RIGHT - LEFT);
}

static double y_of(const scale *s, double share)
{
    return s->top + (1 - share) * PANEL_HEIGHT;
}

static void draw_axes(const scale *s, FILE *out)
{
    char text[32];
    double step = s->is_bytes ? 16 : 10;
    while (log(s->high / s->low) / log(step) > 8)
        step *= s->is_bytes ? 16 : 10;
    for (int i = 0; i <= 4; i++) {
        double y = y_of(s, i / 4.0);
        fprintf(out,
                "<line x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\" stroke=\"#dfe3ea\"/>"
                "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\" fill=\"%s\">%d %%</text>\n",
                LEFT, y, RIGHT, y, LEFT - 8, y + 4, faint, 25 * i);
    }
    double first = pow(step, ceil(log(s->low) / log(step) - 1e-9));
    for (double volume = first; volume <= s->high * 1.0001; volume *= step) {
        double x = x_of(s, volume);
        scaled_text(volume, s->is_bytes ? 1024 : 1000, s->is_bytes ? "B" : "FLOP", text);
        fprintf(out,
                "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#dfe3ea\"/>"
                "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\" fill=\"%s\">%s</text>\n",
                x, s->top, x, s->top + PANEL_HEIGHT + 4, x, s->top + PANEL_HEIGHT + 18, faint,
                text);
    }
}

static void draw_curve(const weft_cluster *cluster, weft_cost_kind kind, const scale *s,
                       const char *colour, FILE *out)
{
    const weft_curve *curve = &cluster->costs[kind].curve;
    char volume[32], rate[32];
    fprintf(out, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\" points=\"", colour);
    for (int i = 0; i < curve->num_points; i++)
        if (curve->volume[i] > 0)
            fprintf(out, "%.1f,%.1f ", x_of(s, curve->volume[i]),
                    y_of(s, weft_cluster_efficiency(cluster, kind, curve->volume[i])));
    fprintf(out, "\"/>\n");
    for (int i = 0; i < curve->num_points; i++) {
        if (curve->volume[i] <= 0)
            continue;
        double share = weft_cluster_efficiency(cluster, kind, curve->volume[i]);
        scaled_text(curve->volume[i], s->is_bytes ? 1024 : 1000, s->is_bytes ? "B" : "FLOP",
                    volume);
        scaled_text(cluster->costs[kind].peak * share, 1000, s->is_bytes ? "B/s" : "FLOP/s", rate);
        fprintf(out,
                "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"2.6\" fill=\"%s\"><title>%s, %s: %.4g µs, "
                "%s</title></circle>\n",
                x_of(s, curve->volume[i]), y_of(s, share), colour, weft_cost_text(kind), volume,
                curve->time_us[i], rate);
    }
}

static void draw_legend(const weft_cluster *cluster, weft_cost_kind kind, double y, bool is_bytes,
                        const char *colour, FILE *out)
{
    char rate[32];
    const weft_cost *cost = &cluster->costs[kind];
    scaled_text(cost->peak, 1000, is_bytes ? "B/s" : "FLOP/s", rate);
    fprintf(out,
            "<rect x=\"%d\" y=\"%.1f\" width=\"12\" height=\"12\" rx=\"2\" fill=\"%s\"/>"
            "<text x=\"%d\" y=\"%.1f\" fill=\"%s\" font-size=\"12\">%s"
            "<tspan dx=\"8\" fill=\"%s\">%s, from %.3g µs</tspan></text>\n",
            RIGHT + 18, y, colour, RIGHT + 36, y + 10.5, ink, weft_cost_text(kind), faint, rate,
            cost->curve.time_us[0]);
}

static void draw_panel(const weft_cluster *cluster, const panel *p, double y, FILE *out)
{
    scale s = find_scale(cluster, p, y + PANEL_TITLE);
    fprintf(out, "<text x=\"%d\" y=\"%.1f\" font-size=\"13\" font-weight=\"600\" fill=\"%s\">%s",
            MARGIN, y + 12, ink, p->title);
    fprintf(
        out,
        "<tspan dx=\"8\" font-weight=\"400\" fill=\"%s\">share of the peak rate</tspan></text>\n"
        "<g font-size=\"11\">\n",
        faint);
    draw_axes(&s, out);
    for (int i = 0, line = 0; p->kinds[i] != NO_KIND; i++) {
        weft_cost_kind kind = (weft_cost_kind)p->kinds[i];
        if (!weft_cluster_knows(cluster, kind))
            continue;
        draw_curve(cluster, kind, &s, colours[i], out);
        draw_legend(cluster, kind, s.top + LEGEND_STEP * line++, s.is_bytes, colours[i], out);
    }
    fprintf(out, "</g>\n");
}

/* The fuller a cell, the less is lost. */
static void draw_interference(const weft_cluster *cluster, double y, FILE *out)
{
    fprintf(out,
            "<text x=\"%d\" y=\"%.1f\" font-size=\"13\" font-weight=\"600\" fill=\"%s\">"
            "Interference<tspan dx=\"8\" font-weight=\"400\" fill=\"%s\">speed of a row's work "
            "beside a "
            "column's, of its speed alone</tspan></text>\n<g font-size=\"12\" "
            "text-anchor=\"middle\">\n",
            MARGIN, y + 12, ink, faint);
    y += PANEL_TITLE;
    for (int x = 0; x <= WEFT_WORK_ALL; x++)
        fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" fill=\"%s\">%s</text>\n",
                LEFT + (x + 0.5) * CELL_WIDTH, y + 10, faint, weft_work_class_text(x));
    y += 18;
    for (int row = 0; row < WEFT_NUM_WORK_CLASSES; row++) {
        double top = y + row * CELL_HEIGHT;
        fprintf(out, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\" fill=\"%s\">%s</text>\n",
                LEFT - 8, top + CELL_HEIGHT / 2.0 + 4, faint, weft_work_class_text(row));
        for (int x = 0; x <= WEFT_WORK_ALL; x++) {
            double alpha = cluster->interference.alpha[row][x];
            double depth = alpha < 1 ? alpha : 1;
            fprintf(out,
                    "<rect x=\"%d\" y=\"%.1f\" width=\"%d\" height=\"%d\" rx=\"2\" "
                    "fill=\"#3b76d1\" fill-opacity=\"%.2f\"/>",
                    LEFT + x * CELL_WIDTH, top, CELL_WIDTH - 2, CELL_HEIGHT - 2, 0.7 * depth);
            fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" fill=\"%s\">", LEFT + (x + 0.5) * CELL_WIDTH,
                    top + CELL_HEIGHT / 2.0 + 3, ink);
            fprintf(out, x == row ? "-</text>\n" : "%.2f</text>\n", alpha);
        }
    }
    fprintf(out, "</g>\n");
}

weft_status weft_calibrate_draw(const weft_cluster *cluster, FILE *out)
{
    double step = PANEL_TITLE + PANEL_HEIGHT + PANEL_FOOT, y = MARGIN + TITLE_HEIGHT;
    double height = y + PANEL_TITLE + 18 + WEFT_NUM_WORK_CLASSES * CELL_HEIGHT + MARGIN;
    for (int i = 0; i < NUM_PANELS; i++)
        height += is_shown(cluster, &panels[i]) ? step : 0;

    /* The card behind the drawing keeps it readable on any page. */
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%.0f\" "
            "viewBox=\"0 0 %d %.0f\" font-family=\"system-ui, -apple-system, 'Segoe UI', Roboto, "
            "'DejaVu Sans', Arial, sans-serif\">\n"
            "<rect x=\"0.5\" y=\"0.5\" width=\"%d\" height=\"%.0f\" rx=\"8\" fill=\"#fafbfc\" "
            "stroke=\"#cfd6e0\"/>\n"
            "<text x=\"%d\" y=\"%d\" font-size=\"15\" font-weight=\"600\" fill=\"%s\">",
            WIDTH, height, WIDTH, height, WIDTH - 1, height - 1, MARGIN, MARGIN + 14, ink);
    weft_svg_write_text(*cluster->name ? cluster->name : "A cluster", out);
    fprintf(out, ": %d × %d ranks</text>\n", cluster->num_nodes, cluster->ranks_per_node);
    for (int i = 0; i < NUM_PANELS; i++) {
        if (!is_shown(cluster, &panels[i]))
            continue;
        draw_panel(cluster, &panels[i], y, out);
        y += step;
    }
    draw_interference(cluster, y, out);
    fprintf(out, "</svg>\n");
    if (fflush(out) != 0 || ferror(out))
        return WEFT_ERROR(WEFT_FILE, "the drawing could not be written");
    return WEFT_OK;
}
