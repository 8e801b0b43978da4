#include "launcher/verbs.h"

#include <string.h>

void weft_verbs_print(const weft_verb *verbs, size_t count, const char *program, FILE *out)
{
    char line[64];
    fprintf(out, "usage: %s VERB ...\n", program);
    for (size_t i = 0; i < count; i++) {
        snprintf(line, sizeof line, "%-8s %s", verbs[i].name, verbs[i].operands);
        fprintf(out, "  %-33s %s\n", line, verbs[i].about);
    }
    fputs("Every verb has --help and --json.\n", out);
}

const weft_verb *weft_verbs_find(const weft_verb *verbs, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(verbs[i].name, name) == 0)
            return &verbs[i];
    return NULL;
}
