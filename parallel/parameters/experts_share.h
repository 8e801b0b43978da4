/* Experts in host memory that the ranks of a node share: any rank of an expert parallel group reads
 * the weights, and writes the gradients, of the experts at home on other ranks of its node
 * (offload.placement, ES-MoE section 4.2). Each rank's section EXPERT lies in memory that the
 * others map; all have the same layout.
 *
 * Who works on whose experts keeps order by *marks* in that memory, which only grow: an expert's
 * `stepped` is how many changes of its weights are over, set by its home; `landed` how many
 * gradients have been added up, each set by the rank that brought it. */
#ifndef WEFT_PARALLEL_PARAMETERS_EXPERTS_SHARE_H
#define WEFT_PARALLEL_PARAMETERS_EXPERTS_SHARE_H

#include <stdatomic.h>

#include "comm/comm.h"
#include "parallel/parameters/parameters.h"

typedef struct weft_expert_marks {
    atomic_uint_least64_t landed, stepped;
} weft_expert_marks;

/* Before weft_parameters_allocate: it makes the memory. */
void weft_parameters_share_experts(weft_parameters *parameters);
/* Maps the memory of the group's ranks that are on this node. Collective over `group`, the ranks
 * between which experts are dealt out, in their order. Errors: WEFT_MEMORY. */
weft_status weft_parameters_join_experts(weft_parameters *parameters,
                                         weft_comm *group) WEFT_CHECKED;

/* What follows is of ranks in the group, after they joined. The lowest of its node: equal ones
 * share. */
int weft_parameters_expert_node(const weft_parameters *parameters, int rank);
/* Of a bucket of section EXPERT that is at home on a rank of this node. */
void *weft_parameters_weight_of(const weft_parameters *parameters, int rank, int bucket);
float *weft_parameters_grad_of(const weft_parameters *parameters, int rank, int bucket);
weft_expert_marks *weft_parameters_marks_of(const weft_parameters *parameters, int rank,
                                            int bucket);

#endif
