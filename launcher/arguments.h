/* The command lines of verbs, through one row table per verb.
 *
 * Parsing, --help and the errors with the nearest right name all derive from the rows. An option is
 * --name VALUE or --name=VALUE, a flag --name; "--" ends the options, and what is no option is an
 * operand. */
#ifndef WEFT_LAUNCHER_ARGUMENTS_H
#define WEFT_LAUNCHER_ARGUMENTS_H

#include <stdbool.h>

#include <weft/list.h>
#include <weft/status.h>

#include "core/arena.h"

/* One option. Which of the pointers is set says what kind of value it takes, and the value goes
 * there; what stands there before is the default, which --help shows. */
typedef struct weft_argument {
    const char *name;  /* "num-tokens" */
    const char *value; /* what help calls the value: "N"; NULL: a flag */
    const char *help;
    bool *flag;
    const char **text;
    weft_string_list *texts; /* may be given again and again */
    int *count;
    int64_t *whole;
    double *number;      /* finite */
    int *choice;         /* index into names */
    unsigned *set;       /* a,b: bits 1 << index into names */
    weft_int_list *list; /* 1,2,4: at most `most` */
    double min, max;     /* of numbers; both 0: any. INFINITY: no end */
    bool is_bytes;       /* whole, list: also 64k, 4MiB, 2G, in powers of 1024 */
    bool required;
    size_t most;
    const char *const *names;
    int num_names;
} weft_argument;

typedef struct weft_arguments {
    const char *verb;        /* "bench moe-layer" */
    const char *operands;    /* "CONFIG": one, "[CONFIG]": one or none, "TEXT...": one or more */
    weft_string_list *given; /* the operands; NULL where `operands` is */
    const char *about;       /* what the verb does; lines of at most 100 characters */
    const weft_argument *rows;
    size_t num_rows;
    void (*more)(const void *context); /* prints the end of --help, or NULL */
    const void *context;
} weft_arguments;

/* Fills the rows' targets; lists live in the arena, texts in argv (argv[0] is skipped). Returns -1
 * to go on, else the exit code: --help has been printed, or what is wrong, both by rank 0 alone. */
int weft_arguments_parse(const weft_arguments *arguments, int argc, char **argv, weft_arena *arena);

#endif
