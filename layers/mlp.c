/* The MLP: column-parallel, activation, row-parallel (Shoeybi et al. 2019, §3). GELU, or a gated
 * one with fc1 = [gate | up] as a global [2, ffn, hidden] split inside, so that resharding is a
 * hyperslab. Backward recomputes the activation's output; GELU is an epilogue of the GEMMs. */
#include "core/device/device.h"
#include "kernels/kernels.h"
#include "layers/layers.h"
#include "layers/mlp.h"
#include "layers/pass/pass.h"

static weft_status mlp_init(weft_layer *layer, weft_build *build)
{
    weft_mlp *mlp = (weft_mlp *)layer;
    const weft_model_options *o = &mlp->common.options;
    const size_t hidden = (size_t)o->hidden_size, ffn = mlp->ffn_all;
    const bool has_bias = !o->disable_bias_linear;
    const weft_linear_kind first = weft_is_gated(o) ? WEFT_LINEAR_GATED : WEFT_LINEAR_COLUMN;
    const weft_linear_row rows[] = {
        {&mlp->fc1, "linear_fc1", first, hidden, ffn, has_bias, 0},
        {&mlp->fc2, "linear_fc2", WEFT_LINEAR_ROW, ffn, hidden, has_bias, 0},
    };
    weft_layer_set_splits(layer, !(weft_build_shape(build)->recompute & mlp->modules));
    return weft_linears_declare(build, o, rows, 2);
}

/* hidden = fc1(x), act = activation(hidden). A module that is recomputed does not keep hidden. */
static weft_status fc1_forward(const weft_mlp *mlp, weft_pass *pass, const weft_tensor *x,
                               weft_tensor *hidden, weft_tensor *act)
{
    weft_pass_leave_out(pass, mlp->modules);
    WEFT_TRY_AS(weft_pass_lane(pass), mlp->fc1.name,
                weft_pass_stash(pass, x->dtype, x->dims[0], mlp->fc1.out, hidden));
    weft_pass_keep(pass);
    WEFT_TRY(weft_pass_scratch(pass, x->dtype, x->dims[0], mlp->fc2.in, act));
    if (weft_mlp_has_gelu(mlp))
        return weft_linear_gelu_forward(pass, &mlp->fc1, x, hidden, act);
    WEFT_TRY(weft_linear_forward(pass, &mlp->fc1, x, true, hidden));
    return weft_mlp_activate(mlp, pass, hidden, act);
}

/* Recomputes act in backward from the kept hidden; forward's epilogue may have used sums before
 * rounding. */
static weft_status fc1_again(const weft_mlp *mlp, weft_pass *pass, const weft_tensor *x,
                             weft_tensor *hidden, weft_tensor *act)
{
    weft_note_redoes(weft_pass_lane(pass), WEFT_NOTE_REPEATED);
    WEFT_TRY(fc1_forward(mlp, pass, x, hidden, act));
    weft_note_redoes(weft_pass_lane(pass), WEFT_NOTE_NEW);
    return !weft_mlp_has_gelu(mlp) || weft_gemm_gelu_is_exact(weft_pass_lane(pass), hidden->dtype)
               ? WEFT_OK
               : weft_mlp_activate(mlp, pass, hidden, act);
}

/* dhidden overwrites act or hidden, which nobody needs any more. */
static weft_status fc2_backward(const weft_mlp *mlp, weft_pass *pass, weft_tensor *act,
                                const weft_tensor *dy, weft_tensor *hidden, weft_tensor *dhidden)
{
    *dhidden = weft_mlp_has_gelu(mlp) ? *act : *hidden;
    if (weft_mlp_has_gelu(mlp))
        return weft_linear_gelu_backward(pass, &mlp->fc2, act, dy, hidden, dhidden);
    WEFT_TRY(weft_linear_backward(pass, &mlp->fc2, act, dy, act));
    return weft_mlp_activate_backward(mlp, pass, hidden, act, dhidden);
}

static weft_status mlp_forward(weft_layer *layer, weft_pass *pass, int part, weft_lane *lane,
                               const weft_tensor *x, weft_tensor *y)
{
    weft_mlp *mlp = (weft_mlp *)layer;
    weft_mlp_state *state = weft_pass_state(pass, layer);
    size_t mark = weft_pass_mark(pass);
    weft_tensor full, act, partial;
    if (weft_mlp_is_cut(pass->model))
        return weft_mlp_forward_in_chunks(layer, pass, part, lane, x, y);
    state->x = *x;
    WEFT_TRY(weft_pass_enter(pass, x, &full));
    WEFT_TRY(fc1_forward(mlp, pass, &full, &state->hidden, &act));
    WEFT_TRY(weft_pass_partial(pass, y, &partial));
    bool with_bias = weft_pass_groups(pass)->coords.at[WEFT_AXIS_TP] == 0;
    WEFT_TRY(weft_linear_forward(pass, &mlp->fc2, &act, with_bias, &partial));
    WEFT_TRY(weft_pass_exit(pass, &partial, y));
    weft_pass_release(pass, mark);
    return WEFT_OK;
}

/* --- a backward in two halves: what is made for the weights' gradients alone is made in the second
 * half, and the rest is kept where it takes least: GELU's input is there, SwiGLU's dhidden lies in
 * its place ---------------------------------------------------------------------------------- */

