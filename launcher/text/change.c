#include "launcher/text/change.h"

#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

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
