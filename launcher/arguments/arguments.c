#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "comm/comm.h"
#include "core/options/options.h"
#include "core/quantity.h"
#include "launcher/arguments/arguments.h"
#include "launcher/arguments/rows.h"

/* --- what rows say of a verb, in three forms -------------------------------------------------- */

typedef enum help_form {
    HELP_NONE,
    HELP_TEXT,  /* --help */
    HELP_MAN,   /* --help=man: a page of the manual, as roff */
    HELP_WORDS, /* --help=words: for a shell's completion: word, what it takes, help, tabs
                        between */
} help_form;

enum { WIDTH = 100 };

/* What a word of the command line asks for. */
static help_form form_asked(const char *word)
{
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0)
        return HELP_TEXT;
    if (strcmp(word, "--help=man") == 0)
        return HELP_MAN;
    return strcmp(word, "--help=words") == 0 ? HELP_WORDS : HELP_NONE;
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

/* A text in roff. */
static void write_roff(const char *text, FILE *out)
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

/* The page's head and its section NAME: `name` "weft train". */
static void write_man_head(const char *name, const char *brief, FILE *out)
{
    char title[64];
    snprintf(title, sizeof title, "%s", name);
    for (char *c = title; *c; c++)
        *c = *c == ' ' ? '-' : *c;
    fputs(".TH ", out);
    for (const char *c = title; *c; c++)
        fputc(toupper((unsigned char)*c), out);
    fprintf(out, " 1 \"\" \"Weft %s\" Weft\n.SH NAME\n", WEFT_VERSION);
    write_roff(title, out);
    fputs(" \\- ", out);
    write_roff(brief, out);
    fputs("\n.SH SYNOPSIS\n.B ", out);
    write_roff(name, out);
    fputc('\n', out);
}

static void write_option(const weft_argument *row, FILE *out)
{
    fputs("\\fB\\-\\-", out);
    write_roff(row->row.key, out);
    fputs("\\fR", out);
    if (row->value) {
        fputs(" \\fI", out);
        write_roff(row->value, out);
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
    write_roff(text, out);
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
        write_roff(text + strspn(text, "\n"), out);
        fputs(".fi\n", out);
    }
    free(text);
}

