#include "parallel/sequence.h"

size_t weft_sequence_multiple(int cp)
{
    return cp > 1 ? 2 * (size_t)cp : 1;
}

weft_sequence_cut weft_sequence_head_tail(size_t seq, int cp, int32_t *runs)
{
    if (cp == 1) {
        runs[0] = 0;
        return (weft_sequence_cut){.cp = 1, .num_runs = 1, .run_length = seq, .runs = runs};
    }
    for (int rank = 0; rank < cp; rank++) {
        runs[2 * rank] = rank;
        runs[2 * rank + 1] = 2 * cp - 1 - rank;
    }
    return (weft_sequence_cut){
        .cp = cp, .num_runs = 2, .run_length = seq / weft_sequence_multiple(cp), .runs = runs};
}

void weft_sequence_index(const weft_sequence_cut *cut, int rank, int32_t *out)
{
    const int32_t *runs = cut->runs + (size_t)rank * (size_t)cut->num_runs;
    for (int i = 0; i < cut->num_runs; i++)
        for (size_t at = 0; at < cut->run_length; at++)
            *out++ = (int32_t)((size_t)runs[i] * cut->run_length + at);
}

bool weft_sequence_is_cut(const weft_sequence_cut *cut)
{
    int all = cut->cp * cut->num_runs;
    for (int run = 0; run < all; run++) {
        int found = 0;
        for (int i = 0; i < all; i++)
            found += cut->runs[i] == run;
        if (found != 1)
            return false;
    }
    for (int i = 1; i < all; i++)
        if (i % cut->num_runs && cut->runs[i] <= cut->runs[i - 1])
            return false;
    return true;
}
