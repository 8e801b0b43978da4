/* The planned step's timeline: an SVG a stage, a row a lane, a box a task. The script zooms all of
 * them alike. Times are in units of a millionth of the step. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/text.h"
#include "core/svg.h"
#include "core/trace/trace.h"
#include "launcher/page/parts.h"

/* A box takes at most 110 bytes. */
enum { MAX_STAGES = 48, MAX_BOXES = 12000, UNITS = 1000000, ROW = 14, BOX = 12 };

typedef struct timeline {
    const weft_page *page;
    weft_page_colours *colours;
    FILE *out;
    const weft_slice *slices;
    size_t num_slices;
    weft_track *tracks;
    size_t num_tracks;
    size_t *first; /* [num_tracks + 1]: into `order` */
    size_t *order; /* slices by track, in their order */
    int stages[MAX_STAGES], num_stages;
    double start_us, span_us;
    double least_us; /* boxes begin at least so far apart; 0: all tasks are boxes */
    size_t num_tasks, num_boxes;
} timeline;

/* --- which slices ---------------------------------------------------------------------------- */

static weft_status sort(timeline *t)
{
    t->first = calloc(t->num_tracks + 2, sizeof *t->first);
    t->order = calloc(t->num_slices, sizeof *t->order);
    if (!t->first || !t->order)
        return WEFT_ERROR(WEFT_MEMORY, "out of memory for a page's timeline");
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
    double us[WEFT_PAGE_MAX_COLOURS];
    int count;
} box;

static void add_to(const timeline *t, box *b, const weft_slice *slice)
{
    const int colour = weft_page_colour(t->colours, slice->category);
    if (b->count == 0)
        *b = (box){.start_us = slice->start_us, .most = slice};
    b->us[colour] += slice->end_us - slice->start_us;
    if (b->us[colour] >= b->us[weft_page_colour(t->colours, b->most->category)])
        b->most = slice;
    b->end_us = slice->end_us;
    b->count++;
}

static void write_box(timeline *t, const box *b, int row)
{
    const double x = (b->start_us - t->start_us) / t->span_us * UNITS;
    const double width = (b->end_us - b->start_us) / t->span_us * UNITS;
    fprintf(t->out, "<rect class=\"k%d\" x=\"%.0f\" y=\"%d\" width=\"%.0f\" height=\"%d\"><title>",
            weft_page_colour(t->colours, b->most->category), x, row * ROW, fmax(width, 1), BOX);
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

static void write_stage(timeline *t, int stage)
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
    bool used[WEFT_PAGE_MAX_COLOURS] = {false};
    for (size_t i = 0; i < t->num_slices; i++)
        if (is_shown(t, t->slices[i].rank))
            used[weft_page_colour(t->colours, t->slices[i].category)] = true;
    fputs("<div class=\"keys\">", t->out);
    for (int i = 0; i < t->colours->count; i++)
        if (used[i])
            weft_page_key(t->out, i, t->colours->names[i]);
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
        write_stage(t, t->stages[i]);
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

weft_status weft_page_timeline(const weft_page *page, weft_page_colours *colours, FILE *out)
{
    if (!page->plan || (!page->trace && !page->no_trace))
        return WEFT_OK;
    weft_page_begin(out, "step", "The planned step");
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
    t.num_stages =
        weft_page_pick(page->plan->num_stages, page->plan->fullest, MAX_STAGES, t.stages);
    WEFT_TRY(weft_trace_tracks(page->trace, &t.tracks, &t.num_tracks));
    const weft_status status = sort(&t);
    if (status == WEFT_OK) {
        measure(&t);
        write_all(&t);
    }
    fputs("</section>\n", out);
    free(t.tracks);
    free(t.first);
    free(t.order);
    return status;
}
