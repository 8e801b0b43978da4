/* Placement against the least maximum that trying every placement finds, and under skewed loads. */
#include "tests/schedule/programs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/rng.h"
#include "schedule/experts/placement.h"

enum { MAX_EXPERTS = 256, MAX_RANKS = 16 };

/* A case with the arrays that a call needs. */
typedef struct problem {
    int32_t home[MAX_EXPERTS], rows[MAX_EXPERTS];
    double upload[MAX_EXPERTS], compute[MAX_EXPERTS];
    bool kept[MAX_EXPERTS];
    weft_placement_shape shape;
    weft_placement_part parts[MAX_EXPERTS + MAX_RANKS];
    int32_t first_part[MAX_EXPERTS + 1];
    weft_placement found;
} problem;

static uint64_t draws;

static double draw(void)
{
    return weft_rng_uniform(20, 1, draws++);
}

static int draw_below(int n)
{
    return (int)(draw() * n);
}

/* Experts with a row and no times, at home in turn. */
static void begin(problem *p, int experts, int ranks)
{
    *p = (problem){.shape = {.num_experts = experts, .num_ranks = ranks}};
    for (int e = 0; e < experts; e++) {
        p->home[e] = e % ranks;
        p->rows[e] = 1;
    }
}

/* Finds it, with a scratch full of `filling`, and holds what is always true. */
static void find(problem *p, int filling)
{
    const int32_t experts = p->shape.num_experts, ranks = p->shape.num_ranks;
    const size_t bytes = weft_placement_scratch_bytes(experts, ranks);
    void *scratch = malloc(bytes); /* as large as said, for the sanitizer */
    assert_non_null(scratch);
    memset(scratch, filling, bytes);
    memset(p->parts, filling, sizeof p->parts);
    p->shape.home = p->home;
    p->shape.rows = p->rows;
    p->shape.upload_us = p->upload;
    p->shape.compute_us = p->compute;
    p->found = (weft_placement){.parts = p->parts, .first_part = p->first_part};
    weft_placement_find(&p->shape, scratch, &p->found);
    free(scratch);

    assert_true((size_t)p->found.num_parts <= weft_placement_capacity(experts, ranks));
    assert_int_equal(p->first_part[0], 0);
    assert_int_equal(p->first_part[experts], p->found.num_parts);
    double uploads[MAX_RANKS] = {0}, computes[MAX_RANKS] = {0}, max = 0, sum = 0;
    for (int32_t e = 0; e < experts; e++) {
        int32_t rows = 0;
        bool taken[MAX_RANKS] = {false};
        assert_true(p->first_part[e] < p->first_part[e + 1]);
        for (int32_t i = p->first_part[e]; i < p->first_part[e + 1]; i++) {
            const weft_placement_part *part = &p->parts[i];
            assert_int_equal(part->expert, e);
            assert_int_equal(part->first_row, rows);
            assert_true(part->num_rows >= (p->rows[e] > 0));
            assert_true(part->rank >= 0 && part->rank < ranks);
            assert_false(taken[part->rank]); /* one part of an expert */
            taken[part->rank] = true;
            rows += part->num_rows;
            if (p->rows[e] == 0)
                continue;
            const bool stays = p->shape.kept && p->kept[e] && i == p->first_part[e];
            uploads[part->rank] += stays ? 0 : p->upload[e];
            computes[part->rank] += p->compute[e] * part->num_rows / p->rows[e];
        }
        assert_int_equal(rows, p->rows[e]);
        if (p->rows[e] == 0 || (p->shape.kept && p->kept[e]))
            assert_int_equal(p->parts[p->first_part[e]].rank, p->home[e]);
        if (!p->shape.replicas)
            assert_int_equal(p->first_part[e], e);
    }
    for (int32_t r = 0; r < ranks; r++) {
        const double time = fmax(uploads[r], computes[r]);
        max = fmax(max, time);
        sum += time;
    }
    assert_true(fabs(p->found.max_us - max) <= 1e-9 * max);
    assert_true(fabs(p->found.mean_us - sum / ranks) <= 1e-9 * max);
}

