#include "launcher/report/report.h"

#include <assert.h>
#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "core/grow.h"
#include "core/svg.h"

/* --- units --------------------------------------------------------------------------------- */

/* "-1,234,567". */
static void write_grouped(double value, char *out)
{
    char digits[32];
    const int count = snprintf(digits, sizeof digits, "%.0f", fabs(value));
    if (value <= -0.5)
        *out++ = '-';
    for (int i = 0; i < count; i++) {
        if (i > 0 && (count - i) % 3 == 0)
            *out++ = ',';
        *out++ = digits[i];
    }
    *out = '\0';
}

weft_counted weft_unit_text(weft_unit unit, double value)
{
    static const char *const formats[] = {
        [WEFT_UNIT_NONE] = "%.4g",  [WEFT_UNIT_FIXED] = "%.2f",    [WEFT_UNIT_COUNT] = "%.4g",
        [WEFT_UNIT_INDEX] = "%.0f", [WEFT_UNIT_SHARE] = "%.1f %%", [WEFT_UNIT_CHANGE] = "%+.1f %%"};
    const bool is_whole = value == floor(value) || fabs(value) >= 1000;
    weft_counted out = {"-"};
    if (!isfinite(value))
        return out;
    if (unit == WEFT_UNIT_BYTES)
        return weft_bytes_text(value);
    if (unit == WEFT_UNIT_SECONDS)
        return weft_seconds_text(value);
    if (unit == WEFT_UNIT_COUNT && is_whole && fabs(value) < 1e18)
        write_grouped(value, out.text);
    else
        snprintf(out.text, sizeof out.text, formats[unit],
                 unit >= WEFT_UNIT_SHARE ? 100 * value : value);
    return out;
}

/* --- containers ---------------------------------------------------------------------------- */

static bool is_json(const weft_report *r)
{
    return r->form == WEFT_REPORT_JSON;
}

static void fail(weft_report *r, weft_status status)
{
    if (r->status == WEFT_OK)
        r->status = status;
}

void weft_report_begin(weft_report *r, weft_report_form form)
{
    *r = (weft_report){.form = form};
    r->out = open_memstream(&r->text, &r->bytes);
    if (!r->out) {
        fail(r, WEFT_ERROR(WEFT_MEMORY, "no memory for a report"));
        return;
    }
    r->json.file = r->out;
    if (is_json(r))
        weft_json_open(&r->json, NULL, '{');
}

weft_status weft_report_end(weft_report *r, weft_status status, FILE *out)
{
    if (r->out && is_json(r) && status == WEFT_OK)
        weft_json_close(&r->json);
    if (r->out && fclose(r->out) != 0)
        fail(r, WEFT_ERROR(WEFT_MEMORY, "no memory for a report"));
    if (status == WEFT_OK)
        status = r->status;
    if (status == WEFT_OK && out) {
        fwrite(r->text, 1, r->bytes, out);
        fflush(out); /* whoever closes it looks for errors */
    }
    free(r->text);
    free(r->lines);
    weft_arena_release(&r->arena);
    return status;
}

void weft_report_open(weft_report *r, weft_report_kind kind, const char *key)
{
    const bool is_shown = kind != WEFT_REPORT_TABLE || key || !is_json(r);
    if (r->hidden > 0 || !is_shown || !r->out) {
        r->hidden++;
        return;
    }
    assert(r->depth + 1 < WEFT_JSON_MAX_DEPTH);
    r->open[r->depth++] = kind;
    if (is_json(r) && kind != WEFT_REPORT_FACTS)
        weft_json_open(&r->json, key, kind == WEFT_REPORT_OBJECT ? '{' : '[');
}

static bool is_innermost(const weft_report *r, weft_report_kind kind)
{
    return r->depth > 0 && r->open[r->depth - 1] == kind;
}

static void leave_record(weft_report *r)
{
    if (!is_innermost(r, WEFT_REPORT_RECORD))
        return;
    r->depth--;
    if (is_json(r))
        weft_json_close(&r->json);
}

static void add_line(weft_report *r)
{
    const weft_status status =
        WEFT_GROW(r->lines, r->capacity, (size_t)r->num_lines + 1, "rows of a table");
    if (status != WEFT_OK) {
        fail(r, status);
        return;
    }
    r->lines[r->num_lines++] = (weft_report_cells){.is_bad = false};
}

void weft_report_record(weft_report *r)
{
    if (r->hidden > 0 || !r->out)
        return;
    leave_record(r);
    const bool is_line = is_innermost(r, WEFT_REPORT_TABLE);
    r->open[r->depth++] = WEFT_REPORT_RECORD;
    if (is_json(r))
        weft_json_open(&r->json, NULL, '{');
    else if (is_line)
        add_line(r);
}

void weft_report_bad(weft_report *r)
{
    if (r->hidden == 0 && r->num_lines > 0)
        r->lines[r->num_lines - 1].is_bad = true;
}

