#include "parallel/optimizer/loss_scale.h"

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
