/* The tables that loading builds and encoding reads. */
#ifndef WEFT_LAUNCHER_TEXT_BPE_INTERNAL_H
#define WEFT_LAUNCHER_TEXT_BPE_INTERNAL_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "core/arena.h"
#include "launcher/text/bpe.h"

/* No merge, no token, no neighbour. */
#define WEFT_BPE_NONE UINT32_MAX

typedef struct weft_bpe_piece_text {
    const char *text;
    uint32_t bytes;
} weft_bpe_piece_text;

/* Open addressing; merged WEFT_BPE_NONE marks a free slot. */
typedef struct weft_bpe_merge {
    uint64_t pair; /* left id << 32 | right id */
    uint32_t rank, merged;
} weft_bpe_merge;

/* A word seen before; its text follows its ids. */
typedef struct weft_bpe_word {
    uint64_t hash;
    uint32_t bytes, num_ids;
    int32_t ids[];
} weft_bpe_word;

struct weft_bpe {
    weft_arena arena;            /* everything but the cache and the scratch */
    weft_bpe_piece_text *pieces; /* by id */
    uint32_t vocab_size, eod;
    uint32_t byte_ids[256]; /* the token of each byte */
    weft_bpe_merge *merges; /* num_slots, a power of two */
    uint32_t *merged;       /* by rank: the joined token */
    size_t num_slots;
    pcre2_code *pattern;
    pcre2_match_data *match;
    weft_arena cache_arena;
    weft_bpe_word **cache; /* WEFT_BPE_CACHE_SLOTS */
    size_t num_cached;
    void *scratch; /* of the word being joined */
    size_t scratch_bytes;
};

/* The merge of two neighbours, or NULL. */
const weft_bpe_merge *weft_bpe_find_merge(const weft_bpe *bpe, uint32_t left, uint32_t right);
/* Fills everything up to and including the merges. */
weft_status weft_bpe_load(weft_bpe *bpe, const char *vocab_name, const char *vocab_text,
                          const char *merge_name, const char *merge_text) WEFT_CHECKED;

#endif
