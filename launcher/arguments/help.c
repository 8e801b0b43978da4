#include "launcher/arguments/help.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/options/options.h"
#include "core/quantity.h"
#include "launcher/arguments/rows.h"

enum { WIDTH = 100 };

weft_help weft_help_asked(const char *word)
{
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0)
        return WEFT_HELP_TEXT;
    if (strcmp(word, "--help=man") == 0)
        return WEFT_HELP_MAN;
    return strcmp(word, "--help=words") == 0 ? WEFT_HELP_WORDS : WEFT_HELP_NONE;
}

static void number_text(const weft_argument *a, double value, char out[32])
{
    if (a->row.unit && strcmp(a->row.unit, "bytes") == 0)
        weft_quantity_bytes_text(value, out);
    else
        snprintf(out, 32, "%.10g", value);
}

/* NAN: none. */
static double number_of(const weft_argument *a)
{
    return a->row.type == WEFT_OPTION_DOUBLE ? *(const double *)a->to
           : a->row.type != WEFT_OPTION_INT  ? NAN
           : a->is_small                     ? *(const int *)a->to
                                             : (double)*(const int64_t *)a->to;
}

/* Empty where there is nothing to show: none, or one that the row itself would refuse, whose help
 * says what it stands for. */
static void default_text(const weft_argument *a, char *out, size_t room)
{
    const bool is_set = a->row.type == WEFT_OPTION_CHOICE && a->most > 0;
    size_t used = 0;
    *out = '\0';
    if (a->required || !a->to) {
        return;
    } else if (a->row.type == WEFT_OPTION_STRING && *(const char **)a->to) {
        snprintf(out, room, "%s", *(const char **)a->to);
    } else if (is_set && *(const unsigned *)a->to == (1u << a->row.num_names) - 1) {
        snprintf(out, room, "all");
    } else if (a->row.type == WEFT_OPTION_CHOICE && !is_set && *(const int *)a->to >= 0) {
        const weft_json_span name = weft_option_choice(&a->row, *(const int *)a->to);
        snprintf(out, room, "%.*s", (int)name.bytes, name.bytes ? name.start : "");
    } else if (a->row.type == WEFT_OPTION_INT && a->most > 0) {
        const weft_int_list *list = a->to;
        char number[32];
        for (size_t i = 0; i < list->count && used < room; i++) {
            number_text(a, (double)list->values[i], number);
            used += (size_t)snprintf(out + used, room - used, "%s%s", i ? "," : "", number);
        }
    } else if (number_of(a) >= a->row.min && (number_of(a) <= a->row.max || a->row.max == 0)) {
        number_text(a, number_of(a), out);
    }
}

/* The row's help and its default. */
static void help_text(const weft_argument *row, char out[600])
{
    char initial[200];
    default_text(row, initial, sizeof initial);
    snprintf(out, 600, "%s%s%s%s", row->row.help, *initial ? " (" : "", initial,
             *initial ? ")" : "");
}

/* The text in lines that begin at `column`, where the first line already stands. */
static void print_wrapped(const char *text, int column, FILE *out)
{
    for (int at = column; *text;) {
        int length = (int)strcspn(text, " ");
        if (at > column && at + 1 + length > WIDTH)
            at = fprintf(out, "\n%*s", column, "") - 1;
        else if (at > column)
            at += fprintf(out, " ");
        at += fprintf(out, "%.*s", length, text);
        text += length;
        text += strspn(text, " ");
    }
    fprintf(out, "\n");
}

static const weft_argument help_row = FLAG("help", NULL, "print this");

static void print_row(const weft_argument *row, int column, FILE *out)
{
    char text[600];
    int used = fprintf(out, "  --%s%s%s", row->row.key, row->value ? " " : "",
                       row->value ? row->value : "");
    fprintf(out, "%*s", column - used, "");
    help_text(row, text);
    print_wrapped(text, column, out);
}

static void print_text(const weft_arguments *a, const char *program, FILE *out)
{
    size_t column = strlen("  --help  ");
    bool has_optional = false;
    fprintf(out, "usage: %s %s%s%s", program, a->verb, a->operands ? " " : "",
            a->operands ? a->operands : "");
    for (size_t i = 0; i < a->num_rows; i++) {
        const weft_argument *row = &a->rows[i];
        size_t width = strlen(row->row.key) + (row->value ? strlen(row->value) + 1 : 0) + 6;
        column = width > column ? width : column;
        has_optional = has_optional || !row->required;
        if (row->required)
            fprintf(out, " --%s %s", row->row.key, row->value);
    }
    fprintf(out, "%s\n\n%s\n", has_optional ? " [options]" : "", a->about);
    for (size_t i = 0; i < a->num_rows; i++)
        print_row(&a->rows[i], (int)column, out);
    print_row(&help_row, (int)column, out);
    if (a->more)
        a->more(a->context, out);
}

