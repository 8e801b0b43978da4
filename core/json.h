/* A strict reader that walks JSON text in place, so that errors can name every key's and value's
 * line and column. Comments (// to the end of the line, and C style) count as white space.
 *
 * It is stricter than cJSON, which accepts leading zeros, raw control characters, text after the
 * end and "\u0000". Callers check a text first (weft_json_check); a walk over checked text cannot
 * fail. Values are spans of the text, so integers keep all their digits. */
#ifndef WEFT_CORE_JSON_H
#define WEFT_CORE_JSON_H

#include <stdbool.h>
#include <stddef.h>

#include <weft/status.h>

#include "core/arena.h"

typedef enum weft_json_kind {
    WEFT_JSON_NULL,
    WEFT_JSON_BOOL,
    WEFT_JSON_NUMBER,
    WEFT_JSON_STRING,
    WEFT_JSON_ARRAY,
    WEFT_JSON_OBJECT,
} weft_json_kind;

/* A value as it stands in the text; strings with their quotes. */
typedef struct weft_json_span {
    const char *start;
    size_t bytes;
} weft_json_span;

/* The first thing wrong with a text; `reason` is a static string. */
typedef struct weft_json_fault {
    const char *reason;
    const char *at;
} weft_json_fault;

/* Whether `text` is exactly one JSON value; `root` is its span. Otherwise fills `fault`. */
bool weft_json_check(const char *text, weft_json_span *root, weft_json_fault *fault);
/* The same of text whose strings may hold "\u0000": weft_json_read_text reads them. */
bool weft_json_check_any(const char *text, weft_json_span *root, weft_json_fault *fault);
/* Steps through the members of an object (or, with key NULL, the elements of an array) of a
 * checked text. `cursor` starts as NULL; false after the last one. */
bool weft_json_next(weft_json_span parent, const char **cursor, weft_json_span *key,
                    weft_json_span *value);
weft_json_kind weft_json_kind_of(weft_json_span value);
/* The kind in words, for errors: "a string", "a number", "null"... Static. */
const char *weft_json_kind_text(weft_json_span value);
/* A string's characters, unescaped, in the arena. Errors: WEFT_CONFIG (a lone surrogate),
 * WEFT_MEMORY. */
weft_status weft_json_string(weft_json_span value, weft_arena *arena,
                             const char **out) WEFT_CHECKED;
/* What a string may hold beside characters. */
typedef struct weft_json_characters {
    const char *bytes; /* unescaped, in the arena, NUL-terminated; "\u0000" is a zero byte */
    size_t num_bytes;
    size_t num_halves; /* halves of surrogate pairs, each now U+FFFD */
} weft_json_characters;
/* The same of a string of any origin. Errors: WEFT_MEMORY. */
weft_status weft_json_read_text(weft_json_span value, weft_arena *arena,
                                weft_json_characters *out) WEFT_CHECKED;
/* Text as a JSON string with its quotes, in the arena. Weft reads back the same bytes. Bytes that
 * are no UTF-8 pass unchanged, which other readers may refuse: the next writes for those. */
weft_status weft_json_quote(const char *text, weft_arena *arena, const char **out) WEFT_CHECKED;
/* Any bytes as a JSON string of UTF-8: each sequence that is no UTF-8 becomes one U+FFFD. */
weft_status weft_json_quote_bytes(const char *bytes, size_t num_bytes, weft_arena *arena,
                                  const char **out) WEFT_CHECKED;
/* The line and column of a place in the text, from 1; columns count characters of UTF-8. */
void weft_json_position(const char *text, const char *at, int *line, int *column);

#endif
