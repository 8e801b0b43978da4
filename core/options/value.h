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
/* "1 to 8 layers", "at least 1", "at most 8", "1 to 16GiB". */
void weft_option_range(const weft_key *row, char out[96]);

#endif
