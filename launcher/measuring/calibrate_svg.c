#include <math.h>

#include "core/svg.h"
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

static weft_counted volume_text(double volume, bool is_bytes)
{
    return weft_scaled_text(volume, is_bytes ? 1024 : 1000, is_bytes ? "B" : "FLOP");
}

static weft_counted rate_text(double rate, bool is_bytes)
{
    return weft_scaled_text(rate, 1000, is_bytes ? "B/s" : "FLOP/s");
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
    double step = s->is_bytes ? 16 : 10;
    while (log(s->high / s->low) / log(step) > 8)
        step *= s->is_bytes ? 16 : 10;
    for (int i = 0; i <= 4; i++) {
        const double y = y_of(s, i / 4.0);
        weft_svg_line(out, LEFT, y, RIGHT, y);
        weft_svg_text(out, LEFT - 8, y + 4, WEFT_SVG_FAINT WEFT_SVG_END, "%d %%", 25 * i);
    }
    const double first = pow(step, ceil(log(s->low) / log(step) - 1e-9));
    for (double volume = first; volume <= s->high * 1.0001; volume *= step) {
        const double x = x_of(s, volume), foot = s->top + PANEL_HEIGHT;
        weft_svg_line(out, x, s->top, x, foot + 4);
        weft_svg_text(out, x, foot + 18, WEFT_SVG_FAINT WEFT_SVG_MIDDLE, "%s",
                      volume_text(volume, s->is_bytes).text);
    }
}

static void draw_curve(const weft_cluster *cluster, weft_cost_kind kind, const scale *s,
                       const char *colour, FILE *out)
{
    const weft_curve *curve = &cluster->costs[kind].curve;
    fprintf(out, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\" points=\"", colour);
    for (int i = 0; i < curve->num_points; i++)
        if (curve->volume[i] > 0)
            fprintf(out, "%.1f,%.1f ", x_of(s, curve->volume[i]),
                    y_of(s, weft_cluster_efficiency(cluster, kind, curve->volume[i])));
    fprintf(out, "\"/>\n");
    for (int i = 0; i < curve->num_points; i++) {
        if (curve->volume[i] <= 0)
            continue;
        const double share = weft_cluster_efficiency(cluster, kind, curve->volume[i]);
        fprintf(out,
                "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"2.6\" fill=\"%s\"><title>%s, %s: %.4g µs, "
                "%s</title></circle>\n",
                x_of(s, curve->volume[i]), y_of(s, share), colour, weft_cost_text(kind),
                volume_text(curve->volume[i], s->is_bytes).text, curve->time_us[i],
                rate_text(cluster->costs[kind].peak * share, s->is_bytes).text);
    }
}

static void draw_legend(const weft_cluster *cluster, weft_cost_kind kind, double y, bool is_bytes,
                        const char *colour, FILE *out)
{
    const weft_cost *cost = &cluster->costs[kind];
    char fill[32];
    snprintf(fill, sizeof fill, " fill=\"%s\"", colour);
    weft_svg_box(out, RIGHT + 18, y, 12, 12, fill);
    weft_svg_text(out, RIGHT + 36, y + 10.5, " font-size=\"12\"" WEFT_SVG_INK,
                  "%s: %s, from %.3g µs", weft_cost_text(kind),
                  rate_text(cost->peak, is_bytes).text, cost->curve.time_us[0]);
}

static void draw_title(FILE *out, double y, const char *title, const char *about)
{
    weft_svg_text(out, MARGIN, y + 12, " font-size=\"13\"" WEFT_SVG_INK WEFT_SVG_BOLD, "%s: %s",
                  title, about);
}

static void draw_panel(const weft_cluster *cluster, const panel *p, double y, FILE *out)
{
    const scale s = find_scale(cluster, p, y + PANEL_TITLE);
    draw_title(out, y, p->title, "share of the peak rate");
    fprintf(out, "<g font-size=\"11\">\n");
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
    char fill[64];
    draw_title(out, y, "Interference",
               "speed of a row's work beside a column's, of its speed alone");
    fprintf(out, "<g font-size=\"12\">\n");
    y += PANEL_TITLE;
    for (int x = 0; x <= WEFT_WORK_ALL; x++)
        weft_svg_text(out, LEFT + (x + 0.5) * CELL_WIDTH, y + 10, WEFT_SVG_FAINT WEFT_SVG_MIDDLE,
                      "%s", weft_work_class_text(x));
    y += 18;
    for (int row = 0; row < WEFT_NUM_WORK_CLASSES; row++) {
        const double top = y + row * CELL_HEIGHT, middle = top + CELL_HEIGHT / 2.0 + 4;
        weft_svg_text(out, LEFT - 8, middle, WEFT_SVG_FAINT WEFT_SVG_END, "%s",
                      weft_work_class_text(row));
        for (int x = 0; x <= WEFT_WORK_ALL; x++) {
            const double alpha = cluster->interference.alpha[row][x];
            snprintf(fill, sizeof fill, " fill=\"#3b76d1\" fill-opacity=\"%.2f\"",
                     0.7 * fmin(alpha, 1));
            weft_svg_box(out, LEFT + x * CELL_WIDTH, top, CELL_WIDTH - 2, CELL_HEIGHT - 2, fill);
            weft_svg_text(out, LEFT + (x + 0.5) * CELL_WIDTH, middle, WEFT_SVG_INK WEFT_SVG_MIDDLE,
                          x == row ? "-" : "%.2f", alpha);
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

    weft_svg_begin(out, WIDTH, height, "");
    weft_svg_text(out, MARGIN, MARGIN + 14, " font-size=\"15\"" WEFT_SVG_INK WEFT_SVG_BOLD,
                  "%s: %d × %d ranks", *cluster->name ? cluster->name : "A cluster",
                  cluster->num_nodes, cluster->ranks_per_node);
    for (int i = 0; i < NUM_PANELS; i++) {
        if (!is_shown(cluster, &panels[i]))
            continue;
        draw_panel(cluster, &panels[i], y, out);
        y += step;
    }
    draw_interference(cluster, y, out);
    return weft_svg_end(out);
}
