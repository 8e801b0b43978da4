/* weft bench: finds the bench. */
#include <stdio.h>
#include <string.h>

#include "comm/comm.h"
#include "core/options/options.h"
#include "launcher/verbs/measure/measure.h"

static const struct {
    const char *name, *help;
    weft_verb_function run;
} benches[] = {
    {"all-to-all", "the forms of the experts' all-to-all, against each other and the model",
     weft_bench_all_to_all},
    {"moe-layer", "one MoE layer: partitions, memory reuse, other ways, and what would be chosen",
     weft_bench_moe_layer},
    {"experts", "a config's experts on the device, in host memory and in a file, in each order",
     weft_bench_experts},
};
enum { NUM_BENCHES = sizeof benches / sizeof *benches };

static void help(FILE *out)
{
    fprintf(out, "usage: weft bench WHAT [options]\n"
                 "\n"
                 "Measures a part of Weft on the ranks at hand, under any launcher:\n");
    for (int i = 0; i < NUM_BENCHES; i++)
        fprintf(out, "  %-12s  %s\n", benches[i].name, benches[i].help);
    fprintf(out, "Each has --help, --json and --rounds N; the first two also --svg FILE. Lines on "
                 "standard error say\nwhat is measured, until the table comes.\n");
}

int weft_verb_bench(int argc, char **argv, const weft_verb_given *given)
{
    const char *names[NUM_BENCHES];
    int rank = 0, size, local_rank, local_size;
    weft_comm_launched(&rank, &size, &local_rank, &local_size);
    for (int i = 0; i < NUM_BENCHES; i++)
        names[i] = benches[i].name;
    if (argc < 2) {
        if (rank == 0)
            help(stderr);
        return weft_status_exit_code(WEFT_CONFIG);
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        if (rank == 0)
            help(stdout);
        return 0;
    }
    for (int i = 0; i < NUM_BENCHES; i++)
        if (strcmp(argv[1], names[i]) == 0)
            return benches[i].run(argc - 1, argv + 1, given);
    const char *near = weft_nearest_name(argv[1], names, NUM_BENCHES);
    if (rank == 0)
        fprintf(stderr, "weft bench: unknown bench \"%s\"%s%s%s\n", argv[1],
                near ? "; did you mean " : "; see weft bench --help", near ? near : "",
                near ? "?" : "");
    return weft_status_exit_code(WEFT_CONFIG);
}
