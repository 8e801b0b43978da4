/* The sections that a search, what-if and an expansion fill in: tables, and charts of them. */
#include <math.h>

#include "core/text.h"
#include "launcher/page/parts.h"

enum { MAX_ROWS = 400, MAX_DOTS = 2000 };

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

static void write_dot(const chart *c, const char *class_, double x, double y, const char *title)
{
    fprintf(c->out, "<circle class=\"%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\"><title>", class_,
            x_of(c, x), y_of(c, y));
    weft_svg_write_text(title ? title : "", c->out);
    fputs("</title></circle>\n", c->out);
}

/* --- meshes ---------------------------------------------------------------------------------- */

static void write_scatter(const weft_page *page, FILE *out)
{
    double most_bytes = 0, most_rate = 0, limit = 0;
    char x_text[96], y_text[96];
    int dots = 0;
    for (int i = 0; i < page->num_meshes; i++) {
        most_bytes = fmax(most_bytes, page->meshes[i].memory_bytes);
        most_rate = fmax(most_rate, page->meshes[i].tokens_per_s);
    }
    if (!(most_rate > 0))
        return;
    if (page->plan)
        limit = (double)page->plan->memory_limit_bytes;
    most_bytes = fmax(most_bytes, limit);
    snprintf(x_text, sizeof x_text, "memory, up to %s", weft_page_bytes(most_bytes).text);
    snprintf(y_text, sizeof y_text, "tokens/s, up to %s", weft_page_count(most_rate).text);
    const chart c =
        begin_chart(out, "speed over memory of each mesh", most_bytes, x_text, most_rate, y_text);
    if (limit > 0)
        fprintf(out, "<path class=\"limit\" d=\"M%.1f %dV%d\"/>\n", x_of(&c, limit), TOP, BOTTOM);
    for (int i = 0; i < page->num_meshes && dots < MAX_DOTS; i++) {
        const weft_page_mesh *m = &page->meshes[i];
        if (!isfinite(m->memory_bytes) || !isfinite(m->tokens_per_s))
            continue;
        write_dot(&c, m->fits ? "dot" : "out", m->memory_bytes, m->tokens_per_s, m->mesh);
        dots++;
    }
    fputs("</svg>\n<p class=\"soft\">A dot is a mesh; rings do not fit. Dashed: the memory that a "
          "device has.</p>\n",
          out);
}

void weft_page_ranked(const weft_page *page, FILE *out)
{
    if (page->num_meshes == 0)
        return;
    bool fits = false;
    for (int i = 0; i < page->num_meshes; i++)
        fits |= page->meshes[i].fits;
    weft_page_begin(out, "meshes",
                    fits ? "Meshes, fastest first" : "No mesh fits; what comes nearest");
    fputs("<div class=\"scroll\"><table><tr><th class=\"n\">#</th><th>mesh</th>"
          "<th class=\"n\">step</th><th class=\"n\">range</th><th class=\"n\">tokens/s</th>"
          "<th class=\"n\">memory</th><th></th></tr>\n",
          out);
    for (int i = 0; i < page->num_meshes && i < MAX_ROWS; i++) {
        const weft_page_mesh *m = &page->meshes[i];
        char range[100] = "";
        if (m->low_s > 0 && m->high_s > 0)
            snprintf(range, sizeof range, "%s to %s", weft_page_seconds(m->low_s).text,
                     weft_page_seconds(m->high_s).text);
        fprintf(out, "<tr%s><td class=\"n\">%d</td>", m->fits ? "" : " class=\"bad\"", i + 1);
        weft_page_cell(out, m->mesh);
        weft_page_number(out, weft_page_seconds(m->step_s).text);
        weft_page_number(out, range);
        weft_page_number(out, weft_page_count(m->tokens_per_s).text);
        weft_page_number(out, weft_page_bytes(m->memory_bytes).text);
        weft_page_cell(out, m->note);
        fputs("</tr>\n", out);
    }
    fputs("</table></div>\n", out);
    if (page->num_meshes > MAX_ROWS)
        fprintf(out, "<p class=\"soft\">The first %d of %d meshes.</p>\n", MAX_ROWS,
                page->num_meshes);
    write_scatter(page, out);
    fputs("</section>\n", out);
}

