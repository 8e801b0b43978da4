#include "parallel/optimizer/rates.h"

#include <math.h>

weft_loss_scale weft_loss_scale_start(const weft_loss_scale_options *options)
{
    return (weft_loss_scale){.scale = options->initial, .overflows_left = options->hysteresis};
}

static bool lower(weft_loss_scale *s, const weft_loss_scale_options *options)
{
    bool was_lowest = s->scale <= options->min;
    s->good_steps = 0;
    s->skipped_steps++;
    if (s->overflows_left > 0)
        s->overflows_left--;
    if (s->overflows_left == 0)
        s->scale = s->scale / 2 > options->min ? s->scale / 2 : options->min;
    return !was_lowest || s->overflows_left > 0;
}

bool weft_loss_scale_update(weft_loss_scale *s, const weft_loss_scale_options *options,
                            bool overflowed)
{
    if (overflowed)
        return lower(s, options);
    if (++s->good_steps >= options->window) {
        s->good_steps = 0;
        s->overflows_left = options->hysteresis;
        s->scale *= 2;
    }
    return true;
}

/* How much of lr - min_lr is left when `step` steps are done, from warm-up to decay_iters. */
static double decay_left(const weft_lr_schedule *schedule, double step)
{
    const double pi = 3.14159265358979323846;
    double length = (double)(schedule->decay_iters - schedule->warmup_iters);
    double ratio = (step - (double)schedule->warmup_iters) / length;

    switch (schedule->style) {
    case WEFT_LR_LINEAR:
        return 1.0 - ratio;
    case WEFT_LR_COSINE:
        return 0.5 * (cos(pi * ratio) + 1.0);
    case WEFT_LR_WSD: {
        double stable_end = (double)(schedule->decay_iters - schedule->wsd_decay_iters);
        if (step <= stable_end)
            return 1.0;
        return 1.0 - (step - stable_end) / (double)schedule->wsd_decay_iters;
    }
    case WEFT_LR_CONSTANT:
        break;
    }
    return 1.0;
}

double weft_lr_between(const weft_lr_schedule *schedule, double done, double step)
{
    if (schedule->warmup_iters > 0 && step <= (double)schedule->warmup_iters)
        return schedule->lr * step / (double)schedule->warmup_iters;
    if (schedule->style == WEFT_LR_CONSTANT)
        return schedule->lr;
    /* min_lr is where the decay ends, behind its last step */
    if (done >= (double)schedule->decay_iters)
        return schedule->min_lr;
    const double begun = fmax(done, (double)schedule->warmup_iters); /* a part of it warms up */
    return schedule->min_lr + decay_left(schedule, begun) * (schedule->lr - schedule->min_lr);
}

double weft_lr_at(const weft_lr_schedule *schedule, int64_t step)
{
    return weft_lr_between(schedule, (double)(step - 1), (double)step);
}
