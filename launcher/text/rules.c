#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "launcher/text/rules.h"

/* --- changes of a text before it is cut into words ------------------------------------------- */

/* Whether a normal form leaves a text as it is: of characters below U+0300 NFC changes none, the
 * other forms none of ASCII. */
static bool is_normal(weft_change_kind form, weft_bytes text)
{
    const unsigned char limit = form == WEFT_CHANGE_NFC ? 0xcc : 0x80;
    unsigned char most = 0;
    for (size_t i = 0; i < text.bytes; i++)
        most = (unsigned char)text.text[i] > most ? (unsigned char)text.text[i] : most;
    return most < limit;
}

static weft_status add_normal(weft_change_kind form, weft_bytes line, weft_buffer *out)
{
    static const unsigned options[] = {
        [WEFT_CHANGE_NFC] = UTF8PROC_COMPOSE,
        [WEFT_CHANGE_NFD] = UTF8PROC_DECOMPOSE,
        [WEFT_CHANGE_NFKC] = UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
        [WEFT_CHANGE_NFKD] = UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT,
    };
    if (is_normal(form, line))
        return weft_buffer_add(out, line);
    utf8proc_uint8_t *normal = NULL;
    const utf8proc_ssize_t bytes =
        utf8proc_map((const utf8proc_uint8_t *)line.text, (utf8proc_ssize_t)line.bytes, &normal,
                     (utf8proc_option_t)(UTF8PROC_STABLE | options[form]));
    if (bytes < 0)
        return WEFT_ERROR(bytes == UTF8PROC_ERROR_NOMEM ? WEFT_MEMORY : WEFT_INTERNAL,
                          "a line of %zu bytes: %s", line.bytes, utf8proc_errmsg(bytes));
    const weft_status status =
        weft_buffer_add(out, (weft_bytes){(const char *)normal, (size_t)bytes});
    free(normal);
    return status;
}

/* Line by line: no form joins a newline with what is behind it. */
static weft_status normalize(weft_change_kind form, weft_bytes text, weft_buffer *out)
{
    for (size_t at = 0, end; at < text.bytes; at = end) {
        const char *newline = memchr(text.text + at, '\n', text.bytes - at);
        end = newline ? (size_t)(newline - text.text) + 1 : text.bytes;
        WEFT_TRY(add_normal(form, (weft_bytes){text.text + at, end - at}, out));
    }
    return WEFT_OK;
}

static weft_status replace(const weft_change *c, weft_matcher *matcher, weft_bytes text,
                           weft_buffer *out)
{
    for (size_t at = 0, start, end; at < text.bytes; at = end) {
        if (c->pattern) {
            WEFT_TRY(weft_pattern_find(c->pattern, matcher, text, at, &start, &end));
        } else {
            start = weft_bytes_find(text, at, c->from);
            end = start < text.bytes ? start + c->from.bytes : start;
        }
        WEFT_TRY(weft_buffer_add(out, (weft_bytes){text.text + at, start - at}));
        if (start < end)
            WEFT_TRY(weft_buffer_add(out, c->to));
    }
    return WEFT_OK;
}

/* Whether it leaves the text as it is, as far as is seen at once. */
static bool has_no_effect(const weft_change *c, weft_change_place place, weft_bytes text)
{
    if (c->kind == WEFT_CHANGE_REPLACE)
        return false;
    if (c->kind != WEFT_CHANGE_PREPEND)
        return is_normal(c->kind, text);
    return place.goes_on || text.bytes == 0 || (c->first_alone && !place.begins_document) ||
           (c->unless_there && weft_bytes_begin(text, c->to));
}

static weft_status make_change(const weft_change *c, weft_matcher *matcher, weft_bytes text,
                               weft_buffer *out)
{
    if (c->kind == WEFT_CHANGE_REPLACE)
        return replace(c, matcher, text, out);
    if (c->kind != WEFT_CHANGE_PREPEND)
        return normalize(c->kind, text, out);
    WEFT_TRY(weft_buffer_add(out, c->to));
    return weft_buffer_add(out, text);
}

weft_status weft_change_text(const weft_change *changes, size_t count, weft_matcher *matcher,
                             weft_change_place place, weft_bytes text, weft_buffer room[2],
                             weft_bytes *out)
{
    for (size_t i = 0, used = 0; i < count; i++) {
        if (has_no_effect(&changes[i], place, text))
            continue;
        weft_buffer *to = &room[used++ % 2]; /* the text is in the other one */
        to->bytes = 0;
        WEFT_TRY(make_change(&changes[i], matcher, text, to));
        text = (weft_bytes){to->bytes ? to->text : "", to->bytes};
    }
    *out = text;
    return WEFT_OK;
}

