#include "launcher/text/bpe.h"

#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "core/arena.h"
#include "core/json.h"

weft_status weft_tokens_reserve(weft_tokens *tokens, size_t more)
{
    if (more <= tokens->capacity - tokens->count)
        return WEFT_OK;
    size_t capacity = tokens->capacity ? 2 * tokens->capacity : 1024;
    if (capacity < tokens->count + more)
        capacity = tokens->count + more;
    int32_t *larger = realloc(tokens->ids, capacity * sizeof(*larger));
    if (!larger)
        return WEFT_ERROR(WEFT_MEMORY, "no memory for %zu tokens", capacity);
    tokens->ids = larger;
    tokens->capacity = capacity;
    return WEFT_OK;
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

/* No merge, no token, no neighbour. */
#define WEFT_BPE_NONE UINT32_MAX

typedef struct bpe_piece_text {
    const char *text;
    uint32_t bytes;
} bpe_piece_text;

/* Open addressing; merged WEFT_BPE_NONE marks a free slot. */
typedef struct bpe_merge {
    uint64_t pair; /* left id << 32 | right id */
    uint32_t rank, merged;
} bpe_merge;

/* A word seen before; its text follows its ids. */
typedef struct bpe_word {
    uint64_t hash;
    uint32_t bytes, num_ids;
    int32_t ids[];
} bpe_word;

struct weft_bpe {
    weft_arena arena;
    bpe_piece_text *pieces; /* by id */
    uint32_t vocab_size, eod;
    uint32_t byte_ids[256]; /* the token of each byte */
    bpe_merge *merges;      /* num_slots, a power of two */
    uint32_t *merged;       /* by rank: the joined token */
    size_t num_slots;
    pcre2_code *pattern;
};

struct weft_bpe_cache {
    pcre2_match_data *match;
    weft_arena arena; /* the words */
    bpe_word **words; /* CACHE_SLOTS */
    size_t num_words;
    void *scratch; /* of the word being joined */
    size_t scratch_bytes;
};

/* GPT-2's files write each byte as a printable character: those that print stand for themselves,
 * the others are the characters from 256 on, in order. */
enum { NUM_CHARACTERS = 256 + 68 };

typedef struct byte_map {
    int byte_of[NUM_CHARACTERS]; /* -1: stands for no byte */
} byte_map;

static byte_map make_byte_map(void)
{
    byte_map map;
    int next = 256;
    for (int c = 0; c < NUM_CHARACTERS; c++)
        map.byte_of[c] = -1;
    for (int b = 0; b < 256; b++) {
        bool prints = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        map.byte_of[prints ? b : next++] = b;
    }
    return map;
}

/* Turns `bytes` bytes of such characters, UTF-8, into the bytes they stand for. Returns how many,
 * or WEFT_BPE_NONE where one stands for none. `out` has room for `bytes`. */
static uint32_t unmap(const byte_map *map, const char *text, size_t bytes, char *out)
{
    uint32_t used = 0;
    for (size_t i = 0; i < bytes;) {
        unsigned char c = (unsigned char)text[i++];
        unsigned int character = c;
        if (c >= 0x80) { /* all of them take two bytes */
            if (c < 0xc2 || c > 0xdf || i == bytes)
                return WEFT_BPE_NONE;
            character = (c & 0x1fu) << 6 | ((unsigned char)text[i++] & 0x3fu);
        }
        if (character >= NUM_CHARACTERS || map->byte_of[character] < 0)
            return WEFT_BPE_NONE;
        out[used++] = (char)map->byte_of[character];
    }
    return used;
}

/* Finds tokens by their bytes while the merges are read. Slots hold ids; WEFT_BPE_NONE is free. */
typedef struct lookup {
    uint32_t *slots;
    size_t num_slots;
} lookup;

static size_t power_of_two_above(size_t n)
{
    size_t power = 16;
    while (power < n)
        power *= 2;
    return power;
}

/* The slot that holds this text's token, or the free one where it belongs. */
static uint32_t *find_slot(const weft_bpe *bpe, const lookup *l, const char *text, size_t bytes)
{
    for (size_t i = XXH64(text, bytes, 0);; i++) {
        uint32_t *slot = &l->slots[i & (l->num_slots - 1)];
        if (*slot == WEFT_BPE_NONE)
            return slot;
        const bpe_piece_text *piece = &bpe->pieces[*slot];
        if (piece->bytes == bytes && memcmp(piece->text, text, bytes) == 0)
            return slot;
    }
}

static weft_status bad_entry(const char *name, const char *text, weft_json_span at,
                             const char *what)
{
    int line, column;
    weft_json_position(text, at.start, &line, &column);
    return WEFT_ERROR(WEFT_FILE, "%s:%d:%d: %.*s: %s", name, line, column,
                      (int)(at.bytes < 60 ? at.bytes : 60), at.start, what);
}

static weft_status load_token(weft_bpe *bpe, const byte_map *map, const char *name,
                              const char *text, weft_json_span key, weft_json_span value)
{
    const char *mapped;
    weft_status status = weft_json_string(key, &bpe->arena, &mapped);
    if (status == WEFT_CONFIG)
        return bad_entry(name, text, key, "not a string of GPT-2's characters");
    WEFT_TRY(status);
    char *end;
    unsigned long long id = strtoull(value.start, &end, 10);
    if (weft_json_kind_of(value) != WEFT_JSON_NUMBER || end != value.start + value.bytes ||
        id >= bpe->vocab_size)
        return bad_entry(name, text, key, "its id is not one of 0 to the number of tokens - 1");
    if (bpe->pieces[id].text)
        return bad_entry(name, text, key, "another token has the same id");
    void *memory;
    size_t bytes = strlen(mapped);
    WEFT_TRY(weft_arena_alloc(&bpe->arena, bytes + 1, &memory));
    uint32_t used = 0;
    if (strcmp(mapped, "<|endoftext|>") == 0)
        bpe->eod = (uint32_t)id; /* no text: it is never part of a word */
    else
        used = unmap(map, mapped, bytes, memory);
    if (used == WEFT_BPE_NONE)
        return bad_entry(name, text, key, "not a string of GPT-2's characters");
    bpe->pieces[id] = (bpe_piece_text){memory, used};
    if (used == 1)
        bpe->byte_ids[(unsigned char)bpe->pieces[id].text[0]] = (uint32_t)id;
    return WEFT_OK;
}

static weft_status load_vocab(weft_bpe *bpe, const byte_map *map, const char *name,
                              const char *text)
{
    weft_json_span root, key, value;
    weft_json_fault fault;
    if (!weft_json_check(text, &root, &fault)) {
        int line, column;
        weft_json_position(text, fault.at, &line, &column);
        return WEFT_ERROR(WEFT_FILE, "%s:%d:%d: not valid JSON: %s", name, line, column,
                          fault.reason);
    }
    if (weft_json_kind_of(root) != WEFT_JSON_OBJECT)
        return WEFT_ERROR(WEFT_FILE, "%s: not a vocabulary: expected an object of tokens and ids",
                          name);
    size_t count = 0;
    for (const char *cursor = NULL; weft_json_next(root, &cursor, &key, &value);)
        count++;
    if (count > INT32_MAX)
        return WEFT_ERROR(WEFT_FILE, "%s: %zu tokens are too many", name, count);
    bpe->vocab_size = (uint32_t)count;
    bpe->eod = WEFT_BPE_NONE;
    memset(bpe->byte_ids, 0xff, sizeof(bpe->byte_ids));
    void *memory;
    WEFT_TRY(weft_arena_alloc_array(&bpe->arena, count, sizeof(*bpe->pieces), &memory));
    bpe->pieces = memory;
    for (const char *cursor = NULL; weft_json_next(root, &cursor, &key, &value);)
        WEFT_TRY(load_token(bpe, map, name, text, key, value));
    if (bpe->eod == WEFT_BPE_NONE)
        return WEFT_ERROR(WEFT_FILE, "%s: no token <|endoftext|>", name);
    for (int b = 0; b < 256; b++) {
        if (bpe->byte_ids[b] == WEFT_BPE_NONE)
            return WEFT_ERROR(WEFT_FILE, "%s: no token for byte %d", name, b);
    }
    return WEFT_OK;
}

static weft_status make_lookup(weft_bpe *bpe, const char *name, weft_arena *arena, lookup *out)
{
    void *memory;
    out->num_slots = power_of_two_above(2 * (size_t)bpe->vocab_size);
    WEFT_TRY(weft_arena_alloc_array(arena, out->num_slots, sizeof(uint32_t), &memory));
    out->slots = memory;
    memset(out->slots, 0xff, out->num_slots * sizeof(uint32_t));
    for (uint32_t id = 0; id < bpe->vocab_size; id++) {
        if (id == bpe->eod)
            continue;
        uint32_t *slot = find_slot(bpe, out, bpe->pieces[id].text, bpe->pieces[id].bytes);
        if (*slot != WEFT_BPE_NONE)
            return WEFT_ERROR(WEFT_FILE, "%s: tokens %u and %u are the same text", name, *slot, id);
        *slot = id;
    }
    return WEFT_OK;
}

/* The slot of this pair, or the free one where it belongs. */
static bpe_merge *merge_slot(const weft_bpe *bpe, uint64_t pair)
{
    /* Fibonacci hashing: the product's high bits depend on all bits of the pair. */
    for (size_t i = (size_t)((pair * UINT64_C(0x9e3779b97f4a7c15)) >> 32);; i++) {
        bpe_merge *slot = &bpe->merges[i & (bpe->num_slots - 1)];
        if (slot->merged == WEFT_BPE_NONE || slot->pair == pair)
            return slot;
    }
}

/* The merge of two neighbours, or NULL. */
static const bpe_merge *bpe_find_merge(const weft_bpe *bpe, uint32_t left, uint32_t right)
{
    const bpe_merge *slot = merge_slot(bpe, (uint64_t)left << 32 | right);
    return slot->merged == WEFT_BPE_NONE ? NULL : slot;
}

/* One line, "LEFT RIGHT". `joined` has room for the line. */
static weft_status load_merge(weft_bpe *bpe, const byte_map *map, const lookup *tokens,
                              const char *line, size_t bytes, uint32_t rank, char *joined)
{
    const char *space = memchr(line, ' ', bytes);
    size_t left_bytes = space ? (size_t)(space - line) : bytes;
    uint32_t left_used = unmap(map, line, left_bytes, joined), right_used = WEFT_BPE_NONE;
    if (space && left_used != WEFT_BPE_NONE)
        right_used = unmap(map, space + 1, bytes - left_bytes - 1, joined + left_used);
    if (right_used == WEFT_BPE_NONE || left_used == 0 || right_used == 0)
        return WEFT_ERROR(WEFT_FILE, "expected two symbols of GPT-2's characters");
    uint32_t left = *find_slot(bpe, tokens, joined, left_used);
    uint32_t right = *find_slot(bpe, tokens, joined + left_used, right_used);
    uint32_t merged = *find_slot(bpe, tokens, joined, left_used + right_used);
    if (left == WEFT_BPE_NONE || right == WEFT_BPE_NONE || merged == WEFT_BPE_NONE)
        return WEFT_ERROR(WEFT_FILE, "a part or the whole is not in the vocabulary");
    bpe_merge *slot = merge_slot(bpe, (uint64_t)left << 32 | right);
    if (slot->merged != WEFT_BPE_NONE)
        return WEFT_ERROR(WEFT_FILE, "the same merge stands twice");
    *slot = (bpe_merge){(uint64_t)left << 32 | right, rank, merged};
    bpe->merged[rank] = merged;
    return WEFT_OK;
}

static weft_status load_merges(weft_bpe *bpe, const byte_map *map, const lookup *tokens,
                               const char *name, const char *text)
{
    size_t num_lines = 1, longest = 0;
    for (const char *at = text; *at; at += strcspn(at, "\n"), at += *at == '\n') {
        size_t bytes = strcspn(at, "\n");
        longest = bytes > longest ? bytes : longest;
        num_lines++;
    }
    if (num_lines > INT32_MAX)
        return WEFT_ERROR(WEFT_FILE, "%s: %zu merges are too many", name, num_lines);
    void *slots, *merged, *joined;
    bpe->num_slots = power_of_two_above(2 * num_lines);
    WEFT_TRY(weft_arena_alloc_array(&bpe->arena, bpe->num_slots, sizeof(*bpe->merges), &slots));
    WEFT_TRY(weft_arena_alloc_array(&bpe->arena, num_lines, sizeof(*bpe->merged), &merged));
    WEFT_TRY(weft_arena_alloc(&bpe->arena, longest + 1, &joined));
    bpe->merges = slots;
    bpe->merged = merged;
    memset(bpe->merges, 0xff, bpe->num_slots * sizeof(*bpe->merges));
    uint32_t rank = 0;
    size_t line_number = 1;
    for (const char *at = text; *at; line_number++) {
        size_t bytes = strcspn(at, "\n");
        bool is_version = line_number == 1 && strncmp(at, "#version", 8) == 0;
        if (bytes > 0 && !is_version) {
            weft_status status = load_merge(bpe, map, tokens, at, bytes, rank, joined);
            if (status != WEFT_OK)
                return weft_error_context(status, "%s:%zu: %.*s", name, line_number,
                                          (int)(bytes < 60 ? bytes : 60), at);
            rank++;
        }
        at += bytes;
        at += *at == '\n';
    }
    return WEFT_OK;
}

/* Fills everything up to and including the merges. */
static weft_status bpe_load(weft_bpe *bpe, const char *vocab_name, const char *vocab_text,
                            const char *merge_name, const char *merge_text)
{
    byte_map map = make_byte_map();
    lookup tokens;
    WEFT_TRY(load_vocab(bpe, &map, vocab_name, vocab_text));
    weft_arena arena = {0};
    weft_status status = make_lookup(bpe, vocab_name, &arena, &tokens);
    if (status == WEFT_OK)
        status = load_merges(bpe, &map, &tokens, merge_name, merge_text);
    weft_arena_release(&arena);
    return status;
}

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
    WEFT_TRY(bpe_load(bpe, vocab_name, vocab_text, merge_name, merge_text));
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
    pcre2_code_free(bpe->pattern);
    weft_arena_release(&bpe->arena);
    free(bpe);
}

