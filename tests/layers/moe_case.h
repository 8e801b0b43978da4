/* An MoE layer held to its fp64 definition on one rank, and to the single rank on a mesh. */
#ifndef WEFT_TESTS_LAYERS_MOE_CASE_H
#define WEFT_TESTS_LAYERS_MOE_CASE_H

#include "tests/layers/rig.h"

/* Where the router sends tokens. */
typedef enum moe_form {
    MOE_SPREAD,       /* by chance */
    MOE_ALL_TO_ONE,   /* expert 0 is every token's first */
    MOE_LAST_STARVED, /* the last expert is the least likely of all tokens */
    MOE_SAME_TOKENS,  /* all tokens are the same */
    MOE_ZERO_TOKENS,  /* all logits tie: the lower experts win */
    MOE_HUGE,         /* logits in the ten thousands */
} moe_form;

/* Of relative errors between meshes in fp32. */
typedef enum moe_bound {
    MOE_TIGHT,   /* 5e-6 */
    MOE_CANCELS, /* 2e-4: a probability near 1 has hardly a slope, and the router's gradient is what
                    cancellation leaves of larger terms */
} moe_bound;

typedef struct moe_case {
    const char *name;
    const char *json; /* fields of section "model"; norms, attention and vocabulary do not matter */
    size_t batch;
    moe_form form;
    moe_bound bound;
} moe_case;

/* y, auxiliary loss, drops and rows an expert against fp64; gradients of x and of every weight
 * against differences of the fp64 loss. This process alone. */
void moe_case_check_definition(const moe_case *c);
/* y, dx, every gradient, auxiliary loss and drops on the first `ranks` of world, while the others
 * wait, against a single rank that runs the same micro-batches one after the other; tokens travel
 * as harness_moe says. Rank 0 prints a line. */
void moe_case_check_mesh(const moe_case *c, weft_comm *world, int ranks, const char *mesh);

#endif
