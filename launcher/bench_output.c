#include "launcher/bench.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

weft_status weft_bench_print_json(const cJSON *json)
{
    char *text = cJSON_Print(json);
    if (!text)
        return WEFT_ERROR(WEFT_MEMORY, "out of memory for the JSON");
    bool failed = puts(text) < 0 || fflush(stdout) != 0;
    cJSON_free(text);
    return failed ? WEFT_ERROR(WEFT_FILE, "standard output: cannot write: %s", strerror(errno))
                  : WEFT_OK;
}

weft_status weft_bench_write_svg(const weft_bars *bars, const char *path)
{
    char temporary[4096];
    if (snprintf(temporary, sizeof temporary, "%s.partial", path) >= (int)sizeof temporary)
        return WEFT_ERROR(WEFT_FILE, "%.100s...: the path is too long", path);
    FILE *file = fopen(temporary, "w");
    if (!file)
        return WEFT_ERROR(WEFT_FILE, "%s: cannot write: %s", path, strerror(errno));
    weft_status status = weft_bars_write_svg(bars, file);
    bool failed = ferror(file) != 0;
    failed = fclose(file) != 0 || failed;
    if (status == WEFT_OK && (failed || rename(temporary, path) != 0))
        status = WEFT_ERROR(WEFT_FILE, "%s: cannot write: %s", path, strerror(errno));
    if (status != WEFT_OK)
        unlink(temporary);
    return status;
}
