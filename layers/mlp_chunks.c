/* The MLP in chunks of rows. They do not know of each other, so under sequence parallelism all lie
 * in gathered rows' order. */
#include "core/device/device.h"
#include "kernels/kernels.h"
#include "layers/mlp.h"
#include "layers/pass/pass.h"

static weft_chunks chunks_of(const weft_model *model)
{
    return weft_chunks_of(&model->shape, model->shape.mlp_chunks);
}

bool weft_mlp_is_cut(const weft_model *model)
{
    return chunks_of(model).count > 1;
}

/* The places of programs inside: fc1 is gathered for, fc2 is reduced; backward fc1 may come again,
 * fc2 is gathered for, fc1 is reduced. Before each stands a stage of the layer's own, and one
 * behind the last. */
enum { INSIDE_FC1, INSIDE_FC2, BEHIND_FORWARD };
enum { INSIDE_AGAIN, INSIDE_FC2_BACK, INSIDE_FC1_BACK, BEHIND_BACKWARD };

static bool makes_again(const weft_mlp *mlp, const weft_model *model)
{
    return model->shape.recompute & mlp->modules;
}

/* Gathers in backward are for x, which is at hand where forward was made again. */
static weft_cut fc1_back_of(const weft_mlp *mlp, const weft_model *model, weft_way way)
{
    if (way == WEFT_WAY_INPUT)
        return WEFT_CUT_EXIT_BACK;
    return chunks_of(model).pieces > 1 && !makes_again(mlp, model) ? WEFT_CUT_EXIT_BACK_GATHERING
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
    if (gathers && (forward || makes_again(mlp, model)))
        out[count++] = weft_tensor_inside(r, WEFT_CUT_ENTER, &c, 0);
    if (gathers && !forward)
        out[count++] = weft_tensor_inside(r, WEFT_CUT_ENTER_BACK, &c, INSIDE_FC2_BACK);
    out[count++] = forward
                       ? weft_tensor_inside(r, WEFT_CUT_EXIT, &c, INSIDE_FC2)
                       : weft_tensor_inside(r, fc1_back_of(mlp, model, way), &c, INSIDE_FC1_BACK);
    return count;
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

static weft_status multiply_fc2(void *layer, weft_pass *pass, int chunk)
{
    const weft_mlp *mlp = layer;
    const weft_mlp_state *state = weft_pass_state(pass, layer);
    const weft_tensor act = weft_chunk_of(&state->act, &state->call.chunks, chunk);
    weft_tensor partial = weft_chunk_of(&state->call.partial, &state->call.chunks, chunk);
    return weft_linear_forward(pass, &mlp->fc2, &act, state->with_bias, &partial);
}

/* Readies a product whose rows are gathered. Where they are all here it is not cut, and made. */
static weft_status begin_gathering(weft_mlp *mlp, weft_pass *pass, const weft_linear *linear,
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
    if (chunks.pieces > 1)
        return WEFT_OK;
    state->call.chunks = weft_chunks_whole(&chunks);
    return multiply(layer, pass, 0);
}

/* All rows, or room for them where they are gathered. */
static weft_status take_full(weft_pass *pass, const weft_tensor *x, weft_tensor *full)
{
    const weft_chunks chunks = chunks_of(pass->model);
    if (chunks.pieces > 1)
        return weft_pass_scratch(pass, x->dtype, x->dims[0] * (size_t)chunks.pieces, x->dims[1],
                                 full);
    *full = *x;
    return WEFT_OK;
}

/* hidden = fc1(x), act = activation(hidden), chunk by chunk. */
static weft_status begin_fc1(weft_mlp *mlp, weft_pass *pass, weft_mlp_state *state)
{
    const weft_tensor *x = &state->x;
    const size_t rows = state->full.dims[0];
    weft_pass_leave_out(pass, mlp->modules);
    WEFT_TRY_AS(weft_pass_lane(pass), mlp->fc1.name,
                weft_pass_stash(pass, x->dtype, rows, mlp->fc1.out, &state->hidden));
    weft_pass_keep(pass);
    WEFT_TRY(weft_pass_scratch(pass, x->dtype, rows, mlp->fc2.in, &state->act));
    return begin_gathering(mlp, pass, &mlp->fc1, x, &state->full, multiply_fc1);
}

static weft_status begin_fc2(weft_mlp *mlp, weft_pass *pass, weft_mlp_state *state,
                             const weft_tensor *y)
{
    state->with_bias = weft_pass_groups(pass)->coords.at[WEFT_AXIS_TP] == 0;
    state->call = (weft_tensor_call){.chunks = chunks_of(pass->model),
                                     .module = mlp->fc2.name,
                                     .to = *y,
                                     .multiply = multiply_fc2,
                                     .context = mlp};
    return weft_pass_partial(pass, y, &state->call.partial);
}

static weft_status forward_stage(weft_mlp *mlp, weft_pass *pass, weft_mlp_state *state, int stage,
                                 const weft_tensor *x, weft_tensor *y)
{
    if (stage == INSIDE_FC1) {
        state->mark = weft_pass_mark(pass);
        state->x = *x;
        WEFT_TRY(take_full(pass, x, &state->full));
        return begin_fc1(mlp, pass, state);
    }
    if (stage == INSIDE_FC2)
        return begin_fc2(mlp, pass, state, y);
    weft_pass_release(pass, state->mark);
    return WEFT_OK;
}

weft_status weft_mlp_forward_in_chunks(weft_layer *layer, weft_pass *pass, int part,
                                       weft_lane *lane, const weft_tensor *x, weft_tensor *y)
{
    weft_mlp_state *state = weft_pass_state(pass, layer);
    weft_body_part at;
    (void)weft_part_at(layer, pass->model, pass, WEFT_WAY_FORWARD, part, &at);
    if (at.program)
        return weft_tensor_run_part(pass, &state->call, &at, lane);
    for (int i = at.from; i <= at.to && i <= BEHIND_FORWARD; i++)
        WEFT_TRY(forward_stage((weft_mlp *)layer, pass, state, i, x, y));
    return WEFT_OK;
}

/* --- backward -------------------------------------------------------------------------------- */

/* A chunk of fc2's backward, which needs act's rows no more. */
static weft_status multiply_fc2_back(void *layer, weft_pass *pass, int chunk)
{
    const weft_mlp *mlp = layer;
    const weft_mlp_state *state = weft_pass_state(pass, layer);
    const weft_chunks *c = &state->call.chunks;
    const weft_tensor dy = weft_chunk_of(&state->dy, c, chunk),
                      hidden = weft_chunk_of(&state->hidden, c, chunk);
    weft_tensor dact = weft_chunk_of(&state->dact, c, chunk);
    const weft_tensor dhidden = weft_chunk_of(&state->dhidden, c, chunk);
    if (!weft_pass_defers(pass)) /* act lies where dact will */
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

/* As fc1_again. */
static weft_status begin_fc1_again(weft_mlp *mlp, weft_pass *pass, weft_mlp_state *state)
{
    const weft_note_again outer = weft_note_redoes(weft_pass_lane(pass), WEFT_NOTE_REPEATED);
    WEFT_TRY(begin_fc1(mlp, pass, state));
    weft_note_redoes(weft_pass_lane(pass), outer);
    return WEFT_OK;
}

static weft_status begin_whole(weft_mlp *mlp, weft_pass *pass, weft_mlp_state *state,
                               const weft_tensor *dy)
{
    const weft_tensor *hidden = &state->hidden;
    WEFT_TRY(take_full(pass, dy, &state->dy));
    WEFT_TRY(take_full(pass, &state->x, &state->full));
    if (makes_again(mlp, pass->model))
        return begin_fc1_again(mlp, pass, state);
    WEFT_TRY(weft_pass_scratch(pass, hidden->dtype, hidden->dims[0], mlp->fc2.in, &state->act));
    return weft_mlp_activate(mlp, pass, hidden, &state->act);
}

/* The first half of a backward in two. */
static weft_status begin_input(const weft_mlp *mlp, weft_pass *pass, weft_mlp_state *state,
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

static weft_status begin_fc2_back(weft_mlp *mlp, weft_pass *pass, weft_mlp_state *state,
                                  const weft_tensor *dy)
{
    const bool gelu = weft_mlp_has_gelu(mlp);
    if (!weft_pass_defers(pass))
        state->dact = state->act;
    if (gelu && makes_again(mlp, pass->model) &&
        !weft_gemm_gelu_is_exact(weft_pass_lane(pass), state->hidden.dtype))
        WEFT_TRY(weft_mlp_activate(mlp, pass, &state->hidden, &state->act));
    state->dhidden = gelu ? state->dact : state->hidden;
    return begin_gathering(mlp, pass, &mlp->fc2, dy, &state->dy, multiply_fc2_back);
}

static weft_status begin_fc1_back(weft_mlp *mlp, weft_pass *pass, weft_mlp_state *state,
                                  const weft_tensor *dx)
{
    state->call = (weft_tensor_call){.chunks = chunks_of(pass->model),
                                     .module = mlp->fc1.name,
                                     .from = state->x,
                                     .gathered = state->full,
                                     .to = *dx,
                                     .multiply = multiply_fc1_back,
                                     .make_weights = make_fc1_weights,
                                     .context = mlp};
    return weft_pass_partial(pass, dx, &state->call.partial);
}

static weft_status backward_stage(weft_mlp *mlp, weft_pass *pass, weft_mlp_state *state, int stage,
                                  const weft_tensor *dy, weft_tensor *dx)
{
    const bool defers = weft_pass_defers(pass);
    if (stage == INSIDE_AGAIN) {
        state->mark = weft_pass_mark(pass);
        return defers ? begin_input(mlp, pass, state, dy) : begin_whole(mlp, pass, state, dy);
    }
    if (stage == INSIDE_FC2_BACK)
        return begin_fc2_back(mlp, pass, state, dy);
    if (stage == INSIDE_FC1_BACK)
        return begin_fc1_back(mlp, pass, state, dx);
    weft_pass_release(pass, state->mark);
    return defers ? weft_pass_defer(pass, &mlp->common.base, weft_mlp_weights) : WEFT_OK;
}

/* What a recomputation enqueues is forward's, and noted so. */
static weft_status run_backward_part(weft_pass *pass, const weft_mlp_state *state,
                                     const weft_body_part *at, weft_lane *lane)
{
    if (at->place != INSIDE_AGAIN)
        return weft_tensor_run_part(pass, &state->call, at, lane);
    const weft_note_again outer = weft_note_redoes(lane, WEFT_NOTE_REPEATED);
    const weft_status status = weft_tensor_run_part(pass, &state->call, at, lane);
    weft_note_redoes(lane, outer);
    return status;
}

weft_status weft_mlp_backward_in_chunks(weft_layer *layer, weft_pass *pass, int part,
                                        weft_lane *lane, const weft_tensor *dy, weft_tensor *dx)
{
    weft_mlp_state *state = weft_pass_state(pass, layer);
    weft_body_part at;
    (void)weft_part_at(layer, pass->model, pass, weft_way_back(pass), part, &at);
    if (at.program)
        return run_backward_part(pass, state, &at, lane);
    for (int i = at.from; i <= at.to && i <= BEHIND_BACKWARD; i++)
        WEFT_TRY(backward_stage((weft_mlp *)layer, pass, state, i, dy, dx));
    return WEFT_OK;
}

/* dhidden is in the order of gathered rows, where they are gathered. */
weft_status weft_mlp_weights_in_chunks(const weft_mlp *mlp, weft_pass *pass, weft_mlp_state *state,
                                       size_t mark)
{
    const weft_chunks chunks = chunks_of(pass->model);
    WEFT_TRY(take_full(pass, &state->x, &state->full));
    if (chunks.pieces > 1)
        WEFT_TRY_AS(weft_pass_lane(pass), mlp->fc1.name,
                    weft_chunks_gather(pass, &chunks, &state->x, &state->full));
    WEFT_TRY(weft_linear_backward_weights(pass, &mlp->fc1, &state->full, &state->dhidden));
    weft_pass_release(pass, mark);
    return WEFT_OK;
}
