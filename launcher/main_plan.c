/* weft-plan: the verbs that need no ranks, data or device, from the pure set alone. */
#include <stdio.h>
#include <string.h>

#include "launcher/application.h"
#include "launcher/process/output.h"
#include "launcher/verbs.h"

static int usage(FILE *out)
{
    fprintf(
        out,
        "usage: weft-plan VERB ...\n"
        "  plan     CONFIG --cluster FILE    what training takes on a cluster\n"
        "  schedule CONFIG                   the programs of a step, drawn or as text\n"
        "  expand   CONFIG|RUN --cluster C   from today's mesh to a longer context or more nodes\n"
        "  launch   KIND CONFIG --out RUN    what starts a run: mpirun, slurm, kubernetes\n"
        "Every verb has --help and --json.\n");
    return out == stdout ? 0 : weft_status_exit_code(WEFT_CONFIG);
}

static int run_verb(int argc, char **argv)
{
    weft_application application;
    if (weft_application_take(&(weft_application){.struct_bytes = sizeof application},
                              &application) != WEFT_OK) {
        fprintf(stderr, "weft-plan: %s\n", weft_error_get()->text);
        return weft_status_exit_code(weft_error_get()->status);
    }
    if (argc > 1 && strcmp(argv[1], "plan") == 0)
        return weft_verb_plan(argc - 1, argv + 1, &application, NULL);
    if (argc > 1 && strcmp(argv[1], "schedule") == 0)
        return weft_verb_schedule(argc - 1, argv + 1, &application, NULL);
    if (argc > 1 && strcmp(argv[1], "expand") == 0)
        return weft_verb_expand(argc - 1, argv + 1, &application, NULL);
    if (argc > 1 && strcmp(argv[1], "launch") == 0) /* this program trains nothing */
        return weft_verb_launch(argc - 1, argv + 1, &application, NULL, "weft");
    if (argc < 2 || strcmp(argv[1], "--help") == 0)
        return usage(argc < 2 ? stderr : stdout);
    fprintf(stderr, "weft-plan: %s: no verb; plan, schedule, expand and launch are\n", argv[1]);
    return weft_status_exit_code(WEFT_CONFIG);
}

int main(int argc, char **argv)
{
    weft_output_open(false);
    weft_verb_program("weft-plan");
    return weft_output_close(run_verb(argc, argv));
}
