/* The verbs of the weft command. Each takes its own arguments (argv[0] is the verb's name), prints
 * its result and returns the process' exit code. Those that read a config or make a model get the
 * application, checked, and hand it to weft_config_load with the source; the config carries it. */
#ifndef WEFT_LAUNCHER_VERBS_H
#define WEFT_LAUNCHER_VERBS_H

#include <weft/application.h>

int weft_verb_train(int argc, char **argv, const weft_application *application);
int weft_verb_eval(int argc, char **argv, const weft_application *application);
int weft_verb_generate(int argc, char **argv, const weft_application *application);
int weft_verb_check_layer(int argc, char **argv, const weft_application *application);
int weft_verb_inspect(int argc, char **argv);
int weft_verb_prepare(int argc, char **argv);
int weft_verb_doctor(int argc, char **argv);
int weft_verb_calibrate(int argc, char **argv);
int weft_verb_bench(int argc, char **argv); /* weft bench WHAT: launcher/bench.h */

/* Prints this thread's error record as one line on stderr ("weft train: ...") and returns the
 * status' exit code. */
int weft_verb_fail(const char *verb);

#endif