/* --- scaling --------------------------------------------------------------------------------- */

static void write_curve(const weft_page *page, FILE *out)
{
    const weft_page_scale *first = NULL;
    double most_nodes = 0, most_rate = 0;
    char x_text[64], y_text[96];
    for (int i = 0; i < page->num_scales; i++) {
        const weft_page_scale *s = &page->scales[i];
        most_nodes = fmax(most_nodes, s->nodes);
        most_rate = fmax(most_rate, s->tokens_per_s);
        if (!first && isfinite(s->tokens_per_s))
            first = s;
    }
    if (!first)
        return;
    const double ideal = first->tokens_per_s / first->nodes; /* of each node */
    most_rate = fmax(most_rate, ideal * most_nodes);
    snprintf(x_text, sizeof x_text, "nodes, up to %s", weft_page_count(most_nodes).text);
    snprintf(y_text, sizeof y_text, "tokens/s, up to %s", weft_page_count(most_rate).text);
    const chart c =
        begin_chart(out, "tokens a second over nodes", most_nodes, x_text, most_rate, y_text);
    fprintf(out, "<path class=\"ideal\" d=\"M%.1f %.1fL%.1f %.1f\"/>\n<path class=\"curve\" d=\"",
            x_of(&c, first->nodes), y_of(&c, first->tokens_per_s), x_of(&c, most_nodes),
            y_of(&c, ideal * most_nodes));
    for (int i = 0; i < page->num_scales; i++)
        if (isfinite(page->scales[i].tokens_per_s))
            fprintf(out, "%c%.1f %.1f", &page->scales[i] == first ? 'M' : 'L',
                    x_of(&c, page->scales[i].nodes), y_of(&c, page->scales[i].tokens_per_s));
    fputs("\"/>\n", out);
    for (int i = 0; i < page->num_scales; i++)
        if (isfinite(page->scales[i].tokens_per_s))
            write_dot(&c, "dot", page->scales[i].nodes, page->scales[i].tokens_per_s,
                      page->scales[i].mesh);
    fputs("</svg>\n<p class=\"soft\">A dot is the best mesh of as many nodes. Dashed: as many "
          "tokens a node as the first "
          "count's.</p>\n",
          out);
}

void weft_page_scaling(const weft_page *page, FILE *out)
{
    if (page->num_scales == 0)
        return;
    weft_page_begin(out, "scaling", "More nodes");
    write_curve(page, out);
    fputs("<div class=\"scroll\"><table><tr><th class=\"n\">nodes</th><th class=\"n\">devices</th>"
          "<th class=\"n\">used</th><th>mesh</th><th class=\"n\">step</th><th "
          "class=\"n\">tokens/s</th>"
          "<th class=\"n\">a device</th></tr>\n",
          out);
    for (int i = 0; i < page->num_scales && i < MAX_ROWS; i++) {
        const weft_page_scale *s = &page->scales[i];
        const int used = s->used > 0 ? s->used : s->devices;
        fputs("<tr>", out);
        weft_page_number(out, weft_page_count(s->nodes).text);
        weft_page_number(out, weft_page_count(s->devices).text);
        weft_page_number(out, weft_page_count(used).text);
        weft_page_cell(out, isfinite(s->tokens_per_s) ? s->mesh : "nothing fits");
        weft_page_number(out, weft_page_seconds(s->step_s).text);
        weft_page_number(out, weft_page_count(s->tokens_per_s).text);
        weft_page_number(out, weft_page_count(s->tokens_per_s / used).text);
        fputs("</tr>\n", out);
    }
    fputs("</table></div>\n", out);
    for (int i = 0; i < page->num_scales && i < MAX_ROWS; i++)
        if (page->scales[i].idle) {
            fprintf(out, "<p class=\"soft\">%s devices, of which some stay idle: ",
                    weft_page_count(page->scales[i].devices).text);
            weft_svg_write_text(page->scales[i].idle, out);
            fputs("</p>\n", out);
        }
    fputs("</section>\n", out);
}

/* --- what-if --------------------------------------------------------------------------------- */

static double bar_width(double factor, double most)
{
    return isfinite(factor) && factor > 1 && most > 1 ? 100 * (factor - 1) / (most - 1) : 0;
}

