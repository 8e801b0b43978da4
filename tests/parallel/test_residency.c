/* Which parameters are shared out, and that a model's ends stay whole where slots as large as they
 * are would take more than their shares save. */
#include "parallel/residency/residency.h"
#include "tests/core/check.h"

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

CASE(what_is_shared_out)
{
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

CASE(ends_are_shared_out_where_that_saves)
{
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

/* Two of a layer's parameters that lie by expert, one that does not, and a dense one. */
enum { EXPERTS = 5, NUM_IN_LAYER = 4 };
static void experts_of(int layer, weft_residency_parameter out[NUM_IN_LAYER])
{
    for (int i = 0; i < NUM_IN_LAYER; i++) {
        out[i] = of_layer(layer, i == 1 ? 300 : 100 * EXPERTS);
        out[i].section = i == 3 ? WEFT_SECTION_DENSE : WEFT_SECTION_EXPERT;
        out[i].experts = i == 0 || i == 2 ? EXPERTS : 0;
    }
}

/* Cuts the sections of two layers, the second's parameters first. */
static void cut_two(size_t bucket_elements, weft_sharding sharding, weft_bucket buckets[2][32],
                    weft_cut_sections *out, weft_held_elements *held)
{
    weft_residency r = {.sharding = sharding, .num_layers = NUM_LAYERS, .overlap = true};
    weft_residency_parameter layers[2][NUM_IN_LAYER];
    weft_bucket_cut cuts[2] = {weft_bucket_cut_begin(bucket_elements, DP, buckets[0]),
                               weft_bucket_cut_begin(bucket_elements, DP, buckets[1])};
    for (int l = 0; l < 2; l++) {
        experts_of(2 + l, layers[l]);
        for (int i = 0; i < NUM_IN_LAYER; i++)
            weft_residency_count(&r, &layers[l][i]);
    }
    for (int l = 1; l >= 0; l--)
        for (int i = NUM_IN_LAYER - 1; i >= 0; i--) {
            size_t start;
            const bool added =
                weft_bucket_cut_add(&cuts[layers[l][i].section == WEFT_SECTION_EXPERT], &r,
                                    layers[l], NUM_IN_LAYER, i, &start);
            assert_int_equal(added, i != 0); /* it went with the last of its kind */
        }
    *out = (weft_cut_sections){0};
    for (int kind = 0; kind < WEFT_NUM_SECTIONS; kind++)
        out->group_size[kind] = DP;
    out->buckets[WEFT_SECTION_DENSE] = buckets[0];
    out->num_buckets[WEFT_SECTION_DENSE] = cuts[0].num_buckets;
    out->buckets[WEFT_SECTION_EXPERT] = buckets[1];
    out->num_buckets[WEFT_SECTION_EXPERT] = cuts[1].num_buckets;
    weft_residency_lay(&r, out, held);
}

/* 100 and 100 elements of an expert take 128 each, 256 in all: a multiple of 4 shares of 32. */
CASE(experts_have_buckets_of_their_own)
{
    static const struct {
        size_t elements;
        weft_sharding sharding;
        int num;
        int experts[16];
    } cases[] = {
        {1, WEFT_NO_SHARD, 6, {3, 2, 0, 3, 2, 0}},
        {4 * 256, WEFT_SHARD_OPTIM, 6, {4, 1, 0, 4, 1, 0}},
        {0, WEFT_NO_SHARD, 4, {5, 0, 5, 0}},
        {0, WEFT_SHARD_OPTIM_GRADS_PARAMS, 4, {5, 0, 5, 0}},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        weft_bucket buckets[2][32];
        weft_cut_sections cut;
        weft_held_elements held;
        cut_two(cases[c].elements, cases[c].sharding, buckets, &cut, &held);
        size_t offset = 0, ring = 0;
        assert_int_equal(cut.num_buckets[WEFT_SECTION_EXPERT], cases[c].num);
        for (int b = 0; b < cases[c].num; b++) {
            const weft_bucket *bucket = &buckets[1][b];
            const int experts = cases[c].experts[b];
            assert_int_equal(bucket->num_experts, experts);
            assert_int_equal(bucket->offset, offset);
            assert_int_equal(bucket->count, experts ? experts * 256 : 384);
            assert_int_equal(bucket->first_layer, b < cases[c].num / 2 ? 3 : 2);
            offset += bucket->count;
            if (bucket->unit < 0)
                continue;
            /* behind the unit's dense bucket of 512 */
            ring = b > 0 && bucket[-1].unit == bucket->unit ? ring : 512;
            assert_int_equal(bucket->ring, ring);
            ring += bucket->count;
        }
        assert_int_equal(held.grads[WEFT_SECTION_EXPERT],
                         cases[c].sharding == WEFT_SHARD_OPTIM_GRADS_PARAMS ? offset / DP : offset);
        assert_int_equal(held.owned[WEFT_SECTION_EXPERT],
                         cases[c].sharding == WEFT_NO_SHARD ? offset : offset / DP);
    }
}
