#include "core/trace/trace.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/file.h"
#include "core/log.h"
#include "core/svg.h"
#include "core/text.h"

/* In a drawing 720 wide text of 17 is read on a telephone, where all of it is 390 wide. */
enum {
    WIDTH = 720,
    MARGIN = 16,
    TITLE_SIZE = 22,
    TEXT_SIZE = 18,
    NAME_SIZE = 17,
    LINE = 26,
    RANK_LINE = 32,
    ROW_HEIGHT = 28,
    ROW_STEP = 31,
    AXIS_HEIGHT = 34,
    MAX_KINDS = 64,
    MAX_SHADES = 4,
    LARGE = 32 << 20, /* bytes that few programs show */
};

/* Far apart for eyes of all three kinds: 19 and more in Lab, seen with and without red or green
 * cones (Machado et al. 2009). Those without a category are for others' kinds. */
static const struct {
    const char *category, *fill;
} colours[] = {
    {"forward", "#0072b2"},  {"backward", "#009e73"}, {"recompute", "#44bbff"},
    {"moe", "#1155bb"},      {"gating", "#ccaa55"},   {"permute", "#99eecc"},
    {"expert", "#7766ff"},   {"step", "#223344"},     {"send", "#e69f00"},
    {"receive", "#f0e442"},  {"counts", "#221199"},   {"dispatch", "#d55e00"},
    {"combine", "#ddee77"},  {"gather", "#33eeff"},   {"place", "#bbee99"},
    {"tensor", "#003377"},   {"reduce", "#dd0044"},   {"offload", "#552200"},
    {"prefetch", "#3399aa"}, {NULL, "#0000ff"},
};
enum { NUM_COLOURS = sizeof colours / sizeof colours[0] };

/* How a colour is filled: the backward of a kind is striped, kinds beyond the colours have marks of
 * their own. */
typedef enum marks { PLAIN, FALLING, LEVEL, DOTTED, NUM_MARKS } marks;

typedef struct kind {
    char name[16];
    char letter; /* the first letter of its slices' short names, F in F3; 0: only words */
    int colour, mark;
    bool has_back;
} kind;

/* Stages that share a track (chunks of an interleaved schedule) are told apart by shade: the
 * lowest darkest. `stages` lists those of the track so far known, rising. */
typedef struct shades {
    int stages[MAX_SHADES], count;
} shades;

typedef struct drawing {
    const weft_trace *trace;
    const weft_slice *slices;
    size_t num_slices;
    weft_track *tracks;
    size_t num_tracks;
    shades *shades;        /* [num_tracks] */
    kind kinds[MAX_KINDS]; /* in order of their colours, then of appearance */
    int num_kinds;
    char letters[512]; /* the legend's line of letters, number and shades */
    double first_us, last_us;
    double left, right, top, bottom; /* of the area of the rows */
    FILE *out;
} drawing;

/* Width of a text in the diagram's font, near enough to fit it into a box. */
static double text_width(const char *text, double size)
{
    size_t letters = 0;
    for (const char *c = text; *c; c++)
        letters += ((unsigned char)*c & 0xc0) != 0x80;
    return (double)letters * size * 0.58;
}

/* --- kinds --------------------------------------------------------------------------------- */

/* "expert back" is expert, backward. */
static bool is_back(const char *category, char name[16])
{
    size_t length = strlen(category);
    bool back = length > 5 && strcmp(category + length - 5, " back") == 0;
    snprintf(name, 16, "%.*s", (int)(back ? length - 5 : length), category);
    return back;
}

const char *weft_trace_colour(const char *category)
{
    char name[16];
    int c = 0;
    is_back(category, name);
    while (colours[c].category && strcmp(colours[c].category, name) != 0)
        c++;
    return colours[c].fill;
}

static int find_kind(const drawing *d, const char *name)
{
    int i = 0;
    while (i < d->num_kinds && strcmp(d->kinds[i].name, name) != 0)
        i++;
    return i < MAX_KINDS ? i : MAX_KINDS - 1; /* more than can be told apart share the last */
}

