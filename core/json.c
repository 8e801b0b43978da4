#include "core/json.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "core/json_write.h"

/* Deep enough for any configuration, shallow enough for any stack. */
enum { MAX_DEPTH = 64 };

typedef struct scan {
    const char *at;
    weft_json_fault fault; /* reason NULL: none yet */
    int depth;
} scan;

static bool fail(scan *s, const char *reason, const char *at)
{
    if (!s->fault.reason)
        s->fault = (weft_json_fault){reason, at};
    return false;
}

static bool skip_space(scan *s)
{
    for (;;) {
        while (*s->at == ' ' || *s->at == '\t' || *s->at == '\n' || *s->at == '\r')
            s->at++;
        if (s->at[0] == '/' && s->at[1] == '/') {
            s->at += strcspn(s->at, "\n");
        } else if (s->at[0] == '/' && s->at[1] == '*') {
            const char *end = strstr(s->at + 2, "*/");
            if (!end)
                return fail(s, "the comment is never closed", s->at);
            s->at = end + 2;
        } else {
            return true;
        }
    }
}

static bool scan_escape(scan *s)
{
    const char *start = s->at++; /* the backslash */
    if (*s->at == 'u') {
        bool is_zero = true;
        for (int i = 1; i <= 4; i++) {
            if (!isxdigit((unsigned char)s->at[i]))
                return fail(s, "\\u wants four hexadecimal digits", start);
            is_zero = is_zero && s->at[i] == '0';
        }
        if (is_zero)
            return fail(s, "\\u0000 cannot stand in a string", start);
        s->at += 5;
        return true;
    }
    if (*s->at == '\0' || !strchr("\"\\/bfnrt", *s->at))
        return fail(s, "unknown escape in a string", start);
    s->at++;
    return true;
}

static bool scan_string(scan *s)
{
    const char *start = s->at++;
    while (*s->at != '"') {
        if (*s->at == '\0' || *s->at == '\n')
            return fail(s, "the string is never closed", start);
        if ((unsigned char)*s->at < 0x20)
            return fail(s, "raw control character in a string", s->at);
        if (*s->at == '\\') {
            if (!scan_escape(s))
                return false;
        } else {
            s->at++;
        }
    }
    s->at++;
    return true;
}

static bool scan_digits(scan *s)
{
    const char *start = s->at;
    while (isdigit((unsigned char)*s->at))
        s->at++;
    return s->at > start;
}

static bool scan_number(scan *s)
{
    const char *start = s->at;
    if (*s->at == '-')
        s->at++;
    const char *digits = s->at;
    if (!scan_digits(s))
        return fail(s, "a number wants digits", start);
    if (*digits == '0' && s->at - digits > 1)
        return fail(s, "a number cannot start with 0", start);
    if (*s->at == '.') {
        s->at++;
        if (!scan_digits(s))
            return fail(s, "a number wants digits after the point", start);
    }
    if (*s->at == 'e' || *s->at == 'E') {
        s->at++;
        if (*s->at == '+' || *s->at == '-')
            s->at++;
        if (!scan_digits(s))
            return fail(s, "a number wants digits after the exponent sign", start);
    }
    if (isalnum((unsigned char)*s->at) || *s->at == '.' || *s->at == '_')
        return fail(s, "not a number", start);
    return true;
}

static bool scan_word(scan *s)
{
    static const char *const words[] = {"true", "false", "null"};
    size_t bytes = 0;
    while (isalnum((unsigned char)s->at[bytes]) || s->at[bytes] == '_')
        bytes++;
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (bytes == strlen(words[i]) && memcmp(s->at, words[i], bytes) == 0) {
            s->at += bytes;
            return true;
        }
    }
    if (*s->at == '\0')
        return fail(s, "the text ends where a value should stand", s->at);
    if (*s->at == '\'')
        return fail(s, "strings stand in double quotes", s->at);
    return fail(s, "expected a value", s->at);
}

static bool scan_value(scan *s);

static bool scan_key(scan *s)
{
    if (*s->at != '"')
        return fail(s, "expected a key in double quotes", s->at);
    if (!scan_string(s) || !skip_space(s))
        return false;
    if (*s->at != ':')
        return fail(s, "expected ':' after the key", s->at);
    s->at++;
    return skip_space(s);
}

/* An object or an array. */
static bool scan_nest(scan *s)
{
    bool is_object = *s->at == '{';
    const char close = is_object ? '}' : ']';
    const char *start = s->at++;
    if (++s->depth > MAX_DEPTH)
        return fail(s, "nested too deeply", start);
    if (!skip_space(s))
        return false;
    if (*s->at != close) {
        for (;;) {
            if (is_object && !scan_key(s))
                return false;
            if (!scan_value(s) || !skip_space(s))
                return false;
            if (*s->at == close)
                break;
            if (*s->at == '\0')
                return fail(s, is_object ? "this '{' is never closed" : "this '[' is never closed",
                            start);
            if (*s->at != ',')
                return fail(s, is_object ? "expected ',' or '}'" : "expected ',' or ']'", s->at);
            const char *comma = s->at++;
            if (!skip_space(s))
                return false;
            if (*s->at == close)
                return fail(s, "nothing follows this comma", comma);
        }
    }
    s->at++;
    s->depth--;
    return true;
}

