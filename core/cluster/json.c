/* Reads single values of a cluster's file; errors name the value's place. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/cluster/internal.h"
#include "core/options/options.h"

typedef weft_cluster_reader reader;
typedef weft_cluster_members members;

weft_status weft_cluster_want(const reader *r, weft_json_span value, weft_json_kind kind,
                              const char *what, const char *path, const char *key)
{
    if (weft_json_kind_of(value) == kind)
        return WEFT_OK;
    PLACE(r, value.start, path, key);
    return WEFT_ERROR(WEFT_CONFIG, "%s: expected %s, got %s", where, what,
                      weft_json_kind_text(value));
}

static weft_status unknown_key(const reader *r, const members *m, weft_json_span span,
                               const char *key)
{
    PLACE(r, span.start, m->path, key);
    const char *near = weft_nearest_name(key, m->names, m->count);
    if (near)
        return WEFT_ERROR(WEFT_CONFIG, "%s: unknown key; did you mean %s%s%s?", where,
                          m->path ? m->path : "", m->path ? "." : "", near);
    char list[256] = "";
    size_t used = 0;
    for (size_t i = 0; i < m->count && used < sizeof list; i++)
        used +=
            (size_t)snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", m->names[i]);
    return WEFT_ERROR(WEFT_CONFIG, "%s: unknown key; the keys are %s", where, list);
}

weft_status weft_cluster_members_read(const reader *r, weft_json_span object, members *m)
{
    const char *cursor = NULL;
    weft_json_span key_span, value;
    while (weft_json_next(object, &cursor, &key_span, &value)) {
        const char *key;
        weft_status status = weft_json_string(key_span, r->arena, &key);
        if (status == WEFT_CONFIG) {
            PLACE(r, key_span.start, m->path, NULL);
            return weft_error_context(status, "%s", where);
        }
        WEFT_TRY(status);
        size_t i = 0;
        while (i < m->count && strcmp(m->names[i], key) != 0)
            i++;
        if (i == m->count)
            return unknown_key(r, m, key_span, key);
        if (m->values[i].bytes) {
            PLACE(r, key_span.start, m->path, key);
            int line, column;
            weft_json_position(r->source.text, m->keys[i].start, &line, &column);
            return WEFT_ERROR(WEFT_CONFIG, "%s: given twice; first at line %d, column %d", where,
                              line, column);
        }
        m->keys[i] = key_span;
        m->values[i] = value;
    }
    return WEFT_OK;
}

weft_status weft_cluster_number_read(const reader *r, weft_json_span value, const char *path,
                                     const char *key, double *out)
{
    WEFT_TRY(weft_cluster_want(r, value, WEFT_JSON_NUMBER, "a number", path, key));
    *out = strtod(value.start, NULL); /* what follows a number in JSON is no part of one */
    if (isfinite(*out))
        return WEFT_OK;
    PLACE(r, value.start, path, key);
    return WEFT_ERROR(WEFT_CONFIG, "%s: %.*s is too large", where,
                      (int)(value.bytes < 40 ? value.bytes : 40), value.start);
}

weft_status weft_cluster_count_read(const reader *r, weft_json_span value, const char *path,
                                    const char *key, int *out)
{
    double number;
    WEFT_TRY(weft_cluster_number_read(r, value, path, key, &number));
    if (number < 1 || number > 1e6 || number != floor(number)) {
        PLACE(r, value.start, path, key);
        return WEFT_ERROR(WEFT_CONFIG, "%s: %g is not a whole number of 1 to 1000000", where,
                          number);
    }
    *out = (int)number;
    return WEFT_OK;
}

weft_status weft_cluster_string_read(const reader *r, weft_json_span value, const char *path,
                                     const char *key, char *text, size_t bytes)
{
    const char *string;
    WEFT_TRY(weft_cluster_want(r, value, WEFT_JSON_STRING, "a string", path, key));
    weft_status status = weft_json_string(value, r->arena, &string);
    PLACE(r, value.start, path, key);
    if (status == WEFT_CONFIG)
        return weft_error_context(status, "%s", where);
    WEFT_TRY(status);
    if (strlen(string) >= bytes)
        return WEFT_ERROR(WEFT_CONFIG, "%s: longer than %zu bytes", where, bytes - 1);
    snprintf(text, bytes, "%s", string);
    return WEFT_OK;
}

weft_cluster_element weft_cluster_element_of(const char *array, int index)
{
    weft_cluster_element e;
    snprintf(e.text, sizeof e.text, "%s[%d]", array, index);
    return e;
}

weft_status weft_cluster_numbers_read(const reader *r, weft_json_span array, const char *path,
                                      const char *key, int num, const char *what, double *out)
{
    const char *cursor = NULL;
    weft_json_span value;
    int count = 0;
    WEFT_TRY(weft_cluster_want(r, array, WEFT_JSON_ARRAY, what, path, key));
    for (; weft_json_next(array, &cursor, NULL, &value); count++)
        if (count < num)
            WEFT_TRY(weft_cluster_number_read(r, value, path, key, &out[count]));
    if (count == num)
        return WEFT_OK;
    PLACE(r, array.start, path, key);
    return WEFT_ERROR(WEFT_CONFIG, "%s: expected %s, got %d numbers", where, what, count);
}
