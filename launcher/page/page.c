/* The page: its timeline, the answer, memory, where time goes, and sources. A section without
 * anything to show writes nothing. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/svg.h"
#include "core/text.h"
#include "core/trace/trace.h"
#include "launcher/page/page.h"
#include "launcher/planning/figures.h"
#include "launcher/planning/plan_print.h"
#include "launcher/searching/search.h"

/* Colours of kinds of time and purposes of memory, and classes .kN that have them. */
enum { MAX_COLOURS = 32 };
typedef struct page_colours {
    char names[MAX_COLOURS][24];
    int count;
} page_colours;

/* Begins a section; the caller ends it by </section>. */
static void page_begin(FILE *out, const char *id, const char *title)
{
    fprintf(out, "<section id=\"%s\">\n<h2>%s</h2>\n", id, title);
}

/* At most `most` of `num` indices, rising, spread evenly, with `first`, the last and `must` among
 * them; `out` has room for `most`. Returns how many. most >= 3. */
static int page_pick(int num, int must, int most, int *out)
{
    int count = 0;
    if (num <= most) {
        for (int i = 0; i < num; i++)
            out[count++] = i;
        return count;
    }
    for (int i = 0; i < most - 1; i++) { /* one place is kept for `must` */
        const int at = (int)((int64_t)i * (num - 1) / (most - 2));
        const int before = count > 0 ? out[count - 1] : -1;
        if (must > before && must < at)
            out[count++] = must;
        if (at > before)
            out[count++] = at;
    }
    return count;
}

/* The index of a name's colour; adds the name. */
static int page_colour(page_colours *colours, const char *name)
{
    int i = 0;
    while (i < colours->count && strcmp(colours->names[i], name) != 0)
        i++;
    if (i == MAX_COLOURS) /* more than can be told apart share the last */
        return i - 1;
    if (i == colours->count)
        snprintf(colours->names[colours->count++], sizeof colours->names[0], "%.23s", name);
    return i;
}

/* A colour and what has it, among a section's keys. */
static void page_key(FILE *out, int colour, const char *name)
{
    fprintf(out, "<span><i class=\"k%d\"></i>", colour);
    weft_svg_write_text(name, out);
    fputs("</span>", out);
}

