/* One value into one field. */
#ifndef WEFT_CORE_OPTIONS_VALUE_H
#define WEFT_CORE_OPTIONS_VALUE_H

#include "core/json.h"
#include "core/options/options.h"

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
