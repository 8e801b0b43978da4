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

#include <weft/status.h>

#include "core/arena.h"

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

/* Packed documents: what a sample's tokens see, where they count from and which of them bear a
 * loss; and how the ranks of CP share the work of their attention. Pure.
 *
 * A sample is a piece of many documents, one after the other. A document's last token is the
 * end-of-document id, which belongs to it, and the next token begins another. Following Megatron:
 * with reset_attention_mask a token sees its own document alone, with reset_position_ids it counts
 * from its document's first token, and with eod_mask_loss the token that ends a document bears no
 * loss, for what follows it is another document's. */

/* first[s * stride], for s below seq: the index of the first token of token s's document. */
void weft_documents_find(const int32_t *tokens, size_t seq, int32_t eod, size_t stride,
                         int32_t *first);

/* The pairs of a query and a key that it sees, of the queries begin .. end of all samples.
 * first_seen: [S, batch], the first key that each token sees. */
uint64_t weft_documents_work(const int32_t *first_seen, size_t batch, size_t begin, size_t end);

/* Deals a micro-batch's sequence to the ranks of CP by the work of attention: S tokens are cut in
 * runs of one length, every rank gets as many, and which ones makes the ranks' work as equal as the
 * runs allow: the largest first to the rank that has least (Graham 1969), then exchanges of two. A
 * rank has 2 runs, and twice as many, up to 16, until the fullest one has at most 1.02 of the mean
 * or runs would fall below 32 tokens. */
enum { WEFT_DEAL_MAX_RUNS = 16 };

typedef struct weft_dealer {
    int cp;
    size_t seq, batch;
    uint64_t *load; /* [cp]: each rank's work, as dealt last */
    /* scratch: by run its work and its rank, and the runs by falling work; the runs a rank has */
    uint64_t *work;
    int32_t *owner, *order, *count;
} weft_dealer;

/* seq divides by 2 cp. Memory from the arena; dealing takes no more. WEFT_MEMORY. */
weft_status weft_dealer_init(size_t seq, size_t batch, int cp, weft_arena *arena,
                             weft_dealer *out) WEFT_CHECKED;
/* A pure function of first_seen, as above: every rank that knows the tokens finds the same. runs
 * [cp * WEFT_DEAL_MAX_RUNS] is filled, and is what the cut points at. */
weft_sequence_cut weft_dealer_deal(weft_dealer *dealer, const int32_t *first_seen, int32_t *runs);

#endif
