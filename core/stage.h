/* Where a model's virtual stages lie on the p ranks of a pipeline, v chunks on each. In a loop
 * stage s is chunk s / p of rank s % p (Narayanan et al. 2021, §2.2). In a V chunks run up and down
 * in turn: chunk 0 of rank r is stage r, chunk 1 is stage 2p - 1 - r, so with two chunks the first
 * rank has the model's first and last stage (Qi et al. 2024). */
#ifndef WEFT_CORE_STAGE_H
#define WEFT_CORE_STAGE_H

#include <stdbool.h>

/* The virtual stage that is a rank's chunk; below, the rank of a virtual stage. */
static inline int weft_stage_of(bool is_v, int num_ranks, int rank, int chunk)
{
    return chunk * num_ranks + (is_v && chunk % 2 ? num_ranks - 1 - rank : rank);
}

static inline int weft_rank_of_stage(bool is_v, int num_ranks, int stage)
{
    return is_v && stage / num_ranks % 2 ? num_ranks - 1 - stage % num_ranks : stage % num_ranks;
}

#endif
