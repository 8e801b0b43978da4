/* The experts: grouped GEMMs over the rows of one partition, for all experts at once, or one by one
 * if they are beyond device memory (layers/tier/run.h). Backward recomputes the activation's
 * output. */
#include "core/device/device.h"
#include "layers/moe/internal.h"
#include "layers/pass/pass.h"

/* Consecutive experts: their rows and matrices. */
typedef struct span {
    size_t num_experts;
    const int64_t *offsets; /* [num_experts + 1], from 0 */
    weft_tensor x, middle, act, y, dy, dx;
    struct {
        void *weight;
        float *grad;
        void *bias; /* NULL: none, or another ETP rank adds it */
        float *dbias;
    } fc1, fc2; /* the first expert's; */
    size_t stride;
    bool overwrite;
} span;

/* Of the product, the bias; of the weights' gradient, the bias'. */
static weft_status grouped_bias(weft_pass *pass, const span *s, weft_grouped_kind kind,
                                bool is_first, const weft_tensor *y)
{
    weft_lane *lane = weft_pass_lane(pass);
    const char *name = is_first ? "experts.linear_fc1" : "experts.linear_fc2";
    const void *bias = is_first ? s->fc1.bias : s->fc2.bias;
    float *dbias = is_first ? s->fc1.dbias : s->fc2.dbias;
    if (kind == WEFT_GROUPED_FORWARD && bias)
        WEFT_TRY_AS(
            lane, name,
            weft_bias_add(lane, &WEFT_ARGS(weft_bias_add_args, .cols = y->dims[1],
                                           .num_groups = s->num_experts, .group_stride = s->stride,
                                           .row_offsets = s->offsets, .dtype = y->dtype,
                                           .bias = bias, .y = y->data)));
    if (kind == WEFT_GROUPED_WGRAD && dbias)
        WEFT_TRY_AS(
            lane, name,
            weft_bias_gradient(
                lane, &WEFT_ARGS(weft_bias_gradient_args, .rows = y->dims[0], .cols = y->dims[1],
                                 .dtype = y->dtype, .dy = y->data, .db = dbias,
                                 .overwrite = s->overwrite, .num_groups = s->num_experts,
                                 .row_offsets = s->offsets, .group_stride = s->stride)));
    return WEFT_OK;
}

static weft_status grouped(weft_pass *pass, const span *s, weft_grouped_kind kind, bool is_first,
                           const weft_tensor *x, const weft_tensor *y)
{
    WEFT_TRY_AS(weft_pass_lane(pass), is_first ? "experts.linear_fc1" : "experts.linear_fc2",
                weft_grouped_gemm(
                    weft_pass_lane(pass),
                    &WEFT_ARGS(weft_grouped_gemm_args, .kind = kind, .num_groups = s->num_experts,
                               .in = x->dims[1], .out = y->dims[1], .row_offsets = s->offsets,
                               .dtype = x->dtype, .x = x->data,
                               .w = is_first ? s->fc1.weight : s->fc2.weight, .y = y->data,
                               .wgrad = is_first ? s->fc1.grad : s->fc2.grad,
                               .overwrite = s->overwrite, .stride = s->stride)));
    return grouped_bias(pass, s, kind, is_first, y);
}

static float limit_of(const weft_moe *m)
{
    return (float)m->common.options.activation_func_clamp_value;
}

static float offset_of(const weft_moe *m)
{
    return (float)m->common.options.glu_linear_offset;
}

/* act = activation(middle) */
static weft_status activate(const weft_moe *m, weft_pass *pass, const span *s)
{
    return weft_activation_forward(
        weft_pass_lane(pass),
        &WEFT_ARGS(weft_activation_forward_args, .kind = weft_activation_of(&m->common.options),
                   .rows = s->act.dims[0], .cols = s->act.dims[1], .dtype = s->act.dtype,
                   .x = s->middle.data, .y = s->act.data, .limit = limit_of(m),
                   .offset = offset_of(m)));
}

/* The middle's gradient takes its place. */
static weft_status activate_backward(const weft_moe *m, weft_pass *pass, const span *s)
{
    return weft_activation_backward(
        weft_pass_lane(pass),
        &WEFT_ARGS(weft_activation_backward_args, .kind = weft_activation_of(&m->common.options),
                   .rows = s->act.dims[0], .cols = s->act.dims[1], .dtype = s->act.dtype,
                   .x = s->middle.data, .dy = s->act.data, .dx = s->middle.data,
                   .limit = limit_of(m), .offset = offset_of(m)));
}

