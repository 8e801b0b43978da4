/* The tasks of an MoE layer's program on one micro-batch.
 *
 * A kind with a slot for each partition has them back to back; any other slot fits the largest
 * partition. Without an exchange rows at home and at the experts are the same: the program is
 * synchronous, and dispatch and combine move nothing. */
#include <string.h>

#include "core/device/device.h"
#include "layers/moe/internal.h"
#include "layers/pass/note.h"
#include "layers/pass/pass.h"
#include "schedule/operands.h"

/* --- experts --------------------------------------------------------------------------------- */

/* Grouped GEMMs over the rows of one partition, for all experts at once, or one by one, each in a
 * task, if they are beyond device memory (layers/tier/run.h). Backward recomputes the activation's
 * output. */

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

static weft_tensor part_rows(const weft_tensor *t, size_t first, size_t count)
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

/* The rows, matrices and gradients of one of `all`. */
static span one_of(const weft_moe *m, const weft_pass *pass, const weft_moe_part *part,
                   const span *all, int expert, const weft_tier_memory *memory)
{
    const weft_parameter *fc1 = m->fc1.weight, *fc2 = m->fc2.weight;
    const weft_parameter *bias1 = m->fc1.bias, *bias2 = m->fc2.bias;
    const size_t first = (size_t)part->offsets[expert];
    const size_t count = (size_t)part->offsets[expert + 1] - first;
    span one = *all;
    one.num_experts = 1;
    one.offsets = part->own_rows + 2 * (size_t)expert;
    weft_tensor *const tensors[] = {&one.x, &one.middle, &one.act, &one.y, &one.dy, &one.dx};
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
        *tensors[i] = part_rows(tensors[i], first, count);
    one.fc1.weight = weight_at(pass, fc1, memory);
    one.fc2.weight = weight_at(pass, fc2, memory);
    one.fc1.grad = gradient_at(pass, fc1, memory);
    one.fc2.grad = gradient_at(pass, fc2, memory);
    one.fc1.bias = bias1 ? weight_at(pass, bias1, memory) : NULL;
    one.fc2.bias = bias2 && adds_bias(pass) ? weight_at(pass, bias2, memory) : NULL;
    one.fc1.dbias = bias1 ? gradient_at(pass, bias1, memory) : NULL;
    one.fc2.dbias = bias2 ? gradient_at(pass, bias2, memory) : NULL;
    one.overwrite = true;
    return one;
}

/* --- a partition ---------------------------------------------------------------------------- */

/* to[i] = from[index[i]], rows. */
static weft_status moe_select(weft_lane *lane, const weft_tensor *from, const int32_t *index,
                              const weft_tensor *to)
{
    if (to->dims[0] == 0)
        return WEFT_OK;
    return weft_permute(lane,
                        &WEFT_ARGS(weft_permute_args, .num_rows = to->dims[0], .cols = to->dims[1],
                                   .dtype = to->dtype, .x = from->data, .token_of = index,
                                   .rows = to->data, .num_tokens = from->dims[0]));
}

/* The rows in expert order: in place, or copied to `to`. */
static weft_status in_order(weft_pass *pass, const weft_moe_part *part, const weft_tensor *rows,
                            const weft_tensor *to, weft_tensor *out)
{
    *out = part->order ? *to : *rows;
    return part->order ? moe_select(weft_pass_lane(pass), rows, part->order, to) : WEFT_OK;
}

/* The first linear layer alone: x -> middle. */
static weft_status moe_experts_first(weft_moe *m, weft_pass *pass, const weft_moe_expert_rows *r)
{
    span all = all_of(m, pass, r);
    weft_note_redoes(weft_pass_lane(pass), WEFT_NOTE_AGAIN);
    WEFT_TRY(in_order(pass, r->part, &r->x, &r->ordered, &all.x));
    weft_note_redoes(weft_pass_lane(pass), WEFT_NOTE_NEW);
    return grouped(pass, &all, WEFT_GROUPED_FORWARD, true, &all.x, &all.middle);
}

/* --- a backward in two halves ---------------------------------------------------------------- */