/* What timelines have no colour for. */
static const char *colour_of(const char *name)
{
    static const struct {
        const char *name, *colour;
    } rows[] = {
        {"compute", "#0072b2"},         {"bubble", "#9aa3b0"},    {"optimizer", "#223344"},
        {"tensor", "#003377"},          {"expert", "#d55e00"},    {"context", "#33bbdd"},
        {"pipeline", "#e69f00"},        {"data", "#dd0044"},      {"host", "#552200"},
        {"weights", "#0072b2"},         {"gradients", "#dd0044"}, {"activations", "#009e73"},
        {"scratch", "#e69f00"},         {"messages", "#d55e00"},  {"other", "#9aa3b0"},
        {"optimizer state", "#7766ff"}, {"upload", "#aa7733"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(rows[i].name, name) == 0)
            return rows[i].colour;
    return weft_trace_colour(name);
}

/* On a dark page a colour is mixed with white, on a light one it is as it is. */
static void page_write_colours(FILE *out, const page_colours *colours)
{
    for (int dark = 0; dark < 2; dark++) {
        fputs(dark ? "@media (prefers-color-scheme:dark){" : "", out);
        for (int i = 0; i < colours->count; i++) {
            unsigned rgb[3] = {0};
            sscanf(colour_of(colours->names[i]), "#%2x%2x%2x", &rgb[0], &rgb[1], &rgb[2]);
            for (int c = 0; c < 3 && dark; c++)
                rgb[c] += (255 - rgb[c]) * 2 / 5;
            fprintf(out, ".k%d{background:#%02x%02x%02x;fill:#%02x%02x%02x}", i, rgb[0], rgb[1],
                    rgb[2], rgb[0], rgb[1], rgb[2]);
        }
        fputs(dark ? "}\n" : "\n", out);
    }
}

/* --- the timeline ----------------------------------------------------------------------------
 *
 * The planned step's: an SVG a stage, a row a lane, a box a task. The script zooms all of
 * them alike. Times are in units of a millionth of the step. */

/* A box takes at most 110 bytes. */
enum { MAX_DRAWN = 48, MAX_BOXES = 12000, UNITS = 1000000, ROW = 14, BOX = 12 };

typedef struct timeline {
    const weft_page *page;
    page_colours *colours;
    FILE *out;
    const weft_slice *slices;
    size_t num_slices;
    weft_track *tracks;
    size_t num_tracks;
    size_t *first; /* [num_tracks + 1]: into `order` */
    size_t *order; /* slices by track, in their order */
    int stages[MAX_DRAWN], num_stages;
    double start_us, span_us;
    double least_us; /* boxes begin at least so far apart; 0: all tasks are boxes */
    size_t num_tasks, num_boxes;
} timeline;

/* --- which slices ---------------------------------------------------------------------------- */

static weft_status sort(timeline *t, weft_arena *arena)
{
    WEFT_TRY(WEFT_ARRAY(arena, t->num_tracks + 2, &t->first));
    WEFT_TRY(WEFT_ARRAY(arena, t->num_slices, &t->order));
    for (size_t i = 0; i < t->num_slices; i++)
        t->first[weft_track_find(t->tracks, t->num_tracks, &t->slices[i]) + 2]++;
    for (size_t k = 2; k < t->num_tracks + 2; k++)
        t->first[k] += t->first[k - 1];
    for (size_t i = 0; i < t->num_slices; i++)
        t->order[t->first[weft_track_find(t->tracks, t->num_tracks, &t->slices[i]) + 1]++] = i;
    return WEFT_OK;
}

static bool is_shown(const timeline *t, int stage)
{
    for (int i = 0; i < t->num_stages; i++)
        if (t->stages[i] == stage)
            return true;
    return false;
}

static void measure(timeline *t)
{
    double end_us = 0;
    size_t rows = 0;
    t->start_us = INFINITY;
    for (size_t i = 0; i < t->num_slices; i++) {
        t->start_us = fmin(t->start_us, t->slices[i].start_us);
        end_us = fmax(end_us, t->slices[i].end_us);
    }
    t->span_us = fmax(end_us - t->start_us, 1e-3);
    for (size_t k = 0; k < t->num_tracks; k++)
        if (is_shown(t, t->tracks[k].rank)) {
            t->num_tasks += t->first[k + 1] - t->first[k];
            rows++;
        }
    if (t->num_tasks > MAX_BOXES)
        t->least_us = t->span_us / ((double)MAX_BOXES / (double)rows - 1);
}

/* --- boxes ------------------------------------------------------------------------------------ */

/* Neighbours of a track that are one box, with the category that takes most of it. */
typedef struct box {
    double start_us, end_us;
    const weft_slice *most;
    double us[MAX_COLOURS];
    int count;
} box;

static void add_to(const timeline *t, box *b, const weft_slice *slice)
{
    const int colour = page_colour(t->colours, slice->category);
    if (b->count == 0)
        *b = (box){.start_us = slice->start_us, .most = slice};
    b->us[colour] += slice->end_us - slice->start_us;
    if (b->us[colour] >= b->us[page_colour(t->colours, b->most->category)])
        b->most = slice;
    b->end_us = slice->end_us;
    b->count++;
}

static void write_box(timeline *t, const box *b, int row)
{
    const double x = (b->start_us - t->start_us) / t->span_us * UNITS;
    const double width = (b->end_us - b->start_us) / t->span_us * UNITS;
    fprintf(t->out, "<rect class=\"k%d\" x=\"%.0f\" y=\"%d\" width=\"%.0f\" height=\"%d\"><title>",
            page_colour(t->colours, b->most->category), x, row * ROW, fmax(width, 1), BOX);
    if (b->count > 1) {
        fprintf(t->out, "%d tasks, mostly ", b->count);
    } else {
        weft_svg_write_text(b->most->name, t->out);
        fputc(' ', t->out);
    }
    weft_svg_write_text(b->most->category, t->out);
    fputs("</title></rect>\n", t->out);
    t->num_boxes++;
}

static void write_track(timeline *t, size_t track, int row)
{
    box b = {.count = 0};
    for (size_t i = t->first[track]; i < t->first[track + 1]; i++) {
        const weft_slice *slice = &t->slices[t->order[i]];
        if (b.count > 0 && slice->start_us - b.start_us >= t->least_us) {
            write_box(t, &b, row);
            b.count = 0;
        }
        add_to(t, &b, slice);
    }
    if (b.count > 0)
        write_box(t, &b, row);
}

static void write_lanes(timeline *t, int stage)
{
    size_t first = 0, end;
    while (first < t->num_tracks && t->tracks[first].rank < stage)
        first++;
    for (end = first; end < t->num_tracks && t->tracks[end].rank == stage;)
        end++;
    if (first == end)
        return;
    const char *name = weft_trace_rank_name(t->page->trace, stage);
    fputs("<div>", t->out);
    if (name)
        weft_svg_write_text(name, t->out);
    else
        fprintf(t->out, "stage %d", stage);
    for (size_t k = first; k < end; k++) {
        const char *lane = weft_trace_lane_name(t->page->trace, t->tracks[k].lane);
        fputs(k == first ? ": " : ", ", t->out);
        weft_svg_write_text(lane ? lane : "lane", t->out);
    }
    const int height = (int)(end - first) * ROW;
    fprintf(t->out,
            "</div><svg viewBox=\"0 0 %d %d\" data-h=\"%d\" height=\"%d\" "
            "preserveAspectRatio=\"none\" aria-hidden=\"true\">\n",
            UNITS, height, height, height);
    for (size_t k = first; k < end; k++)
        write_track(t, k, (int)(k - first));
    fputs("</svg>\n", t->out);
}

/* --- around them ------------------------------------------------------------------------------ */

static void write_keys(const timeline *t)
{
    bool used[MAX_COLOURS] = {false};
    for (size_t i = 0; i < t->num_slices; i++)
        if (is_shown(t, t->slices[i].rank))
            used[page_colour(t->colours, t->slices[i].category)] = true;
    fputs("<div class=\"keys\">", t->out);
    for (int i = 0; i < t->colours->count; i++)
        if (used[i])
            page_key(t->out, i, t->colours->names[i]);
    fputs("</div>\n", t->out);
}

static void write_tools(FILE *out)
{
    static const struct {
        const char *data, *label, *sign;
    } buttons[] = {
        {"data-zoom=\"0.5\"", "zoom in", "+"},       {"data-zoom=\"2\"", "zoom out", "\u2212"},
        {"data-move=\"-0.5\"", "earlier", "\u2190"}, {"data-move=\"0.5\"", "later", "\u2192"},
        {"data-all=\"\"", "the whole step", "all"},
    };
    fputs("<div class=\"tools\">", out);
    for (size_t i = 0; i < sizeof buttons / sizeof *buttons; i++)
        fprintf(out, "<button type=\"button\" %s aria-label=\"%s\">%s</button>", buttons[i].data,
                buttons[i].label, buttons[i].sign);
    fputs("<output></output></div>\n", out);
}

static void write_all(timeline *t)
{
    write_keys(t);
    fprintf(t->out, "<div id=\"timeline\" data-us=\"%.6g\">\n", t->span_us);
    write_tools(t->out);
    fputs(
        "<div class=\"box\" tabindex=\"0\" role=\"group\" aria-label=\"timeline of the step: plus "
        "and minus zoom, arrows move, 0 shows all\">\n",
        t->out);
    for (int i = 0; i < t->num_stages; i++)
        write_lanes(t, t->stages[i]);
    fputs(
        "</div>\n<p class=\"tip soft\">Point at a box for its task. Plus, minus, arrows and 0 work "
        "where the timeline has the focus; so does the wheel, elsewhere with Ctrl.</p>\n</div>\n",
        t->out);
    if (t->num_stages < t->page->plan->num_stages)
        fprintf(t->out, "<p class=\"soft\">%d of %d stages are drawn.</p>\n", t->num_stages,
                t->page->plan->num_stages);
    if (t->least_us > 0)
        fprintf(t->out,
                "<p class=\"soft\">%s tasks are drawn as %s boxes: tasks that begin within %s of "
                "each other are one.</p>\n",
                weft_unit_text(WEFT_UNIT_COUNT, (double)t->num_tasks).text,
                weft_unit_text(WEFT_UNIT_COUNT, (double)t->num_boxes).text,
                weft_seconds_text(t->least_us / 1e6).text);
}

static weft_status page_timeline(const weft_page *page, page_colours *colours, FILE *out)
{
    if (!page->plan || (!page->trace && !page->no_trace))
        return WEFT_OK;
    page_begin(out, "step", "The planned step");
    if (!page->trace || weft_trace_count(page->trace) == 0) {
        fputs("<p class=\"soft\">", out);
        weft_svg_write_text(page->no_trace ? page->no_trace : "The step has no tasks.", out);
        fputs("</p>\n</section>\n", out);
        return WEFT_OK;
    }
    timeline t = {.page = page,
                  .colours = colours,
                  .out = out,
                  .slices = weft_trace_slices(page->trace),
                  .num_slices = weft_trace_count(page->trace)};
    t.num_stages = page_pick(page->plan->num_stages, page->plan->fullest, MAX_DRAWN, t.stages);
    WEFT_TRY(weft_trace_tracks(page->trace, &t.tracks, &t.num_tracks));
    weft_arena arena = {0};
    const weft_status status = sort(&t, &arena);
    if (status == WEFT_OK) {
        measure(&t);
        write_all(&t);
    }
    fputs("</section>\n", out);
    free(t.tracks);
    weft_arena_release(&arena);
    return status;
}

enum { MAX_BARS = 400, MAX_DOTS = 2000 };

/* --- charts ---------------------------------------------------------------------------------- */

/* 360 units wide, as the narrowest telephone; both axes begin at 0. */
enum { WIDTH = 360, HEIGHT = 230, LEFT = 62, RIGHT = 352, TOP = 20, BOTTOM = 186 };

/* What an axis counts. */
typedef enum axis_kind { AXIS_MEMORY, AXIS_RATE, AXIS_NODES } axis_kind;

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

/* 1, 2 or 5 times a power of ten of the axis' unit, so that there are three to six ticks. */
static double tick_of(axis_kind kind, double most)
{
    const double unit = kind == AXIS_MEMORY ? 1 << 30 : 1, least = kind == AXIS_NODES ? 1 : 0;
    const double raw = most / 5 / unit, ten = pow(10, floor(log10(raw))), digit = raw / ten;
    return unit * fmax(least, ten * (digit <= 1 ? 1 : digit <= 2 ? 2 : digit <= 5 ? 5 : 10));
}

static void write_tick(const chart *c, axis_kind kind, bool is_x, double at)
{
    char text[48];
    snprintf(text, sizeof text, "%s",
             kind == AXIS_MEMORY ? weft_bytes_text(at).text
                                 : weft_unit_text(WEFT_UNIT_COUNT, at).text);
    if (is_x)
        fprintf(c->out,
                "<path class=\"axis\" d=\"M%.1f %dv4\"/><text x=\"%.1f\" y=\"%d\" "
                "text-anchor=\"middle\">%s</text>",
                x_of(c, at), BOTTOM, x_of(c, at), BOTTOM + 16, text);
    else
        fprintf(c->out,
                "<path class=\"axis\" d=\"M%d %.1fh4\"/><text x=\"%d\" y=\"%.1f\" "
                "text-anchor=\"end\">%s</text>",
                LEFT - 4, y_of(c, at), LEFT - 6, y_of(c, at) + 4, text);
}

/* x: memory or nodes; y: tokens a second. */
static chart begin_chart(FILE *out, const char *label, axis_kind x, double most_x, double most_y)
{
    const chart c = {out, most_x > 0 ? 1.05 * most_x : 1, most_y > 0 ? 1.05 * most_y : 1};
    fprintf(out,
            "<svg class=\"chart\" viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"%s\">\n"
            "<path class=\"axis\" d=\"M%d %dV%dH%d\"/>"
            "<text x=\"2\" y=\"12\">tokens/s</text><text x=\"%d\" y=\"%d\" "
            "text-anchor=\"end\">%s</text>\n",
            WIDTH, HEIGHT, label, LEFT, TOP, BOTTOM, RIGHT, RIGHT, BOTTOM + 34,
            x == AXIS_MEMORY ? "memory of the fullest rank" : "nodes");
    const double step_x = tick_of(x, c.most_x), step_y = tick_of(AXIS_RATE, c.most_y);
    for (double at = step_x; at <= c.most_x; at += step_x)
        write_tick(&c, x, true, at);
    for (double at = step_y; at <= c.most_y; at += step_y)
        write_tick(&c, AXIS_RATE, false, at);
    fputc('\n', out);
    return c;
}

/* A plan, by its place among its like: the first has a label, others are hollow. */
static void write_dot(const chart *c, double x, double y, int place, const char *label,
                      const char *title)
{
    const bool is_left = x_of(c, x) > RIGHT - 60;
    fprintf(c->out, "<circle class=\"%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"%d\"><title>",
            place > 0 ? "next" : "dot", x_of(c, x), y_of(c, y), place > 0 ? 3 : 4);
    weft_svg_write_text(title, c->out);
    fputs("</title></circle>", c->out);
    if (place == 0)
        fprintf(c->out, "<text x=\"%.1f\" y=\"%.1f\"%s>%s</text>", x_of(c, x) + (is_left ? -7 : 7),
                y_of(c, y) + (is_left ? -6 : 12), is_left ? " text-anchor=\"end\"" : "", label);
    fputc('\n', c->out);
}

/* --- meshes ---------------------------------------------------------------------------------- */

static void write_scatter(const weft_page *page, FILE *out)
{
    const weft_search_result *s = page->search;
    const double limit = page->plan ? (double)page->plan->memory_limit_bytes : 0;
    double most_bytes = limit, most_rate = 0;
    for (int i = 0; i < s->num_plans; i++) {
        most_bytes = fmax(most_bytes, (double)s->plans[i].memory_bytes);
        most_rate = fmax(most_rate, s->plans[i].tokens_per_s);
    }
    const chart c =
        begin_chart(out, "speed over memory of each mesh", AXIS_MEMORY, most_bytes, most_rate);
    if (limit > 0)
        fprintf(out, "<path class=\"limit\" d=\"M%.1f %dV%d\"/>\n", x_of(&c, limit), TOP, BOTTOM);
    for (int i = 0; i < s->num_plans && i < MAX_DOTS; i++)
        write_dot(&c, (double)s->plans[i].memory_bytes, s->plans[i].tokens_per_s, i,
                  weft_unit_text(WEFT_UNIT_COUNT, s->plans[i].tokens_per_s).text, s->plans[i].mesh);
    fputs("</svg>\n<p class=\"soft\">A dot is a plan, the full one the fastest. Dashed: the memory "
          "that a device has.</p>\n",
          out);
}

static weft_status page_ranked(const weft_page *page, weft_report *report)
{
    const weft_search_result *s = page->search;
    if (!s)
        return WEFT_OK;
    page_begin(report->out, "meshes",
               s->num_plans > 0 ? "Meshes, fastest first"
               : s->is_stopped  ? "No mesh is priced"
                                : "No mesh fits; what comes nearest");
    WEFT_TRY(weft_search_report(report, s, NULL));
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
    const chart c =
        begin_chart(out, "tokens a second over nodes", AXIS_NODES, most_nodes, most_rate);
    fprintf(out, "<path class=\"ideal\" d=\"M%.1f %.1fL%.1f %.1f\"/>\n<path class=\"curve\" d=\"",
            x_of(&c, nodes_of(first)), y_of(&c, rate_of(first)), x_of(&c, most_nodes),
            y_of(&c, ideal * most_nodes));
    for (const weft_search_result *s = first; s < end; s++)
        if (s->num_plans > 0)
            fprintf(out, "%c%.1f %.1f", s == first ? 'M' : 'L', x_of(&c, nodes_of(s)),
                    y_of(&c, rate_of(s)));
    fputs("\"/>\n", out);
    for (const weft_search_result *s = first; s < end; s++)
        for (int i = s->num_plans - 1; i >= 0; i--)
            write_dot(&c, nodes_of(s), s->plans[i].tokens_per_s, i,
                      weft_unit_text(WEFT_UNIT_COUNT, s->plans[i].tokens_per_s).text,
                      s->plans[i].mesh);
    fputs("</svg>\n<p class=\"soft\">A full dot is the best mesh of as many nodes, hollow ones are "
          "those next to it. Dashed: as many tokens a node as the first count's.</p>\n",
          out);
}

static weft_status page_scaling(const weft_page *page, weft_report *report)
{
    if (page->num_scales < 2)
        return WEFT_OK;
    page_begin(report->out, "scaling", "More nodes");
    write_curve(page, report->out);
    WEFT_TRY(weft_search_report_scaling(report, page->scaling, page->num_scales, NULL));
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

static void page_gains(const weft_page *page, weft_report *report)
{
    const weft_what_if *w = page->what_if;
    FILE *out = report->out;
    double most = 0;
    if (!w)
        return;
    for (int i = 0; i < w->num_rows; i++)
        most = fmax(most, fmax(gain_of(&w->rows[i].same), gain_of(&w->rows[i].best)));
    page_begin(out, "what-if", "What would it buy?");
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

static void page_ladder(const weft_page *page, weft_report *report)
{
    const weft_expand *e = page->expand;
    FILE *out = report->out;
    double most = 0;
    if (!e)
        return;
    for (int i = 0; i < e->num_steps; i++)
        most = fmax(most, e->steps[i].num_nodes);
    page_begin(out, "expansion", "Step by step");
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

static const char *const page_style[] = {
    ":root{color-scheme:light dark;--bg:#ffffff;--fg:#1a2233;--soft:#556070;--line:#d5dae2;"
    "--panel:#f2f4f7;--good:#0b6b45;--bad:#a8261c;--accent:#0a5fb4}\n"
    "@media (prefers-color-scheme:dark){:root{--bg:#12161d;--fg:#e6eaf0;--soft:#a3adbb;"
    "--line:#333c49;--panel:#1b212b;--good:#5fd3a2;--bad:#ff8d80;--accent:#7cbcff}}\n"
    "*{box-sizing:border-box}\n"
    "body{margin:0;background:var(--bg);color:var(--fg);font:1rem/1.5 system-ui,sans-serif}\n"
    "main{max-width:72rem;margin:0 auto;padding:1rem}\n"
    "h1{font-size:1.3rem;margin:.2rem 0 .6rem;overflow-wrap:anywhere}\n"
    "h2{font-size:1.1rem;margin:2rem 0 .5rem;border-bottom:1px solid var(--line)}\n"
    "p{margin:.4rem 0}.answer{font-size:1.1rem}.soft{color:var(--soft);font-size:.9rem}\n"
    ".good{color:var(--good)}.bad{color:var(--bad)}\n"
    "a{color:var(--accent)}\n",
    ".scroll{overflow-x:auto}\n"
    "table{border-collapse:collapse;width:100%;min-width:38rem;font-size:.9rem}\n"
    "th,td{text-align:left;padding:.2rem 1rem .2rem 0;border-bottom:1px solid var(--line);"
    "vertical-align:top}\n"
    "th{font-weight:600;color:var(--soft)}\n"
    ".n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}\n"
    ".row{display:grid;grid-template-columns:5.5rem 1fr 8.5rem;gap:.5rem;align-items:center;"
    "margin:.15rem 0;font-size:.9rem}\n"
    "#memory .row,#expansion .row,#what-if .row{grid-template-columns:5.5rem 1fr 5.5rem}\n"
    ".row .v{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}\n"
    ".bar{position:relative;display:flex;height:1.1rem;background:var(--panel)}\n"
    ".bar i{display:block;height:100%}\n"
    ".bar b{position:absolute;top:-.15rem;bottom:-.15rem;width:2px;background:var(--fg)}\n"
    ".keys{display:flex;flex-wrap:wrap;gap:.2rem 1rem;font-size:.9rem;margin:.4rem 0}\n"
    ".keys i{display:inline-block;width:.8rem;height:.8rem;margin-right:.35rem}\n"
    "details{margin:.5rem 0}summary{cursor:pointer;color:var(--accent)}\n"
    "@media (max-width:40rem){table{min-width:0}.named .heads{display:none}\n"
    ".named tr{display:block;padding:.4rem 0;border-bottom:1px solid var(--line)}\n"
    ".named td{display:flex;justify-content:space-between;gap:1rem;border:0;padding:.05rem 0;"
    "white-space:normal;text-align:right;overflow-wrap:anywhere}\n"
    ".named td::before{content:attr(data-name);color:var(--soft);text-align:left}\n"
    ".named td:empty{display:none}}\n",
    "svg{display:block;width:100%;background:var(--panel)}\n"
    ".chart{max-width:32rem;background:none}\n"
    ".chart text{fill:var(--soft);font:11px system-ui,sans-serif}\n"
    ".chart .axis{stroke:var(--line);fill:none}.chart .curve{stroke:var(--accent);fill:none;"
    "stroke-width:2}\n"
    ".chart .ideal{stroke:var(--soft);fill:none;stroke-dasharray:4 3}\n"
    ".chart .limit{stroke:var(--bad);stroke-dasharray:4 3}\n"
    ".chart .dot{fill:var(--accent)}.chart .next{fill:none;stroke:var(--accent)}\n"
    ".gain{background:var(--accent)}.same{background:var(--soft)}\n"
    ".tools{display:flex;flex-wrap:wrap;gap:.4rem;align-items:center;margin:.4rem 0}\n"
    "button{font:inherit;color:var(--fg);background:var(--panel);border:1px solid var(--line);"
    "border-radius:.3rem;min-width:2.6rem;min-height:2.4rem;cursor:pointer}\n"
    ".box{touch-action:pan-y;cursor:grab;outline-offset:.2rem}\n"
    ".box:focus-visible,button:focus-visible{outline:2px solid var(--accent)}\n"
    ".box div{font-size:.8rem;color:var(--soft);margin-top:.25rem}\n"
    ".box rect{stroke:var(--panel);stroke-width:.4;vector-effect:non-scaling-stroke}\n"
    "output{font-variant-numeric:tabular-nums;font-size:.9rem}\n",
    NULL,
};

/* The view is [a, a + w] of the timeline's N units. */
static const char *const page_script[] = {
    "(function(){\n"
    "var t=document.getElementById('timeline');if(!t)return;\n"
    "var N=1e6,least=200,a=0,w=N,us=+t.dataset.us,box=t.querySelector('.box'),\n"
    "    out=t.querySelector('output'),tip=t.querySelector('.tip'),\n"
    "    all=[].slice.call(t.querySelectorAll('svg'));\n"
    "function time(x){var u=x/N*us;return us<1e3?u.toFixed(1)+' \\u00b5s':us<1e7?"
    "(u/1e3).toFixed(us<1e5?3:1)+' ms':(u/1e6).toFixed(2)+' s';}\n"
    "function show(){w=Math.min(N,Math.max(least,w));a=Math.min(N-w,Math.max(0,a));\n"
    "  all.forEach(function(s){s.setAttribute('viewBox',a+' 0 '+w+' '+s.dataset.h);});\n"
    "  out.textContent=time(a)+' to '+time(a+w);}\n"
    "function zoom(k,at){var n=Math.min(N,Math.max(least,w*k));a+=(w-n)*at;w=n;show();}\n"
    "function move(part){a+=part*w;show();}\n"
    "function reset(){a=0;w=N;show();}\n"
    "function at(e){var r=box.getBoundingClientRect();return (e.clientX-r.left)/r.width;}\n",
    "t.querySelectorAll('button').forEach(function(b){b.addEventListener('click',function(){\n"
    "  "
    "b.dataset.zoom?zoom(+b.dataset.zoom,.5):b.dataset.move?move(+b.dataset.move):reset();});});\n"
    "box.addEventListener('keydown',function(e){var k=e.key;\n"
    "  if(e.ctrlKey||e.metaKey||e.altKey)return;\n"
    "  if(k==='+'||k==='=')zoom(.5,.5);else if(k==='-')zoom(2,.5);\n"
    "  else if(k==='ArrowLeft')move(-.2);else if(k==='ArrowRight')move(.2);\n"
    "  else if(k==='0'||k==='Home')reset();else return;e.preventDefault();});\n"
    "box.addEventListener('wheel',function(e){\n"
    "  if(!e.ctrlKey&&document.activeElement!==box)return;\n"
    "  e.preventDefault();zoom(e.deltaY<0?.8:1.25,at(e));},{passive:false});\n"
    "var from=null;\n"
    "box.addEventListener('pointerdown',function(e){from={x:at(e),a:a};"
    "box.setPointerCapture(e.pointerId);});\n"
    "box.addEventListener('pointermove',function(e){\n"
    "  if(from){a=from.a-(at(e)-from.x)*w;show();}});\n"
    "['pointerup','pointercancel'].forEach(function(n){"
    "box.addEventListener(n,function(){from=null;});});\n"
    "box.addEventListener('pointerover',function(e){var r=e.target;\n"
    "  if(r.tagName!=='rect')return;var x=+r.getAttribute('x'),\n"
    "  d=+r.getAttribute('width');\n"
    "  tip.textContent=r.textContent+', '+time(x)+' to '+time(x+d);});\n"
    "show();\n"
    "})();\n",
    NULL,
};

static void page_figures(const weft_page *page, weft_report *report)
{
    if (!page->plan || !page->plan->figures)
        return;
    page_begin(report->out, "run", "Over a run");
    weft_plan_figures_report(report, page->plan->figures);
    fputs("</section>\n", report->out);
}

/* The numbers that were taken; where nobody asked for them, those that the file tells of. */
static void page_sources(const weft_page *page, weft_report *report)
{
    const weft_plan_figures *f = page->plan ? page->plan->figures : NULL;
    const weft_cluster *c = page->cluster;
    if (!f && !c)
        return;
    page_begin(report->out, "sources", "Sources and ranges");
    if (page->plan)
        weft_report_line(report, "The worst of the numbers behind the plan is %s%s.",
                         weft_source_class_text(page->plan->source),
                         page->plan->coarse ? "; a layer gives only sums" : "");
    if (f)
        weft_report_line(report,
                         "With every number at either end of its spread a step takes %s to %s.",
                         weft_seconds_text(f->range_us[0] / 1e6).text,
                         weft_seconds_text(f->range_us[1] / 1e6).text);
    weft_report_open(report, WEFT_REPORT_TABLE, NULL);
    for (int i = 0; f && i < f->num_inputs; i++)
        weft_plan_report_source(report, f->inputs[i].what, f->inputs[i].class_, f->inputs[i].where,
                                f->inputs[i].spread);
    for (int i = 0; !f && i < c->num_sources; i++)
        weft_plan_report_source(report, c->sources[i].key, c->sources[i].class_,
                                c->sources[i].where, c->sources[i].spread);
    weft_report_close(report);
    fputs("</section>\n", report->out);
}

enum { MAX_STAGES = 64 };

/* --- the answer ---------------------------------------------------------------------------- */

static void write_range(const weft_page *page, FILE *out)
{
    const weft_plan_figures *figures = page->plan->figures;
    if (figures)
        fprintf(out, " (%s to %s)", weft_seconds_text(figures->range_us[0] / 1e6).text,
                weft_seconds_text(figures->range_us[1] / 1e6).text);
}

static void answer_plan(const weft_page *page, FILE *out)
{
    const weft_plan *plan = page->plan;
    char mesh[192], text[512];
    fprintf(out, "<p class=\"answer\"><strong class=\"%s\">%s</strong> On %s",
            plan->fits ? "good" : "bad", plan->fits ? "It fits." : "It does not fit.",
            weft_count_text(plan->mesh.world, "device").text);
    if (page->cluster) {
        fputs(" of ", out);
        weft_svg_write_text(page->cluster->name, out);
    }
    fprintf(out, " (%s) a step takes <strong>%s</strong>",
            weft_plan_mesh_text(plan, mesh, sizeof mesh),
            weft_seconds_text(plan->step_us / 1e6).text);
    write_range(page, out);
    fprintf(out, ": <strong>%s tokens/s</strong>",
            weft_unit_text(WEFT_UNIT_COUNT, plan->tokens_per_s).text);
    if (plan->model_flops_utilization > 0)
        fprintf(out, ", %.1f %% of the devices' peak", 100 * plan->model_flops_utilization);
    fprintf(out, ". Most of the step is %s.</p>\n", weft_limit_texts[plan->limits]);
    if (!plan->fits) {
        fputs("<p class=\"bad\">", out);
        weft_svg_write_text(weft_plan_short_text(plan, text, sizeof text), out);
        fputs("</p>\n", out);
    }
}

static void answer_search(const weft_page *page, FILE *out)
{
    if (page->search)
        fprintf(out, "<p class=\"answer\"><strong class=\"bad\">%s</strong></p>\n",
                page->search->is_stopped ? "The search was stopped before a mesh was priced."
                                         : "No mesh fits.");
}

/* --- where time goes ------------------------------------------------------------------------ */

static void write_time(const weft_page *page, page_colours *colours, FILE *out)
{
    const weft_plan *plan = page->plan;
    if (!plan)
        return;
    page_begin(out, "time", "Where the step's time goes");
    for (int i = 0; i < WEFT_NUM_TIMES; i++) {
        const double share = plan->us[i] / plan->step_us;
        if (!(plan->us[i] > 0))
            continue;
        fprintf(out,
                "<div class=\"row\"><span>%s</span><div class=\"bar\"><i class=\"k%d\" "
                "style=\"width:%.2f%%\"></i></div><span class=\"v\">%s, %.1f %%</span></div>\n",
                weft_time_texts[i], page_colour(colours, weft_time_texts[i]), 100 * share,
                weft_seconds_text(plan->us[i] / 1e6).text, 100 * share);
    }
    fputs("<p class=\"soft\">Of the compute lanes, the stages' mean. Communication counts where "
          "nothing hides it.</p>\n</section>\n",
          out);
}

/* --- memory ---------------------------------------------------------------------------------- */

static const char *purpose_name(int purpose)
{
    return purpose == WEFT_MEMORY_OPTIMIZER ? "optimizer state"
                                            : weft_memory_text((weft_memory_purpose)purpose);
}

static void write_stage(const weft_plan *plan, int s, double scale, page_colours *colours,
                        FILE *out)
{
    const weft_plan_stage *stage = &plan->stages[s];
    fprintf(out, "<div class=\"row\"><span>stage %d</span><div class=\"bar\">", s);
    for (int p = 0; p < WEFT_MEMORY_STAGING; p++)
        if (stage->footprint.bytes[p] > 0)
            fprintf(out, "<i class=\"k%d\" style=\"width:%.2f%%\" title=\"%s %s\"></i>",
                    page_colour(colours, purpose_name(p)),
                    100 * (double)stage->footprint.bytes[p] / scale, purpose_name(p),
                    weft_bytes_text((double)stage->footprint.bytes[p]).text);
    if (stage->memory_limit_bytes > 0)
        fprintf(out, "<b style=\"left:calc(%.2f%% - 1px)\" title=\"limit %s\"></b>",
                100 * (double)stage->memory_limit_bytes / scale,
                weft_bytes_text((double)stage->memory_limit_bytes).text);
    const bool is_over =
        stage->memory_limit_bytes > 0 && stage->footprint.device_bytes > stage->memory_limit_bytes;
    fprintf(out, "</div><span class=\"v%s\">%s</span></div>\n", is_over ? " bad" : "",
            weft_bytes_text((double)stage->footprint.device_bytes).text);
}

static void write_stage_table(const weft_plan *plan, const int *stages, int count, weft_report *r)
{
    fputs("<details><summary>As a table</summary>", r->out);
    weft_report_open(r, WEFT_REPORT_TABLE, NULL);
    for (int i = 0; i < count; i++) {
        const weft_plan_stage *stage = &plan->stages[stages[i]];
        const uint64_t limit = stage->memory_limit_bytes;
        weft_report_record(r);
        weft_report_row(r, NULL, "stage", WEFT_UNIT_COUNT, stages[i]);
        for (int p = 0; p < WEFT_MEMORY_STAGING; p++)
            weft_report_row(r, NULL, purpose_name(p), WEFT_UNIT_BYTES, stage->footprint.bytes[p]);
        weft_report_row(r, NULL, "all", WEFT_UNIT_BYTES, stage->footprint.device_bytes);
        weft_report_row(r, NULL, "limit", WEFT_UNIT_BYTES, limit > 0 ? (double)limit : NAN);
    }
    weft_report_close(r);
    fputs("</details>\n", r->out);
}

static void write_memory(const weft_page *page, page_colours *colours, weft_report *r)
{
    const weft_plan *plan = page->plan;
    FILE *out = r->out;
    int stages[MAX_STAGES];
    double scale = 1;
    if (!plan)
        return;
    const int count = page_pick(plan->num_stages, plan->fullest, MAX_STAGES, stages);
    for (int s = 0; s < plan->num_stages; s++)
        scale = fmax(scale, 1.01 * fmax((double)plan->stages[s].footprint.device_bytes,
                                        (double)plan->stages[s].memory_limit_bytes));
    page_begin(out, "memory", "Memory of each stage's ranks");
    fputs("<div class=\"keys\">", out);
    for (int p = 0; p < WEFT_MEMORY_STAGING; p++) {
        bool any = false;
        for (int s = 0; s < plan->num_stages && !any; s++)
            any = plan->stages[s].footprint.bytes[p] > 0;
        if (any)
            page_key(out, page_colour(colours, purpose_name(p)), purpose_name(p));
    }
    fputs("</div>\n", out);
    for (int i = 0; i < count; i++)
        write_stage(plan, stages[i], scale, colours, out);
    if (plan->memory_limit_bytes > 0)
        fprintf(out, "<p class=\"soft\">The line is the limit, %s on the fullest stage, %d.</p>\n",
                weft_bytes_text((double)plan->memory_limit_bytes).text, plan->fullest);
    if (count < plan->num_stages)
        fprintf(out, "<p class=\"soft\">%d of %d stages are shown, the fullest among them.</p>\n",
                count, plan->num_stages);
    write_stage_table(plan, stages, count, r);
    fputs("</section>\n", out);
}

/* --- the file -------------------------------------------------------------------------------- */

static void write_pieces(const char *const *pieces, FILE *out)
{
    for (; *pieces; pieces++)
        fputs(*pieces, out);
}

static weft_status write_sections(const weft_page *page, page_colours *colours, weft_report *r)
{
    if (page->plan)
        answer_plan(page, r->out);
    else
        answer_search(page, r->out);
    WEFT_TRY(page_ranked(page, r));
    write_memory(page, colours, r);
    write_time(page, colours, r->out);
    WEFT_TRY(page_timeline(page, colours, r->out));
    WEFT_TRY(page_scaling(page, r));
    page_gains(page, r);
    page_ladder(page, r);
    page_figures(page, r);
    page_sources(page, r);
    return WEFT_OK;
}

/* Its head has the colours that the sections came to use. */
static weft_status write_page(const weft_page *page, const page_colours *colours,
                              weft_report *sections, FILE *out)
{
    fputs("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
          "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
          "'unsafe-inline'; script-src 'unsafe-inline'\">\n<title>",
          out);
    weft_svg_write_text(page->title, out);
    fputs(": planned</title>\n<style>\n", out);
    write_pieces(page_style, out);
    page_write_colours(out, colours);
    fputs("</style>\n</head>\n<body>\n<main>\n<h1>", out);
    weft_svg_write_text(page->title, out);
    fputs("</h1>\n", out);
    const weft_status status = weft_report_end(sections, WEFT_OK, out);
    fputs("<p class=\"soft\">Planned by Weft, not measured.</p>\n</main>\n<script>\n", out);
    write_pieces(page_script, out);
    fputs("</script>\n</body>\n</html>\n", out);
    return status;
}

weft_status weft_page_write(const weft_page *page, const char *path)
{
    page_colours colours = {.count = 0};
    weft_new_file file;
    weft_report sections;
    weft_report_begin(&sections, WEFT_REPORT_HTML);
    weft_status status = sections.status;
    if (status == WEFT_OK)
        status = write_sections(page, &colours, &sections);
    if (status == WEFT_OK)
        status = weft_new_file_open(path, &file);
    if (status != WEFT_OK)
        return weft_report_end(&sections, status, NULL);
    return weft_new_file_close(&file, write_page(page, &colours, &sections, file.file));
}
