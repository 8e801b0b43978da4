/* The cut of a sequence over the ranks of context parallelism: runs of equal length, the same
 * number of them on every rank. A rank holds its runs back to back, in rising order, as local rows
 * [S / cp, B]. Pure.
 *
 * head_tail (Llama 3, arXiv 2407.21783, §3.3.2): 2 cp runs, rank r has runs r and 2 cp - 1 - r, so
 * that every rank has the same work where attention is causal:
 *
 *   run    0  1  2  3  4  5  6  7
 *   rank   0  1  2  3  3  2  1  0      cp 4 */
#ifndef WEFT_PARALLEL_SEQUENCE_H
#define WEFT_PARALLEL_SEQUENCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct weft_sequence_cut {
    int cp, num_runs;    /* runs a rank */
    size_t run_length;   /* tokens of a run */
    const int32_t *runs; /* [cp * num_runs]: global number of each run, rank by rank, rising within
                            a rank */
} weft_sequence_cut;

/* What seq must be a multiple of for head_tail: 2 cp, or 1 where cp is 1. */
size_t weft_sequence_multiple(int cp);
/* head_tail; with cp 1 the sequence is one run. seq: a multiple of the above. runs [2 * cp] is
 * filled, and is what the cut points at. */
weft_sequence_cut weft_sequence_head_tail(size_t seq, int cp, int32_t *runs);
/* The global indices of a rank's local rows, rising: out [num_runs * run_length]. */
void weft_sequence_index(const weft_sequence_cut *cut, int rank, int32_t *out);
/* Whether `runs` deals every run once, rising within each rank. */
bool weft_sequence_is_cut(const weft_sequence_cut *cut);

#endif
