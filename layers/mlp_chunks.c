/* The MLP in chunks of rows. They do not know of each other, so under sequence parallelism all lie
 * in gathered rows' order. */
#include "core/device/device.h"
#include "kernels/kernels.h"
#include "layers/mlp.h"
#include "layers/tensor/tensor.h"

static weft_chunks chunks_of(const weft_pass *pass)
{
    const weft_shape *shape = weft_pass_shape(pass);
    return weft_chunks_of(shape, shape->mlp_chunks);
}

bool weft_mlp_is_cut(const weft_pass *pass)
{
    return chunks_of(pass).count > 1;
}

/* The tensors of a pass, by whose chunks it works. */
typedef struct mlp_work {
    const weft_mlp *mlp;
    weft_chunks chunks;
    weft_tensor full, hidden, act, partial; /* forward */
    weft_tensor dy, dhidden;                /* backward; hidden, or act, is where dhidden will be */
    weft_mlp_state *state;
    bool with_bias, defers;
} mlp_work;

static weft_status multiply_fc1(void *context, weft_pass *pass, int chunk)
{
    const mlp_work *w = context;
    const weft_tensor x = weft_chunk_of(&w->full, &w->chunks, chunk);
    weft_tensor hidden = weft_chunk_of(&w->hidden, &w->chunks, chunk),
                act = weft_chunk_of(&w->act, &w->chunks, chunk);
    if (weft_mlp_has_gelu(w->mlp))
        return weft_linear_gelu_forward(pass, &w->mlp->fc1, &x, &hidden, &act);
    WEFT_TRY(weft_linear_forward(pass, &w->mlp->fc1, &x, true, &hidden));
    return weft_mlp_activate(w->mlp, pass, &hidden, &act);
}

static weft_status multiply_fc2(void *context, weft_pass *pass, int chunk)
{
    const mlp_work *w = context;
    const weft_tensor act = weft_chunk_of(&w->act, &w->chunks, chunk);
    weft_tensor partial = weft_chunk_of(&w->partial, &w->chunks, chunk);
    return weft_linear_forward(pass, &w->mlp->fc2, &act, w->with_bias, &partial);
}

/* A product whose rows are gathered; where they are all here, it is not cut. */
static weft_status run_gathering(mlp_work *w, weft_pass *pass, const weft_linear *linear,
                                 const weft_tensor *from, const weft_tensor *gathered,
                                 bool backward, weft_status (*multiply)(void *, weft_pass *, int))
{
    const weft_chunks chunks = w->chunks;
    if (chunks.pieces == 1) {
        w->chunks = weft_chunks_whole(&chunks);
        WEFT_TRY(multiply(w, pass, 0));
        w->chunks = chunks;
        return WEFT_OK;
    }
    const weft_tensor_call call = {
        .plan = {.backward = backward, .gathers = true, .multiplies = true, .reads = true},
        .chunks = chunks,
        .module = linear->name,
        .from = *from,
        .gathered = *gathered,
        .multiply = multiply,
        .context = w};
    return weft_tensor_run(pass, &call);
}

/* All rows, or room for them where they are gathered. */
static weft_status take_full(const weft_chunks *chunks, weft_pass *pass, const weft_tensor *x,
                             weft_tensor *full)
{
    if (chunks->pieces > 1)
        return weft_pass_scratch(pass, x->dtype, x->dims[0] * (size_t)chunks->pieces, x->dims[1],
                                 full);
    *full = *x;
    return WEFT_OK;
}

/* hidden = fc1(x), act = activation(hidden), chunk by chunk. */
static weft_status fc1_in_chunks(mlp_work *w, weft_pass *pass, const weft_tensor *x)
{
    const weft_mlp *mlp = w->mlp;
    weft_pass_leave_out(pass, mlp->modules);
    WEFT_TRY_AS(weft_pass_lane(pass), mlp->fc1.name,
                weft_pass_stash(pass, x->dtype, w->full.dims[0], mlp->fc1.out, &w->hidden));
    weft_pass_keep(pass);
    WEFT_TRY(weft_pass_scratch(pass, x->dtype, w->full.dims[0], mlp->fc2.in, &w->act));
    return run_gathering(w, pass, &mlp->fc1, x, &w->full, false, multiply_fc1);
}

