/* The MLP's struct, also that of an MoE layer's shared expert. Private to layers/. */
#ifndef WEFT_LAYERS_MLP_H
#define WEFT_LAYERS_MLP_H

#include "layers/layers.h"

typedef struct weft_mlp {
    weft_layer_common common;
    weft_linear fc1, fc2;
    size_t ffn_all;   /* global width */
    unsigned modules; /* modules that the MLP is part of: bits of layers/pass/recompute.h */
} weft_mlp;

/* An MLP of global width `ffn` and these modules; NULL when memory is short. */
weft_layer *weft_mlp_create_wide(const weft_model_options *options, size_t ffn, unsigned modules);

#endif
