/* Short words for the tables of verbs' options (launcher/arguments/arguments.h), for the files that
 * have one. A name, what help calls the value, where it goes, bounds, help; behind the help may
 * stand other columns, such as .required or .row.unit, which says what suffixes a number may have.
 */
#ifndef WEFT_LAUNCHER_ARGUMENTS_ROWS_H
#define WEFT_LAUNCHER_ARGUMENTS_ROWS_H

#include <math.h>

#include "launcher/arguments/arguments.h"

/* The compiler refuses a target of another type. */
#define ARGUMENT(kind, name, of, type_of_target, target, ...)                                      \
    {                                                                                              \
        .row.key = name, .row.type = WEFT_OPTION_##kind, .row.initial = "", .value = of,           \
        .to = 1 ? (target) : (type_of_target *)NULL, .row.help = __VA_ARGS__                       \
    }
#define FLAG(name, target, ...) ARGUMENT(BOOL, name, NULL, bool, target, __VA_ARGS__)
#define TEXT(name, of, target, ...) ARGUMENT(STRING, name, of, const char *, target, __VA_ARGS__)
/* May be given several times. */
#define TEXTS(name, of, target, ...)                                                               \
    ARGUMENT(STRINGS, name, of, weft_string_list, target, __VA_ARGS__)
#define NUMBER(kind, name, of, type, target, low, high, of_unit, ...)                              \
    ARGUMENT(kind, name, of, type, target, __VA_ARGS__, .row.min = low, .row.max = high,           \
             .row.unit = of_unit)
#define SMALL(name, of, target, low, high, ...)                                                    \
    NUMBER(INT, name, of, int, target, low, high, "", __VA_ARGS__, .is_small = true)
#define WHOLE(name, of, target, low, high, ...)                                                    \
    NUMBER(INT, name, of, int64_t, target, low, high, "", __VA_ARGS__)
#define BYTES(name, of, target, low, high, ...)                                                    \
    NUMBER(INT, name, of, int64_t, target, low, high, "bytes", __VA_ARGS__)
#define REAL(name, of, target, low, high, of_unit, ...)                                            \
    NUMBER(DOUBLE, name, of, double, target, low, high, of_unit, __VA_ARGS__)
/* "1,2,4", at most so many. */
#define LIST(name, of, target, count, low, high, of_unit, ...)                                     \
    NUMBER(INT, name, of, weft_int_list, target, low, high, of_unit, __VA_ARGS__, .most = count)
#define NAMED(name, of, target, all, count, ...)                                                   \
    ARGUMENT(CHOICE, name, of, int, target, __VA_ARGS__, .row.names = all, .row.num_names = count)
#define SET(name, of, target, all, count, ...)                                                     \
    ARGUMENT(CHOICE, name, of, unsigned, target, __VA_ARGS__, .row.names = all,                    \
             .row.num_names = count, .most = 32)
/* The rows of a verb's weft_arguments. */
#define ROWS_OF(rows_of_verb)                                                                      \
    .rows = rows_of_verb, .num_rows = sizeof(rows_of_verb) / sizeof *(rows_of_verb)

#endif