/* --- added tokens, which stand in a text as they are written, whatever the rules of words say --
 */

/* A search of one text from its start. */
typedef struct added_search {
    const weft_added *added;
    weft_bytes text; /* valid UTF-8 */
    size_t at;       /* where the next search begins */
    size_t given;    /* behind the last token */
} added_search;

static int compare_tokens(const void *a, const void *b)
{
    const weft_bytes x = ((const weft_added_token *)a)->text;
    const weft_bytes y = ((const weft_added_token *)b)->text;
    const int order = memcmp(x.text, y.text, x.bytes < y.bytes ? x.bytes : y.bytes);
    return order ? order : (x.bytes > y.bytes) - (x.bytes < y.bytes);
}

void weft_added_init(weft_added *added, weft_added_token *tokens, size_t count)
{
    *added = (weft_added){.tokens = tokens, .count = count};
    if (count > 0)
        qsort(tokens, count, sizeof *tokens, compare_tokens);
    for (size_t i = 0; i < count; i++)
        added->begins[(unsigned char)tokens[i].text.text[0]] = true;
}

/* The first of tokens first to last - 1, which begin with the same `depth` bytes, that goes on with
 * `byte` or a later one. One that ends there goes before all others. */
static size_t first_with(const weft_added *a, size_t first, size_t last, size_t depth, int byte)
{
    while (first < last) {
        const size_t middle = first + (last - first) / 2;
        const weft_bytes text = a->tokens[middle].text;
        if (text.bytes > depth && (unsigned char)text.text[depth] >= byte)
            last = middle;
        else
            first = middle + 1;
    }
    return first;
}

/* The longest token that the text begins with, or NULL. */
static const weft_added_token *longest(const weft_added *a, weft_bytes text)
{
    const weft_added_token *found = NULL;
    size_t first = 0, last = a->count;
    for (size_t depth = 0; depth < text.bytes && first < last; depth++) {
        const int byte = (unsigned char)text.text[depth];
        first = first_with(a, first, last, depth, byte);
        last = first_with(a, first, last, depth, byte + 1);
        if (first < last && a->tokens[first].text.bytes == depth + 1)
            found = &a->tokens[first];
    }
    return found;
}

/* Unicode's White_Space. */
static bool is_space(uint32_t c)
{
    const utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    return (c >= 0x09 && c <= 0x0d) || c == 0x85 || category == UTF8PROC_CATEGORY_ZS ||
           category == UTF8PROC_CATEGORY_ZL || category == UTF8PROC_CATEGORY_ZP;
}

/* What a word is made of: letters, marks, digits and what joins them, and letters in circles. */
static bool is_of_word(uint32_t c)
{
    const utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NL) ||
           category == UTF8PROC_CATEGORY_PC || c == 0x200c || c == 0x200d ||
           (c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149) ||
           (c >= 0x1f150 && c <= 0x1f169) || (c >= 0x1f170 && c <= 0x1f189);
}

/* The character that ends at `at`, which is not the text's start. */
static uint32_t character_before(weft_bytes text, size_t at, size_t *bytes)
{
    size_t start = at - 1;
    while (start > 0 && (text.text[start] & 0xc0) == 0x80)
        start--;
    return weft_utf8_character(text.text + start, bytes);
}

static bool stands_alone(weft_bytes text, size_t start, size_t end)
{
    size_t bytes;
    return (start == 0 || !is_of_word(character_before(text, start, &bytes))) &&
           (end == text.bytes || !is_of_word(weft_utf8_character(text.text + end, &bytes)));
}

static size_t spaces_before(weft_bytes text, size_t at)
{
    size_t bytes;
    while (at > 0 && is_space(character_before(text, at, &bytes)))
        at -= bytes;
    return at;
}

static size_t spaces_behind(weft_bytes text, size_t at)
{
    size_t bytes;
    while (at < text.bytes && is_space(weft_utf8_character(text.text + at, &bytes)))
        at += bytes;
    return at;
}

/* The next token: of those that begin first the longest. False: there is none, and *start and *end
 * are the text's end. Text from *before to *start belongs to no token. */
