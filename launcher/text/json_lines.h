/* A document a line: JSON lines (https://jsonlines.org), as data sets are passed on. */
#ifndef WEFT_LAUNCHER_TEXT_JSON_LINES_H
#define WEFT_LAUNCHER_TEXT_JSON_LINES_H

#include <stddef.h>

#include <weft/status.h>

#include "core/arena.h"

/* The string under `key` of a line that is one JSON object, unescaped, in the arena. "a.b" is the
 * key "a.b" where there is one, else "b" of the object under "a". Of keys that come twice the last
 * counts. line[bytes] is NUL. WEFT_FILE: what is wrong, without the line's place. */
weft_status weft_json_line_text(const char *line, size_t bytes, const char *key, weft_arena *arena,
                                const char **out) WEFT_CHECKED;

#endif
