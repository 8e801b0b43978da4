/* Whether a drawing is well-formed XML. */
#ifndef WEFT_TESTS_LAUNCHER_SVG_H
#define WEFT_TESTS_LAUNCHER_SVG_H

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* Every element is closed in its order, attributes are quoted, no stray markup is in the text. */
static inline bool svg_is_well_formed(const char *text)
{
    char open[32][16];
    int depth = 0, elements = 0;
    for (const char *c = text; *c; c++) {
        if (*c == '>')
            return false;
        if (*c == '&' && strncmp(c, "&lt;", 4) != 0 && strncmp(c, "&gt;", 4) != 0 &&
            strncmp(c, "&amp;", 5) != 0 && strncmp(c, "&quot;", 6) != 0)
            return false;
        if (*c != '<')
            continue;
        char name[16];
        bool closing = c[1] == '/';
        if (sscanf(c + 1 + closing, "%15[a-z]", name) != 1)
            return false;
        if (closing) {
            if (depth == 0 || strcmp(open[--depth], name) != 0)
                return false;
        } else {
            if (depth == 32 || (depth == 0 && elements > 0))
                return false;
            strcpy(open[depth++], name);
        }
        elements++;
        for (bool quoted = false; *c != '>' || quoted; c++) {
            if (!*c || (*c == '<' && quoted))
                return false;
            quoted ^= *c == '"';
        }
        if (c[-1] == '/')
            depth--;
    }
    return depth == 0 && elements > 3;
}

#endif
