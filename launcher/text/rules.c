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

static weft_status encode_word(void *to, weft_bytes word)
{
    const weft_rules_worker *w = to;
    return weft_bpe_encode(w->rules->bpe, w->cache, word, w->out);
}

/* Text without any added token, changed. */
static weft_status encode_words(weft_rules_worker *w, weft_bytes text)
{
    const weft_rules *r = w->rules;
    const weft_change_place place = w->place;
    w->place = (weft_change_place){0};
    WEFT_TRY(weft_change_text(r->word_changes.steps, r->word_changes.count, w->matcher, place, text,
                              w->changed_words, &text));
    return weft_split_text(r->splits, r->num_splits, w->matcher, text, encode_word, w);
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
