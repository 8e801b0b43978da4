#include "launcher/text/bpe.h"

#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "launcher/text/bpe_internal.h"

enum {
    CACHE_SLOTS = 1 << 17, /* a power of two */
    MAX_CACHED = 1 << 16,  /* words; then the cache starts again */
    MAX_CACHED_BYTES = 64, /* longer words hardly come again */
};

/* GPT-2's pattern. What it calls \s is Unicode's White_Space, which is \p{Z} and the characters
 * written out; PCRE2's own \s would add U+180E. */
#define SPACE "\\p{Z}\\x{09}-\\x{0d}\\x{85}"
static const char split_pattern[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" SPACE
                                    "\\p{L}\\p{N}]+|[" SPACE "]+(?![^" SPACE "])|[" SPACE "]+";

static weft_status bpe_init(weft_bpe *bpe, const char *vocab_name, const char *vocab_text,
                            const char *merge_name, const char *merge_text)
{
    WEFT_TRY(weft_bpe_load(bpe, vocab_name, vocab_text, merge_name, merge_text));
    int error;
    PCRE2_SIZE at;
    /* Anchored when compiled, because JIT code cannot be told so when it matches. */
    bpe->pattern = pcre2_compile((PCRE2_SPTR)split_pattern, PCRE2_ZERO_TERMINATED,
                                 PCRE2_UTF | PCRE2_ANCHORED, &error, &at, NULL);
    if (!bpe->pattern)
        return WEFT_ERROR(WEFT_INTERNAL, "PCRE2 refuses the split pattern: error %d at %zu", error,
                          at);
    /* Without JIT support the interpreter matches the same, slower. */
    (void)pcre2_jit_compile(bpe->pattern, PCRE2_JIT_COMPLETE);
    bpe->match = pcre2_match_data_create(1, NULL);
    bpe->cache = calloc(CACHE_SLOTS, sizeof(*bpe->cache));
    if (!bpe->match || !bpe->cache)
        return WEFT_ERROR(WEFT_MEMORY, "no memory for the tokenizer");
    return WEFT_OK;
}

weft_status weft_bpe_create(const char *vocab_name, const char *vocab_text, const char *merge_name,
                            const char *merge_text, weft_bpe **out)
{
    weft_bpe *bpe = calloc(1, sizeof(*bpe));
    if (!bpe)
        return WEFT_ERROR(WEFT_MEMORY, "no memory for the tokenizer");
    weft_status status = bpe_init(bpe, vocab_name, vocab_text, merge_name, merge_text);
    if (status != WEFT_OK) {
        weft_bpe_destroy(bpe);
        return status;
    }
    *out = bpe;
    return WEFT_OK;
}

void weft_bpe_destroy(weft_bpe *bpe)
{
    if (!bpe)
        return;
    pcre2_match_data_free(bpe->match);
    pcre2_code_free(bpe->pattern);
    weft_arena_release(&bpe->cache_arena);
    weft_arena_release(&bpe->arena);
    free(bpe->cache);
    free(bpe->scratch);
    free(bpe);
}

int32_t weft_bpe_vocab_size(const weft_bpe *bpe)
{
    return (int32_t)bpe->vocab_size;
}

int32_t weft_bpe_eod(const weft_bpe *bpe)
{
    return (int32_t)bpe->eod;
}

const char *weft_bpe_piece(const weft_bpe *bpe, int32_t id, size_t *bytes)
{
    bool known = id >= 0 && (uint32_t)id < bpe->vocab_size;
    *bytes = known ? bpe->pieces[id].bytes : 0;
    return known ? bpe->pieces[id].text : "";
}

/* A symbol of the word being joined; symbols are numbered by their first byte. */
typedef struct symbol {
    uint32_t id, previous, next;
    uint32_t pair_rank; /* of this symbol and the next; WEFT_BPE_NONE: no merge, or joined away */
} symbol;

/* A min-heap of (rank << 32 | symbol). A symbol's entry is stale when its pair has changed since;
 * then its rank is another one. */
typedef struct heap {
    uint64_t *entries;
    size_t count;
} heap;

static void heap_push(heap *h, uint64_t entry)
{
    size_t i = h->count++;
    for (; i > 0 && h->entries[(i - 1) / 2] > entry; i = (i - 1) / 2)
        h->entries[i] = h->entries[(i - 1) / 2];
    h->entries[i] = entry;
}

static uint64_t heap_pop(heap *h)
{
    uint64_t top = h->entries[0], last = h->entries[--h->count];
    size_t i = 0;
    for (size_t child = 1; child < h->count; i = child, child = 2 * i + 1) {
        if (child + 1 < h->count && h->entries[child + 1] < h->entries[child])
            child++;
        if (h->entries[child] >= last)
            break;
        h->entries[i] = h->entries[child];
    }
    h->entries[i] = last;
    return top;
}

/* Looks up the pair that starts at symbol i. */
static void rank_pair(const weft_bpe *bpe, symbol *symbols, heap *h, uint32_t i)
{
    symbol *s = &symbols[i];
    s->pair_rank = WEFT_BPE_NONE;
    if (s->next == WEFT_BPE_NONE)
        return;
    const weft_bpe_merge *merge = weft_bpe_find_merge(bpe, s->id, symbols[s->next].id);
    if (!merge)
        return;
    s->pair_rank = merge->rank;
    heap_push(h, (uint64_t)merge->rank << 32 | i);
}

static weft_status reserve_scratch(weft_bpe *bpe, size_t bytes)
{
    if (bytes <= bpe->scratch_bytes)
        return WEFT_OK;
    free(bpe->scratch);
    bpe->scratch_bytes = 0;
    bpe->scratch = malloc(bytes);
    if (!bpe->scratch)
        return WEFT_ERROR(WEFT_MEMORY, "no memory to encode a word of %zu bytes", bytes / 40);
    bpe->scratch_bytes = bytes;
    return WEFT_OK;
}

static weft_status join_word(weft_bpe *bpe, const char *text, size_t bytes, weft_tokens *out)
{
    if (bytes >= WEFT_BPE_NONE)
        return WEFT_ERROR(WEFT_CONFIG, "a word of %zu bytes is too long to encode", bytes);
    /* Each pair is pushed once at the start, and each join pushes two at most. */
    WEFT_TRY(reserve_scratch(bpe, bytes * (sizeof(symbol) + 3 * sizeof(uint64_t))));
    heap h = {.entries = bpe->scratch};
    symbol *symbols = (symbol *)(void *)(h.entries + 3 * bytes);
    uint32_t count = (uint32_t)bytes;
    for (uint32_t i = 0; i < count; i++)
        symbols[i] = (symbol){bpe->byte_ids[(unsigned char)text[i]], i ? i - 1 : WEFT_BPE_NONE,
                              i + 1 < count ? i + 1 : WEFT_BPE_NONE, WEFT_BPE_NONE};
    for (uint32_t i = 0; i < count; i++)
        rank_pair(bpe, symbols, &h, i);
    while (h.count > 0) {
        uint64_t entry = heap_pop(&h);
        uint32_t i = (uint32_t)entry, rank = (uint32_t)(entry >> 32);
        symbol *left = &symbols[i];
        if (left->pair_rank != rank)
            continue;
        symbol *right = &symbols[left->next];
        right->pair_rank = WEFT_BPE_NONE;
        left->id = bpe->merged[rank];
        left->next = right->next;
        if (left->next != WEFT_BPE_NONE)
            symbols[left->next].previous = i;
        rank_pair(bpe, symbols, &h, i);
        if (left->previous != WEFT_BPE_NONE)
            rank_pair(bpe, symbols, &h, left->previous);
    }
    for (uint32_t i = 0; i != WEFT_BPE_NONE; i = symbols[i].next)
        WEFT_TRY(weft_tokens_add(out, (int32_t)symbols[i].id));
    return WEFT_OK;
}

static weft_status remember(weft_bpe *bpe, uint64_t hash, const char *text, size_t bytes,
                            const int32_t *ids, size_t count)
{
    if (bpe->num_cached == MAX_CACHED) {
        weft_arena_reset(&bpe->cache_arena);
        memset(bpe->cache, 0, CACHE_SLOTS * sizeof(*bpe->cache));
        bpe->num_cached = 0;
    }
    void *memory;
    WEFT_TRY(weft_arena_alloc(&bpe->cache_arena,
                              sizeof(weft_bpe_word) + count * sizeof(*ids) + bytes, &memory));
    weft_bpe_word *word = memory;
    word->hash = hash;
    word->bytes = (uint32_t)bytes;
    word->num_ids = (uint32_t)count;
    memcpy(word->ids, ids, count * sizeof(*ids));
    memcpy(word->ids + count, text, bytes);
    size_t slot = hash & (CACHE_SLOTS - 1);
    while (bpe->cache[slot])
        slot = (slot + 1) & (CACHE_SLOTS - 1);
    bpe->cache[slot] = word;
    bpe->num_cached++;
    return WEFT_OK;
}

static weft_status encode_word(weft_bpe *bpe, const char *text, size_t bytes, weft_tokens *out)
{
    if (bytes > MAX_CACHED_BYTES)
        return join_word(bpe, text, bytes, out);
    uint64_t hash = XXH64(text, bytes, 0);
    for (size_t slot = hash & (CACHE_SLOTS - 1); bpe->cache[slot];
         slot = (slot + 1) & (CACHE_SLOTS - 1)) {
        const weft_bpe_word *word = bpe->cache[slot];
        if (word->hash != hash || word->bytes != bytes ||
            memcmp(word->ids + word->num_ids, text, bytes) != 0)
            continue;
        WEFT_TRY(weft_tokens_reserve(out, word->num_ids));
        memcpy(out->ids + out->count, word->ids, word->num_ids * sizeof(*word->ids));
        out->count += word->num_ids;
        return WEFT_OK;
    }
    size_t first = out->count;
    WEFT_TRY(join_word(bpe, text, bytes, out));
    WEFT_TRY(remember(bpe, hash, text, bytes, out->ids + first, out->count - first));
    return WEFT_OK;
}

/* Splits valid UTF-8 into words; every character belongs to one. */
static weft_status encode_utf8(weft_bpe *bpe, const char *text, size_t bytes, weft_tokens *out)
{
    const PCRE2_SIZE *range = pcre2_get_ovector_pointer(bpe->match);
    for (size_t at = 0; at < bytes; at = range[1]) {
        int found = pcre2_match(bpe->pattern, (PCRE2_SPTR)text, bytes, at, PCRE2_NO_UTF_CHECK,
                                bpe->match, NULL);
        if (found < 1 || range[1] <= at)
            return WEFT_ERROR(WEFT_INTERNAL, "PCRE2 cannot split the text at byte %zu: error %d",
                              at, found);
        WEFT_TRY(encode_word(bpe, text + at, range[1] - at, out));
    }
    return WEFT_OK;
}

/* Bytes of the UTF-8 character at `s` (RFC 3629: shortest form, no surrogates), or 0. */
static size_t utf8_bytes(const unsigned char *s, size_t left)
{
    unsigned char c = s[0], low = 0x80, high = 0xbf; /* of the second byte */
    size_t bytes = c < 0x80 ? 1 : c < 0xc2 ? 0 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf5 ? 4 : 0;
    if (bytes < 2)
        return bytes;
    if (c == 0xe0)
        low = 0xa0;
    else if (c == 0xed)
        high = 0x9f;
    else if (c == 0xf0)
        low = 0x90;
    else if (c == 0xf4)
        high = 0x8f;
    if (bytes > left || s[1] < low || s[1] > high)
        return 0;
    for (size_t i = 2; i < bytes; i++) {
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    }
    return bytes;
}

weft_status weft_bpe_encode(weft_bpe *bpe, const char *text, size_t bytes, weft_tokens *out)
{
    const unsigned char *s = (const unsigned char *)text;
    for (size_t at = 0; at < bytes;) {
        size_t first = at, step;
        while (at < bytes && (step = utf8_bytes(s + at, bytes - at)) > 0)
            at += step;
        WEFT_TRY(encode_utf8(bpe, text + first, at - first, out));
        for (first = at; at < bytes && utf8_bytes(s + at, bytes - at) == 0; at++)
            ;
        if (at > first)
            WEFT_TRY(encode_word(bpe, text + first, at - first, out));
    }
    return WEFT_OK;
}
