/* Conditions on other keys, as a key's row says them. */
#include <stdlib.h>
#include <string.h>

#include "core/options/options.h"

typedef struct keys {
    const weft_option_section *sections;
    size_t num_sections;
    const char *own; /* what a clause "is 0" is of */
    weft_arena *arena;
} keys;

static bool is_named(const char *name, const char *at, size_t bytes)
{
    return strlen(name) == bytes && memcmp(name, at, bytes) == 0;
}

/* The value as JSON has it, a string without its quotes. */
static weft_status value_of(const keys *k, const weft_option_section *section, const char *key,
                            size_t bytes, const char **out)
{
    for (size_t i = 0; section && i < section->num_rows; i++)
        if (is_named(section->rows[i].key, key, bytes)) {
            const char *text;
            WEFT_TRY(weft_option_text(section, &section->rows[i], k->arena, &text));
            const int quote = *text == '"';
            return weft_arena_printf(k->arena, out, "%.*s", (int)strlen(text) - 2 * quote,
                                     text + quote);
        }
    return WEFT_ERROR(WEFT_INTERNAL, "a key's condition names no key: %.*s", (int)bytes, key);
}

static bool is_so(const char *value, const char *words, size_t bytes)
{
    if (strncmp(words, "not ", 4) == 0)
        return !is_so(value, words + 4, bytes - 4);
    if (strncmp(words, "below ", 6) == 0)
        return strtod(value, NULL) < strtod(words + 6, NULL);
    if (strncmp(words, "at most ", 8) == 0)
        return strtod(value, NULL) <= strtod(words + 8, NULL);
    if (is_named("given", words, bytes))
        return *value != '\0';
    return is_named(value, words, bytes);
}

/* "data.a, b are false", "is 0" */
static weft_status clause_holds(const keys *k, const char *at, const char *end, bool *out)
{
    const weft_option_section *section = NULL;
    const bool is_own = strncmp(at, "is ", 3) == 0;
    const char *words = at, *value;
    while (!is_own && (words == at || words[-2] == ','))
        words += strcspn(words, " ") + 1;
    const char *const behind = is_own ? k->own + strlen(k->own) : words;
    at = is_own ? k->own : at;
    words += strncmp(words, "is ", 3) == 0 ? 3 : strncmp(words, "are ", 4) == 0 ? 4 : 0;
    for (const char *next; *out && at < behind; at = next) {
        const size_t key_bytes = strcspn(at, ", "), prefix = strcspn(at, ".");
        next = at + key_bytes + strspn(at + key_bytes, ", ");
        for (size_t i = 0; prefix < key_bytes && i < k->num_sections; i++)
            if (is_named(k->sections[i].name, at, prefix))
                section = &k->sections[i];
        at += prefix < key_bytes ? prefix + 1 : 0;
        WEFT_TRY(value_of(k, section, at, strcspn(at, ", "), &value));
        *out = is_so(value, words, (size_t)(end - words));
    }
    return WEFT_OK;
}

static weft_status all_hold(const keys *k, const char *at, const char *end, bool *out)
{
    static const char and[] = " and ";
    const char *next;
    *out = true;
    for (; *out && at < end; at = next + strlen(and)) {
        next = strstr(at, and);
        next = next && next < end ? next : end;
        WEFT_TRY(clause_holds(k, at, next, out));
    }
    return WEFT_OK;
}

weft_status weft_options_reason(const weft_option_section *sections, size_t num_sections,
                                const char *own, const char *reasons, weft_arena *arena,
                                const char **out)
{
    const keys k = {sections, num_sections, own, arena};
    *out = NULL;
    for (const char *at = reasons; at && *at;) {
        const size_t bytes = strcspn(at, ";"), words = strcspn(at, ";(");
        const bool has_test = words < bytes; /* in brackets, behind a space */
        bool holds;
        WEFT_TRY(all_hold(&k, has_test ? at + words + 1 : at, at + bytes - has_test, &holds));
        if (holds)
            return weft_arena_printf(arena, out, "%.*s", (int)(words - has_test), at);
        at += bytes + strspn(at + bytes, "; ");
    }
    return WEFT_OK;
}
