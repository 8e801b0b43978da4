#include "launcher/text/tokenizer_json.h"

#include <stdio.h>
#include <string.h>

#include "launcher/text/gpt2.h"

/* --- the parts that are steps, or lists of them ---------------------------------------------- */

/* One step, of the type with this number among the part's types. */
typedef weft_status (*read_step)(void *to, const weft_json_place *step, int type);

/* A part is a step or, first of its types, a Sequence whose steps stand in `list`. */
static weft_status read_steps(const weft_json_place *part, const char *list, const char *types,
                              read_step read, void *to)
{
    weft_json_place members[2], step;
    char names[32];
    size_t count;
    int number;
    if (!weft_json_is_there(part))
        return WEFT_OK;
    const weft_json_place type = weft_json_member(part, "type");
    WEFT_TRY(weft_json_get_choice(&type, types, &number));
    if (number > 0)
        return read(to, part, number);
    snprintf(names, sizeof names, "type|%s", list);
    WEFT_TRY(weft_json_members(part, names, members));
    WEFT_TRY(weft_json_count(&members[1], &count));
    for (const char *cursor = NULL; weft_json_each(&members[1], &cursor, &step);)
        WEFT_TRY(read_steps(&step, list, types, read, to));
    return WEFT_OK;
}

/* {"String": TEXT} or {"Regex": TEXT}. */
static weft_status read_pattern(const weft_json_place *at, weft_arena *arena, weft_bytes *literal,
                                weft_pattern **pattern)
{
    weft_json_place members[2];
    WEFT_TRY(weft_json_members(at, "String|Regex", members));
    const bool is_literal = members[0].value.start;
    weft_bytes text;
    WEFT_TRY(weft_json_get_text(&members[!is_literal], arena, &text));
    if (text.bytes == 0 || (is_literal && members[1].value.start))
        return weft_json_refuse(at, "expected one pattern that is not empty");
    if (is_literal) {
        *literal = text;
        return WEFT_OK;
    }
    const weft_status status = weft_pattern_create(text.text, pattern);
    return status == WEFT_FILE ? weft_json_refuse_unknown(&members[1], "%s", weft_error_get()->text)
                               : status;
}

/* --- normalizer ---------------------------------------------------------------------------- */

/* What steps are read to. */
typedef struct steps_reader {
    weft_arena *arena;
    weft_rules *out;
    bool is_fused; /* of a decoder: what follows sees the whole text, no pieces */
} steps_reader;

static weft_status too_many(const weft_json_place *step, weft_pattern *pattern)
{
    weft_pattern_destroy(pattern);
    return weft_json_refuse_unknown(step, "more than %d steps, which is not known",
                                    WEFT_MOST_STEPS);
}

static weft_status add_change(const weft_json_place *step, weft_changes *changes,
                              const weft_change *change)
{
    if (changes->count == WEFT_MOST_STEPS)
        return too_many(step, change->pattern);
    changes->steps[changes->count++] = *change;
    return WEFT_OK;
}

static weft_status read_change(void *to, const weft_json_place *step, int type)
{
    static const weft_change_kind kinds[] = {
        [1] = WEFT_CHANGE_NFC,  [2] = WEFT_CHANGE_NFD,     [3] = WEFT_CHANGE_NFKC,
        [4] = WEFT_CHANGE_NFKD, [5] = WEFT_CHANGE_REPLACE, [6] = WEFT_CHANGE_PREPEND};
    steps_reader *r = to;
    weft_change change = {.kind = kinds[type]};
    weft_json_place members[3];
    if (change.kind == WEFT_CHANGE_REPLACE) {
        WEFT_TRY(weft_json_members(step, "type|pattern|content", members));
        WEFT_TRY(weft_json_get_text(&members[2], r->arena, &change.to));
        WEFT_TRY(read_pattern(&members[1], r->arena, &change.from, &change.pattern));
    } else if (change.kind == WEFT_CHANGE_PREPEND) {
        WEFT_TRY(weft_json_members(step, "type|prepend", members));
        WEFT_TRY(weft_json_get_text(&members[1], r->arena, &change.to));
    } else {
        WEFT_TRY(weft_json_members(step, "type", members));
    }
    return add_change(step, &r->out->changes, &change);
}

/* --- pre_tokenizer ------------------------------------------------------------------------- */

enum { SPLIT = 1, DIGITS, BYTE_LEVEL, METASPACE };

static weft_status add_split(const weft_json_place *step, weft_rules *rules,
                             const weft_split *split)
{
    if (rules->num_splits == WEFT_MOST_STEPS)
        return too_many(step, split->pattern);
    rules->splits[rules->num_splits++] = *split;
    return WEFT_OK;
}

static weft_status add_pattern(const weft_json_place *step, weft_rules *rules, const char *pattern,
                               weft_split_behavior behavior)
{
    weft_split split = {.behavior = behavior};
    WEFT_TRY(weft_pattern_create(pattern, &split.pattern));
    return add_split(step, rules, &split);
}

