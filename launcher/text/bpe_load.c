#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "core/json.h"
#include "launcher/text/bpe_internal.h"

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
        const weft_bpe_piece_text *piece = &bpe->pieces[*slot];
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
    bpe->pieces[id] = (weft_bpe_piece_text){memory, used};
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
static weft_bpe_merge *merge_slot(const weft_bpe *bpe, uint64_t pair)
{
    /* Fibonacci hashing: the product's high bits depend on all bits of the pair. */
    for (size_t i = (size_t)((pair * UINT64_C(0x9e3779b97f4a7c15)) >> 32);; i++) {
        weft_bpe_merge *slot = &bpe->merges[i & (bpe->num_slots - 1)];
        if (slot->merged == WEFT_BPE_NONE || slot->pair == pair)
            return slot;
    }
}

const weft_bpe_merge *weft_bpe_find_merge(const weft_bpe *bpe, uint32_t left, uint32_t right)
{
    const weft_bpe_merge *slot = merge_slot(bpe, (uint64_t)left << 32 | right);
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
    weft_bpe_merge *slot = merge_slot(bpe, (uint64_t)left << 32 | right);
    if (slot->merged != WEFT_BPE_NONE)
        return WEFT_ERROR(WEFT_FILE, "the same merge stands twice");
    *slot = (weft_bpe_merge){(uint64_t)left << 32 | right, rank, merged};
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

weft_status weft_bpe_load(weft_bpe *bpe, const char *vocab_name, const char *vocab_text,
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