weft_status weft_mlp_forward_in_chunks(const weft_mlp *mlp, weft_pass *pass, weft_mlp_state *state,
                                       weft_tensor *y)
{
    mlp_work w = {.mlp = mlp, .chunks = chunks_of(pass)};
    const size_t mark = weft_pass_mark(pass);
    WEFT_TRY(take_full(&w.chunks, pass, &state->x, &w.full));
    WEFT_TRY(fc1_in_chunks(&w, pass, &state->x));
    state->hidden = w.hidden;
    WEFT_TRY(weft_pass_partial(pass, y, &w.partial));
    w.with_bias = weft_pass_groups(pass)->coords.at[WEFT_AXIS_TP] == 0;
    const weft_tensor_call call = {.plan = {.multiplies = true, .reduces = true},
                                   .chunks = w.chunks,
                                   .module = mlp->fc2.name,
                                   .partial = w.partial,
                                   .to = *y,
                                   .multiply = multiply_fc2,
                                   .context = &w};
    WEFT_TRY(weft_tensor_run(pass, &call));
    weft_pass_release(pass, mark);
    return WEFT_OK;
}

/* A chunk of fc2's backward, which needs act's rows no more. */
static weft_status multiply_fc2_back(void *context, weft_pass *pass, int chunk)
{
    const mlp_work *w = context;
    const weft_mlp *mlp = w->mlp;
    const weft_tensor dy = weft_chunk_of(&w->dy, &w->chunks, chunk),
                      hidden = weft_chunk_of(&w->hidden, &w->chunks, chunk);
    weft_tensor act = weft_chunk_of(&w->act, &w->chunks, chunk);
    const weft_tensor dhidden = weft_chunk_of(&w->dhidden, &w->chunks, chunk);
    if (!w->defers)
        WEFT_TRY(weft_linear_backward_to(pass, &mlp->fc2, &act, &dy,
                                         chunk == 0 && weft_pass_overwrite(pass), false, NULL));
    if (weft_mlp_has_gelu(mlp))
        return weft_linear_gelu_backward_input(pass, &mlp->fc2, &dy, &hidden, &act);
    WEFT_TRY(weft_linear_backward_input(pass, &mlp->fc2, &dy, false, &act));
    return weft_mlp_activate_backward(mlp, pass, &hidden, &act, &dhidden);
}

static weft_status multiply_fc1_back(void *context, weft_pass *pass, int chunk)
{
    const mlp_work *w = context;
    const weft_tensor dhidden = weft_chunk_of(&w->dhidden, &w->chunks, chunk);
    weft_tensor partial = weft_chunk_of(&w->partial, &w->chunks, chunk);
    return weft_linear_backward_input(pass, &w->mlp->fc1, &dhidden, false, &partial);
}

static weft_status make_fc1_weights(void *context, weft_pass *pass)
{
    const mlp_work *w = context;
    return weft_linear_backward_weights(pass, &w->mlp->fc1, &w->full, &w->dhidden);
}

/* dx from dhidden, and unless they are left for later fc1's weights' gradients. `gathers`: x is not
 * at hand. */
static weft_status fc1_back_in_chunks(mlp_work *w, weft_pass *pass, bool gathers, weft_tensor *dx)
{
    WEFT_TRY(weft_pass_partial(pass, dx, &w->partial));
    const weft_tensor_call call = {.plan = {.backward = true,
                                            .gathers = gathers && w->chunks.pieces > 1,
                                            .multiplies = true,
                                            .reduces = true,
                                            .weights = !w->defers},
                                   .chunks = w->chunks,
                                   .module = w->mlp->fc1.name,
                                   .from = w->state->x,
                                   .gathered = w->full,
                                   .partial = w->partial,
                                   .to = *dx,
                                   .multiply = multiply_fc1_back,
                                   .make_weights = make_fc1_weights,
                                   .context = w};
    return weft_tensor_run(pass, &call);
}

/* As fc1_again. */
static weft_status fc1_again_in_chunks(mlp_work *w, weft_pass *pass)
{
    weft_note_redoes(weft_pass_lane(pass), WEFT_NOTE_REPEATED);
    WEFT_TRY(fc1_in_chunks(w, pass, &w->state->x));
    weft_note_redoes(weft_pass_lane(pass), WEFT_NOTE_NEW);
    return !weft_mlp_has_gelu(w->mlp) ||
                   weft_gemm_gelu_is_exact(weft_pass_lane(pass), w->hidden.dtype)
               ? WEFT_OK
               : weft_mlp_activate(w->mlp, pass, &w->hidden, &w->act);
}