weft_status weft_bpe_cache_create(weft_bpe_cache **out)
{
    weft_bpe_cache *cache = calloc(1, sizeof(*cache));
    if (cache) {
        cache->match = pcre2_match_data_create(1, NULL);
        cache->words = calloc(CACHE_SLOTS, sizeof(*cache->words));
    }
    if (!cache || !cache->match || !cache->words) {
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
    pcre2_match_data_free(cache->match);
    weft_arena_release(&cache->arena);
    free(cache->words);
    free(cache->scratch);
    free(cache);
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
    const bpe_merge *merge = bpe_find_merge(bpe, s->id, symbols[s->next].id);
    if (!merge)
        return;
    s->pair_rank = merge->rank;
    heap_push(h, (uint64_t)merge->rank << 32 | i);
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

static weft_status join_word(const weft_bpe *bpe, weft_bpe_cache *cache, const char *text,
                             size_t bytes, weft_tokens *out)
{
    if (bytes >= WEFT_BPE_NONE)
        return WEFT_ERROR(WEFT_CONFIG, "a word of %zu bytes is too long to encode", bytes);
    /* Each pair is pushed once at the start, and each join pushes two at most. */
    WEFT_TRY(reserve_scratch(cache, bytes * (sizeof(symbol) + 3 * sizeof(uint64_t))));
    heap h = {.entries = cache->scratch};
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

static weft_status remember(weft_bpe_cache *cache, uint64_t hash, const char *text, size_t bytes,
                            const int32_t *ids, size_t count)
{
    if (cache->num_words == MAX_CACHED) {
        weft_arena_reset(&cache->arena);
        memset(cache->words, 0, CACHE_SLOTS * sizeof(*cache->words));
        cache->num_words = 0;
    }
    void *memory;
    WEFT_TRY(
        weft_arena_alloc(&cache->arena, sizeof(bpe_word) + count * sizeof(*ids) + bytes, &memory));
    bpe_word *word = memory;
    word->hash = hash;
    word->bytes = (uint32_t)bytes;
    word->num_ids = (uint32_t)count;
    memcpy(word->ids, ids, count * sizeof(*ids));
    memcpy(word->ids + count, text, bytes);
    size_t slot = hash & (CACHE_SLOTS - 1);
    while (cache->words[slot])
        slot = (slot + 1) & (CACHE_SLOTS - 1);
    cache->words[slot] = word;
    cache->num_words++;
    return WEFT_OK;
}

static weft_status encode_word(const weft_bpe *bpe, weft_bpe_cache *cache, const char *text,
                               size_t bytes, weft_tokens *out)
{
    if (bytes > MAX_CACHED_BYTES)
        return join_word(bpe, cache, text, bytes, out);
    uint64_t hash = XXH64(text, bytes, 0);
    for (size_t slot = hash & (CACHE_SLOTS - 1); cache->words[slot];
         slot = (slot + 1) & (CACHE_SLOTS - 1)) {
        const bpe_word *word = cache->words[slot];
        if (word->hash != hash || word->bytes != bytes ||
            memcmp(word->ids + word->num_ids, text, bytes) != 0)
            continue;
        WEFT_TRY(weft_tokens_reserve(out, word->num_ids));
        memcpy(out->ids + out->count, word->ids, word->num_ids * sizeof(*word->ids));
        out->count += word->num_ids;
        return WEFT_OK;
    }
    size_t first = out->count;
    WEFT_TRY(join_word(bpe, cache, text, bytes, out));
    WEFT_TRY(remember(cache, hash, text, bytes, out->ids + first, out->count - first));
    return WEFT_OK;
}

/* Splits valid UTF-8 into words; every character belongs to one. */
static weft_status encode_utf8(const weft_bpe *bpe, weft_bpe_cache *cache, const char *text,
                               size_t bytes, weft_tokens *out)
{
    const PCRE2_SIZE *range = pcre2_get_ovector_pointer(cache->match);
    for (size_t at = 0; at < bytes; at = range[1]) {
        int found = pcre2_match(bpe->pattern, (PCRE2_SPTR)text, bytes, at, PCRE2_NO_UTF_CHECK,
                                cache->match, NULL);
        if (found < 1 || range[1] <= at)
            return WEFT_ERROR(WEFT_INTERNAL, "PCRE2 cannot split the text at byte %zu: error %d",
                              at, found);
        WEFT_TRY(encode_word(bpe, cache, text + at, range[1] - at, out));
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

weft_status weft_bpe_encode(const weft_bpe *bpe, weft_bpe_cache *cache, const char *text,
                            size_t bytes, weft_tokens *out)
{
    const unsigned char *s = (const unsigned char *)text;
    for (size_t at = 0; at < bytes;) {
        size_t first = at, step;
        while (at < bytes && (step = utf8_bytes(s + at, bytes - at)) > 0)
            at += step;
        WEFT_TRY(encode_utf8(bpe, cache, text + first, at - first, out));
        for (first = at; at < bytes && utf8_bytes(s + at, bytes - at) == 0; at++)
            ;
        if (at > first)
            WEFT_TRY(encode_word(bpe, cache, text + first, at - first, out));
    }
    return WEFT_OK;
}