static weft_status read_split(steps_reader *r, const weft_json_place *step)
{
    static const weft_split_behavior behaviors[] = {
        WEFT_SPLIT_ISOLATED, WEFT_SPLIT_REMOVED, WEFT_SPLIT_CONTIGUOUS,
        WEFT_SPLIT_MERGED_WITH_PREVIOUS, WEFT_SPLIT_MERGED_WITH_NEXT};
    weft_json_place members[4];
    weft_split split = {0};
    int behavior;
    WEFT_TRY(weft_json_members(step, "type|pattern|behavior|invert", members));
    WEFT_TRY(weft_json_get_choice(
        &members[2], "Isolated|Removed|Contiguous|MergedWithPrevious|MergedWithNext", &behavior));
    split.behavior = behaviors[behavior];
    WEFT_TRY(weft_json_get_flag(&members[3], &split.invert));
    WEFT_TRY(read_pattern(&members[1], r->arena, &split.literal, &split.pattern));
    return add_split(step, r->out, &split);
}

static weft_status read_digits(steps_reader *r, const weft_json_place *step)
{
    weft_json_place members[2];
    bool individual = false;
    WEFT_TRY(weft_json_members(step, "type|individual_digits", members));
    WEFT_TRY(weft_json_get_flag(&members[1], &individual));
    return add_pattern(step, r->out, "\\p{N}",
                       individual ? WEFT_SPLIT_ISOLATED : WEFT_SPLIT_CONTIGUOUS);
}

/* A step that changes text, which here goes before all that splits. */
static weft_status add_word_change(steps_reader *r, const weft_json_place *step,
                                   const weft_change *change)
{
    if (r->out->num_splits > 0)
        return weft_json_refuse_unknown(step,
                                        "changes words behind a step that splits, which is not "
                                        "known");
    return add_change(step, &r->out->word_changes, change);
}

static weft_status read_byte_level(steps_reader *r, const weft_json_place *step)
{
    weft_json_place members[4];
    bool prefix = true, use_pattern = true, unused;
    WEFT_TRY(weft_json_members(step, "type|add_prefix_space|use_regex|trim_offsets", members));
    WEFT_TRY(weft_json_get_flag(&members[1], &prefix));
    WEFT_TRY(weft_json_get_flag(&members[2], &use_pattern));
    WEFT_TRY(weft_json_get_flag(&members[3], &unused));
    r->out->tables.is_of_bytes = true;
    const weft_change change = {
        .kind = WEFT_CHANGE_PREPEND, .to = weft_bytes_of(" "), .unless_there = true};
    if (prefix)
        WEFT_TRY(add_word_change(r, step, &change));
    return use_pattern ? add_pattern(step, r->out, weft_gpt2_pattern, WEFT_SPLIT_ISOLATED)
                       : WEFT_OK;
}

/* A Metaspace, of a pre-tokenizer or a decoder. */
typedef struct metaspace {
    weft_bytes replacement;
    int prepend; /* always, first, never */
    bool split;
} metaspace;

enum { ALWAYS, FIRST, NEVER };

static weft_status read_metaspace(const weft_json_place *step, weft_arena *arena, metaspace *out)
{
    weft_json_place members[6];
    metaspace m = {.split = true};
    bool prefix = true;
    WEFT_TRY(weft_json_members(
        step, "type|replacement|prepend_scheme|split|add_prefix_space|str_rep", members));
    WEFT_TRY(weft_json_get_text(&members[1], arena, &m.replacement));
    if (weft_json_is_there(&members[2]))
        WEFT_TRY(weft_json_get_choice(&members[2], "always|first|never", &m.prepend));
    WEFT_TRY(weft_json_get_flag(&members[3], &m.split));
    WEFT_TRY(weft_json_get_flag(&members[4], &prefix));
    if (!prefix && m.prepend != NEVER)
        return weft_json_refuse_unknown(
            &members[4], "is false, which is not known where prepend_scheme is not never");
    if (m.replacement.bytes == 0)
        return weft_json_refuse(&members[1], "expected a character");
    *out = m;
    return WEFT_OK;
}

static weft_status read_metaspace_words(steps_reader *r, const weft_json_place *step)
{
    metaspace m;
    WEFT_TRY(read_metaspace(step, r->arena, &m));
    const weft_change spaces = {
        .kind = WEFT_CHANGE_REPLACE, .from = weft_bytes_of(" "), .to = m.replacement};
    const weft_change prepend = {.kind = WEFT_CHANGE_PREPEND,
                                 .to = m.replacement,
                                 .unless_there = true,
                                 .first_alone = m.prepend == FIRST};
    const weft_split split = {.literal = m.replacement, .behavior = WEFT_SPLIT_MERGED_WITH_NEXT};
    WEFT_TRY(add_word_change(r, step, &spaces));
    if (m.prepend != NEVER)
        WEFT_TRY(add_word_change(r, step, &prepend));
    return m.split ? add_split(step, r->out, &split) : WEFT_OK;
}