static bool added_next(added_search *s, size_t *before, size_t *start, size_t *end, uint32_t *id)
{
    const weft_bytes text = s->text;
    *before = s->given;
    for (; s->added->count > 0 && s->at < text.bytes; s->at++) {
        if (!s->added->begins[(unsigned char)text.text[s->at]])
            continue;
        const weft_added_token *t =
            longest(s->added, (weft_bytes){text.text + s->at, text.bytes - s->at});
        if (!t)
            continue;
        *start = s->at;
        *end = s->at + t->text.bytes;
        if (t->single_word && !stands_alone(text, *start, *end)) {
            s->at = *end - 1;
            continue;
        }
        s->at = *end;
        if (t->takes_spaces_before)
            *start = spaces_before(text, *start);
        if (*start < s->given)
            *start = s->given;
        if (t->takes_spaces_behind)
            *end = spaces_behind(text, *end);
        if (*end < s->given) /* in spaces that the token before took */
            *end = s->given;
        *id = t->id;
        s->given = *end;
        return true;
    }
    *start = *end = text.bytes;
    return false;
}

void weft_rules_release(weft_rules *rules)
{
    for (size_t i = 0; i < rules->changes.count; i++)
        weft_pattern_destroy(rules->changes.steps[i].pattern);
    for (size_t i = 0; i < rules->num_splits; i++)
        weft_pattern_destroy(rules->splits[i].pattern);
    weft_tokens_release(&rules->front);
    weft_tokens_release(&rules->back);
    *rules = (weft_rules){0};
}

struct weft_rules_worker {
    weft_bpe_cache *cache;
    weft_matcher *matcher;
    weft_buffer changed[2], changed_words[2];
    /* Of the text that is encoded: */
    const weft_rules *rules;
    weft_tokens *out;
    weft_change_place place;
};

weft_status weft_rules_worker_create(weft_rules_worker **out)
{
    weft_rules_worker *w = calloc(1, sizeof *w);
    weft_status status =
        w ? WEFT_OK : WEFT_ERROR(WEFT_MEMORY, "no memory for the tokenizer's cache");
    if (status == WEFT_OK)
        status = weft_bpe_cache_create(&w->cache);
    if (status == WEFT_OK)
        status = weft_matcher_create(&w->matcher);
    if (status != WEFT_OK) {
        weft_rules_worker_destroy(w);
        return status;
    }
    *out = w;
    return WEFT_OK;
}

void weft_rules_worker_destroy(weft_rules_worker *worker)
{
    if (!worker)
        return;
    weft_bpe_cache_destroy(worker->cache);
    weft_matcher_destroy(worker->matcher);
    for (int i = 0; i < 2; i++) {
        weft_buffer_release(&worker->changed[i]);
        weft_buffer_release(&worker->changed_words[i]);
    }
    free(worker);
}

static weft_status encode_word(const weft_rules_worker *w, weft_bytes word)
{
    return weft_bpe_encode(w->rules->bpe, w->cache, word, w->out);
}

/* --- words --------------------------------------------------------------------------------- */

/* One rule on one text. */
typedef struct rule_run {
    const weft_rules_worker *w;
    size_t rule;
    weft_bytes text;
    size_t start, end; /* of what is not given yet; none: both the same */
    bool is_match;     /* what that is */
} rule_run;

static weft_status apply_rules(const weft_rules_worker *w, size_t rule, weft_bytes text);

/* Gives the part of the text to the rule behind. */
static weft_status give(const rule_run *r, size_t start, size_t end)
{
    return apply_rules(r->w, r->rule + 1, (weft_bytes){r->text.text + start, end - start});
}

static weft_status give_held(rule_run *r)
{
    const size_t start = r->start;
    r->start = r->end;
    return give(r, start, r->end);
}

/* Whether a part belongs to the part that is held before it. */
static bool joins(const rule_run *r, weft_split_behavior behavior, bool is_match)
{
    if (r->start == r->end)
        return false;
    return behavior == WEFT_SPLIT_CONTIGUOUS             ? is_match == r->is_match
           : behavior == WEFT_SPLIT_MERGED_WITH_PREVIOUS ? is_match && !r->is_match
                                                         : !is_match && r->is_match;
}

/* The next part of the text. */
static weft_status add_part(rule_run *r, size_t start, size_t end, bool found)
{
    const weft_split *split = &r->w->rules->splits[r->rule];
    const bool is_match = found != split->invert;
    if (start == end)
        return WEFT_OK;
    if (split->behavior == WEFT_SPLIT_ISOLATED)
        return give(r, start, end);
    if (split->behavior == WEFT_SPLIT_REMOVED)
        return is_match ? WEFT_OK : give(r, start, end);
    const bool is_joined = joins(r, split->behavior, is_match);
    if (!is_joined) {
        WEFT_TRY(give_held(r));
        r->start = start;
    }
    r->end = end;
    r->is_match = is_match;
    return WEFT_OK;
}

