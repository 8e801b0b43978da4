/* The one writer of JSON: reports, cluster files, timelines.
 *
 * A value stands under its key in an object; in an array its key is NULL. Numbers have the shortest
 * digits that read back as the same double, whole ones below 1e9 no exponent; those that are not
 * finite are null. Texts are UTF-8: each sequence that is none becomes one U+FFFD. Members stand on
 * lines of their own, those of a flat container on one line, which is wrapped where it grows long,
 * but for the root's. Whoever closes the file looks for its errors. */
#ifndef WEFT_CORE_JSON_WRITE_H
#define WEFT_CORE_JSON_WRITE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum { WEFT_JSON_MAX_DEPTH = 32 };

/* (weft_json_out){.file = out} begins. */
typedef struct weft_json_out {
    FILE *file;
    bool keeps_bytes; /* texts that Weft alone reads: what is no UTF-8 passes unchanged */
    int depth;
    int flat_depth;                        /* of the outermost flat container; 0: none is open */
    size_t column;                         /* in a flat container */
    bool any[WEFT_JSON_MAX_DEPTH + 1];     /* at each depth: a member stands there */
    char closing[WEFT_JSON_MAX_DEPTH + 1]; /* its bracket */
} weft_json_out;

/* bracket: '{' or '['. Closing the root object ends the line. */
void weft_json_open(weft_json_out *out, const char *key, char bracket);
void weft_json_open_flat(weft_json_out *out, const char *key, char bracket);
void weft_json_close(weft_json_out *out);

void weft_json_number(weft_json_out *out, const char *key, double value);
void weft_json_numbers(weft_json_out *out, const char *key, const double *values, size_t count);
void weft_json_text(weft_json_out *out, const char *key, const char *text); /* NULL: null */
void weft_json_bool(weft_json_out *out, const char *key, bool value);
/* A value that is JSON already. */
void weft_json_raw(weft_json_out *out, const char *key, const char *json);

/* Bytes as a JSON string with its quotes. */
void weft_json_write_string(FILE *file, const char *bytes, size_t num_bytes, bool keeps_bytes);
/* The digits that a number is written in. */
typedef struct weft_json_digits {
    char text[32];
} weft_json_digits;
weft_json_digits weft_json_digits_of(double value);

#endif
