/* weft_main: the table of verbs. */
#include <stdio.h>
#include <string.h>

#include <weft/weft.h>

#include "comm/comm.h"
#include "launcher/arguments/arguments.h"
#include "launcher/process/output.h"
#include "launcher/process/stop.h"
#include "launcher/training/setup.h"
#include "launcher/verbs/measure/measure.h"
#include "launcher/verbs/plan/plan.h"
#include "launcher/verbs/train/train.h"

static const weft_verb verbs[] = {
    {"train", "CONFIG --out RUN", "train; starts mpirun itself for a larger mesh", weft_verb_train},
    {"prepare", "TEXT... --out PREFIX", "turn text into a token dataset", weft_verb_prepare},
    {"eval", "CHECKPOINT", "the loss of a checkpoint on a dataset", weft_verb_eval},
    {"generate", "CHECKPOINT --prompt TEXT", "continue a text", weft_verb_generate},
    {"import", "FOLDER --out RUN", "a checkpoint of a model in Hugging Face's files",
     weft_verb_import},
    {"export", "CHECKPOINT --out FOLDER", "a checkpoint's model as Hugging Face's files",
     weft_verb_export},
    {"inspect", "CHECKPOINT|DATASET", "say what a file holds, and check it", weft_verb_inspect},
    {"compare", "RUN RUN", "say what differs between two runs", weft_verb_compare},
    {"config", "", "the keys of the config, explained, or as a JSON schema", weft_verb_config},
    {"doctor", "", "say what this machine has, and whether it works", weft_verb_doctor},
    {"calibrate", "--out CLUSTER", "measure what links, copies and GEMMs cost",
     weft_verb_calibrate},
    {"plan", "CONFIG --cluster CLUSTER", "what training takes, before there are ranks",
     weft_verb_plan},
    {"schedule", "CONFIG", "print, draw or price the programs of a step", weft_verb_schedule},
    {"expand", "CONFIG|RUN --cluster C", "from today's mesh to a longer context or more nodes",
     weft_verb_expand},
    {"launch", "KIND CONFIG --out RUN", "what starts a run: mpirun, slurm, kubernetes",
     weft_verb_launch},
    {"check-layer", "CONFIG", "check the model's layers, one by one", weft_verb_check_layer},
    {"bench", "WHAT", "measure a part of Weft; bench --help lists them", weft_verb_bench},
};

static int run_verb(int argc, char **argv, const weft_application *asked)
{
    weft_application application;
    if (weft_application_take(asked, &application) != WEFT_OK) {
        fprintf(stderr, "weft: %s\n", weft_error_get()->text);
        return weft_status_exit_code(weft_error_get()->status);
    }
    if (argc > 1 && strcmp(argv[1], "--version") == 0) {
        printf("weft %s\n", WEFT_VERSION);
        return 0;
    }
    static char help[] = "--help";
    if (argc > 1 && strcmp(argv[1], "help") == 0)
        argv[1] = help;
    const weft_verb_given given = {.application = &application,
                                   .vocabulary = weft_setup_vocabulary};
    const weft_verbs all = {.called = argv[0],
                            .noun = "verb",
                            .brief = "train language models across a mesh of devices",
                            .all = verbs,
                            .count = sizeof verbs / sizeof *verbs,
                            .more = "Every verb has --help and --json.\n"};
    return weft_verbs_run(&all, argc, argv, &given);
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