static weft_status read_words(void *to, const weft_json_place *step, int type)
{
    steps_reader *r = to;
    if (r->out->tables.is_of_bytes)
        return weft_json_refuse_unknown(step, "stands behind ByteLevel, which is not known");
    return type == SPLIT        ? read_split(r, step)
           : type == DIGITS     ? read_digits(r, step)
           : type == BYTE_LEVEL ? read_byte_level(r, step)
                                : read_metaspace_words(r, step);
}

/* --- decoder ------------------------------------------------------------------------------- */

enum { DECODE_BYTE_LEVEL = 1, BYTE_FALLBACK, REPLACE, STRIP, FUSE, DECODE_METASPACE };

static weft_status map_bytes(steps_reader *r)
{
    const weft_byte_map map = weft_byte_map_make();
    for (uint32_t id = 0; id < r->out->tables.num_tokens; id++) {
        weft_bytes *piece = &r->out->pieces[id], mapped;
        WEFT_TRY(weft_byte_map_read(&map, *piece, r->arena, &mapped));
        if (mapped.text && piece->text)
            *piece = mapped;
    }
    return WEFT_OK;
}

/* "<0x0A>" is the byte 10. */
static weft_status map_fallbacks(steps_reader *r)
{
    static const char digits[] = "0123456789ABCDEFabcdef";
    for (uint32_t id = 0; id < r->out->tables.num_tokens; id++) {
        weft_bytes *piece = &r->out->pieces[id];
        unsigned int byte;
        if (piece->bytes != 6 || memcmp(piece->text, "<0x", 3) != 0 || piece->text[5] != '>' ||
            !strchr(digits, piece->text[3]) || !strchr(digits, piece->text[4]) ||
            sscanf(piece->text + 3, "%2x", &byte) != 1)
            continue;
        const char text = (char)byte;
        WEFT_TRY(weft_bytes_copy((weft_bytes){&text, 1}, r->arena, piece));
    }
    return WEFT_OK;
}

static weft_status replace_in_pieces(steps_reader *r, weft_bytes from, weft_bytes to)
{
    const weft_change change = {.kind = WEFT_CHANGE_REPLACE, .from = from, .to = to};
    weft_buffer room[2] = {0};
    weft_status status = WEFT_OK;
    for (uint32_t id = 0; id < r->out->tables.num_tokens && status == WEFT_OK; id++) {
        weft_bytes *piece = &r->out->pieces[id], changed;
        if (piece->bytes == 0 || weft_bytes_find(*piece, 0, from) == piece->bytes)
            continue;
        status = weft_change_text(&change, 1, NULL, (weft_change_place){0}, *piece, room, &changed);
        if (status == WEFT_OK)
            status = weft_bytes_copy(changed, r->arena, piece);
    }
    for (int i = 0; i < 2; i++)
        weft_buffer_release(&room[i]);
    return status;
}

static weft_status read_replace(steps_reader *r, const weft_json_place *step)
{
    weft_json_place members[3];
    weft_bytes from = {0}, to;
    weft_pattern *pattern = NULL;
    WEFT_TRY(weft_json_members(step, "type|pattern|content", members));
    WEFT_TRY(weft_json_get_text(&members[2], r->arena, &to));
    WEFT_TRY(read_pattern(&members[1], r->arena, &from, &pattern));
    const bool is_regex = pattern;
    weft_pattern_destroy(pattern);
    if (is_regex)
        return weft_json_refuse_unknown(&members[1], "Regex is not known in a decoder");
    return replace_in_pieces(r, from, to);
}

static weft_status read_strip(steps_reader *r, const weft_json_place *step)
{
    weft_json_place members[4];
    weft_strip strip;
    WEFT_TRY(weft_json_members(step, "type|content|start|stop", members));
    WEFT_TRY(weft_json_get_text(&members[1], r->arena, &strip.character));
    WEFT_TRY(weft_json_get_whole(&members[2], INT32_MAX, &strip.start));
    WEFT_TRY(weft_json_get_whole(&members[3], INT32_MAX, &strip.stop));
    if (!r->is_fused || r->out->strip.character.text || strip.character.bytes == 0)
        return weft_json_refuse_unknown(
            step, "expected one Strip of a character, behind Fuse; another is not known");
    r->out->strip = strip;
    return WEFT_OK;
}

static weft_status read_decode_metaspace(steps_reader *r, const weft_json_place *step)
{
    metaspace m;
    WEFT_TRY(read_metaspace(step, r->arena, &m));
    if (m.prepend != NEVER)
        r->out->strip = (weft_strip){weft_bytes_of(" "), 1, 0};
    return replace_in_pieces(r, m.replacement, weft_bytes_of(" "));
}

