#include "launcher/measuring/bench.h"

#include <math.h>
#include <stdarg.h>

#include "core/clock.h"
#include "core/sorted.h"

weft_spread weft_spread_of(double *values, int num)
{
    weft_sort(values, num);
    return (weft_spread){.median = weft_quantile(values, num, 0.5),
                         .low = weft_quantile(values, num, 0.25),
                         .high = weft_quantile(values, num, 0.75),
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

weft_counted weft_bench_left(double us, int done, int all)
{
    weft_counted out = {""};
    if (done > 0)
        snprintf(out.text, sizeof out.text, ", about %.30s left",
                 weft_seconds_text(ceil(us / 1e6 / done * (all - done))).text);
    return out;
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
