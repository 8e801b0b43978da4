/* An independent judge of programs: runs a set as a machine would, in a random order that lanes
 * and waits allow, with every task taking time, so that a race or a wrong value shows sooner or
 * later. It shares no code with the checker. */
#ifndef WEFT_TESTS_SCHEDULE_MACHINE_H
#define WEFT_TESTS_SCHEDULE_MACHINE_H

#include "tests/schedule/programs.h"

/* NULL if this run went well: every task saw the values of its micro-batch, nothing was written
 * while in use, every gradient was added once before the reduction, and everything came to an end.
 * Otherwise what went wrong. */
const char *run_machine(const program_set *set, uint64_t seed);

#endif