static weft_status span_forward(const weft_moe *m, weft_pass *pass, const span *s)
{
    WEFT_TRY(grouped(pass, s, WEFT_GROUPED_FORWARD, true, &s->x, &s->middle));
    WEFT_TRY(activate(m, pass, s));
    return grouped(pass, s, WEFT_GROUPED_FORWARD, false, &s->act, &s->y);
}

static weft_status span_backward(const weft_moe *m, weft_pass *pass, const span *s)
{
    WEFT_TRY(activate(m, pass, s));
    WEFT_TRY(grouped(pass, s, WEFT_GROUPED_WGRAD, false, &s->act, &s->dy));
    /* The activation's gradient takes its place. */
    WEFT_TRY(grouped(pass, s, WEFT_GROUPED_DGRAD, false, &s->act, &s->dy));
    WEFT_TRY(activate_backward(m, pass, s));
    WEFT_TRY(grouped(pass, s, WEFT_GROUPED_WGRAD, true, &s->x, &s->middle));
    return grouped(pass, s, WEFT_GROUPED_DGRAD, true, &s->dx, &s->middle);
}

/* dy -> dx; act is kept in `act`, and s->act gets its gradient. */
static weft_status span_input(const weft_moe *m, weft_pass *pass, const span *s,
                              const weft_tensor *act)
{
    span kept = *s;
    kept.act = *act;
    WEFT_TRY(activate(m, pass, &kept));
    WEFT_TRY(grouped(pass, s, WEFT_GROUPED_DGRAD, false, &s->act, &s->dy));
    WEFT_TRY(activate_backward(m, pass, s));
    return grouped(pass, s, WEFT_GROUPED_DGRAD, true, &s->dx, &s->middle);
}

/* The matrix and gradient of one expert on the device. */
static void *weight_of(const weft_parameter *p, size_t expert)
{
    const size_t bytes = p->expert_stride * weft_dtype_bytes(p->weight.dtype);
    return expert > 0 ? (char *)p->weight.data + expert * bytes : p->weight.data;
}

static float *gradient_of(const weft_parameter *p, size_t expert)
{
    return expert > 0 && p->grad ? p->grad + expert * p->expert_stride : p->grad;
}

/* Tensor-sharded experts make partial sums, of which one has the bias. */
static bool adds_bias(const weft_pass *pass)
{
    return weft_pass_groups(pass)->coords.at[WEFT_AXIS_ETP] == 0;
}

static void *bias_of(const weft_parameter *p, size_t expert)
{
    return p ? weight_of(p, expert) : NULL;
}

/* All experts of the partition, without matrices if they run one by one. */
static span all_of(const weft_moe *m, const weft_pass *pass, const weft_moe_expert_rows *r)
{
    const weft_parameter *fc1 = m->fc1.weight, *fc2 = m->fc2.weight;
    const weft_moe_part *part = r->part;
    const bool listed = pass->model->tier;
    const size_t first = listed ? 0 : (size_t)part->first_position;
    const size_t end = listed ? m->dims.local_experts : (size_t)part->end_position;
    return (span){.num_experts = end - first,
                  .offsets = part->offsets + first,
                  .middle = r->middle,
                  .act = r->act,
                  .fc1 = {weight_of(fc1, first), gradient_of(fc1, first),
                          bias_of(m->fc1.bias, first),
                          m->fc1.bias ? gradient_of(m->fc1.bias, first) : NULL},
                  .fc2 = {weight_of(fc2, first), gradient_of(fc2, first),
                          adds_bias(pass) ? bias_of(m->fc2.bias, first) : NULL,
                          m->fc2.bias ? gradient_of(m->fc2.bias, first) : NULL},
                  .stride = fc1->expert_stride};
}

/* --- one after the other -------------------------------------------------------------------- */

typedef struct positions {
    weft_moe *m;
    weft_pass *pass;
    const weft_moe_part *part;
    const span *all;
    bool backward;
} positions;

