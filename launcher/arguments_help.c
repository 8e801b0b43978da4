#include "launcher/arguments_help.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { WIDTH = 100 };

void weft_argument_number(const weft_argument *row, double value, char out[32])
{
    static const char *const units[] = {"", "KiB", "MiB", "GiB"};
    int unit = 0;
    for (; row->is_bytes && unit < 3 && value >= 1024 && fmod(value, 1024) == 0; unit++)
        value /= 1024;
    snprintf(out, 32, "%.10g%s", value, units[unit]);
}

/* Empty where there is nothing to show: none, or one that the row itself would refuse, whose help
 * says what it stands for. */
static void default_text(const weft_argument *row, char *out, size_t room)
{
    char number[32];
    size_t used = 0;
    *out = '\0';
    if (row->required)
        return;
    if (row->text && *row->text)
        snprintf(out, room, "%s", *row->text);
    else if (row->choice && *row->choice >= 0 && *row->choice < row->num_names)
        snprintf(out, room, "%s", row->names[*row->choice]);
    else if (row->set && *row->set == (1u << row->num_names) - 1)
        snprintf(out, room, "all");
    for (size_t i = 0; row->list && i < row->list->count && used < room; i++) {
        weft_argument_number(row, (double)row->list->values[i], number);
        used += (size_t)snprintf(out + used, room - used, "%s%s", i ? "," : "", number);
    }
    double value = row->count ? *row->count : row->whole ? (double)*row->whole : NAN;
    value = row->number ? *row->number : value;
    if (!isnan(value) && value >= row->min && (value <= row->max || row->max == 0))
        weft_argument_number(row, value, out);
}

/* The text in lines that begin at `column`, where the first line already stands. */
static void print_wrapped(const char *text, int column)
{
    for (int at = column; *text;) {
        int length = (int)strcspn(text, " ");
        if (at > column && at + 1 + length > WIDTH)
            at = printf("\n%*s", column, "") - 1;
        else if (at > column)
            at += printf(" ");
        at += printf("%.*s", length, text);
        text += length;
        text += strspn(text, " ");
    }
    printf("\n");
}

static void print_row(const weft_argument *row, int column)
{
    char initial[200], text[600];
    default_text(row, initial, sizeof initial);
    int used = printf("  --%s%s%s", row->name, row->value ? " " : "", row->value ? row->value : "");
    printf("%*s", column - used, "");
    snprintf(text, sizeof text, "%s%s%s%s", row->help, *initial ? " (" : "", initial,
             *initial ? ")" : "");
    print_wrapped(text, column);
}

void weft_arguments_help(const weft_arguments *a, const char *program)
{
    size_t column = strlen("  --help  ");
    bool has_optional = false;
    printf("usage: %s %s%s%s", program, a->verb, a->operands ? " " : "",
           a->operands ? a->operands : "");
    for (size_t i = 0; i < a->num_rows; i++) {
        const weft_argument *row = &a->rows[i];
        size_t width = strlen(row->name) + (row->value ? strlen(row->value) + 1 : 0) + 6;
        column = width > column ? width : column;
        has_optional = has_optional || !row->required;
        if (row->required)
            printf(" --%s %s", row->name, row->value);
    }
    printf("%s\n\n%s\n", has_optional ? " [options]" : "", a->about);
    for (size_t i = 0; i < a->num_rows; i++)
        print_row(&a->rows[i], (int)column);
    print_row(&(weft_argument){.name = "help", .help = "print this"}, (int)column);
    if (a->more)
        a->more(a->context);
}