/* The partition's rows of what is kept of all. */
static weft_tensor kept_of(const weft_moe_expert_rows *r, const weft_tensor *all)
{
    return part_rows(all, r->part->first_row, r->part->num_rows);
}

static weft_status moe_experts_backward_input(weft_moe *m, weft_pass *pass,
                                              const weft_moe_expert_rows *r,
                                              const weft_tensor *dout, const weft_tensor *din)
{
    span all = all_of(m, pass, r);
    const weft_tensor act = kept_of(r, &r->kept_act);
    all.dy = kept_of(r, &r->kept_dout);
    all.dx = r->part->order ? r->ordered : *din;
    if (r->part->order)
        WEFT_TRY(moe_select(weft_pass_lane(pass), dout, r->part->order, &all.dy));
    else if (r->part->num_rows > 0)
        WEFT_TRY(weft_lane_copy(weft_pass_lane(pass), all.dy.data, dout->data,
                                weft_tensor_bytes(&all.dy)));
    WEFT_TRY(span_input(m, pass, &all, &act));
    return r->part->order ? moe_select(weft_pass_lane(pass), &all.dx, r->part->inverse, din)
                          : WEFT_OK;
}

/* The same in two halves: dout -> din, and what the gradients of weights need -> kept_act,
 * kept_dout, middle; below, the gradients of weights from x, kept_act, kept_dout and middle, of the
 * first product or of the second. */
