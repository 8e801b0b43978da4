#include "launcher/text/bpe.h"

#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "core/grow.h"

weft_status weft_tokens_reserve(weft_tokens *tokens, size_t more)
{
    return WEFT_GROW(tokens->ids, tokens->capacity, tokens->count + more, "tokens");
}

weft_status weft_tokens_add(weft_tokens *tokens, int32_t id)
{
    WEFT_TRY(weft_tokens_reserve(tokens, 1));
    tokens->ids[tokens->count++] = id;
    return WEFT_OK;
}

void weft_tokens_release(weft_tokens *tokens)
{
    free(tokens->ids);
    *tokens = (weft_tokens){0};
}

/* --- merges -------------------------------------------------------------------------------- */

/* Open addressing; rank WEFT_NO_ID marks a free slot. */
typedef struct merge_slot {
    uint64_t pair; /* left id << 32 | right id */
    uint32_t rank;
} merge_slot;

struct weft_bpe {
    weft_bpe_tables tables;
    weft_text_ids texts; /* empty where no text is looked up */
    merge_slot *slots;   /* num_slots, a power of two */
    size_t num_slots;
};

static uint64_t pair_of(uint32_t left, uint32_t right)
{
    return (uint64_t)left << 32 | right;
}

/* The slot of this pair, or the free one where it belongs. */
static merge_slot *find_merge(const weft_bpe *bpe, uint64_t pair)
{
    /* Fibonacci hashing: the product's high bits depend on all bits of the pair. */
    for (size_t i = (size_t)((pair * UINT64_C(0x9e3779b97f4a7c15)) >> 32);; i++) {
        merge_slot *slot = &bpe->slots[i & (bpe->num_slots - 1)];
        if (slot->rank == WEFT_NO_ID || slot->pair == pair)
            return slot;
    }
}

static weft_status fill_merges(weft_bpe *bpe, weft_arena *arena)
{
    const weft_bpe_tables *t = &bpe->tables;
    bpe->num_slots = weft_power_of_two_above(2 * t->num_merges);
    WEFT_TRY(WEFT_ARRAY(arena, bpe->num_slots, &bpe->slots));
    memset(bpe->slots, 0xff, bpe->num_slots * sizeof *bpe->slots);
    for (size_t rank = 0; rank < t->num_merges; rank++) {
        const uint64_t pair = pair_of(t->merges[rank].left, t->merges[rank].right);
        merge_slot *slot = find_merge(bpe, pair);
        if (slot->rank != WEFT_NO_ID)
            return WEFT_ERROR(WEFT_FILE, "merges %u and %zu are the same", slot->rank, rank);
        *slot = (merge_slot){pair, (uint32_t)rank};
    }
    return WEFT_OK;
}

weft_status weft_bpe_create(const weft_bpe_tables *tables, weft_arena *arena, const weft_bpe **out)
{
    weft_bpe *bpe;
    WEFT_TRY(weft_arena_alloc(arena, sizeof(weft_bpe), &bpe));
    bpe->tables = *tables;
    if (!tables->is_of_bytes || tables->whole_words_first)
        WEFT_TRY(weft_text_ids_make(tables->tokens, tables->num_tokens, arena, &bpe->texts));
    WEFT_TRY(fill_merges(bpe, arena));
    *out = bpe;
    return WEFT_OK;
}

/* --- the cache ----------------------------------------------------------------------------- */

enum {
    CACHE_SLOTS = 1 << 17, /* a power of two */
    MAX_CACHED = 1 << 16,  /* words; then the cache starts again */
    MAX_CACHED_BYTES = 64, /* longer words hardly come again */
};

/* A word seen before; its text follows its ids. */
typedef struct cached_word {
    uint64_t hash;
    uint32_t bytes, num_ids;
    int32_t ids[];
} cached_word;

struct weft_bpe_cache {
    weft_arena arena;    /* the words */
    cached_word **words; /* CACHE_SLOTS */
    size_t num_words;
    void *scratch; /* of the word being joined */
    size_t scratch_bytes;
};

