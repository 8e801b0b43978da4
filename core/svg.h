/* What all drawings share. */
#ifndef WEFT_CORE_SVG_H
#define WEFT_CORE_SVG_H

#include <stdio.h>

/* Writes text as an element's content or quoted attribute, without control characters. */
void weft_svg_write_text(const char *text, FILE *out);

#endif