/* The least maximum below `least`: experts from `expert` on, beside what ranks have. Ranks are
 * alike, so an expert goes to the first `used` or one more. */
static double least_maximum(const problem *p, int expert, int used, double *uploads,
                            double *computes, double max, double least)
{
    if (max >= least || expert == p->shape.num_experts)
        return fmin(max, least);
    for (int r = 0; r <= used && r < p->shape.num_ranks; r++) {
        const double upload = uploads[r], compute = computes[r];
        uploads[r] += p->upload[expert];
        computes[r] += p->compute[expert];
        least = least_maximum(p, expert + 1, r == used ? used + 1 : used, uploads, computes,
                              fmax(max, fmax(uploads[r], computes[r])), least);
        uploads[r] = upload;
        computes[r] = compute;
    }
    return least;
}

static double best_by_trying(const problem *p)
{
    double uploads[MAX_RANKS] = {0}, computes[MAX_RANKS] = {0};
    return least_maximum(p, 0, 0, uploads, computes, 0, INFINITY);
}

static double graham(int ranks)
{
    return 4.0 / 3 - 1.0 / (3 * ranks);
}

typedef enum times { COMPUTE, LONG_COMPUTE, EQUAL_UPLOADS, ANY, NUM_TIMES } times;

/* Small whole numbers, for ties, or any. */
static void draw_times(problem *p, times kind)
{
    const bool whole = draw_below(2) == 0;
    const double span = 1 + draw_below(8);
    for (int e = 0; e < p->shape.num_experts; e++) {
        p->compute[e] = whole ? draw_below((int)span + 1) : span * draw();
        p->upload[e] = whole ? draw_below((int)span + 1) : span * draw();
        if (kind == COMPUTE)
            p->upload[e] = 0;
        else if (kind == LONG_COMPUTE)
            p->upload[e] *= p->compute[e] / span;
        else if (kind == EQUAL_UPLOADS)
            p->upload[e] = 1;
        else if (draw_below(3) == 0)
            *(draw_below(2) ? &p->upload[e] : &p->compute[e]) = 0;
    }
}

CASE(holds_the_bounds)
{
    for (int round = 0; round < 4000; round++)
        for (int kind = 0; kind < NUM_TIMES; kind++) {
            problem p;
            begin(&p, 1 + draw_below(9), 1 + draw_below(4));
            draw_times(&p, (times)kind);
            find(&p, round % 256);
            const double best = best_by_trying(&p);
            const double bound = kind == ANY ? 2 : graham(p.shape.num_ranks);
            assert_true(p.found.max_us >= best * (1 - 1e-12));
            if (p.found.max_us > best * bound * (1 + 1e-6))
                fail_msg("round %d kind %d: %g, the least is %g", round, kind, p.found.max_us,
                         best);
        }
}

/* 2k - 1, 2k - 1, ..., k + 1, k + 1, k, k, k: Graham's case for list scheduling. A swap mends it.
 */
CASE(mends_grahams_case)
{
    for (int k = 2; k <= 4; k++) {
        problem p;
        begin(&p, 2 * k + 1, k);
        for (int e = 0; e < 2 * k; e++)
            p.compute[e] = 2 * k - 1 - e / 2;
        p.compute[2 * k] = k;
        find(&p, 0);
        assert_true(best_by_trying(&p) == 3 * k);
        assert_true(p.found.max_us <= graham(k) * 3 * k);
        assert_true(p.found.max_us < 4 * k - 1);
    }
}

/* An upload and a compute that belong together, and an expert that takes as long in both: the list
 * alone takes twice the least, which the swap finds. */