static weft_status moe_experts_backward_weights(weft_moe *m, weft_pass *pass,
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

typedef weft_moe_work work;

static bool is_at_home(int holds)
{
    return holds == WEFT_SLOT_HOME || holds == WEFT_SLOT_RESULT ||
           holds == WEFT_SLOT_RESULT_GRADIENT;
}

static size_t width_of(const work *w, int holds)
{
    bool middle = holds == WEFT_SLOT_T_M || holds == WEFT_SLOT_DT_M || holds == WEFT_SLOT_HOST_T_M;
    return middle ? w->m->dims.gates * w->m->dims.ffn : w->rows.dims[1];
}

/* Rows for the slots of a kind: all rows with a slot for each partition, else the largest
 * partition's per slot. */
static size_t rows_of(const work *w, weft_slot_kind holds)
{
    const weft_moe_state *s = w->state;
    int length = weft_program_count_slots(w->program, holds, -1);
    if (length >= s->cut.num_parts)
        return is_at_home((int)holds) ? s->cut.num_sent : s->cut.num_rows;
    return (size_t)length * (is_at_home((int)holds) ? s->cut.max_sent : s->cut.max_rows);
}

/* Sets the memory of the slots of a kind. */
static void place(const work *w, weft_slot_kind holds, void *memory)
{
    const weft_moe_state *s = w->state;
    bool at_home = is_at_home((int)holds);
    bool back_to_back = weft_program_count_slots(w->program, holds, -1) >= s->cut.num_parts;
    size_t row_bytes = width_of(w, (int)holds) * weft_dtype_bytes(w->rows.dtype);
    for (int i = 0, k = 0; i < w->program->num_slots; i++) {
        if (w->program->slots[i].holds != holds)
            continue;
        size_t row = (size_t)k * (at_home ? s->cut.max_sent : s->cut.max_rows);
        if (back_to_back)
            row = at_home ? s->cut.parts[k].first_sent : s->cut.parts[k].first_row;
        w->memory[i] = memory ? (char *)memory + row * row_bytes : NULL;
        k++;
    }
}

/* An operand of the task: the partition's rows in the slot. */
static weft_tensor operand(const work *w, const weft_task *task, weft_operand_name name)
{
    int slot = weft_task_slot(task, name), holds = (int)w->program->slots[slot].holds;
    const weft_moe_part *part = &w->state->cut.parts[task->part];
    return weft_tensor_2d(w->memory[slot], w->rows.dtype,
                          is_at_home(holds) ? part->num_sent : part->num_rows, width_of(w, holds));
}

static weft_moe_expert_rows expert_rows(const work *w, const weft_task *task)
{
    weft_moe_expert_rows r = {.part = &w->state->cut.parts[task->part],
                              .x = operand(w, task, WEFT_OPERAND_X),
                              .middle = operand(w, task, WEFT_OPERAND_MIDDLE),
                              .act = w->act,
                              .ordered = w->ordered,
                              .dordered = w->dordered};
    r.act.dims[0] = r.ordered.dims[0] = r.dordered.dims[0] = r.part->num_rows;
    r.kept_act = w->state->held.act;
    r.kept_dout = w->state->held.dout;
    return r;
}

/* All experts of the task's partition: x -> middle -> y; backward dy -> dx, and middle becomes its
 * own gradient. A copy of the input in the experts' order is no longer needed when the answers, or
 * the input's gradients, overwrite it. Backward adds weight gradients, or in a step's first
 * micro-batch writes them. */
static span experts_of(const work *w, const weft_task *task, const weft_moe_expert_rows *r)
{
    const bool is_ordered = r->part->order, backward = task->flow == WEFT_FLOW_GRADIENT;
    /* Partitions by experts have each expert once. */
    const bool is_first = task->part == 0 || w->state->plan->pipeline.by_experts;
    span all = all_of(w->m, w->pass, r);
    all.x = is_ordered ? r->ordered : r->x;
    if (!backward) {
        all.y = is_ordered ? r->ordered : operand(w, task, WEFT_OPERAND_Y);
        return all;
    }
    all.overwrite = is_first && weft_pass_overwrite(w->pass);
    all.dy = is_ordered ? r->dordered : operand(w, task, WEFT_OPERAND_DY);
    all.dx = is_ordered ? all.x : operand(w, task, WEFT_OPERAND_DX);
    return all;
}

/* Puts the partition's rows in expert order, and below the answers in the rows'. */
static weft_status order_rows(const work *w, const weft_task *task, const weft_moe_expert_rows *r)
{
    const weft_lane *lane = weft_pass_lane(w->pass);
    const bool backward = task->flow == WEFT_FLOW_GRADIENT;
    weft_tensor rows;
    if (!backward)
        return in_order(w->pass, r->part, &r->x, &r->ordered, &rows);
    weft_note_redoes(lane, WEFT_NOTE_AGAIN);
    WEFT_TRY(in_order(w->pass, r->part, &r->x, &r->ordered, &rows));
    weft_note_redoes(lane, WEFT_NOTE_NEW);
    const weft_tensor dout = operand(w, task, WEFT_OPERAND_DY);
    return in_order(w->pass, r->part, &dout, &r->dordered, &rows);
}

static weft_status give_answers(const work *w, const weft_task *task, const weft_moe_expert_rows *r)
{
    const bool backward = task->flow == WEFT_FLOW_GRADIENT;
    const weft_tensor to = operand(w, task, backward ? WEFT_OPERAND_DX : WEFT_OPERAND_Y);
    return r->part->order ? moe_select(weft_pass_lane(w->pass), &r->ordered, r->part->inverse, &to)
                          : WEFT_OK;
}

/* --- tasks --------------------------------------------------------------------------------- */

/* Rows that a backward sends are forward's, but for gradients. */
static weft_note_again again(const weft_lane *lane, const weft_task *task)
{
    const weft_note_again outer = weft_note_redoes(lane, WEFT_NOTE_AGAIN);
    if (outer != WEFT_NOTE_NEW || task->flow == WEFT_FLOW_GRADIENT)
        weft_note_redoes(lane, outer);
    return outer;
}

static weft_status run_permute(void *context, const weft_task *task, weft_lane *lane)
{
    const work *w = context;
    weft_tensor to = operand(w, task, WEFT_OPERAND_TO);
    const weft_note_again outer = again(lane, task);
    WEFT_TRY_AS(lane, "dispatch",
                moe_select(lane, &w->rows,
                           w->state->sorted.token_of + w->state->cut.parts[task->part].first_sent,
                           &to));
    weft_note_redoes(lane, outer);
    return WEFT_OK;
}

static size_t sum_of(const size_t *bytes, int first, int end)
{
    size_t sum = 0;
    for (int i = first; i < end; i++)
        sum += bytes[i];
    return sum;
}

/* Exchanges partition p by messages: to the p-th group of ranks ahead, from the p-th group
 * behind. */
static weft_status move_by_peers(const work *w, weft_lane *lane, int p, const char *from,
                                 const size_t *out_bytes, char *to, const size_t *in_bytes,
                                 bool to_experts)
{
    weft_comm *ep = weft_pass_groups(w->pass)->by_axis[WEFT_AXIS_EP];
    int group = w->state->plan->pipeline.peer_group, rank = weft_comm_rank(ep);
    int num_groups = weft_comm_size(ep) / group, mine = rank / group;
    int ahead = (mine + p) % num_groups * group;
    int behind = (mine + num_groups - p) % num_groups * group;
    int out = to_experts ? ahead : behind, in = to_experts ? behind : ahead;
    for (int k = 0; k < group; k++) {
        int receiver = out + (rank % group + k) % group;
        int sender = in + (rank % group + group - k) % group;
        WEFT_TRY(weft_send_recv(ep, lane, receiver, from + sum_of(out_bytes, out, receiver),
                                out_bytes[receiver], sender, to + sum_of(in_bytes, in, sender),
                                in_bytes[sender], p));
    }
    return WEFT_OK;
}

static weft_status scratch(void *context, size_t bytes, void **out)
{
    weft_tensor area;
    WEFT_TRY(weft_pass_scratch(context, WEFT_U8, 1, bytes, &area));
    *out = area.data;
    return WEFT_OK;
}

static weft_status host(void *context, size_t bytes, void **out)
{
    return weft_pass_host(context, bytes, out);
}

/* Staging areas lie in the pass's scratch, behind the program's other slots. All exchanges of the
 * layer's direction use them in turn. */
static weft_status take_staging(work *w)
{
    const weft_groups *groups = weft_pass_groups(w->pass);
    const weft_moe_runtime *runtime = w->pass->model->moe;
    const weft_exchange_memory memory = {.context = w->pass, .device = scratch, .host = host};
    const weft_moe_cut *cut = &w->state->cut;
    const bool backward = w->program == &w->state->whole->programs[1];
    size_t most = 0;
    if (!w->m->dims.exchange || w->state->plan->pipeline.peer_group > 0)
        return WEFT_OK;
    weft_moe_movement_start(runtime, groups->by_axis[WEFT_AXIS_EP], groups->by_axis[WEFT_AXIS_ETP],
                            &w->movement);
    w->movement.first_slot = w->state->plan->programs[backward].num_slots;
    for (int i = 0; i < cut->num_parts; i++) {
        const size_t sent = weft_moe_staged_bytes(&w->movement, cut->parts[i].send_bytes),
                     came = weft_moe_staged_bytes(&w->movement, cut->parts[i].recv_bytes);
        most = sent > most ? sent : most;
        most = came > most ? came : most;
    }
    return weft_moe_take_staging(runtime, &w->movement, most, &memory);
}

static weft_status begin_exchange(work *w, weft_lane *lane, const char *from,
                                  const size_t *out_bytes, char *to, const size_t *in_bytes)
{
    w->movement.send = from;
    w->movement.recv = to;
    w->movement.send_bytes = out_bytes;
    w->movement.recv_bytes = in_bytes;
    return weft_moe_exchange_begin(w->pass->model->moe, &w->movement, lane);
}

/* Exchanges rows between home and the experts, either way. */
static weft_status move(work *w, weft_lane *lane, const weft_task *task, const weft_tensor *from,
                        const weft_tensor *to, bool to_experts)
{
    const weft_moe_part *part = &w->state->cut.parts[task->part];
    const size_t *out_bytes = to_experts ? part->send_bytes : part->recv_bytes;
    const size_t *in_bytes = to_experts ? part->recv_bytes : part->send_bytes;
    if (!w->m->dims.exchange)
        return WEFT_OK;
    if (w->inner)
        return weft_moe_exchange_chunk(&w->movement, w->inner, lane);
    if (task->peer < 0)
        return begin_exchange(w, lane, from->data, out_bytes, to->data, in_bytes);
    return move_by_peers(w, lane, task->peer, from->data, out_bytes, to->data, in_bytes,
                         to_experts);
}

static weft_status run_dispatch(void *context, const weft_task *task, weft_lane *lane)
{
    work *w = context;
    weft_tensor from = operand(w, task, WEFT_OPERAND_FROM);
    weft_tensor to = operand(w, task, WEFT_OPERAND_TO);
    const weft_note_again outer = again(lane, task);
    WEFT_TRY_AS(lane, "dispatch", move(w, lane, task, &from, &to, true));
    weft_note_redoes(lane, outer);
    return WEFT_OK;
}

static weft_status run_combine(void *context, const weft_task *task, weft_lane *lane)
{
    work *w = context;
    weft_tensor from = operand(w, task, WEFT_OPERAND_FROM);
    weft_tensor to = operand(w, task, WEFT_OPERAND_TO);
    if (w->m->dims.summed && !w->inner) {
        size_t note;
        WEFT_TRY(weft_note_begin(w->pass, lane, WEFT_NOTE_TENSOR, &note));
        WEFT_TRY_AS(lane, "experts",
                    weft_all_reduce(weft_pass_groups(w->pass)->by_axis[WEFT_AXIS_ETP], lane,
                                    from.data, weft_tensor_count(&from), from.dtype,
                                    WEFT_REDUCE_SUM));
        WEFT_TRY(weft_note_end(w->pass, lane, note));
    }
    WEFT_TRY_AS(lane, "combine", move(w, lane, task, &from, &to, false));
    return WEFT_OK;
}

/* --- experts, at once or one by one ---------------------------------------------------------- */

static weft_status run_position(void *context, int expert, const weft_tier_memory *memory,
                                weft_lane *lane)
{
    const work *w = context;
    const weft_moe_expert_rows r = expert_rows(w, w->outer);
    const span all = experts_of(w, w->outer, &r);
    const span one = one_of(w->m, w->pass, r.part, &all, expert, memory);
    (void)lane;
    return w->outer->flow == WEFT_FLOW_GRADIENT ? span_backward(w->m, w->pass, &one)
                                                : span_forward(w->m, w->pass, &one);
}

/* Of the partition whose experts the task computes. */
static weft_tier_call call_of(work *w, const weft_task *task)
{
    const weft_moe_part *part = &w->state->cut.parts[task->part];
    return (weft_tier_call){.layer = w->m->layer,
                            .backward = task->flow == WEFT_FLOW_GRADIENT,
                            .positions = part->positions,
                            .offsets = part->all_offsets,
                            .first_position = part->first_position,
                            .end_position = part->end_position,
                            .placed = part->placed,
                            .first_placed = part->first_placed,
                            .run = run_position,
                            .context = w};
}

static weft_status begin_experts(work *w, const weft_task *task, const weft_moe_expert_rows *r)
{
    weft_tier_run *tier = w->pass->model->tier;
    const weft_tier_call call = call_of(w, task);
    WEFT_TRY(order_rows(w, task, r));
    if (tier)
        return weft_tier_begin(tier, &call, weft_pass_lane(w->pass));
    const span all = experts_of(w, task, r);
    return task->flow == WEFT_FLOW_GRADIENT ? span_backward(w->m, w->pass, &all)
                                            : span_forward(w->m, w->pass, &all);
}

static weft_status end_experts(work *w, const weft_task *task, const weft_moe_expert_rows *r)
{
    weft_tier_run *tier = w->pass->model->tier;
    const weft_tier_call call = call_of(w, task);
    if (tier)
        WEFT_TRY(weft_tier_end(tier, &call));
    return give_answers(w, task, r);
}

static bool has_inside(const work *w, const weft_task *task)
{
    const weft_task *next = task + 1;
    return next < w->program->tasks + w->program->num_tasks &&
           (weft_moe_is_chunk(next) || next->expert >= 0);
}

static weft_status work_of_experts(work *w, const weft_task *task, weft_lane *lane)
{
    if (w->inner) {
        const weft_tier_call call = call_of(w, task);
        return weft_tier_run_task(w->pass->model->tier, &call, w->inner, lane);
    }
    const weft_moe_expert_rows r = expert_rows(w, task);
    if (task->kind == WEFT_TASK_RECOMPUTE)
        return moe_experts_first(w->m, w->pass, &r);
    if (task->flow == WEFT_FLOW_GRADIENT && weft_pass_defers(w->pass)) {
        const weft_tensor dout = operand(w, task, WEFT_OPERAND_DY);
        const weft_tensor din = operand(w, task, WEFT_OPERAND_DX);
        return moe_experts_backward_input(w->m, w->pass, &r, &dout, &din);
    }
    if (!w->outer)
        WEFT_TRY(begin_experts(w, task, &r));
    return w->outer || !has_inside(w, task) ? end_experts(w, task, &r) : WEFT_OK;
}

/* Forward, backward and recomputation; or a task of an expert beyond device memory. */
static weft_status run_expert(void *context, const weft_task *task, weft_lane *lane)
{
    work *w = context;
    const bool computes = lane == weft_pass_lane(w->pass);
    weft_lane_mark_experts(lane, computes);
    WEFT_TRY_AS(lane, "experts", work_of_experts(w, task, lane));
    weft_lane_mark_experts(lane, false);
    return WEFT_OK;
}

/* Copies to the host or from it. */
static weft_status run_copy(void *context, const weft_task *task, weft_lane *lane)
{
    const work *w = context;
    weft_tensor from = operand(w, task, WEFT_OPERAND_FROM);
    weft_tensor to = operand(w, task, WEFT_OPERAND_TO);
    return weft_lane_copy(lane, to.data, from.data, weft_tensor_bytes(&from));
}

/* --- memory -------------------------------------------------------------------------------- */

/* Allocates for the slots of a kind, in the stash or in scratch. */
static weft_status take(const work *w, weft_slot_kind holds, weft_tensor *kept)
{
    weft_tensor scratch;
    size_t rows = rows_of(w, holds), width = width_of(w, (int)holds);
    const char *module = holds == WEFT_SLOT_T_DI  ? "dispatch"
                         : holds == WEFT_SLOT_T_M ? "experts"
                                                  : "combine";
    if (kept)
        WEFT_TRY_AS(weft_pass_lane(w->pass), module,
                    weft_pass_stash(w->pass, w->rows.dtype, rows, width, kept));
    else
        WEFT_TRY(weft_pass_scratch(w->pass, w->rows.dtype, rows, width, &scratch));
    place(w, holds, kept ? kept->data : scratch.data);
    return WEFT_OK;
}

static weft_status take_host(const work *w, weft_slot_kind holds, char **out)
{
    void *memory;
    WEFT_TRY(weft_pass_host(
        w->pass, rows_of(w, holds) * width_of(w, (int)holds) * weft_dtype_bytes(w->rows.dtype),
        &memory));
    *out = memory;
    return WEFT_OK;
}

/* Allocates T_DI and T_M: kept from forward to backward, or rings that each direction allocates. */
static weft_status take_inputs(const work *w, bool backward)
{
    weft_moe_state *s = w->state;
    weft_reuse reuse = s->plan->pipeline.reuse;
    if (reuse == WEFT_REUSE_NONE) {
        if (!backward) {
            WEFT_TRY(take(w, WEFT_SLOT_T_DI, &s->held.dispatched));
            return take(w, WEFT_SLOT_T_M, &s->held.middle);
        }
        place(w, WEFT_SLOT_T_DI, s->held.dispatched.data);
        place(w, WEFT_SLOT_T_M, s->held.middle.data);
        return WEFT_OK;
    }
    WEFT_TRY(take(w, WEFT_SLOT_T_DI, NULL));
    WEFT_TRY(take(w, WEFT_SLOT_T_M, NULL));
    if (!backward && weft_reuse_offloads_input(reuse))
        WEFT_TRY(take_host(w, WEFT_SLOT_HOST_T_DI, &s->held.host_input));
    if (!backward && weft_reuse_offloads_middle(reuse))
        WEFT_TRY(take_host(w, WEFT_SLOT_HOST_T_M, &s->held.host_middle));
    place(w, WEFT_SLOT_HOST_T_DI, s->held.host_input);
    place(w, WEFT_SLOT_HOST_T_M, s->held.host_middle);
    return WEFT_OK;
}

/* Allocates for sent rows; without an exchange they are at the experts already. */
static weft_status take_home(const work *w)
{
    if (w->m->dims.exchange)
        return weft_program_count_slots(w->program, WEFT_SLOT_HOME, -1) > 0
                   ? take(w, WEFT_SLOT_HOME, NULL)
                   : WEFT_OK;
    place(w, WEFT_SLOT_HOME, w->state->held.dispatched.data);
    return WEFT_OK;
}

static weft_status take_expert_rows(work *w, bool backward)
{
    const weft_moe_state *s = w->state;
    weft_dtype dtype = w->rows.dtype;
    size_t hidden = w->rows.dims[1];
    WEFT_TRY(weft_pass_scratch(w->pass, dtype, s->cut.max_rows, w->m->dims.ffn, &w->act));
    if (!s->cut.parts[0].order)
        return WEFT_OK;
    WEFT_TRY(weft_pass_scratch(w->pass, dtype, s->cut.max_rows, hidden, &w->ordered));
    return backward ? weft_pass_scratch(w->pass, dtype, s->cut.max_rows, hidden, &w->dordered)
                    : WEFT_OK;
}

/* Allocates for the experts' answers; without an exchange they are at home already. */
static weft_status take_answer(const work *w, weft_slot_kind holds)
{
    if (w->m->dims.exchange)
        return take(w, holds, NULL);
    place(w, holds, w->state->held.returned.data);
    return WEFT_OK;
}

/* Sets the slots' memory once sizes are known. */
static weft_status run_counts(void *context, const weft_task *task, weft_lane *lane)
{
    (void)task;
    work *w = context;
    WEFT_TRY_AS(lane, "counts", weft_moe_exchange_counts(w->m, w->pass, w->state, lane));
    WEFT_TRY(take_inputs(w, false));
    WEFT_TRY(take(w, WEFT_SLOT_RESULT, &w->state->held.returned));
    WEFT_TRY(take_home(w));
    WEFT_TRY(take_answer(w, WEFT_SLOT_T_DO));
    WEFT_TRY(take_staging(w));
    return take_expert_rows(w, false);
}

/* --- the whole ----------------------------------------------------------------------------- */

static const weft_task_function functions[WEFT_NUM_TASK_KINDS] = {
    [WEFT_TASK_COUNTS] = run_counts,     [WEFT_TASK_PERMUTE] = run_permute,
    [WEFT_TASK_DISPATCH] = run_dispatch, [WEFT_TASK_EXPERT] = run_expert,
    [WEFT_TASK_COMBINE] = run_combine,   [WEFT_TASK_RECOMPUTE] = run_expert,
    [WEFT_TASK_OFFLOAD] = run_copy,      [WEFT_TASK_PREFETCH] = run_copy,
};

static work *start(weft_moe *m, weft_pass *pass, weft_moe_state *state, const weft_tensor *rows,
                   bool backward)
{
    state->work = (work){.m = m,
                         .pass = pass,
                         .state = state,
                         .program = &state->whole->programs[backward],
                         .memory = state->whole->memory[pass->backward][backward],
                         .rows = *rows};
    return &state->work;
}

void weft_moe_begin_forward(weft_moe *m, weft_pass *pass, weft_moe_state *state,
                            const weft_tensor *rows)
{
    start(m, pass, state, rows, false);
}

weft_status weft_moe_begin_backward(weft_moe *m, weft_pass *pass, weft_moe_state *state,
                                    const weft_tensor *rows)
{
    work *w = start(m, pass, state, rows, true);
    WEFT_TRY(take_inputs(w, true));
    place(w, WEFT_SLOT_RESULT_GRADIENT, state->held.returned.data);
    WEFT_TRY(take_home(w));
    WEFT_TRY(take_answer(w, WEFT_SLOT_DT_DO));
    WEFT_TRY(
        take_answer(w, WEFT_SLOT_DT_DI)); /* in place: nobody needs dT_DO when dT_DI is written */
    WEFT_TRY(take_staging(w));
    WEFT_TRY(take_expert_rows(w, true));
    if (!weft_pass_defers(pass))
        return WEFT_OK;
    WEFT_TRY(
        weft_pass_deferred(pass, rows->dtype, state->cut.num_rows, m->dims.ffn, &state->held.act));
    return weft_pass_deferred(pass, rows->dtype, state->cut.num_rows, rows->dims[1],
                              &state->held.dout);
}

static weft_status run_noted(work *w, const weft_task *task, weft_lane *lane)
{
    const weft_note_scope scope = weft_note_task(lane, WEFT_INNER_EXPERTS, task->kind, task->flow);
    const weft_status status = functions[task->kind](w, task, lane);
    weft_note_leave(lane, scope);
    return status;
}

/* Inside the task that is under way. */
static weft_status run_inner(work *w, const weft_task *task, weft_lane *lane)
{
    static const int tracks[WEFT_NUM_LANES] = {
        [WEFT_LANE_COMPUTE] = WEFT_TRACK_EXPERTS,   [WEFT_LANE_TO_DEVICE] = WEFT_TRACK_UPLOADS,
        [WEFT_LANE_TO_HOST] = WEFT_TRACK_DOWNLOADS, [WEFT_LANE_HOST] = WEFT_TRACK_ACCUMULATIONS,
        [WEFT_LANE_FILE] = WEFT_LANE_FILE,          [WEFT_LANE_EXPERT] = WEFT_LANE_EXPERT,
        [WEFT_LANE_INSIDE] = WEFT_LANE_GATHER,      [WEFT_LANE_PLACE] = WEFT_LANE_PLACE};
    const int track = tracks[task->lane];
    size_t note;
    WEFT_TRY(weft_note_task_begin(w->pass, lane, task, track, &note));
    w->inner = task;
    WEFT_TRY(run_noted(w, w->outer, lane));
    w->inner = NULL;
    return weft_note_task_end(w->pass, lane, track, note);
}

/* On a timeline tasks of the compute lane are parts of the layer; the expert lane's are exchanges,
 * which have their chunks beside them. */
weft_status weft_moe_run_task(weft_moe_state *state, const weft_task *task, weft_lane *lane)
{
    static const int tracks[WEFT_NUM_LANES] = {[WEFT_LANE_COMPUTE] = WEFT_TRACK_PARTS,
                                               [WEFT_LANE_EXPERT] = WEFT_TRACK_EXCHANGE,
                                               [WEFT_LANE_OFFLOAD] = WEFT_NO_TRACK,
                                               [WEFT_LANE_PREFETCH] = WEFT_NO_TRACK};
    work *w = &state->work;
    const int track = tracks[task->lane];
    const bool ends = w->outer;
    if (weft_moe_is_chunk(task) || task->expert >= 0)
        return run_inner(w, task, lane);
    if (!ends)
        WEFT_TRY(weft_note_task_begin(w->pass, lane, task, track, &w->slice));
    if (!ends || task->kind == WEFT_TASK_EXPERT)
        WEFT_TRY(run_noted(w, task, lane));
    w->outer = !ends && has_inside(w, task) ? task : NULL;
    return w->outer ? WEFT_OK : weft_note_task_end(w->pass, lane, track, w->slice);
}

/* A partition's rows of a tensor of all. */
static weft_tensor part_of(const weft_moe_part *part, weft_tensor all)
{
    all.data = (char *)all.data + part->first_row * all.dims[1] * weft_dtype_bytes(all.dtype);
    all.dims[0] = part->num_rows;
    return all;
}

weft_status weft_moe_run_weights(weft_moe *m, weft_pass *pass, weft_moe_state *state, bool first)
{
    weft_moe_expert_rows r = {
        .act = state->held.act, .kept_act = state->held.act, .kept_dout = state->held.dout};
    for (int i = 0; i < state->cut.num_parts; i++) {
        r.part = &state->cut.parts[i];
        r.x = part_of(r.part, state->held.dispatched);
        r.middle = part_of(r.part, state->held.middle);
        r.act.dims[0] = r.part->num_rows;
        r.ordered = part_of(r.part, state->held.dout); /* the second product's have been read */
        const bool is_first = i == 0 || state->plan->pipeline.by_experts;
        const bool overwrite = is_first && weft_pass_overwrite(pass);
        WEFT_TRY(moe_experts_backward_weights(m, pass, &r, first, overwrite));
    }
    return WEFT_OK;
}
