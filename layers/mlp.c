/* The MLP: column-parallel, activation, row-parallel (Shoeybi et al. 2019, §3). GELU, or a gated
 * one with fc1 = [gate | up] as a global [2, ffn, hidden] split inside, so that resharding is a
 * hyperslab. Backward recomputes the activation's output; GELU is an epilogue of the GEMMs.
 *
 * Its products may be cut in chunks of rows (layers/mlp_products.c). These do not know of each
 * other, so under sequence parallelism they lie in gathered rows' order. */
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

/* --- forward --------------------------------------------------------------------------------- */

static weft_status multiply_fc1(void *layer, weft_pass *pass, int chunk)
{
    const weft_mlp *mlp = layer;
    const weft_mlp_state *state = weft_pass_state(pass, layer);
    const weft_chunks *c = &state->call.chunks;
    const weft_tensor x = weft_chunk_of(&state->full, c, chunk);
    weft_tensor hidden = weft_chunk_of(&state->hidden, c, chunk),
                act = weft_chunk_of(&state->act, c, chunk);
    if (weft_mlp_has_gelu(mlp))
        return weft_linear_gelu_forward(pass, &mlp->fc1, &x, &hidden, &act);
    WEFT_TRY(weft_linear_forward(pass, &mlp->fc1, &x, true, &hidden));
    return weft_mlp_activate(mlp, pass, &hidden, &act);
}

/* One rank's partial sum carries the bias, so that the sum has it once. */
static weft_status multiply_fc2(void *layer, weft_pass *pass, int chunk)
{
    const weft_mlp *mlp = layer;
    const weft_mlp_state *state = weft_pass_state(pass, layer);
    const weft_tensor act = weft_chunk_of(&state->act, &state->call.chunks, chunk);
    weft_tensor partial = weft_chunk_of(&state->call.partial, &state->call.chunks, chunk);
    const bool with_bias = weft_pass_groups(pass)->coords.at[WEFT_AXIS_TP] == 0;
    return weft_linear_forward(pass, &mlp->fc2, &act, with_bias, &partial);
}

/* hidden = fc1(x), act = activation(hidden). A module that is recomputed does not keep hidden. */
static weft_status fc1_forward(weft_mlp *mlp, weft_pass *pass, weft_mlp_state *state)
{
    const weft_dtype dtype = state->x.dtype;
    const size_t rows = state->full.dims[0];
    weft_pass_leave_out(pass, mlp->modules);
    WEFT_TRY_AS(weft_pass_lane(pass), mlp->fc1.name,
                weft_pass_stash(pass, dtype, rows, mlp->fc1.out, &state->hidden));
    weft_pass_keep(pass);
    WEFT_TRY(weft_pass_scratch(pass, dtype, rows, mlp->fc2.in, &state->act));
    return weft_mlp_gather(mlp, pass, &mlp->fc1, &state->x, &state->full, multiply_fc1);
}

static weft_status forward_stage(weft_mlp *mlp, weft_pass *pass, int stage, const weft_tensor *x,
                                 weft_tensor *y)
{
    weft_mlp_state *state = weft_pass_state(pass, &mlp->common.base);
    switch (stage) {
    case WEFT_MLP_FC1:
        state->mark = weft_pass_mark(pass);
        state->x = *x;
        WEFT_TRY(weft_mlp_take_full(pass, x, &state->full));
        return fc1_forward(mlp, pass, state);
    case WEFT_MLP_FC2:
        return weft_mlp_reduce(mlp, pass, &mlp->fc2, y, multiply_fc2, NULL);
    default:
        weft_pass_release(pass, state->mark);
        return WEFT_OK;
    }
}

static weft_status mlp_forward(weft_layer *layer, weft_pass *pass, int part, weft_lane *lane,
                               const weft_tensor *x, weft_tensor *y)
{
    weft_mlp_state *state = weft_pass_state(pass, layer);
    weft_body_part at;
    (void)weft_part_at(layer, pass->model, pass, WEFT_WAY_FORWARD, part, &at);
    if (at.program)
        return weft_tensor_run_part(pass, &state->call, &at, lane);
    for (int i = at.from; i <= at.to && i <= WEFT_MLP_BEHIND_FORWARD; i++)
        WEFT_TRY(forward_stage((weft_mlp *)layer, pass, i, x, y));
    return WEFT_OK;
}

/* --- backward -------------------------------------------------------------------------------- */

/* dhidden overwrites act or hidden, which nobody needs any more; a first half's act is elsewhere.
 */
