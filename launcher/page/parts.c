#include "launcher/page/parts.h"

#include <string.h>

#include "core/svg.h"

void weft_page_begin(FILE *out, const char *id, const char *title)
{
    fprintf(out, "<section id=\"%s\">\n<h2>%s</h2>\n", id, title);
}

int weft_page_pick(int num, int must, int most, int *out)
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

int weft_page_colour(weft_page_colours *colours, const char *name)
{
    int i = 0;
    while (i < colours->count && strcmp(colours->names[i], name) != 0)
        i++;
    if (i == WEFT_PAGE_MAX_COLOURS) /* more than can be told apart share the last */
        return i - 1;
    if (i == colours->count)
        snprintf(colours->names[colours->count++], sizeof colours->names[0], "%.23s", name);
    return i;
}

void weft_page_key(FILE *out, int colour, const char *name)
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
void weft_page_write_colours(FILE *out, const weft_page_colours *colours)
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
