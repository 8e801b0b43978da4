/* The MLP's products, whole or in chunks of rows; its activation; a backward in two halves. */
#include "core/device/device.h"
#include "kernels/kernels.h"
#include "layers/mlp.h"
#include "layers/pass/pass.h"

/* --- the activation, of all rows or of a chunk ------------------------------------------------ */

bool weft_mlp_has_gelu(const weft_mlp *mlp)
{
    return weft_activation_of(&mlp->common.options) == WEFT_ACTIVATION_GELU;
}

static float limit_of(const weft_mlp *mlp)
{
    return (float)mlp->common.options.activation_func_clamp_value;
}

static float offset_of(const weft_mlp *mlp)
{
    return (float)mlp->common.options.glu_linear_offset;
}

weft_status weft_mlp_activate(const weft_mlp *mlp, weft_pass *pass, const weft_tensor *hidden,
                              weft_tensor *act)
{
    return weft_activation_forward(
        weft_pass_lane(pass),
        &WEFT_ARGS(weft_activation_forward_args, .kind = weft_activation_of(&mlp->common.options),
                   .rows = act->dims[0], .cols = act->dims[1], .dtype = act->dtype,
                   .x = hidden->data, .y = act->data, .limit = limit_of(mlp),
                   .offset = offset_of(mlp)));
}

weft_status weft_mlp_activate_backward(const weft_mlp *mlp, weft_pass *pass,
                                       const weft_tensor *hidden, const weft_tensor *dact,
                                       const weft_tensor *dhidden)
{
    return weft_activation_backward(
        weft_pass_lane(pass),
        &WEFT_ARGS(weft_activation_backward_args, .kind = weft_activation_of(&mlp->common.options),
                   .rows = dact->dims[0], .cols = dact->dims[1], .dtype = dact->dtype,
                   .x = hidden->data, .dy = dact->data, .dx = dhidden->data, .limit = limit_of(mlp),
                   .offset = offset_of(mlp)));
}

/* --- products -------------------------------------------------------------------------------- */

static weft_chunks chunks_of(const weft_model *model)
{
    return weft_chunks_of(&model->shape, model->shape.mlp_chunks);
}

bool weft_mlp_makes_again(const weft_mlp *mlp, const weft_shape *shape)
{
    return shape->recompute & mlp->modules;
}

/* x is at hand where fc1 came again. */
static weft_cut fc1_back_of(const weft_mlp *mlp, const weft_model *model, weft_way way)
{
    if (way == WEFT_WAY_INPUT)
        return WEFT_CUT_EXIT_BACK;
    return chunks_of(model).pieces > 1 && !weft_mlp_makes_again(mlp, &model->shape)
               ? WEFT_CUT_EXIT_BACK_GATHERING
               : WEFT_CUT_EXIT_BACK_MAKING;
}

int weft_mlp_inside(const weft_layer *layer, const weft_model *model, weft_pass *pass, weft_way way,
                    weft_inside out[WEFT_MAX_INSIDE])
{
    const weft_mlp *mlp = (const weft_mlp *)layer;
    const weft_tensor_runtime *r = model->tensor;
    const weft_chunks c = chunks_of(model);
    const bool gathers = c.pieces > 1, forward = way == WEFT_WAY_FORWARD;
    int count = 0;
    (void)pass;
    if (c.count == 1)
        return 0;
    if (gathers && (forward || weft_mlp_makes_again(mlp, &model->shape)))
        out[count++] =
            weft_tensor_inside(r, WEFT_CUT_ENTER, &c, forward ? WEFT_MLP_FC1 : WEFT_MLP_AGAIN);
    if (gathers && !forward)
        out[count++] = weft_tensor_inside(r, WEFT_CUT_ENTER_BACK, &c, WEFT_MLP_FC2_BACK);
    out[count++] = forward
                       ? weft_tensor_inside(r, WEFT_CUT_EXIT, &c, WEFT_MLP_FC2)
                       : weft_tensor_inside(r, fc1_back_of(mlp, model, way), &c, WEFT_MLP_FC1_BACK);
    return count;
}

weft_status weft_mlp_take_full(weft_pass *pass, const weft_tensor *x, weft_tensor *full)
{
    const size_t pieces = (size_t)chunks_of(pass->model).pieces;
    *full = *x;
    return pieces > 1 ? weft_pass_scratch(pass, x->dtype, x->dims[0] * pieces, x->dims[1], full)
                      : WEFT_OK;
}

/* Gathers all rows on the pass' lane, chunk by chunk if they are in that order. */
static weft_status gather_all(weft_pass *pass, const weft_linear *linear, const weft_tensor *from,
                              const weft_tensor *gathered)
{
    const weft_chunks c = chunks_of(pass->model);
    if (c.pieces > 1 && c.count > 1)
        WEFT_TRY_AS(weft_pass_lane(pass), linear->name,
                    weft_chunks_gather(pass, &c, from, gathered));
    return c.pieces > 1 && c.count == 1 ? weft_pass_gather(pass, from, gathered) : WEFT_OK;
}

