/* Tokens that stand in a text as they are written, whatever the rules of words say. */
#ifndef WEFT_LAUNCHER_TEXT_ADDED_H
#define WEFT_LAUNCHER_TEXT_ADDED_H

#include "launcher/text/bytes.h"

typedef struct weft_added_token {
    weft_bytes text; /* not empty */
    uint32_t id;
    bool takes_spaces_before, takes_spaces_behind; /* lstrip, rstrip */
    bool single_word;                              /* only with no letter on either side */
} weft_added_token;

typedef struct weft_added {
    weft_added_token *tokens; /* in the order of their bytes */
    size_t count;
    bool begins[256]; /* some token begins with this byte */
} weft_added;

/* Sorts the tokens, which are borrowed. */
void weft_added_init(weft_added *added, weft_added_token *tokens, size_t count);

/* A search of one text from its start. */
typedef struct weft_added_search {
    const weft_added *added;
    weft_bytes text; /* valid UTF-8 */
    size_t at;       /* where the next search begins */
    size_t given;    /* behind the last token */
} weft_added_search;

/* The next token: of those that begin first the longest. False: there is none, and *start and *end
 * are the text's end. Text from *before to *start belongs to no token. */
bool weft_added_next(weft_added_search *search, size_t *before, size_t *start, size_t *end,
                     uint32_t *id);

#endif
