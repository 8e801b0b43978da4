#include <math.h>
#include <stdlib.h>

#include "core/rng.h"
#include "tests/core/check.h"

CASE(known_answers)
{
    /* The vectors that Random123 publishes for Philox4x32-10: counter words, key words, result. */
    static const struct {
        uint64_t counter, stream, seed;
        uint32_t words[4];
    } vectors[] = {
        {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {UINT64_MAX, UINT64_MAX, UINT64_MAX, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {UINT64_C(0x85a308d3243f6a88),
         UINT64_C(0x0370734413198a2e),
         UINT64_C(0x299f31d0a4093822),
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
        uint32_t words[4];
        weft_rng_block(vectors[i].seed, vectors[i].stream, vectors[i].counter, words);
        for (int w = 0; w < 4; w++)
            assert_int_equal(words[w], vectors[i].words[w]);
    }
}

CASE(uniform_takes_the_words_it_says)
{
    for (uint64_t i = 0; i < 100; i++) {
        uint32_t words[4];
        weft_rng_block(5, 6, i / 4, words);
        assert_true(weft_rng_uniform(5, 6, i) == (float)(words[i % 4] >> 8) / 16777216.0f);
    }
}

CASE(uniform_is_uniform)
{
    enum { NUM = 400000, BINS = 100 };
    static double bins[BINS];
    for (uint64_t i = 0; i < NUM; i++) {
        float u = weft_rng_uniform(1, 2, i);
        assert_true(u >= 0 && u < 1);
        bins[(int)(u * BINS)]++;
    }
    double chi = 0, mean = (double)NUM / BINS;
    for (int b = 0; b < BINS; b++)
        chi += (bins[b] - mean) * (bins[b] - mean) / mean;
    assert_true(chi > 50 && chi < 165); /* 99 degrees of freedom: 5 standard deviations */
}

CASE(normal_is_box_muller)
{
    for (uint64_t block = 0; block < 200; block++) {
        uint32_t words[4];
        weft_rng_block(9, 8, block, words);
        for (int pair = 0; pair < 2; pair++) {
            double x = weft_rng_normal(9, 8, 4 * block + 2 * (uint64_t)pair);
            double y = weft_rng_normal(9, 8, 4 * block + 2 * (uint64_t)pair + 1);
            double u = (words[2 * pair] + 1.0) / 4294967296.0;
            double turn = words[2 * pair + 1] / 4294967296.0;
            double angle = atan2(y, x) / 6.283185307179586;
            angle += angle < 0;
            assert_true(fabs(x * x + y * y + 2 * log(u)) < 1e-5);
            assert_true(fabs(angle - turn) < 1e-5 || fabs(angle - turn) > 1 - 1e-5);
        }
    }
}

CASE(normal_has_its_moments)
{
    enum { NUM = 400000 };
    double sum[5] = {0}, neighbours = 0, before = 0;
    for (uint64_t i = 0; i < NUM; i++) {
        double x = weft_rng_normal(3, 4, i);
        assert_true(isfinite(x));
        for (int k = 1; k <= 4; k++)
            sum[k] += pow(x, k) / NUM;
        neighbours += x * before / NUM;
        before = x;
    }
    assert_true(fabs(sum[1]) < 0.008);
    assert_true(fabs(sum[2] - 1) < 0.012);
    assert_true(fabs(sum[3]) < 0.03);
    assert_true(fabs(sum[4] - 3) < 0.08);
    assert_true(fabs(neighbours) < 0.008);
}

CASE(streams_and_seeds_are_apart)
{
    uint64_t a = weft_rng_stream_of("layers.1.mlp"), b = weft_rng_stream_of("layers.2.mlp");
    assert_true(a != b);
    assert_true(a == weft_rng_stream_of("layers.1.mlp"));
    assert_true(weft_rng_stream_mix(weft_rng_stream_mix(a, 1), 2) !=
                weft_rng_stream_mix(weft_rng_stream_mix(a, 2), 1));
    assert_true(weft_rng_stream_mix(a, 0) != a);
    double products[3] = {0};
    enum { NUM = 100000 };
    for (uint64_t i = 0; i < NUM; i++) {
        double x = weft_rng_normal(1, a, i);
        products[0] += x * weft_rng_normal(2, a, i) / NUM;
        products[1] += x * weft_rng_normal(1, b, i) / NUM;
        products[2] += x * weft_rng_normal(1, weft_rng_stream_mix(a, 1), i) / NUM;
    }
    for (int i = 0; i < 3; i++)
        assert_true(fabs(products[i]) < 0.016);
}

CASE(permutations_are_bijections)
{
    static const uint64_t more[] = {255, 256, 257, 1023, 1024, 1025, 4095, 65536, 99991};
    static unsigned char seen[100000];
    for (size_t k = 1; k <= 200 + sizeof more / sizeof more[0]; k++) {
        uint64_t n = k <= 200 ? k : more[k - 201];
        memset(seen, 0, sizeof seen);
        for (uint64_t i = 0; i < n; i++) {
            uint64_t image = weft_rng_permute(11, 12, n, i);
            assert_true(image < n);
            assert_int_equal(seen[image], 0);
            seen[image] = 1;
        }
    }
}

static int compare_u64(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

CASE(large_permutations_do_not_collide)
{
    static const uint64_t sizes[] = {UINT64_C(1) << 32, (UINT64_C(1) << 40) + 17, UINT64_MAX};
    enum { NUM = 50000 };
    static uint64_t images[NUM];
    for (size_t s = 0; s < 3; s++) {
        for (uint64_t i = 0; i < NUM; i++) {
            images[i] = weft_rng_permute(1, 1, sizes[s], i);
            assert_true(images[i] < sizes[s]);
        }
        qsort(images, NUM, sizeof images[0], compare_u64);
        for (int i = 1; i < NUM; i++)
            assert_true(images[i] != images[i - 1]);
        /* Spread out over the whole range, not near where they came from. */
        assert_true(images[NUM / 2] > sizes[s] / 100 * 48 && images[NUM / 2] < sizes[s] / 100 * 52);
    }
}

CASE(permutations_shuffle)
{
    enum { N = 6, SEEDS = 60000 };
    static int where[N][N];
    int same = 0;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        for (uint64_t i = 0; i < N; i++)
            where[i][weft_rng_permute(seed, 0, N, i)]++;
        same += weft_rng_permute(seed, 0, N, 0) == weft_rng_permute(seed, 1, N, 0);
    }
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) /* 5 standard deviations of 91 about 10,000 */
            assert_true(abs(where[i][j] - SEEDS / N) < 460);
    assert_true(abs(same - SEEDS / N) < 460);
}