static weft_status read_decoder(void *to, const weft_json_place *step, int type)
{
    steps_reader *r = to;
    weft_json_place members[4];
    if (type == STRIP)
        return read_strip(r, step);
    if (r->is_fused || r->out->strip.character.text)
        return weft_json_refuse_unknown(step,
                                        "stands where pieces are one text, which is not known");
    if (type == REPLACE)
        return read_replace(r, step);
    if (type == DECODE_METASPACE)
        return read_decode_metaspace(r, step);
    if (type == DECODE_BYTE_LEVEL) {
        WEFT_TRY(weft_json_members(step, "type|add_prefix_space|use_regex|trim_offsets", members));
        return map_bytes(r);
    }
    WEFT_TRY(weft_json_members(step, "type", members));
    r->is_fused = type == FUSE;
    return type == FUSE ? WEFT_OK : map_fallbacks(r);
}

/* The decoder's: pieces, from the texts by id that the file has, and strip. */
static weft_status tokenizer_json_pieces(const weft_json_place *decoder, const weft_bytes *texts,
                                         weft_arena *arena, weft_rules *out)
{
    steps_reader r = {.arena = arena, .out = out};
    const size_t count = out->tables.num_tokens;
    if (!weft_json_is_there(decoder))
        return weft_json_refuse_unknown(
            decoder, "missing, which is not known; expected how tokens become text");
    WEFT_TRY(WEFT_ARRAY(arena, count, &out->pieces));
    memcpy(out->pieces, texts, count * sizeof *texts);
    return read_steps(decoder, "decoders",
                      "Sequence|ByteLevel|ByteFallback|Replace|Strip|Fuse|Metaspace", read_decoder,
                      &r);
}

/* No vocabulary is as large. */
enum { MOST_TOKENS = 1 << 22 };

typedef struct reader {
    weft_arena *arena;
    weft_arena scratch;
    weft_rules *rules;
    weft_bytes *texts;  /* by id, as the file has them, added tokens too */
    weft_text_ids ids;  /* of the model's vocabulary alone */
    uint32_t num_vocab; /* the model's largest id + 1 */
    bool *is_special;
} reader;

/* --- vocabulary ---------------------------------------------------------------------------- */

/* The members of an object of any names. `out` borrows `object`. */
static bool next_entry(const weft_json_place *object, const char **cursor, weft_json_span *key,
                       weft_json_place *out)
{
    *out = (weft_json_place){.file = object->file, .parent = object};
    if (!weft_json_next(object->value, cursor, key, &out->value))
        return false;
    out->key = (weft_bytes){key->start + 1, key->bytes - 2};
    return true;
}

static weft_status expect_kind(const weft_json_place *at, weft_json_kind kind, const char *name)
{
    if (at->value.start && weft_json_kind_of(at->value) == kind)
        return WEFT_OK;
    return weft_json_refuse(at, "expected %s", name);
}

static weft_status find_last_id(const weft_json_place *vocab, const weft_json_place *added,
                                uint32_t *num_vocab, uint32_t *num_tokens)
{
    weft_json_place at;
    weft_json_span key;
    int64_t id, most = -1;
    for (const char *cursor = NULL; next_entry(vocab, &cursor, &key, &at);) {
        WEFT_TRY(weft_json_get_whole(&at, MOST_TOKENS - 1, &id));
        most = id > most ? id : most;
    }
    *num_vocab = (uint32_t)(most + 1);
    for (const char *cursor = NULL; weft_json_each(added, &cursor, &at);) {
        const weft_json_place place = weft_json_member(&at, "id");
        WEFT_TRY(weft_json_get_whole(&place, MOST_TOKENS - 1, &id));
        most = id > most ? id : most;
    }
    *num_tokens = (uint32_t)(most + 1);
    return most < 0 ? weft_json_refuse(vocab, "holds no token") : WEFT_OK;
}

static weft_status read_vocab(reader *r, const weft_json_place *vocab, const weft_json_place *added)
{
    weft_bpe_tables *t = &r->rules->tables;
    weft_json_place at;
    weft_json_span key;
    size_t count;
    WEFT_TRY(expect_kind(vocab, WEFT_JSON_OBJECT, "an object of tokens and ids"));
    WEFT_TRY(weft_json_count(added, &count));
    WEFT_TRY(find_last_id(vocab, added, &r->num_vocab, &t->num_tokens));
    WEFT_TRY(WEFT_ARRAY(r->arena, t->num_tokens, &r->texts));
    WEFT_TRY(WEFT_ARRAY(&r->scratch, t->num_tokens, &r->is_special));
    for (const char *cursor = NULL; next_entry(vocab, &cursor, &key, &at);) {
        int64_t id;
        weft_bytes text;
        const weft_json_place name = {
            .file = at.file, .parent = vocab, .key = at.key, .value = key};
        WEFT_TRY(weft_json_get_whole(&at, MOST_TOKENS - 1, &id));
        WEFT_TRY(weft_json_get_text(&name, r->arena, &text));
        if (r->texts[id].text)
            return weft_json_refuse(&at, "another token has the id %lld too", (long long)id);
        r->texts[id] = text;
    }
    const weft_status status = weft_text_ids_make(r->texts, r->num_vocab, &r->scratch, &r->ids);
    return status == WEFT_FILE ? weft_json_refuse(vocab, "%s", weft_error_get()->text) : status;
}

