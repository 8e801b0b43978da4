/* The verbs that make runs, go on with them, and read what they leave. */
#ifndef WEFT_LAUNCHER_VERBS_TRAIN_TRAIN_H
#define WEFT_LAUNCHER_VERBS_TRAIN_TRAIN_H

#include <stdio.h>

#include "launcher/arguments/arguments.h"

int weft_verb_train(int argc, char **argv, const weft_verb_given *given);
int weft_verb_eval(int argc, char **argv, const weft_verb_given *given);
int weft_verb_generate(int argc, char **argv, const weft_verb_given *given);
int weft_verb_prepare(int argc, char **argv, const weft_verb_given *given);
int weft_verb_import(int argc, char **argv, const weft_verb_given *given);
int weft_verb_export(int argc, char **argv, const weft_verb_given *given);
int weft_verb_inspect(int argc, char **argv, const weft_verb_given *given);
int weft_verb_compare(int argc, char **argv, const weft_verb_given *given);
int weft_verb_check_layer(int argc, char **argv, const weft_verb_given *given);

/* weft inspect --flight: reads RUN/flight, or, where nothing is there, RUN/flight/last and prints
 * the verdict, a row a rank, and a row a group: what each rank has begun there, who is behind, and
 * the first collective whose kind, type or size differs. Errors: WEFT_FILE (there is none, or one
 * is damaged), WEFT_MEMORY. */
weft_status weft_inspect_flight(const char *run, bool json, FILE *out) WEFT_CHECKED;

#endif