static void find_kinds(drawing *d)
{
    char name[16];
    int others = 0;
    for (int c = 0; c < NUM_COLOURS && colours[c].category; c++)
        for (size_t i = 0; i < d->num_slices; i++) {
            is_back(d->slices[i].category, name);
            if (strcmp(name, colours[c].category) == 0) {
                d->kinds[d->num_kinds] = (kind){.colour = c};
                memcpy(d->kinds[d->num_kinds++].name, name, sizeof name);
                break;
            }
        }
    for (size_t i = 0; i < d->num_slices; i++) {
        bool back = is_back(d->slices[i].category, name);
        kind *k = &d->kinds[find_kind(d, name)];
        if (k == &d->kinds[d->num_kinds]) { /* from the last colour, which is theirs alone */
            int at = NUM_COLOURS - 1 + others++;
            *k = (kind){.colour = at % NUM_COLOURS, .mark = at / NUM_COLOURS % NUM_MARKS};
            memcpy(k->name, name, sizeof name);
            d->num_kinds++;
        }
        k->has_back = k->has_back || back;
    }
}

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

static weft_status find_shades(drawing *d)
{
    d->shades = calloc(d->num_tracks ? d->num_tracks : 1, sizeof *d->shades);
    if (!d->shades)
        return WEFT_ERROR(WEFT_MEMORY, "out of host memory: drawing of a trace");
    for (size_t i = 0; i < d->num_slices; i++)
        if (d->slices[i].stage >= 0)
            add_shade(&d->shades[weft_track_find(d->tracks, d->num_tracks, &d->slices[i])],
                      d->slices[i].stage);
    return WEFT_OK;
}

/* Splits a short name, "sg3", at its kind's letter, other letters and number; false for words. */
static bool split_name(const weft_slice *slice, char letters[4], bool *out_number)
{
    const char *name = slice->name;
    char category[16];
    is_back(slice->category, category);
    const size_t rest = strspn(name + (*name != '\0'), "abcdefghijklmnopqrstuvwxyz");
    if (*name == '\0' || rest > 3 || strcmp(name, category) == 0)
        return false;
    snprintf(letters, 4, "%.*s", (int)rest, name + 1);
    *out_number = name[1 + rest] != '\0';
    return name[1 + rest + strspn(name + 1 + rest, "0123456789")] == '\0';
}

static void find_letters(drawing *d)
{
    bool any_number = false, number;
    char letters[4], row[64];
    for (size_t i = 0; i < d->num_slices; i++) {
        char category[16];
        if (!split_name(&d->slices[i], letters, &number))
            continue;
        is_back(d->slices[i].category, category);
        d->kinds[find_kind(d, category)].letter = d->slices[i].name[0];
        any_number = any_number || number;
        char all[5];
        snprintf(all, sizeof all, "%c%s", d->slices[i].name[0], letters);
        const char *whole = weft_trace_letters_text(d->trace, all),
                   *text = whole ? whole : weft_trace_letters_text(d->trace, letters);
        if (!*letters || !text)
            continue;
        snprintf(row, sizeof row, "%s: %.50s; ", whole ? all : letters, text);
        if (!strstr(d->letters, row) && strlen(d->letters) + strlen(row) < sizeof d->letters - 120)
            strcat(d->letters, row);
    }
    if (any_number)
        strcat(d->letters, "number: micro-batch, else partition, expert, bucket or layer; ");
    for (size_t i = 0; i < d->num_tracks; i++)
        if (d->shades[i].count > 1) {
            strcat(d->letters, "paler: a later stage of the rank; ");
            break;
        }
    if (*d->letters)
        d->letters[strlen(d->letters) - 2] = '\0';
}

static void write_fill(const drawing *d, int index, bool back)
{
    const kind *k = &d->kinds[index];
    if (k->mark == PLAIN && !back)
        fprintf(d->out, "fill=\"%s\"", colours[k->colour].fill);
    else
        fprintf(d->out, "fill=\"url(#k%d%s)\"", index, back ? "b" : "");
}

