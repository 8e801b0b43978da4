/* Short words for tables of keys (core/key.h), for the files that have one. T is the struct that a
 * table fills; a row begins with what the key means on resume, and behind its help may stand other
 * columns, such as .choices. */
#ifndef WEFT_CORE_KEY_ROWS_H
#define WEFT_CORE_KEY_ROWS_H

#include <stddef.h>

#include "core/key.h"

#define ROW(on_resume, name, field, kind, value, low, high, of, ...)                               \
    {                                                                                              \
        .key = name, .type = WEFT_OPTION_##kind, .offset = offsetof(T, field), .initial = value,   \
        .min = low, .max = high, .unit = of, .resume = WEFT_RESUME_##on_resume,                    \
        .help = __VA_ARGS__                                                                        \
    }
#define RANGE(on_resume, field, value, low, high, of, ...)                                         \
    ROW(on_resume, #field, field, INT, value, low, high, of, __VA_ARGS__)
/* Steps and other counts, which stay far from overflow where they are multiplied. */
#define INT(on_resume, field, value, low, of, ...)                                                 \
    RANGE(on_resume, field, value, low, 1e9, of, __VA_ARGS__)
#define REAL(on_resume, field, value, low, high, ...)                                              \
    ROW(on_resume, #field, field, DOUBLE, value, low, high, NULL, __VA_ARGS__)
#define FLAG(on_resume, field, value, ...)                                                         \
    ROW(on_resume, #field, field, BOOL, value, 0, 0, NULL, __VA_ARGS__)
#define TEXT(on_resume, field, value, ...)                                                         \
    ROW(on_resume, #field, field, STRING, value, 0, 0, NULL, __VA_ARGS__)
#define CHOICE(on_resume, field, value, names, ...)                                                \
    ROW(on_resume, #field, field, CHOICE, value, 0, 0, NULL, __VA_ARGS__, .choices = names)

#define SEARCHED(what) .searched = WEFT_SEARCHED_##what
/* Why keys of several tables have no effect. */
#define NO_EXPERTS "model.num_experts is 0"
#define NO_FILE                                                                                    \
    "offload.experts is not file (offload.experts is not file and offload.experts is not auto)"

#endif
