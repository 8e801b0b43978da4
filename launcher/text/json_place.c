#include "launcher/text/json_place.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES = 256 };

/* Writes ": a.b[2]" and returns its bytes. */
static size_t print_path(const weft_json_place *at, char path[PATH_BYTES])
{
    if (!at->parent)
        return (size_t)snprintf(path, PATH_BYTES, "%s", "");
    const size_t used = print_path(at->parent, path);
    if (used + 1 >= PATH_BYTES)
        return used;
    const char *joint = used ? "." : ": ";
    const int more = at->key.text ? snprintf(path + used, PATH_BYTES - used, "%s%.*s", joint,
                                             (int)at->key.bytes, at->key.text)
                                  : snprintf(path + used, PATH_BYTES - used, "[%zu]", at->index);
    return used + (size_t)more < PATH_BYTES ? used + (size_t)more : PATH_BYTES - 1;
}

WEFT_PRINTF(2, 0)
static weft_status refuse_place(const weft_json_place *at, const char *format, va_list arguments)
{
    char path[PATH_BYTES], text[256];
    vsnprintf(text, sizeof text, format, arguments);
    for (char *c = text; *c; c++) /* one line, whatever the file holds */
        if ((unsigned char)*c < ' ')
            *c = ' ';
    print_path(at, path);
    return WEFT_ERROR(WEFT_FILE, "%s%s: %s", at->file, path, text);
}

weft_status weft_json_refuse(const weft_json_place *at, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    const weft_status status = refuse_place(at, format, arguments);
    va_end(arguments);
    return status;
}

weft_status weft_json_refuse_unknown(const weft_json_place *at, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    const weft_status status = refuse_place(at, format, arguments);
    va_end(arguments);
    return weft_error_unknown(status);
}

weft_status weft_json_whole(const char *file, const char *text, weft_json_place *out)
{
    weft_json_fault fault;
    weft_json_place whole = {.file = file};
    if (!weft_json_check(text, &whole.value, &fault)) {
        int line, column;
        weft_json_position(text, fault.at, &line, &column);
        return WEFT_ERROR(WEFT_FILE, "%s:%d:%d: not valid JSON: %s", file, line, column,
                          fault.reason);
    }
    if (weft_json_kind_of(whole.value) != WEFT_JSON_OBJECT)
        return WEFT_ERROR(WEFT_FILE, "%s: holds %s, not an object", file,
                          weft_json_kind_text(whole.value));
    *out = whole;
    return WEFT_OK;
}

/* Whether a text is one of "a|b|c", and which; -1: none. */
static int index_among(const char *names, const char *text, size_t bytes)
{
    for (int index = 0; *names; index++) {
        const size_t length = strcspn(names, "|");
        if (length == bytes && memcmp(names, text, bytes) == 0)
            return index;
        names += length + (names[length] == '|');
    }
    return -1;
}

weft_status weft_json_members(const weft_json_place *object, const char *names,
                              weft_json_place *out)
{
    weft_json_span name, value;
    size_t count = 0;
    if (!weft_json_is_there(object) || weft_json_kind_of(object->value) != WEFT_JSON_OBJECT)
        return weft_json_refuse(object, "expected an object");
    for (const char *at = names; *at; count++) {
        const size_t bytes = strcspn(at, "|");
        out[count] = (weft_json_place){
            .file = object->file, .parent = object, .key = (weft_bytes){at, bytes}};
        at += bytes + (at[bytes] == '|');
    }
    for (const char *cursor = NULL; weft_json_next(object->value, &cursor, &name, &value);) {
        const int index = index_among(names, name.start + 1, name.bytes - 2);
        const int shown = (int)(name.bytes < 62 ? name.bytes - 2 : 60);
        if (index < 0)
            return weft_json_refuse_unknown(object, "\"%.*s\" is not known", shown, name.start + 1);
        if (out[index].value.start)
            return weft_json_refuse(object, "\"%.*s\" stands twice", shown, name.start + 1);
        out[index].value = value;
    }
    return WEFT_OK;
}