static weft_status refuse_no_token(const weft_json_place *at, weft_bytes text)
{
    return weft_json_refuse(at, "\"%.*s\" is not in the vocabulary",
                            (int)(text.bytes < 60 ? text.bytes : 60), text.text);
}

/* --- merges -------------------------------------------------------------------------------- */

/* "a b" or ["a", "b"]. */
static weft_status read_pair(reader *r, const weft_json_place *at, weft_bytes *left,
                             weft_bytes *right)
{
    weft_json_place part;
    size_t count = 0;
    if (weft_json_kind_of(at->value) == WEFT_JSON_STRING) {
        weft_bytes both;
        WEFT_TRY(weft_json_get_text(at, &r->scratch, &both));
        const size_t space = weft_bytes_find(both, 0, weft_bytes_of(" "));
        *left = (weft_bytes){both.text, space};
        *right =
            (weft_bytes){both.text + space + 1, space < both.bytes ? both.bytes - space - 1 : 0};
        if (space == both.bytes || weft_bytes_find(*right, 0, weft_bytes_of(" ")) < right->bytes)
            return weft_json_refuse(at, "expected two tokens with a space between");
        return WEFT_OK;
    }
    WEFT_TRY(weft_json_count(at, &count));
    if (count != 2)
        return weft_json_refuse(at, "expected two tokens");
    for (const char *cursor = NULL; weft_json_each(at, &cursor, &part);)
        WEFT_TRY(weft_json_get_text(&part, &r->scratch, part.index == 0 ? left : right));
    return WEFT_OK;
}

static weft_status read_merge(reader *r, const weft_json_place *at, weft_bpe_merge *out)
{
    weft_bytes left, right;
    char *both;
    WEFT_TRY(read_pair(r, at, &left, &right));
    WEFT_TRY(WEFT_ARRAY(&r->scratch, left.bytes + right.bytes + 1, &both));
    memcpy(both, left.text, left.bytes);
    memcpy(both + left.bytes, right.text, right.bytes);
    const weft_bytes joined = {both, left.bytes + right.bytes};
    *out = (weft_bpe_merge){weft_text_ids_find(&r->ids, left.text, left.bytes),
                            weft_text_ids_find(&r->ids, right.text, right.bytes),
                            weft_text_ids_find(&r->ids, joined.text, joined.bytes)};
    return out->left == WEFT_NO_ID     ? refuse_no_token(at, left)
           : out->right == WEFT_NO_ID  ? refuse_no_token(at, right)
           : out->joined == WEFT_NO_ID ? refuse_no_token(at, joined)
                                       : WEFT_OK;
}

static weft_status read_merges(reader *r, const weft_json_place *merges)
{
    weft_bpe_tables *t = &r->rules->tables;
    weft_json_place at;
    WEFT_TRY(expect_kind(merges, WEFT_JSON_ARRAY, "an array of merges"));
    WEFT_TRY(weft_json_count(merges, &t->num_merges));
    WEFT_TRY(WEFT_ARRAY(r->arena, t->num_merges, &t->merges));
    for (const char *cursor = NULL; weft_json_each(merges, &cursor, &at);)
        WEFT_TRY(read_merge(r, &at, &t->merges[at.index]));
    return WEFT_OK;
}

/* --- model --------------------------------------------------------------------------------- */

/* The tokens as bytes, where the file writes bytes as characters. A token of other characters is
 * nothing that text becomes. */
static weft_status map_tokens(reader *r, const weft_json_place *vocab)
{
    weft_bpe_tables *t = &r->rules->tables;
    const weft_byte_map map = weft_byte_map_make();
    WEFT_TRY(WEFT_ARRAY(r->arena, t->num_tokens, &t->tokens));
    for (uint32_t id = 0; id < r->num_vocab; id++) {
        weft_bytes *token = &t->tokens[id];
        if (!r->texts[id].text)
            continue;
        WEFT_TRY(weft_byte_map_read(&map, r->texts[id], r->arena, token));
        if (token->bytes == 1)
            t->byte_ids[(unsigned char)token->text[0]] = id;
    }
    for (int byte = 0; byte < 256; byte++)
        if (t->byte_ids[byte] == WEFT_NO_ID)
            return weft_json_refuse_unknown(
                vocab, "no token for byte %d, which ByteLevel needs: one without is not known",
                byte);
    return WEFT_OK;
}

/* The tokens "<0x00>" to "<0xFF>". */
static weft_status find_fallbacks(reader *r, const weft_json_place *vocab)
{
    weft_bpe_tables *t = &r->rules->tables;
    for (int byte = 0; byte < 256; byte++) {
        char name[8];
        const int bytes = snprintf(name, sizeof name, "<0x%02X>", byte);
        t->byte_ids[byte] = weft_text_ids_find(&r->ids, name, (size_t)bytes);
        if (t->byte_ids[byte] == WEFT_NO_ID)
            return weft_json_refuse_unknown(
                vocab, "no token %s, which byte_fallback needs: one without is not known", name);
    }
    return WEFT_OK;
}

