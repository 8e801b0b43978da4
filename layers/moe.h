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
    weft_tensor in, hidden, out; /* at the experts: [R, H], [R, gates ffn], [R, H] */
    weft_tensor returned;        /* at home: [num_sent, H] */
} weft_moe_state;

/* Logits, choice and probabilities of rows [T, H], and the sums of the auxiliary losses over the
 * micro-batch. Collective over TP where each rank routes its own rows. */
weft_status weft_moe_route(weft_moe *m, weft_pass *pass, weft_moe_state *state,
                           const weft_tensor *rows) WEFT_CHECKED;
/* Adds losses, load and drops to the pass's metrics, on the lane; after the dispatch plan. */
weft_status weft_moe_count(weft_moe *m, weft_pass *pass, weft_moe_state *state) WEFT_CHECKED;
/* Router gradients from dprob [T, K] and the auxiliary losses; the rows' own are added to dx. */
weft_status weft_moe_route_backward(weft_moe *m, weft_pass *pass, weft_moe_state *state,
                                    const weft_tensor *rows, const weft_tensor *dprob,
                                    const weft_tensor *dx) WEFT_CHECKED;

/* Sorts the choices by expert, exchanges the counts and gives the host all sizes; waits for the
 * lane. Collective over EP with binding dp. */
weft_status weft_moe_dispatch_plan(weft_moe *m, weft_pass *pass,
                                   weft_moe_state *state) WEFT_CHECKED;
/* to[i] = from[index[i]], rows. */
weft_status weft_moe_select(weft_pass *pass, const weft_tensor *from, const int32_t *index,
                            weft_tensor *to) WEFT_CHECKED;
/* Dispatch: rows in sending order at home -> expert-major rows at the experts; and combine's way
 * back. `to` is written; scratch is used. Collective over EP. */
weft_status weft_moe_to_experts(weft_pass *pass, weft_moe_state *state, const weft_tensor *home,
                                weft_tensor *to) WEFT_CHECKED;
weft_status weft_moe_to_home(weft_pass *pass, weft_moe_state *state, const weft_tensor *expert,
                             weft_tensor *to) WEFT_CHECKED;

/* state->in -> state->out, stashing what backward needs. */
weft_status weft_moe_experts(weft_moe *m, weft_pass *pass, weft_moe_state *state) WEFT_CHECKED;
/* dout is the gradient of the experts' output rows; din is written, the weights' are added. */
weft_status weft_moe_experts_backward(weft_moe *m, weft_pass *pass, weft_moe_state *state,
                                      const weft_tensor *dout, weft_tensor *din) WEFT_CHECKED;

#endif
