/* Changes of a text before it is cut into words. */
#ifndef WEFT_LAUNCHER_TEXT_CHANGE_H
#define WEFT_LAUNCHER_TEXT_CHANGE_H

#include "launcher/text/pattern.h"

typedef enum weft_change_kind {
    WEFT_CHANGE_NFC, /* Unicode's normal forms */
    WEFT_CHANGE_NFD,
    WEFT_CHANGE_NFKC,
    WEFT_CHANGE_NFKD,
    WEFT_CHANGE_REPLACE,
    WEFT_CHANGE_PREPEND,
} weft_change_kind;

typedef struct weft_change {
    weft_change_kind kind;
    weft_pattern *pattern; /* REPLACE: owned by whoever made it; NULL: `from` */
    weft_bytes from, to;   /* REPLACE; PREPEND: `to` */
    bool unless_there;     /* PREPEND: not to a text that begins so */
    bool first_alone;      /* PREPEND: to what begins a document */
} weft_change;

/* Where a text stands. */
typedef struct weft_change_place {
    bool begins_document;
    bool goes_on; /* behind bytes that are not UTF-8: nothing is prepended */
} weft_change_place;

/* The text with all changes made, in order: borrowed from `room` or the text itself. It is valid
 * UTF-8 where the text is. */
weft_status weft_change_text(const weft_change *changes, size_t count, weft_matcher *matcher,
                             weft_change_place place, weft_bytes text, weft_buffer room[2],
                             weft_bytes *out) WEFT_CHECKED;

#endif
