#include <math.h>

#include "core/cluster/cluster.h"
#include "tests/core/check.h"

static void expect_near(double got, double wanted)
{
    if (fabs(got - wanted) > 1e-9 * (1 + fabs(wanted)))
        fail_msg("%.12g is not %.12g", got, wanted);
}

CASE(no_points_are_free)
{
    weft_curve curve = {0};
    expect_near(weft_curve_time_us(&curve, 1e12), 0);
}

CASE(linear_is_latency_and_rate)
{
    weft_curve curve = weft_curve_linear(5, 1000);
    expect_near(weft_curve_time_us(&curve, 0), 5);
    expect_near(weft_curve_time_us(&curve, -3), 5);
    expect_near(weft_curve_time_us(&curve, 1), 5.001);
    expect_near(weft_curve_time_us(&curve, 1e6), 1005);
    expect_near(weft_curve_time_us(&curve, 1e15), 5 + 1e12);
    curve = weft_curve_linear(7, 0);
    expect_near(weft_curve_time_us(&curve, 1e9), 7);
    curve = weft_curve_linear(7, INFINITY);
    expect_near(weft_curve_time_us(&curve, 1e9), 7);
}

CASE(points_interpolate)
{
    weft_curve curve = {.num_points = 4, .volume = {10, 20, 40, 80}, .time_us = {3, 4, 10, 14}};
    expect_near(weft_curve_time_us(&curve, 0), 3);
    expect_near(weft_curve_time_us(&curve, 10), 3);
    expect_near(weft_curve_time_us(&curve, 15), 3.5);
    expect_near(weft_curve_time_us(&curve, 20), 4);
    expect_near(weft_curve_time_us(&curve, 25), 5.5);
    expect_near(weft_curve_time_us(&curve, 60), 12);
    expect_near(weft_curve_time_us(&curve, 80), 14);
    expect_near(weft_curve_time_us(&curve, 180), 24); /* the last slope goes on */
}

CASE(noise_never_gives_negative_times)
{
    weft_curve curve = {.num_points = 2, .volume = {10, 20}, .time_us = {5, 4}};
    expect_near(weft_curve_time_us(&curve, 15), 4.5);
    expect_near(weft_curve_time_us(&curve, 1000), 4);
}
