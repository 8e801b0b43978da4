/* The sections of a search, what-if and an expansion: their reports, and charts of them. */
#include <math.h>

#include "core/text.h"
#include "core/svg.h"
#include "launcher/page/parts.h"
#include "launcher/searching/search_print.h"

enum { MAX_BARS = 400, MAX_DOTS = 2000 };

/* --- charts ---------------------------------------------------------------------------------- */

/* 360 units wide, as the narrowest telephone; both axes begin at 0. */
enum { WIDTH = 360, HEIGHT = 220, LEFT = 8, RIGHT = 352, TOP = 20, BOTTOM = 190 };

typedef struct chart {
    FILE *out;
    double most_x, most_y;
} chart;

static double x_of(const chart *c, double x)
{
    return LEFT + x / c->most_x * (RIGHT - LEFT);
}

static double y_of(const chart *c, double y)
{
    return BOTTOM - y / c->most_y * (BOTTOM - TOP);
}

/* What the axes are stands at their ends. */
static chart begin_chart(FILE *out, const char *label, double most_x, const char *x_text,
                         double most_y, const char *y_text)
{
    const chart c = {out, most_x > 0 ? 1.05 * most_x : 1, most_y > 0 ? 1.05 * most_y : 1};
    fprintf(out,
            "<svg class=\"chart\" viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"%s\">\n"
            "<path class=\"axis\" d=\"M%d %dV%dH%d\"/>"
            "<text x=\"%d\" y=\"12\">%s</text><text x=\"%d\" y=\"%d\" text-anchor=\"end\">%s</text>"
            "\n",
            WIDTH, HEIGHT, label, LEFT, TOP, BOTTOM, RIGHT, LEFT, y_text, RIGHT, BOTTOM + 16,
            x_text);
    return c;
}

static void write_dot(const chart *c, double x, double y, const char *title)
{
    fprintf(c->out, "<circle class=\"dot\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\"><title>", x_of(c, x),
            y_of(c, y));
    weft_svg_write_text(title, c->out);
    fputs("</title></circle>\n", c->out);
}

/* --- meshes ---------------------------------------------------------------------------------- */

static void write_scatter(const weft_page *page, FILE *out)
{
    const weft_search_result *s = page->search;
    const double limit = page->plan ? (double)page->plan->memory_limit_bytes : 0;
    double most_bytes = limit, most_rate = 0;
    char x_text[96], y_text[96];
    for (int i = 0; i < s->num_plans; i++) {
        most_bytes = fmax(most_bytes, (double)s->plans[i].memory_bytes);
        most_rate = fmax(most_rate, s->plans[i].tokens_per_s);
    }
    snprintf(x_text, sizeof x_text, "memory, up to %s", weft_bytes_text(most_bytes).text);
    snprintf(y_text, sizeof y_text, "tokens/s, up to %s",
             weft_unit_text(WEFT_UNIT_COUNT, most_rate).text);
    const chart c =
        begin_chart(out, "speed over memory of each mesh", most_bytes, x_text, most_rate, y_text);
    if (limit > 0)
        fprintf(out, "<path class=\"limit\" d=\"M%.1f %dV%d\"/>\n", x_of(&c, limit), TOP, BOTTOM);
    for (int i = 0; i < s->num_plans && i < MAX_DOTS; i++)
        write_dot(&c, (double)s->plans[i].memory_bytes, s->plans[i].tokens_per_s, s->plans[i].mesh);
    fputs("</svg>\n<p class=\"soft\">A dot is a plan. Dashed: the memory that a device has.</p>\n",
          out);
}

weft_status weft_page_ranked(const weft_page *page, weft_report *report)
{
    const weft_search_result *s = page->search;
    if (!s)
        return WEFT_OK;
    weft_page_begin(report->out, "meshes",
                    s->num_plans > 0 ? "Meshes, fastest first"
                                     : "No mesh fits; what comes nearest");
    WEFT_TRY(weft_search_report(report, s, NULL, NULL));
    if (s->num_plans > 0)
        write_scatter(page, report->out);
    fputs("</section>\n", report->out);
    return WEFT_OK;
}

/* --- scaling --------------------------------------------------------------------------------- */

/* NAN: nothing fits. */
static double rate_of(const weft_search_result *s)
{
    return s->num_plans > 0 ? s->plans->tokens_per_s : (double)NAN;
}

static double nodes_of(const weft_search_result *s)
{
    return s->num_devices / s->cluster->ranks_per_node;
}

