/* Whether a drawing is well-formed XML and explains itself. */
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

/* The first box of a timeline whose name's letters the legend does not explain; NULL: there is
 * none. A box is titled "sg3 send: ..."; the legend has "send (s)", "g: ..." and "number: ..." in
 * lines. */
static inline const char *svg_unexplained(const char *text)
{
    for (const char *at = text; (at = strstr(at, "<g><title>")) != NULL; at++) {
        char name[24], category[24], letters[8] = "", wanted[64];
        int end = 0;
        if (sscanf(at, "<g><title>%23[^ <] %23[^ :<]%n", name, category, &end) != 2 || !end)
            return at;
        const size_t rest = strspn(name + 1, "abcdefghijklmnopqrstuvwxyz");
        if (rest > 3 || strcmp(name, category) == 0)
            continue; /* a word */
        snprintf(wanted, sizeof wanted, ">%s (%c)</text>", category, *name);
        snprintf(letters, sizeof letters, "%.*s:", (int)rest, name + 1);
        if (!strstr(text, wanted) || (rest > 0 && !strstr(text, letters)) ||
            (name[1 + rest] && !strstr(text, "number:")))
            return at;
    }
    return NULL;
}

#endif
