/* What the sections of a page share. Private to launcher/page/. */
#ifndef WEFT_LAUNCHER_PAGE_PARTS_H
#define WEFT_LAUNCHER_PAGE_PARTS_H

#include "launcher/page/page.h"

/* The style sheet and the script, in pieces; NULL ends them. */
extern const char *const weft_page_style[], *const weft_page_script[];

/* Begins a section; the caller ends it by </section>. */
void weft_page_begin(FILE *out, const char *id, const char *title);
/* At most `most` of `num` indices, rising, spread evenly, with `first`, the last and `must` among
 * them; `out` has room for `most`. Returns how many. most >= 3. */
int weft_page_pick(int num, int must, int most, int *out);

/* Colours of kinds of time and purposes of memory, and classes .kN that have them. */
enum { WEFT_PAGE_MAX_COLOURS = 32 };
typedef struct weft_page_colours {
    char names[WEFT_PAGE_MAX_COLOURS][24];
    int count;
} weft_page_colours;
/* The index of a name's colour; adds the name. */
int weft_page_colour(weft_page_colours *colours, const char *name);
/* A colour and what has it, among a section's keys. */
void weft_page_key(FILE *out, int colour, const char *name);
void weft_page_write_colours(FILE *out, const weft_page_colours *colours);

/* The sections. Those without anything to show write nothing. */
weft_status weft_page_timeline(const weft_page *page, weft_page_colours *colours,
                               FILE *out) WEFT_CHECKED;

#endif
