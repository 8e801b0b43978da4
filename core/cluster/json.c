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
    return FAULT(r, value.start, path, key, "expected %s, got %s", what,
                 weft_json_kind_text(value));
}

static weft_status unknown_key(const reader *r, const members *m, weft_json_span span,
                               const char *key)
{
    const char *near = weft_nearest_name(key, m->names, m->count);
    if (near)
        return FAULT(r, span.start, m->path, key, "unknown key; did you mean %s%s%s?",
                     m->path ? m->path : "", m->path ? "." : "", near);
    char list[256] = "";
    size_t used = 0;
    for (size_t i = 0; i < m->count && used < sizeof list; i++)
        used +=
            (size_t)snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", m->names[i]);
    return FAULT(r, span.start, m->path, key, "unknown key; the keys are %s", list);
}

weft_status weft_cluster_members_read(const reader *r, weft_json_span object, members *m)
{
    const char *cursor = NULL;
    weft_json_span key_span, value;
    while (weft_json_next(object, &cursor, &key_span, &value)) {
        const char *key;
        weft_status status = weft_json_string(key_span, r->arena, &key);
        if (status == WEFT_CONFIG) {
            return weft_option_fault(&r->source, key_span.start, m->path, NULL, status);
        }
        WEFT_TRY(status);
        size_t i = 0;
        while (i < m->count && strcmp(m->names[i], key) != 0)
            i++;
        if (i == m->count)
            return unknown_key(r, m, key_span, key);
        if (m->values[i].bytes) {
            int line, column;
            weft_json_position(r->source.text, m->keys[i].start, &line, &column);
            return FAULT(r, key_span.start, m->path, key,
                         "given twice; first at line %d, column %d", line, column);
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
    return FAULT(r, value.start, path, key, "%.*s is too large",
                 (int)(value.bytes < 40 ? value.bytes : 40), value.start);
}

weft_status weft_cluster_count_read(const reader *r, weft_json_span value, const char *path,
                                    const char *key, int *out)
{
    double number;
    WEFT_TRY(weft_cluster_number_read(r, value, path, key, &number));
    if (number < 1 || number > 1e6 || number != floor(number))
        return FAULT(r, value.start, path, key, "%g is not a whole number of 1 to 1000000", number);
    *out = (int)number;
    return WEFT_OK;
}

weft_status weft_cluster_string_read(const reader *r, weft_json_span value, const char *path,
                                     const char *key, char *text, size_t bytes)
{
    const char *string;
    WEFT_TRY(weft_cluster_want(r, value, WEFT_JSON_STRING, "a string", path, key));
    weft_status status = weft_json_string(value, r->arena, &string);
    if (status == WEFT_CONFIG)
        return weft_option_fault(&r->source, value.start, path, key, status);
    WEFT_TRY(status);
    if (strlen(string) >= bytes)
        return FAULT(r, value.start, path, key, "longer than %zu bytes", bytes - 1);
    snprintf(text, bytes, "%s", string);
    return WEFT_OK;
}

weft_cluster_element weft_cluster_element_of(const char *array, int index)
{
    weft_cluster_element e;
    snprintf(e.text, sizeof e.text, "%s[%d]", array, index);
    return e;
}

weft_status weft_cluster_array_read(const reader *r, weft_json_span array,
                                    const weft_cluster_array *of, const char *what,
                                    weft_cluster *cluster, int *count)
{
    const char *cursor = NULL;
    weft_json_span element;
    WEFT_TRY(weft_cluster_want(r, array, WEFT_JSON_ARRAY, what, of->path, of->key));
    while (weft_json_next(array, &cursor, NULL, &element)) {
        if (*count == of->most)
            return FAULT(r, element.start, of->path, of->key, "at most %d %s", of->most, of->key);
        WEFT_TRY(of->read(r, element, *count, cluster));
        ++*count;
    }
    return WEFT_OK;
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
    return FAULT(r, array.start, path, key, "expected %s, got %d numbers", what, count);
}