static weft_tensor rows_of(const weft_tensor *t, size_t first, size_t count)
{
    weft_tensor rows = *t;
    if (!t->data)
        return rows;
    rows.data = (char *)t->data + first * t->dims[1] * weft_dtype_bytes(t->dtype);
    rows.dims[0] = count;
    return rows;
}

/* A parameter has one offset in the bucket and in the bucket's device memory. */
static char *weight_at(const weft_pass *pass, const weft_parameter *p,
                       const weft_tier_memory *memory)
{
    return memory->weights + weft_parameters_in_expert(pass->model->parameters, p) *
                                 weft_dtype_bytes(p->weight.dtype);
}

static float *gradient_at(const weft_pass *pass, const weft_parameter *p,
                          const weft_tier_memory *memory)
{
    return memory->gradient
               ? memory->gradient + weft_parameters_in_expert(pass->model->parameters, p)
               : NULL;
}

static weft_status run_position(void *context, int expert, const weft_tier_memory *memory,
                                weft_lane *lane)
{
    const positions *p = context;
    const weft_parameter *fc1 = p->m->fc1.weight, *fc2 = p->m->fc2.weight;
    const size_t first = (size_t)p->part->offsets[expert];
    const size_t count = (size_t)p->part->offsets[expert + 1] - first;
    span one = *p->all;
    (void)lane;
    one.num_experts = 1;
    one.offsets = p->part->own_rows + 2 * (size_t)expert;
    weft_tensor *const tensors[] = {&one.x, &one.middle, &one.act, &one.y, &one.dy, &one.dx};
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
        *tensors[i] = rows_of(tensors[i], first, count);
    one.fc1.weight = weight_at(p->pass, fc1, memory);
    one.fc2.weight = weight_at(p->pass, fc2, memory);
    one.fc1.grad = gradient_at(p->pass, fc1, memory);
    one.fc2.grad = gradient_at(p->pass, fc2, memory);
    const weft_parameter *bias1 = p->m->fc1.bias, *bias2 = p->m->fc2.bias;
    one.fc1.bias = bias1 ? weight_at(p->pass, bias1, memory) : NULL;
    one.fc2.bias = bias2 && adds_bias(p->pass) ? weight_at(p->pass, bias2, memory) : NULL;
    one.fc1.dbias = bias1 ? gradient_at(p->pass, bias1, memory) : NULL;
    one.fc2.dbias = bias2 ? gradient_at(p->pass, bias2, memory) : NULL;
    one.overwrite = true;
    return p->backward ? span_backward(p->m, p->pass, &one) : span_forward(p->m, p->pass, &one);
}

static weft_status run(weft_moe *m, weft_pass *pass, const weft_moe_expert_rows *r, const span *all,
                       bool backward)
{
    weft_tier_run *tier = pass->model->tier;
    positions p = {m, pass, r->part, all, backward};
    if (!tier)
        return backward ? span_backward(m, pass, all) : span_forward(m, pass, all);
    return weft_tier_enqueue(tier,
                             &(weft_tier_call){.pass = pass,
                                               .layer = m->layer,
                                               .backward = backward,
                                               .positions = r->part->positions,
                                               .offsets = r->part->all_offsets,
                                               .first_position = r->part->first_position,
                                               .end_position = r->part->end_position,
                                               .placed = r->part->placed,
                                               .first_placed = r->part->first_placed,
                                               .run = run_position,
                                               .context = &p},
                             weft_pass_lane(pass));
}

/* --- a partition ---------------------------------------------------------------------------- */

/* The rows in expert order: in place, or copied to `to`. */
static weft_status in_order(weft_pass *pass, const weft_moe_part *part, const weft_tensor *rows,
                            const weft_tensor *to, weft_tensor *out)
{
    *out = part->order ? *to : *rows;
    return part->order ? weft_moe_select(weft_pass_lane(pass), rows, part->order, to) : WEFT_OK;
}

weft_status weft_moe_select(weft_lane *lane, const weft_tensor *from, const int32_t *index,
                            const weft_tensor *to)
{
    if (to->dims[0] == 0)
        return WEFT_OK;
    return weft_permute(lane,
                        &WEFT_ARGS(weft_permute_args, .num_rows = to->dims[0], .cols = to->dims[1],
                                   .dtype = to->dtype, .x = from->data, .token_of = index,
                                   .rows = to->data, .num_tokens = from->dims[0]));
}

