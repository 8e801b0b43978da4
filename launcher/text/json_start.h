/* Whether a file that is taken for text holds JSON: by its first bytes, behind a byte order mark
 * and blank lines. Text may begin with a bracket, too ("[Scene 1]", "{{ template }}", "[1] Knuth"):
 * JSON is an object whose first key is a string with a colon behind it, or an array of objects, of
 * strings or of several numbers. */
#ifndef WEFT_LAUNCHER_TEXT_JSON_START_H
#define WEFT_LAUNCHER_TEXT_JSON_START_H

#include <stdbool.h>
#include <stddef.h>

/* So many bytes of a file are enough. */
enum { WEFT_JSON_START_BYTES = 1 << 16 };

typedef struct weft_json_start {
    bool is_array, has_objects; /* an object, or an array of some */
    /* A key of the first object whose value is a string: "text", else the first; as it stands in
     * the file, without quotes. Empty: none that a shell's line could name. */
    char key[64];
} weft_json_start;

/* False: text, for all that is known. `out` is filled where it is true. */
bool weft_json_start_find(const char *bytes, size_t num_bytes, weft_json_start *out);

#endif
