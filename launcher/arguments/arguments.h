/* The command lines of verbs, one table of rows a verb.
 *
 * Parsing, --help and errors with the nearest right name derive from the rows. An option is --name
 * VALUE or --name=VALUE, a flag --name; "--" ends the options; all else is an operand. */
#ifndef WEFT_LAUNCHER_ARGUMENTS_ARGUMENTS_H
#define WEFT_LAUNCHER_ARGUMENTS_ARGUMENTS_H

#include <stdbool.h>
#include <stdio.h>

#include <weft/list.h>
#include <weft/status.h>

#include "core/arena.h"
#include "core/key.h"
#include "launcher/planning/config.h"

/* One option: a row (core/key.h) and where its value goes, which holds the default before. */
typedef struct weft_argument {
    weft_key row;      /* key: "num-tokens"; launcher/arguments/rows.h writes it in short */
    const char *value; /* what help calls the value: "N"; NULL: a flag */
    void *to;          /* of row.type; STRINGS may be given several times */
    size_t most;       /* not 0: "a,b", so many at most: to weft_int_list, of names as bits */
    bool is_small;     /* of an INT: `to` is an int */
    bool required;
    const char *needs;    /* another option that has to stand beside it, or NULL */
    const char *excludes; /* others that may not, spaces between, or NULL */
} weft_argument;

typedef struct weft_arguments {
    const char *verb;        /* "bench moe-layer" */
    const char *operands;    /* "CONFIG": one, "KIND CONFIG": two, "[CONFIG]": one or none,
                                "TEXT...": one or more, "[FILE...]": any number */
    weft_string_list *given; /* the operands; NULL where `operands` is, */
    const char **operand;    /* or where there is one, which goes here; NULL: it is left out */
    const char *words;       /* operands that name no file, spaces between, or NULL */
    const char *about;       /* what the verb does; lines of at most 100 characters */
    const weft_argument *rows;
    size_t num_rows;
    void (*more)(const void *context, FILE *out); /* writes the end of --help, or NULL */
    const void *context;
} weft_arguments;

/* Fills the rows' targets; lists live in the arena, texts in argv (argv[0] is skipped). Returns -1
 * to go on, else the exit code: rank 0 alone has printed --help (also =man, a page of the manual in
 * roff, and =words, for a shell's completion), or what is wrong. */
int weft_arguments_parse(const weft_arguments *arguments, int argc, char **argv, weft_arena *arena);

/* What a verb is given beside its line. */
typedef struct weft_verb_given {
    const weft_application *application; /* checked; weft_config_load takes it */
    weft_vocabulary_function vocabulary; /* NULL: the program reads no data */
    const char *program; /* what jobs start, unless the line says it; NULL: this one */
} weft_verb_given;
/* A verb parses its own arguments (argv[0] is its name), prints its result and returns the process'
 * exit code. */
typedef int (*weft_verb_function)(int argc, char **argv, const weft_verb_given *given);

/* Names the program in errors and usage; "weft" before. Borrowed; NULL: leaves it. Returns it. */
const char *weft_verb_program(const char *name);
/* The verb that runs in a clause, for its page of the manual. Borrowed. */
void weft_verb_brief(const char *brief);
/* Prints this thread's error record as one line on stderr ("weft train: ...") and returns the
 * status' exit code. */
int weft_verb_fail(const char *verb);
/* The same where ranks that a launcher started have not met yet, and what is wrong is most likely
 * wrong in all: rank 0 prints it. The first rank to end may take the others with it, so all others
 * wait 5 s; behind that a node's first one prints what rank 0 has not found, unless the error is
 * one that all ranks share. */
int weft_verb_fail_apart(const char *verb);

/* --- the verbs of a program, or what one verb can be asked for -------------------------------- */

typedef struct weft_verb {
    const char *name, *operands, *about;
    weft_verb_function run;
} weft_verb;

typedef struct weft_verbs {
    const char *called; /* how the user called the program: usage names it so */
    const char *name;   /* "bench": the verb whose words they are; NULL: the program's own */
    const char *noun;   /* "verb": what one of them is */
    const char *brief;  /* what they do together, in a clause */
    const weft_verb *all;
    size_t count;
    const char *more; /* the end of --help */
} weft_verbs;

/* Runs the verb that argv[1] names with the words from there on; returns its exit code. Without
 * words, with --help (also =man, =words) or a name that is none it prints what there is: rank 0
 * alone. */
int weft_verbs_run(const weft_verbs *verbs, int argc, char **argv, const weft_verb_given *given);

#endif
