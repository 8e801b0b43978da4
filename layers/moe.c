/* The mixture-of-experts layer: router, dispatch, experts, combine.
 *
 * Three ways for a token to reach its experts, by the mesh (weft_moe_dims):
 *   binding tp (PPMoE §3.3): every TP rank routes all S * B rows alike and selects by index those
 *     of its own experts; the region's exit sums what the ranks made.
 *   binding dp, etp = tp (DPMoE, tensor-sharded experts): every TP rank routes all rows, an
 *     all-to-all over EP carries them, each rank makes its shard's partial sum; exit sums.
 *   binding dp, etp = 1: every rank routes its own 1 / tp of the rows (its sequence shard, or its
 *     slice), an all-to-all over EP carries them; without sequence parallelism an all-gather over
 *     TP restores the slices.
 * In the first two the router's gradients are partial sums over TP, so the auxiliary losses'
 * gradients, which every TP rank knows whole, enter as 1 / tp. Experts have no biases. */
#include <stdlib.h>
#include <string.h>

#include "layers/mlp.h"
#include "layers/moe.h"

static void moe_describe(const weft_layer *layer, const weft_shape *shape, weft_layer_cost *out)
{
    const weft_moe *m = (const weft_moe *)layer;
    weft_describe_moe(&m->common.options, shape, out);
    if (m->shared) {
        weft_layer_cost child;
        m->shared->ops->describe(m->shared, shape, &child);
        weft_cost_add(out, &child);
    }
}

static weft_status moe_init(weft_layer *layer, weft_build *build)
{
    weft_moe *m = (weft_moe *)layer;
    const weft_model_options *o = &m->common.options;
    const weft_shape *shape = weft_build_shape(build);
    m->dims = weft_moe_dims_of(o, shape);
    const weft_moe_dims *d = &m->dims;
    size_t hidden = (size_t)o->hidden_size;
    if (d->ffn_all % (size_t)shape->etp != 0)
        return WEFT_ERROR(WEFT_CONFIG,
                          "expert width %zu does not divide by expert tensor parallel size %d",
                          d->ffn_all, shape->etp);
    if (!d->full && shape->seq * shape->batch % (size_t)shape->tp != 0)
        return WEFT_ERROR(WEFT_CONFIG,
                          "%zu tokens a micro-batch do not divide by tensor parallel size %d",
                          shape->seq * shape->batch, shape->tp);

    weft_parameter_spec spec = {.name = "router.weight",
                                .num_dims = 2,
                                .dims = {d->experts, hidden},
                                .init_std = (float)o->init_method_std,
                                .sum_over_tp = shape->tp > 1};
    WEFT_TRY(weft_build_parameter(build, &spec, &m->router));
    spec = (weft_parameter_spec){.name = "experts.linear_fc1.weight",
                                 .num_dims = 3,
                                 .dims = {d->experts, d->ffn_all, hidden},
                                 .split = {WEFT_SPLIT_EP, WEFT_SPLIT_ETP},
                                 .init_std = (float)o->init_method_std,
                                 .is_expert = true};
    if (o->swiglu)
        spec = (weft_parameter_spec){.name = "experts.linear_fc1.weight",
                                     .num_dims = 4,
                                     .dims = {d->experts, 2, d->ffn_all, hidden},
                                     .split = {WEFT_SPLIT_EP, WEFT_SPLIT_NONE, WEFT_SPLIT_ETP},
                                     .init_std = (float)o->init_method_std,
                                     .is_expert = true};
    WEFT_TRY(weft_build_parameter(build, &spec, &m->fc1));
    spec = (weft_parameter_spec){.name = "experts.linear_fc2.weight",
                                 .num_dims = 3,
                                 .dims = {d->experts, hidden, d->ffn_all},
                                 .split = {WEFT_SPLIT_EP, WEFT_SPLIT_NONE, WEFT_SPLIT_ETP},
                                 .init_std = weft_output_init_std(o),
                                 .is_expert = true};
    WEFT_TRY(weft_build_parameter(build, &spec, &m->fc2));
    return m->shared ? weft_build_child(build, "shared_experts.", m->shared) : WEFT_OK;
}

