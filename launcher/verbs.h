/* The verbs of the weft command. Each takes its own arguments (argv[0] is the verb's name), prints
 * its result and returns the process' exit code. Those that read a config or make a model get the
 * application, checked; they give it to weft_config_load, and the config carries it. */
#ifndef WEFT_LAUNCHER_VERBS_H
#define WEFT_LAUNCHER_VERBS_H

#include <weft/application.h>

#include "launcher/planning/plan.h"

int weft_verb_train(int argc, char **argv, const weft_application *application);
int weft_verb_eval(int argc, char **argv, const weft_application *application);
int weft_verb_generate(int argc, char **argv, const weft_application *application);
int weft_verb_check_layer(int argc, char **argv, const weft_application *application);
int weft_verb_inspect(int argc, char **argv, const weft_application *application);
int weft_verb_compare(int argc, char **argv, const weft_application *application);
int weft_verb_prepare(int argc, char **argv);
int weft_verb_doctor(int argc, char **argv);
int weft_verb_calibrate(int argc, char **argv, const weft_application *application);
int weft_verb_bench(int argc, char **argv, const weft_application *application);
int weft_verb_plan(int argc, char **argv, const weft_application *application,
                   weft_vocabulary_function vocabulary);
int weft_verb_schedule(int argc, char **argv, const weft_application *application,
                       weft_vocabulary_function vocabulary);
int weft_verb_expand(int argc, char **argv, const weft_application *application,
                     weft_vocabulary_function vocabulary);
/* program: what jobs start, unless the line says it; NULL: the program that runs. */
int weft_verb_launch(int argc, char **argv, const weft_application *application,
                     weft_vocabulary_function vocabulary, const char *program);

/* weft bench WHAT: measures one part of Weft on the ranks at hand, on any launcher. Each parses its
 * own options, starts the world, runs, and returns the process' exit code. argv[0] is its name. */
int weft_bench_all_to_all(int argc, char **argv);
int weft_bench_moe_layer(int argc, char **argv);
/* As weft_verb_train it starts the ranks itself where no launcher does. */
int weft_bench_experts(int argc, char **argv, const weft_application *application);

/* weft plan WHAT: one operation or layer on a cluster, without a config. */
int weft_plan_all_to_all(int argc, char **argv);
int weft_plan_moe_layer(int argc, char **argv);

/* Names the program in errors and usage; "weft" before. Borrowed. */
void weft_verb_program(const char *name);
/* Prints this thread's error record as one line on stderr ("weft train: ...") and returns the
 * status' exit code. */
int weft_verb_fail(const char *verb);

#endif
