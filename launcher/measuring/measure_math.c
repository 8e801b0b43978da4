/* The arithmetic of measuring. Pure. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/sorted.h"
#include "launcher/measuring/measure.h"

/* Sorts; how many are left. */
static int leave_late_out(double *us, int num)
{
    /* TCP waits at least 200 ms before it sends again what was lost. */
    const double late_us = 100e3;
    weft_sort(us, num);
    while (num > 1 && us[num - 1] > us[0] * 1.1 + late_us)
        num--;
    return num;
}

double weft_measure_typical_us(double *us, int num)
{
    return weft_quantile(us, leave_late_out(us, num), 0.5);
}

double weft_measure_scatter(double *us, int num)
{
    num = leave_late_out(us, num);
    return (weft_quantile(us, num, 0.75) - weft_quantile(us, num, 0.25)) /
           weft_quantile(us, num, 0.5);
}

void weft_measure_say_source(weft_cluster *cluster, const char *key, double spread)
{
    char text[16];
    if (cluster->num_sources == WEFT_MAX_SOURCES)
        return; /* a source that nobody gives is measured, too */
    weft_source *source = &cluster->sources[cluster->num_sources++];
    *source = (weft_source){.class_ = WEFT_SOURCE_MEASURED, .where = "weft calibrate"};
    snprintf(source->key, sizeof source->key, "%s", key);
    snprintf(text, sizeof text, "%.2g", fmin(spread, 10)); /* the most that a file may say */
    source->spread = strtod(text, NULL);
}

/* What goes on beyond the last point does so with the last slope: where noise left that at (nearly)
 * nothing, the points concerned keep their mean and rise at the curve's best rate. */
static void tilt_end(weft_curve *curve)
{
    const double *volume = curve->volume;
    double *us = curve->time_us, best = 0, mean_volume = 0, mean_us = 0;
    int last = curve->num_points - 1, first = last;
    for (int i = 0; i <= last; i++)
        best = fmax(best, volume[i] / us[i]);
    while (first > 0 && us[first] - us[first - 1] < (volume[first] - volume[first - 1]) / best / 4)
        first--;
    if (first >= last)
        return;
    for (int i = first; i <= last; i++) {
        mean_volume += volume[i] / (last - first + 1);
        mean_us += us[i] / (last - first + 1);
    }
    for (int i = first; i <= last; i++)
        us[i] = fmax(mean_us + (volume[i] - mean_volume) / best, first > 0 ? us[first - 1] : 0);
}

bool weft_measure_is_disturbed(const weft_curve *curve, int point)
{
    const double *volume = &curve->volume[point], *us = &curve->time_us[point];
    if (point + 1 < curve->num_points)
        return us[0] > 2 * us[1];
    return point > 0 && us[0] > 3 * us[-1] * volume[0] / volume[-1];
}

/* Disturbances only add time, and means would spread one of them over all points. */
static void cut_disturbed(weft_curve *curve)
{
    for (int i = curve->num_points - 2; i >= 0; i--)
        if (curve->time_us[i] > 3 * curve->time_us[i + 1])
            curve->time_us[i] = curve->time_us[i + 1];
}

void weft_measure_make_rise(weft_curve *curve)
{
    cut_disturbed(curve);
    /* Pool adjacent violators: blocks of equal time, merged with the one before while they fall. */
    double mean[WEFT_CURVE_MAX_POINTS];
    int size[WEFT_CURVE_MAX_POINTS], num = 0;
    for (int i = 0; i < curve->num_points; i++) {
        mean[num] = curve->time_us[i];
        size[num++] = 1;
        for (; num > 1 && mean[num - 2] > mean[num - 1]; num--) {
            int both = size[num - 2] + size[num - 1];
            mean[num - 2] = (mean[num - 2] * size[num - 2] + mean[num - 1] * size[num - 1]) / both;
            size[num - 2] = both;
        }
    }
    for (int block = 0, i = 0; block < num; block++)
        for (int j = 0; j < size[block]; j++)
            curve->time_us[i++] = mean[block];
    tilt_end(curve);
}

double weft_measure_done_at(double start_us, const double *end_us, int num, double us)
{
    double before_us = start_us;
    for (int i = 0; i < num; i++) {
        if (us < end_us[i])
            return us <= before_us ? i : i + (us - before_us) / (end_us[i] - before_us);
        before_us = end_us[i];
    }
    return num;
}
