#include "core/trace.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/svg.h"
#include "core/trace_tracks.h"

enum {
    MARGIN = 20,
    TITLE_HEIGHT = 34,
    ROW_HEIGHT = 26,
    ROW_STEP = 30,
    RANK_GAP = 10,
    AXIS_HEIGHT = 32,
    LEGEND_STEP = 24,
    MIN_WIDTH = 320,
    MAX_CATEGORIES = 32,
    MAX_SHADES = 4,
};

/* Work in strong colours, traffic in light ones; all carry dark or white text legibly. */
typedef struct colour {
    const char *category, *fill, *text;
} colour;

static const colour colours[] = {
    {"forward", "#3b76d1", "#ffffff"},   {"backward", "#2f9e63", "#ffffff"},
    {"recompute", "#86b6f2", "#14213d"}, {"expert", "#8a5cc2", "#ffffff"},
    {"step", "#475066", "#ffffff"},      {"send", "#f2b84b", "#3d2b00"},
    {"receive", "#f7d488", "#3d2b00"},   {"dispatch", "#ef8f4f", "#3d1c00"},
    {"combine", "#f4b58a", "#3d1c00"},   {"gather", "#d9697f", "#ffffff"},
    {"place", "#eba4b1", "#451320"},     {"reduce", "#c94f4f", "#ffffff"},
    {"offload", "#58b7b3", "#06302e"},   {"prefetch", "#a3dbd8", "#06302e"},
};
static const colour others[] = {
    {NULL, "#7d8ca3", "#ffffff"}, {NULL, "#a9b665", "#23280c"}, {NULL, "#b08968", "#ffffff"},
    {NULL, "#c77dba", "#ffffff"}, {NULL, "#6f9fb8", "#ffffff"},
};
enum {
    NUM_COLOURS = sizeof colours / sizeof colours[0],
    NUM_OTHERS = sizeof others / sizeof others[0]
};

typedef struct drawing {
    const weft_trace *trace;
    const weft_slice *slices;
    size_t num_slices;
    weft_track *tracks;
    size_t num_tracks;
    const char *categories[MAX_CATEGORIES]; /* in order of their colours, then of appearance */
    int num_categories;
    double first_us, last_us;
    double left, right, top, bottom; /* of the area of the rows */
    FILE *out;
} drawing;

static const colour *colour_of(const char *category)
{
    unsigned hash = 0;
    for (int i = 0; i < NUM_COLOURS; i++)
        if (strcmp(colours[i].category, category) == 0)
            return &colours[i];
    for (const char *c = category; *c; c++)
        hash = hash * 31 + (unsigned char)*c;
    return &others[hash % NUM_OTHERS];
}

/* Width of a text in the diagram's font, near enough to fit it into a box. */
static double text_width(const char *text, double size)
{
    size_t letters = 0;
    for (const char *c = text; *c; c++)
        letters += ((unsigned char)*c & 0xc0) != 0x80;
    return (double)letters * size * 0.58;
}

static void add_category(drawing *d, const char *category)
{
    for (int i = 0; i < d->num_categories; i++)
        if (strcmp(d->categories[i], category) == 0)
            return;
    if (d->num_categories < MAX_CATEGORIES)
        d->categories[d->num_categories++] = category;
}

static void find_categories(drawing *d)
{
    bool known[NUM_COLOURS] = {false};
    for (size_t i = 0; i < d->num_slices; i++)
        for (int c = 0; c < NUM_COLOURS; c++)
            if (strcmp(d->slices[i].category, colours[c].category) == 0)
                known[c] = true;
    for (int c = 0; c < NUM_COLOURS; c++)
        if (known[c])
            add_category(d, colours[c].category);
    for (size_t i = 0; i < d->num_slices; i++)
        add_category(d, d->slices[i].category);
}

static void track_label(const drawing *d, size_t track, char *text, size_t bytes)
{
    int rank = d->tracks[track].rank, lane = d->tracks[track].lane;
    const char *name = weft_trace_lane_name(d->trace, lane);
    if (name)
        snprintf(text, bytes, "rank %d %s", rank, name);
    else
        snprintf(text, bytes, "rank %d lane %d", rank, lane);
}

static double track_y(const drawing *d, size_t track)
{
    double y = d->top;
    for (size_t i = 1; i <= track; i++)
        y += ROW_STEP + (d->tracks[i].rank != d->tracks[i - 1].rank ? RANK_GAP : 0);
    return y;
}

static double time_x(const drawing *d, double time_us)
{
    double span = d->last_us - d->first_us;
    return d->left + (span > 0 ? (time_us - d->first_us) / span * (d->right - d->left) : 0);
}