/* Text that no merge joins may be cut there: before a space's stand-in behind another character,
 * where no merge makes a token that has both. Words then come from the cache. */
static weft_status cut_at_spaces(weft_rules *rules)
{
    static const char mark[] = "\xe2\x96\x81";
    const weft_bpe_tables *t = &rules->tables;
    if (rules->num_splits > 0 || t->whole_words_first || t->byte_ids[0] == WEFT_NO_ID)
        return WEFT_OK;
    for (size_t m = 0; m < t->num_merges; m++) {
        weft_bytes rest = t->tokens[t->merges[m].joined];
        while (weft_bytes_begin(rest, weft_bytes_of(mark)))
            rest = (weft_bytes){rest.text + 3, rest.bytes - 3};
        if (weft_bytes_find(rest, 0, weft_bytes_of(mark)) < rest.bytes)
            return WEFT_OK;
    }
    rules->num_splits = 1;
    return weft_pattern_create("\xe2\x96\x81+[^\xe2\x96\x81]*|[^\xe2\x96\x81]+",
                               &rules->splits[0].pattern);
}

static weft_status read_unknown(reader *r, const weft_json_place *at)
{
    weft_bytes text;
    if (!weft_json_is_there(at))
        return WEFT_OK;
    WEFT_TRY(weft_json_get_text(at, &r->scratch, &text));
    r->rules->tables.unknown = weft_text_ids_find(&r->ids, text.text, text.bytes);
    return r->rules->tables.unknown == WEFT_NO_ID ? refuse_no_token(at, text) : WEFT_OK;
}

/* Refuses what would change words, but for "", which changes none. */
static weft_status refuse_affix(reader *r, const weft_json_place *at)
{
    weft_bytes text;
    if (!weft_json_is_there(at))
        return WEFT_OK;
    WEFT_TRY(weft_json_get_text(at, &r->scratch, &text));
    return text.bytes > 0 ? weft_json_refuse_unknown(at, "is not known") : WEFT_OK;
}

static weft_status read_model(reader *r, const weft_json_place *model, const weft_json_place *added)
{
    enum { TYPE, DROPOUT, UNKNOWN, PREFIX, SUFFIX, FUSED, FALLBACK, IGNORE, VOCAB, MERGES, NUM };
    weft_bpe_tables *t = &r->rules->tables;
    weft_json_place m[NUM];
    bool has_fallback = false;
    int bpe;
    const weft_json_place type = weft_json_member(model, "type");
    WEFT_TRY(weft_json_get_choice(&type, "BPE", &bpe));
    WEFT_TRY(weft_json_members(model,
                               "type|dropout|unk_token|continuing_subword_prefix|"
                               "end_of_word_suffix|fuse_unk|byte_fallback|ignore_merges|vocab|"
                               "merges",
                               m));
    if (weft_json_is_there(&m[DROPOUT]))
        return weft_json_refuse_unknown(&m[DROPOUT], "is not known; null leaves no merge out");
    WEFT_TRY(refuse_affix(r, &m[PREFIX]));
    WEFT_TRY(refuse_affix(r, &m[SUFFIX]));
    WEFT_TRY(weft_json_get_flag(&m[FUSED], &t->fuse_unknown));
    WEFT_TRY(weft_json_get_flag(&m[FALLBACK], &has_fallback));
    WEFT_TRY(weft_json_get_flag(&m[IGNORE], &t->whole_words_first));
    WEFT_TRY(read_vocab(r, &m[VOCAB], added));
    WEFT_TRY(read_unknown(r, &m[UNKNOWN]));
    WEFT_TRY(read_merges(r, &m[MERGES]));
    if (t->is_of_bytes) {
        WEFT_TRY(map_tokens(r, &m[VOCAB]));
    } else {
        t->tokens = r->texts;
        if (has_fallback)
            WEFT_TRY(find_fallbacks(r, &m[VOCAB]));
        else if (t->unknown == WEFT_NO_ID)
            return weft_json_refuse(&m[UNKNOWN], "missing, and so are byte_fallback and "
                                                 "ByteLevel: some text would have no token");
        WEFT_TRY(cut_at_spaces(r->rules));
    }
    const weft_status status = weft_bpe_create(t, r->arena, &r->rules->bpe);
    return status == WEFT_FILE ? weft_json_refuse(model, "%s", weft_error_get()->text) : status;
}

/* --- added tokens -------------------------------------------------------------------------- */

typedef struct added_token {
    weft_added_token token;
    bool normalized;
} added_token;

