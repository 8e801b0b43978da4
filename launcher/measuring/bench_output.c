#include "launcher/measuring/bench.h"

#include <stdarg.h>
#include <stdlib.h>

#include "core/clock.h"
#include "core/file.h"

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Between two neighbours where the place is no whole number. */
static double quantile(const double *sorted, int num, double share)
{
    double place = share * (num - 1);
    int below = (int)place;
    if (below + 1 >= num)
        return sorted[num - 1];
    return sorted[below] + (place - below) * (sorted[below + 1] - sorted[below]);
}

weft_spread weft_spread_of(double *values, int num)
{
    qsort(values, (size_t)num, sizeof *values, compare_doubles);
    return (weft_spread){.median = quantile(values, num, 0.5),
                         .low = quantile(values, num, 0.25),
                         .high = quantile(values, num, 0.75),
                         .count = num};
}

void weft_bench_tell(bool speaks, const char *format, ...)
{
    static double said_us;
    const double now = weft_now_us(), every_us = 5e6;
    va_list list;
    if (!speaks || (said_us > 0 && now < said_us + every_us))
        return;
    said_us = now;
    fputs("weft bench: ", stderr);
    va_start(list, format);
    vfprintf(stderr, format, list);
    va_end(list);
    fputc('\n', stderr);
}

void weft_bench_report_spread(weft_report *r, const char *key, const weft_spread *spread)
{
    if (spread->count == 0)
        return;
    weft_report_open(r, WEFT_REPORT_OBJECT, key);
    weft_report_value(r, "median", spread->median);
    weft_report_value(r, "low", spread->low);
    weft_report_value(r, "high", spread->high);
    weft_report_close(r);
}

weft_status weft_bench_write_svg(const weft_bars *bars, const char *path)
{
    weft_new_file file;
    WEFT_TRY(weft_new_file_open(path, &file));
    return weft_new_file_close(&file, weft_bars_write_svg(bars, file.file));
}