static int tp_rank_of(const weft_pass *pass)
{
    return weft_pass_groups(pass)->coords.at[WEFT_AXIS_TP];
}

/* The rows this rank routes, from the layer's input: all of them, or this rank's slice. */
static weft_status routed_rows(const weft_moe *m, weft_pass *pass, const weft_tensor *x,
                               weft_tensor *out)
{
    if (m->dims.full)
        return weft_pass_enter(pass, x, out);
    *out = *x;
    if (!weft_pass_shape(pass)->sequence_parallel) {
        out->dims[0] = m->dims.tokens;
        out->data = (char *)x->data + (size_t)tp_rank_of(pass) * weft_tensor_bytes(out);
    }
    return WEFT_OK;
}

/* Where this rank's part of the result goes, and how it becomes y. */
static weft_status result_rows(const weft_moe *m, weft_pass *pass, const weft_tensor *y,
                               weft_tensor *part)
{
    if (m->dims.full)
        return weft_pass_partial(pass, y, part);
    return routed_rows(m, pass, y, part);
}

static weft_status finish_rows(const weft_moe *m, weft_pass *pass, const weft_tensor *part,
                               weft_tensor *y)
{
    const weft_shape *shape = weft_pass_shape(pass);
    if (m->dims.full)
        return weft_pass_exit(pass, part, y);
    if (shape->sequence_parallel || shape->tp == 1)
        return WEFT_OK;
    return weft_all_gather(weft_pass_groups(pass)->by_axis[WEFT_AXIS_TP], weft_pass_lane(pass),
                           part->data, y->data, weft_tensor_count(part), y->dtype);
}

/* --- routing ------------------------------------------------------------------------------- */

typedef struct aux_args {
    weft_metrics *metrics;
    const float *sums;
    const int64_t *dropped;
    size_t experts;
    double tokens, topk, aux_coeff, z_coeff;
    bool count_losses, count_drops;
} aux_args;

/* On the lane: the auxiliary losses' values and the load, from the routing sums. */
static weft_status add_aux_metrics(const void *raw)
{
    const aux_args *a = raw;
    if (a->count_drops)
        a->metrics->dropped += (double)*a->dropped;
    if (!a->count_losses)
        return WEFT_OK;
    double balance = 0, most = 0, total = 0;
    for (size_t e = 0; e < a->experts; e++) {
        double count = a->sums[e];
        balance += count / (a->tokens * a->topk) * (a->sums[a->experts + e] / a->tokens);
        total += count;
        if (count > most)
            most = count;
    }
    a->metrics->aux_loss += a->aux_coeff * (double)a->experts * balance +
                            a->z_coeff * a->sums[2 * a->experts] / a->tokens;
    a->metrics->load_sum += total > 0 ? most * (double)a->experts / total : 1;
    a->metrics->load_count += 1;
    return WEFT_OK;
}

