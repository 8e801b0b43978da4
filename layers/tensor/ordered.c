#include "layers/tensor/ordered.h"

#include "layers/pass/pass.h"

/* A product's tensors. */
typedef struct ordered_work {
    const weft_ordered *ordered;
    weft_tensor gathered, partial; /* of all ranks' rows, in gathered rows' order */
    weft_tensor inside;            /* in tokens' order */
    weft_tensor moved;             /* the same in gathered rows' order, or the same tensor */
    weft_tensor x;                 /* of weights' gradients: the product's input */
    bool with_bias;
} ordered_work;

static bool moves(const weft_ordered *o)
{
    return o->chunks.pieces > 1;
}

/* Scratch for all rows. */
static weft_status take_rows(const weft_ordered *o, weft_pass *pass, const weft_tensor *like,
                             weft_tensor *out)
{
    const weft_chunks *c = &o->chunks;
    return weft_pass_scratch(pass, like->dtype, c->apart * (size_t)c->pieces, like->dims[1], out);
}

static weft_status take_moved(ordered_work *w, weft_pass *pass)
{
    w->moved = w->inside;
    return moves(w->ordered) ? take_rows(w->ordered, pass, &w->inside, &w->moved) : WEFT_OK;
}

/* The columns of a product; those before them are another's. */
static weft_tensor columns_of(const weft_ordered *o, int linear, const weft_tensor *rows)
{
    weft_tensor out = *rows;
    if (linear > 0)
        out.data = (char *)rows->data + o->linears[0]->out * weft_dtype_bytes(rows->dtype);
    return out;
}

static weft_status enter_forward(void *context, weft_pass *pass, int chunk)
{
    const ordered_work *w = context;
    const weft_ordered *o = w->ordered;
    const weft_tensor x = weft_chunk_of(&w->gathered, &o->chunks, chunk),
                      y = weft_chunk_of(&w->moved, &o->chunks, chunk);
    for (int k = 0; k < WEFT_ORDERED_LINEARS && o->linears[k]; k++) {
        weft_tensor columns = columns_of(o, k, &y);
        WEFT_TRY(weft_linear_forward(pass, o->linears[k], &x, true, &columns));
    }
    return weft_chunk_place(pass, &o->chunks, chunk, &w->moved, &w->inside);
}

static weft_status exit_forward(void *context, weft_pass *pass, int chunk)
{
    const ordered_work *w = context;
    const weft_ordered *o = w->ordered;
    weft_tensor partial = weft_chunk_of(&w->partial, &o->chunks, chunk);
    if (moves(o))
        WEFT_TRY(weft_chunk_take(pass, &o->chunks, chunk, &w->inside, &w->moved));
    const weft_tensor x = weft_chunk_of(&w->moved, &o->chunks, chunk);
    return weft_linear_forward(pass, o->linears[0], &x, w->with_bias, &partial);
}

static weft_status enter_backward(void *context, weft_pass *pass, int chunk)
{
    const ordered_work *w = context;
    const weft_ordered *o = w->ordered;
    const weft_tensor dy = weft_chunk_of(&w->gathered, &o->chunks, chunk);
    weft_tensor dx = weft_chunk_of(&w->moved, &o->chunks, chunk);
    WEFT_TRY(weft_linear_backward_input(pass, o->linears[0], &dy, false, &dx));
    return weft_chunk_place(pass, &o->chunks, chunk, &w->moved, &w->inside);
}

static weft_status exit_backward(void *context, weft_pass *pass, int chunk)
{
    const ordered_work *w = context;
    const weft_ordered *o = w->ordered;
    weft_tensor partial = weft_chunk_of(&w->partial, &o->chunks, chunk);
    if (moves(o))
        WEFT_TRY(weft_chunk_take(pass, &o->chunks, chunk, &w->inside, &w->moved));
    const weft_tensor dy = weft_chunk_of(&w->moved, &o->chunks, chunk);
    for (int k = 0; k < WEFT_ORDERED_LINEARS && o->linears[k]; k++) {
        const weft_tensor columns = columns_of(o, k, &dy);
        WEFT_TRY(weft_linear_backward_input(pass, o->linears[k], &columns, k > 0, &partial));
    }
    return WEFT_OK;
}

/* The input's rows come where the gradient's were, which is in tokens' order by now. */
static weft_status enter_weights(void *context, weft_pass *pass)
{
    const ordered_work *w = context;
    const weft_ordered *o = w->ordered;
    for (int i = 0; i < o->chunks.count; i++)
        WEFT_TRY(weft_chunk_take(pass, &o->chunks, i, &w->x, &w->moved));
    return weft_linear_backward_weights(pass, o->linears[0], &w->moved, &w->gathered);
}

