#include "launcher/text/gpt2.h"

#include <stdlib.h>
#include <string.h>

#include "core/json.h"
#include "launcher/text/rules.h"

const char weft_gpt2_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

weft_byte_map weft_byte_map_make(void)
{
    weft_byte_map map;
    int next = 256;
    for (int c = 0; c < WEFT_GPT2_CHARACTERS; c++)
        map.byte_of[c] = -1;
    for (int b = 0; b < 256; b++) {
        bool prints = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        map.byte_of[prints ? b : next++] = b;
    }
    return map;
}

weft_status weft_byte_map_read(const weft_byte_map *map, weft_bytes text, weft_arena *arena,
                               weft_bytes *out)
{
    size_t used = 0, step;
    *out = (weft_bytes){0};
    char *bytes;
    WEFT_TRY(weft_arena_alloc(arena, text.bytes + 1, &bytes));
    for (size_t i = 0; i < text.bytes; i += step) {
        step = weft_utf8_bytes(text.text + i, text.bytes - i);
        const uint32_t character =
            step ? weft_utf8_character(text.text + i, &step) : WEFT_GPT2_CHARACTERS;
        if (character >= WEFT_GPT2_CHARACTERS || map->byte_of[character] < 0)
            return WEFT_OK;
        bytes[used++] = (char)map->byte_of[character];
    }
    *out = (weft_bytes){bytes, used};
    return WEFT_OK;
}

/* What reading the two files needs. */
typedef struct reader {
    weft_byte_map map;
    weft_arena *arena;
    weft_rules *rules;
    uint32_t eod;
} reader;

static weft_status bad_entry(const char *name, const char *text, weft_json_span at,
                             const char *what)
{
    int line, column;
    weft_json_position(text, at.start, &line, &column);
    return WEFT_ERROR(WEFT_FILE, "%s:%d:%d: %.*s: %s", name, line, column,
                      (int)(at.bytes < 60 ? at.bytes : 60), at.start, what);
}

static weft_status load_token(reader *r, const char *name, const char *text, weft_json_span key,
                              weft_json_span value)
{
    const char *mapped;
    weft_bpe_tables *t = &r->rules->tables;
    weft_status status = weft_json_string(key, r->arena, &mapped);
    if (status == WEFT_CONFIG)
        return bad_entry(name, text, key, "not a string of GPT-2's characters");
    WEFT_TRY(status);
    char *end;
    unsigned long long id = strtoull(value.start, &end, 10);
    if (weft_json_kind_of(value) != WEFT_JSON_NUMBER || end != value.start + value.bytes ||
        id >= t->num_tokens)
        return bad_entry(name, text, key, "its id is not one of 0 to the number of tokens - 1");
    if (t->tokens[id].text || id == r->eod)
        return bad_entry(name, text, key, "another token has the same id");
    if (strcmp(mapped, "<|endoftext|>") == 0) {
        r->eod = (uint32_t)id; /* no text: it is never part of a word */
        return WEFT_OK;
    }
    WEFT_TRY(weft_byte_map_read(&r->map, weft_bytes_of(mapped), r->arena, &t->tokens[id]));
    if (!t->tokens[id].text)
        return bad_entry(name, text, key, "not a string of GPT-2's characters");
    if (t->tokens[id].bytes == 1)
        t->byte_ids[(unsigned char)t->tokens[id].text[0]] = (uint32_t)id;
    return WEFT_OK;
}

static weft_status load_vocab(reader *r, const char *name, const char *text)
{
    weft_bpe_tables *t = &r->rules->tables;
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
    t->num_tokens = (uint32_t)count;
    WEFT_TRY(WEFT_ARRAY(r->arena, count, &t->tokens));
    for (const char *cursor = NULL; weft_json_next(root, &cursor, &key, &value);)
        WEFT_TRY(load_token(r, name, text, key, value));
    if (r->eod == WEFT_NO_ID)
        return WEFT_ERROR(WEFT_FILE, "%s: no token <|endoftext|>", name);
    for (int b = 0; b < 256; b++) {
        if (t->byte_ids[b] == WEFT_NO_ID)
            return WEFT_ERROR(WEFT_FILE, "%s: no token for byte %d", name, b);
    }
    return WEFT_OK;
}

