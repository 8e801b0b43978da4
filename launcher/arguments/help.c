#include "launcher/arguments/help.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 100 };

weft_help weft_help_asked(const char *word)
{
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0)
        return WEFT_HELP_TEXT;
    if (strcmp(word, "--help=man") == 0)
        return WEFT_HELP_MAN;
    return strcmp(word, "--help=words") == 0 ? WEFT_HELP_WORDS : WEFT_HELP_NONE;
}

void weft_help_number(const weft_argument *row, double value, char out[32])
{
    static const char *const units[2][6] = {{"", "KiB", "MiB", "GiB", "TiB", "PiB"},
                                            {"", "kB", "MB", "GB", "TB", "PB"}};
    char text[2][32];
    for (int i = 0; i < 2; i++) {
        const double base = i ? 1000 : 1024;
        double left = value;
        int unit = 0;
        for (; row->is_bytes && unit < 5 && left >= base && fmod(left, base) == 0; unit++)
            left /= base;
        snprintf(text[i], 32, "%.10g%s", left, units[i][unit]);
    }
    snprintf(out, 32, "%s", text[strlen(text[1]) < strlen(text[0])]);
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
        weft_help_number(row, (double)row->list->values[i], number);
        used += (size_t)snprintf(out + used, room - used, "%s%s", i ? "," : "", number);
    }
    double value = row->count ? *row->count : row->whole ? (double)*row->whole : NAN;
    value = row->number ? *row->number : value;
    if (!isnan(value) && value >= row->min && (value <= row->max || row->max == 0))
        weft_help_number(row, value, out);
}

/* The row's help and its default. */
static void help_text(const weft_argument *row, char out[600])
{
    char initial[200];
    default_text(row, initial, sizeof initial);
    snprintf(out, 600, "%s%s%s%s", row->help, *initial ? " (" : "", initial, *initial ? ")" : "");
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

static const weft_argument help_row = {.name = "help", .help = "print this"};

static void print_row(const weft_argument *row, int column, FILE *out)
{
    char text[600];
    int used =
        fprintf(out, "  --%s%s%s", row->name, row->value ? " " : "", row->value ? row->value : "");
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
        size_t width = strlen(row->name) + (row->value ? strlen(row->value) + 1 : 0) + 6;
        column = width > column ? width : column;
        has_optional = has_optional || !row->required;
        if (row->required)
            fprintf(out, " --%s %s", row->name, row->value);
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
    weft_help_roff(row->name, out);
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
    fprintf(out, "--%s\t", row->name);
    for (int i = 0; i < row->num_names; i++)
        fprintf(out, "%s%s", i ? "|" : "", row->names[i]);
    fprintf(out, "%s\t%s\n", row->num_names == 0 && row->value ? row->value : "", row->help);
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
