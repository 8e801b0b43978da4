#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/options/options.h"
#include "core/options/value.h"

static weft_status write_string(const char *text, FILE *out)
{
    weft_arena arena = {0};
    const char *quoted;
    weft_status status = weft_json_quote(text, &arena, &quoted);
    if (status == WEFT_OK)
        fputs(quoted, out);
    weft_arena_release(&arena);
    return status;
}

/* The shortest digits that read back as the same double. */
static void write_double(double value, FILE *out)
{
    char text[40];
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, sizeof(text), "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    fputs(text, out);
}

static weft_status write_value(const weft_key *row, const void *field, FILE *out)
{
    bool nullable = row->initial == NULL;
    switch (row->type) {
    case WEFT_OPTION_BOOL:
        fputs(*(const bool *)field ? "true" : nullable ? "null" : "false", out);
        return WEFT_OK;
    case WEFT_OPTION_INT: {
        int64_t value = *(const int64_t *)field;
        if (value == 0 && nullable)
            fputs("null", out);
        else
            fprintf(out, "%" PRId64, value);
        return WEFT_OK;
    }
    case WEFT_OPTION_DOUBLE: {
        double value = *(const double *)field;
        if (value == 0 && nullable)
            fputs("null", out);
        else
            write_double(value, out);
        return WEFT_OK;
    }
    case WEFT_OPTION_STRING: {
        const char *text = *(const char *const *)field;
        if (text)
            return write_string(text, out);
        fputs("null", out);
        return WEFT_OK;
    }
    case WEFT_OPTION_CHOICE: {
        int index = *(const int *)field;
        weft_json_span choice = {0};
        if (index >= 0)
            choice = weft_option_choice(row, index);
        if (choice.bytes == 0)
            fputs("null", out);
        else
            fprintf(out, "\"%.*s\"", (int)choice.bytes, choice.start);
        return WEFT_OK;
    }
    case WEFT_OPTION_INT_LIST: {
        const weft_int_list *list = field;
        if (!list->is_array && list->count == 0) {
            fputs("null", out);
            return WEFT_OK;
        }
        fputs(list->is_array ? "[" : "", out);
        for (size_t i = 0; i < list->count; i++)
            fprintf(out, "%s%" PRId64, i ? ", " : "", list->values[i]);
        fputs(list->is_array ? "]" : "", out);
        return WEFT_OK;
    }
    case WEFT_OPTION_STRINGS: {
        const weft_string_list *list = field;
        if (list->count == 0 && nullable) {
            fputs("null", out);
            return WEFT_OK;
        }
        fputs("[", out);
        for (size_t i = 0; i < list->count; i++) {
            fputs(i ? ", " : "", out);
            WEFT_TRY(write_string(list->values[i], out));
        }
        fputs("]", out);
        return WEFT_OK;
    }
    }
    return WEFT_ERROR(WEFT_INTERNAL, "%s: unknown option type", row->key);
}

weft_status weft_options_write(const weft_option_section *sections, size_t num_sections, FILE *out)
{
    fputs("{\n", out);
    for (size_t i = 0; i < num_sections; i++) {
        const weft_option_section *section = &sections[i];
        fprintf(out, "  \"%s\": {", section->name);
        for (size_t j = 0; j < section->num_rows; j++) {
            const weft_key *row = &section->rows[j];
            fprintf(out, "%s\n    \"%s\": ", j ? "," : "", row->key);
            WEFT_TRY(write_value(row, (const char *)section->target + row->offset, out));
        }
        fprintf(out, "\n  }%s\n", i + 1 < num_sections ? "," : "");
    }
    fputs("}\n", out);
    if (fflush(out) != 0 || ferror(out))
        return WEFT_ERROR(WEFT_FILE, "cannot write the options: %s", strerror(errno));
    return WEFT_OK;
}

weft_status weft_option_text(const weft_option_section *section, const weft_key *row,
                             weft_arena *arena, const char **out)
{
    char *text = NULL;
    size_t bytes;
    FILE *stream = open_memstream(&text, &bytes);
    weft_status status =
        stream ? write_value(row, (const char *)section->target + row->offset, stream) : WEFT_OK;
    if (!stream || (fclose(stream) != 0 && status == WEFT_OK))
        status = WEFT_ERROR(WEFT_MEMORY, "out of memory for the text of %s", row->key);
    if (status == WEFT_OK)
        status = weft_arena_strdup(arena, text, out);
    free(text);
    return status;
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

/* What a row accepts: choices, bounds or just its type. */
static void domain_text(const weft_key *row, const char *between, char out[256])
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
        char bounds[64];
        weft_option_bounds_text(row, bounds);
        used += (size_t)snprintf(out + used, 256 - used, ", %s", bounds);
    }
    if (row->unit && used < 256)
        snprintf(out + used, 256 - used, " %s", row->unit);
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
            domain_text(row, markdown ? ", " : "|", domain);
            if (markdown)
                fprintf(out, "| `%s` | `%s` | %s | %s |\n", row->key, initial, domain, row->help);
            else
                fprintf(out, "  %s.%s = %s (%s)\n        %s\n", section->name, row->key, initial,
                        domain, row->help);
        }
    }
}
