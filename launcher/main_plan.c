/* weft-plan: the verbs that need no ranks, data or device, from the pure set alone. */
#include <stdio.h>

#include "launcher/arguments/arguments.h"
#include "launcher/process/output.h"
#include "launcher/verbs/plan/plan.h"

static const weft_verb verbs[] = {
    {"plan", "CONFIG --cluster FILE", "what training takes on a cluster", weft_verb_plan},
    {"schedule", "CONFIG", "the programs of a step, drawn or as text", weft_verb_schedule},
    {"expand", "CONFIG|RUN --cluster C", "from today's mesh to a longer context or more nodes",
     weft_verb_expand},
    {"config", "", "the keys of the config, explained, or as a JSON schema", weft_verb_config},
    {"launch", "KIND CONFIG --out RUN", "what starts a run: mpirun, slurm, kubernetes",
     weft_verb_launch},
};

static int run_verb(int argc, char **argv)
{
    weft_application application;
    if (weft_application_take(&(weft_application){.struct_bytes = sizeof application},
                              &application) != WEFT_OK) {
        fprintf(stderr, "weft-plan: %s\n", weft_error_get()->text);
        return weft_status_exit_code(weft_error_get()->status);
    }
    const weft_verb_given given = {.application =
                                       &application,   /* jobs start `weft`: this program */
                                   .program = "weft"}; /* trains nothing */
    const weft_verbs all = {.called = "weft-plan",
                            .noun = "verb",
                            .brief = "what training takes, without ranks, data or device",
                            .all = verbs,
                            .count = sizeof verbs / sizeof *verbs,
                            .more = "Every verb has --help and --json.\n"};
    return weft_verbs_run(&all, argc, argv, &given);
}

int main(int argc, char **argv)
{
    weft_output_open(false);
    weft_verb_program("weft-plan");
    return weft_output_close(run_verb(argc, argv));
}
