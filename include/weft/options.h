/* Options: a table of rows says how a section of the config fills a struct.
 *
 * Parser, --help, --set, the resolved config.json and the errors with place and nearest key derive
 * from the rows. A row whose default is null may be set to null: the field is then zero, NULL, an
 * empty list or, of a choice, -1, and is written as null. weft_option_row is fixed: it stands in
 * arrays. */
#ifndef WEFT_OPTIONS_H
#define WEFT_OPTIONS_H

#include <stddef.h>

typedef enum weft_option_type {
    WEFT_OPTION_BOOL,     /* bool */
    WEFT_OPTION_INT,      /* int64_t; accepts a string of digits, beyond 2^53 alone */
    WEFT_OPTION_DOUBLE,   /* double */
    WEFT_OPTION_STRING,   /* const char *, for the job's lifetime */
    WEFT_OPTION_CHOICE,   /* int: index into `choices` */
    WEFT_OPTION_INT_LIST, /* weft_int_list: a number N, or an array of them */
    WEFT_OPTION_STRINGS,  /* weft_string_list: a string, or an array of strings and numbers */
} weft_option_type;

typedef struct weft_option_row {
    const char *key;
    weft_option_type type;
    size_t offset;       /* of the field in the struct */
    const char *initial; /* default, as JSON text: "8", "true", "\"rope\"", "[]" or NULL: null */
    double min, max;     /* numbers; both 0: no bounds */
    const char *choices; /* WEFT_OPTION_CHOICE: "a|b|c", the index is the enum's value */
    const char *unit;    /* "tokens", "bytes", ... or NULL */
    const char *help;    /* one line */
} weft_option_row;

#endif
