/* Byte-pair encoding of one word (Sennrich et al. 2016).
 *
 * A word starts as tokens of its bytes or of its characters; encoding joins the neighbouring pair
 * with the earliest merge, until no pair has one. A heap of pairs makes a word of n bytes cost
 * n log n, and a cache gives words that come again. */
#ifndef WEFT_LAUNCHER_TEXT_BPE_H
#define WEFT_LAUNCHER_TEXT_BPE_H

#include <stdbool.h>

#include "launcher/text/bytes.h"

/* A growing list; zero is an empty one. */
typedef struct weft_tokens {
    int32_t *ids;
    size_t count, capacity;
} weft_tokens;

typedef struct weft_bpe_merge {
    uint32_t left, right, joined;
} weft_bpe_merge;

/* What a vocabulary says. */
typedef struct weft_bpe_tables {
    weft_bytes *tokens; /* by id: the text that a token is made of */
    uint32_t num_tokens;
    weft_bpe_merge *merges; /* the earliest first, no pair twice */
    size_t num_merges;
    /* A word starts as its bytes; else as its characters. */
    bool is_of_bytes;
    /* Of bytes, and of characters that are no token. WEFT_NO_ID: none. */
    uint32_t byte_ids[256];
    uint32_t unknown;       /* for bytes that have no token either; WEFT_NO_ID: there are none */
    bool fuse_unknown;      /* neighbours become one */
    bool whole_words_first; /* a word that is a token is that token, whatever the merges say */
} weft_bpe_tables;

/* Never changes once it is made: any number of threads encode with one, each with its cache. */
typedef struct weft_bpe weft_bpe;
typedef struct weft_bpe_cache weft_bpe_cache;

/* All in the arena. The tables' arrays are borrowed. WEFT_FILE: a merge stands twice, or two tokens
 * are the same text (the error names neither file nor place). */
weft_status weft_bpe_create(const weft_bpe_tables *tables, weft_arena *arena,
                            const weft_bpe **out) WEFT_CHECKED;

weft_status weft_bpe_cache_create(weft_bpe_cache **out) WEFT_CHECKED;
void weft_bpe_cache_destroy(weft_bpe_cache *cache);
/* Appends the tokens of one word. Characters that are not UTF-8 are bytes. */
weft_status weft_bpe_encode(const weft_bpe *bpe, weft_bpe_cache *cache, weft_bytes word,
                            weft_tokens *out) WEFT_CHECKED;

weft_status weft_tokens_add(weft_tokens *tokens, int32_t id) WEFT_CHECKED;
/* Makes room for `more` further ids. */
weft_status weft_tokens_reserve(weft_tokens *tokens, size_t more) WEFT_CHECKED;
void weft_tokens_release(weft_tokens *tokens);

#endif
