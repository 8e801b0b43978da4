#include "core/cluster/curve.h"

#include <math.h>

weft_curve weft_curve_linear(double latency_us, double rate_per_us)
{
    weft_curve curve = {.num_points = 1, .time_us = {latency_us}};
    if (rate_per_us > 0 && isfinite(rate_per_us)) {
        /* A second's worth: far enough out for the slope to be exact beside the latency. */
        curve.num_points = 2;
        curve.volume[1] = rate_per_us * 1e6;
        curve.time_us[1] = latency_us + 1e6;
    }
    return curve;
}

double weft_curve_time_us(const weft_curve *curve, double volume)
{
    int last = curve->num_points - 1;
    if (last < 0)
        return 0;
    if (last == 0 || volume <= curve->volume[0])
        return curve->time_us[0];
    int i = 1; /* the segment from i - 1 to i */
    while (i < last && volume > curve->volume[i])
        i++;
    double slope =
        (curve->time_us[i] - curve->time_us[i - 1]) / (curve->volume[i] - curve->volume[i - 1]);
    /* A measured curve may fall by noise, which must not reach out to negative times. */
    if (volume > curve->volume[last] && slope < 0)
        slope = 0;
    return curve->time_us[i] + slope * (volume - curve->volume[i]);
}

double weft_share_at(const weft_share_curve *curve, double volume)
{
    int last = curve->num_points - 1;
    if (last < 0)
        return 1;
    if (volume <= curve->volume[0])
        return curve->share[0];
    if (volume >= curve->volume[last])
        return curve->share[last];
    int i = 1; /* the segment from i - 1 to i */
    while (volume > curve->volume[i])
        i++;
    /* The volume that the whole rate would move in the same time. */
    double from = curve->volume[i - 1] / curve->share[i - 1];
    double to = curve->volume[i] / curve->share[i];
    double part = (volume - curve->volume[i - 1]) / (curve->volume[i] - curve->volume[i - 1]);
    return volume / (from + part * (to - from));
}