/* Router GEMM in fp32, selection, sums for the auxiliary losses. */
static weft_status route(weft_moe *m, weft_pass *pass, weft_moe_state *state,
                         const weft_tensor *rows)
{
    const weft_moe_dims *d = &m->dims;
    const weft_model_options *o = &m->common.options;
    const weft_shape *shape = weft_pass_shape(pass);
    weft_lane *lane = weft_pass_lane(pass);
    size_t tokens = d->tokens, topk = (size_t)o->moe_router_topk;
    void *sums;
    WEFT_TRY(weft_pass_stash(pass, WEFT_F32, tokens, d->experts, &state->logits));
    WEFT_TRY(weft_pass_stash(pass, WEFT_F32, tokens, d->experts, &state->scores));
    WEFT_TRY(weft_pass_stash(pass, WEFT_I32, tokens, topk, &state->index));
    WEFT_TRY(weft_pass_stash(pass, WEFT_F32, tokens, topk, &state->prob));
    WEFT_TRY(weft_pass_host(pass, (2 * d->experts + 1) * sizeof(float), &sums));
    state->sums = sums;
    WEFT_TRY(weft_lane_zero(lane, sums, (2 * d->experts + 1) * sizeof(float)));
    WEFT_TRY(weft_gemm(lane, &(weft_gemm_args){.m = tokens,
                                               .n = d->experts,
                                               .k = rows->dims[1],
                                               .transpose_b = true,
                                               .dtype = rows->dtype,
                                               .c_dtype = WEFT_F32,
                                               .a = rows->data,
                                               .b = m->router->weight.data,
                                               .c = state->logits.data,
                                               .alpha = 1}));
    WEFT_TRY(weft_route(lane, &(weft_route_args){.num_tokens = tokens,
                                                 .num_experts = d->experts,
                                                 .topk = topk,
                                                 .pre_softmax = o->moe_router_pre_softmax,
                                                 .logits = state->logits.data,
                                                 .scores = state->scores.data,
                                                 .top_index = state->index.data,
                                                 .top_prob = state->prob.data,
                                                 .counts = state->sums,
                                                 .score_sums = state->sums + d->experts,
                                                 .z_sum = state->sums + 2 * d->experts}));
    /* The losses are of the whole micro-batch, whoever routed its rows. */
    if (!d->full && shape->tp > 1)
        WEFT_TRY(weft_all_reduce(weft_pass_groups(pass)->by_axis[WEFT_AXIS_TP], lane, sums,
                                 2 * d->experts + 1, WEFT_F32, WEFT_REDUCE_SUM));
    return WEFT_OK;
}

static weft_status route_gradients(weft_moe *m, weft_pass *pass, weft_moe_state *state,
                                   const weft_tensor *rows, const weft_tensor *dprob,
                                   const weft_tensor *dx)
{
    const weft_moe_dims *d = &m->dims;
    const weft_model_options *o = &m->common.options;
    const weft_shape *shape = weft_pass_shape(pass);
    weft_lane *lane = weft_pass_lane(pass);
    double total = (double)(shape->seq * shape->batch), topk = (double)o->moe_router_topk;
    double scale = weft_pass_loss_scale(pass) / (d->full ? (double)shape->tp : 1.0);
    weft_tensor dlogits;
    WEFT_TRY(weft_pass_scratch(pass, WEFT_F32, d->tokens, d->experts, &dlogits));
    WEFT_TRY(weft_route_backward(
        lane, &(weft_route_backward_args){
                  .num_tokens = d->tokens,
                  .num_experts = d->experts,
                  .topk = (size_t)o->moe_router_topk,
                  .pre_softmax = o->moe_router_pre_softmax,
                  .logits = state->logits.data,
                  .scores = state->scores.data,
                  .top_index = state->index.data,
                  .top_prob = state->prob.data,
                  .dtop_prob = dprob->data,
                  .fraction = state->sums, /* counts: the scale makes fractions of them */
                  .aux_scale = (float)(o->moe_aux_loss_coeff * (double)d->experts / total /
                                       (total * topk) * scale),
                  .z_scale = (float)(o->moe_z_loss_coeff / total * scale),
                  .dlogits = dlogits.data}));
    /* The weight's gradient stays fp32 all through; dx is of the activations' precision. */
    weft_tensor rows32 = *rows, dlogits_act = dlogits;
    if (rows->dtype != WEFT_F32) {
        WEFT_TRY(weft_pass_scratch(pass, WEFT_F32, rows->dims[0], rows->dims[1], &rows32));
        WEFT_TRY(weft_cast(lane, &(weft_cast_args){.count = weft_tensor_count(rows),
                                                   .from_dtype = rows->dtype,
                                                   .to_dtype = WEFT_F32,
                                                   .from = rows->data,
                                                   .to = rows32.data}));
        WEFT_TRY(weft_pass_scratch(pass, rows->dtype, d->tokens, d->experts, &dlogits_act));
        WEFT_TRY(weft_cast(lane, &(weft_cast_args){.count = weft_tensor_count(&dlogits),
                                                   .from_dtype = WEFT_F32,
                                                   .to_dtype = rows->dtype,
                                                   .from = dlogits.data,
                                                   .to = dlogits_act.data}));
    }
    WEFT_TRY(weft_gemm(lane, &(weft_gemm_args){.m = d->experts,
                                               .n = rows->dims[1],
                                               .k = d->tokens,
                                               .transpose_a = true,
                                               .dtype = WEFT_F32,
                                               .c_dtype = WEFT_F32,
                                               .a = dlogits.data,
                                               .b = rows32.data,
                                               .c = m->router->grad,
                                               .alpha = 1,
                                               .beta = weft_pass_overwrite(pass) ? 0.0f : 1.0f}));
    return weft_gemm(lane, &(weft_gemm_args){.m = d->tokens,
                                             .n = rows->dims[1],
                                             .k = d->experts,
                                             .dtype = rows->dtype,
                                             .c_dtype = rows->dtype,
                                             .a = dlogits_act.data,
                                             .b = m->router->weight.data,
                                             .c = dx->data,
                                             .alpha = 1,
                                             .beta = 1});
}

