/* --help of a verb. Private to launcher/arguments*.c. */
#ifndef WEFT_LAUNCHER_ARGUMENTS_HELP_H
#define WEFT_LAUNCHER_ARGUMENTS_HELP_H

#include "launcher/arguments.h"

/* A number as --help writes it: "4MiB" of a row that counts bytes. */
void weft_argument_number(const weft_argument *row, double value, char out[32]);
/* The rows' targets still hold the defaults of what stood before --help. */
void weft_arguments_help(const weft_arguments *arguments, const char *program);

#endif