static void print_man(const weft_arguments *a, const char *program, const char *brief, FILE *out)
{
    char name[64];
    snprintf(name, sizeof name, "%s %s", program, a->verb);
    write_man_head(name, brief, out);
    if (a->operands) {
        write_roff(a->operands, out);
        fputc('\n', out);
    }
    for (size_t i = 0; i < a->num_rows; i++)
        if (a->rows[i].required)
            write_option(&a->rows[i], out);
    fputs("[options]\n.SH DESCRIPTION\n", out);
    write_roff(a->about, out);
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

/* A verb's; rows' targets still hold their defaults. `brief`: the verb in a clause. */
static void print_help(help_form form, const weft_arguments *verb, const char *program,
                       const char *brief, FILE *out)
{
    if (form == HELP_MAN)
        print_man(verb, program, brief, out);
    else if (form == HELP_WORDS)
        print_words(verb, out);
    else
        print_text(verb, program, out);
}

enum { MOST_VERBS = 32 };

/* --- the verbs of a program, or what one verb can be asked for -------------------------------- */

static void print_verbs_text(const weft_verbs *v, FILE *out)
{
    char line[64];
    fprintf(out, "usage: %s%s%s %s ...\n", v->called, v->name ? " " : "", v->name ? v->name : "",
            v->name ? "WHAT" : "VERB");
    for (size_t i = 0; i < v->count; i++) {
        snprintf(line, sizeof line, "%-8s %s", v->all[i].name, v->all[i].operands);
        fprintf(out, "  %-33s %s\n", line, v->all[i].about);
    }
    fputs(v->more, out);
}

static void print_verbs_words(const weft_verbs *v, FILE *out)
{
    for (size_t i = 0; i < v->count; i++)
        fprintf(out, "%s\t\t%s\n", v->all[i].name, v->all[i].about);
}

/* Exit codes of every verb. */
static void print_man_codes(FILE *out)
{
    static const weft_status all[] = {
#define LISTED(name, code, text) WEFT_##name,
        WEFT_STATUS_LIST(LISTED)
#undef LISTED
    };
    fputs(".SH EXIT STATUS\n", out);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        fprintf(out, ".TP\n%d\n%s\n", weft_status_exit_code(all[i]), weft_status_text(all[i]));
    fprintf(out, ".TP\n%d\nstopped as asked before its end, and saved\n", WEFT_EXIT_STOPPED);
}

static void print_verbs_man(const weft_verbs *v, const char *program, FILE *out)
{
    char name[64];
    snprintf(name, sizeof name, "%s%s%s", program, v->name ? " " : "", v->name ? v->name : "");
    write_man_head(name, v->brief, out);
    fprintf(out, "%s ...\n.SH DESCRIPTION\n", v->name ? "WHAT" : "VERB");
    for (size_t i = 0; i < v->count; i++) {
        fputs(".TP\n\\fB", out);
        write_roff(v->all[i].name, out);
        fputs("\\fR ", out);
        write_roff(v->all[i].operands, out);
        fputc('\n', out);
        write_roff(v->all[i].about, out);
        fputc('\n', out);
    }
    fputs(".PP\n", out);
    write_roff(v->more, out);
    if (!v->name)
        print_man_codes(out);
    fputs(".SH SEE ALSO\n", out);
    for (size_t i = 0; i < v->count; i++) {
        fputs(".BR ", out);
        snprintf(name, sizeof name, "%s%s%s-%s", program, v->name ? "-" : "",
                 v->name ? v->name : "", v->all[i].name);
        write_roff(name, out);
        fprintf(out, " (1)%s\n", i + 1 < v->count ? "," : "");
    }
}

static int refuse_verb(const weft_verbs *v, const char *name)
{
    const char *names[MOST_VERBS + 2] = {"--help", "--version"};
    for (size_t i = 0; i < v->count && i < MOST_VERBS; i++)
        names[i + 2] = v->all[i].name;
    const char *near = weft_nearest_name(name, names, v->count + 2);
    fprintf(stderr, "%s%s%s: unknown %s \"%s\"%s%s%s\n", weft_verb_program(NULL),
            v->name ? " " : "", v->name ? v->name : "", v->noun, name,
            near ? "; did you mean " : "; see --help", near ? near : "", near ? "?" : "");
    return weft_status_exit_code(WEFT_CONFIG);
}

static const weft_verb *find_verb(const weft_verbs *v, const char *name)
{
    for (size_t i = 0; i < v->count; i++)
        if (strcmp(v->all[i].name, name) == 0)
            return &v->all[i];
    return NULL;
}

int weft_verbs_run(const weft_verbs *verbs, int argc, char **argv, const weft_verb_given *given)
{
    const weft_verb *verb = argc > 1 ? find_verb(verbs, argv[1]) : NULL;
    const help_form form = argc > 1 ? form_asked(argv[1]) : HELP_TEXT;
    int rank = 0;
    if (verb) {
        weft_verb_brief(verb->about);
        return verb->run(argc - 1, argv + 1, given);
    }
    weft_comm_launched(&rank, NULL, NULL, NULL);
    if (rank > 0)
        return argc > 1 && form ? 0 : weft_status_exit_code(WEFT_CONFIG);
    if (!form)
        return refuse_verb(verbs, argv[1]);
    if (form == HELP_MAN)
        print_verbs_man(verbs, weft_verb_program(NULL), stdout);
    else if (form == HELP_WORDS)
        print_verbs_words(verbs, stdout);
    else
        print_verbs_text(verbs, argc > 1 ? stdout : stderr);
    return argc > 1 ? 0 : weft_status_exit_code(WEFT_CONFIG);
}

/* --- a verb's line --------------------------------------------------------------------------- */

static const char *program = "weft", *verb_brief = "";

const char *weft_verb_program(const char *name)
{
    program = name ? name : program;
    return program;
}

void weft_verb_brief(const char *brief)
{
    verb_brief = brief;
}

/* `list` has room in the arena for all that argv could give. */
static void append(weft_string_list *list, const char *text)
{
    ((const char **)list->values)[list->count++] = text;
}

static weft_status read_word(const weft_argument *a, const char *text, void *to, weft_arena *arena)
{
    const char *words;
    WEFT_TRY(weft_arena_printf(arena, &words, "--%s %.40s", a->row.key, *text ? text : "\"\""));
    return weft_option_read(&a->row, words, text, to, arena);
}

/* "a,b,c": one value each; names as bits, numbers as a list. */
static weft_status read_several(const weft_argument *a, const char *text, weft_arena *arena)
{
    const bool is_set = a->row.type == WEFT_OPTION_CHOICE;
    const char *copy;
    unsigned bits = 0;
    size_t count = 0;
    int64_t *values;
    int index;
    WEFT_TRY(weft_arena_strdup(arena, text, &copy));
    WEFT_TRY(WEFT_ARRAY(arena, a->most, &values));
    for (char *word = (char *)copy, *next = word; next; word = next, count++) {
        next = strchr(word, ',');
        if (next)
            *next++ = '\0';
        if (count == a->most)
            return WEFT_ERROR(WEFT_CONFIG, "--%s %.40s: more than %zu", a->row.key, text, a->most);
        WEFT_TRY(read_word(a, word, is_set ? (void *)&index : &values[count], arena));
        bits |= is_set ? 1u << index : 0;
    }
    if (is_set)
        *(unsigned *)a->to = bits;
    else
        *(weft_int_list *)a->to = (weft_int_list){values, count, true};
    return WEFT_OK;
}

static weft_status read_value(const weft_argument *a, const char *text, weft_arena *arena)
{
    int64_t whole;
    if (a->most > 0)
        return read_several(a, text, arena);
    if (a->row.type == WEFT_OPTION_STRINGS) {
        append(a->to, text);
    } else if (a->is_small) {
        WEFT_TRY(read_word(a, text, &whole, arena));
        *(int *)a->to = (int)whole;
    } else {
        WEFT_TRY(read_word(a, text, a->to, arena));
    }
    return WEFT_OK;
}

static const weft_argument *find_row(const weft_arguments *a, const char *name, size_t length)
{
    for (size_t i = 0; i < a->num_rows; i++)
        if (strlen(a->rows[i].row.key) == length && strncmp(a->rows[i].row.key, name, length) == 0)
            return &a->rows[i];
    return NULL;
}

/* An option that this verb has; NULL: none is near. */
static weft_status near_option(const weft_arguments *a, const char *word, weft_arena *arena,
                               const char **out)
{
    size_t likely[WEFT_LIKELY_NAMES];
    const char **names;
    WEFT_TRY(WEFT_ARRAY(arena, a->num_rows + 1, &names));
    for (size_t i = 0; i < a->num_rows; i++)
        names[i] = a->rows[i].row.key;
    names[a->num_rows] = "help";
    *out = weft_likely_names(word, names, a->num_rows + 1, 0, 0, likely) > 0
               ? names[likely[0]]
               : weft_nearest_name(word, names, a->num_rows + 1);
    return WEFT_OK;
}

/* Keys of the config, where the verb has --set; *exact: it is one. */
static weft_status near_keys(const weft_arguments *a, const char *word, weft_arena *arena,
                             weft_string_list *out, bool *exact)
{
    weft_config config = {0};
    weft_option_section sections[WEFT_MAX_CONFIG_SECTIONS];
    const char *dot = strchr(word, '.'), *section = NULL, *folded;
    WEFT_TRY(weft_arena_strdup(arena, dot ? dot + 1 : word, &folded));
    for (char *c = (char *)folded; *c; c++)
        *c = *c == '-' ? '_' : *c;
    if (dot)
        WEFT_TRY(weft_arena_printf(arena, &section, "%.*s", (int)(dot - word), word));
    *out = (weft_string_list){0};
    if (find_row(a, "set", strlen("set")))
        WEFT_TRY(weft_options_near(sections, weft_config_sections(&config, sections), section,
                                   folded, arena, out));
    *exact = out->count > 0 && strcmp(strchr(out->values[0], '.') + 1, folded) == 0;
    return WEFT_OK;
}

/* next: what stands behind it, or NULL. */
static weft_status unknown(const weft_arguments *a, const char *text, const char *next,
                           weft_arena *arena)
{
    const size_t bytes = strcspn(text, "=");
    const char *name, *near = NULL, *value, *keys;
    weft_string_list list;
    bool exact;
    WEFT_TRY(weft_arena_printf(arena, &name, "%.*s", (int)bytes, text));
    const char *word = name + strspn(name, "-");
    WEFT_TRY(near_option(a, word, arena, &near));
    WEFT_TRY(near_keys(a, word, arena, &list, &exact));
    if (near && !exact)
        return WEFT_ERROR(WEFT_CONFIG, "%.60s: unknown option; did you mean --%s?", name, near);
    const char *given = text[bytes] ? text + bytes + 1 : next && *next != '-' ? next : "VALUE";
    WEFT_TRY(weft_arena_printf(arena, &value, "=%.40s", given));
    WEFT_TRY(weft_options_near_text(&list, "--set ", value, arena, &keys));
    if (list.count > 0)
        return WEFT_ERROR(WEFT_CONFIG, "%.60s: unknown option; did you mean %s?", name, keys);
    return WEFT_ERROR(WEFT_CONFIG, "%.60s: unknown option; see %s %s --help", name, program,
                      a->verb);
}

/* What nobody can open; an empty text may be meant. */
static bool names_file(const weft_argument *row)
{
    static const char *const values[] = {"FILE", "CLUSTER", "CONFIG", "FOLDER", "PREFIX", "RUN"};
    for (size_t i = 0; row->row.type == WEFT_OPTION_STRING && i < sizeof values / sizeof *values;
         i++)
        if (strcmp(row->value, values[i]) == 0)
            return true;
    return false;
}

/* argv[*at] is an option: reads it and its value. */
static weft_status read_option(const weft_arguments *a, int argc, char **argv, int *at, bool *given,
                               weft_arena *arena)
{
    const char *text = argv[*at] + 2, *equals = strchr(text, '=');
    size_t length = equals ? (size_t)(equals - text) : strlen(text);
    const weft_argument *row = strncmp(argv[*at], "--", 2) == 0 ? find_row(a, text, length) : NULL;
    if (!row)
        return unknown(a, argv[*at], *at + 1 < argc ? argv[*at + 1] : NULL, arena);
    if (given[row - a->rows] && row->row.type != WEFT_OPTION_STRINGS)
        return WEFT_ERROR(WEFT_CONFIG, "--%s: given twice", row->row.key);
    given[row - a->rows] = true;
    if (row->row.type == WEFT_OPTION_BOOL) {
        *(bool *)row->to = true;
        return equals ? WEFT_ERROR(WEFT_CONFIG, "--%s: takes no value", text) : WEFT_OK;
    }
    const char *next = equals ? equals + 1 : *at + 1 < argc ? argv[*at + 1] : NULL;
    const bool is_empty = next && !*next && names_file(row);
    if (equals && !is_empty)
        return read_value(row, next, arena);
    if (!next || is_empty ||
        (strncmp(next, "--", 2) == 0 && find_row(a, next + 2, strlen(next + 2))))
        return WEFT_ERROR(WEFT_CONFIG, "--%s: its value %s is missing; see %s %s --help",
                          row->row.key, row->value, program, a->verb);
    ++*at;
    return read_value(row, next, arena);
}

/* A word each; "..." counts once. */
static size_t num_operands(const weft_arguments *a)
{
    size_t count = a->operands ? 1 : 0;
    for (const char *c = a->operands; c && *c; c++)
        count += *c == ' ';
    return count;
}

/* What an option that is given needs beside it, and what not. */
static weft_status check_beside(const weft_arguments *a, const weft_argument *row,
                                const bool *given)
{
    if (row->needs && !given[find_row(a, row->needs, strlen(row->needs)) - a->rows])
        return WEFT_ERROR(WEFT_CONFIG, "--%s: needs --%s", row->row.key, row->needs);
    for (const char *at = row->excludes; at && *at; at += strcspn(at, " "), at += *at == ' ') {
        const int bytes = (int)strcspn(at, " ");
        if (given[find_row(a, at, (size_t)bytes) - a->rows])
            return WEFT_ERROR(WEFT_CONFIG, "--%s and --%.*s: one of them", row->row.key, bytes, at);
    }
    return WEFT_OK;
}

static weft_status check_given(const weft_arguments *a, const bool *given)
{
    for (size_t i = 0; i < a->num_rows; i++)
        if (given[i])
            WEFT_TRY(check_beside(a, &a->rows[i], given));
    for (size_t i = 0; i < a->num_rows; i++)
        if (a->rows[i].required && !given[i])
            return WEFT_ERROR(WEFT_CONFIG, "--%s %s is missing; see %s %s --help",
                              a->rows[i].row.key, a->rows[i].value, program, a->verb);
    size_t count = a->operands ? a->given->count : 0;
    const bool lacks = a->operands && *a->operands != '[' && count < num_operands(a);
    if (lacks && num_operands(a) > 1)
        return WEFT_ERROR(WEFT_CONFIG, "takes %s, and %s given; see %s %s --help", a->operands,
                          count == 0 ? "none is" : "one alone is", program, a->verb);
    if (lacks)
        return WEFT_ERROR(WEFT_CONFIG, "%s is missing; see %s %s --help", a->operands, program,
                          a->verb);
    return WEFT_OK;
}

static weft_status parse(const weft_arguments *a, int argc, char **argv, weft_arena *arena,
                         help_form *out_help)
{
    bool options = true, *given;
    WEFT_TRY(WEFT_ARRAY(arena, a->num_rows + 1, &given));
    bool several = a->operands && strstr(a->operands, "...");
    for (size_t i = 0; i <= a->num_rows; i++) {
        const bool is_row = i < a->num_rows;
        weft_string_list *list = is_row ? a->rows[i].to : a->given;
        if (!list || (is_row && a->rows[i].row.type != WEFT_OPTION_STRINGS))
            continue;
        list->count = 0;
        WEFT_TRY(weft_arena_alloc_array(arena, (size_t)argc, sizeof(char *), &list->values));
    }
    for (int i = 1; i < argc; i++) {
        bool is_option = options && argv[i][0] == '-' && argv[i][1] != '\0';
        *out_help = is_option ? form_asked(argv[i]) : HELP_NONE;
        if (*out_help)
            return WEFT_OK;
        if (is_option && strncmp(argv[i], "--help=", 7) == 0)
            return WEFT_ERROR(WEFT_CONFIG, "%.60s: expected --help, --help=man or --help=words",
                              argv[i]);
        if (is_option && strcmp(argv[i], "--") == 0)
            options = false;
        else if (is_option)
            WEFT_TRY(read_option(a, argc, argv, &i, given, arena));
        else if (!a->operands || (!several && a->given->count == num_operands(a)))
            return WEFT_ERROR(WEFT_CONFIG, "%.60s: unexpected; see %s %s --help", argv[i], program,
                              a->verb);
        else
            append(a->given, argv[i]);
    }
    return check_given(a, given);
}

int weft_arguments_parse(const weft_arguments *arguments, int argc, char **argv, weft_arena *arena)
{
    help_form help = HELP_NONE;
    weft_arguments own = *arguments;
    weft_string_list alone = {0};
    int rank = 0;
    weft_comm_launched(&rank, NULL, NULL, NULL);
    if (own.operand)
        own.given = &alone;
    if (parse(&own, argc, argv, arena, &help) != WEFT_OK)
        return weft_verb_fail_apart(arguments->verb);
    if (own.operand)
        *own.operand = alone.count > 0 ? alone.values[0] : NULL;
    if (help && rank == 0)
        print_help(help, arguments, program, verb_brief, stdout);
    return help ? 0 : -1;
}

int weft_verb_fail_apart(const char *verb)
{
    const weft_error *error = weft_error_get();
    int rank = 0, local_rank = 0;
    weft_comm_launched(&rank, NULL, &local_rank, NULL);
    if (rank == 0)
        return weft_verb_fail(verb);
    if (error->is_shared)
        return weft_status_exit_code(error->status);
    nanosleep(&(struct timespec){.tv_sec = 5}, NULL);
    if (local_rank == 0)
        fprintf(stderr, "%s %s: rank %d: %s\n", program, verb, rank, error->text);
    return weft_status_exit_code(error->status);
}

int weft_verb_fail(const char *verb)
{
    const weft_error *error = weft_error_get();
    fprintf(stderr, "%s %s: %s\n", program, verb, error->text);
    return weft_status_exit_code(error->status);
}
