#include "core/options/value.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/quantity.h"

/* Beyond this a bound is there for its other end alone. */
#define NO_BOUND 1e15
/* Doubles hold every integer up to it. */
#define MOST_OF_DOUBLE 9007199254740992LL

/* Everything that an error about one value needs to say where it stands. */
typedef struct place {
    const weft_option_source *source;
    const char *section;
    const weft_key *row;
} place;

/* Copies user text for one line of an error: cut to fit, control characters as '?'. */
static void copy_printable(const char *text, size_t bytes, char *out, size_t capacity)
{
    size_t n = bytes < capacity ? bytes : capacity - 1;
    for (size_t i = 0; i < n; i++)
        out[i] = (unsigned char)text[i] < 0x20 || text[i] == 0x7f ? '?' : text[i];
    out[n] = '\0';
    if (n < bytes && n > 3)
        memcpy(out + n - 3, "...", 3);
}

enum { PLACE_BYTES = 200 };

weft_status weft_option_fault(const weft_option_source *source, const char *at, const char *section,
                              const char *key, weft_status status)
{
    char text[PLACE_BYTES], where[PLACE_BYTES];
    if (!source->text) {
        snprintf(text, sizeof(text), "%s", source->words);
    } else {
        int line, column;
        weft_json_position(source->text, at, &line, &column);
        /* The end of a long file name says more than its beginning. */
        size_t bytes = strlen(source->file);
        const char *file = bytes > 100 ? source->file + bytes - 100 : source->file;
        snprintf(text, sizeof(text), "%s:%d:%d%s%.64s%s%.64s", file, line, column,
                 section || key ? ": " : "", section ? section : "", section && key ? "." : "",
                 key ? key : "");
    }
    copy_printable(text, strlen(text), where, PLACE_BYTES);
    return weft_error_context(status, "%s", where);
}

bool weft_option_has_bounds(const weft_key *row)
{
    return row->min != 0 || row->max != 0;
}

static void bound_text(const weft_key *row, double bound, char out[32])
{
    if (row->unit && strcmp(row->unit, "bytes") == 0)
        weft_quantity_bytes_text(bound, out);
    else
        snprintf(out, 32, bound < 1e10 ? "%.10g" : "%.3g", bound);
}

void weft_option_range(const weft_key *row, char out[96])
{
    char low[32], high[32];
    bound_text(row, row->min, low);
    bound_text(row, row->max, high);
    if (row->max > NO_BOUND)
        snprintf(out, 96, "at least %s", low);
    else if (row->min < -NO_BOUND)
        snprintf(out, 96, "at most %s", high);
    else
        snprintf(out, 96, "%s to %s", low, high);
    const size_t used = strlen(out);
    if (row->unit && *row->unit && out[used - 1] != 'B')
        snprintf(out + used, 96 - used, " %.24s", row->unit);
}

weft_json_span weft_option_choice(const weft_key *row, int index)
{
    const char *at = row->choices;
    if (row->names)
        return (size_t)index < row->num_names
                   ? (weft_json_span){row->names[index], strlen(row->names[index])}
                   : (weft_json_span){0};
    for (; index > 0 && *at; index--) {
        at += strcspn(at, "|");
        at += *at == '|';
    }
    return (weft_json_span){at, index == 0 ? strcspn(at, "|") : 0};
}

static weft_status bad_value(const place *p, weft_json_span value, const char *expected)
{
    char shown[48];
    weft_json_kind kind = weft_json_kind_of(value);
    bool show = kind == WEFT_JSON_STRING || kind == WEFT_JSON_NUMBER;
    const bool is_text = kind == WEFT_JSON_STRING && !p->source->is_bare; /* words are no JSON */
    copy_printable(value.start, value.bytes, shown, sizeof(shown));
    return WEFT_OPTION_FAULT(
        p->source, value.start, p->section, p->row->key, "expected %s, got %s%s%s", expected,
        show && !is_text ? "" : weft_json_kind_text(value), is_text ? " " : "", show ? shown : "");
}

