/* The verbs of the weft command. Each takes its own arguments (argv[0] is the verb's name), prints
 * its result and returns the process' exit code. */
#ifndef WEFT_LAUNCHER_VERBS_H
#define WEFT_LAUNCHER_VERBS_H

#include <weft/model.h>

int weft_verb_train(int argc, char **argv, weft_model_function build);
int weft_verb_generate(int argc, char **argv, weft_model_function build);
int weft_verb_inspect(int argc, char **argv);
int weft_verb_prepare(int argc, char **argv);
int weft_verb_doctor(int argc, char **argv);
int weft_verb_calibrate(int argc, char **argv);
int weft_verb_bench(int argc, char **argv); /* weft bench WHAT: launcher/bench.h */

/* Prints this thread's error record as one line on stderr ("weft train: ...") and returns the
 * status' exit code. */
int weft_verb_fail(const char *verb);

#endif
