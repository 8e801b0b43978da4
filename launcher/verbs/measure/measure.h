/* The verbs that measure this machine, or the ranks at hand. */
#ifndef WEFT_LAUNCHER_VERBS_MEASURE_MEASURE_H
#define WEFT_LAUNCHER_VERBS_MEASURE_MEASURE_H

#include "launcher/arguments/arguments.h"

int weft_verb_doctor(int argc, char **argv, const weft_verb_given *given);
int weft_verb_calibrate(int argc, char **argv, const weft_verb_given *given);
int weft_verb_bench(int argc, char **argv, const weft_verb_given *given);

/* weft bench WHAT: measures one part of Weft on the ranks at hand, on any launcher. */
int weft_bench_all_to_all(int argc, char **argv, const weft_verb_given *given);
int weft_bench_moe_layer(int argc, char **argv, const weft_verb_given *given);
/* As weft_verb_train it starts the ranks itself where no launcher does. */
int weft_bench_experts(int argc, char **argv, const weft_verb_given *given);

#endif