static weft_status multiply_fc2_back(void *layer, weft_pass *pass, int chunk)
{
    const weft_mlp *mlp = layer;
    const weft_mlp_state *state = weft_pass_state(pass, layer);
    const weft_chunks *c = &state->call.chunks;
    const weft_tensor dy = weft_chunk_of(&state->dy, c, chunk),
                      hidden = weft_chunk_of(&state->hidden, c, chunk),
                      dhidden = weft_chunk_of(&state->dhidden, c, chunk);
    weft_tensor dact = weft_chunk_of(&state->dact, c, chunk);
    if (!weft_pass_defers(pass))
        WEFT_TRY(weft_linear_backward_to(pass, &mlp->fc2, &dact, &dy,
                                         chunk == 0 && weft_pass_overwrite(pass), false, NULL));
    if (weft_mlp_has_gelu(mlp))
        return weft_linear_gelu_backward_input(pass, &mlp->fc2, &dy, &hidden, &dact);
    WEFT_TRY(weft_linear_backward_input(pass, &mlp->fc2, &dy, false, &dact));
    return weft_mlp_activate_backward(mlp, pass, &hidden, &dact, &dhidden);
}

static weft_status multiply_fc1_back(void *layer, weft_pass *pass, int chunk)
{
    const weft_mlp *mlp = layer;
    const weft_mlp_state *state = weft_pass_state(pass, layer);
    const weft_tensor dhidden = weft_chunk_of(&state->dhidden, &state->call.chunks, chunk);
    weft_tensor partial = weft_chunk_of(&state->call.partial, &state->call.chunks, chunk);
    return weft_linear_backward_input(pass, &mlp->fc1, &dhidden, false, &partial);
}

static weft_status make_fc1_weights(void *layer, weft_pass *pass)
{
    const weft_mlp *mlp = layer;
    const weft_mlp_state *state = weft_pass_state(pass, layer);
    return weft_linear_backward_weights(pass, &mlp->fc1, &state->full, &state->dhidden);
}

/* Makes act. */
static weft_status begin_backward(weft_mlp *mlp, weft_pass *pass, weft_mlp_state *state,
                                  const weft_tensor *dy)
{
    const weft_tensor *hidden = &state->hidden;
    WEFT_TRY(weft_mlp_take_full(pass, dy, &state->dy));
    WEFT_TRY(weft_mlp_take_full(pass, &state->x, &state->full));
    if (!weft_mlp_makes_again(mlp, weft_pass_shape(pass))) {
        WEFT_TRY(weft_pass_scratch(pass, hidden->dtype, hidden->dims[0], mlp->fc2.in, &state->act));
        return weft_mlp_activate(mlp, pass, hidden, &state->act);
    }
    const weft_note_again outer = weft_note_redoes(weft_pass_lane(pass), WEFT_NOTE_REPEATED);
    WEFT_TRY(fc1_forward(mlp, pass, state));
    weft_note_redoes(weft_pass_lane(pass), outer);
    return WEFT_OK;
}

/* Behind act or, made again, hidden: then act is recomputed from that as without, since forward's
 * epilogue may have used sums before rounding. */
static weft_status fc2_backward(weft_mlp *mlp, weft_pass *pass, weft_mlp_state *state,
                                const weft_tensor *dy)
{
    const bool gelu = weft_mlp_has_gelu(mlp);
    if (!weft_pass_defers(pass))
        state->dact = state->act;
    if (gelu && weft_mlp_makes_again(mlp, weft_pass_shape(pass)) &&
        !weft_gemm_gelu_is_exact(weft_pass_lane(pass), state->hidden.dtype))
        WEFT_TRY(weft_mlp_activate(mlp, pass, &state->hidden, &state->act));
    state->dhidden = gelu ? state->dact : state->hidden;
    return weft_mlp_gather(mlp, pass, &mlp->fc2, dy, &state->dy, multiply_fc2_back);
}

static weft_status backward_stage(weft_mlp *mlp, weft_pass *pass, int stage, const weft_tensor *dy,
                                  weft_tensor *dx)
{
    const bool defers = weft_pass_defers(pass);
    weft_mlp_state *state = weft_pass_state(pass, &mlp->common.base);
    switch (stage) {
    case WEFT_MLP_AGAIN:
        state->mark = weft_pass_mark(pass);
        return (defers ? weft_mlp_begin_input : begin_backward)(mlp, pass, state, dy);
    case WEFT_MLP_FC2_BACK:
        return fc2_backward(mlp, pass, state, dy);
    case WEFT_MLP_FC1_BACK:
        return weft_mlp_reduce(mlp, pass, &mlp->fc1, dx, multiply_fc1_back,
                               defers ? NULL : make_fc1_weights);
    default:
        weft_pass_release(pass, state->mark);
        return defers ? weft_pass_defer(pass, &mlp->common.base, weft_mlp_weights) : WEFT_OK;
    }
}

static weft_status mlp_backward(weft_layer *layer, weft_pass *pass, int part, weft_lane *lane,
                                const weft_tensor *dy, weft_tensor *dx)
{
    weft_body_part at;
    (void)weft_part_at(layer, pass->model, pass, weft_way_back(pass), part, &at);
    if (at.program)
        return weft_mlp_run_back(layer, pass, &at, lane);
    for (int i = at.from; i <= at.to && i <= WEFT_MLP_BEHIND_BACKWARD; i++)
        WEFT_TRY(backward_stage((weft_mlp *)layer, pass, i, dy, dx));
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