/* --- dispatch ------------------------------------------------------------------------------ */

/* Sorts the choices by expert, exchanges the counts and gives the host all sizes. */
static weft_status plan(weft_moe *m, weft_pass *pass, weft_moe_state *state)
{
    const weft_moe_dims *d = &m->dims;
    const weft_model_options *o = &m->common.options;
    const weft_groups *groups = weft_pass_groups(pass);
    weft_lane *lane = weft_pass_lane(pass);
    weft_comm *ep = groups->by_axis[WEFT_AXIS_EP];
    size_t topk = (size_t)o->moe_router_topk, choices = d->tokens * topk;
    size_t num_peers = d->exchange ? (size_t)groups->mesh.ep : 1;
    /* With an exchange all choices are sorted, else only those of this rank's experts. */
    size_t first = d->exchange ? 0 : (size_t)groups->coords.at[WEFT_AXIS_EP] * d->local_experts;
    size_t planned = d->exchange ? d->experts : d->local_experts;
    size_t num_host = d->experts + 1 + num_peers * d->local_experts + d->local_experts + 1;
    void *host, *sizes;
    weft_tensor row_of, token_of, scratch;
    size_t mark = weft_pass_mark(pass);
    WEFT_TRY(weft_pass_host(pass, num_host * sizeof(int64_t), &host));
    WEFT_TRY(weft_pass_host(pass, 2 * num_peers * sizeof(size_t), &sizes));
    state->counts = host;
    state->received = state->counts + d->experts + 1;
    state->offsets = state->received + num_peers * d->local_experts;
    state->send_bytes = sizes;
    state->recv_bytes = state->send_bytes + num_peers;
    WEFT_TRY(weft_pass_stash(pass, WEFT_I32, d->tokens, topk, &row_of));
    WEFT_TRY(weft_pass_stash(pass, WEFT_I32, d->tokens, topk, &token_of));
    WEFT_TRY(weft_pass_scratch(pass, WEFT_I32, d->tokens, topk, &scratch));
    state->row_of = row_of.data;
    state->token_of = token_of.data;
    WEFT_TRY(weft_lane_zero(lane, state->counts, (d->experts + 1) * sizeof(int64_t)));
    WEFT_TRY(weft_dispatch_plan(
        lane, &(weft_dispatch_plan_args){.num_tokens = d->tokens,
                                         .num_experts = d->experts,
                                         .topk = topk,
                                         .first_expert = first,
                                         .num_local = planned,
                                         .capacity = d->capacity,
                                         .policy = (weft_drop_policy)o->moe_token_drop_policy,
                                         .top_index = state->index.data,
                                         .top_prob = state->prob.data,
                                         .counts = state->counts,
                                         .row_of = state->row_of,
                                         .token_of = state->token_of,
                                         .dropped = state->counts + d->experts,
                                         .scratch = scratch.data}));
    weft_pass_release(pass, mark);
    /* Every TP rank knows the losses' values: one counts them. Drops are of the rows routed here.
     */
    bool counts = tp_rank_of(pass) == 0;
    WEFT_TRY(weft_lane_submit(
        lane, "moe metrics", add_aux_metrics,
        &(aux_args){.metrics = weft_pass_metrics(pass),
                    .sums = state->sums,
                    .dropped = state->counts + d->experts,
                    .experts = d->experts,
                    .tokens = (double)(weft_pass_shape(pass)->seq * weft_pass_shape(pass)->batch),
                    .topk = (double)topk,
                    .aux_coeff = o->moe_aux_loss_coeff,
                    .z_coeff = o->moe_z_loss_coeff,
                    .count_losses = counts,
                    .count_drops = counts || !d->full},
        sizeof(aux_args)));
    for (size_t p = 0; p < num_peers; p++)
        state->send_bytes[p] = d->local_experts * sizeof(int64_t);
    if (d->exchange)
        WEFT_TRY(weft_all_to_all(ep, lane, state->counts, state->send_bytes, state->received,
                                 state->send_bytes));
    /* From here on sizes depend on the data: the host waits for them. */
    WEFT_TRY(weft_lane_sync(lane));
    if (!d->exchange)
        memcpy(state->received, state->counts + first, d->local_experts * sizeof(int64_t));

    size_t row_bytes =
        weft_pass_shape(pass)->hidden * weft_dtype_bytes(weft_pass_shape(pass)->dtype);
    state->num_sent = state->num_rows = 0;
    for (size_t p = 0; p < num_peers; p++) {
        int64_t sent = 0, received = 0;
        for (size_t e = 0; e < d->local_experts; e++) {
            sent += state->counts[(d->exchange ? p * d->local_experts : first) + e];
            received += state->received[p * d->local_experts + e];
        }
        state->send_bytes[p] = (size_t)sent * row_bytes;
        state->recv_bytes[p] = (size_t)received * row_bytes;
        state->num_sent += (size_t)sent;
        state->num_rows += (size_t)received;
    }
    if (choices < state->num_sent)
        return WEFT_ERROR(WEFT_INTERNAL, "dispatch plan keeps %zu of %zu choices", state->num_sent,
                          choices);
    return WEFT_OK;
}

