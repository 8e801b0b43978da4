/* The verbs that make runs, go on with them, and read what they leave. */
#ifndef WEFT_LAUNCHER_VERBS_TRAIN_TRAIN_H
#define WEFT_LAUNCHER_VERBS_TRAIN_TRAIN_H

#include "launcher/arguments/arguments.h"

int weft_verb_train(int argc, char **argv, const weft_verb_given *given);
int weft_verb_eval(int argc, char **argv, const weft_verb_given *given);
int weft_verb_generate(int argc, char **argv, const weft_verb_given *given);
int weft_verb_prepare(int argc, char **argv, const weft_verb_given *given);
int weft_verb_inspect(int argc, char **argv, const weft_verb_given *given);
int weft_verb_compare(int argc, char **argv, const weft_verb_given *given);
int weft_verb_check_layer(int argc, char **argv, const weft_verb_given *given);

#endif
