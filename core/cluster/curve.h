/* Cost curves, piecewise-linear volume -> time with a start-up latency, and curves of the share of
 * a rate by volume. Plain data. */
#ifndef WEFT_CORE_CLUSTER_CURVE_H
#define WEFT_CORE_CLUSTER_CURVE_H

#include <stddef.h>

enum { WEFT_CURVE_MAX_POINTS = 32 };

typedef struct weft_curve {
    int num_points;                       /* 0: everything is free */
    double volume[WEFT_CURVE_MAX_POINTS]; /* bytes or FLOPs, rising */
    double time_us[WEFT_CURVE_MAX_POINTS];
} weft_curve;

/* time = latency + volume / rate: the two-point curve. `rate` is volume per microsecond; a rate of
 * 0 or infinity leaves the latency alone. */
weft_curve weft_curve_linear(double latency_us, double rate_per_us);
/* Interpolates. Below the first point: its time. Beyond the last: the last slope, at least 0. */
double weft_curve_time_us(const weft_curve *curve, double volume);

enum { WEFT_SHARE_CURVE_MAX_POINTS = 16 };

/* The share of a rate, in (0, 1], that an operation reaches by its volume. Between two points the
 * time is interpolated, which reproduces a start-up latency exactly. volume / share must not fall,
 * or a larger operation would end sooner. */
typedef struct weft_share_curve {
    int num_points;                             /* 0: the share is 1 */
    double volume[WEFT_SHARE_CURVE_MAX_POINTS]; /* bytes or FLOPs, rising, above 0 */
    double share[WEFT_SHARE_CURVE_MAX_POINTS];
} weft_share_curve;

/* Below the first point: its share. Beyond the last: that one's. */
double weft_share_at(const weft_share_curve *curve, double volume);

#endif
