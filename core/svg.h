/* What all drawings share. A drawing has a card behind it, which keeps it readable on light and
 * dark pages. Attributes are written as they are. */
#ifndef WEFT_CORE_SVG_H
#define WEFT_CORE_SVG_H

#include <stdio.h>

#include <weft/status.h>

#define WEFT_SVG_INK " fill=\"#1c2333\""
#define WEFT_SVG_FAINT " fill=\"#5b6678\""
#define WEFT_SVG_GRID " stroke=\"#dfe3ea\""
#define WEFT_SVG_MIDDLE " text-anchor=\"middle\""
#define WEFT_SVG_END " text-anchor=\"end\""
#define WEFT_SVG_BOLD " font-weight=\"600\""

void weft_svg_begin(FILE *out, double width, double height, const char *attributes);
/* WEFT_FILE where the stream has failed. */
weft_status weft_svg_end(FILE *out) WEFT_CHECKED;
void weft_svg_line(FILE *out, double x1, double y1, double x2, double y2);
/* A box with round corners. */
void weft_svg_box(FILE *out, double x, double y, double width, double height,
                  const char *attributes);
/* One line of text. */
void weft_svg_text(FILE *out, double x, double y, const char *attributes, const char *format, ...)
    WEFT_PRINTF(5, 6);
/* Writes text as an element's content or quoted attribute, without control characters. */
void weft_svg_write_text(const char *text, FILE *out);

#endif