/* --- the manual ---------------------------------------------------------------------------- */

void weft_help_roff(const char *text, FILE *out)
{
    for (const char *c = text; *c; c++) {
        const bool begins = c == text || c[-1] == '\n';
        if (begins && (*c == '.' || *c == '\''))
            fputs("\\&", out);
        if (*c == '\\')
            fputs("\\e", out);
        else if (*c == '-')
            fputs("\\-", out);
        else
            fputc(*c, out);
    }
}

void weft_help_man_head(const char *name, const char *brief, FILE *out)
{
    char title[64];
    snprintf(title, sizeof title, "%s", name);
    for (char *c = title; *c; c++)
        *c = *c == ' ' ? '-' : *c;
    fputs(".TH ", out);
    for (const char *c = title; *c; c++)
        fputc(toupper((unsigned char)*c), out);
    fprintf(out, " 1 \"\" \"Weft %s\" Weft\n.SH NAME\n", WEFT_VERSION);
    weft_help_roff(title, out);
    fputs(" \\- ", out);
    weft_help_roff(brief, out);
    fputs("\n.SH SYNOPSIS\n.B ", out);
    weft_help_roff(name, out);
    fputc('\n', out);
}

static void write_option(const weft_argument *row, FILE *out)
{
    fputs("\\fB\\-\\-", out);
    weft_help_roff(row->row.key, out);
    fputs("\\fR", out);
    if (row->value) {
        fputs(" \\fI", out);
        weft_help_roff(row->value, out);
        fputs("\\fR", out);
    }
    fputc('\n', out);
}

static void write_man_row(const weft_argument *row, FILE *out)
{
    char text[600];
    help_text(row, text);
    fputs(".TP\n", out);
    write_option(row, out);
    weft_help_roff(text, out);
    fputc('\n', out);
}

/* What only --help prints, as it stands. */
static void write_man_more(const weft_arguments *a, FILE *out)
{
    char *text = NULL;
    size_t bytes;
    FILE *stream = a->more ? open_memstream(&text, &bytes) : NULL;
    if (!stream)
        return;
    a->more(a->context, stream);
    if (fclose(stream) == 0) {
        fputs(".SH MORE\n.nf\n", out);
        weft_help_roff(text + strspn(text, "\n"), out);
        fputs(".fi\n", out);
    }
    free(text);
}

static void print_man(const weft_arguments *a, const char *program, const char *brief, FILE *out)
{
    char name[64];
    snprintf(name, sizeof name, "%s %s", program, a->verb);
    weft_help_man_head(name, brief, out);
    if (a->operands) {
        weft_help_roff(a->operands, out);
        fputc('\n', out);
    }
    for (size_t i = 0; i < a->num_rows; i++)
        if (a->rows[i].required)
            write_option(&a->rows[i], out);
    fputs("[options]\n.SH DESCRIPTION\n", out);
    weft_help_roff(a->about, out);
    fputs(".SH OPTIONS\n", out);
    for (size_t i = 0; i < a->num_rows; i++)
        write_man_row(&a->rows[i], out);
    write_man_row(&help_row, out);
    write_man_more(a, out);
    fprintf(out, ".SH SEE ALSO\n.BR %s (1)\n", program);
}

/* --- a shell's completion -------------------------------------------------------------------- */

static void print_word(const weft_argument *row, FILE *out)
{
    const bool has_names = row->row.choices || row->row.names;
    fprintf(out, "--%s\t", row->row.key);
    for (int i = 0; has_names; i++) {
        const weft_json_span name = weft_option_choice(&row->row, i);
        if (name.bytes == 0)
            break;
        fprintf(out, "%s%.*s", i ? "|" : "", (int)name.bytes, name.start);
    }
    fprintf(out, "%s\t%s\n", has_names || !row->value ? "" : row->value, row->row.help);
}

static void print_words(const weft_arguments *a, FILE *out)
{
    for (const char *word = a->words; word && *word;) {
        const int bytes = (int)strcspn(word, " ");
        fprintf(out, "%.*s\t\t\n", bytes, word);
        word += bytes + (word[bytes] == ' ');
    }
    for (size_t i = 0; i < a->num_rows; i++)
        print_word(&a->rows[i], out);
    print_word(&help_row, out);
}

void weft_help_verb(weft_help form, const weft_arguments *verb, const char *program,
                    const char *brief, FILE *out)
{
    if (form == WEFT_HELP_MAN)
        print_man(verb, program, brief, out);
    else if (form == WEFT_HELP_WORDS)
        print_words(verb, out);
    else
        print_text(verb, program, out);
}
