/* Packed documents: what a sample's tokens see, where they count from and which of them bear a
 * loss; and how the ranks of CP share the work of their attention. Pure.
 *
 * A sample is a piece of many documents, one after the other. A document's last token is the
 * end-of-document id, which belongs to it, and the next token begins another. Following Megatron:
 * with reset_attention_mask a token sees its own document alone, with reset_position_ids it counts
 * from its document's first token, and with eod_mask_loss the token that ends a document bears no
 * loss, for what follows it is another document's. */
#ifndef WEFT_PARALLEL_DOCUMENTS_H
#define WEFT_PARALLEL_DOCUMENTS_H

#include <stddef.h>
#include <stdint.h>

#include <weft/status.h>

#include "core/arena.h"
#include "parallel/sequence.h"

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
