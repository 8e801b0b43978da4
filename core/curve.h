/* Cost curves: piecewise-linear volume -> time, with a start-up latency. Plain data. */
#ifndef WEFT_CORE_CURVE_H
#define WEFT_CORE_CURVE_H

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
/* Interpolates; below the first point the first time, beyond the last the last slope. */
double weft_curve_time_us(const weft_curve *curve, double volume);

#endif