/* 1, 2 or 5 times a power of ten, at least `least`. */
static double round_step(double least)
{
    double power = pow(10, floor(log10(least)));
    double lead = least / power;
    return power * (lead <= 1 ? 1 : lead <= 2 ? 2 : lead <= 5 ? 5 : 10);
}

static void draw_axis(const drawing *d)
{
    double span = d->last_us - d->first_us;
    const char *unit = span < 1e3 ? "µs" : span < 1e7 ? "ms" : "s";
    double unit_us = span < 1e3 ? 1 : span < 1e7 ? 1e3 : 1e6;
    double step = round_step((span > 0 ? span : 1) / ((d->right - d->left) / 70) / unit_us);

    fprintf(d->out, "<g stroke=\"#dfe3ea\">\n");
    for (int i = 0; i * step * unit_us <= span * (1 + 1e-9); i++) {
        double x = time_x(d, d->first_us + i * step * unit_us);
        fprintf(d->out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n", x, d->top - 4,
                x, d->bottom + 6);
    }
    fprintf(d->out, "</g>\n<g fill=\"#5b6678\" font-size=\"11\" text-anchor=\"middle\">\n");
    for (int i = 0; i * step * unit_us <= span * (1 + 1e-9); i++)
        fprintf(d->out, "<text x=\"%.1f\" y=\"%.1f\">%.10g%s%s</text>\n",
                time_x(d, d->first_us + i * step * unit_us), d->bottom + 20, i * step,
                i == 0 ? " " : "", i == 0 ? unit : "");
    fprintf(d->out, "</g>\n");
}

static void draw_rows(const drawing *d)
{
    char label[96];
    fprintf(d->out, "<g fill=\"#2b3445\" font-size=\"12\">\n");
    for (size_t i = 0; i < d->num_tracks; i++) {
        double y = track_y(d, i);
        track_label(d, i, label, sizeof label);
        fprintf(d->out,
                "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%d\" rx=\"2\" "
                "fill=\"#eceff4\"/>\n<text x=\"%d\" y=\"%.1f\">",
                d->left, y, d->right - d->left, ROW_HEIGHT, MARGIN, y + ROW_HEIGHT / 2.0 + 4);
        weft_svg_write_text(label, d->out);
        fprintf(d->out, "</text>\n");
    }
    fprintf(d->out, "</g>\n");
}

/* Stages that share a track (chunks of an interleaved schedule) are told apart by shade: the
 * lowest darkest. `stages` lists those of the track so far known, rising. */
typedef struct shades {
    int stages[MAX_SHADES], count;
} shades;

static void add_shade(shades *s, int stage)
{
    int i = 0;
    while (i < s->count && s->stages[i] < stage)
        i++;
    if (i == MAX_SHADES || (i < s->count && s->stages[i] == stage))
        return;
    if (s->count < MAX_SHADES)
        s->count++;
    memmove(&s->stages[i + 1], &s->stages[i], sizeof s->stages[0] * (size_t)(s->count - 1 - i));
    s->stages[i] = stage;
}

static double opacity_of(const shades *s, int stage)
{
    int i = 0;
    while (i < s->count - 1 && s->stages[i] < stage)
        i++;
    return 1 - 0.2 * i;
}

static void draw_slice(const drawing *d, const weft_slice *slice, double y, double opacity)
{
    const colour *paint = colour_of(slice->category);
    double x = time_x(d, slice->start_us), width = time_x(d, slice->end_us) - x;
    fprintf(d->out, "<g><title>");
    weft_svg_write_text(slice->name, d->out);
    fprintf(d->out, " ");
    weft_svg_write_text(slice->category, d->out);
    fprintf(d->out, ": %.1f to %.1f µs</title>", slice->start_us - d->first_us,
            slice->end_us - d->first_us);
    /* The white line between neighbours is given up where it would hide a narrow box. */
    double gap = width > 3 ? 1 : 0;
    fprintf(d->out, "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%d\" fill=\"%s\"", x, y,
            width - gap > 0.4 ? width - gap : 0.4, ROW_HEIGHT, paint->fill);
    if (opacity < 1)
        fprintf(d->out, " fill-opacity=\"%.1f\"", opacity);
    fprintf(d->out, "%s/>", width > 6 ? " rx=\"2\"" : "");
    if (text_width(slice->name, 11) + 2 <= width) {
        fprintf(d->out, "<text x=\"%.2f\" y=\"%.1f\" fill=\"%s\">", x + (width - gap) / 2,
                y + ROW_HEIGHT / 2.0 + 4, opacity < 0.7 ? "#14213d" : paint->text);
        weft_svg_write_text(slice->name, d->out);
        fprintf(d->out, "</text>");
    }
    fprintf(d->out, "</g>\n");
}

