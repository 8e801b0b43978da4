#include "launcher/arguments/verbs.h"

#include <stdio.h>
#include <string.h>

#include "comm/comm.h"
#include "core/options/options.h"
#include "launcher/arguments/help.h"

enum { MOST_VERBS = 32 };

static void print_text(const weft_verbs *v, FILE *out)
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

static void print_words(const weft_verbs *v, FILE *out)
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

static void print_man(const weft_verbs *v, const char *program, FILE *out)
{
    char name[64];
    snprintf(name, sizeof name, "%s%s%s", program, v->name ? " " : "", v->name ? v->name : "");
    weft_help_man_head(name, v->brief, out);
    fprintf(out, "%s ...\n.SH DESCRIPTION\n", v->name ? "WHAT" : "VERB");
    for (size_t i = 0; i < v->count; i++) {
        fputs(".TP\n\\fB", out);
        weft_help_roff(v->all[i].name, out);
        fputs("\\fR ", out);
        weft_help_roff(v->all[i].operands, out);
        fputc('\n', out);
        weft_help_roff(v->all[i].about, out);
        fputc('\n', out);
    }
    fputs(".PP\n", out);
    weft_help_roff(v->more, out);
    if (!v->name)
        print_man_codes(out);
    fputs(".SH SEE ALSO\n", out);
    for (size_t i = 0; i < v->count; i++) {
        fputs(".BR ", out);
        snprintf(name, sizeof name, "%s%s%s-%s", program, v->name ? "-" : "",
                 v->name ? v->name : "", v->all[i].name);
        weft_help_roff(name, out);
        fprintf(out, " (1)%s\n", i + 1 < v->count ? "," : "");
    }
}

static int refuse(const weft_verbs *v, const char *name)
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

static const weft_verb *find(const weft_verbs *v, const char *name)
{
    for (size_t i = 0; i < v->count; i++)
        if (strcmp(v->all[i].name, name) == 0)
            return &v->all[i];
    return NULL;
}

int weft_verbs_run(const weft_verbs *verbs, int argc, char **argv, const weft_verb_given *given)
{
    const weft_verb *verb = argc > 1 ? find(verbs, argv[1]) : NULL;
    const weft_help form = argc > 1 ? weft_help_asked(argv[1]) : WEFT_HELP_TEXT;
    int rank = 0;
    if (verb) {
        weft_verb_brief(verb->about);
        return verb->run(argc - 1, argv + 1, given);
    }
    weft_comm_launched(&rank, NULL, NULL, NULL);
    if (rank > 0)
        return argc > 1 && form ? 0 : weft_status_exit_code(WEFT_CONFIG);
    if (!form)
        return refuse(verbs, argv[1]);
    if (form == WEFT_HELP_MAN)
        print_man(verbs, weft_verb_program(NULL), stdout);
    else if (form == WEFT_HELP_WORDS)
        print_words(verbs, stdout);
    else
        print_text(verbs, argc > 1 ? stdout : stderr);
    return argc > 1 ? 0 : weft_status_exit_code(WEFT_CONFIG);
}