static weft_status read_added_token(reader *r, const weft_json_place *at, added_token *out)
{
    enum { ID, CONTENT, SINGLE, LSTRIP, RSTRIP, NORMALIZED, SPECIAL, NUM };
    weft_json_place m[NUM];
    weft_added_token *t = &out->token;
    bool special = false;
    int64_t id;
    WEFT_TRY(weft_json_members(at, "id|content|single_word|lstrip|rstrip|normalized|special", m));
    WEFT_TRY(weft_json_get_whole(&m[ID], MOST_TOKENS - 1, &id));
    WEFT_TRY(weft_json_get_text(&m[CONTENT], r->arena, &t->text));
    WEFT_TRY(weft_json_get_flag(&m[SINGLE], &t->single_word));
    WEFT_TRY(weft_json_get_flag(&m[LSTRIP], &t->takes_spaces_before));
    WEFT_TRY(weft_json_get_flag(&m[RSTRIP], &t->takes_spaces_behind));
    WEFT_TRY(weft_json_get_flag(&m[SPECIAL], &special));
    out->normalized = !special;
    WEFT_TRY(weft_json_get_flag(&m[NORMALIZED], &out->normalized));
    t->id = (uint32_t)id;
    if (t->text.bytes == 0)
        return weft_json_refuse(&m[CONTENT], "is empty");
    const uint32_t in_vocab = weft_text_ids_find(&r->ids, t->text.text, t->text.bytes);
    if (in_vocab != WEFT_NO_ID ? in_vocab != t->id : r->texts[id].text != NULL)
        return weft_json_refuse(&m[ID], "the vocabulary has another token or id for it");
    r->texts[id] = t->text;
    r->is_special[id] = special;
    return WEFT_OK;
}

/* The text that it is looked for as, in changed text. */
static weft_status change_added(reader *r, weft_added_token *token)
{
    weft_matcher *matcher = NULL;
    weft_buffer room[2] = {0};
    const weft_changes *c = &r->rules->changes;
    weft_status status = weft_matcher_create(&matcher);
    weft_bytes changed = token->text;
    if (status == WEFT_OK)
        status = weft_change_text(c->steps, c->count, matcher,
                                  (weft_change_place){.begins_document = true}, token->text, room,
                                  &changed);
    if (status == WEFT_OK)
        status = weft_bytes_copy(changed, r->arena, &token->text);
    weft_matcher_destroy(matcher);
    for (int i = 0; i < 2; i++)
        weft_buffer_release(&room[i]);
    return status;
}

static weft_status read_added(reader *r, const weft_json_place *list)
{
    weft_json_place at;
    weft_added_token *plain = NULL, *changed = NULL;
    size_t count, num_plain = 0, num_changed = 0;
    WEFT_TRY(weft_json_count(list, &count));
    WEFT_TRY(WEFT_ARRAY(r->arena, count, &plain));
    WEFT_TRY(WEFT_ARRAY(r->arena, count, &changed));
    for (const char *cursor = NULL; weft_json_each(list, &cursor, &at);) {
        added_token added = {0};
        WEFT_TRY(read_added_token(r, &at, &added));
        if (!added.normalized) {
            plain[num_plain++] = added.token;
            continue;
        }
        WEFT_TRY(change_added(r, &added.token));
        if (added.token.text.bytes > 0)
            changed[num_changed++] = added.token;
    }
    weft_added_init(&r->rules->added, plain, num_plain);
    weft_added_init(&r->rules->added_changed, changed, num_changed);
    return WEFT_OK;
}

/* --- post_processor ------------------------------------------------------------------------ */

/* Names may be written with escapes. */
static weft_status find_special(reader *r, const weft_json_place *specials, weft_bytes name,
                                weft_json_place *out)
{
    weft_json_span key;
    weft_bytes text;
    WEFT_TRY(expect_kind(specials, WEFT_JSON_OBJECT, "an object of tokens"));
    for (const char *cursor = NULL; next_entry(specials, &cursor, &key, out);) {
        const weft_json_place at = {
            .file = out->file, .parent = specials, .key = out->key, .value = key};
        WEFT_TRY(weft_json_get_text(&at, &r->scratch, &text));
        if (strcmp(text.text, name.text) == 0)
            return WEFT_OK;
    }
    *out = (weft_json_place){0};
    return WEFT_OK;
}

/* {"id": NAME, "ids": [...], "tokens": [...]} of special_tokens. */
static weft_status add_template_ids(reader *r, const weft_json_place *specials, weft_bytes name,
                                    const weft_json_place *where, weft_tokens *out)
{
    weft_json_place members[3], at, special;
    size_t count;
    int64_t id;
    WEFT_TRY(find_special(r, specials, name, &special));
    if (!special.value.start)
        return weft_json_refuse(where, "is not among special_tokens");
    WEFT_TRY(weft_json_members(&special, "id|ids|tokens", members));
    WEFT_TRY(weft_json_count(&members[1], &count));
    for (const char *cursor = NULL; weft_json_each(&members[1], &cursor, &at);) {
        WEFT_TRY(weft_json_get_whole(&at, r->rules->tables.num_tokens - 1, &id));
        WEFT_TRY(weft_tokens_add(out, (int32_t)id));
    }
    return WEFT_OK;
}