static void define_fill(const drawing *d, int index, bool back)
{
    static const char *const shapes[NUM_MARKS] = {
        [FALLING] = "<path d=\"M-1,-1 L11,11 M-1,9 L1,11 M9,-1 L11,1\"/>",
        [LEVEL] = "<path d=\"M0,5 H10\"/>",
        [DOTTED] = "<path d=\"M3,5 h4\"/>",
    };
    const kind *k = &d->kinds[index];
    if (k->mark == PLAIN && !back)
        return;
    fprintf(d->out,
            "<pattern id=\"k%d%s\" width=\"10\" height=\"10\" "
            "patternUnits=\"userSpaceOnUse\"><rect width=\"10\" height=\"10\" fill=\"%s\"/>"
            "<g stroke=\"#ffffff\" stroke-opacity=\"0.45\" stroke-width=\"2.5\">%s%s</g>"
            "</pattern>\n",
            index, back ? "b" : "", colours[k->colour].fill,
            k->mark == PLAIN ? "" : shapes[k->mark],
            back ? "<path d=\"M-1,11 L11,-1 M-1,1 L1,-1 M9,11 L11,9\"/>" : "");
}

/* Dark text on light colours. */
static const char *text_colour(const char *fill)
{
    unsigned rgb = (unsigned)strtoul(fill + 1, NULL, 16);
    unsigned light = 299 * (rgb >> 16) + 587 * (rgb >> 8 & 255) + 114 * (rgb & 255);
    return light > 128000 ? "#14213d" : "#ffffff";
}

/* --- rows and axis ------------------------------------------------------------------------- */

/* Its name, or "rank 3", "lane 1". */
static void label(const char *name, const char *what, int index, char text[96])
{
    if (name)
        snprintf(text, 96, "%s", name);
    else
        snprintf(text, 96, "%s %d", what, index);
}

static bool begins_rank(const drawing *d, size_t track)
{
    return track == 0 || d->tracks[track].rank != d->tracks[track - 1].rank;
}

static double track_y(const drawing *d, size_t track)
{
    double y = d->top;
    for (size_t i = 0; i <= track; i++)
        y += (i > 0 ? ROW_STEP : 0) + (begins_rank(d, i) ? RANK_LINE : 0);
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
    double step = round_step((span > 0 ? span : 1) / ((d->right - d->left) / 90) / unit_us);

    for (int i = 0; i * step * unit_us <= span * (1 + 1e-9); i++) {
        const double x = time_x(d, d->first_us + i * step * unit_us);
        weft_svg_line(d->out, x, d->top - 4, x, d->bottom + 6);
    }
    fprintf(d->out, "<g font-size=\"%d\">\n", NAME_SIZE);
    for (int i = 0; i * step * unit_us <= span * (1 + 1e-9); i++)
        weft_svg_text(d->out, time_x(d, d->first_us + i * step * unit_us), d->bottom + 26,
                      WEFT_SVG_FAINT WEFT_SVG_MIDDLE, "%.10g%s%s", i * step, i == 0 ? " " : "",
                      i == 0 ? unit : "");
    fprintf(d->out, "</g>\n");
}

static void draw_rows(const drawing *d)
{
    char text[96];
    fprintf(d->out, "<g" WEFT_SVG_INK " font-size=\"%d\">\n", TEXT_SIZE);
    for (size_t i = 0; i < d->num_tracks; i++) {
        const weft_track *t = &d->tracks[i];
        double y = track_y(d, i);
        if (begins_rank(d, i)) {
            label(weft_trace_rank_name(d->trace, t->rank), "rank", t->rank, text);
            weft_svg_text(d->out, MARGIN, y - 7, WEFT_SVG_BOLD, "%s", text);
        }
        label(weft_trace_lane_name(d->trace, t->lane), "lane", t->lane, text);
        weft_svg_box(d->out, d->left, y, d->right - d->left, ROW_HEIGHT, " fill=\"#eceff4\"");
        weft_svg_text(d->out, MARGIN, y + ROW_HEIGHT / 2.0 + 6, "", "%s", text);
    }
    fprintf(d->out, "</g>\n");
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
    char name[16];
    bool back = is_back(slice->category, name);
    int index = find_kind(d, name);
    double x = time_x(d, slice->start_us), width = time_x(d, slice->end_us) - x;
    fprintf(d->out, "<g><title>");
    weft_svg_write_text(slice->name, d->out);
    fprintf(d->out, " ");
    weft_svg_write_text(slice->category, d->out);
    fprintf(d->out, ": %.1f to %.1f µs</title>", slice->start_us - d->first_us,
            slice->end_us - d->first_us);
    /* The white line between neighbours is given up where it would hide a narrow box. */
    double gap = width > 3 ? 1 : 0;
    fprintf(d->out, "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%d\" ", x, y,
            width - gap > 0.4 ? width - gap : 0.4, ROW_HEIGHT);
    write_fill(d, index, back);
    if (opacity < 1)
        fprintf(d->out, " fill-opacity=\"%.1f\"", opacity);
    fprintf(d->out, "%s/>", width > 6 ? " rx=\"2\"" : "");
    if (text_width(slice->name, NAME_SIZE) + 2 <= width) {
        fprintf(d->out, "<text x=\"%.2f\" y=\"%.1f\" fill=\"%s\">", x + (width - gap) / 2,
                y + ROW_HEIGHT / 2.0 + 6,
                opacity < 0.7 ? "#14213d" : text_colour(colours[d->kinds[index].colour].fill));
        weft_svg_write_text(slice->name, d->out);
        fprintf(d->out, "</text>");
    }
    fprintf(d->out, "</g>\n");
}

