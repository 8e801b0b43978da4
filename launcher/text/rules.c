#include "launcher/text/rules.h"

#include <stdlib.h>

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
    weft_added_search search = {.added = added, .text = text};
    size_t before, start, end;
    uint32_t id;
    bool found = true;
    while (found) {
        found = weft_added_next(&search, &before, &start, &end, &id);
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
