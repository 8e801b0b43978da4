#include "layers/tensor/ordered.h"

#include "layers/pass/pass.h"

void weft_ordered_begin(weft_ordered *o, const weft_chunks *chunks, const weft_linear *first,
                        const weft_linear *second)
{
    *o = (weft_ordered){.call = {.chunks = *chunks, .module = first->name, .context = o},
                        .linears = {first, second && second->weight ? second : NULL}};
}

static bool moves(const weft_ordered *o)
{
    return o->call.chunks.pieces > 1;
}

/* Scratch for all rows. */
static weft_status take_rows(const weft_ordered *o, weft_pass *pass, const weft_tensor *like,
                             weft_tensor *out)
{
    const weft_chunks *c = &o->call.chunks;
    return weft_pass_scratch(pass, like->dtype, c->apart * (size_t)c->pieces, like->dims[1], out);
}

static weft_status take_moved(weft_ordered *o, weft_pass *pass, const weft_tensor *inside)
{
    o->inside = o->moved = *inside;
    return moves(o) ? take_rows(o, pass, inside, &o->moved) : WEFT_OK;
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
    const weft_ordered *o = context;
    const weft_chunks *c = &o->call.chunks;
    const weft_tensor x = weft_chunk_of(&o->call.gathered, c, chunk),
                      y = weft_chunk_of(&o->moved, c, chunk);
    for (int k = 0; k < WEFT_ORDERED_LINEARS && o->linears[k]; k++) {
        weft_tensor columns = columns_of(o, k, &y);
        WEFT_TRY(weft_linear_forward(pass, o->linears[k], &x, true, &columns));
    }
    return weft_chunk_place(pass, c, chunk, &o->moved, &o->inside);
}

static weft_status exit_forward(void *context, weft_pass *pass, int chunk)
{
    const weft_ordered *o = context;
    const weft_chunks *c = &o->call.chunks;
    weft_tensor partial = weft_chunk_of(&o->call.partial, c, chunk);
    if (moves(o))
        WEFT_TRY(weft_chunk_take(pass, c, chunk, &o->inside, &o->moved));
    const weft_tensor x = weft_chunk_of(&o->moved, c, chunk);
    return weft_linear_forward(pass, o->linears[0], &x, o->with_bias, &partial);
}

static weft_status enter_backward(void *context, weft_pass *pass, int chunk)
{
    const weft_ordered *o = context;
    const weft_chunks *c = &o->call.chunks;
    const weft_tensor dy = weft_chunk_of(&o->call.gathered, c, chunk);
    weft_tensor dx = weft_chunk_of(&o->moved, c, chunk);
    WEFT_TRY(weft_linear_backward_input(pass, o->linears[0], &dy, false, &dx));
    return weft_chunk_place(pass, c, chunk, &o->moved, &o->inside);
}

static weft_status exit_backward(void *context, weft_pass *pass, int chunk)
{
    const weft_ordered *o = context;
    const weft_chunks *c = &o->call.chunks;
    weft_tensor partial = weft_chunk_of(&o->call.partial, c, chunk);
    if (moves(o))
        WEFT_TRY(weft_chunk_take(pass, c, chunk, &o->inside, &o->moved));
    const weft_tensor dy = weft_chunk_of(&o->moved, c, chunk);
    for (int k = 0; k < WEFT_ORDERED_LINEARS && o->linears[k]; k++) {
        const weft_tensor columns = columns_of(o, k, &dy);
        WEFT_TRY(weft_linear_backward_input(pass, o->linears[k], &columns, k > 0, &partial));
    }
    return WEFT_OK;
}

/* The input's rows come where the gradient's were, which is in tokens' order by now. */
static weft_status enter_weights(void *context, weft_pass *pass)
{
    const weft_ordered *o = context;
    const weft_chunks *c = &o->call.chunks;
    for (int i = 0; i < c->count; i++)
        WEFT_TRY(weft_chunk_take(pass, c, i, &o->x, &o->moved));
    return weft_linear_backward_weights(pass, o->linears[0], &o->moved, &o->call.gathered);
}

static weft_status exit_weights(void *context, weft_pass *pass)
{
    const weft_ordered *o = context;
    for (int k = 0; k < WEFT_ORDERED_LINEARS && o->linears[k]; k++) {
        const weft_tensor dy = columns_of(o, k, &o->moved);
        WEFT_TRY(weft_linear_backward_weights(pass, o->linears[k],
                                              moves(o) ? &o->call.gathered : &o->x, &dy));
    }
    return WEFT_OK;
}

weft_status weft_ordered_enter_forward(weft_ordered *o, weft_pass *pass, const weft_tensor *x,
                                       const weft_tensor *y)
{
    o->call.from = *x;
    o->call.multiply = enter_forward;
    WEFT_TRY(take_rows(o, pass, x, &o->call.gathered));
    return take_moved(o, pass, y);
}

weft_status weft_ordered_exit_forward(weft_ordered *o, weft_pass *pass, const weft_tensor *x,
                                      const weft_tensor *y)
{
    o->call.to = *y;
    o->call.multiply = exit_forward;
    /* One rank's partial sum carries the bias, so that the sum has it once. */
    o->with_bias = weft_pass_groups(pass)->coords.at[WEFT_AXIS_TP] == 0;
    WEFT_TRY(take_moved(o, pass, x));
    return weft_pass_partial(pass, y, &o->call.partial);
}

weft_status weft_ordered_enter_backward(weft_ordered *o, weft_pass *pass, const weft_tensor *x,
                                        const weft_tensor *dy, const weft_tensor *dx)
{
    o->call.from = *dy;
    o->call.multiply = enter_backward;
    o->call.make_weights = enter_weights;
    if (x)
        o->x = *x;
    WEFT_TRY(take_rows(o, pass, dy, &o->call.gathered));
    return take_moved(o, pass, dx);
}

weft_status weft_ordered_keep(const weft_ordered *o, weft_pass *pass, const weft_tensor *kept)
{
    for (int i = 0; i < o->call.chunks.count; i++)
        WEFT_TRY(weft_chunk_place(pass, &o->call.chunks, i, &o->call.gathered, kept));
    return WEFT_OK;
}

weft_status weft_ordered_exit_backward(weft_ordered *o, weft_pass *pass, const weft_tensor *x,
                                       const weft_tensor *dy, const weft_tensor *dx)
{
    o->call.to = *dx;
    o->call.multiply = exit_backward;
    o->call.make_weights = exit_weights;
    if (x)
        o->call.from = o->x = *x;
    if (x && moves(o))
        WEFT_TRY(take_rows(o, pass, x, &o->call.gathered));
    WEFT_TRY(take_moved(o, pass, dy));
    return weft_pass_partial(pass, dx, &o->call.partial);
}
