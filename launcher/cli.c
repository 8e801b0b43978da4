/* weft_main: finds the verb. */
#include <stdio.h>
#include <string.h>

#include <weft/weft.h>

#include "comm/comm.h"
#include "core/options/options.h"
#include "launcher/application.h"
#include "launcher/process/output.h"
#include "launcher/process/stop.h"
#include "launcher/training/setup.h"
#include "launcher/verbs.h"

static const char *const verb_names[] = {
    "train",     "prepare",     "eval", "generate", "inspect", "compare", "doctor",
    "calibrate", "check-layer", "plan", "schedule", "expand",  "launch",  "bench"};
enum { NUM_VERBS = sizeof verb_names / sizeof *verb_names };

static void usage(FILE *out, const char *program)
{
    fprintf(
        out,
        "usage: %s VERB ...\n"
        "  train    CONFIG --out RUN         train; starts mpirun itself for a larger mesh\n"
        "  prepare  TEXT... --out PREFIX     turn text into a token dataset\n"
        "  eval     CHECKPOINT               the loss of a checkpoint on a dataset\n"
        "  generate CHECKPOINT --prompt TEXT continue a text\n"
        "  inspect  CHECKPOINT|DATASET       say what a file holds, and check it\n"
        "  compare  RUN RUN                  say what differs between two runs\n"
        "  doctor                            say what this machine has, and whether it works\n"
        "  calibrate --out CLUSTER           measure what links, copies and GEMMs cost\n"
        "  plan     CONFIG --cluster CLUSTER what training takes, before there are ranks\n"
        "  schedule CONFIG                   print, draw or price the programs of a step\n"
        "  expand   CONFIG|RUN --cluster C   from today's mesh to a longer context or more nodes\n"
        "  launch   KIND CONFIG --out RUN    what starts a run: mpirun, slurm, kubernetes\n"
        "  check-layer CONFIG                check the model's layers, one by one\n"
        "  bench    WHAT                     measure a part of Weft; bench --help lists them\n"
        "Every verb has --help and --json.\n",
        program);
}

static int run_verb(int argc, char **argv, const weft_application *given)
{
    weft_application application;
    if (weft_application_take(given, &application) != WEFT_OK) {
        fprintf(stderr, "weft: %s\n", weft_error_get()->text);
        return weft_status_exit_code(weft_error_get()->status);
    }
    if (argc < 2) {
        usage(stderr, argv[0]);
        return weft_status_exit_code(WEFT_CONFIG);
    }
    const char *verb = argv[1];
    int rest = argc - 1;
    char **args = argv + 1;
    if (strcmp(verb, "--help") == 0 || strcmp(verb, "-h") == 0 || strcmp(verb, "help") == 0) {
        usage(stdout, argv[0]);
        return 0;
    }
    if (strcmp(verb, "--version") == 0) {
        printf("weft %s\n", WEFT_VERSION);
        return 0;
    }
    if (strcmp(verb, "train") == 0)
        return weft_verb_train(rest, args, &application);
    if (strcmp(verb, "eval") == 0)
        return weft_verb_eval(rest, args, &application);
    if (strcmp(verb, "generate") == 0)
        return weft_verb_generate(rest, args, &application);
    if (strcmp(verb, "prepare") == 0)
        return weft_verb_prepare(rest, args);
    if (strcmp(verb, "inspect") == 0)
        return weft_verb_inspect(rest, args, &application);
    if (strcmp(verb, "compare") == 0)
        return weft_verb_compare(rest, args, &application);
    if (strcmp(verb, "doctor") == 0)
        return weft_verb_doctor(rest, args);
    if (strcmp(verb, "calibrate") == 0)
        return weft_verb_calibrate(rest, args, &application);
    if (strcmp(verb, "check-layer") == 0)
        return weft_verb_check_layer(rest, args, &application);
    if (strcmp(verb, "plan") == 0)
        return weft_verb_plan(rest, args, &application, weft_setup_vocabulary);
    if (strcmp(verb, "schedule") == 0)
        return weft_verb_schedule(rest, args, &application, weft_setup_vocabulary);
    if (strcmp(verb, "expand") == 0)
        return weft_verb_expand(rest, args, &application, weft_setup_vocabulary);
    if (strcmp(verb, "launch") == 0)
        return weft_verb_launch(rest, args, &application, weft_setup_vocabulary, NULL);
    if (strcmp(verb, "bench") == 0)
        return weft_verb_bench(rest, args, &application);
    const char *nearest = weft_nearest_name(verb, verb_names, NUM_VERBS);
    fprintf(stderr, "weft: unknown verb \"%s\"%s%s%s\n", verb, nearest ? "; did you mean " : "",
            nearest ? nearest : "", nearest ? "?" : "");
    return weft_status_exit_code(WEFT_CONFIG);
}

int weft_application_main(int argc, char **argv, const weft_application *application)
{
    bool trains = argc > 1 && strcmp(argv[1], "train") == 0;
    weft_output_open(trains);
    if (trains)
        weft_stop_catch_signals();
    if (weft_comm_launched(NULL, NULL, NULL, NULL))
        weft_stop_with_parent();
    return weft_output_close(run_verb(argc, argv, application));
}

int weft_main(int argc, char **argv, weft_model_function build)
{
    return weft_application_main(argc, argv, &WEFT_ARGS(weft_application, .build = build));
}
