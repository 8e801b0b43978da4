#include <errno.h>
#include <string.h>

#include "core/json_write.h"
#include "core/options/options.h"
#include "core/options/value.h"
#include "core/quantity.h"

static void write_types(const char *const *types, weft_json_out *out)
{
    weft_json_open_flat(out, "type", '[');
    for (; *types; types++)
        weft_json_text(out, NULL, *types);
    weft_json_close(out);
}

static void write_bounds(const weft_key *row, weft_json_out *out)
{
    if (!weft_option_has_bounds(row))
        return;
    weft_json_number(out, "minimum", row->min);
    weft_json_number(out, "maximum", row->max);
}

/* A number, and as strings the digits of one that doubles do not hold, and one with a suffix. */
static void write_number(const weft_key *row, const char *type, weft_json_out *out)
{
    const weft_quantity kind = weft_quantity_of(row->unit);
    const bool is_large = row->type == WEFT_OPTION_INT && (row->max == 0 || row->max > 1e15);
    const bool has_text = is_large || kind;
    const char *types[4] = {type}, **next = types + 1;
    char suffixed[WEFT_QUANTITY_PATTERN_BYTES], pattern[WEFT_QUANTITY_PATTERN_BYTES + 24];
    if (has_text)
        *next++ = "string";
    if (!row->initial)
        *next++ = "null";
    write_types(types, out);
    write_bounds(row, out);
    weft_quantity_pattern(kind, suffixed);
    snprintf(pattern, sizeof pattern, "^(%s%s%s)$", is_large ? "-?[0-9]{16,}" : "",
             is_large && kind ? "|" : "", kind ? suffixed : "");
    if (has_text)
        weft_json_text(out, "pattern", pattern);
}

static void write_choices(const weft_key *row, weft_json_out *out)
{
    char name[64];
    weft_json_open_flat(out, "enum", '[');
    for (int i = 0;; i++) {
        const weft_json_span choice = weft_option_choice(row, i);
        if (choice.bytes == 0)
            break;
        snprintf(name, sizeof name, "%.*s", (int)choice.bytes, choice.start);
        weft_json_text(out, NULL, name);
    }
    if (!row->initial)
        weft_json_text(out, NULL, NULL);
    weft_json_close(out);
}

/* A value by itself, or an array of `item`. */
static void write_list(const weft_key *row, const char *type, const char *const *item,
                       weft_json_out *out)
{
    const char *const types[] = {type, "array", row->initial ? NULL : "null", NULL};
    write_types(types, out);
    if (row->type == WEFT_OPTION_INT_LIST)
        write_bounds(row, out);
    weft_json_open(out, "items", '{');
    write_types(item, out);
    if (row->type == WEFT_OPTION_INT_LIST)
        write_bounds(row, out);
    weft_json_close(out);
}

static void write_row(const weft_key *row, weft_json_out *out)
{
    static const char *const integer[] = {"integer", NULL}, *const texts[] = {"string", "number",
                                                                              NULL};
    const char *const null = row->initial ? NULL : "null";
    weft_json_open(out, row->key, '{');
    switch (row->type) {
    case WEFT_OPTION_BOOL:
        write_types((const char *const[]){"boolean", null, NULL}, out);
        break;
    case WEFT_OPTION_INT:
        write_number(row, "integer", out);
        break;
    case WEFT_OPTION_DOUBLE:
        write_number(row, "number", out);
        break;
    case WEFT_OPTION_STRING:
        write_types((const char *const[]){"string", null, NULL}, out);
        break;
    case WEFT_OPTION_CHOICE:
        write_choices(row, out);
        break;
    case WEFT_OPTION_INT_LIST:
        write_list(row, "integer", integer, out);
        break;
    case WEFT_OPTION_STRINGS:
        write_list(row, "string", texts, out);
        break;
    }
    weft_json_raw(out, "default", row->initial ? row->initial : "null");
    weft_json_text(out, "description", row->help);
    if (row->unit)
        weft_json_text(out, "x-unit", row->unit);
    weft_json_close(out);
}

static void open_object(const char *key, const char *title, const char *about, weft_json_out *out)
{
    weft_json_open(out, key, '{');
    if (!key)
        weft_json_text(out, "$schema", "https://json-schema.org/draft/2020-12/schema");
    if (title)
        weft_json_text(out, "title", title);
    weft_json_text(out, "type", "object");
    if (about)
        weft_json_text(out, "description", about);
    weft_json_bool(out, "additionalProperties", false);
    weft_json_open(out, "properties", '{');
}

weft_status weft_options_schema(const weft_option_section *sections, size_t num_sections,
                                const char *title, FILE *out)
{
    weft_json_out json = {.file = out};
    open_object(NULL, title, NULL, &json);
    for (size_t i = 0; i < num_sections; i++) {
        open_object(sections[i].name, NULL, sections[i].help, &json);
        for (size_t j = 0; j < sections[i].num_rows; j++)
            write_row(&sections[i].rows[j], &json);
        weft_json_close(&json);
        weft_json_close(&json);
    }
    weft_json_close(&json);
    weft_json_close(&json);
    if (fflush(out) != 0 || ferror(out))
        return WEFT_ERROR(WEFT_FILE, "cannot write the schema: %s", strerror(errno));
    return WEFT_OK;
}