/* Rows come sorted by sender, then expert; experts want theirs together. */
static weft_status order_rows(weft_moe *m, weft_pass *pass, weft_moe_state *state)
{
    size_t local = m->dims.local_experts;
    size_t peers = m->dims.exchange ? (size_t)weft_pass_groups(pass)->mesh.ep : 1;
    state->order = state->inverse = NULL;
    if (local > 1 && peers > 1) {
        void *memory;
        WEFT_TRY(weft_pass_host(pass, 2 * (state->num_rows + 1) * sizeof(int32_t), &memory));
        state->order = memory;
        state->inverse = state->order + state->num_rows + 1;
    }
    int64_t row = 0;
    for (size_t e = 0; e < local; e++) {
        state->offsets[e] = row;
        int64_t before = 0; /* rows of earlier senders and of this sender's earlier experts */
        for (size_t p = 0; p < peers; p++) {
            for (size_t f = 0; f < local; f++) {
                int64_t count = state->received[p * local + f];
                if (f == e)
                    for (int64_t i = 0; i < count; i++, row++)
                        if (state->order) {
                            state->order[row] = (int32_t)(before + i);
                            state->inverse[before + i] = (int32_t)row;
                        }
                before += count;
                if (f == e && !state->order)
                    row = state->offsets[e] + count;
            }
        }
    }
    state->offsets[local] = (int64_t)state->num_rows;
    return WEFT_OK;
}

static weft_status select_rows(weft_pass *pass, const weft_tensor *from, const int32_t *index,
                               weft_tensor *to)
{
    if (to->dims[0] == 0)
        return WEFT_OK;
    return weft_permute(weft_pass_lane(pass), &(weft_permute_args){.num_rows = to->dims[0],
                                                                   .cols = to->dims[1],
                                                                   .dtype = to->dtype,
                                                                   .x = from->data,
                                                                   .token_of = index,
                                                                   .rows = to->data});
}

/* Rows in sending order at home -> expert-major rows at the experts. `to` is written; uses scratch.
 */
