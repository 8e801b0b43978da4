/* The verbs of a program, or what one verb can be asked for, as a table. */
#ifndef WEFT_LAUNCHER_ARGUMENTS_VERBS_H
#define WEFT_LAUNCHER_ARGUMENTS_VERBS_H

#include "launcher/arguments/arguments.h"

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
