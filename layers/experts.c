/* The experts: grouped GEMMs over the rows that each got. */
#include "layers/mlp.h"
#include "layers/moe.h"

static weft_status grouped(weft_moe *m, weft_pass *pass, weft_moe_state *state,
                           weft_grouped_kind kind, weft_parameter *w, const weft_tensor *x,
                           const weft_tensor *y)
{
    return weft_grouped_gemm(weft_pass_lane(pass),
                             &(weft_grouped_gemm_args){.kind = kind,
                                                       .num_groups = m->dims.local_experts,
                                                       .in = x->dims[1],
                                                       .out = y->dims[1],
                                                       .row_offsets = state->offsets,
                                                       .dtype = x->dtype,
                                                       .x = x->data,
                                                       .w = w->weight.data,
                                                       .y = y->data,
                                                       .wgrad = w->grad,
                                                       .overwrite = weft_pass_overwrite(pass)});
}

weft_status weft_moe_experts(weft_moe *m, weft_pass *pass, weft_moe_state *state)
{
    const weft_moe_dims *d = &m->dims;
    weft_dtype dtype = state->in.dtype;
    size_t rows = state->num_rows;
    WEFT_TRY(weft_pass_stash(pass, dtype, rows, d->gates * d->ffn, &state->hidden));
    WEFT_TRY(weft_pass_stash(pass, dtype, rows, d->ffn, &state->act));
    WEFT_TRY(grouped(m, pass, state, WEFT_GROUPED_FORWARD, m->fc1, &state->in, &state->hidden));
    WEFT_TRY(weft_activation_forward(
        weft_pass_lane(pass),
        &(weft_activation_forward_args){.kind = weft_activation_of(&m->common.options),
                                        .rows = rows,
                                        .cols = d->ffn,
                                        .dtype = dtype,
                                        .x = state->hidden.data,
                                        .y = state->act.data}));
    return grouped(m, pass, state, WEFT_GROUPED_FORWARD, m->fc2, &state->act, &state->out);
}

/* dout is the gradient of the experts' output rows; din is written. */
weft_status weft_moe_experts_backward(weft_moe *m, weft_pass *pass, weft_moe_state *state,
                                      const weft_tensor *dout, weft_tensor *din)
{
    weft_tensor dact;
    WEFT_TRY(weft_pass_scratch(pass, dout->dtype, state->num_rows, m->dims.ffn, &dact));
    WEFT_TRY(grouped(m, pass, state, WEFT_GROUPED_WGRAD, m->fc2, &state->act, dout));
    WEFT_TRY(grouped(m, pass, state, WEFT_GROUPED_DGRAD, m->fc2, &dact, dout));
    WEFT_TRY(weft_activation_backward(
        weft_pass_lane(pass),
        &(weft_activation_backward_args){.kind = weft_activation_of(&m->common.options),
                                         .rows = state->num_rows,
                                         .cols = m->dims.ffn,
                                         .dtype = dout->dtype,
                                         .x = state->hidden.data,
                                         .dy = dact.data,
                                         .dx = state->hidden.data}));
    WEFT_TRY(grouped(m, pass, state, WEFT_GROUPED_WGRAD, m->fc1, &state->in, &state->hidden));
    return grouped(m, pass, state, WEFT_GROUPED_DGRAD, m->fc1, din, &state->hidden);
}