static weft_status read_template(reader *r, const weft_json_place *step)
{
    weft_json_place m[4], at, parts[2], inner[2];
    weft_bytes name;
    size_t count;
    bool is_behind = false;
    int sequence;
    WEFT_TRY(weft_json_members(step, "type|single|pair|special_tokens", m));
    WEFT_TRY(weft_json_count(&m[1], &count));
    for (const char *cursor = NULL; weft_json_each(&m[1], &cursor, &at);) {
        WEFT_TRY(weft_json_members(&at, "Sequence|SpecialToken", parts));
        const bool is_text = parts[0].value.start;
        WEFT_TRY(weft_json_members(&parts[!is_text], "id|type_id", inner));
        if (is_text)
            WEFT_TRY(weft_json_get_choice(&inner[0], "A", &sequence));
        else
            WEFT_TRY(weft_json_get_text(&inner[0], &r->scratch, &name));
        if (is_text && is_behind)
            return weft_json_refuse(&at, "the text stands twice");
        is_behind |= is_text;
        if (!is_text)
            WEFT_TRY(add_template_ids(r, &m[3], name, &inner[0],
                                      is_behind ? &r->rules->back : &r->rules->front));
    }
    return is_behind ? WEFT_OK : weft_json_refuse(&m[1], "the text does not stand there");
}

static weft_status read_post_processor(reader *r, const weft_json_place *step)
{
    weft_json_place m[4], at;
    size_t count;
    int type;
    if (!weft_json_is_there(step))
        return WEFT_OK;
    const weft_json_place name = weft_json_member(step, "type");
    WEFT_TRY(weft_json_get_choice(&name, "Sequence|ByteLevel|TemplateProcessing", &type));
    if (type == 1) /* of offsets alone */
        return weft_json_members(step, "type|add_prefix_space|trim_offsets|use_regex", m);
    if (type == 2) {
        if (r->rules->front.count + r->rules->back.count > 0)
            return weft_json_refuse_unknown(step, "a second TemplateProcessing is not known");
        return read_template(r, step);
    }
    WEFT_TRY(weft_json_members(step, "type|processors", m));
    WEFT_TRY(weft_json_count(&m[1], &count));
    for (const char *cursor = NULL; weft_json_each(&m[1], &cursor, &at);)
        WEFT_TRY(read_post_processor(r, &at));
    return WEFT_OK;
}

/* --- the file ------------------------------------------------------------------------------ */

static weft_status refuse_setting(const weft_json_place *at, const char *what)
{
    return weft_json_is_there(at)
               ? weft_json_refuse_unknown(at, "%s is not known; null does none", what)
               : WEFT_OK;
}

static weft_status read_file(reader *r, const char *file, const char *text)
{
    enum { VERSION, TRUNCATION, PADDING, ADDED, NORMALIZER, WORDS, POST, DECODER, MODEL, NUM };
    weft_json_place whole, m[NUM];
    int version;
    WEFT_TRY(weft_json_whole(file, text, &whole));
    WEFT_TRY(weft_json_members(&whole,
                               "version|truncation|padding|added_tokens|normalizer|pre_tokenizer|"
                               "post_processor|decoder|model",
                               m));
    WEFT_TRY(weft_json_get_choice(&m[VERSION], "1.0", &version));
    WEFT_TRY(refuse_setting(&m[TRUNCATION], "cutting texts short"));
    WEFT_TRY(refuse_setting(&m[PADDING], "padding texts"));
    steps_reader steps = {.arena = r->arena, .out = r->rules};
    WEFT_TRY(read_steps(&m[NORMALIZER], "normalizers", "Sequence|NFC|NFD|NFKC|NFKD|Replace|Prepend",
                        read_change, &steps));
    WEFT_TRY(read_steps(&m[WORDS], "pretokenizers", "Sequence|Split|Digits|ByteLevel|Metaspace",
                        read_words, &steps));
    WEFT_TRY(read_model(r, &m[MODEL], &m[ADDED]));
    WEFT_TRY(read_added(r, &m[ADDED]));
    WEFT_TRY(read_post_processor(r, &m[POST]));
    WEFT_TRY(tokenizer_json_pieces(&m[DECODER], r->texts, r->arena, r->rules));
    for (uint32_t id = 0; id < r->rules->tables.num_tokens; id++)
        if (r->is_special[id])
            r->rules->pieces[id] = (weft_bytes){0};
    return WEFT_OK;
}

weft_status weft_tokenizer_json_read(const char *file, const char *text, weft_arena *arena,
                                     weft_rules *out)
{
    reader r = {.arena = arena, .rules = out};
    *out = (weft_rules){.tables = {.unknown = WEFT_NO_ID}};
    memset(out->tables.byte_ids, 0xff, sizeof out->tables.byte_ids);
    const weft_status status = read_file(&r, file, text);
    weft_arena_release(&r.scratch);
    return status;
}
