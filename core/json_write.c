#include "core/json_write.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WRAP = 96 }; /* columns of a flat container's line */

/* --- single values ------------------------------------------------------------------------- */

/* Bytes of the character that begins here, 0: none does; *bad is then how many bytes could have
 * begun one, at least 1 (Unicode 15, table 3-7 and section 3.9). */
static size_t utf8_length(const unsigned char *s, size_t room, size_t *bad)
{
    size_t length = s[0] < 0x80 ? 1 : s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
    if (s[0] > 0xf4)
        length = 0;
    for (*bad = 1; *bad < length; ++*bad) {
        unsigned char low = 0x80, high = 0xbf;
        if (*bad == 1) {
            low = s[0] == 0xe0 ? 0xa0 : s[0] == 0xf0 ? 0x90 : low;
            high = s[0] == 0xed ? 0x9f : s[0] == 0xf4 ? 0x8f : high;
        }
        if (*bad == room || s[*bad] < low || s[*bad] > high)
            return 0;
    }
    return length;
}

void weft_json_write_string(FILE *file, const char *bytes, size_t num_bytes, bool keeps_bytes)
{
    static const char escapes[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
    fputc('"', file);
    for (size_t i = 0, bad = 1; i < num_bytes;) {
        const char *c = bytes + i, *escape = *c ? strchr(escapes, *c) : NULL;
        size_t length = utf8_length((const unsigned char *)c, num_bytes - i, &bad);
        if (length == 0 && keeps_bytes)
            length = bad;
        if (escape)
            fprintf(file, "\\%c", letters[escape - escapes]);
        else if (length == 1 && ((unsigned char)*c < 0x20 || *c == 0x7f))
            fprintf(file, "\\u%04x", (unsigned)*c);
        else if (length > 0)
            fwrite(c, 1, length, file);
        else
            fputs("\xef\xbf\xbd", file);
        i += length > 0 ? length : bad;
    }
    fputc('"', file);
}

weft_json_digits weft_json_digits_of(double value)
{
    weft_json_digits out = {"null"};
    if (isfinite(value) && value == floor(value) && fabs(value) < 1e9) {
        snprintf(out.text, sizeof out.text, "%.0f", value);
        return out;
    }
    for (int digits = 6; isfinite(value) && digits <= 17; digits++) {
        snprintf(out.text, sizeof out.text, "%.*g", digits, value);
        if (strtod(out.text, NULL) == value)
            break;
    }
    return out;
}

/* --- members ------------------------------------------------------------------------------- */

/* What stands before a value of so many bytes; NEST: of one that opens. */
enum { NEST = 24 };
static void begin(weft_json_out *out, const char *key, size_t num_bytes)
{
    const bool may_wrap =
        out->flat_depth > 1 && (out->depth == out->flat_depth || num_bytes == NEST);
    const bool is_flat = out->flat_depth > 0, any = out->any[out->depth];
    out->any[out->depth] = true;
    out->column += num_bytes + 2 + (key ? strlen(key) + 4 : 0);
    if (any)
        fputc(',', out->file);
    if (out->depth > 0 && (!is_flat || (any && may_wrap && out->column > WRAP))) {
        const int depth = is_flat ? out->flat_depth : out->depth;
        fprintf(out->file, "\n%*s", 2 * depth, "");
        out->column = num_bytes + 2 * (size_t)depth + (key ? strlen(key) + 4 : 0);
    } else if (any) {
        fputc(' ', out->file);
    }
    if (key) {
        weft_json_write_string(out->file, key, strlen(key), out->keeps_bytes);
        fputs(": ", out->file);
    }
}

static void open(weft_json_out *out, const char *key, char bracket)
{
    assert(out->depth < WEFT_JSON_MAX_DEPTH);
    begin(out, key, NEST);
    out->column -= NEST - 1;
    fputc(bracket, out->file);
    out->depth++;
    out->any[out->depth] = false;
    out->closing[out->depth] = bracket == '{' ? '}' : ']';
}

void weft_json_open(weft_json_out *out, const char *key, char bracket)
{
    open(out, key, bracket);
}

void weft_json_open_flat(weft_json_out *out, const char *key, char bracket)
{
    open(out, key, bracket);
    if (out->flat_depth == 0)
        out->flat_depth = out->depth;
}

void weft_json_close(weft_json_out *out)
{
    assert(out->depth > 0);
    const int depth = out->depth--;
    if (out->flat_depth == 0 && out->any[depth])
        fprintf(out->file, "\n%*s", 2 * out->depth, "");
    if (out->flat_depth == depth)
        out->flat_depth = 0;
    fputc(out->closing[depth], out->file);
    if (out->depth == 0 && out->closing[depth] == '}')
        fputc('\n', out->file);
}

void weft_json_raw(weft_json_out *out, const char *key, const char *json)
{
    begin(out, key, strlen(json));
    fputs(json, out->file);
}

void weft_json_number(weft_json_out *out, const char *key, double value)
{
    weft_json_raw(out, key, weft_json_digits_of(value).text);
}

void weft_json_numbers(weft_json_out *out, const char *key, const double *values, size_t count)
{
    weft_json_open_flat(out, key, '[');
    for (size_t i = 0; i < count; i++)
        weft_json_number(out, NULL, values[i]);
    weft_json_close(out);
}

void weft_json_text(weft_json_out *out, const char *key, const char *text)
{
    begin(out, key, text ? strlen(text) + 2 : 4);
    if (text)
        weft_json_write_string(out->file, text, strlen(text), out->keeps_bytes);
    else
        fputs("null", out->file);
}

void weft_json_bool(weft_json_out *out, const char *key, bool value)
{
    weft_json_raw(out, key, value ? "true" : "false");
}
