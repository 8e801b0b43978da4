/* What the benches share.
 *
 * Every bench measures paired: each round runs all forms in turn, so that noise meets all alike. It
 * reports medians and quartiles of the slowest rank's times. Rank 0 prints a table, or with --json
 * one JSON object; --svg FILE draws the same numbers. These come at the end; until then a bench
 * says on standard error what it measures. */
#ifndef WEFT_LAUNCHER_MEASURING_BENCH_H
#define WEFT_LAUNCHER_MEASURING_BENCH_H

#include <stdbool.h>
#include <stdio.h>

#include <cjson/cJSON.h>

#include <weft/status.h>

typedef struct weft_bench_options {
    bool json;       /* instead of tables */
    const char *svg; /* NULL: none */
    int rounds;      /* measured ones, after warm-up */
} weft_bench_options;

typedef struct weft_spread {
    double median, low, high; /* quartiles */
    int count;
} weft_spread;
/* Sorts `values`. num >= 1. */
weft_spread weft_spread_of(double *values, int num);

/* A line on standard error, of one rank, which `speaks`: what is measured. At most one in five
 * seconds, the first at once. */
void weft_bench_tell(bool speaks, const char *format, ...) WEFT_PRINTF(2, 3);

/* A table of texts: columns are as wide as their longest entry; numbers go right. Rows and cells
 * beyond the table's size are a bug. */
enum { WEFT_TABLE_MAX_COLUMNS = 16, WEFT_TABLE_CELL_BYTES = 48 };
typedef struct weft_table {
    int num_columns, num_rows, capacity;
    char (*cells)[WEFT_TABLE_MAX_COLUMNS][WEFT_TABLE_CELL_BYTES]; /* row 0: the heads */
} weft_table;
weft_status weft_table_begin(weft_table *table, const char *const *heads,
                             int num_columns) WEFT_CHECKED;
/* Adds a row, whose cells weft_table_cell then fills. */
weft_status weft_table_row(weft_table *table) WEFT_CHECKED;
void weft_table_cell(weft_table *table, int column, const char *format, ...) WEFT_PRINTF(3, 4);
void weft_table_print(const weft_table *table, FILE *out);
void weft_table_release(weft_table *table);

/* Groups of bars with their quartiles: readable in light and dark. labels: one a bar; groups: one a
 * group of num_bars bars. values[group * num_bars + bar]. legend: a line that explains labels. */
typedef struct weft_bars {
    const char *title, *unit, *legend;
    int num_groups, num_bars;
    const char *const *groups, *const *labels;
    const weft_spread *values;
} weft_bars;
weft_status weft_bars_write_svg(const weft_bars *bars, FILE *out) WEFT_CHECKED;

/* Prints the object on standard output. WEFT_FILE, WEFT_MEMORY. */
weft_status weft_bench_print_json(const cJSON *json) WEFT_CHECKED;
/* Writes a file beside `path` and renames it. WEFT_FILE. */
weft_status weft_bench_write_svg(const weft_bars *bars, const char *path) WEFT_CHECKED;

#endif
