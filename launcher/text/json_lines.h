/* A document a line: JSON lines (https://jsonlines.org), as data sets are passed on. */
#ifndef WEFT_LAUNCHER_TEXT_JSON_LINES_H
#define WEFT_LAUNCHER_TEXT_JSON_LINES_H

#include <stddef.h>

#include <weft/status.h>

#include "core/json.h"

/* The value under `key` of a line that is one JSON object, as below. */
weft_status weft_json_line_value(const char *line, size_t bytes, const char *key,
                                 weft_json_span *out) WEFT_CHECKED;
/* The string under `key` of a line that is one JSON object, in the arena: what JSON can say and
 * UTF-8 cannot, such as half of a surrogate pair, is no fault of a line. "a.b" is the key "a.b"
 * where there is one, else "b" of the object under "a". Of keys that come twice the last counts.
 * line[bytes] is NUL. WEFT_FILE: what is wrong, without the line's place. */
weft_status weft_json_line_text(const char *line, size_t bytes, const char *key, weft_arena *arena,
                                weft_json_characters *out) WEFT_CHECKED;

#endif