static void draw_slices(const drawing *d)
{
    fprintf(d->out, "<g font-size=\"%d\" text-anchor=\"middle\">\n", NAME_SIZE);
    for (size_t i = 0; i < d->num_slices; i++) {
        size_t track = weft_track_find(d->tracks, d->num_tracks, &d->slices[i]);
        draw_slice(d, &d->slices[i], track_y(d, track),
                   opacity_of(&d->shades[track], d->slices[i].stage));
    }
    fprintf(d->out, "</g>\n");
}

/* --- around them --------------------------------------------------------------------------- */

/* Each draws, or with draw false only measures; returns its height. */

/* In lines, cut at spaces. */
static double headline(const drawing *d, const char *text, double y, int size, bool draw)
{
    double first = y;
    char style[80];
    snprintf(style, sizeof style, WEFT_SVG_INK " font-size=\"%d\"%s", size,
             size == TITLE_SIZE ? WEFT_SVG_BOLD : "");
    while (*text) {
        size_t room = (size_t)((WIDTH - 2 * MARGIN) / (size * 0.58)), bytes = strlen(text);
        if (bytes > room) {
            bytes = room;
            while (bytes > 1 && text[bytes] != ' ')
                bytes--;
            bytes = bytes > 1 ? bytes : room;
        }
        y += size * 1.3;
        if (draw)
            weft_svg_text(d->out, MARGIN, y - size * 0.3, style, "%.*s", (int)bytes, text);
        text += bytes + strspn(text + bytes, " ");
    }
    return y - first;
}

static double legend(const drawing *d, double y, bool draw)
{
    double x = MARGIN, first = y;
    bool any_back = false;
    for (int i = 0; i < d->num_kinds; i++)
        any_back = any_back || d->kinds[i].has_back;
    for (int i = 0; i < d->num_kinds + any_back; i++) {
        bool last = i == d->num_kinds;
        char text[24] = "striped: backward";
        if (!last && d->kinds[i].letter)
            snprintf(text, sizeof text, "%s (%c)", d->kinds[i].name, d->kinds[i].letter);
        else if (!last)
            snprintf(text, sizeof text, "%s", d->kinds[i].name);
        double width = 24 + text_width(text, TEXT_SIZE) + 16;
        if (x + width > WIDTH - MARGIN && x > MARGIN) {
            x = MARGIN;
            y += LINE;
        }
        if (draw) {
            fprintf(d->out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"16\" height=\"16\" rx=\"2\" ", x,
                    y);
            if (last)
                fprintf(d->out, "fill=\"url(#striped)\"");
            else
                write_fill(d, i, false);
            fputs("/>", d->out);
            weft_svg_text(d->out, x + 24, y + 14, WEFT_SVG_INK " font-size=\"18\"", "%s", text);
        }
        x += width;
    }
    return y - first + LINE + headline(d, d->letters, y + LINE, NAME_SIZE, draw);
}