static bool scan_value(scan *s)
{
    if (*s->at == '{' || *s->at == '[')
        return scan_nest(s);
    if (*s->at == '"')
        return scan_string(s);
    if (*s->at == '-' || isdigit((unsigned char)*s->at))
        return scan_number(s);
    return scan_word(s);
}

bool weft_json_check(const char *text, weft_json_span *root, weft_json_fault *fault)
{
    scan s = {.at = text};
    if (skip_space(&s)) {
        root->start = s.at;
        if (*s.at == '\0') {
            fail(&s, "the text is empty", s.at);
        } else if (scan_value(&s)) {
            root->bytes = (size_t)(s.at - root->start);
            if (skip_space(&s) && *s.at != '\0')
                fail(&s, "text after the end", s.at);
        }
    }
    *fault = s.fault;
    return s.fault.reason == NULL;
}

bool weft_json_next(weft_json_span parent, const char **cursor, weft_json_span *key,
                    weft_json_span *value)
{
    scan s = {.at = *cursor ? *cursor : parent.start + 1};
    skip_space(&s);
    if (*s.at == ',') {
        s.at++;
        skip_space(&s);
    }
    if (*s.at == '}' || *s.at == ']')
        return false;
    if (key) {
        key->start = s.at;
        scan_string(&s);
        key->bytes = (size_t)(s.at - key->start);
        skip_space(&s);
        s.at++; /* the colon */
        skip_space(&s);
    }
    value->start = s.at;
    scan_value(&s);
    value->bytes = (size_t)(s.at - value->start);
    *cursor = s.at;
    return true;
}

weft_json_kind weft_json_kind_of(weft_json_span value)
{
    switch (value.start[0]) {
    case 'n':
        return WEFT_JSON_NULL;
    case 't':
    case 'f':
        return WEFT_JSON_BOOL;
    case '"':
        return WEFT_JSON_STRING;
    case '[':
        return WEFT_JSON_ARRAY;
    case '{':
        return WEFT_JSON_OBJECT;
    default:
        return WEFT_JSON_NUMBER;
    }
}

const char *weft_json_kind_text(weft_json_span value)
{
    switch (weft_json_kind_of(value)) {
    case WEFT_JSON_NULL:
        return "null";
    case WEFT_JSON_BOOL:
        return value.start[0] == 't' ? "true" : "false";
    case WEFT_JSON_STRING:
        return "a string";
    case WEFT_JSON_ARRAY:
        return "an array";
    case WEFT_JSON_OBJECT:
        return "an object";
    case WEFT_JSON_NUMBER:
        break;
    }
    return "a number";
}

weft_status weft_json_string(weft_json_span value, weft_arena *arena, const char **out)
{
    cJSON *parsed = cJSON_ParseWithLength(value.start, value.bytes);
    if (!parsed)
        return WEFT_ERROR(WEFT_CONFIG, "a \\u escape is half of a surrogate pair");
    weft_status status = weft_arena_strdup(arena, parsed->valuestring, out);
    cJSON_Delete(parsed);
    return status;
}

static weft_status quote(const char *bytes, size_t num_bytes, bool keeps_bytes, weft_arena *arena,
                         const char **out)
{
    char *text = NULL;
    size_t size = 0;
    FILE *memory = open_memstream(&text, &size);
    if (memory)
        weft_json_write_string(memory, bytes, num_bytes, keeps_bytes);
    const bool is_whole = memory && fclose(memory) == 0;
    weft_status status = is_whole ? weft_arena_strdup(arena, text, out)
                                  : WEFT_ERROR(WEFT_MEMORY, "no memory to quote a string");
    free(text);
    return status;
}

weft_status weft_json_quote(const char *text, weft_arena *arena, const char **out)
{
    return quote(text, strlen(text), true, arena, out);
}

weft_status weft_json_quote_bytes(const char *bytes, size_t num_bytes, weft_arena *arena,
                                  const char **out)
{
    return quote(bytes, num_bytes, false, arena, out);
}

weft_status weft_json_quote_utf8(const char *text, weft_arena *arena, const char **out)
{
    return weft_json_quote_bytes(text, strlen(text), arena, out);
}

void weft_json_position(const char *text, const char *at, int *line, int *column)
{
    *line = 1;
    *column = 1;
    for (const char *c = text; c < at; c++) {
        if (*c == '\n') {
            (*line)++;
            *column = 1;
        } else if (((unsigned char)*c & 0xc0) != 0x80) {
            (*column)++;
        }
    }
}
