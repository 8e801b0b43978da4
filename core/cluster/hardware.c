#include "core/cluster/hardware.h"

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

static const struct figure {
    const char *path, *unit;
    double least, most; /* possible */
    double low, high;   /* usual */
    const char *help;
} figures[WEFT_NUM_FIGURES] = {
#define FIGURE_ROW(name, path, unit, least, most, low, high, help)                                 \
    [WEFT_FIGURE_##name] = {path, unit, least, most, low, high, help},
    WEFT_FIGURE_LIST(FIGURE_ROW)
#undef FIGURE_ROW
};

static const struct efficiency {
    const char *path, *unit;
} efficiencies[WEFT_NUM_EFFICIENCIES] = {
#define EFFICIENCY_ROW(name, path, unit, help) [WEFT_EFFICIENCY_##name] = {path, unit},
    WEFT_EFFICIENCY_LIST(EFFICIENCY_ROW)
#undef EFFICIENCY_ROW
};

const char *weft_figure_path(weft_figure figure)
{
    return figures[figure].path;
}

const char *weft_figure_unit(weft_figure figure)
{
    return figures[figure].unit;
}

const char *weft_figure_help(weft_figure figure)
{
    return figures[figure].help;
}

const char *weft_efficiency_path(weft_efficiency_kind kind)
{
    return efficiencies[kind].path;
}

const char *weft_efficiency_unit(weft_efficiency_kind kind)
{
    return efficiencies[kind].unit;
}

bool weft_figure_is_plausible(weft_figure figure, double value, double *out_meant)
{
    const struct figure *f = &figures[figure];
    bool is_count = !*f->unit;
    *out_meant = 0;
    if (value >= f->least && value <= f->most)
        return !is_count || value == floor(value);
    if (value == 0)
        return f->unit[0] == 'u' || figure == WEFT_FIGURE_RESERVED ||
               figure == WEFT_FIGURE_INSIDE_EAGER || figure == WEFT_FIGURE_BETWEEN_EAGER;
    if (is_count || !(value > 0))
        return false;
    /* Kilo to peta, or the other way, whichever is the least that makes it usual. */
    for (int power = 3; power <= 15; power += 3)
        for (int sign = -1; sign <= 1; sign += 2) {
            double meant = value * pow(10, sign * power);
            if (meant >= f->low && meant <= f->high) {
                *out_meant = meant;
                return false;
            }
        }
    return false;
}

bool weft_hardware_knows(const weft_hardware *hardware, weft_figure figure)
{
    return hardware->given >> figure & 1;
}

const char *weft_source_class_text(weft_source_class class_)
{
    static const char *const texts[] = {
#define SOURCE_TEXT(name, text) [WEFT_SOURCE_##name] = text,
        WEFT_SOURCE_LIST(SOURCE_TEXT)
#undef SOURCE_TEXT
    };
    return texts[class_];
}
