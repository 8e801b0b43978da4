/* The cut of a sequence: every token on one rank, in order, and equal causal work. */
#include "parallel/sequence.h"
#include "tests/core/check.h"

enum { MAX_CP = 8, LONGEST = 4 };

CASE(test_every_token_is_on_one_rank_in_rising_order)
{
    for (int cp = 1; cp <= MAX_CP; cp++)
        for (size_t each = 1; each <= LONGEST; each++) {
            size_t seq = each * weft_sequence_multiple(cp), local = seq / (size_t)cp;
            int32_t runs[2 * MAX_CP], index[2 * MAX_CP * LONGEST];
            int seen[2 * MAX_CP * LONGEST] = {0};
            weft_sequence_cut cut = weft_sequence_head_tail(seq, cp, runs);
            assert_true(weft_sequence_is_cut(&cut));
            assert_int_equal((size_t)cut.num_runs * cut.run_length, local);
            for (int rank = 0; rank < cp; rank++) {
                weft_sequence_index(&cut, rank, index);
                for (size_t row = 0; row < local; row++) {
                    assert_in_range(index[row], 0, seq - 1);
                    seen[index[row]]++;
                    if (row)
                        assert_true(index[row] > index[row - 1]);
                }
            }
            for (size_t at = 0; at < seq; at++)
                assert_int_equal(seen[at], 1);
        }
}

CASE(test_head_tail_gives_equal_causal_work)
{
    for (int cp = 2; cp <= MAX_CP; cp++) {
        int32_t runs[2 * MAX_CP], index[2 * LONGEST];
        size_t seq = LONGEST * weft_sequence_multiple(cp);
        weft_sequence_cut cut = weft_sequence_head_tail(seq, cp, runs);
        for (int rank = 0; rank < cp; rank++) {
            size_t visible = 0;
            weft_sequence_index(&cut, rank, index);
            for (size_t row = 0; row < seq / (size_t)cp; row++)
                visible += (size_t)index[row] + 1;
            assert_int_equal(visible * (size_t)cp, seq * (seq + 1) / 2);
        }
    }
}

CASE(test_what_is_no_cut)
{
    const int32_t twice[] = {0, 1, 1, 3}, falling[] = {3, 0, 1, 2}, outside[] = {0, 4, 1, 2},
                  dealt[] = {1, 3, 0, 2};
    weft_sequence_cut cut = {.cp = 2, .num_runs = 2, .run_length = 1, .runs = twice};
    assert_false(weft_sequence_is_cut(&cut));
    cut.runs = falling;
    assert_false(weft_sequence_is_cut(&cut));
    cut.runs = outside;
    assert_false(weft_sequence_is_cut(&cut));
    cut.runs = dealt;
    assert_true(weft_sequence_is_cut(&cut));
}