weft_status weft_mlp_gather(weft_mlp *mlp, weft_pass *pass, const weft_linear *linear,
                            const weft_tensor *from, const weft_tensor *gathered,
                            weft_status (*multiply)(void *, weft_pass *, int))
{
    weft_layer *layer = &mlp->common.base;
    weft_mlp_state *state = weft_pass_state(pass, layer);
    const weft_chunks chunks = chunks_of(pass->model);
    state->call = (weft_tensor_call){.chunks = chunks,
                                     .module = linear->name,
                                     .from = *from,
                                     .gathered = *gathered,
                                     .multiply = multiply,
                                     .context = layer};
    if (chunks.count > 1 && chunks.pieces > 1)
        return WEFT_OK;
    state->call.chunks = weft_chunks_of(&pass->model->shape, 1); /* nothing travels beside it */
    WEFT_TRY(gather_all(pass, linear, from, gathered));
    return multiply(layer, pass, 0);
}

weft_status weft_mlp_reduce(weft_mlp *mlp, weft_pass *pass, const weft_linear *linear,
                            const weft_tensor *to,
                            weft_status (*multiply)(void *, weft_pass *, int),
                            weft_status (*make_weights)(void *, weft_pass *))
{
    weft_layer *layer = &mlp->common.base;
    weft_mlp_state *state = weft_pass_state(pass, layer);
    weft_tensor y = *to;
    state->call = (weft_tensor_call){.chunks = chunks_of(pass->model),
                                     .module = linear->name,
                                     .from = state->x,
                                     .gathered = state->full,
                                     .to = *to,
                                     .multiply = multiply,
                                     .make_weights = make_weights,
                                     .context = layer};
    WEFT_TRY(weft_pass_partial(pass, to, &state->call.partial));
    if (state->call.chunks.count > 1)
        return WEFT_OK;
    if (make_weights) {
        if (!weft_mlp_makes_again(mlp, weft_pass_shape(pass)))
            WEFT_TRY(gather_all(pass, linear, &state->x, &state->full));
        WEFT_TRY(make_weights(layer, pass));
    }
    WEFT_TRY(multiply(layer, pass, 0));
    return weft_pass_exit(pass, &state->call.partial, &y);
}

/* What a recomputation enqueues is forward's, and noted so. */
weft_status weft_mlp_run_back(weft_layer *layer, weft_pass *pass, const weft_body_part *at,
                              weft_lane *lane)
{
    const weft_mlp_state *state = weft_pass_state(pass, layer);
    if (at->place != WEFT_MLP_AGAIN)
        return weft_tensor_run_part(pass, &state->call, at, lane);
    const weft_note_again outer = weft_note_redoes(lane, WEFT_NOTE_REPEATED);
    const weft_status status = weft_tensor_run_part(pass, &state->call, at, lane);
    weft_note_redoes(lane, outer);
    return status;
}

/* --- a backward in two halves: what is made for the weights' gradients alone is made in the second
 * half, and the rest is kept where it takes least: GELU's input is there, SwiGLU's dhidden lies in
 * its place ---------------------------------------------------------------------------------- */

weft_status weft_mlp_begin_input(weft_mlp *mlp, weft_pass *pass, weft_mlp_state *state,
                                 const weft_tensor *dy)
{
    const weft_tensor *hidden = &state->hidden;
    const size_t rows = hidden->dims[0];
    if (chunks_of(pass->model).pieces > 1)
        WEFT_TRY(weft_pass_deferred(pass, dy->dtype, rows, dy->dims[1], &state->dy));
    else
        WEFT_TRY(weft_pass_enter_deferred(pass, dy, &state->dy));
    WEFT_TRY(weft_pass_deferred(pass, hidden->dtype, rows, mlp->fc2.in, &state->dact));
    if (weft_mlp_has_gelu(mlp))
        return WEFT_OK;
    state->act = state->dact;
    WEFT_TRY(weft_mlp_activate(mlp, pass, hidden, &state->act));
    return weft_pass_scratch(pass, hidden->dtype, rows, mlp->fc2.in, &state->dact);
}

weft_status weft_mlp_weights(weft_layer *layer, weft_pass *pass)
{
    const weft_mlp *mlp = (const weft_mlp *)layer;
    weft_mlp_state *state = weft_pass_state(pass, layer);
    const weft_tensor *hidden = &state->hidden;
    const size_t mark = weft_pass_mark(pass);
    if (weft_mlp_has_gelu(mlp)) {
        WEFT_TRY(weft_pass_scratch(pass, hidden->dtype, hidden->dims[0], mlp->fc2.in, &state->act));
        WEFT_TRY(weft_mlp_activate(mlp, pass, hidden, &state->act));
    }
    WEFT_TRY(weft_linear_backward_weights(pass, &mlp->fc2, &state->act, &state->dy));
    WEFT_TRY(weft_mlp_take_full(pass, &state->x, &state->full));
    WEFT_TRY(gather_all(pass, &mlp->fc1, &state->x, &state->full));
    WEFT_TRY(weft_linear_backward_weights(pass, &mlp->fc1, &state->full, &state->dhidden));
    weft_pass_release(pass, mark);
    return WEFT_OK;
}
