/* The MoE layer's struct, and where one micro-batch's tokens went. Private to layers/. */
#ifndef WEFT_LAYERS_MOE_H
#define WEFT_LAYERS_MOE_H

#include "layers/layers.h"

typedef struct weft_moe {
    weft_layer_common common;
    weft_parameter *router, *fc1, *fc2;
    weft_layer *shared; /* owned; optional */
    weft_moe_dims dims;
} weft_moe;

typedef struct weft_moe_state {
    weft_tensor x;                           /* borrowed: the layer's input */
    weft_tensor logits, scores, index, prob; /* [T, E], [T, E], [T, K], [T, K] */
    float *sums;                             /* host: counts[E], score_sums[E], z_sum */
    int64_t *counts;                         /* host: [E] of this rank's plan, then [1] dropped */
    int64_t *received;                       /* host: [ep][local_experts] */
    int64_t *offsets;                        /* host: [local_experts + 1] */
    size_t *send_bytes, *recv_bytes;         /* host: [ep] */
    int32_t *row_of, *token_of;
    int32_t *order, *inverse; /* expert-major row -> received row and back; NULL: the same */
    size_t num_sent, num_rows;
    weft_tensor in, hidden, act, out; /* at the experts: [R, H], [R, gates ffn], [R, ffn], [R, H] */
    weft_tensor returned;             /* at home: [num_sent, H] */
} weft_moe_state;

#endif
