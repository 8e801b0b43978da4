/* One value into one field. Private to core/, for options and cluster files. */
#ifndef WEFT_CORE_OPTIONS_VALUE_H
#define WEFT_CORE_OPTIONS_VALUE_H

#include "core/json.h"
#include "core/options.h"

/* Where a value came from: a file's text, or an override as the user gave it. */
typedef struct weft_option_source {
    const char *file, *text; /* text NULL: an override */
    const char *override;
} weft_option_source;

/* Puts where it is before an error: "FILE:3:20: " of `at` and the path, or "--set num_layer=8", cut
 * to fit. Returns `status`. */
weft_status weft_option_fault(const weft_option_source *source, const char *at, const char *section,
                              const char *key, weft_status status) WEFT_CHECKED;
#define WEFT_OPTION_FAULT(source, at, section, key, ...)                                           \
    weft_option_fault((source), (at), (section), (key), WEFT_ERROR(WEFT_CONFIG, __VA_ARGS__))
/* Checks `value` against the row and stores it in target. */
weft_status weft_option_store(const weft_option_source *source, const char *section,
                              const weft_key *row, weft_json_span value, void *target,
                              weft_arena *arena) WEFT_CHECKED;
bool weft_option_has_bounds(const weft_key *row);
/* "1 to 8", "at least 1" or "at most 8". */
void weft_option_bounds_text(const weft_key *row, char out[64]);
/* The choice of this index, as a span of the row's `choices`; 0 bytes where there is none. */
weft_json_span weft_option_choice(const weft_key *row, int index);

#endif
