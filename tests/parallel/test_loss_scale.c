/* The loss scale's states against sequences worked out by hand. */
#include "parallel/optimizer/optimizer.h"
#include "tests/core/check.h"

static const weft_loss_scale_options options = {
    .initial = 1024, .min = 2, .window = 3, .hysteresis = 2};

/* One character a step: 'x' overflows, '.' does not. The scale after each. */
static void run(weft_loss_scale *s, const char *steps, const double *wanted)
{
    for (int i = 0; steps[i]; i++) {
        assert_true(weft_loss_scale_update(s, &options, steps[i] == 'x'));
        if (s->scale != wanted[i])
            fail_msg("after %d of \"%s\": %g, not %g", i + 1, steps, s->scale, wanted[i]);
    }
}

CASE(test_off)
{
    weft_loss_scale s = {0};
    assert_false(weft_loss_scale_is_on(&s));
    assert_true(weft_loss_scale_factor(&s) == 1.0);
}

CASE(test_first_overflow_is_forgiven)
{
    weft_loss_scale s = weft_loss_scale_start(&options);
    assert_true(weft_loss_scale_is_on(&s));
    assert_true(weft_loss_scale_factor(&s) == 1024);
    run(&s, "xxxx", (const double[]){1024, 512, 256, 128});
    assert_int_equal(s.skipped_steps, 4);
}

CASE(test_doubles_after_window)
{
    weft_loss_scale s = weft_loss_scale_start(&options);
    run(&s, ".......", (const double[]){1024, 1024, 2048, 2048, 2048, 4096, 4096});
    assert_int_equal(s.skipped_steps, 0);
    assert_int_equal(s.good_steps, 1);
}

/* An overflow begins the window anew; good steps alone do not restore the hysteresis. */
CASE(test_mixed)
{
    weft_loss_scale s = weft_loss_scale_start(&options);
    run(&s, "..x..x", (const double[]){1024, 1024, 1024, 1024, 1024, 512});
    run(&s, "...x", (const double[]){512, 512, 1024, 1024});
    run(&s, "x", (const double[]){512});
    assert_int_equal(s.skipped_steps, 4);
}

CASE(test_lowest)
{
    weft_loss_scale s = weft_loss_scale_start(&options);
    s.scale = 3;
    run(&s, "xx", (const double[]){3, 2});
    assert_false(weft_loss_scale_update(&s, &options, true));
    assert_true(s.scale == 2);
    assert_true(weft_loss_scale_update(&s, &options, false));
}