static weft_status to_experts(weft_pass *pass, weft_moe_state *state, const weft_tensor *home,
                              weft_tensor *to)
{
    weft_tensor arrived = *to;
    if (state->order)
        WEFT_TRY(weft_pass_scratch(pass, to->dtype, to->dims[0], to->dims[1], &arrived));
    WEFT_TRY(weft_all_to_all(weft_pass_groups(pass)->by_axis[WEFT_AXIS_EP], weft_pass_lane(pass),
                             home->data, state->send_bytes, arrived.data, state->recv_bytes));
    return state->order ? select_rows(pass, &arrived, state->order, to) : WEFT_OK;
}

static weft_status to_home(weft_pass *pass, weft_moe_state *state, const weft_tensor *expert,
                           weft_tensor *to)
{
    weft_tensor leaving = *expert;
    if (state->order) {
        WEFT_TRY(weft_pass_scratch(pass, to->dtype, expert->dims[0], expert->dims[1], &leaving));
        WEFT_TRY(select_rows(pass, expert, state->inverse, &leaving));
    }
    return weft_all_to_all(weft_pass_groups(pass)->by_axis[WEFT_AXIS_EP], weft_pass_lane(pass),
                           leaving.data, state->recv_bytes, to->data, state->send_bytes);
}

/* --- experts ------------------------------------------------------------------------------- */

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

