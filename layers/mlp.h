/* What the MLP keeps, and how it runs in chunks (layers/tensor/tensor.h). Private to layers/. */
#ifndef WEFT_LAYERS_MLP_H
#define WEFT_LAYERS_MLP_H

#include "layers/layers.h"

typedef struct weft_mlp_state {
    weft_tensor x;                /* borrowed */
    weft_tensor hidden;           /* [S*B, gates * ffn] */
    weft_tensor dy, act, dhidden; /* of a backward in two halves; with GELU act is made again */
} weft_mlp_state;

/* layers/mlp_activation.c */
bool weft_mlp_has_gelu(const weft_mlp *mlp);
weft_status weft_mlp_activate(const weft_mlp *mlp, weft_pass *pass, const weft_tensor *hidden,
                              weft_tensor *act) WEFT_CHECKED;
weft_status weft_mlp_activate_backward(const weft_mlp *mlp, weft_pass *pass,
                                       const weft_tensor *hidden, const weft_tensor *dact,
                                       const weft_tensor *dhidden) WEFT_CHECKED;

/* layers/mlp_chunks.c: whether products are cut; if so, forward and backward, and the halves of a
 * backward. They release their scratch, the second half down to `mark`. */
bool weft_mlp_is_cut(const weft_pass *pass);
weft_status weft_mlp_forward_in_chunks(const weft_mlp *mlp, weft_pass *pass, weft_mlp_state *state,
                                       weft_tensor *y) WEFT_CHECKED;
weft_status weft_mlp_backward_in_chunks(const weft_mlp *mlp, weft_pass *pass, weft_mlp_state *state,
                                        const weft_tensor *dy, weft_tensor *dx) WEFT_CHECKED;
weft_status weft_mlp_input_in_chunks(const weft_mlp *mlp, weft_pass *pass, weft_mlp_state *state,
                                     const weft_tensor *dy, weft_tensor *dx) WEFT_CHECKED;
weft_status weft_mlp_weights_in_chunks(const weft_mlp *mlp, weft_pass *pass, weft_mlp_state *state,
                                       size_t mark) WEFT_CHECKED;

#endif
