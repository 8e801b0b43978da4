#include "launcher/arguments/arguments.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "comm/comm.h"
#include "core/options/options.h"
#include "launcher/arguments/help.h"
#include "launcher/planning/config.h"

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
                         weft_help *out_help)
{
    void *memory;
    bool options = true;
    WEFT_TRY(weft_arena_alloc_array(arena, a->num_rows + 1, sizeof(bool), &memory));
    bool *given = memset(memory, 0, (a->num_rows + 1) * sizeof(bool));
    bool several = a->operands && strstr(a->operands, "...");
    for (size_t i = 0; i <= a->num_rows; i++) {
        const bool is_row = i < a->num_rows;
        weft_string_list *list = is_row ? a->rows[i].to : a->given;
        if (!list || (is_row && a->rows[i].row.type != WEFT_OPTION_STRINGS))
            continue;
        WEFT_TRY(weft_arena_alloc_array(arena, (size_t)argc, sizeof(char *), &memory));
        *list = (weft_string_list){.values = memory};
    }
    for (int i = 1; i < argc; i++) {
        bool is_option = options && argv[i][0] == '-' && argv[i][1] != '\0';
        *out_help = is_option ? weft_help_asked(argv[i]) : WEFT_HELP_NONE;
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
    weft_help help = WEFT_HELP_NONE;
    int rank = 0;
    weft_comm_launched(&rank, NULL, NULL, NULL);
    if (parse(arguments, argc, argv, arena, &help) != WEFT_OK)
        return weft_verb_fail_apart(arguments->verb);
    if (help && rank == 0)
        weft_help_verb(help, arguments, program, verb_brief, stdout);
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
