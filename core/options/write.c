#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "core/file.h"
#include "core/json_write.h"
#include "core/options/options.h"
#include "core/options/value.h"

static void write_int(int64_t value, const char *key, weft_json_out *out)
{
    char text[32];
    snprintf(text, sizeof text, "%" PRId64, value);
    weft_json_raw(out, key, text);
}

static void write_list(const weft_int_list *list, const char *key, weft_json_out *out)
{
    if (list->is_array)
        weft_json_open_flat(out, key, '[');
    for (size_t i = 0; i < list->count; i++)
        write_int(list->values[i], list->is_array ? NULL : key, out);
    if (list->is_array)
        weft_json_close(out);
    else if (list->count == 0)
        weft_json_text(out, key, NULL);
}

static void write_strings(const weft_string_list *list, const char *key, weft_json_out *out)
{
    weft_json_open_flat(out, key, '[');
    for (size_t i = 0; i < list->count; i++)
        weft_json_text(out, NULL, list->values[i]);
    weft_json_close(out);
}

static bool is_null(const weft_key *row, const void *field)
{
    if (row->initial != NULL)
        return false;
    return (row->type == WEFT_OPTION_BOOL && !*(const bool *)field) ||
           (row->type == WEFT_OPTION_INT && *(const int64_t *)field == 0) ||
           (row->type == WEFT_OPTION_DOUBLE && *(const double *)field == 0) ||
           (row->type == WEFT_OPTION_STRINGS && ((const weft_string_list *)field)->count == 0);
}

static void write_value(const weft_key *row, const void *field, const char *key, weft_json_out *out)
{
    if (is_null(row, field)) {
        weft_json_text(out, key, NULL);
    } else if (row->type == WEFT_OPTION_BOOL) {
        weft_json_bool(out, key, *(const bool *)field);
    } else if (row->type == WEFT_OPTION_INT) {
        write_int(*(const int64_t *)field, key, out);
    } else if (row->type == WEFT_OPTION_DOUBLE) {
        weft_json_number(out, key, *(const double *)field);
    } else if (row->type == WEFT_OPTION_STRING) {
        weft_json_text(out, key, *(const char *const *)field);
    } else if (row->type == WEFT_OPTION_CHOICE) {
        const int index = *(const int *)field;
        const weft_json_span none = {0}, c = index >= 0 ? weft_option_choice(row, index) : none;
        char name[128];
        snprintf(name, sizeof name, "%.*s", (int)c.bytes, c.bytes ? c.start : "");
        weft_json_text(out, key, c.bytes ? name : NULL);
    } else if (row->type == WEFT_OPTION_INT_LIST) {
        write_list(field, key, out);
    } else {
        write_strings(field, key, out);
    }
}

weft_status weft_options_write(const weft_option_section *sections, size_t num_sections, FILE *out)
{
    weft_json_out json = {.file = out, .keeps_bytes = true};
    weft_json_open(&json, NULL, '{');
    for (size_t i = 0; i < num_sections; i++) {
        const weft_option_section *section = &sections[i];
        weft_json_open(&json, section->name, '{');
        for (size_t j = 0; j < section->num_rows; j++) {
            const weft_key *row = &section->rows[j];
            write_value(row, (const char *)section->target + row->offset, row->key, &json);
        }
        weft_json_close(&json);
    }
    weft_json_close(&json);
    if (fflush(out) != 0 || ferror(out))
        return WEFT_ERROR(WEFT_FILE, "cannot write the options: %s", strerror(errno));
    return WEFT_OK;
}

weft_status weft_option_text(const weft_option_section *section, const weft_key *row,
                             weft_arena *arena, const char **out)
{
    weft_new_text text;
    WEFT_TRY(weft_new_text_open(&text));
    weft_json_out json = {.file = text.file, .keeps_bytes = true};
    write_value(row, (const char *)section->target + row->offset, NULL, &json);
    return weft_new_text_close(&text, WEFT_OK, arena, out);
}

static weft_status compare_row(const weft_option_section *before, const weft_option_section *after,
                               const weft_key *row, weft_difference_function visit, void *context)
{
    weft_arena arena = {0};
    const char *texts[2];
    weft_status status = weft_option_text(before, row, &arena, &texts[0]);
    if (status == WEFT_OK)
        status = weft_option_text(after, row, &arena, &texts[1]);
    if (status == WEFT_OK && strcmp(texts[0], texts[1]) != 0)
        status = visit(context, before->name, row, texts[0], texts[1]);
    weft_arena_release(&arena);
    return status;
}

weft_status weft_options_compare(const weft_option_section *before,
                                 const weft_option_section *after, size_t num_sections,
                                 weft_difference_function visit, void *context)
{
    for (size_t i = 0; i < num_sections; i++)
        for (size_t j = 0; j < before[i].num_rows; j++)
            WEFT_TRY(compare_row(&before[i], &after[i], &before[i].rows[j], visit, context));
    return WEFT_OK;
}

void weft_option_domain(const weft_key *row, const char *between, char out[256])
{
    static const char *const types[] = {
        [WEFT_OPTION_BOOL] = "true or false",
        [WEFT_OPTION_INT] = "integer",
        [WEFT_OPTION_DOUBLE] = "number",
        [WEFT_OPTION_STRING] = "string",
        [WEFT_OPTION_CHOICE] = "",
        [WEFT_OPTION_INT_LIST] = "integer or array",
        [WEFT_OPTION_STRINGS] = "string or array",
    };
    size_t used = (size_t)snprintf(out, 256, "%s", types[row->type]);
    if (row->type == WEFT_OPTION_CHOICE) {
        for (const char *at = row->choices; *at && used + 4 < 256; at++) {
            if (*at == '|')
                used += (size_t)snprintf(out + used, 256 - used, "%s", between);
            else
                used += (size_t)snprintf(out + used, 256 - used, "%c", *at);
        }
    } else if (weft_option_has_bounds(row)) {
        char range[96];
        weft_option_range(row, range);
        snprintf(out + used, 256 - used, ", %s", range);
    } else if (row->unit) {
        snprintf(out + used, 256 - used, " %s", row->unit);
    }
}

void weft_options_help(const weft_option_section *sections, size_t num_sections, bool markdown,
                       FILE *out)
{
    char domain[256];
    for (size_t i = 0; i < num_sections; i++) {
        const weft_option_section *section = &sections[i];
        const char *about = section->help ? section->help : "";
        if (markdown)
            fprintf(out,
                    "%s## `%s`\n\n%s\n\n| key | default | accepts | meaning |\n|---|---|---|---|\n",
                    i ? "\n" : "", section->name, about);
        else
            fprintf(out, "%s%s: %s\n", i ? "\n" : "", section->name, about);
        for (size_t j = 0; j < section->num_rows; j++) {
            const weft_key *row = &section->rows[j];
            const char *initial = row->initial ? row->initial : "null";
            weft_option_domain(row, markdown ? ", " : "|", domain);
            if (markdown)
                fprintf(out, "| `%s` | `%s` | %s | %s |\n", row->key, initial, domain, row->help);
            else
                fprintf(out, "  %s.%s = %s (%s)\n        %s\n", section->name, row->key, initial,
                        domain, row->help);
        }
    }
}