static double heading(const drawing *d, const char *title, const char *subtitle, bool draw)
{
    double title_height = headline(d, title, MARGIN, TITLE_SIZE, draw);
    return title_height + headline(d, subtitle, MARGIN + title_height, TEXT_SIZE, draw);
}

static void define_fills(const drawing *d)
{
    fprintf(d->out, "<defs>\n<pattern id=\"striped\" width=\"10\" height=\"10\" "
                    "patternUnits=\"userSpaceOnUse\"><rect width=\"10\" height=\"10\" "
                    "fill=\"#5b6678\"/><path stroke=\"#ffffff\" stroke-opacity=\"0.45\" "
                    "stroke-width=\"2.5\" d=\"M-1,11 L11,-1 M-1,1 L1,-1 M9,11 L11,9\"/>"
                    "</pattern>\n");
    for (int i = 0; i < d->num_kinds; i++) {
        define_fill(d, i, false);
        if (d->kinds[i].has_back)
            define_fill(d, i, true);
    }
    fprintf(d->out, "</defs>\n");
}

static weft_status draw(drawing *d, const char *title, const char *subtitle)
{
    char text[96];
    double widest = 0;
    for (size_t i = 0; i < d->num_tracks; i++) {
        const int lane = d->tracks[i].lane;
        label(weft_trace_lane_name(d->trace, lane), "lane", lane, text);
        widest = fmax(widest, text_width(text, TEXT_SIZE));
    }
    d->left = MARGIN + widest + 8;
    d->right = WIDTH - MARGIN;
    d->top = MARGIN + heading(d, title, subtitle, false) + 4;
    d->bottom = d->num_tracks ? track_y(d, d->num_tracks - 1) + ROW_HEIGHT : d->top;
    double legend_y = d->bottom + AXIS_HEIGHT + 8;
    double height = legend_y + legend(d, legend_y, false) + MARGIN - 8;

    weft_svg_begin(d->out, WIDTH, height, "");
    define_fills(d);
    heading(d, title, subtitle, true);
    draw_rows(d);
    draw_axis(d);
    draw_slices(d);
    legend(d, legend_y, true);
    return weft_svg_end(d->out);
}

weft_status weft_trace_write_svg(const weft_trace *trace, const char *title, const char *subtitle,
                                 FILE *out)
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
    find_kinds(&d);
    weft_status status = find_shades(&d);
    if (status == WEFT_OK) {
        find_letters(&d);
        status = draw(&d, title, subtitle);
    }
    free(d.shades);
    free(d.tracks);
    return status;
}

static weft_status write_to(const weft_trace *trace, const char *path, const char *title,
                            const char *subtitle, FILE *out)
{
    weft_status status = title ? weft_trace_write_svg(trace, title, subtitle, out)
                               : weft_trace_write_json(trace, out);
    const double size = status == WEFT_OK ? (double)ftell(out) : 0;
    if (title && size > LARGE)
        weft_log(WEFT_LOG_WARN,
                 "%s: a drawing of %s; --trace writes a timeline that Perfetto opens", path,
                 weft_bytes_text(size).text);
    return status == WEFT_OK ? WEFT_OK : weft_error_context(status, "%s", path);
}

/* What is no regular file, such as a pipe, gets the text as it comes. */
static weft_status write_through(const weft_trace *trace, const char *path, const char *title,
                                 const char *subtitle)
{
    FILE *out = fopen(path, "w");
    if (!out)
        return WEFT_ERROR(WEFT_FILE, "%s: cannot write: %s", path, strerror(errno));
    weft_status status = write_to(trace, path, title, subtitle, out);
    if (fclose(out) != 0 && status == WEFT_OK)
        status = WEFT_ERROR(WEFT_FILE, "%s: cannot write: %s", path, strerror(errno));
    return status;
}

weft_status weft_trace_write_file(const weft_trace *trace, const char *path, const char *title,
                                  const char *subtitle)
{
    struct stat info;
    weft_new_file file;
    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode))
        return write_through(trace, path, title, subtitle);
    WEFT_TRY(weft_new_file_open(path, &file));
    return weft_new_file_close(&file, write_to(trace, path, title, subtitle, file.file));
}