weft_status weft_moe_experts_first(weft_moe *m, weft_pass *pass, const weft_moe_expert_rows *r)
{
    span all = all_of(m, pass, r);
    weft_note_redoes(weft_pass_lane(pass), WEFT_NOTE_AGAIN);
    WEFT_TRY(in_order(pass, r->part, &r->x, &r->ordered, &all.x));
    weft_note_redoes(weft_pass_lane(pass), WEFT_NOTE_NEW);
    return grouped(pass, &all, WEFT_GROUPED_FORWARD, true, &all.x, &all.middle);
}

weft_status weft_moe_experts(weft_moe *m, weft_pass *pass, const weft_moe_expert_rows *r,
                             const weft_tensor *out)
{
    span all = all_of(m, pass, r);
    WEFT_TRY(in_order(pass, r->part, &r->x, &r->ordered, &all.x));
    /* A copy of the input is no longer needed: the answers overwrite it. */
    all.y = r->part->order ? r->ordered : *out;
    WEFT_TRY(run(m, pass, r, &all, false));
    return r->part->order
               ? weft_moe_select(weft_pass_lane(pass), &r->ordered, r->part->inverse, out)
               : WEFT_OK;
}

weft_status weft_moe_experts_backward(weft_moe *m, weft_pass *pass, const weft_moe_expert_rows *r,
                                      const weft_tensor *dout, const weft_tensor *din,
                                      bool overwrite)
{
    span all = all_of(m, pass, r);
    all.overwrite = overwrite;
    weft_note_redoes(weft_pass_lane(pass), WEFT_NOTE_AGAIN);
    WEFT_TRY(in_order(pass, r->part, &r->x, &r->ordered, &all.x));
    weft_note_redoes(weft_pass_lane(pass), WEFT_NOTE_NEW);
    WEFT_TRY(in_order(pass, r->part, dout, &r->dordered, &all.dy));
    all.dx = r->part->order ? all.x : *din;
    WEFT_TRY(run(m, pass, r, &all, true));
    return r->part->order ? weft_moe_select(weft_pass_lane(pass), &all.x, r->part->inverse, din)
                          : WEFT_OK;
}

/* --- a backward in two halves ---------------------------------------------------------------- */

/* The partition's rows of what is kept of all. */
static weft_tensor kept_of(const weft_moe_expert_rows *r, const weft_tensor *all)
{
    return rows_of(all, r->part->first_row, r->part->num_rows);
}

weft_status weft_moe_experts_backward_input(weft_moe *m, weft_pass *pass,
                                            const weft_moe_expert_rows *r, const weft_tensor *dout,
                                            const weft_tensor *din)
{
    span all = all_of(m, pass, r);
    const weft_tensor act = kept_of(r, &r->kept_act);
    all.dy = kept_of(r, &r->kept_dout);
    all.dx = r->part->order ? r->ordered : *din;
    if (r->part->order)
        WEFT_TRY(weft_moe_select(weft_pass_lane(pass), dout, r->part->order, &all.dy));
    else if (r->part->num_rows > 0)
        WEFT_TRY(weft_lane_copy(weft_pass_lane(pass), all.dy.data, dout->data,
                                weft_tensor_bytes(&all.dy)));
    WEFT_TRY(span_input(m, pass, &all, &act));
    return r->part->order ? weft_moe_select(weft_pass_lane(pass), &all.dx, r->part->inverse, din)
                          : WEFT_OK;
}

weft_status weft_moe_experts_backward_weights(weft_moe *m, weft_pass *pass,
                                              const weft_moe_expert_rows *r, bool first,
                                              bool overwrite)
{
    span all = all_of(m, pass, r);
    const weft_tensor act = kept_of(r, &r->kept_act), dout = kept_of(r, &r->kept_dout);
    all.overwrite = overwrite;
    if (!first)
        return grouped(pass, &all, WEFT_GROUPED_WGRAD, false, &act, &dout);
    weft_note_redoes(weft_pass_lane(pass), WEFT_NOTE_AGAIN);
    WEFT_TRY(in_order(pass, r->part, &r->x, &r->ordered, &all.x));
    weft_note_redoes(weft_pass_lane(pass), WEFT_NOTE_NEW);
    return grouped(pass, &all, WEFT_GROUPED_WGRAD, true, &all.x, &all.middle);
}