weft_json_place weft_json_member(const weft_json_place *object, const char *name)
{
    weft_json_place found = {.file = object->file, .parent = object, .key = weft_bytes_of(name)};
    weft_json_span key, value;
    if (!weft_json_is_there(object) || weft_json_kind_of(object->value) != WEFT_JSON_OBJECT)
        return found;
    for (const char *cursor = NULL; weft_json_next(object->value, &cursor, &key, &value);)
        if (key.bytes == found.key.bytes + 2 && memcmp(key.start + 1, name, key.bytes - 2) == 0)
            found.value = value;
    return found;
}

bool weft_json_is_there(const weft_json_place *at)
{
    return at->value.start && weft_json_kind_of(at->value) != WEFT_JSON_NULL;
}

weft_status weft_json_count(const weft_json_place *array, size_t *count)
{
    weft_json_place element;
    *count = 0;
    if (!weft_json_is_there(array))
        return WEFT_OK;
    if (weft_json_kind_of(array->value) != WEFT_JSON_ARRAY)
        return weft_json_refuse(array, "expected an array");
    for (const char *cursor = NULL; weft_json_each(array, &cursor, &element);)
        ++*count;
    return WEFT_OK;
}

bool weft_json_each(const weft_json_place *array, const char **cursor, weft_json_place *out)
{
    const size_t index = *cursor ? out->index + 1 : 0;
    *out = (weft_json_place){.file = array->file, .parent = array, .index = index};
    return weft_json_is_there(array) && weft_json_next(array->value, cursor, NULL, &out->value);
}

static weft_status expect(const weft_json_place *at, weft_json_kind kind, const char *name)
{
    if (!at->value.start)
        return weft_json_refuse(at, "missing; expected %s", name);
    if (weft_json_kind_of(at->value) != kind)
        return weft_json_refuse(at, "expected %s, not %s", name, weft_json_kind_text(at->value));
    return WEFT_OK;
}

weft_status weft_json_get_text(const weft_json_place *at, weft_arena *arena, weft_bytes *out)
{
    const char *text;
    WEFT_TRY(expect(at, WEFT_JSON_STRING, "a string"));
    const weft_status status = weft_json_string(at->value, arena, &text);
    if (status == WEFT_CONFIG)
        return weft_json_refuse(at, "%s", weft_error_get()->text);
    WEFT_TRY(status);
    const weft_bytes found = weft_bytes_of(text);
    for (size_t i = 0, step; i < found.bytes; i += step) {
        step = weft_utf8_bytes(text + i, found.bytes - i);
        if (step == 0)
            return weft_json_refuse(at, "not UTF-8");
    }
    *out = found;
    return WEFT_OK;
}

weft_status weft_json_get_whole(const weft_json_place *at, int64_t most, int64_t *out)
{
    char *end;
    WEFT_TRY(expect(at, WEFT_JSON_NUMBER, "a whole number"));
    errno = 0;
    const long long value = strtoll(at->value.start, &end, 10);
    if (end != at->value.start + at->value.bytes || errno || value < 0 || value > most)
        return weft_json_refuse(at, "expected a whole number from 0 to %lld, not %.*s",
                                (long long)most, (int)(at->value.bytes < 30 ? at->value.bytes : 30),
                                at->value.start);
    *out = value;
    return WEFT_OK;
}

weft_status weft_json_get_flag(const weft_json_place *at, bool *out)
{
    if (!weft_json_is_there(at))
        return WEFT_OK;
    WEFT_TRY(expect(at, WEFT_JSON_BOOL, "true or false"));
    *out = at->value.start[0] == 't';
    return WEFT_OK;
}

weft_status weft_json_get_choice(const weft_json_place *at, const char *names, int *out)
{
    WEFT_TRY(expect(at, WEFT_JSON_STRING, "a string"));
    *out = index_among(names, at->value.start + 1, at->value.bytes - 2);
    if (*out < 0)
        return weft_json_refuse_unknown(at, "%.*s is not known; expected one of %s",
                                        (int)(at->value.bytes < 60 ? at->value.bytes : 60),
                                        at->value.start, names);
    return WEFT_OK;
}
