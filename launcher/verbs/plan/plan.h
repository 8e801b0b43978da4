/* The verbs that say before a run what it takes. They need no ranks, data or device. */
#ifndef WEFT_LAUNCHER_VERBS_PLAN_PLAN_H
#define WEFT_LAUNCHER_VERBS_PLAN_PLAN_H

#include "launcher/arguments/arguments.h"

int weft_verb_plan(int argc, char **argv, const weft_verb_given *given);
int weft_verb_schedule(int argc, char **argv, const weft_verb_given *given);
int weft_verb_expand(int argc, char **argv, const weft_verb_given *given);
int weft_verb_config(int argc, char **argv, const weft_verb_given *given);
int weft_verb_launch(int argc, char **argv, const weft_verb_given *given);

/* weft plan WHAT: one operation or layer on a cluster, without a config. */
int weft_plan_all_to_all(int argc, char **argv, const weft_verb_given *given);
int weft_plan_moe_layer(int argc, char **argv, const weft_verb_given *given);

#endif
