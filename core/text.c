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

void weft_fits_add(weft_fits *fits, int64_t value)
{
    if (fits->count < WEFT_MAX_FITS)
        fits->values[fits->count] = value;
    fits->count++;
}

/* Divisors come in pairs, one up to it and one from it on. */
static int64_t root_of(int64_t number)
{
    int64_t root = 1;
    while ((root + 1) <= number / (root + 1))
        root++;
    return root;
}

weft_fits weft_fits_divisors(int64_t number)
{
    weft_fits fits = {0};
    int64_t root = root_of(number);
    for (int64_t i = 1; i <= root; i++)
        if (number % i == 0)
            weft_fits_add(&fits, i);
    for (int64_t i = root; i >= 1; i--)
        if (number % i == 0 && number / i != i)
            weft_fits_add(&fits, number / i);
    return fits;
}

weft_fits weft_fits_divisors_near(int64_t number, int64_t value)
{
    weft_fits fits = {0};
    int64_t root = root_of(number), below = 0, above = 0;
    for (int64_t i = 1; i <= root; i++) {
        int64_t pair[] = {i, number / i};
        for (int p = 0; p < 2 && number % i == 0; p++) {
            if (pair[p] < value && pair[p] > below)
                below = pair[p];
            if (pair[p] > value && (above == 0 || pair[p] < above))
                above = pair[p];
        }
    }
    if (below > 0)
        weft_fits_add(&fits, below);
    if (above > 0)
        weft_fits_add(&fits, above);
    return fits;
}

weft_fits weft_fits_multiples_near(int64_t number, int64_t value)
{
    weft_fits fits = {0};
    int64_t below = (value - 1) / number * number;
    if (below > 0)
        weft_fits_add(&fits, below);
    weft_fits_add(&fits, value / number * number + number);
    return fits;
}

const char *weft_fits_text(const weft_fits *fits, char out[WEFT_FITS_TEXT_BYTES])
{
    size_t used = 0;
    int run = 1; /* values without a gap */
    out[0] = '\0';
    while (run < fits->count && run < WEFT_MAX_FITS &&
           fits->values[run] == fits->values[run - 1] + 1)
        run++;
    if (run > 4 && run == fits->count) {
        snprintf(out, WEFT_FITS_TEXT_BYTES, "%lld to %lld", (long long)fits->values[0],
                 (long long)fits->values[run - 1]);
        return out;
    }
    for (int i = 0; i < fits->count && i < WEFT_MAX_FITS; i++) {
        const char *between = i == 0 ? "" : i + 1 == fits->count ? " or " : ", ";
        int bytes = snprintf(out + used, WEFT_FITS_TEXT_BYTES - used, "%s%lld", between,
                             (long long)fits->values[i]);
        if (bytes < 0 || used + (size_t)bytes >= WEFT_FITS_TEXT_BYTES)
            break;
        used += (size_t)bytes;
    }
    if (fits->count > WEFT_MAX_FITS)
        snprintf(out + used, WEFT_FITS_TEXT_BYTES - used, ", ...");
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
