#include "launcher/measuring/bench.h"

#include <assert.h>
#include <ctype.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

weft_status weft_table_row(weft_table *table)
{
    if (table->num_rows == table->capacity) {
        int capacity = table->capacity > 0 ? 2 * table->capacity : 16;
        void *cells = realloc(table->cells, (size_t)capacity * sizeof *table->cells);
        if (!cells)
            return WEFT_ERROR(WEFT_MEMORY, "out of memory for a table of %d rows", capacity);
        table->cells = cells;
        table->capacity = capacity;
    }
    memset(table->cells[table->num_rows++], 0, sizeof *table->cells);
    return WEFT_OK;
}

weft_status weft_table_begin(weft_table *table, const char *const *heads, int num_columns)
{
    assert(num_columns >= 1 && num_columns <= WEFT_TABLE_MAX_COLUMNS);
    *table = (weft_table){.num_columns = num_columns};
    WEFT_TRY(weft_table_row(table));
    for (int i = 0; i < num_columns; i++)
        weft_table_cell(table, i, "%s", heads[i]);
    return WEFT_OK;
}

void weft_table_cell(weft_table *table, int column, const char *format, ...)
{
    va_list list;
    assert(table->num_rows > 0 && column >= 0 && column < table->num_columns);
    va_start(list, format);
    vsnprintf(table->cells[table->num_rows - 1][column], WEFT_TABLE_CELL_BYTES, format, list);
    va_end(list);
}

/* In characters, of UTF-8. */
static int width_of(const char *text)
{
    int width = 0;
    for (; *text; text++)
        width += ((unsigned char)*text & 0xc0) != 0x80;
    return width;
}

/* A sign, a digit, or nothing at all. */
static bool is_number(const char *text)
{
    return *text == '\0' || isdigit((unsigned char)*text) || strchr("+-.<>", *text) != NULL;
}

void weft_table_print(const weft_table *table, FILE *out)
{
    int widths[WEFT_TABLE_MAX_COLUMNS] = {0};
    bool right[WEFT_TABLE_MAX_COLUMNS];
    for (int c = 0; c < table->num_columns; c++) {
        right[c] = table->num_rows > 1;
        for (int r = 0; r < table->num_rows; r++) {
            const char *text = table->cells[r][c];
            int width = width_of(text);
            widths[c] = width > widths[c] ? width : widths[c];
            right[c] = right[c] && (r == 0 || is_number(text));
        }
    }
    for (int r = 0; r < table->num_rows; r++) {
        for (int c = 0; c < table->num_columns; c++) {
            const char *text = table->cells[r][c];
            int gap = widths[c] - width_of(text);
            bool last = c + 1 == table->num_columns;
            fprintf(out, "%*s%s%*s%s", right[c] ? gap : 0, "", text, right[c] || last ? 0 : gap, "",
                    last ? "\n" : "  ");
        }
    }
}

void weft_table_release(weft_table *table)
{
    free(table->cells);
    *table = (weft_table){0};
}