static weft_status find(const rule_run *r, size_t from, size_t *start, size_t *end)
{
    const weft_split *split = &r->w->rules->splits[r->rule];
    if (split->pattern)
        return weft_pattern_find(split->pattern, r->w->matcher, r->text, from, start, end);
    *start = *end = weft_bytes_find(r->text, from, split->literal);
    if (*start < r->text.bytes)
        *end += split->literal.bytes;
    return WEFT_OK;
}

/* Encodes each word that the rules from `rule` on cut the text into. The text is valid UTF-8. */
static weft_status apply_rules(const weft_rules_worker *w, size_t rule, weft_bytes text)
{
    if (text.bytes == 0)
        return WEFT_OK;
    if (rule == w->rules->num_splits)
        return encode_word(w, text);
    rule_run r = {.w = w, .rule = rule, .text = text};
    for (size_t at = 0, start, end; at < text.bytes; at = end) {
        WEFT_TRY(find(&r, at, &start, &end));
        WEFT_TRY(add_part(&r, at, start, false));
        WEFT_TRY(add_part(&r, start, end, true));
    }
    return give_held(&r);
}

/* --- texts --------------------------------------------------------------------------------- */

/* Text without any added token, changed. */
static weft_status encode_words(weft_rules_worker *w, weft_bytes text)
{
    const weft_rules *r = w->rules;
    const weft_change_place place = w->place;
    w->place = (weft_change_place){0};
    WEFT_TRY(weft_change_text(r->word_changes.steps, r->word_changes.count, w->matcher, place, text,
                              w->changed_words, &text));
    return apply_rules(w, 0, text);
}

typedef weft_status (*encode_part)(weft_rules_worker *w, weft_bytes text);

/* Gives added tokens their ids, and what lies between to `encode`. */
static weft_status encode_between(weft_rules_worker *w, const weft_added *added, weft_bytes text,
                                  encode_part encode)
{
    added_search search = {.added = added, .text = text};
    size_t before, start, end;
    uint32_t id;
    bool found = true;
    while (found) {
        found = added_next(&search, &before, &start, &end, &id);
        if (before < start)
            WEFT_TRY(encode(w, (weft_bytes){text.text + before, start - before}));
        if (!found)
            break;
        WEFT_TRY(weft_tokens_add(w->out, (int32_t)id));
        w->place = (weft_change_place){0};
    }
    return WEFT_OK;
}

/* Text without any token that is added to text as it is. */
static weft_status encode_unchanged(weft_rules_worker *w, weft_bytes text)
{
    const weft_rules *r = w->rules;
    WEFT_TRY(weft_change_text(r->changes.steps, r->changes.count, w->matcher, w->place, text,
                              w->changed, &text));
    return encode_between(w, &r->added_changed, text, encode_words);
}

/* Bytes of valid UTF-8 from `at` on. */
static size_t valid_bytes(weft_bytes text, size_t at)
{
    const size_t first = at;
    for (size_t step; at < text.bytes; at += step) {
        step = (unsigned char)text.text[at] < 0x80
                   ? 1
                   : weft_utf8_bytes(text.text + at, text.bytes - at);
        if (step == 0)
            break;
    }
    return at - first;
}

static size_t invalid_bytes(weft_bytes text, size_t at)
{
    const size_t first = at;
    while (at < text.bytes && weft_utf8_bytes(text.text + at, text.bytes - at) == 0)
        at++;
    return at - first;
}

weft_status weft_rules_encode(const weft_rules *rules, weft_rules_worker *w, weft_bytes text,
                              weft_tokens *out)
{
    w->rules = rules;
    w->out = out;
    w->place = (weft_change_place){.begins_document = true};
    for (size_t at = 0, bytes; at < text.bytes; at += bytes) {
        bytes = valid_bytes(text, at);
        WEFT_TRY(encode_between(w, &rules->added, (weft_bytes){text.text + at, bytes},
                                encode_unchanged));
        at += bytes;
        bytes = invalid_bytes(text, at);
        if (bytes > 0)
            WEFT_TRY(encode_word(w, (weft_bytes){text.text + at, bytes}));
        w->place = (weft_change_place){.goes_on = true};
    }
    return WEFT_OK;
}