CASE(mends_the_worst_known_case)
{
    problem p;
    begin(&p, 3, 2);
    p.upload[0] = 1;
    p.compute[1] = 0.9;
    p.upload[2] = p.compute[2] = 0.8;
    find(&p, 0);
    assert_true(best_by_trying(&p) == 1);
    assert_true(p.found.max_us == 1);
}

static const int sizes[][2] = {{64, 4}, {64, 8}, {128, 4}, {128, 8}};

/* Zipf's shares of `rows` rows an expert, in drawn order: rank i takes 1 / i^s, s below 1.5. An
 * expert's compute is its rows, at `ratio` uploads where it has as many as the others. */
static void draw_zipf(problem *p, const int *size, double ratio, int rows)
{
    begin(p, size[0], size[1]);
    const double s = 1.5 * draw();
    double sum = 0, weights[MAX_EXPERTS];
    for (int i = 0; i < size[0]; i++)
        sum += weights[i] = pow(i + 1, -s);
    for (int i = size[0] - 1; i > 0; i--) {
        const int j = draw_below(i + 1);
        const double weight = weights[i];
        weights[i] = weights[j];
        weights[j] = weight;
    }
    for (int e = 0; e < size[0]; e++) {
        p->rows[e] = (int32_t)(rows * size[0] * weights[e] / sum + draw());
        p->upload[e] = 100;
        p->compute[e] = 100 * ratio * p->rows[e] / rows;
    }
}

/* An expert above a rank's mean. */
static bool is_hot(const problem *p)
{
    double uploads = 0, computes = 0, hottest = 0;
    for (int e = 0; e < p->shape.num_experts; e++) {
        uploads += p->rows[e] ? p->upload[e] : 0;
        computes += p->compute[e];
        hottest = fmax(hottest, p->compute[e]);
    }
    return hottest > fmax(uploads, computes) / p->shape.num_ranks;
}

/* What the uploads alone take, which are whole: 65 of them on 8 ranks, 9. */
static double least_uploads(const problem *p)
{
    int uploads = 0;
    for (int i = 0; i < p->found.num_parts; i++)
        uploads += p->parts[i].num_rows > 0;
    return 100 * ceil((double)uploads / p->shape.num_ranks);
}

CASE(balances_zipf)
{
    const double ratios[] = {0.5, 1, 1.2, 2, 4};
    const int rows[] = {16, 256, 4096};
    int num_hot = 0, num_cold = 0, num_whole = 0;
    for (int round = 0; round < 10000; round++)
        for (int i = 0; i < 4; i++) {
            problem p;
            draw_zipf(&p, sizes[i], ratios[draw_below(5)], rows[draw_below(3)]);
            p.shape.replicas = is_hot(&p);
            p.shape.replicas ? num_hot++ : num_cold++;
            find(&p, 0);
            if (p.found.max_us <= 1.1 * p.found.mean_us)
                continue;
            num_whole++; /* an upload more than ranks can share evenly: no placement takes less */
            assert_true(p.shape.replicas);
            assert_true(p.found.max_us <= least_uploads(&p));
        }
    assert_true(num_hot > 10000 && num_cold > 10000);
    assert_true(num_whole * 50 < num_hot);
}

CASE(splits_the_hottest)
{
    for (int ranks = 1; ranks <= MAX_RANKS; ranks++)
        for (int rows = 1; rows <= 1000; rows = rows * 3 + draw_below(7)) {
            problem p; /* all rows on one expert */
            begin(&p, 8, ranks);
            memset(p.rows, 0, sizeof p.rows);
            p.rows[5] = rows;
            p.compute[5] = 0.7 * rows;
            for (int e = 0; e < 8; e++)
                p.upload[e] = 0.1;
            find(&p, 0);
            assert_int_equal(p.found.num_parts, 8);
            assert_true(p.found.max_us == p.compute[5] || p.found.max_us == 0.1);
            p.shape.replicas = true;
            find(&p, 0);
            const int parts = p.first_part[6] - p.first_part[5], most = (rows + ranks - 1) / ranks;
            assert_int_equal(parts, (rows + most - 1) / most);
            assert_true(p.found.max_us <= 0.7 * most * (1 + 1e-12));
        }
}