/* also: further forms, ", also with k"; "". */
static weft_status bad_number(const place *p, weft_json_span value, const char *expected,
                              const char *also)
{
    char range[96] = "", text[320];
    const bool has_bounds = weft_option_has_bounds(p->row);
    if (has_bounds)
        weft_option_range(p->row, range);
    snprintf(text, sizeof text, "%s%s%s%s", expected, has_bounds ? " of " : "", range, also);
    return bad_value(p, value, text);
}

/* A string of digits that ends with a suffix of the row's unit. */
static weft_status read_quantity(const place *p, weft_json_span value, const char *expected,
                                 double *out)
{
    const weft_quantity kind = weft_quantity_of(p->row->unit);
    char text[160];
    if (value.bytes < 4 || !weft_quantity_is_meant(kind, value.start + 1, value.bytes - 2))
        return bad_number(p, value, expected, "");
    if (isalpha((unsigned char)value.start[value.bytes - 2]) &&
        weft_quantity_read(kind, value.start + 1, value.bytes - 2, out))
        return WEFT_OK;
    snprintf(text, sizeof text, ", also with %s", weft_quantity_suffixes(kind));
    return bad_number(p, value, expected, text);
}

static weft_status check_bounds(const place *p, weft_json_span value, double number)
{
    bool inside = number >= p->row->min && number <= p->row->max;
    bool lost = number != 0 && (float)number == 0; /* kernels compute in single precision */
    if (!weft_option_has_bounds(p->row) || (inside && !lost))
        return WEFT_OK;
    char shown[48], range[96];
    copy_printable(value.start, value.bytes, shown, sizeof(shown));
    if (inside)
        return WEFT_OPTION_FAULT(p->source, value.start, p->section, p->row->key,
                                 "%s is too small: 0 in single precision", shown);
    if (number > p->row->max && p->row->max > NO_BOUND)
        snprintf(range, sizeof range, "at most %.3g%s%.24s", p->row->max,
                 p->row->unit && *p->row->unit ? " " : "", p->row->unit ? p->row->unit : "");
    else
        weft_option_range(p->row, range);
    return WEFT_OPTION_FAULT(p->source, value.start, p->section, p->row->key,
                             "%s is out of range: %s", shown, range);
}

/* Digits are read as digits, so that 64-bit integers keep them all; 1e6 and 8.0 are integers
 * too. A string of digits serves writers whose own numbers are doubles, which hold no larger ones;
 * one with a suffix, people. */
static weft_status read_int(const place *p, weft_json_span value, const char *expected,
                            int64_t *out)
{
    weft_json_kind kind = weft_json_kind_of(value);
    weft_json_span digits = value;
    int64_t whole;
    if (kind == WEFT_JSON_STRING)
        digits = (weft_json_span){value.start + 1, value.bytes - 2};
    else if (kind != WEFT_JSON_NUMBER)
        return bad_number(p, value, expected, "");
    const bool is_word = p->source->is_bare && p->row->type != WEFT_OPTION_INT_LIST;
    size_t sign =
        digits.bytes > 0 && (digits.start[0] == '-' || (is_word && digits.start[0] == '+'));
    size_t num_digits = strspn(digits.start + sign, "0123456789");
    if (num_digits > 0 && sign + num_digits == digits.bytes) {
        errno = 0;
        long long number = strtoll(digits.start, NULL, 10);
        if (errno == ERANGE)
            WEFT_TRY(check_bounds(p, value, strtod(digits.start, NULL))); /* names the bound */
        if (errno == ERANGE)
            return bad_value(p, value, "an integer of 64 bits");
        bool is_small = number >= -MOST_OF_DOUBLE && number <= MOST_OF_DOUBLE;
        if (kind == WEFT_JSON_STRING && is_small && !is_word)
            return bad_number(p, value, expected, "");
        whole = number;
    } else {
        double number = strtod(value.start, NULL);
        if (kind == WEFT_JSON_STRING)
            WEFT_TRY(read_quantity(p, value, expected, &number));
        if (number == floor(number) && fabs(number) > (double)MOST_OF_DOUBLE)
            WEFT_TRY(check_bounds(p, value, number));
        if (!(fabs(number) <= (double)MOST_OF_DOUBLE) || number != floor(number))
            return bad_number(p, value, expected, "");
        whole = (int64_t)number;
    }
    WEFT_TRY(check_bounds(p, value, (double)whole));
    *out = whole;
    return WEFT_OK;
}

