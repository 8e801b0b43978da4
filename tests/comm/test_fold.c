/* Every variant of the fold that this CPU can run, against plain loops; and copies. */
#include <stdlib.h>
#include <string.h>

#include "comm/mpi/copy.h"
#include "comm/fold.h"
#include "tests/comm/comm_test.h"
#include "tests/core/check.h"

enum { COUNT = 2000, MAX_INPUTS = 5 };
static const weft_dtype dtypes[] = {WEFT_F32, WEFT_BF16, WEFT_F16, WEFT_F64, WEFT_I32, WEFT_I64};

static double value_of(weft_dtype dtype, const void *x, size_t i)
{
    if (dtype == WEFT_F32)
        return ((const float *)x)[i];
    if (dtype == WEFT_F64)
        return ((const double *)x)[i];
    if (dtype == WEFT_F16)
        return test_half_value(((const uint16_t *)x)[i]);
    uint32_t bits = (uint32_t)((const uint16_t *)x)[i] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* One element, one step: floats as the type adds them, bf16 and fp16 in fp32 as it is accumulated.
 */
static double step(weft_dtype dtype, weft_reduce reduce, double a, double b)
{
    if (reduce == WEFT_REDUCE_MAX)
        return a > b ? a : b;
    if (reduce == WEFT_REDUCE_MIN)
        return a < b ? a : b;
    return dtype == WEFT_F64 ? a + b : (float)((float)a + (float)b);
}

static uint64_t whole_of(weft_dtype dtype, const void *x, size_t i)
{
    return dtype == WEFT_I32 ? (uint64_t)(int64_t)((const int32_t *)x)[i]
                             : ((const uint64_t *)x)[i];
}

static uint64_t step_whole(weft_reduce reduce, uint64_t a, uint64_t b)
{
    if (reduce == WEFT_REDUCE_SUM)
        return a + b;
    return ((int64_t)a > (int64_t)b) == (reduce == WEFT_REDUCE_MAX) ? a : b;
}

static void expect_element(weft_dtype dtype, weft_reduce reduce, void *const *inputs, int n,
                           const void *out, size_t i)
{
    if (dtype == WEFT_I32 || dtype == WEFT_I64) {
        uint64_t wanted = whole_of(dtype, inputs[0], i);
        uint64_t mask = dtype == WEFT_I32 ? UINT32_MAX : UINT64_MAX;
        for (int k = 1; k < n; k++)
            wanted = step_whole(reduce, wanted, whole_of(dtype, inputs[k], i));
        assert_int_equal(wanted & mask, whole_of(dtype, out, i) & mask);
        return;
    }
    double wanted = value_of(dtype, inputs[0], i), got = value_of(dtype, out, i);
    for (int k = 1; k < n; k++)
        wanted = step(dtype, reduce, wanted, value_of(dtype, inputs[k], i));
    if (dtype != WEFT_BF16 && dtype != WEFT_F16) {
        assert_true(wanted == got);
        return;
    }
    /* No number of the type lies nearer to the sum. */
    uint16_t bits = ((const uint16_t *)out)[i];
    for (int side = -1; side <= 1; side += 2) {
        uint16_t neighbour = (uint16_t)(bits + side);
        assert_true(fabs(got - wanted) <= fabs(value_of(dtype, &neighbour, 0) - wanted));
    }
}

CASE(test_variants)
{
    static const size_t counts[] = {0, 1, 7, 512, 513, 1999};
    void *inputs[MAX_INPUTS], *out = malloc(COUNT * 8);
    for (int k = 0; k < MAX_INPUTS; k++)
        inputs[k] = malloc(COUNT * 8);
    assert_non_null(weft_fold_variant(0));
    for (int v = 0; weft_fold_variant(v); v++)
        for (size_t d = 0; d < sizeof dtypes / sizeof dtypes[0]; d++)
            for (int reduce = WEFT_REDUCE_SUM; reduce <= WEFT_REDUCE_MIN; reduce++)
                for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
                    int n = 1 + (int)(c % MAX_INPUTS);
                    size_t bytes = counts[c] * weft_dtype_bytes(dtypes[d]);
                    for (int k = 0; k < n; k++)
                        test_fill(inputs[k], dtypes[d], COUNT, test_hash(d, (uint64_t)k));
                    memset(out, 0x5a, COUNT * 8);
                    weft_fold_variant(v)(dtypes[d], (weft_reduce)reduce,
                                         (const void *const *)inputs, n, out, counts[c]);
                    for (size_t i = 0; i < counts[c]; i++)
                        expect_element(dtypes[d], (weft_reduce)reduce, inputs, n, out, i);
                    assert_int_equal(((unsigned char *)out)[bytes], 0x5a);
                    /* The output may be an input; and it is the best variant that is used. */
                    weft_fold(dtypes[d], (weft_reduce)reduce, (const void *const *)inputs, n,
                              inputs[n / 2], counts[c]);
                    assert_memory_equal(inputs[n / 2], out, bytes);
                }
    for (int k = 0; k < MAX_INPUTS; k++)
        free(inputs[k]);
    free(out);
}

/* Every fp16 number alone, and sums of any two. */
CASE(test_halves)
{
    enum { NUM = 1 << 16 };
    uint16_t *a = malloc(NUM * 2), *b = malloc(NUM * 2), *out = malloc(NUM * 2);
    for (int v = 0; weft_fold_variant(v); v++) {
        for (int i = 0; i < NUM; i++) {
            a[i] = (uint16_t)i;
            b[i] = (uint16_t)test_hash((uint64_t)v, (uint64_t)i);
        }
        weft_fold_variant(v)(WEFT_F16, WEFT_REDUCE_SUM, (const void *const[]){a}, 1, out, NUM);
        for (int i = 0; i < NUM; i++)
            assert_true(isnan(test_half_value(a[i])) ? isnan(test_half_value(out[i]))
                                                     : out[i] == a[i]);
        weft_fold_variant(v)(WEFT_F16, WEFT_REDUCE_SUM, (const void *const[]){a, b}, 2, out, NUM);
        for (int i = 0; i < NUM; i++) {
            float sum = (float)(test_half_value(a[i]) + test_half_value(b[i]));
            if (isnan(sum))
                assert_true(isnan(test_half_value(out[i])));
            else
                assert_int_equal(out[i], test_half_nearest((double)sum));
        }
    }
    free(a);
    free(b);
    free(out);
}

CASE(test_copies)
{
    enum { ROOM = 40000 };
    static const size_t sizes[] = {0, 1, 63, 64, 65, 2047, 2048, 2049, 10000, 30001};
    unsigned char *from = malloc(ROOM), *to = malloc(ROOM);
    for (size_t i = 0; i < ROOM; i++)
        from[i] = (unsigned char)test_hash(3, i);
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        for (size_t shift = 0; shift < 70; shift += 23) {
            memset(to, 0x5a, ROOM);
            weft_copy_past(to + shift, from + s, sizes[s]);
            assert_memory_equal(to + shift, from + s, sizes[s]);
            assert_true(shift == 0 || to[shift - 1] == 0x5a);
            assert_int_equal(to[shift + sizes[s]], 0x5a);
        }
    free(from);
    free(to);
}
