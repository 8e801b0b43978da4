/* Which parameters are shared out, and that a model's ends stay whole where slots as large as they
 * are would take more than their shares save. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "parallel/residency.h"

enum { NUM_LAYERS = 6, DP = 4 };

static weft_residency_parameter of_layer(int layer, size_t elements)
{
    return (weft_residency_parameter){.section = WEFT_SECTION_DENSE,
                                      .group_size = DP,
                                      .used_forward = layer == NUM_LAYERS - 1,
                                      .layer = layer,
                                      .elements = elements};
}

/* A stage of layers first..end, of two parameters each; elements: of those between the ends. */
static weft_residency count(int first, int end, size_t ends, size_t elements)
{
    weft_residency r = {.sharding = WEFT_SHARD_OPTIM_GRADS_PARAMS, .num_layers = NUM_LAYERS};
    for (int l = first; l < end; l++)
        for (int i = 0; i < 2; i++) {
            const bool is_end = l == 0 || l == NUM_LAYERS - 1;
            const weft_residency_parameter p = of_layer(l, (is_end ? ends : elements) / 2);
            weft_residency_count(&r, &p);
        }
    return r;
}

static void what_is_shared_out(void **state)
{
    (void)state;
    weft_residency r = count(0, NUM_LAYERS, 100, 100);
    for (int l = 0; l < NUM_LAYERS; l++) {
        weft_residency_parameter p = of_layer(l, 50);
        assert_int_equal(weft_residency_unit(&r, &p), l);
        p.used_forward = !p.used_forward; /* the final norm; a layer before the last that says so */
        assert_int_equal(weft_residency_unit(&r, &p), -1);
        p = of_layer(l, 50);
        p.shared = true;
        assert_int_equal(weft_residency_unit(&r, &p), -1);
        p = of_layer(l, 50);
        p.group_size = 1;
        assert_int_equal(weft_residency_unit(&r, &p), -1);
        p = of_layer(l, 50);
        p.section = WEFT_SECTION_DENSE_SUM;
        assert_int_equal(weft_residency_unit(&r, &p), -1);
        p.section = WEFT_SECTION_EXPERT;
        assert_int_equal(weft_residency_unit(&r, &p), l);
    }
    r.sharding = WEFT_SHARD_OPTIM;
    const weft_residency_parameter p = of_layer(2, 50);
    assert_int_equal(weft_residency_unit(&r, &p), -1);
}

/* Elements that a rank has of the stage: two slots, or as many as there are units, and shares, and
 * what is whole. */
static double bytes(int first, int end, size_t ends, size_t elements, bool shares_ends)
{
    double slot = 0, held = 0;
    int units = 0;
    for (int l = first; l < end; l++) {
        const bool is_end = l == 0 || l == NUM_LAYERS - 1;
        const double all = (double)(is_end ? ends : elements);
        if (is_end && !shares_ends) {
            held += all;
            continue;
        }
        held += all / DP;
        slot = all > slot ? all : slot;
        units++;
    }
    return held + slot * (units < 2 ? units : 2);
}

static void ends_are_shared_out_where_that_saves(void **state)
{
    (void)state;
    int chosen[2] = {0};
    for (int first = 0; first < NUM_LAYERS; first++)
        for (int end = first + 1; end <= NUM_LAYERS; end++)
            for (size_t ends = 20; ends <= 1000; ends += 20) {
                if (first > 0 && end < NUM_LAYERS)
                    continue;
                const weft_residency r = count(first, end, ends, 200);
                const weft_residency_parameter p =
                    of_layer(first == 0 ? 0 : NUM_LAYERS - 1, ends / 2);
                const bool shares = weft_residency_unit(&r, &p) >= 0;
                assert_int_equal(shares, bytes(first, end, ends, 200, true) <
                                             bytes(first, end, ends, 200, false));
                chosen[shares]++;
            }
    assert_true(chosen[false] > 10 && chosen[true] > 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_shared_out),
        cmocka_unit_test(ends_are_shared_out_where_that_saves),
    };
    return cmocka_run_group_tests_name("residency", tests, NULL, NULL);
}