/* A word of the command line that is a number, but none of JSON: ".5". */
static bool is_bare_number(const place *p, weft_json_span value, double *out)
{
    char *end;
    if (!p->source->is_bare || strspn(value.start + 1, "+-.0123456789eE") + 2 != value.bytes)
        return false;
    *out = strtod(value.start + 1, &end);
    return end > value.start + 1 && *end == '"' && isfinite(*out);
}

static weft_status read_double(const place *p, weft_json_span value, double *out)
{
    const weft_json_kind kind = weft_json_kind_of(value);
    double number = strtod(value.start, NULL);
    if (kind == WEFT_JSON_STRING && !is_bare_number(p, value, &number))
        WEFT_TRY(read_quantity(p, value, "a number", &number));
    if (kind != WEFT_JSON_STRING && kind != WEFT_JSON_NUMBER)
        return bad_number(p, value, "a number", "");
    if (isinf(number))
        return bad_value(p, value, "a number that a double can hold");
    WEFT_TRY(check_bounds(p, value, number));
    *out = number;
    return WEFT_OK;
}

/* An option's also 1 or 0. */
static weft_status read_bool(const place *p, weft_json_span value, bool *out)
{
    const char first = value.start[0];
    const bool is_digit = p->source->is_bare && value.bytes == 1 && (first == '0' || first == '1');
    if (weft_json_kind_of(value) != WEFT_JSON_BOOL && !is_digit)
        return bad_value(p, value, "true or false");
    *out = first == 't' || first == '1';
    return WEFT_OK;
}

static weft_status read_string(const place *p, weft_json_span value, weft_arena *arena,
                               const char **out)
{
    if (weft_json_kind_of(value) != WEFT_JSON_STRING)
        return bad_value(p, value, "a string");
    weft_status status = weft_json_string(value, arena, out);
    if (status == WEFT_OK)
        return WEFT_OK;
    return weft_option_fault(p->source, value.start, p->section, p->row->key, status);
}

/* Not one of the choices: lists them, and says which is nearest to `given` (NULL: not a string). */
static weft_status bad_choice(const place *p, weft_json_span value, const char *given)
{
    enum { MAX_CHOICES = 32 };
    char shown[48], list[400] = "", names[MAX_CHOICES][32];
    const char *pointers[MAX_CHOICES];
    size_t count = 0, used = 0;
    for (; count < MAX_CHOICES; count++) {
        weft_json_span choice = weft_option_choice(p->row, (int)count);
        if (choice.bytes == 0)
            break;
        snprintf(names[count], sizeof(names[count]), "%.*s", (int)choice.bytes, choice.start);
        pointers[count] = names[count];
    }
    for (size_t i = 0; i < count && used < sizeof(list); i++) {
        const char *between = i == 0 ? "" : i == count - 1 ? " or " : ", ";
        used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%s", between, names[i]);
    }
    const char *near = given ? weft_nearest_name(given, pointers, count) : NULL;
    if (!near)
        return bad_value(p, value, list);
    copy_printable(given, strlen(given), shown, sizeof(shown));
    return WEFT_OPTION_FAULT(p->source, value.start, p->section, p->row->key,
                             "expected %s, got \"%s\"; did you mean %s?", list, shown, near);
}

static weft_status read_choice(const place *p, weft_json_span value, weft_arena *arena, int *out)
{
    const char *given;
    if (weft_json_kind_of(value) != WEFT_JSON_STRING)
        return bad_choice(p, value, NULL);
    WEFT_TRY(read_string(p, value, arena, &given));
    size_t bytes = strlen(given);
    for (int i = 0;; i++) {
        weft_json_span choice = weft_option_choice(p->row, i);
        if (choice.bytes == 0)
            return bad_choice(p, value, given);
        if (choice.bytes == bytes && memcmp(choice.start, given, bytes) == 0) {
            *out = i;
            return WEFT_OK;
        }
    }
}

static size_t count_elements(weft_json_span array)
{
    size_t count = 0;
    const char *cursor = NULL;
    weft_json_span element;
    while (weft_json_next(array, &cursor, NULL, &element))
        count++;
    return count;
}

