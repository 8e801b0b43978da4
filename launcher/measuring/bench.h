/* What the benches share.
 *
 * Every bench measures paired: each round runs all forms in turn, so that noise meets all alike. It
 * reports medians and quartiles of the slowest rank's times. Rank 0 prints a table, or with --json
 * one JSON object. These come at the end; until then a bench says on standard error what it
 * measures. */
#ifndef WEFT_LAUNCHER_MEASURING_BENCH_H
#define WEFT_LAUNCHER_MEASURING_BENCH_H

#include "core/text.h"
#include "launcher/report/report.h"

typedef struct weft_bench_options {
    bool json;  /* instead of tables */
    int rounds; /* measured ones, after warm-up */
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

/* ", about 12 s left" where `done` of `all` equal parts took `us`; "" before the first. */
weft_counted weft_bench_left(double us, int done, int all);

/* Rows of it: median, low and high in JSON; nothing of one without values. */
void weft_bench_report_spread(weft_report *report, const char *key, const weft_spread *spread);

#endif
