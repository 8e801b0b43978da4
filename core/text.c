#include "core/text.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

weft_counted weft_count_text(long long count, const char *noun)
{
    weft_counted out;
    size_t length = strlen(noun);
    bool hisses = length > 1 && (noun[length - 1] == 's' || noun[length - 1] == 'x' ||
                                 strcmp(noun + length - 2, "ch") == 0);
    snprintf(out.text, sizeof out.text, "%lld %s%s", count, noun,
             count == 1 ? ""
             : hisses   ? "es"
                        : "s");
    return out;
}

weft_counted weft_bytes_text(double bytes)
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB"};
    weft_counted out;
    size_t unit = 0;
    while (bytes >= 1024 && unit + 1 < sizeof units / sizeof units[0]) {
        bytes /= 1024;
        unit++;
    }
    double tenths = bytes * 10 - (double)(long long)(bytes + 0.05) * 10;
    bool whole = tenths > -0.5 && tenths < 0.5;
    const bool is_one = unit == 0 && whole && bytes > 0.5 && bytes < 1.5;
    snprintf(out.text, sizeof out.text, whole ? "%.0f %s" : "%.1f %s", bytes,
             is_one ? "byte" : units[unit]);
    return out;
}

weft_counted weft_scaled_text(double value, int step, const char *unit)
{
    static const char *const binary[] = {"", "Ki", "Mi", "Gi", "Ti", "Pi"};
    static const char *const decimal[] = {"", "k", "M", "G", "T", "P"};
    weft_counted out;
    int prefix = 0;
    for (; prefix < 5 && value >= step * 0.9999; prefix++)
        value /= step;
    snprintf(out.text, sizeof out.text, "%.4g %s%.16s", value,
             step == 1024 ? binary[prefix] : decimal[prefix], unit);
    return out;
}

weft_counted weft_seconds_text(double seconds)
{
    static const struct {
        double below, unit;
        const char *name;
    } units[] = {{1e-3, 1e-6, "us"}, {1, 1e-3, "ms"},     {300, 1, "s"},
                 {7200, 60, "min"},  {172800, 3600, "h"}, {0, 86400, "days"}};
    weft_counted out;
    int i = 0;
    while (units[i].below > 0 && seconds >= units[i].below)
        i++;
    snprintf(out.text, sizeof out.text, "%.4g %s", seconds / units[i].unit, units[i].name);
    return out;
}