/* --- tables of text and HTML --------------------------------------------------------------- */

/* In characters, of UTF-8. */
static int width_of(const char *text)
{
    int width = 0;
    for (; *text; text++)
        width += ((unsigned char)*text & 0xc0) != 0x80;
    return width;
}

static const char *cell_of(const weft_report *r, int line, int column)
{
    const char *cell = r->lines[line].cells[column];
    return cell ? cell : "";
}

/* A sign, a digit, or nothing at all in all lines: they stand to the right. */
static bool is_of_numbers(const weft_report *r, int column)
{
    for (int i = 0; i < r->num_lines; i++) {
        const char *cell = cell_of(r, i, column);
        if (*cell && !isdigit((unsigned char)*cell) && !strchr("+-.<>", *cell))
            return false;
    }
    return true;
}

/* Line -1: the heads. */
static const char *text_at(const weft_report *r, int line, int column)
{
    return line < 0 ? r->titles[column] : cell_of(r, line, column);
}

static void write_text_line(const weft_report *r, int line, const int *widths, const bool *right)
{
    int owed = 0; /* spaces before what comes next */
    for (int c = 0; c < r->num_titles; c++) {
        const char *text = text_at(r, line, c);
        const int gap = widths[c] - width_of(text);
        owed += 2 + (right[c] ? gap : 0);
        if (*text) {
            fprintf(r->out, "%*s%s", owed, "", text);
            owed = 0;
        }
        owed += right[c] ? 0 : gap;
    }
    fputc('\n', r->out);
}

static void write_text_table(const weft_report *r, bool has_heads)
{
    int widths[WEFT_REPORT_MAX_COLUMNS] = {0};
    bool right[WEFT_REPORT_MAX_COLUMNS];
    for (int c = 0; c < r->num_titles; c++) {
        right[c] = has_heads && is_of_numbers(r, c);
        for (int i = has_heads ? -1 : 0; i < r->num_lines; i++) {
            const int width = width_of(text_at(r, i, c));
            widths[c] = width > widths[c] ? width : widths[c];
        }
    }
    for (int i = has_heads ? -1 : 0; i < r->num_lines; i++)
        write_text_line(r, i, widths, right);
}

/* On a narrow screen each cell stands below the other, behind its column's name. */
static void write_html_line(const weft_report *r, int line, const bool *right, bool has_heads)
{
    const char *tag = line < 0 ? "th" : "td";
    fputs(line < 0                ? "<tr class=\"heads\">"
          : r->lines[line].is_bad ? "<tr class=\"bad\">"
                                  : "<tr>",
          r->out);
    for (int c = 0; c < r->num_titles; c++) {
        fprintf(r->out, "<%s%s", tag, right[c] ? " class=\"n\"" : "");
        if (line >= 0 && has_heads) {
            fputs(" data-name=\"", r->out);
            weft_svg_write_text(r->titles[c], r->out);
            fputc('"', r->out);
        }
        fputc('>', r->out);
        weft_svg_write_text(text_at(r, line, c), r->out);
        fprintf(r->out, "</%s>", tag);
    }
    fputs("</tr>\n", r->out);
}

static void write_html_table(const weft_report *r, bool has_heads)
{
    bool right[WEFT_REPORT_MAX_COLUMNS];
    for (int c = 0; c < r->num_titles; c++)
        right[c] = is_of_numbers(r, c);
    fprintf(r->out, "<div class=\"scroll\"><table%s>\n", has_heads ? " class=\"named\"" : "");
    for (int i = has_heads ? -1 : 0; i < r->num_lines && i < WEFT_REPORT_MAX_HTML_ROWS; i++)
        write_html_line(r, i, right, has_heads);
    fputs("</table></div>\n", r->out);
    if (r->num_lines > WEFT_REPORT_MAX_HTML_ROWS)
        fprintf(r->out, "<p class=\"soft\">The first %d of %d.</p>\n", WEFT_REPORT_MAX_HTML_ROWS,
                r->num_lines);
}

static void write_table(weft_report *r, bool has_heads)
{
    if (r->num_lines > 0 && r->form == WEFT_REPORT_TEXT)
        write_text_table(r, has_heads);
    else if (r->num_lines > 0)
        write_html_table(r, has_heads);
    r->num_lines = r->num_titles = 0;
    weft_arena_reset(&r->arena);
}

void weft_report_close(weft_report *r)
{
    if (r->hidden > 0) {
        r->hidden--;
        return;
    }
    leave_record(r);
    assert(r->depth > 0);
    const weft_report_kind kind = r->open[--r->depth];
    if (is_json(r) && kind != WEFT_REPORT_FACTS)
        weft_json_close(&r->json);
    else if (kind == WEFT_REPORT_TABLE || kind == WEFT_REPORT_FACTS)
        write_table(r, kind == WEFT_REPORT_TABLE);
}

