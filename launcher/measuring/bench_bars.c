#include "launcher/measuring/bench.h"
#include "core/svg.h"

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
    const double scale = (RIGHT - LEFT) / longest, middle = y + BAR_HEIGHT / 2.0;
    const double low = LEFT + value->low * scale, high = LEFT + value->high * scale;
    weft_svg_text(out, LEFT - 8, middle + 4, WEFT_SVG_INK WEFT_SVG_END, "%s", label);
    if (value->count == 0) {
        weft_svg_text(out, LEFT + 4, middle + 4, WEFT_SVG_FAINT, "-");
        return;
    }
    weft_svg_box(out, LEFT, y, fmax(value->median, 0) * scale, BAR_HEIGHT, " fill=\"#3b76d1\"");
    fprintf(
        out,
        "<path d=\"M%.1f %.1fH%.1fM%.1f %.1fv8M%.1f %.1fv8\" stroke=\"#1c2333\" fill=\"none\"/>",
        low, middle, high, low, middle - 4, high, middle - 4);
    weft_svg_text(out, fmax(LEFT + value->median * scale, high) + 8, middle + 4, WEFT_SVG_INK,
                  "%.4g %s  (%.4g to %.4g)", value->median, bars->unit, value->low, value->high);
}

weft_status weft_bars_write_svg(const weft_bars *bars, FILE *out)
{
    double y = MARGIN + TITLE_HEIGHT;
    const double height =
        y + bars->num_groups * (GROUP_TITLE + bars->num_bars * BAR_STEP + GROUP_GAP) + MARGIN / 2.0;
    weft_svg_begin(out, WIDTH, height, " font-size=\"12\"");
    weft_svg_text(out, MARGIN, MARGIN + 12, " font-size=\"15\"" WEFT_SVG_INK WEFT_SVG_BOLD, "%s",
                  bars->title);
    weft_svg_text(out, MARGIN, MARGIN + 31, WEFT_SVG_FAINT,
                  "bars: medians; whiskers: quartiles; each group has a scale of its own");
    weft_svg_text(out, MARGIN, MARGIN + 49, WEFT_SVG_FAINT, "%s", bars->legend);
    for (int g = 0; g < bars->num_groups; g++) {
        const weft_spread *values = bars->values + (size_t)g * (size_t)bars->num_bars;
        const double longest = longest_of(values, bars->num_bars);
        weft_svg_text(out, MARGIN, y + 14, " font-size=\"13\"" WEFT_SVG_INK WEFT_SVG_BOLD, "%s",
                      bars->groups[g]);
        y += GROUP_TITLE;
        for (int b = 0; b < bars->num_bars; b++, y += BAR_STEP)
            draw_bar(bars, &values[b], bars->labels[b], longest, y, out);
        y += GROUP_GAP;
    }
    return weft_svg_end(out);
}
