/* Packed documents: where they begin, and how dealing their attention evens out ranks' work. */
#include <stdio.h>

#include "parallel/sequence.h"
#include "tests/core/check.h"

enum { EOD = 9, SEQ = 4096, CP = 4 };

static uint64_t random_state = 1;

static double random_share(void)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (double)(random_state >> 11) * 0x1p-53;
}

/* Two samples in columns: the end belongs to its document; several in a row are documents of one
 * token; a last document may be open, and the one at the start may have begun before the sample. */
CASE(test_find)
{
    const int32_t tokens[2][8] = {{1, 2, EOD, 3, EOD, EOD, 4, 5}, {EOD, 1, 1, 1, 1, 1, 1, EOD}};
    const int32_t expected[2][8] = {{0, 0, 0, 3, 3, 5, 6, 6}, {0, 1, 1, 1, 1, 1, 1, 1}};
    int32_t first[16];
    for (size_t b = 0; b < 2; b++)
        weft_documents_find(tokens[b], 8, EOD, 2, first + b);
    for (size_t s = 0; s < 8; s++)
        for (size_t b = 0; b < 2; b++)
            assert_int_equal(first[2 * s + b], expected[b][s]);
    assert_int_equal(weft_documents_work(first, 2, 0, 8), 6 + 3 + 1 + 3 + 1 + 28);
    assert_int_equal(weft_documents_work(first, 2, 3, 5), 1 + 2 + 3 + 4);
}

static void pack(int32_t *first, size_t seq, size_t batch, int kind)
{
    for (size_t b = 0; b < batch; b++)
        for (size_t s = 0; s < seq;) {
            const double u = random_share(), share = random_share() * (double)seq;
            double tokens = kind == 0   ? share / 4
                            : kind == 1 ? 16 + share * u * u * u
                                        : 16 + 128 * u;
            if (kind == 2 && random_share() < 0.1)
                tokens = share / 2;
            const size_t start = s, end = s + 1 + (size_t)tokens;
            for (; s < end && s < seq; s++)
                first[s * batch + b] = (int32_t)start;
        }
}

/* A cut; loads are the work of the runs. */
static double check_deal(const weft_dealer *d, const weft_sequence_cut *cut, const int32_t *first)
{
    double sum = 0, most = 0;
    assert_true(weft_sequence_is_cut(cut));
    assert_true(cut->cp == d->cp && cut->num_runs >= 2 && cut->num_runs <= WEFT_DEAL_MAX_RUNS);
    assert_int_equal(cut->run_length * (size_t)(cut->cp * cut->num_runs), d->seq);
    for (int rank = 0; rank < d->cp; rank++) {
        uint64_t work = 0;
        for (int i = 0; i < cut->num_runs; i++) {
            const size_t begin = (size_t)cut->runs[rank * cut->num_runs + i] * cut->run_length;
            for (size_t s = begin; s < begin + cut->run_length; s++)
                for (size_t b = 0; b < d->batch; b++)
                    work += s - (size_t)first[s * d->batch + b] + 1;
        }
        assert_int_equal(work, d->load[rank]);
        sum += (double)work;
        most = (double)work > most ? (double)work : most;
    }
    return most * d->cp / sum;
}

CASE(test_deal)
{
    static int32_t first[2 * SEQ];
    int32_t runs[CP * WEFT_DEAL_MAX_RUNS];
    double worst = 1, worst_head_tail = 1;
    for (int i = 0; i < 1000; i++) {
        weft_arena arena = {0};
        weft_dealer d;
        const size_t batch = (size_t)i % 2 + 1;
        assert_int_equal(weft_dealer_init(SEQ, batch, CP, &arena, &d), WEFT_OK);
        pack(first, SEQ, batch, i % 3);
        const weft_sequence_cut cut = weft_dealer_deal(&d, first, runs);
        const double even = check_deal(&d, &cut, first);
        worst = even > worst ? even : worst;
        double most = 0, sum = 0;
        for (size_t r = 0; r < CP; r++) {
            const size_t run = SEQ / (2 * CP), tail = 2 * CP - 1 - r;
            const double work =
                (double)(weft_documents_work(first, batch, r * run, (r + 1) * run) +
                         weft_documents_work(first, batch, tail * run, (tail + 1) * run));
            sum += work;
            most = work > most ? work : most;
        }
        worst_head_tail = most * CP / sum > worst_head_tail ? most * CP / sum : worst_head_tail;
        weft_arena_release(&arena);
    }
    print_message("most work of a rank over the mean: %.4f; by head and tail %.2f\n", worst,
                  worst_head_tail);
    assert_true(worst <= 1.05);
    assert_true(worst_head_tail > 1.5); /* there is something to even out */
}

/* One document: two runs a rank are even, and they are those of head and tail. */
CASE(test_one_document)
{
    weft_arena arena = {0};
    weft_dealer d;
    int32_t first[48] = {0}, runs[3 * WEFT_DEAL_MAX_RUNS];
    assert_int_equal(weft_dealer_init(48, 1, 3, &arena, &d), WEFT_OK);
    const weft_sequence_cut cut = weft_dealer_deal(&d, first, runs);
    assert_int_equal(cut.num_runs, 2);
    assert_true(check_deal(&d, &cut, first) == 1);
    for (int rank = 0; rank < 3; rank++)
        assert_int_equal(runs[2 * rank] + runs[2 * rank + 1], 5);
    weft_arena_release(&arena);
}
