/* The experts: grouped GEMMs over the rows that each got. The activation's output is not kept:
 * backward makes it again. */
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

/* act = activation(state->hidden), in scratch. */
static weft_status activate(const weft_moe *m, weft_pass *pass, const weft_moe_state *state,
                            weft_tensor *act)
{
    WEFT_TRY(weft_pass_scratch(pass, state->in.dtype, state->num_rows, m->dims.ffn, act));
    return weft_activation_forward(
        weft_pass_lane(pass),
        &(weft_activation_forward_args){.kind = weft_activation_of(&m->common.options),
                                        .rows = act->dims[0],
                                        .cols = act->dims[1],
                                        .dtype = act->dtype,
                                        .x = state->hidden.data,
                                        .y = act->data});
}

weft_status weft_moe_experts(weft_moe *m, weft_pass *pass, weft_moe_state *state)
{
    weft_tensor act;
    WEFT_TRY(weft_pass_stash(pass, state->in.dtype, state->num_rows, m->dims.gates * m->dims.ffn,
                             &state->hidden));
    WEFT_TRY(grouped(m, pass, state, WEFT_GROUPED_FORWARD, m->fc1, &state->in, &state->hidden));
    WEFT_TRY(activate(m, pass, state, &act));
    return grouped(m, pass, state, WEFT_GROUPED_FORWARD, m->fc2, &act, &state->out);
}

weft_status weft_moe_experts_backward(weft_moe *m, weft_pass *pass, weft_moe_state *state,
                                      const weft_tensor *dout, weft_tensor *din)
{
    weft_tensor act;
    WEFT_TRY(activate(m, pass, state, &act));
    WEFT_TRY(grouped(m, pass, state, WEFT_GROUPED_WGRAD, m->fc2, &act, dout));
    /* The activation's gradient takes its place. */
    WEFT_TRY(grouped(m, pass, state, WEFT_GROUPED_DGRAD, m->fc2, &act, dout));
    WEFT_TRY(weft_activation_backward(
        weft_pass_lane(pass),
        &(weft_activation_backward_args){.kind = weft_activation_of(&m->common.options),
                                         .rows = state->num_rows,
                                         .cols = m->dims.ffn,
                                         .dtype = dout->dtype,
                                         .x = state->hidden.data,
                                         .dy = act.data,
                                         .dx = state->hidden.data}));
    WEFT_TRY(grouped(m, pass, state, WEFT_GROUPED_WGRAD, m->fc1, &state->in, &state->hidden));
    return grouped(m, pass, state, WEFT_GROUPED_DGRAD, m->fc1, din, &state->hidden);
}
