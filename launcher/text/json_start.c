#include "launcher/text/json_start.h"

#include <string.h>

typedef struct cursor {
    const char *at, *end;
} cursor;

/* The next byte; 0 where there is none. */
static char peek(const cursor *c)
{
    return c->at < c->end ? *c->at : '\0';
}

static void skip(cursor *c, const char *set)
{
    while (c->at < c->end && *c->at && strchr(set, *c->at))
        c->at++;
}

static const char white[] = " \t\r\n\f\v";

/* Skips a character and white space. */
static bool take(cursor *c, char wanted)
{
    if (peek(c) != wanted)
        return false;
    c->at++;
    skip(c, white);
    return true;
}

/* A string on one line, and the white space behind it; its bytes without quotes. */
static bool take_string(cursor *c, const char **out, size_t *bytes)
{
    if (peek(c) != '"')
        return false;
    *out = ++c->at;
    while (c->at < c->end && *c->at != '"' && *c->at != '\n')
        c->at += *c->at == '\\' && c->at + 1 < c->end ? 2 : 1;
    if (peek(c) != '"')
        return false;
    *bytes = (size_t)(c->at - *out);
    return take(c, '"');
}

static bool begins_value(const cursor *c)
{
    return peek(c) && strchr("\"{[-0123456789", peek(c));
}

/* Nothing more on this line, but for the rest of an array. */
static bool ends_line(const cursor *c)
{
    cursor rest = *c;
    skip(&rest, " \t\r");
    if (take(&rest, ','))
        return begins_value(&rest);
    return !peek(&rest) || strchr("\n]", peek(&rest));
}

/* --- keys ---------------------------------------------------------------------------------- */

/* Behind a value; false where the bytes end before. */
static bool skip_value(cursor *c)
{
    const char *text;
    size_t bytes;
    int depth = 0;
    while (c->at < c->end) {
        const char byte = *c->at;
        if (byte == '"') {
            if (!take_string(c, &text, &bytes))
                return false;
            continue;
        }
        if (depth == 0 && (byte == ',' || byte == '}'))
            return true;
        depth += (byte == '{' || byte == '[') - (byte == '}' || byte == ']');
        c->at++;
    }
    return false;
}

static bool can_be_named(const char *key, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if ((unsigned char)key[i] < ' ' || key[i] == '\'' || key[i] == 0x7f)
            return false;
    return bytes > 0 && bytes < sizeof((weft_json_start *)0)->key;
}

/* c: behind an object's bracket. */
static void find_key(cursor c, weft_json_start *out)
{
    const char *key;
    size_t bytes;
    while (take_string(&c, &key, &bytes) && take(&c, ':')) {
        const bool is_text = bytes == 4 && memcmp(key, "text", 4) == 0;
        if (peek(&c) == '"' && can_be_named(key, bytes) && (is_text || !out->key[0])) {
            memcpy(out->key, key, bytes);
            out->key[bytes] = '\0';
        }
        if (!skip_value(&c) || !take(&c, ','))
            return;
    }
}

/* --- objects and arrays -------------------------------------------------------------------- */

static bool is_object(cursor c, weft_json_start *out)
{
    const char *key;
    size_t bytes;
    if (!take(&c, '{'))
        return false;
    const cursor inside = c;
    if (peek(&c) == '}') {
        c.at++;
        return out->has_objects = ends_line(&c);
    }
    if (!take_string(&c, &key, &bytes) || peek(&c) != ':')
        return false;
    out->has_objects = true;
    find_key(inside, out);
    return true;
}

/* c: behind an array's bracket: "one", "two" or "one"]. */
static bool has_strings(cursor c)
{
    const char *text;
    size_t bytes;
    const bool is_long = c.end - c.at > WEFT_JSON_START_BYTES / 2;
    if (!take_string(&c, &text, &bytes))
        return is_long && c.at == c.end; /* no line of prose */
    if (take(&c, ','))
        return c.at == c.end || begins_value(&c);
    return peek(&c) == ']' && (c.at++, ends_line(&c));
}

/* c: behind an array's bracket: 1, 2] or an end of the bytes before that bracket. */
static bool has_numbers(cursor c)
{
    const char *start = c.at;
    skip(&c, "-+.,0123456789eE \t\r\n");
    if (!memchr(start, ',', (size_t)(c.at - start)))
        return false;
    return c.at == c.end || (peek(&c) == ']' && (c.at++, ends_line(&c)));
}

bool weft_json_start_find(const char *bytes, size_t num_bytes, weft_json_start *out)
{
    static const char mark[] = "\xef\xbb\xbf";
    cursor c = {bytes, bytes + num_bytes};
    weft_json_start found = {0};
    if (num_bytes >= 3 && memcmp(bytes, mark, 3) == 0)
        c.at += 3;
    skip(&c, white);
    while (take(&c, '['))
        found.is_array = true;
    if (!is_object(c, &found) && !(found.is_array && (has_strings(c) || has_numbers(c))))
        return false;
    *out = found;
    return true;
}
