/* The experts: grouped GEMMs over the rows of one partition. They do not keep the activation's
 * output: backward makes it again. */
#include "layers/moe.h"

static weft_status grouped(weft_moe *m, weft_pass *pass, const weft_moe_expert_rows *r,
                           weft_grouped_kind kind, weft_parameter *w, const weft_tensor *x,
                           const weft_tensor *y, bool overwrite)
{
    return weft_grouped_gemm(weft_pass_lane(pass),
                             &WEFT_ARGS(weft_grouped_gemm_args, .kind = kind,
                                        .num_groups = m->dims.local_experts, .in = x->dims[1],
                                        .out = y->dims[1], .row_offsets = r->part->offsets,
                                        .dtype = x->dtype, .x = x->data, .w = w->weight.data,
                                        .y = y->data, .wgrad = w->grad, .overwrite = overwrite));
}

/* act = activation(middle) */
static weft_status activate(const weft_moe *m, weft_pass *pass, const weft_moe_expert_rows *r)
{
    return weft_activation_forward(
        weft_pass_lane(pass),
        &WEFT_ARGS(weft_activation_forward_args, .kind = weft_activation_of(&m->common.options),
                   .rows = r->act.dims[0], .cols = r->act.dims[1], .dtype = r->act.dtype,
                   .x = r->middle.data, .y = r->act.data));
}

/* The rows in expert order: where they are, or copied to `to`. */
static weft_status in_order(weft_pass *pass, const weft_moe_part *part, const weft_tensor *rows,
                            const weft_tensor *to, weft_tensor *out)
{
    *out = part->order ? *to : *rows;
    return part->order ? weft_moe_select(pass, rows, part->order, to) : WEFT_OK;
}

weft_status weft_moe_select(weft_pass *pass, const weft_tensor *from, const int32_t *index,
                            const weft_tensor *to)
{
    if (to->dims[0] == 0)
        return WEFT_OK;
    return weft_permute(weft_pass_lane(pass),
                        &WEFT_ARGS(weft_permute_args, .num_rows = to->dims[0], .cols = to->dims[1],
                                   .dtype = to->dtype, .x = from->data, .token_of = index,
                                   .rows = to->data));
}

weft_status weft_moe_experts_first(weft_moe *m, weft_pass *pass, const weft_moe_expert_rows *r)
{
    weft_tensor x;
    WEFT_TRY(in_order(pass, r->part, &r->x, &r->ordered, &x));
    return grouped(m, pass, r, WEFT_GROUPED_FORWARD, m->fc1.weight, &x, &r->middle, false);
}

weft_status weft_moe_experts(weft_moe *m, weft_pass *pass, const weft_moe_expert_rows *r,
                             const weft_tensor *out)
{
    WEFT_TRY(weft_moe_experts_first(m, pass, r));
    WEFT_TRY(activate(m, pass, r));
    if (!r->part->order)
        return grouped(m, pass, r, WEFT_GROUPED_FORWARD, m->fc2.weight, &r->act, out, false);
    /* The input's copy is used up: the answers take its place. */
    WEFT_TRY(grouped(m, pass, r, WEFT_GROUPED_FORWARD, m->fc2.weight, &r->act, &r->ordered, false));
    return weft_moe_select(pass, &r->ordered, r->part->inverse, out);
}

weft_status weft_moe_experts_backward(weft_moe *m, weft_pass *pass, const weft_moe_expert_rows *r,
                                      const weft_tensor *dout, const weft_tensor *din,
                                      bool overwrite)
{
    weft_tensor x, dy;
    WEFT_TRY(in_order(pass, r->part, &r->x, &r->ordered, &x));
    WEFT_TRY(in_order(pass, r->part, dout, &r->dordered, &dy));
    WEFT_TRY(activate(m, pass, r));
    WEFT_TRY(grouped(m, pass, r, WEFT_GROUPED_WGRAD, m->fc2.weight, &r->act, &dy, overwrite));
    /* The activation's gradient takes its place. */
    WEFT_TRY(grouped(m, pass, r, WEFT_GROUPED_DGRAD, m->fc2.weight, &r->act, &dy, false));
    WEFT_TRY(weft_activation_backward(
        weft_pass_lane(pass),
        &WEFT_ARGS(weft_activation_backward_args, .kind = weft_activation_of(&m->common.options),
                   .rows = r->act.dims[0], .cols = r->act.dims[1], .dtype = r->act.dtype,
                   .x = r->middle.data, .dy = r->act.data, .dx = r->middle.data)));
    WEFT_TRY(grouped(m, pass, r, WEFT_GROUPED_WGRAD, m->fc1.weight, &x, &r->middle, overwrite));
    if (!r->part->order)
        return grouped(m, pass, r, WEFT_GROUPED_DGRAD, m->fc1.weight, din, &r->middle, false);
    WEFT_TRY(grouped(m, pass, r, WEFT_GROUPED_DGRAD, m->fc1.weight, &x, &r->middle, false));
    return weft_moe_select(pass, &x, r->part->inverse, din);
}
