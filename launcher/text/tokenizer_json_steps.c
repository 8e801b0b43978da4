/* The parts of tokenizer.json that are steps, or lists of them. */
#include <stdio.h>
#include <string.h>

#include "launcher/text/gpt2.h"
#include "launcher/text/tokenizer_json.h"

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
    return status == WEFT_FILE ? weft_json_refuse(&members[1], "%s", weft_error_get()->text)
                               : status;
}

/* --- normalizer ---------------------------------------------------------------------------- */

typedef struct changes_reader {
    weft_arena *arena;
    weft_changes *out;
} changes_reader;

static weft_status add_change(const weft_json_place *step, weft_changes *changes,
                              const weft_change *change)
{
    if (changes->count == WEFT_MOST_STEPS) {
        weft_pattern_destroy(change->pattern);
        return weft_json_refuse(step, "more than %d steps", WEFT_MOST_STEPS);
    }
    changes->steps[changes->count++] = *change;
    return WEFT_OK;
}

static weft_status read_change(void *to, const weft_json_place *step, int type)
{
    static const weft_change_kind kinds[] = {
        [1] = WEFT_CHANGE_NFC,  [2] = WEFT_CHANGE_NFD,     [3] = WEFT_CHANGE_NFKC,
        [4] = WEFT_CHANGE_NFKD, [5] = WEFT_CHANGE_REPLACE, [6] = WEFT_CHANGE_PREPEND};
    changes_reader *r = to;
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
    return add_change(step, r->out, &change);
}

weft_status weft_tokenizer_json_changes(const weft_json_place *normalizer, weft_arena *arena,
                                        weft_changes *out)
{
    changes_reader r = {arena, out};
    return read_steps(normalizer, "normalizers", "Sequence|NFC|NFD|NFKC|NFKD|Replace|Prepend",
                      read_change, &r);
}

/* --- pre_tokenizer ------------------------------------------------------------------------- */

enum { SPLIT = 1, DIGITS, BYTE_LEVEL, METASPACE };

typedef struct words_reader {
    weft_arena *arena;
    weft_rules *out;
} words_reader;

static weft_status add_split(const weft_json_place *step, weft_rules *rules,
                             const weft_split *split)
{
    if (rules->num_splits == WEFT_MOST_STEPS) {
        weft_pattern_destroy(split->pattern);
        return weft_json_refuse(step, "more than %d steps", WEFT_MOST_STEPS);
    }
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

static weft_status read_split(words_reader *r, const weft_json_place *step)
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

static weft_status read_digits(words_reader *r, const weft_json_place *step)
{
    weft_json_place members[2];
    bool individual = false;
    WEFT_TRY(weft_json_members(step, "type|individual_digits", members));
    WEFT_TRY(weft_json_get_flag(&members[1], &individual));
    return add_pattern(step, r->out, "\\p{N}",
                       individual ? WEFT_SPLIT_ISOLATED : WEFT_SPLIT_CONTIGUOUS);
}

/* A step that changes text, which here goes before all that splits. */
static weft_status add_word_change(words_reader *r, const weft_json_place *step,
                                   const weft_change *change)
{
    if (r->out->num_splits > 0)
        return weft_json_refuse(step, "changes words behind a step that splits, which is not "
                                      "known");
    return add_change(step, &r->out->word_changes, change);
}

static weft_status read_byte_level(words_reader *r, const weft_json_place *step)
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
        return weft_json_refuse(&members[4], "is false, and prepend_scheme is not never");
    if (m.replacement.bytes == 0)
        return weft_json_refuse(&members[1], "expected a character");
    *out = m;
    return WEFT_OK;
}

static weft_status read_metaspace_words(words_reader *r, const weft_json_place *step)
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
    words_reader *r = to;
    if (r->out->tables.is_of_bytes)
        return weft_json_refuse(step, "stands behind ByteLevel, which is not known");
    return type == SPLIT        ? read_split(r, step)
           : type == DIGITS     ? read_digits(r, step)
           : type == BYTE_LEVEL ? read_byte_level(r, step)
                                : read_metaspace_words(r, step);
}

weft_status weft_tokenizer_json_words(const weft_json_place *pre_tokenizer, weft_arena *arena,
                                      weft_rules *out)
{
    words_reader r = {arena, out};
    return read_steps(pre_tokenizer, "pretokenizers", "Sequence|Split|Digits|ByteLevel|Metaspace",
                      read_words, &r);
}

/* --- decoder ------------------------------------------------------------------------------- */

enum { DECODE_BYTE_LEVEL = 1, BYTE_FALLBACK, REPLACE, STRIP, FUSE, DECODE_METASPACE };

typedef struct pieces_reader {
    weft_arena *arena;
    weft_rules *out;
    bool is_fused; /* what follows sees the whole text, no pieces */
} pieces_reader;

static weft_status map_bytes(pieces_reader *r)
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
static weft_status map_fallbacks(pieces_reader *r)
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

static weft_status replace_in_pieces(pieces_reader *r, weft_bytes from, weft_bytes to)
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

static weft_status read_replace(pieces_reader *r, const weft_json_place *step)
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
        return weft_json_refuse(&members[1], "Regex is not known in a decoder");
    return replace_in_pieces(r, from, to);
}

static weft_status read_strip(pieces_reader *r, const weft_json_place *step)
{
    weft_json_place members[4];
    weft_strip strip;
    WEFT_TRY(weft_json_members(step, "type|content|start|stop", members));
    WEFT_TRY(weft_json_get_text(&members[1], r->arena, &strip.character));
    WEFT_TRY(weft_json_get_whole(&members[2], INT32_MAX, &strip.start));
    WEFT_TRY(weft_json_get_whole(&members[3], INT32_MAX, &strip.stop));
    if (!r->is_fused || r->out->strip.character.text || strip.character.bytes == 0)
        return weft_json_refuse(step, "expected one Strip of a character, behind Fuse");
    r->out->strip = strip;
    return WEFT_OK;
}

static weft_status read_decode_metaspace(pieces_reader *r, const weft_json_place *step)
{
    metaspace m;
    WEFT_TRY(read_metaspace(step, r->arena, &m));
    if (m.prepend != NEVER)
        r->out->strip = (weft_strip){weft_bytes_of(" "), 1, 0};
    return replace_in_pieces(r, m.replacement, weft_bytes_of(" "));
}

static weft_status read_decoder(void *to, const weft_json_place *step, int type)
{
    pieces_reader *r = to;
    weft_json_place members[4];
    if (type == STRIP)
        return read_strip(r, step);
    if (r->is_fused || r->out->strip.character.text)
        return weft_json_refuse(step, "stands where pieces are one text, which is not known");
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

weft_status weft_tokenizer_json_pieces(const weft_json_place *decoder, const weft_bytes *texts,
                                       weft_arena *arena, weft_rules *out)
{
    pieces_reader r = {.arena = arena, .out = out};
    const size_t count = out->tables.num_tokens;
    if (!weft_json_is_there(decoder))
        return weft_json_refuse(decoder, "missing; expected how tokens become text");
    WEFT_TRY(WEFT_ARRAY(arena, count, &out->pieces));
    memcpy(out->pieces, texts, count * sizeof *texts);
    return read_steps(decoder, "decoders",
                      "Sequence|ByteLevel|ByteFallback|Replace|Strip|Fuse|Metaspace", read_decoder,
                      &r);
}