void weft_page_gains(const weft_page *page, FILE *out)
{
    double most = 1;
    if (page->num_gains == 0)
        return;
    for (int i = 0; i < page->num_gains; i++)
        most = fmax(most, fmax(page->gains[i].same_mesh, page->gains[i].searched));
    weft_page_begin(out, "what-if", "What would it buy?");
    fputs("<div class=\"keys\"><span><i class=\"same\"></i>on the same mesh</span>"
          "<span><i class=\"gain\"></i>after a new search</span></div>\n",
          out);
    for (int i = 0; i < page->num_gains && i < MAX_ROWS; i++) {
        const weft_page_gain *g = &page->gains[i];
        fputs("<div class=\"row\"><span>", out);
        weft_svg_write_text(g->change, out);
        fprintf(out,
                "</span><div><div class=\"bar\"><i class=\"same\" style=\"width:%.2f%%\"></i></div>"
                "<div class=\"bar\"><i class=\"gain\" style=\"width:%.2f%%\"></i></div></div>"
                "<span class=\"v\">%s<br>%s</span></div>\n",
                bar_width(g->same_mesh, most), bar_width(g->searched, most),
                weft_page_gain_text(g->same_mesh).text, weft_page_gain_text(g->searched).text);
    }
    fputs("<div class=\"scroll\"><table><tr><th>change</th><th class=\"n\">same mesh</th>"
          "<th class=\"n\">new search</th><th>its mesh</th><th>its limit</th>"
          "<th class=\"n\">cost of 10<sup>9</sup> tokens</th></tr>\n",
          out);
    for (int i = 0; i < page->num_gains && i < MAX_ROWS; i++) {
        const weft_page_gain *g = &page->gains[i];
        fputs("<tr>", out);
        weft_page_cell(out, g->change);
        weft_page_number(out, weft_page_gain_text(g->same_mesh).text);
        weft_page_number(out, weft_page_gain_text(g->searched).text);
        weft_page_cell(out, g->mesh);
        weft_page_cell(out, g->limits);
        weft_page_number(out, weft_page_count(g->cost_per_billion).text);
        fputs("</tr>\n", out);
    }
    fputs("</table></div>\n</section>\n", out);
}

/* --- expansion ------------------------------------------------------------------------------- */

void weft_page_ladder(const weft_page *page, FILE *out)
{
    double most = 0;
    if (page->num_rungs == 0)
        return;
    for (int i = 0; i < page->num_rungs; i++)
        most = fmax(most, page->rungs[i].nodes);
    weft_page_begin(out, "expansion", "Step by step");
    for (int i = 0; i < page->num_rungs && i < MAX_ROWS; i++) {
        const weft_page_rung *r = &page->rungs[i];
        fputs("<div class=\"row\"><span>", out);
        weft_svg_write_text(r->step, out);
        fprintf(out,
                "</span><div class=\"bar\"><i class=\"gain\" style=\"width:%.2f%%\"></i></div>"
                "<span class=\"v\">%s nodes</span></div>\n",
                most > 0 ? 100 * r->nodes / most : 0, weft_page_count(r->nodes).text);
    }
    fputs("<div class=\"scroll\"><table><tr><th>step</th><th class=\"n\">nodes added</th>"
          "<th>mesh</th><th>kind</th><th class=\"n\">memory</th><th class=\"n\">tokens/s</th>"
          "<th class=\"n\">cost of 10<sup>9</sup> tokens</th><th>why not fewer</th></tr>\n",
          out);
    for (int i = 0; i < page->num_rungs && i < MAX_ROWS; i++) {
        const weft_page_rung *r = &page->rungs[i];
        fputs("<tr>", out);
        weft_page_cell(out, r->step);
        weft_page_number(out,
                         weft_page_count(i > 0 ? r->nodes - page->rungs[i - 1].nodes : 0).text);
        weft_page_cell(out, r->mesh);
        weft_page_cell(out, r->kind);
        weft_page_number(out, weft_page_bytes(r->memory_bytes).text);
        weft_page_number(out, weft_page_count(r->tokens_per_s).text);
        weft_page_number(out, weft_page_count(r->cost_per_billion).text);
        weft_page_cell(out, r->why);
        fputs("</tr>\n", out);
    }
    fputs("</table></div>\n</section>\n", out);
}
