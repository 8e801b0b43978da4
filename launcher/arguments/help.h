/* What a verb's rows say of it, in three forms; inside the room. */
#ifndef WEFT_LAUNCHER_ARGUMENTS_HELP_H
#define WEFT_LAUNCHER_ARGUMENTS_HELP_H

#include "launcher/arguments/arguments.h"
#include "launcher/arguments/verbs.h"

typedef enum weft_help {
    WEFT_HELP_NONE,
    WEFT_HELP_TEXT,  /* --help */
    WEFT_HELP_MAN,   /* --help=man: a page of the manual, as roff */
    WEFT_HELP_WORDS, /* --help=words: for a shell's completion: word, what it takes, help, tabs
                        between */
} weft_help;

/* What a word of the command line asks for. */
weft_help weft_help_asked(const char *word);
/* A verb's; rows' targets still hold their defaults. `brief`: the verb in a clause. */
void weft_help_verb(weft_help form, const weft_arguments *verb, const char *program,
                    const char *brief, FILE *out);
/* A text in roff. */
void weft_help_roff(const char *text, FILE *out);
/* The page's head and its section NAME: `name` "weft train". */
void weft_help_man_head(const char *name, const char *brief, FILE *out);

#endif
