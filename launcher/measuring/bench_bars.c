#include "launcher/measuring/bench.h"

#include <math.h>

#include "core/text.h"

enum {
    WIDTH = 860,
    MARGIN = 20,
    TITLE_HEIGHT = 60,
    GROUP_TITLE = 24,
    GROUP_GAP = 14,
    BAR_STEP = 22,
    BAR_HEIGHT = 14,
    LEFT = 190,  /* labels end before it */
    RIGHT = 640, /* the longest bar ends here; its numbers stand behind */
};

static const char ink[] = "#1c2333", faint[] = "#5b6678", fill[] = "#3b76d1";

static double longest_of(const weft_spread *values, int num)
{
    double longest = 0;
    for (int i = 0; i < num; i++)
        if (values[i].count > 0)
            longest = fmax(longest, fmax(values[i].median, values[i].high));
    return longest > 0 ? longest : 1;
}

static void draw_bar(const weft_bars *bars, const weft_spread *value, const char *label,
                     double longest, double y, FILE *out)
{
    double scale = (RIGHT - LEFT) / longest, middle = y + BAR_HEIGHT / 2.0;
    fprintf(out, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\" fill=\"%s\">", LEFT - 8, middle + 4,
            ink);
    weft_svg_write_text(label, out);
    fprintf(out, "</text>");
    if (value->count == 0) {
        fprintf(out, "<text x=\"%d\" y=\"%.1f\" fill=\"%s\">-</text>\n", LEFT + 4, middle + 4,
                faint);
        return;
    }
    fprintf(out,
            "<rect x=\"%d\" y=\"%.1f\" width=\"%.1f\" height=\"%d\" rx=\"2\" fill=\"%s\"/>"
            "<path d=\"M%.1f %.1fH%.1fM%.1f %.1fv8M%.1f %.1fv8\" stroke=\"%s\" fill=\"none\"/>"
            "<text x=\"%.1f\" y=\"%.1f\" fill=\"%s\">%.4g ",
            LEFT, y, fmax(value->median, 0) * scale, BAR_HEIGHT, fill, LEFT + value->low * scale,
            middle, LEFT + value->high * scale, LEFT + value->low * scale, middle - 4,
            LEFT + value->high * scale, middle - 4, ink,
            LEFT + fmax(value->median, value->high) * scale + 8, middle + 4, ink, value->median);
    weft_svg_write_text(bars->unit, out);
    fprintf(out, "<tspan dx=\"6\" fill=\"%s\">%.4g to %.4g</tspan></text>\n", faint, value->low,
            value->high);
}

weft_status weft_bars_write_svg(const weft_bars *bars, FILE *out)
{
    double y = MARGIN + TITLE_HEIGHT;
    double height =
        y + bars->num_groups * (GROUP_TITLE + bars->num_bars * BAR_STEP + GROUP_GAP) + MARGIN / 2.0;
    /* The card behind the drawing keeps it readable on any page. */
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%.0f\" "
            "viewBox=\"0 0 %d %.0f\" font-size=\"12\" font-family=\"system-ui, -apple-system, "
            "'Segoe UI', Roboto, 'DejaVu Sans', Arial, sans-serif\">\n"
            "<rect x=\"0.5\" y=\"0.5\" width=\"%d\" height=\"%.0f\" rx=\"8\" fill=\"#fafbfc\" "
            "stroke=\"#cfd6e0\"/>\n"
            "<text x=\"%d\" y=\"%d\" font-size=\"15\" font-weight=\"600\" fill=\"%s\">",
            WIDTH, height, WIDTH, height, WIDTH - 1, height - 1, MARGIN, MARGIN + 12, ink);
    weft_svg_write_text(bars->title, out);
    fprintf(out,
            "</text>\n<text x=\"%d\" y=\"%d\" fill=\"%s\">bars: medians; whiskers: quartiles; each "
            "group has a scale of its own</text>\n<text x=\"%d\" y=\"%d\" fill=\"%s\">",
            MARGIN, MARGIN + 31, faint, MARGIN, MARGIN + 49, faint);
    weft_svg_write_text(bars->legend, out);
    fprintf(out, "</text>\n");
    for (int g = 0; g < bars->num_groups; g++) {
        const weft_spread *values = bars->values + (size_t)g * (size_t)bars->num_bars;
        double longest = longest_of(values, bars->num_bars);
        fprintf(out, "<text x=\"%d\" y=\"%.1f\" font-size=\"13\" font-weight=\"600\" fill=\"%s\">",
                MARGIN, y + 14, ink);
        weft_svg_write_text(bars->groups[g], out);
        fprintf(out, "</text>\n");
        y += GROUP_TITLE;
        for (int b = 0; b < bars->num_bars; b++, y += BAR_STEP)
            draw_bar(bars, &values[b], bars->labels[b], longest, y, out);
        y += GROUP_GAP;
    }
    fprintf(out, "</svg>\n");
    if (fflush(out) != 0 || ferror(out))
        return WEFT_ERROR(WEFT_FILE, "the drawing could not be written");
    return WEFT_OK;
}