weft_status weft_bpe_cache_create(weft_bpe_cache **out)
{
    weft_bpe_cache *cache = calloc(1, sizeof *cache);
    if (cache)
        cache->words = calloc(CACHE_SLOTS, sizeof *cache->words);
    if (!cache || !cache->words) {
        weft_bpe_cache_destroy(cache);
        return WEFT_ERROR(WEFT_MEMORY, "no memory for the tokenizer's cache");
    }
    *out = cache;
    return WEFT_OK;
}

void weft_bpe_cache_destroy(weft_bpe_cache *cache)
{
    if (!cache)
        return;
    weft_arena_release(&cache->arena);
    free(cache->words);
    free(cache->scratch);
    free(cache);
}

/* The word's place, or the free one where it belongs. */
static cached_word **find_word(const weft_bpe_cache *cache, uint64_t hash, weft_bytes word)
{
    size_t slot = hash & (CACHE_SLOTS - 1);
    for (; cache->words[slot]; slot = (slot + 1) & (CACHE_SLOTS - 1)) {
        const cached_word *w = cache->words[slot];
        if (w->hash == hash && w->bytes == word.bytes &&
            memcmp(w->ids + w->num_ids, word.text, word.bytes) == 0)
            break;
    }
    return &cache->words[slot];
}

static weft_status remember(weft_bpe_cache *cache, uint64_t hash, weft_bytes word,
                            const int32_t *ids, size_t count)
{
    if (cache->num_words == MAX_CACHED) {
        weft_arena_reset(&cache->arena);
        memset(cache->words, 0, CACHE_SLOTS * sizeof *cache->words);
        cache->num_words = 0;
    }
    cached_word *w;
    WEFT_TRY(weft_arena_alloc(&cache->arena, sizeof(cached_word) + count * sizeof *ids + word.bytes,
                              &w));
    w->hash = hash;
    w->bytes = (uint32_t)word.bytes;
    w->num_ids = (uint32_t)count;
    memcpy(w->ids, ids, count * sizeof *ids);
    memcpy(w->ids + count, word.text, word.bytes);
    *find_word(cache, hash, word) = w;
    cache->num_words++;
    return WEFT_OK;
}

/* --- one word ------------------------------------------------------------------------------ */

/* A symbol of the word being joined; symbols are numbered by their order at the start. */
typedef struct symbol {
    uint32_t id, previous, next;
    uint32_t pair_rank; /* of this symbol and the next; WEFT_NO_ID: no merge, or joined away */
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
    s->pair_rank = WEFT_NO_ID;
    if (s->next == WEFT_NO_ID)
        return;
    s->pair_rank = find_merge(bpe, pair_of(s->id, symbols[s->next].id))->rank;
    if (s->pair_rank != WEFT_NO_ID)
        heap_push(h, (uint64_t)s->pair_rank << 32 | i);
}

static weft_status reserve_scratch(weft_bpe_cache *cache, size_t bytes)
{
    if (bytes <= cache->scratch_bytes)
        return WEFT_OK;
    free(cache->scratch);
    cache->scratch_bytes = 0;
    cache->scratch = malloc(bytes);
    if (!cache->scratch)
        return WEFT_ERROR(WEFT_MEMORY, "no memory to encode a word of %zu bytes", bytes / 40);
    cache->scratch_bytes = bytes;
    return WEFT_OK;
}

/* The unknown token stands for `character`, unless its neighbour before does already. */
static uint32_t add_unknown(const weft_bpe_tables *t, symbol *symbols, uint32_t count)
{
    const bool is_fused = t->fuse_unknown && count > 0 && symbols[count - 1].id == t->unknown;
    if (!is_fused)
        symbols[count++].id = t->unknown;
    return count;
}

/* Bytes as their tokens, all of them or none. */
static uint32_t add_bytes(const weft_bpe_tables *t, weft_bytes character, symbol *symbols,
                          uint32_t count)
{
    for (size_t i = 0; i < character.bytes; i++)
        if (t->byte_ids[(unsigned char)character.text[i]] == WEFT_NO_ID)
            return add_unknown(t, symbols, count);
    for (size_t i = 0; i < character.bytes; i++)
        symbols[count++].id = t->byte_ids[(unsigned char)character.text[i]];
    return count;
}

