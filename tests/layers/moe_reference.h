/* The MoE layer in fp64 by its definition: a loop over tokens, choices and experts. */
#ifndef WEFT_TESTS_LAYERS_MOE_REFERENCE_H
#define WEFT_TESTS_LAYERS_MOE_REFERENCE_H

#include <weft/model.h>

typedef struct moe_reference {
    const weft_model_options *options; /* resolved; linear biases are taken as zero */
    size_t tokens;
    size_t routed;                    /* tokens that share a capacity: all, or a slice of them */
    const double *x, *dy;             /* [T, H] */
    const double *router, *fc1, *fc2; /* [E, H], [E, gates, F, H], [E, H, F] */
    const double *shared_fc1, *shared_fc2; /* [gates, F', H], [H, F']; NULL: none */
    double *y;                             /* [T, H] */
    double aux_loss;
    size_t dropped;
    size_t *expert_tokens; /* [E]: kept choices */
} moe_reference;

/* Fills y, aux_loss, dropped and expert_tokens; returns <dy, y> + aux_loss. */
double moe_reference_run(moe_reference *m);

#endif
