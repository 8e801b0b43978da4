#include "parallel/sequence.h"

#include <stdbool.h>
#include <string.h>

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

void weft_documents_find(const int32_t *tokens, size_t seq, int32_t eod, size_t stride,
                         int32_t *first)
{
    int32_t start = 0;
    for (size_t s = 0; s < seq; s++) {
        first[s * stride] = start;
        if (tokens[s] == eod)
            start = (int32_t)s + 1;
    }
}

uint64_t weft_documents_work(const int32_t *first_seen, size_t batch, size_t begin, size_t end)
{
    uint64_t pairs = 0;
    for (size_t s = begin; s < end; s++)
        for (size_t b = 0; b < batch; b++)
            pairs += s + 1 - (size_t)first_seen[s * batch + b];
    return pairs;
}

/* --- dealing --------------------------------------------------------------------------------- */

enum { MIN_RUN_TOKENS = 32 };

weft_status weft_dealer_init(size_t seq, size_t batch, int cp, weft_arena *arena, weft_dealer *out)
{
    const size_t ranks = (size_t)cp, most = ranks * WEFT_DEAL_MAX_RUNS;
    void *wide, *narrow;
    WEFT_TRY(weft_arena_alloc_array(arena, most + ranks, sizeof(uint64_t), &wide));
    WEFT_TRY(weft_arena_alloc_array(arena, 2 * most + ranks, sizeof(int32_t), &narrow));
    *out = (weft_dealer){.cp = cp,
                         .seq = seq,
                         .batch = batch,
                         .work = wide,
                         .load = (uint64_t *)wide + most,
                         .owner = narrow,
                         .order = (int32_t *)narrow + most,
                         .count = (int32_t *)narrow + 2 * most};
    return WEFT_OK;
}

/* The runs by falling work; equal ones as they stand in the sequence. */
static void sort(weft_dealer *d, int num_runs)
{
    for (int i = 0; i < num_runs; i++) {
        int at = i;
        for (; at > 0 && d->work[d->order[at - 1]] < d->work[i]; at--)
            d->order[at] = d->order[at - 1];
        d->order[at] = i;
    }
}

/* The largest run left goes to the rank of least work that has room for it. */
static void give_all(weft_dealer *d, int num_each)
{
    memset(d->load, 0, (size_t)d->cp * sizeof *d->load);
    memset(d->count, 0, (size_t)d->cp * sizeof *d->count);
    for (int i = 0; i < d->cp * num_each; i++) {
        const int run = d->order[i];
        int to = -1;
        for (int rank = 0; rank < d->cp; rank++)
            if (d->count[rank] < num_each && (to < 0 || d->load[rank] < d->load[to]))
                to = rank;
        d->owner[run] = to;
        d->count[to]++;
        d->load[to] += d->work[run];
    }
}

static int fullest(const weft_dealer *d)
{
    int most = 0;
    for (int rank = 1; rank < d->cp; rank++)
        if (d->load[rank] > d->load[most])
            most = rank;
    return most;
}

/* Exchanges a run of the fullest rank for another's lighter one, where that lowers the larger of
 * the two loads most. Returns whether one did. */
static bool exchange(weft_dealer *d, int num_runs)
{
    const int from = fullest(d);
    uint64_t best = d->load[from];
    int heavy = -1, light = -1;
    for (int i = 0; i < num_runs; i++)
        for (int j = 0; d->owner[i] == from && j < num_runs; j++) {
            if (d->work[j] >= d->work[i] || d->owner[j] == from)
                continue;
            const uint64_t moved = d->work[i] - d->work[j], left = d->load[from] - moved;
            const uint64_t there = d->load[d->owner[j]] + moved,
                           larger = left > there ? left : there;
            if (larger < best) {
                best = larger;
                heavy = i;
                light = j;
            }
        }
    if (heavy < 0)
        return false;
    const int to = d->owner[light];
    const uint64_t moved = d->work[heavy] - d->work[light];
    d->load[from] -= moved;
    d->load[to] += moved;
    d->owner[light] = from;
    d->owner[heavy] = to;
    return true;
}

static bool is_even(const weft_dealer *d)
{
    double sum = 0;
    for (int rank = 0; rank < d->cp; rank++)
        sum += (double)d->load[rank];
    return (double)d->load[fullest(d)] * d->cp <= 1.02 * sum;
}

static weft_sequence_cut deal(weft_dealer *d, const int32_t *first_seen, int num_each,
                              int32_t *runs)
{
    const int num_runs = d->cp * num_each;
    const size_t length = d->seq / (size_t)num_runs;
    for (int i = 0; i < num_runs; i++)
        d->work[i] =
            weft_documents_work(first_seen, d->batch, (size_t)i * length, (size_t)(i + 1) * length);
    sort(d, num_runs);
    give_all(d, num_each);
    for (int i = 0; i < num_runs && exchange(d, num_runs); i++)
        continue;
    memset(d->count, 0, (size_t)d->cp * sizeof *d->count);
    for (int i = 0; i < num_runs; i++) {
        const int rank = d->owner[i];
        runs[rank * num_each + d->count[rank]++] = i;
    }
    return (weft_sequence_cut){d->cp, num_each, length, runs};
}

weft_sequence_cut weft_dealer_deal(weft_dealer *d, const int32_t *first_seen, int32_t *runs)
{
    const size_t cp = (size_t)d->cp;
    weft_sequence_cut cut = deal(d, first_seen, 2, runs);
    for (size_t n = 4; n <= WEFT_DEAL_MAX_RUNS && !is_even(d); n *= 2) {
        if (d->seq % (n * cp) != 0 || d->seq / (n * cp) < MIN_RUN_TOKENS)
            break;
        cut = deal(d, first_seen, (int)n, runs);
    }
    return cut;
}