static weft_status read_int_list(const place *p, weft_json_span value, weft_arena *arena,
                                 weft_int_list *out)
{
    static const char expected[] = "an integer or an array of integers";
    bool is_array = weft_json_kind_of(value) == WEFT_JSON_ARRAY;
    size_t count = is_array ? count_elements(value) : 1;
    int64_t *values;
    WEFT_TRY(WEFT_ARRAY(arena, count, &values));
    if (!is_array) {
        WEFT_TRY(read_int(p, value, expected, values));
    } else {
        const char *cursor = NULL;
        weft_json_span element;
        for (size_t i = 0; weft_json_next(value, &cursor, NULL, &element); i++)
            WEFT_TRY(read_int(p, element, expected, &values[i]));
    }
    *out = (weft_int_list){values, count, is_array};
    return WEFT_OK;
}

static weft_status read_strings(const place *p, weft_json_span value, weft_arena *arena,
                                weft_string_list *out)
{
    weft_json_kind kind = weft_json_kind_of(value);
    if (kind != WEFT_JSON_ARRAY && kind != WEFT_JSON_STRING)
        return bad_value(p, value, "a string or an array of strings and numbers");
    size_t count = kind == WEFT_JSON_ARRAY ? count_elements(value) : 1;
    const char **values;
    WEFT_TRY(WEFT_ARRAY(arena, count, &values));
    if (kind == WEFT_JSON_STRING) {
        WEFT_TRY(read_string(p, value, arena, values));
    } else {
        const char *cursor = NULL;
        weft_json_span element;
        for (size_t i = 0; weft_json_next(value, &cursor, NULL, &element); i++) {
            if (weft_json_kind_of(element) == WEFT_JSON_NUMBER)
                WEFT_TRY(weft_arena_printf(arena, &values[i], "%.*s", (int)element.bytes,
                                           element.start));
            else if (weft_json_kind_of(element) == WEFT_JSON_STRING)
                WEFT_TRY(read_string(p, element, arena, &values[i]));
            else
                return bad_value(p, element, "strings and numbers");
        }
    }
    *out = (weft_string_list){values, count};
    return WEFT_OK;
}

size_t weft_option_bytes(weft_option_type type)
{
    static const size_t bytes[] = {
        [WEFT_OPTION_BOOL] = sizeof(bool),
        [WEFT_OPTION_INT] = sizeof(int64_t),
        [WEFT_OPTION_DOUBLE] = sizeof(double),
        [WEFT_OPTION_STRING] = sizeof(const char *),
        [WEFT_OPTION_CHOICE] = sizeof(int),
        [WEFT_OPTION_INT_LIST] = sizeof(weft_int_list),
        [WEFT_OPTION_STRINGS] = sizeof(weft_string_list),
    };
    return (size_t)type < sizeof bytes / sizeof *bytes ? bytes[type] : SIZE_MAX;
}

static weft_status store_null(const place *p, weft_json_span value, void *field)
{
    if (p->row->initial)
        return bad_value(p, value, "a value (its default is not null)");
    memset(field, p->row->type == WEFT_OPTION_CHOICE ? 0xff : 0, weft_option_bytes(p->row->type));
    return WEFT_OK;
}

weft_status weft_option_store(const weft_option_source *source, const char *section,
                              const weft_key *row, weft_json_span value, void *target,
                              weft_arena *arena)
{
    place p = {source, section, row};
    void *field = (char *)target + row->offset;
    if (weft_json_kind_of(value) == WEFT_JSON_NULL)
        return store_null(&p, value, field);
    switch (row->type) {
    case WEFT_OPTION_BOOL:
        return read_bool(&p, value, field);
    case WEFT_OPTION_INT:
        return read_int(&p, value, "an integer", field);
    case WEFT_OPTION_DOUBLE:
        return read_double(&p, value, field);
    case WEFT_OPTION_STRING:
        return read_string(&p, value, arena, field);
    case WEFT_OPTION_CHOICE:
        return read_choice(&p, value, arena, field);
    case WEFT_OPTION_INT_LIST:
        return read_int_list(&p, value, arena, field);
    case WEFT_OPTION_STRINGS:
        return read_strings(&p, value, arena, field);
    }
    return WEFT_ERROR(WEFT_INTERNAL, "%s.%s: unknown option type", section, row->key);
}
