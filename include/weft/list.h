/* Small lists, as options hold them. A config's arena owns the values, which outlive the model.
 * Fixed: they stand in other structs. */
#ifndef WEFT_LIST_H
#define WEFT_LIST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct weft_int_list {
    const int64_t *values;
    size_t count;
    bool is_array; /* false: a bare number (count 1) */
} weft_int_list;

typedef struct weft_string_list {
    const char *const *values;
    size_t count;
} weft_string_list;

#endif
