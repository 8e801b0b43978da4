/* weft bench: finds the bench. */
#include "launcher/arguments/arguments.h"
#include "launcher/verbs/measure/measure.h"

static const weft_verb benches[] = {
    {"all-to-all", "", "the forms of the experts' all-to-all, against each other and the model",
     weft_bench_all_to_all},
    {"moe-layer", "",
     "one MoE layer: partitions, memory reuse, other ways, and what would be chosen",
     weft_bench_moe_layer},
    {"experts", "CONFIG",
     "a config's experts on the device, in host memory and in a file, in each order",
     weft_bench_experts},
};

int weft_verb_bench(int argc, char **argv, const weft_verb_given *given)
{
    const weft_verbs all = {.called = weft_verb_program(NULL),
                            .name = "bench",
                            .noun = "bench",
                            .brief =
                                "measures a part of Weft on the ranks at hand, under any launcher",
                            .all = benches,
                            .count = sizeof benches / sizeof *benches,
                            .more = "Each has --help, --json and --rounds N. Lines on standard "
                                    "error\nsay what is measured, until the table comes.\n"};
    return weft_verbs_run(&all, argc, argv, given);
}
