/* What all drawings share. */
#ifndef WEFT_CORE_SVG_H
#define WEFT_CORE_SVG_H

#include <stdio.h>

/* Writes text as the content or a quoted attribute of an element; control characters are left out.
 */
void weft_svg_write_text(const char *text, FILE *out);

#endif
