/* What a verb reports, said once for three writers: text, JSON and HTML.
 *
 * A *row* is {key, title, unit, value}. JSON has the value as it is under the key; text and HTML
 * have it in its unit, as a cell below the title. A row without a key is for people alone, one
 * without a title for JSON alone. So a column that a report gains is one call, where the others of
 * its record stand.
 *
 * Rows lie in the root and in the containers below, tables not in tables. A table without a key is
 * no part of the JSON.
 *
 * Nothing is printed before weft_report_end; errors on the way come back there. */
#ifndef WEFT_LAUNCHER_REPORT_REPORT_H
#define WEFT_LAUNCHER_REPORT_REPORT_H

#include "core/arena.h"
#include "core/json_write.h"
#include "core/text.h"

struct cJSON;

typedef enum weft_report_form {
    WEFT_REPORT_TEXT,
    WEFT_REPORT_JSON,
    WEFT_REPORT_HTML, /* sections of a page; launcher/page/ has what stands around */
} weft_report_form;

typedef enum weft_report_kind {
    WEFT_REPORT_OBJECT, /* for people its rows are of what it lies in */
    WEFT_REPORT_TABLE,  /* records; for people a table, whose columns are their titles */
    WEFT_REPORT_GROUP,  /* records; for people the tables and lines of each, below each other */
    WEFT_REPORT_FACTS,  /* for people a line a row: its title and its value; none in JSON */
    WEFT_REPORT_RECORD, /* of weft_report_record: an object of the array that holds it */
} weft_report_kind;

typedef enum weft_unit {
    WEFT_UNIT_NONE,    /* "1.234", four digits */
    WEFT_UNIT_FIXED,   /* "1.23", two behind the point */
    WEFT_UNIT_COUNT,   /* "12,345" */
    WEFT_UNIT_INDEX,   /* "12345": of what is numbered, not counted */
    WEFT_UNIT_BYTES,   /* "1.5 GiB" */
    WEFT_UNIT_SECONDS, /* "12.5 ms" */
    WEFT_UNIT_SHARE,   /* 0.412 as "41.2 %" */
    WEFT_UNIT_CHANGE,  /* 0.032 as "+3.2 %" */
} weft_unit;
/* "-": not finite. */
weft_counted weft_unit_text(weft_unit unit, double value);

enum { WEFT_REPORT_MAX_COLUMNS = 16, WEFT_REPORT_MAX_HTML_ROWS = 400 };

/* A record of a table that is being filled; NULL: it has no such cell. */
typedef struct weft_report_cells {
    const char *cells[WEFT_REPORT_MAX_COLUMNS];
    bool is_bad;
} weft_report_cells;

typedef struct weft_report {
    weft_report_form form;
    FILE *out; /* memory: what is printed at the end */
    char *text;
    size_t bytes;
    weft_json_out json;
    weft_status status; /* the first error */
    weft_report_kind open[WEFT_JSON_MAX_DEPTH];
    int depth, hidden; /* containers that are open; those that this form has not */
    weft_arena arena;
    const char *titles[WEFT_REPORT_MAX_COLUMNS];
    weft_report_cells *lines;
    int num_titles, num_lines;
    size_t capacity;
} weft_report;

/* Begins the root. The caller ends it, whatever became of it. */
void weft_report_begin(weft_report *report, weft_report_form form);
/* Prints on `out` (NULL: of a rank that is silent, nowhere) and frees. status: of who filled it; an
 * error prints nothing. Returns it, or the report's: WEFT_MEMORY, WEFT_FILE. */
weft_status weft_report_end(weft_report *report, weft_status status, FILE *out) WEFT_CHECKED;

void weft_report_open(weft_report *report, weft_report_kind kind, const char *key);
/* The next one of a table or group. */
void weft_report_record(weft_report *report);
/* The record is marked in HTML. */
void weft_report_bad(weft_report *report);
/* Closes the innermost that is open, with its last record. */
void weft_report_close(weft_report *report);

void weft_report_row(weft_report *report, const char *key, const char *title, weft_unit unit,
                     double value);
/* text NULL: null, and an empty cell. */
void weft_report_text(weft_report *report, const char *key, const char *title, const char *text);
/* For people alone: a cell; a line by itself. */
void weft_report_cell(weft_report *report, const char *title, const char *format, ...)
    WEFT_PRINTF(3, 4);
void weft_report_line(weft_report *report, const char *format, ...) WEFT_PRINTF(2, 3);
/* For JSON alone. */
void weft_report_value(weft_report *report, const char *key, double value);
void weft_report_bool(weft_report *report, const char *key, bool value);
void weft_report_numbers(weft_report *report, const char *key, const double *values, size_t count);
void weft_report_texts(weft_report *report, const char *key, const char *const *texts,
                       size_t count);
void weft_report_raw(weft_report *report, const char *key, const char *json);
void weft_report_members(weft_report *report, const struct cJSON *object);
/* The stream to write what no row says, of this form; NULL: the report is of another. */
FILE *weft_report_stream(weft_report *report, weft_report_form form);

#endif