/* --- rows ---------------------------------------------------------------------------------- */

/* The title's column, or a new one. */
static int find_column(weft_report *r, const char *title)
{
    int c = 0;
    while (c < r->num_titles && strcmp(r->titles[c], title) != 0)
        c++;
    if (c == WEFT_REPORT_MAX_COLUMNS) {
        r->status = WEFT_ERROR(WEFT_INTERNAL, "column %s: a table has at most %d", title,
                               WEFT_REPORT_MAX_COLUMNS);
        return c - 1;
    }
    if (c == r->num_titles)
        r->titles[r->num_titles++] = title;
    return c;
}

/* In the line of the record that is open; of facts each row is a line, of its title and value. */
static void set_cell(weft_report *r, const char *title, const char *text)
{
    weft_report_kind kind = WEFT_REPORT_OBJECT;
    for (int i = r->depth; i > 0 && kind == WEFT_REPORT_OBJECT; i--)
        kind = r->open[i - 1];
    const bool is_fact = kind == WEFT_REPORT_FACTS;
    if (is_json(r) || r->hidden > 0 || !title || !(is_fact || kind == WEFT_REPORT_RECORD))
        return;
    if (is_fact)
        add_line(r);
    if (r->num_lines == 0) /* there was no memory */
        return;
    const char **cells = r->lines[r->num_lines - 1].cells;
    if (is_fact)
        cells[find_column(r, "")] = title;
    fail(r, weft_arena_strdup(&r->arena, text, &cells[find_column(r, is_fact ? "value" : title)]));
}

static bool is_written(const weft_report *r, const char *key)
{
    return is_json(r) && r->hidden == 0 && key && r->out;
}

void weft_report_row(weft_report *r, const char *key, const char *title, weft_unit unit,
                     double value)
{
    if (is_written(r, key))
        weft_json_number(&r->json, key, value);
    else
        set_cell(r, title, weft_unit_text(unit, value).text);
}

void weft_report_text(weft_report *r, const char *key, const char *title, const char *text)
{
    if (is_written(r, key))
        weft_json_text(&r->json, key, text);
    else
        set_cell(r, title, text ? text : "");
}

void weft_report_cell(weft_report *r, const char *title, const char *format, ...)
{
    char text[1024];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    set_cell(r, title, text);
}

void weft_report_line(weft_report *r, const char *format, ...)
{
    char text[2048];
    va_list list;
    if (is_json(r) || r->hidden > 0 || !r->out)
        return;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    if (r->form == WEFT_REPORT_TEXT) {
        fprintf(r->out, "%s\n", text);
        return;
    }
    if (!text[strspn(text, "\n")])
        return;
    fputs("<p class=\"soft\">", r->out);
    weft_svg_write_text(text, r->out);
    fputs("</p>\n", r->out);
}

void weft_report_value(weft_report *r, const char *key, double value)
{
    weft_report_row(r, key, NULL, WEFT_UNIT_NONE, value);
}

void weft_report_bool(weft_report *r, const char *key, bool value)
{
    if (is_written(r, key))
        weft_json_bool(&r->json, key, value);
}

void weft_report_numbers(weft_report *r, const char *key, const double *values, size_t count)
{
    if (is_written(r, key))
        weft_json_numbers(&r->json, key, values, count);
}

void weft_report_texts(weft_report *r, const char *key, const char *const *texts, size_t count)
{
    if (!is_written(r, key))
        return;
    weft_json_open_flat(&r->json, key, '[');
    for (size_t i = 0; i < count; i++)
        weft_json_text(&r->json, NULL, texts[i]);
    weft_json_close(&r->json);
}

void weft_report_raw(weft_report *r, const char *key, const char *json)
{
    if (is_written(r, key))
        weft_json_raw(&r->json, key, json);
}

static void write_tree(weft_json_out *out, const char *key, const cJSON *value)
{
    const cJSON *child;
    if (cJSON_IsNumber(value)) {
        weft_json_number(out, key, value->valuedouble);
    } else if (cJSON_IsBool(value)) {
        weft_json_bool(out, key, cJSON_IsTrue(value));
    } else if (!cJSON_IsArray(value) && !cJSON_IsObject(value)) {
        weft_json_text(out, key, cJSON_GetStringValue(value));
    } else {
        weft_json_open(out, key, cJSON_IsArray(value) ? '[' : '{');
        cJSON_ArrayForEach(child, value) write_tree(out, child->string, child);
        weft_json_close(out);
    }
}

void weft_report_members(weft_report *r, const cJSON *object)
{
    const cJSON *child;
    cJSON_ArrayForEach(child, object)
    {
        if (is_written(r, child->string))
            write_tree(&r->json, child->string, child);
    }
}

FILE *weft_report_stream(weft_report *r, weft_report_form form)
{
    return r->form == form && r->hidden == 0 ? r->out : NULL;
}