static void write_curve(const weft_page *page, FILE *out)
{
    const weft_search_result *first = NULL, *end = page->scaling + page->num_scales;
    double most_nodes = 0, most_rate = 0;
    char x_text[64], y_text[96];
    for (const weft_search_result *s = page->scaling; s < end; s++) {
        most_nodes = fmax(most_nodes, nodes_of(s));
        most_rate = fmax(most_rate, rate_of(s));
        if (!first && s->num_plans > 0)
            first = s;
    }
    if (!first)
        return;
    const double ideal = rate_of(first) / nodes_of(first); /* of each node */
    most_rate = fmax(most_rate, ideal * most_nodes);
    snprintf(x_text, sizeof x_text, "nodes, up to %.0f", most_nodes);
    snprintf(y_text, sizeof y_text, "tokens/s, up to %s",
             weft_unit_text(WEFT_UNIT_COUNT, most_rate).text);
    const chart c =
        begin_chart(out, "tokens a second over nodes", most_nodes, x_text, most_rate, y_text);
    fprintf(out, "<path class=\"ideal\" d=\"M%.1f %.1fL%.1f %.1f\"/>\n<path class=\"curve\" d=\"",
            x_of(&c, nodes_of(first)), y_of(&c, rate_of(first)), x_of(&c, most_nodes),
            y_of(&c, ideal * most_nodes));
    for (const weft_search_result *s = first; s < end; s++)
        if (s->num_plans > 0)
            fprintf(out, "%c%.1f %.1f", s == first ? 'M' : 'L', x_of(&c, nodes_of(s)),
                    y_of(&c, rate_of(s)));
    fputs("\"/>\n", out);
    for (const weft_search_result *s = first; s < end; s++)
        if (s->num_plans > 0)
            write_dot(&c, nodes_of(s), rate_of(s), s->plans->mesh);
    fputs("</svg>\n<p class=\"soft\">A dot is the best mesh of as many nodes. Dashed: as many "
          "tokens a node as the first count's.</p>\n",
          out);
}

weft_status weft_page_scaling(const weft_page *page, weft_report *report)
{
    if (page->num_scales < 2)
        return WEFT_OK;
    weft_page_begin(report->out, "scaling", "More nodes");
    write_curve(page, report->out);
    WEFT_TRY(weft_search_report_scaling(report, page->scaling, page->num_scales, NULL, NULL));
    fputs("</section>\n", report->out);
    return WEFT_OK;
}

/* --- bars ------------------------------------------------------------------------------------ */

static void write_bar(FILE *out, const char *class_, double share)
{
    fprintf(out, "<div class=\"bar\"><i class=\"%s\" style=\"width:%.2f%%\"></i></div>", class_,
            isfinite(share) && share > 0 ? 100 * share : 0);
}

static double gain_of(const weft_what_if_plan *p)
{
    return p->known ? p->gain : (double)NAN;
}

void weft_page_gains(const weft_page *page, weft_report *report)
{
    const weft_what_if *w = page->what_if;
    FILE *out = report->out;
    double most = 0;
    if (!w)
        return;
    for (int i = 0; i < w->num_rows; i++)
        most = fmax(most, fmax(gain_of(&w->rows[i].same), gain_of(&w->rows[i].best)));
    weft_page_begin(out, "what-if", "What would it buy?");
    fputs("<div class=\"keys\"><span><i class=\"same\"></i>on the same mesh</span>"
          "<span><i class=\"gain\"></i>after a new search</span></div>\n",
          out);
    for (int i = 0; i < w->num_rows; i++) {
        const weft_what_if_row *row = &w->rows[i];
        fprintf(out, "<div class=\"row\"><span>%s</span><div>", row->help);
        write_bar(out, "same", gain_of(&row->same) / most);
        write_bar(out, "gain", gain_of(&row->best) / most);
        fprintf(out, "</div><span class=\"v\">%s<br>%s</span></div>\n",
                weft_unit_text(WEFT_UNIT_CHANGE, gain_of(&row->same)).text,
                weft_unit_text(WEFT_UNIT_CHANGE, gain_of(&row->best)).text);
    }
    weft_what_if_report(report, w);
    fputs("</section>\n", out);
}

void weft_page_ladder(const weft_page *page, weft_report *report)
{
    const weft_expand *e = page->expand;
    FILE *out = report->out;
    double most = 0;
    if (!e)
        return;
    for (int i = 0; i < e->num_steps; i++)
        most = fmax(most, e->steps[i].num_nodes);
    weft_page_begin(out, "expansion", "Step by step");
    for (int i = 0; i < e->num_steps && i < MAX_BARS; i++) {
        const weft_expand_step *step = &e->steps[i];
        fprintf(out, "<div class=\"row\"><span>%s%lld tokens</span>", i ? "" : "today, ",
                (long long)step->config.model.seq_length);
        write_bar(out, "gain", step->num_nodes / most);
        fprintf(out, "<span class=\"v\">%s</span></div>\n",
                weft_count_text(step->num_nodes, "node").text);
    }
    weft_expand_report(report, e, page->request);
    fputs("</section>\n", out);
}