weft_status weft_mlp_backward_in_chunks(const weft_mlp *mlp, weft_pass *pass, weft_mlp_state *state,
                                        const weft_tensor *dy, weft_tensor *dx)
{
    mlp_work w = {.mlp = mlp, .chunks = chunks_of(pass), .hidden = state->hidden, .state = state};
    const bool again = weft_pass_shape(pass)->recompute & mlp->modules;
    const size_t mark = weft_pass_mark(pass);
    WEFT_TRY(take_full(&w.chunks, pass, dy, &w.dy));
    WEFT_TRY(take_full(&w.chunks, pass, &state->x, &w.full));
    if (!again) {
        WEFT_TRY(weft_pass_scratch(pass, w.hidden.dtype, w.hidden.dims[0], mlp->fc2.in, &w.act));
        WEFT_TRY(weft_mlp_activate(mlp, pass, &w.hidden, &w.act));
    } else {
        WEFT_TRY(fc1_again_in_chunks(&w, pass));
        state->hidden = w.hidden;
    }
    w.dhidden = weft_mlp_has_gelu(mlp) ? w.act : w.hidden;
    WEFT_TRY(run_gathering(&w, pass, &mlp->fc2, dy, &w.dy, true, multiply_fc2_back));
    WEFT_TRY(fc1_back_in_chunks(&w, pass, !again, dx));
    weft_pass_release(pass, mark);
    return WEFT_OK;
}

/* --- a backward in two halves ----------------------------------------------------------------- */

/* dhidden is in the order of gathered rows, where they are gathered. */
weft_status weft_mlp_weights_in_chunks(const weft_mlp *mlp, weft_pass *pass, weft_mlp_state *state,
                                       size_t mark)
{
    mlp_work w = {.mlp = mlp, .chunks = chunks_of(pass), .dhidden = state->dhidden};
    WEFT_TRY(take_full(&w.chunks, pass, &state->x, &w.full));
    const weft_tensor_call call = {
        .plan = {.backward = true, .gathers = w.chunks.pieces > 1, .weights = true},
        .chunks = w.chunks,
        .module = mlp->fc1.name,
        .from = state->x,
        .gathered = w.full,
        .make_weights = make_fc1_weights,
        .context = &w};
    WEFT_TRY(weft_tensor_run(pass, &call));
    weft_pass_release(pass, mark);
    return WEFT_OK;
}

weft_status weft_mlp_input_in_chunks(const weft_mlp *mlp, weft_pass *pass, weft_mlp_state *state,
                                     const weft_tensor *dy, weft_tensor *dx)
{
    mlp_work w = {.mlp = mlp,
                  .chunks = chunks_of(pass),
                  .hidden = state->hidden,
                  .state = state,
                  .defers = true};
    const size_t rows = w.hidden.dims[0], mark = weft_pass_mark(pass);
    if (w.chunks.pieces > 1)
        WEFT_TRY(weft_pass_deferred(pass, dy->dtype, rows, dy->dims[1], &state->dy));
    else
        WEFT_TRY(weft_pass_enter_deferred(pass, dy, &state->dy));
    w.dy = state->dy;
    WEFT_TRY(weft_pass_deferred(pass, w.hidden.dtype, rows, mlp->fc2.in, &w.act));
    if (!weft_mlp_has_gelu(mlp)) {
        state->act = w.act;
        WEFT_TRY(weft_mlp_activate(mlp, pass, &w.hidden, &state->act));
        WEFT_TRY(weft_pass_scratch(pass, w.hidden.dtype, rows, mlp->fc2.in, &w.act));
    }
    w.dhidden = state->dhidden = weft_mlp_has_gelu(mlp) ? w.act : w.hidden;
    WEFT_TRY(run_gathering(&w, pass, &mlp->fc2, dy, &w.dy, true, multiply_fc2_back));
    WEFT_TRY(fc1_back_in_chunks(&w, pass, false, dx));
    weft_pass_release(pass, mark);
    return WEFT_OK;
}