static weft_status experts_forward(weft_moe *m, weft_pass *pass, weft_moe_state *state)
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
static weft_status experts_backward(weft_moe *m, weft_pass *pass, weft_moe_state *state,
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

/* --- the layer ----------------------------------------------------------------------------- */

static weft_status moe_forward(weft_layer *layer, weft_pass *pass, const weft_tensor *x,
                               weft_tensor *y)
{
    weft_moe *m = (weft_moe *)layer;
    weft_moe_state *state = weft_pass_state(pass, layer);
    const weft_moe_dims *d = &m->dims;
    size_t mark = weft_pass_mark(pass), hidden = x->dims[1];
    weft_tensor rows, sorted, part;
    state->x = *x;
    WEFT_TRY(routed_rows(m, pass, x, &rows));
    WEFT_TRY(route(m, pass, state, &rows));
    WEFT_TRY(plan(m, pass, state));
    WEFT_TRY(order_rows(m, pass, state));

    WEFT_TRY(weft_pass_stash(pass, x->dtype, state->num_rows, hidden, &state->in));
    WEFT_TRY(weft_pass_stash(pass, x->dtype, state->num_sent, hidden, &state->returned));
    state->out = state->returned;
    if (d->exchange) {
        WEFT_TRY(weft_pass_scratch(pass, x->dtype, state->num_sent, hidden, &sorted));
        WEFT_TRY(select_rows(pass, &rows, state->token_of, &sorted));
        WEFT_TRY(to_experts(pass, state, &sorted, &state->in));
        WEFT_TRY(weft_pass_scratch(pass, x->dtype, state->num_rows, hidden, &state->out));
    } else {
        WEFT_TRY(select_rows(pass, &rows, state->token_of, &state->in));
    }
    WEFT_TRY(experts_forward(m, pass, state));
    if (d->exchange)
        WEFT_TRY(to_home(pass, state, &state->out, &state->returned));

    WEFT_TRY(result_rows(m, pass, y, &part));
    WEFT_TRY(weft_combine(weft_pass_lane(pass),
                          &(weft_combine_args){.num_tokens = d->tokens,
                                               .topk = (size_t)m->common.options.moe_router_topk,
                                               .cols = hidden,
                                               .dtype = x->dtype,
                                               .rows = state->returned.data,
                                               .row_of = state->row_of,
                                               .top_prob = state->prob.data,
                                               .y = part.data}));
    WEFT_TRY(finish_rows(m, pass, &part, y));
    if (m->shared) {
        weft_tensor shared;
        WEFT_TRY(weft_pass_scratch(pass, x->dtype, x->dims[0], hidden, &shared));
        WEFT_TRY(m->shared->ops->forward(m->shared, pass, x, &shared));
        WEFT_TRY(weft_add(weft_pass_lane(pass), &(weft_add_args){.count = weft_tensor_count(y),
                                                                 .dtype = y->dtype,
                                                                 .a = y->data,
                                                                 .b = shared.data,
                                                                 .y = y->data}));
    }
    weft_pass_release(pass, mark);
    return WEFT_OK;
}

static weft_status moe_backward(weft_layer *layer, weft_pass *pass, const weft_tensor *dy,
                                weft_tensor *dx)
{
    weft_moe *m = (weft_moe *)layer;
    weft_moe_state *state = weft_pass_state(pass, layer);
    const weft_moe_dims *d = &m->dims;
    weft_lane *lane = weft_pass_lane(pass);
    size_t mark = weft_pass_mark(pass), hidden = dy->dims[1];
    size_t topk = (size_t)m->common.options.moe_router_topk;
    weft_tensor dy_rows, dprob, dout, din, dhome, rows, part;
    WEFT_TRY(routed_rows(m, pass, dy, &dy_rows));
    WEFT_TRY(weft_pass_scratch(pass, WEFT_F32, d->tokens, topk, &dprob));
    WEFT_TRY(
        weft_combine_backward(lane, &(weft_combine_backward_args){.num_tokens = d->tokens,
                                                                  .topk = topk,
                                                                  .cols = hidden,
                                                                  .dtype = dy->dtype,
                                                                  .dy = dy_rows.data,
                                                                  .rows = state->returned.data,
                                                                  .row_of = state->row_of,
                                                                  .top_prob = state->prob.data,
                                                                  .drows = state->returned.data,
                                                                  .dtop_prob = dprob.data}));
    dout = state->returned;
    if (d->exchange) {
        WEFT_TRY(weft_pass_scratch(pass, dy->dtype, state->num_rows, hidden, &dout));
        WEFT_TRY(to_experts(pass, state, &state->returned, &dout));
    }
    WEFT_TRY(weft_pass_scratch(pass, dy->dtype, state->num_rows, hidden, &din));
    WEFT_TRY(experts_backward(m, pass, state, &dout, &din));
    dhome = din;
    if (d->exchange) {
        dhome = state->returned;
        WEFT_TRY(to_home(pass, state, &din, &dhome));
    }
    WEFT_TRY(result_rows(m, pass, dx, &part));
    WEFT_TRY(weft_permute_backward(lane, &(weft_permute_backward_args){.num_tokens = d->tokens,
                                                                       .topk = topk,
                                                                       .cols = hidden,
                                                                       .dtype = dy->dtype,
                                                                       .drows = dhome.data,
                                                                       .row_of = state->row_of,
                                                                       .dx = part.data}));
    WEFT_TRY(routed_rows(m, pass, &state->x, &rows));
    WEFT_TRY(route_gradients(m, pass, state, &rows, &dprob, &part));
    WEFT_TRY(finish_rows(m, pass, &part, dx));
    if (m->shared) {
        weft_tensor shared;
        WEFT_TRY(weft_pass_scratch(pass, dx->dtype, dx->dims[0], hidden, &shared));
        WEFT_TRY(m->shared->ops->backward(m->shared, pass, dy, &shared));
        WEFT_TRY(weft_add(lane, &(weft_add_args){.count = weft_tensor_count(dx),
                                                 .dtype = dx->dtype,
                                                 .a = dx->data,
                                                 .b = shared.data,
                                                 .y = dx->data}));
    }
    weft_pass_release(pass, mark);
    return WEFT_OK;
}

static void moe_destroy(weft_layer *layer)
{
    weft_layer_destroy(((weft_moe *)layer)->shared);
    free(layer);
}

const weft_layer_ops weft_moe_ops = {
    .kind = "moe",
    .state_bytes = sizeof(weft_moe_state),
    .describe = moe_describe,
    .init = moe_init,
    .forward = moe_forward,
    .backward = moe_backward,
    .destroy = moe_destroy,
};

weft_layer *weft_moe_create(const weft_model_options *options)
{
    weft_moe *m = (weft_moe *)weft_layer_new(&weft_moe_ops, sizeof *m, options);
    if (m && options->moe_shared_expert_intermediate_size > 0) {
        m->shared =
            weft_mlp_create_wide(options, (size_t)options->moe_shared_expert_intermediate_size);
        if (!m->shared) {
            weft_layer_free(&m->common.base);
            return NULL;
        }
    }
    return (weft_layer *)m;
}
