#include "core/svg.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>

void weft_svg_begin(FILE *out, double width, double height, const char *attributes)
{
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
            "viewBox=\"0 0 %.0f %.0f\" style=\"max-width:100%%;height:auto\" "
            "font-family=\"system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', Arial, "
            "sans-serif\"%s>\n"
            "<rect x=\"0.5\" y=\"0.5\" width=\"%.0f\" height=\"%.0f\" rx=\"8\" fill=\"#fafbfc\" "
            "stroke=\"#cfd6e0\"/>\n",
            width, height, width, height, attributes, width - 1, height - 1);
}

weft_status weft_svg_end(FILE *out)
{
    fputs("</svg>\n", out);
    if (fflush(out) != 0 || ferror(out))
        return WEFT_ERROR(WEFT_FILE, "cannot write: %s", strerror(errno));
    return WEFT_OK;
}

void weft_svg_line(FILE *out, double x1, double y1, double x2, double y2)
{
    fprintf(out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"" WEFT_SVG_GRID "/>\n", x1,
            y1, x2, y2);
}

void weft_svg_box(FILE *out, double x, double y, double width, double height,
                  const char *attributes)
{
    fprintf(out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" rx=\"2\"%s/>\n", x, y,
            width, height, attributes);
}

void weft_svg_text(FILE *out, double x, double y, const char *attributes, const char *format, ...)
{
    char text[1024];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    fprintf(out, "<text x=\"%.1f\" y=\"%.1f\"%s>", x, y, attributes);
    weft_svg_write_text(text, out);
    fputs("</text>\n", out);
}

void weft_svg_write_text(const char *text, FILE *out)
{
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        if (*c == '<')
            fputs("&lt;", out);
        else if (*c == '>')
            fputs("&gt;", out);
        else if (*c == '&')
            fputs("&amp;", out);
        else if (*c == '"')
            fputs("&quot;", out);
        else if (*c >= 0x20) /* XML has no way to write the others */
            fputc(*c, out);
    }
}