/* Returns how many symbols the word starts as. */
static uint32_t first_symbols(const weft_bpe *bpe, weft_bytes word, symbol *symbols)
{
    const weft_bpe_tables *t = &bpe->tables;
    uint32_t count = 0;
    size_t step = 1;
    for (size_t at = 0; at < word.bytes; at += step) {
        uint32_t id = WEFT_NO_ID;
        if (!t->is_of_bytes) {
            step = weft_utf8_bytes(word.text + at, word.bytes - at);
            if (step > 0)
                id = weft_text_ids_find(&bpe->texts, word.text + at, step);
            else
                step = 1;
        }
        if (id != WEFT_NO_ID)
            symbols[count++].id = id;
        else
            count = add_bytes(t, (weft_bytes){word.text + at, step}, symbols, count);
    }
    for (uint32_t i = 0; i < count; i++) {
        symbols[i].previous = i ? i - 1 : WEFT_NO_ID;
        symbols[i].next = i + 1 < count ? i + 1 : WEFT_NO_ID;
    }
    return count;
}

static weft_status join_word(const weft_bpe *bpe, weft_bpe_cache *cache, weft_bytes word,
                             weft_tokens *out)
{
    if (word.bytes >= WEFT_NO_ID)
        return WEFT_ERROR(WEFT_CONFIG, "a word of %zu bytes is too long to encode", word.bytes);
    /* Each pair is pushed once at the start, and each join pushes two at most. */
    WEFT_TRY(reserve_scratch(cache, word.bytes * (sizeof(symbol) + 3 * sizeof(uint64_t))));
    heap h = {.entries = cache->scratch};
    symbol *symbols = (symbol *)(void *)(h.entries + 3 * word.bytes);
    const uint32_t count = first_symbols(bpe, word, symbols);
    for (uint32_t i = 0; i < count; i++)
        rank_pair(bpe, symbols, &h, i);
    while (h.count > 0) {
        uint64_t entry = heap_pop(&h);
        uint32_t i = (uint32_t)entry, rank = (uint32_t)(entry >> 32);
        symbol *left = &symbols[i];
        if (left->pair_rank != rank)
            continue;
        symbol *right = &symbols[left->next];
        right->pair_rank = WEFT_NO_ID;
        left->id = bpe->tables.merges[rank].joined;
        left->next = right->next;
        if (left->next != WEFT_NO_ID)
            symbols[left->next].previous = i;
        rank_pair(bpe, symbols, &h, i);
        if (left->previous != WEFT_NO_ID)
            rank_pair(bpe, symbols, &h, left->previous);
    }
    for (uint32_t i = count ? 0 : WEFT_NO_ID; i != WEFT_NO_ID; i = symbols[i].next)
        WEFT_TRY(weft_tokens_add(out, (int32_t)symbols[i].id));
    return WEFT_OK;
}

static weft_status encode_new_word(const weft_bpe *bpe, weft_bpe_cache *cache, weft_bytes word,
                                   weft_tokens *out)
{
    if (bpe->tables.whole_words_first) {
        const uint32_t id = weft_text_ids_find(&bpe->texts, word.text, word.bytes);
        if (id != WEFT_NO_ID)
            return weft_tokens_add(out, (int32_t)id);
    }
    return join_word(bpe, cache, word, out);
}

weft_status weft_bpe_encode(const weft_bpe *bpe, weft_bpe_cache *cache, weft_bytes word,
                            weft_tokens *out)
{
    if (word.bytes > MAX_CACHED_BYTES)
        return encode_new_word(bpe, cache, word, out);
    const uint64_t hash = XXH64(word.text, word.bytes, 0);
    const cached_word *known = *find_word(cache, hash, word);
    if (known) {
        WEFT_TRY(weft_tokens_reserve(out, known->num_ids));
        memcpy(out->ids + out->count, known->ids, known->num_ids * sizeof *known->ids);
        out->count += known->num_ids;
        return WEFT_OK;
    }
    const size_t first = out->count;
    WEFT_TRY(encode_new_word(bpe, cache, word, out));
    return remember(cache, hash, word, out->ids + first, out->count - first);
}