/* Loads of all kinds: `find` holds that every row is run once and nothing is written outside. */
CASE(covers_all_rows)
{
    for (int round = 0; round < 20000; round++) {
        problem p, again;
        begin(&p, draw_below(40), 1 + draw_below(MAX_RANKS));
        const double skew = 12 * draw(), empty = draw();
        p.shape.replicas = draw_below(2);
        for (int e = 0; e < p.shape.num_experts; e++) {
            p.home[e] = draw_below(p.shape.num_ranks);
            p.rows[e] = draw() < empty ? 0 : (int32_t)exp(skew * draw());
            p.upload[e] = draw_below(4) ? exp(8 * draw()) : 0;
            p.compute[e] = draw_below(9) ? p.rows[e] * 0.37 : 0;
            p.kept[e] = draw_below(5) == 0;
        }
        p.shape.kept = draw_below(2) ? p.kept : NULL;
        find(&p, 0);
        again = p;
        again.shape.kept = p.shape.kept ? again.kept : NULL;
        find(&again, 255);
        assert_int_equal(p.found.num_parts, again.found.num_parts);
        assert_memory_equal(p.parts, again.parts, (size_t)p.found.num_parts * sizeof *p.parts);
    }
}

CASE(nothing_to_place)
{
    problem p;
    begin(&p, 0, 3);
    find(&p, 0);
    assert_true(p.found.max_us == 0 && p.found.mean_us == 0);
    begin(&p, 64, 8);
    memset(p.rows, 0, sizeof p.rows);
    for (int e = 0; e < 64; e++)
        p.upload[e] = 3;
    p.shape.replicas = true;
    find(&p, 0); /* all at home */
    assert_true(p.found.max_us == 0 && p.found.mean_us == 0);
}

CASE(equal_experts_are_dealt_out)
{
    problem p;
    begin(&p, 64, 8);
    for (int e = 0; e < 64; e++)
        p.upload[e] = p.compute[e] = 5;
    find(&p, 0);
    assert_true(p.found.max_us == 40 && p.found.mean_us == 40);
    for (int e = 0; e < 64; e++) /* ties go home where they can */
        assert_int_equal(p.parts[e].rank, p.home[e]);
}

/* Ties: the number of an expert, then home, then the number of a rank. */
CASE(ties)
{
    problem p;
    begin(&p, 4, 3);
    const int32_t homes[] = {2, 2, 2, 2}, ranks[] = {2, 0, 1, 2};
    memcpy(p.home, homes, sizeof homes);
    for (int e = 0; e < 4; e++)
        p.compute[e] = 1;
    find(&p, 0);
    for (int e = 0; e < 4; e++)
        assert_int_equal(p.parts[e].rank, ranks[e]);
}

/* A kept expert stands at home without an upload, split or not, and the others go elsewhere. */
CASE(kept_experts_stay)
{
    problem p;
    begin(&p, 3, 2);
    p.rows[0] = 100;
    p.kept[0] = true;
    p.shape.kept = p.kept;
    for (int e = 0; e < 3; e++) {
        p.upload[e] = 1;
        p.compute[e] = e == 0 ? 10 : 2;
    }
    find(&p, 0);
    assert_int_equal(p.parts[0].rank, 0);
    assert_int_equal(p.parts[1].rank, 1);
    assert_int_equal(p.parts[2].rank, 1);
    assert_true(p.found.max_us == 10);
    p.shape.replicas = true; /* the mean is 7 */
    find(&p, 0);
    assert_int_equal(p.found.num_parts, 4);
    assert_int_equal(p.parts[0].rank, 0);
    assert_int_equal(p.parts[0].num_rows, 70);
    assert_int_equal(p.parts[1].rank, 1);
    assert_true(p.found.max_us == 7);
}
