/* Learning rates against values worked out by hand. */
#include "parallel/optimizer/optimizer.h"
#include "tests/core/check.h"

static void near(double got, double wanted)
{
    double difference = got - wanted;
    if (difference < 0)
        difference = -difference;
    if (difference > 1e-15)
        fail_msg("%.17g, not %.17g", got, wanted);
}

static weft_lr_schedule schedule_of(weft_lr_decay_style style)
{
    return (weft_lr_schedule){.style = style,
                              .lr = 1e-3,
                              .min_lr = 1e-4,
                              .warmup_iters = 10,
                              .decay_iters = 110,
                              .wsd_decay_iters = 20};
}

CASE(test_warmup)
{
    for (int style = WEFT_LR_CONSTANT; style <= WEFT_LR_WSD; style++) {
        weft_lr_schedule s = schedule_of((weft_lr_decay_style)style);
        near(weft_lr_at(&s, 1), 1e-4);
        near(weft_lr_at(&s, 5), 5e-4);
        near(weft_lr_at(&s, 10), 1e-3);
    }
}

CASE(test_constant)
{
    weft_lr_schedule s = schedule_of(WEFT_LR_CONSTANT);
    near(weft_lr_at(&s, 11), 1e-3);
    near(weft_lr_at(&s, 1000000), 1e-3);
}

CASE(test_linear)
{
    weft_lr_schedule s = schedule_of(WEFT_LR_LINEAR);
    near(weft_lr_at(&s, 11), 1e-3);
    near(weft_lr_at(&s, 12), 1e-3 - 9e-6);
    near(weft_lr_at(&s, 61), 5.5e-4);
    near(weft_lr_at(&s, 110), 1e-4 + 9e-6); /* the last step is one, whatever min_lr */
    near(weft_lr_at(&s, 111), 1e-4);
}

CASE(test_cosine)
{
    weft_lr_schedule s = schedule_of(WEFT_LR_COSINE);
    near(weft_lr_at(&s, 61), 5.5e-4);
    near(weft_lr_at(&s, 36), 1e-4 + 9e-4 * 0.85355339059327373);
    near(weft_lr_at(&s, 111), 1e-4);
    near(weft_lr_at(&s, 500), 1e-4);
}

CASE(test_wsd)
{
    weft_lr_schedule s = schedule_of(WEFT_LR_WSD);
    near(weft_lr_at(&s, 11), 1e-3);
    near(weft_lr_at(&s, 91), 1e-3);
    near(weft_lr_at(&s, 96), 1e-4 + 9e-4 * 0.75);
    near(weft_lr_at(&s, 110), 1e-4 + 9e-4 * 0.05);
    near(weft_lr_at(&s, 111), 1e-4);
}

CASE(test_edges)
{
    weft_lr_schedule s = schedule_of(WEFT_LR_LINEAR);
    s.warmup_iters = 0;
    near(weft_lr_at(&s, 1), 1e-3);
    near(weft_lr_at(&s, 56), 5.5e-4);
    s.warmup_iters = s.decay_iters = 20; /* no step left to decay in */
    near(weft_lr_at(&s, 20), 1e-3);
    near(weft_lr_at(&s, 21), 1e-4);
    s.warmup_iters = 30; /* decay ends inside the warm-up */
    near(weft_lr_at(&s, 25), 1e-3 * 25 / 30);
    near(weft_lr_at(&s, 31), 1e-4);
    s = schedule_of(WEFT_LR_WSD);
    s.wsd_decay_iters = 0;
    near(weft_lr_at(&s, 110), 1e-3);
    near(weft_lr_at(&s, 111), 1e-4);
}