weft_status weft_mlp_weights(weft_layer *layer, weft_pass *pass)
{
    weft_mlp *mlp = (weft_mlp *)layer;
    weft_mlp_state *state = weft_pass_state(pass, layer);
    size_t mark = weft_pass_mark(pass);
    weft_tensor x_full;
    if (weft_mlp_has_gelu(mlp)) {
        WEFT_TRY(weft_pass_scratch(pass, state->hidden.dtype, state->hidden.dims[0], mlp->fc2.in,
                                   &state->act));
        WEFT_TRY(weft_mlp_activate(mlp, pass, &state->hidden, &state->act));
    }
    WEFT_TRY(weft_linear_backward_weights(pass, &mlp->fc2, &state->act, &state->dy));
    if (weft_mlp_is_cut(pass->model))
        return weft_mlp_weights_in_chunks(mlp, pass, state, mark);
    WEFT_TRY(weft_pass_enter(pass, &state->x, &x_full));
    WEFT_TRY(weft_linear_backward_weights(pass, &mlp->fc1, &x_full, &state->dhidden));
    weft_pass_release(pass, mark);
    return WEFT_OK;
}

static weft_status fc2_backward_input(const weft_mlp *mlp, weft_pass *pass, weft_mlp_state *state)
{
    const weft_tensor *hidden = &state->hidden;
    const size_t rows = hidden->dims[0];
    weft_tensor dact;
    if (weft_mlp_has_gelu(mlp)) {
        WEFT_TRY(weft_pass_deferred(pass, hidden->dtype, rows, mlp->fc2.in, &state->dhidden));
        return weft_linear_gelu_backward_input(pass, &mlp->fc2, &state->dy, hidden,
                                               &state->dhidden);
    }
    WEFT_TRY(weft_pass_deferred(pass, hidden->dtype, rows, mlp->fc2.in, &state->act));
    WEFT_TRY(weft_mlp_activate(mlp, pass, hidden, &state->act));
    WEFT_TRY(weft_pass_scratch(pass, hidden->dtype, rows, mlp->fc2.in, &dact));
    WEFT_TRY(weft_linear_backward_input(pass, &mlp->fc2, &state->dy, false, &dact));
    state->dhidden = *hidden;
    return weft_mlp_activate_backward(mlp, pass, hidden, &dact, &state->dhidden);
}

static weft_status mlp_input(weft_layer *layer, weft_pass *pass, const weft_tensor *dy,
                             weft_tensor *dx)
{
    weft_mlp *mlp = (weft_mlp *)layer;
    weft_mlp_state *state = weft_pass_state(pass, layer);
    size_t mark = weft_pass_mark(pass);
    weft_tensor partial;
    WEFT_TRY(weft_pass_defer(pass, layer, weft_mlp_weights));
    WEFT_TRY(weft_pass_enter_deferred(pass, dy, &state->dy));
    WEFT_TRY(fc2_backward_input(mlp, pass, state));
    WEFT_TRY(weft_pass_partial(pass, dx, &partial));
    WEFT_TRY(weft_linear_backward_input(pass, &mlp->fc1, &state->dhidden, false, &partial));
    WEFT_TRY(weft_pass_exit(pass, &partial, dx));
    weft_pass_release(pass, mark);
    return WEFT_OK;
}

/* --- a whole one ----------------------------------------------------------------------------- */

static weft_status mlp_backward(weft_layer *layer, weft_pass *pass, int part, weft_lane *lane,
                                const weft_tensor *dy, weft_tensor *dx)
{
    weft_mlp *mlp = (weft_mlp *)layer;
    weft_mlp_state *state = weft_pass_state(pass, layer);
    size_t mark = weft_pass_mark(pass);
    weft_tensor dy_full, act, dhidden, x_full, partial;
    if (weft_mlp_is_cut(pass->model))
        return weft_mlp_backward_in_chunks(layer, pass, part, lane, dy, dx);
    if (weft_pass_defers(pass))
        return mlp_input(layer, pass, dy, dx);
    WEFT_TRY(weft_pass_enter(pass, dy, &dy_full));
    WEFT_TRY(weft_pass_enter(pass, &state->x, &x_full));
    const bool again = weft_pass_shape(pass)->recompute & mlp->modules;
    if (!again)
        WEFT_TRY(
            weft_pass_scratch(pass, state->hidden.dtype, state->hidden.dims[0], mlp->fc2.in, &act));
    WEFT_TRY(again ? fc1_again(mlp, pass, &x_full, &state->hidden, &act)
                   : weft_mlp_activate(mlp, pass, &state->hidden, &act));
    WEFT_TRY(fc2_backward(mlp, pass, &act, &dy_full, &state->hidden, &dhidden));
    WEFT_TRY(weft_pass_partial(pass, dx, &partial));
    WEFT_TRY(weft_linear_backward(pass, &mlp->fc1, &x_full, &dhidden, &partial));
    WEFT_TRY(weft_pass_exit(pass, &partial, dx));
    weft_pass_release(pass, mark);
    return WEFT_OK;
}

static const weft_layer_parts mlp_parts = {weft_mlp_inside, mlp_forward, mlp_backward};

static const weft_layer_ops mlp_ops = {
    .struct_bytes = sizeof mlp_ops,
    .kind = "mlp",
    .state_bytes = sizeof(weft_mlp_state),
    .init = mlp_init,
    .forward = weft_parts_forward,
    .backward = weft_parts_backward,
    .destroy = weft_layer_free,
    .is_static = weft_layer_always_static,
    .width = weft_layer_width,
    .parts = &mlp_parts,
    .by_token = true,
};

weft_layer *weft_mlp_create_wide(const weft_model_options *options, size_t ffn, unsigned modules)
{
    weft_mlp *mlp = (weft_mlp *)weft_layer_new(&mlp_ops, sizeof *mlp, options);
    if (mlp)
        mlp->ffn_all = ffn, mlp->modules = modules;
    return (weft_layer *)mlp;
}

weft_layer *weft_mlp_create(const weft_model_options *options)
{
    return weft_mlp_create_wide(options, options ? (size_t)options->ffn_hidden_size : 0,
                                WEFT_RECOMPUTE_MODULE(MLP));
}
