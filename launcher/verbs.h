/* The verbs of a program, as a table. */
#ifndef WEFT_LAUNCHER_VERBS_H
#define WEFT_LAUNCHER_VERBS_H

#include <stdio.h>

#include "launcher/arguments/arguments.h"

typedef struct weft_verb {
    const char *name, *operands, *about;
    weft_verb_function run;
} weft_verb;

/* Prints what a program's verbs are, a line each; `program` as it was called. */
void weft_verbs_print(const weft_verb *verbs, size_t count, const char *program, FILE *out);
/* NULL: no verb has the name. */
const weft_verb *weft_verbs_find(const weft_verb *verbs, size_t count, const char *name);

#endif
