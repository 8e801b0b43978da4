/* The MLP's state, and its products: whole, or in chunks as programs inside. Private to layers/. */
#ifndef WEFT_LAYERS_MLP_H
#define WEFT_LAYERS_MLP_H

#include "layers/layers.h"
#include "layers/tensor/tensor.h"

typedef struct weft_mlp_state {
    weft_tensor x;                /* borrowed */
    weft_tensor hidden;           /* [S*B, gates * ffn] */
    weft_tensor dy, act, dhidden; /* of a backward in two halves; with GELU act is made again */
    /* Between parts of a pass: the product at hand; all of x; act's gradient; where scratch begins.
     * dhidden lies in dact or hidden. */
    weft_tensor_call call;
    weft_tensor full, dact;
    size_t mark;
} weft_mlp_state;

/* The places of programs inside: fc1 is gathered for, fc2 is reduced; backward fc1 may come again,
 * fc2 is gathered for, fc1 is reduced. Before each stands a stage of the layer's own, and one
 * behind the last. */
enum { WEFT_MLP_FC1, WEFT_MLP_FC2, WEFT_MLP_BEHIND_FORWARD };
enum { WEFT_MLP_AGAIN, WEFT_MLP_FC2_BACK, WEFT_MLP_FC1_BACK, WEFT_MLP_BEHIND_BACKWARD };
/* As weft_layer_parts has it. */
int weft_mlp_inside(const weft_layer *layer, const weft_model *model, weft_pass *pass, weft_way way,
                    weft_inside out[WEFT_MAX_INSIDE]);
/* Whether backward recomputes fc1. */
bool weft_mlp_makes_again(const weft_mlp *mlp, const weft_shape *shape);
/* Scratch for all rows of x, where they are gathered; else x. */
weft_status weft_mlp_take_full(weft_pass *pass, const weft_tensor *x,
                               weft_tensor *full) WEFT_CHECKED;
/* Enqueue a product, or ready it as the next program inside: one whose rows are gathered, and one
 * whose partial sums are reduced, behind which make_weights (NULL: nothing) makes gradients of all
 * of x. Collective over tp. */
weft_status weft_mlp_gather(weft_mlp *mlp, weft_pass *pass, const weft_linear *linear,
                            const weft_tensor *from, const weft_tensor *gathered,
                            weft_status (*multiply)(void *, weft_pass *, int)) WEFT_CHECKED;
weft_status weft_mlp_reduce(weft_mlp *mlp, weft_pass *pass, const weft_linear *linear,
                            const weft_tensor *to,
                            weft_status (*multiply)(void *, weft_pass *, int),
                            weft_status (*make_weights)(void *, weft_pass *)) WEFT_CHECKED;
/* Enqueues a task of a program inside backward. */
weft_status weft_mlp_run_back(weft_layer *layer, weft_pass *pass, const weft_body_part *at,
                              weft_lane *lane) WEFT_CHECKED;

/* A backward in two halves: takes what the first needs; the second. */
weft_status weft_mlp_begin_input(weft_mlp *mlp, weft_pass *pass, weft_mlp_state *state,
                                 const weft_tensor *dy) WEFT_CHECKED;
weft_status weft_mlp_weights(weft_layer *layer, weft_pass *pass) WEFT_CHECKED;

bool weft_mlp_has_gelu(const weft_mlp *mlp);
weft_status weft_mlp_activate(const weft_mlp *mlp, weft_pass *pass, const weft_tensor *hidden,
                              weft_tensor *act) WEFT_CHECKED;
weft_status weft_mlp_activate_backward(const weft_mlp *mlp, weft_pass *pass,
                                       const weft_tensor *hidden, const weft_tensor *dact,
                                       const weft_tensor *dhidden) WEFT_CHECKED;

#endif
