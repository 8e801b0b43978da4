/* A second opinion on an MoE layer's programs: they are run on a machine of lanes that finishes
 * tasks in a random order, and what slots hold is followed by a table of its own. */
#ifndef WEFT_TESTS_SCHEDULE_MOE_MACHINE_H
#define WEFT_TESTS_SCHEDULE_MOE_MACHINE_H

#include "schedule/moe/layer.h"
#include "tests/schedule/programs.h"

/* programs[0] of the set is forward, programs[1] backward. */
typedef struct moe_pair {
    weft_moe_pipeline pipeline;
    program_set set;
} moe_pair;

moe_pair make_pair(weft_reuse reuse, int num_partitions);
moe_pair make_pair_of(weft_moe_pipeline pipeline);
/* What went wrong, or NULL. */
const char *run_moe_machine(const moe_pair *pair, uint64_t seed);

#endif