/* One line, "LEFT RIGHT". */
static weft_status load_merge(const reader *r, const weft_text_ids *ids, weft_bytes line,
                              weft_bpe_merge *out)
{
    const char *space = memchr(line.text, ' ', line.bytes);
    const size_t bytes = space ? (size_t)(space - line.text) : line.bytes;
    weft_bytes left, right = {0};
    WEFT_TRY(weft_byte_map_read(&r->map, (weft_bytes){line.text, bytes}, r->arena, &left));
    if (space)
        WEFT_TRY(weft_byte_map_read(&r->map, (weft_bytes){space + 1, line.bytes - bytes - 1},
                                    r->arena, &right));
    if (left.bytes == 0 || right.bytes == 0)
        return WEFT_ERROR(WEFT_FILE, "expected two symbols of GPT-2's characters");
    void *joined;
    WEFT_TRY(weft_arena_alloc(r->arena, left.bytes + right.bytes, &joined));
    memcpy(joined, left.text, left.bytes);
    memcpy((char *)joined + left.bytes, right.text, right.bytes);
    *out = (weft_bpe_merge){weft_text_ids_find(ids, left.text, left.bytes),
                            weft_text_ids_find(ids, right.text, right.bytes),
                            weft_text_ids_find(ids, joined, left.bytes + right.bytes)};
    if (out->left == WEFT_NO_ID || out->right == WEFT_NO_ID || out->joined == WEFT_NO_ID)
        return WEFT_ERROR(WEFT_FILE, "a part or the whole is not in the vocabulary");
    return WEFT_OK;
}

/* The merges alone are kept; texts in between are in r->arena. */
static weft_status load_merges(reader *r, const weft_text_ids *ids, const char *name,
                               const char *text, weft_arena *keep)
{
    weft_bpe_tables *t = &r->rules->tables;
    size_t num_lines = 1, number = 1;
    for (const char *at = text; (at = strchr(at, '\n')); at++)
        num_lines++;
    if (num_lines > INT32_MAX)
        return WEFT_ERROR(WEFT_FILE, "%s: %zu merges are too many", name, num_lines);
    WEFT_TRY(WEFT_ARRAY(keep, num_lines, &t->merges));
    for (const char *at = text; *at; number++) {
        const size_t bytes = strcspn(at, "\n");
        const bool is_version = number == 1 && strncmp(at, "#version", 8) == 0;
        if (bytes > 0 && !is_version) {
            weft_status status =
                load_merge(r, ids, (weft_bytes){at, bytes}, &t->merges[t->num_merges]);
            if (status != WEFT_OK)
                return weft_error_context(status, "%s:%zu: %.*s", name, number,
                                          (int)(bytes < 60 ? bytes : 60), at);
            t->num_merges++;
        }
        at += bytes + (at[bytes] == '\n');
    }
    return WEFT_OK;
}

static weft_status make_rules(weft_rules *rules, const char *merge_name, weft_arena *arena)
{
    weft_split *split = &rules->splits[0];
    rules->pieces = rules->tables.tokens;
    WEFT_TRY(weft_pattern_create(weft_gpt2_pattern, &split->pattern));
    rules->num_splits = 1;
    const weft_status status = weft_bpe_create(&rules->tables, arena, &rules->bpe);
    return status == WEFT_OK ? status : weft_error_context(status, "%s", merge_name);
}

weft_status weft_gpt2_read(const char *vocab_name, const char *vocab_text, const char *merge_name,
                           const char *merge_text, weft_arena *arena, weft_rules *out,
                           uint32_t *out_eod)
{
    weft_text_ids ids;
    weft_arena scratch = {0};
    reader r = {.map = weft_byte_map_make(), .arena = arena, .rules = out, .eod = WEFT_NO_ID};
    *out = (weft_rules){.tables = {.is_of_bytes = true, .unknown = WEFT_NO_ID}};
    memset(out->tables.byte_ids, 0xff, sizeof out->tables.byte_ids);
    WEFT_TRY(load_vocab(&r, vocab_name, vocab_text));
    weft_status status =
        weft_text_ids_make(out->tables.tokens, out->tables.num_tokens, &scratch, &ids);
    if (status != WEFT_OK)
        status = weft_error_context(status, "%s", vocab_name);
    if (status == WEFT_OK) {
        r.arena = &scratch;
        status = load_merges(&r, &ids, merge_name, merge_text, arena);
    }
    if (status == WEFT_OK)
        status = make_rules(out, merge_name, arena);
    weft_arena_release(&scratch);
    *out_eod = r.eod;
    return status;
}
