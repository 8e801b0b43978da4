/* weft-plan: the verbs that need no ranks, data or device, from the pure set alone. */
#include <string.h>

#include "launcher/process/output.h"
#include "launcher/verbs.h"
#include "launcher/verbs/plan/plan.h"

static const weft_verb verbs[] = {
    {"plan", "CONFIG --cluster FILE", "what training takes on a cluster", weft_verb_plan},
    {"schedule", "CONFIG", "the programs of a step, drawn or as text", weft_verb_schedule},
    {"expand", "CONFIG|RUN --cluster C", "from today's mesh to a longer context or more nodes",
     weft_verb_expand},
    {"launch", "KIND CONFIG --out RUN", "what starts a run: mpirun, slurm, kubernetes",
     weft_verb_launch},
};
enum { NUM_VERBS = sizeof verbs / sizeof *verbs };

static int run_verb(int argc, char **argv)
{
    weft_application application;
    if (weft_application_take(&(weft_application){.struct_bytes = sizeof application},
                              &application) != WEFT_OK) {
        fprintf(stderr, "weft-plan: %s\n", weft_error_get()->text);
        return weft_status_exit_code(weft_error_get()->status);
    }
    if (argc < 2 || strcmp(argv[1], "--help") == 0) {
        weft_verbs_print(verbs, NUM_VERBS, "weft-plan", argc < 2 ? stderr : stdout);
        return argc < 2 ? weft_status_exit_code(WEFT_CONFIG) : 0;
    }
    const weft_verb *verb = weft_verbs_find(verbs, NUM_VERBS, argv[1]);
    if (verb) /* jobs start `weft`: this program trains nothing */
        return verb->run(argc - 1, argv + 1,
                         &(weft_verb_given){.application = &application, .program = "weft"});
    fprintf(stderr, "weft-plan: %s: no verb; plan, schedule, expand and launch are\n", argv[1]);
    return weft_status_exit_code(WEFT_CONFIG);
}

int main(int argc, char **argv)
{
    weft_output_open(false);
    weft_verb_program("weft-plan");
    return weft_output_close(run_verb(argc, argv));
}