static weft_status exit_weights(void *context, weft_pass *pass)
{
    const ordered_work *w = context;
    const weft_ordered *o = w->ordered;
    for (int k = 0; k < WEFT_ORDERED_LINEARS && o->linears[k]; k++) {
        const weft_tensor dy = columns_of(o, k, &w->moved);
        WEFT_TRY(weft_linear_backward_weights(pass, o->linears[k], moves(o) ? &w->gathered : &w->x,
                                              &dy));
    }
    return WEFT_OK;
}

weft_status weft_ordered_enter_forward(const weft_ordered *o, weft_pass *pass, const weft_tensor *x,
                                       const weft_tensor *y)
{
    ordered_work w = {.ordered = o, .inside = *y};
    WEFT_TRY(take_rows(o, pass, x, &w.gathered));
    WEFT_TRY(take_moved(&w, pass));
    const weft_tensor_call call = {.plan = {.gathers = true, .multiplies = true, .reads = true},
                                   .chunks = o->chunks,
                                   .module = o->name,
                                   .from = *x,
                                   .gathered = w.gathered,
                                   .multiply = enter_forward,
                                   .context = &w};
    return weft_tensor_run(pass, &call);
}

weft_status weft_ordered_exit_forward(const weft_ordered *o, weft_pass *pass, const weft_tensor *x,
                                      const weft_tensor *y)
{
    ordered_work w = {.ordered = o, .inside = *x};
    WEFT_TRY(take_moved(&w, pass));
    WEFT_TRY(weft_pass_partial(pass, y, &w.partial));
    /* One rank's partial sum carries the bias, so that the sum has it once. */
    w.with_bias = weft_pass_groups(pass)->coords.at[WEFT_AXIS_TP] == 0;
    const weft_tensor_call call = {.plan = {.multiplies = true, .reduces = true},
                                   .chunks = o->chunks,
                                   .module = o->name,
                                   .partial = w.partial,
                                   .to = *y,
                                   .multiply = exit_forward,
                                   .context = &w};
    return weft_tensor_run(pass, &call);
}

weft_status weft_ordered_enter_backward(const weft_ordered *o, weft_pass *pass,
                                        const weft_tensor *x, const weft_tensor *dy,
                                        const weft_tensor *kept, const weft_tensor *dx)
{
    ordered_work w = {.ordered = o, .inside = *dx, .x = x ? *x : (weft_tensor){0}};
    WEFT_TRY(take_rows(o, pass, dy, &w.gathered));
    WEFT_TRY(take_moved(&w, pass));
    const weft_tensor_call call = {.plan = {.backward = true,
                                            .gathers = true,
                                            .multiplies = true,
                                            .reads = true,
                                            .weights = x != NULL},
                                   .chunks = o->chunks,
                                   .module = o->name,
                                   .from = *dy,
                                   .gathered = w.gathered,
                                   .multiply = enter_backward,
                                   .make_weights = enter_weights,
                                   .context = &w};
    WEFT_TRY(weft_tensor_run(pass, &call));
    for (int i = 0; !x && i < o->chunks.count; i++)
        WEFT_TRY(weft_chunk_place(pass, &o->chunks, i, &w.gathered, kept));
    return WEFT_OK;
}

weft_status weft_ordered_exit_backward(const weft_ordered *o, weft_pass *pass, const weft_tensor *x,
                                       const weft_tensor *dy, const weft_tensor *dx)
{
    ordered_work w = {.ordered = o, .inside = *dy, .x = x ? *x : (weft_tensor){0}};
    const bool gathers = x && moves(o);
    if (gathers)
        WEFT_TRY(take_rows(o, pass, x, &w.gathered));
    WEFT_TRY(take_moved(&w, pass));
    WEFT_TRY(weft_pass_partial(pass, dx, &w.partial));
    const weft_tensor_call call = {.plan = {.backward = true,
                                            .gathers = gathers,
                                            .multiplies = true,
                                            .reduces = true,
                                            .weights = x != NULL},
                                   .chunks = o->chunks,
                                   .module = o->name,
                                   .from = w.x,
                                   .gathered = w.gathered,
                                   .partial = w.partial,
                                   .to = *dx,
                                   .multiply = exit_backward,
                                   .make_weights = exit_weights,
                                   .context = &w};
    return weft_tensor_run(pass, &call);
}
