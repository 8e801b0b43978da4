#include "launcher/text/added.h"

#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

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

bool weft_added_next(weft_added_search *s, size_t *before, size_t *start, size_t *end, uint32_t *id)
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
