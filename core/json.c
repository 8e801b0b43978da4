#include "core/json.h"

#include <ctype.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/json_write.h"

/* Deep enough for any configuration, shallow enough for any stack. */
enum { MAX_DEPTH = 64 };

typedef struct scan {
    const char *at;
    weft_json_fault fault; /* reason NULL: none yet */
    int depth;
    bool takes_zero; /* "\u0000" may stand in a string */
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
        for (int i = 1; i <= 4; i++)
            if (!isxdigit((unsigned char)s->at[i]))
                return fail(s, "\\u wants four hexadecimal digits", start);
        if (!s->takes_zero && memcmp(s->at + 1, "0000", 4) == 0)
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

static bool check(const char *text, bool takes_zero, weft_json_span *root, weft_json_fault *fault)
{
    scan s = {.at = text, .takes_zero = takes_zero};
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

bool weft_json_check(const char *text, weft_json_span *root, weft_json_fault *fault)
{
    return check(text, false, root, fault);
}

bool weft_json_check_any(const char *text, weft_json_span *root, weft_json_fault *fault)
{
    return check(text, true, root, fault);
}

bool weft_json_next(weft_json_span parent, const char **cursor, weft_json_span *key,
                    weft_json_span *value)
{
    scan s = {.at = *cursor ? *cursor : parent.start + 1, .takes_zero = true};
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

/* The number of a "\uXXXX"; 0x110000: none stands there. */
static uint32_t escaped_unit(const char *at, const char *end)
{
    char digits[5] = "";
    if (end - at < 6 || at[0] != '\\' || at[1] != 'u')
        return 0x110000;
    memcpy(digits, at + 2, 4);
    return (uint32_t)strtoul(digits, NULL, 16);
}

static char *add_utf8(char *to, uint32_t code)
{
    const int more = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    static const unsigned char first[] = {0, 0xc0, 0xe0, 0xf0};
    *to++ = (char)(first[more] | code >> 6 * more);
    for (int left = more; left-- > 0;)
        *to++ = (char)(0x80 | (code >> 6 * left & 0x3f));
    return to;
}

/* Two "\uXXXX" may be one character (RFC 8259, section 7). Returns what stands behind it. */
static const char *read_unit(const char *at, const char *end, uint32_t *code, size_t *num_halves)
{
    *code = escaped_unit(at, end);
    at += 6;
    if (*code < 0xd800 || *code > 0xdfff)
        return at;
    const uint32_t low = escaped_unit(at, end);
    if (*code < 0xdc00 && low >= 0xdc00 && low <= 0xdfff) {
        *code = 0x10000 + ((*code - 0xd800) << 10) + (low - 0xdc00);
        return at + 6;
    }
    ++*num_halves;
    *code = 0xfffd;
    return at;
}

weft_status weft_json_read_text(weft_json_span value, weft_arena *arena, weft_json_characters *out)
{
    static const char escapes[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    void *memory;
    WEFT_TRY(weft_arena_alloc(arena, value.bytes, &memory)); /* no escape grows */
    char *to = memory;
    *out = (weft_json_characters){.bytes = to};
    for (const char *at = value.start + 1, *end = value.start + value.bytes - 1; at < end;) {
        uint32_t code;
        if (*at != '\\') {
            *to++ = *at++;
        } else if (at[1] == 'u') {
            at = read_unit(at, end, &code, &out->num_halves);
            to = add_utf8(to, code);
        } else {
            *to++ = meant[strchr(escapes, at[1]) - escapes];
            at += 2;
        }
    }
    *to = '\0';
    out->num_bytes = (size_t)(to - out->bytes);
    return WEFT_OK;
}

weft_status weft_json_string(weft_json_span value, weft_arena *arena, const char **out)
{
    weft_json_characters text;
    WEFT_TRY(weft_json_read_text(value, arena, &text));
    if (text.num_halves > 0)
        return WEFT_ERROR(WEFT_CONFIG, "a \\u escape is half of a surrogate pair");
    *out = text.bytes;
    return WEFT_OK;
}

static weft_status quote(const char *bytes, size_t num_bytes, bool keeps_bytes, weft_arena *arena,
                         const char **out)
{
    weft_new_text text;
    WEFT_TRY(weft_new_text_open(&text));
    weft_json_write_string(text.file, bytes, num_bytes, keeps_bytes);
    return weft_new_text_close(&text, WEFT_OK, arena, out);
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
