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

/* A file is written beside and renamed. */
typedef struct output {
    const char *path;
    char temporary[4096];
    FILE *file;
} output;

static weft_status open_output(const char *path, output *out)
{
    out->path = path;
    if (strcmp(path, "-") == 0) {
        out->file = stdout;
        return WEFT_OK;
    }
    if (snprintf(out->temporary, sizeof out->temporary, "%s.partial", path) >=
        (int)sizeof out->temporary)
        return WEFT_ERROR(WEFT_FILE, "%.100s...: the path is too long", path);
    out->file = fopen(out->temporary, "w");
    if (!out->file)
        return WEFT_ERROR(WEFT_FILE, "%s: cannot write: %s", path, strerror(errno));
    return WEFT_OK;
}

static weft_status close_output(output *out, weft_status status)
{
    bool failed = fflush(out->file) != 0 || ferror(out->file);
    if (out->file != stdout) {
        failed = fclose(out->file) != 0 || failed;
        if (status == WEFT_OK && !failed)
            failed = rename(out->temporary, out->path) != 0;
        if (status != WEFT_OK || failed)
            unlink(out->temporary);
    }
    if (status == WEFT_OK && failed)
        status = WEFT_ERROR(WEFT_FILE, "%s: cannot write: %s", out->path, strerror(errno));
    return status;
}

weft_status weft_bench_write_json(const cJSON *json, const char *path)
{
    output out;
    char *text = cJSON_Print(json);
    if (!text)
        return WEFT_ERROR(WEFT_MEMORY, "out of memory for %s", path);
    weft_status status = open_output(path, &out);
    if (status == WEFT_OK) {
        fprintf(out.file, "%s\n", text);
        status = close_output(&out, WEFT_OK);
    }
    cJSON_free(text);
    return status;
}

weft_status weft_bench_write_svg(const weft_bars *bars, const char *path)
{
    output out;
    WEFT_TRY(open_output(path, &out));
    weft_status status = weft_bars_write_svg(bars, out.file);
    return close_output(&out, status);
}
