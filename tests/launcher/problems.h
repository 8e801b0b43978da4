/* Small problems of planning, drawn at random: a config, a cluster of GPUs, and keys that are held.
 */
#ifndef WEFT_TESTS_LAUNCHER_PROBLEMS_H
#define WEFT_TESTS_LAUNCHER_PROBLEMS_H

#include "launcher/planning/plan.h"

/* A number below `below`, of one sequence a process. */
uint32_t draw(uint32_t below);
#define PICK(list) (list)[draw(sizeof(list) / sizeof *(list))]

typedef struct problem {
    char config[2048], cluster[2048];
    const char *set[24];
    size_t num_set;
} problem;

/* Some keys are held, so that there are not too many candidates. */
void problem_draw(problem *out);

typedef struct loaded {
    weft_arena arena;
    weft_config config;
    weft_config_source source;
    weft_cluster *cluster;
} loaded;

/* Loads both, the cluster by way of cluster.json in the folder. What fails is an expectation that
 * does not hold; false: it does. The arena is to be released. */
bool problem_load(const problem *p, loaded *out);

#endif
