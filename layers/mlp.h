/* What the MLP keeps, and how it runs in chunks (layers/tensor/tensor.h). Private to layers/. */
#ifndef WEFT_LAYERS_MLP_H
#define WEFT_LAYERS_MLP_H

#include "layers/layers.h"
#include "layers/tensor/tensor.h"

typedef struct weft_mlp_state {
    weft_tensor x;                /* borrowed */
    weft_tensor hidden;           /* [S*B, gates * ffn] */
    weft_tensor dy, act, dhidden; /* of a backward in two halves; with GELU act is made again */
    /* Between parts of a pass in chunks: the product at hand, whose rows are in gathered rows'
     * order; all of x; act's gradient; where scratch begins. dhidden lies in dact or hidden. */
    weft_tensor_call call;
    weft_tensor full, dact;
    size_t mark;
    bool with_bias;
} weft_mlp_state;

/* layers/mlp_activation.c */
bool weft_mlp_has_gelu(const weft_mlp *mlp);
weft_status weft_mlp_activate(const weft_mlp *mlp, weft_pass *pass, const weft_tensor *hidden,
                              weft_tensor *act) WEFT_CHECKED;
weft_status weft_mlp_activate_backward(const weft_mlp *mlp, weft_pass *pass,
                                       const weft_tensor *hidden, const weft_tensor *dact,
                                       const weft_tensor *dhidden) WEFT_CHECKED;

/* layers/mlp_chunks.c: whether products are cut. If so, the programs inside, the parts, and the
 * second half of a backward, which releases scratch down to `mark`. */
bool weft_mlp_is_cut(const weft_model *model);
int weft_mlp_inside(const weft_layer *layer, const weft_model *model, weft_pass *pass, weft_way way,
                    weft_inside out[WEFT_MAX_INSIDE]);
weft_status weft_mlp_forward_in_chunks(weft_layer *layer, weft_pass *pass, int part,
                                       weft_lane *lane, const weft_tensor *x,
                                       weft_tensor *y) WEFT_CHECKED;
weft_status weft_mlp_backward_in_chunks(weft_layer *layer, weft_pass *pass, int part,
                                        weft_lane *lane, const weft_tensor *dy,
                                        weft_tensor *dx) WEFT_CHECKED;
weft_status weft_mlp_weights_in_chunks(const weft_mlp *mlp, weft_pass *pass, weft_mlp_state *state,
                                       size_t mark) WEFT_CHECKED;
/* layers/mlp.c: what is left behind the first half. */
weft_status weft_mlp_weights(weft_layer *layer, weft_pass *pass) WEFT_CHECKED;

#endif