static weft_status draw_slices(const drawing *d)
{
    shades *all = calloc(d->num_tracks ? d->num_tracks : 1, sizeof *all);
    if (!all)
        return WEFT_ERROR(WEFT_MEMORY, "out of host memory: drawing of a trace");
    for (size_t i = 0; i < d->num_slices; i++)
        if (d->slices[i].stage >= 0)
            add_shade(&all[weft_track_find(d->tracks, d->num_tracks, &d->slices[i])],
                      d->slices[i].stage);
    fprintf(d->out, "<g font-size=\"11\" text-anchor=\"middle\">\n");
    for (size_t i = 0; i < d->num_slices; i++) {
        size_t track = weft_track_find(d->tracks, d->num_tracks, &d->slices[i]);
        draw_slice(d, &d->slices[i], track_y(d, track),
                   opacity_of(&all[track], d->slices[i].stage));
    }
    fprintf(d->out, "</g>\n");
    free(all);
    return WEFT_OK;
}

/* Draws the legend, or with draw false only measures it; returns its height. */
static double legend(const drawing *d, double y, bool draw)
{
    double x = d->left, first = y;
    for (int i = 0; i < d->num_categories; i++) {
        double width = 18 + text_width(d->categories[i], 12) + 16;
        if (x + width > d->right && x > d->left) {
            x = d->left;
            y += LEGEND_STEP;
        }
        if (draw) {
            fprintf(d->out,
                    "<rect x=\"%.1f\" y=\"%.1f\" width=\"12\" height=\"12\" rx=\"2\" fill=\"%s\"/>"
                    "<text x=\"%.1f\" y=\"%.1f\" fill=\"#2b3445\" font-size=\"12\">",
                    x, y, colour_of(d->categories[i])->fill, x + 18, y + 10.5);
            weft_svg_write_text(d->categories[i], d->out);
            fprintf(d->out, "</text>\n");
        }
        x += width;
    }
    return y - first + LEGEND_STEP;
}

static weft_status draw(drawing *d, const char *title, int width)
{
    char label[96];
    double widest = 0;
    for (size_t i = 0; i < d->num_tracks; i++) {
        track_label(d, i, label, sizeof label);
        widest = fmax(widest, text_width(label, 12));
    }
    d->left = MARGIN + widest + 10;
    d->right = width - MARGIN;
    d->top = MARGIN + TITLE_HEIGHT;
    d->bottom = d->num_tracks ? track_y(d, d->num_tracks - 1) + ROW_HEIGHT : d->top;
    double legend_y = d->bottom + AXIS_HEIGHT + 4;
    double height = legend_y + legend(d, legend_y, false) + MARGIN - 8;

    /* The card behind the drawing keeps it readable on any page. */
    fprintf(d->out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%.0f\" "
            "viewBox=\"0 0 %d %.0f\" font-family=\"system-ui, -apple-system, 'Segoe UI', Roboto, "
            "'DejaVu Sans', Arial, sans-serif\">\n"
            "<rect x=\"0.5\" y=\"0.5\" width=\"%d\" height=\"%.0f\" rx=\"8\" fill=\"#fafbfc\" "
            "stroke=\"#cfd6e0\"/>\n"
            "<text x=\"%d\" y=\"%d\" font-size=\"15\" font-weight=\"600\" fill=\"#1c2333\">",
            width, height, width, height, width - 1, height - 1, MARGIN, MARGIN + 14);
    weft_svg_write_text(title, d->out);
    fprintf(d->out, "</text>\n");
    draw_rows(d);
    draw_axis(d);
    WEFT_TRY(draw_slices(d));
    legend(d, legend_y, true);
    fprintf(d->out, "</svg>\n");
    if (fflush(d->out) != 0 || ferror(d->out))
        return WEFT_ERROR(WEFT_FILE, "the drawing could not be written");
    return WEFT_OK;
}

weft_status weft_trace_write_svg(const weft_trace *trace, const char *title, int width, FILE *out)
{
    drawing d = {.trace = trace,
                 .slices = weft_trace_slices(trace),
                 .num_slices = weft_trace_count(trace),
                 .out = out};
    WEFT_TRY(weft_trace_tracks(trace, &d.tracks, &d.num_tracks));
    d.first_us = d.num_slices ? d.slices[0].start_us : 0;
    d.last_us = d.first_us;
    for (size_t i = 0; i < d.num_slices; i++) {
        d.first_us = fmin(d.first_us, d.slices[i].start_us);
        d.last_us = fmax(d.last_us, d.slices[i].end_us);
    }
    find_categories(&d);
    weft_status status = draw(&d, title, width > MIN_WIDTH ? width : MIN_WIDTH);
    free(d.tracks);
    return status;
}
