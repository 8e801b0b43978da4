/* The router: a GEMM in fp32, the choice of experts, the auxiliary losses, and backward.
 *
 * Switch Transformer's load-balancing loss (Fedus et al. 2021, eq. 4) over each micro-batch's
 * tokens, each sequence's (DeepSeek-V2), or with the load of the global batch (Qiu et al. 2025,
 * Demons in the detail); and ST-MoE's z-loss (Zoph et al. 2022, eq. 5).
 *
 * A micro-batch's backward may come before the next one's forward, so the load of the global batch
 * is, as in Megatron-LM, the mean over the micro-batches of all replicas until this one. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "layers/moe/internal.h"
#include "layers/pass/pass.h"

/* Far above differences of logits, so that it decides the choice; equal for all chosen, so that
 * their probabilities are the logits' own. */
static const float forced_logit = 1000;

static size_t forced_bytes(const weft_moe *m)
{
    return m->dims.tokens * m->dims.experts * sizeof(float);
}

weft_status weft_moe_force_load(weft_moe *m, weft_device *device)
{
    size_t experts = m->dims.experts, topk = (size_t)m->common.options.moe_router_topk, next = 0;
    double load = m->common.options.moe_router_forced_load * (double)topk / (double)experts;
    void *memory;
    WEFT_TRY(weft_device_alloc_for(device, WEFT_SPACE_PINNED, WEFT_MEMORY_PINNED, forced_bytes(m),
                                   "forced logits", &memory));
    m->device = device;
    m->forced = memory;
    memset(m->forced, 0, forced_bytes(m));
    load = topk == experts ? 1 : fmin(load, 1);
    for (size_t t = 0; t < m->dims.tokens; t++) {
        float *logits = m->forced + t * experts;
        size_t first = floor((double)(t + 1) * load) > floor((double)t * load);
        if (first > 0)
            logits[0] = forced_logit;
        for (size_t k = first; k < topk; k++) /* the others in turn */
            logits[1 + next++ % (experts - 1)] = forced_logit;
    }
    return WEFT_OK;
}

void weft_moe_release_forced(weft_moe *m)
{
    if (m->forced)
        weft_device_free(m->device, WEFT_SPACE_PINNED, m->forced, forced_bytes(m));
    if (m->own_row)
        weft_device_free(m->device, WEFT_SPACE_PINNED, m->own_row,
                         m->num_own_rows * sizeof *m->own_row);
    free(m->load);
    if (m->balanced)
        weft_device_free(m->device, WEFT_SPACE_PINNED, m->balanced,
                         m->dims.experts * sizeof *m->balanced);
}

/* --- the bias of the choice (Wang et al. 2024, Auxiliary-loss-free load balancing) ------------ */

weft_status weft_moe_declare_bias(weft_moe *m, weft_build *build)
{
    const weft_model_options *o = &m->common.options;
    const weft_shape *shape = weft_build_shape(build);
    const size_t experts = m->dims.experts;
    void *memory;
    if (!o->moe_router_enable_expert_bias)
        return WEFT_OK;
    const weft_parameter_spec spec =
        WEFT_ARGS(weft_parameter_spec, .name = "router.expert_bias", .num_dims = 1,
                  .dims = {experts}, .init = WEFT_INIT_ZERO, .no_weight_decay = true,
                  .sign_rate = (float)o->moe_router_bias_update_rate);
    WEFT_TRY(weft_build_parameter(build, &spec, &m->expert_bias));
    m->device = weft_build_device(build);
    WEFT_TRY(weft_device_alloc_for(m->device, WEFT_SPACE_PINNED, WEFT_MEMORY_PINNED,
                                   experts * sizeof *m->balanced, "a balanced load", &memory));
    m->balanced = memory;
    m->counts_load = weft_build_coords(build)->cp.at == 0;
    for (size_t e = 0; e < experts; e++)
        m->balanced[e] = !m->counts_load ? 0
                                         : -(float)((double)(shape->seq * shape->batch) *
                                                    (double)o->moe_router_topk / (double)experts);
    return WEFT_OK;
}

/* The bias in fp32; NULL: none. */
static weft_status bias_of(const weft_moe *m, weft_pass *pass, const float **out)
{
    const size_t experts = m->dims.experts;
    weft_tensor bias32;
    *out = NULL;
    if (!m->expert_bias)
        return WEFT_OK;
    const weft_tensor *bias = &m->expert_bias->weight;
    *out = bias->data;
    if (bias->dtype == WEFT_F32)
        return WEFT_OK;
    WEFT_TRY(weft_pass_scratch(pass, WEFT_F32, experts, 1, &bias32));
    *out = bias32.data;
    return weft_cast(weft_pass_lane(pass),
                     &WEFT_ARGS(weft_cast_args, .count = experts, .from_dtype = bias->dtype,
                                .to_dtype = WEFT_F32, .from = bias->data, .to = bias32.data));
}

/* The micro-batch's load [E], of all its sequences. */
static weft_status load_of(const weft_moe *m, weft_pass *pass, const weft_moe_routing *routing,
                           const float **out)
{
    const size_t sequences = weft_moe_num_sequences(&m->common.options, weft_pass_shape(pass));
    weft_tensor load;
    *out = routing->sums;
    if (sequences == 1)
        return WEFT_OK;
    WEFT_TRY(weft_pass_scratch(pass, WEFT_F32, m->dims.experts, 1, &load));
    *out = load.data;
    return weft_bias_gradient(weft_pass_lane(pass),
                              &WEFT_ARGS(weft_bias_gradient_args, .rows = sequences,
                                         .cols = m->dims.experts, .dtype = WEFT_F32,
                                         .dy = routing->sums, .db = load.data, .overwrite = true));
}

/* What stands for its gradient is the micro-batch's load over a balanced one: summed as gradients
 * are, that of the step. Its sign alone is used. Of context-parallel ranks, which all know the load
 * of the whole micro-batch, the first one counts it; to the others both loads are 0. */
static weft_status bias_backward(const weft_moe *m, weft_pass *pass,
                                 const weft_moe_routing *routing)
{
    weft_lane *lane = weft_pass_lane(pass);
    if (!m->expert_bias)
        return WEFT_OK;
    float *grad = m->expert_bias->grad;
    const float *counts;
    WEFT_TRY(load_of(m, pass, routing, &counts));
    if (!m->counts_load)
        counts = m->balanced;
    const weft_add_args load =
        WEFT_ARGS(weft_add_args, .count = m->dims.experts, .dtype = WEFT_F32, .a = counts,
                  .b = weft_pass_overwrite(pass) ? m->balanced : grad, .y = grad);
    WEFT_TRY(weft_add(lane, &load));
    if (weft_pass_overwrite(pass))
        return WEFT_OK;
    return weft_add(lane, &WEFT_ARGS(weft_add_args, .count = m->dims.experts, .dtype = WEFT_F32,
                                     .a = grad, .b = m->balanced, .y = grad));
}

/* --------------------------------------------------------------------------------------------- */

static bool is_sigmoid(const weft_model_options *o)
{
    return o->moe_router_score_function == WEFT_ROUTER_SIGMOID;
}

/* 0: nothing is multiplied. */
static float scale_of(const weft_model_options *o)
{
    return o->moe_router_topk_scaling_factor == 1 ? 0 : (float)o->moe_router_topk_scaling_factor;
}

size_t weft_moe_num_sequences(const weft_model_options *o, const weft_shape *shape)
{
    return o->moe_router_load_balancing_type == WEFT_BALANCE_SEQUENCE && o->moe_aux_loss_coeff > 0
               ? shape->batch
               : 1;
}

static bool is_global(const weft_model_options *o)
{
    return o->moe_router_load_balancing_type == WEFT_BALANCE_GLOBAL_BATCH &&
           o->moe_aux_loss_coeff > 0;
}

/* routing->load: the micro-batch's, over all replicas. A repeated forward finds the mean there that
 * the first one left. */
static weft_status spread_load(const weft_moe *m, weft_pass *pass, weft_moe_routing *routing)
{
    const size_t experts = m->dims.experts;
    const weft_groups *groups = weft_pass_groups(pass);
    weft_lane *lane = weft_pass_lane(pass);
    void *load;
    if (!is_global(&m->common.options))
        return WEFT_OK;
    WEFT_TRY(weft_pass_host(pass, experts * sizeof(float), &load));
    routing->load = load;
    if (weft_pass_repeats(pass))
        return WEFT_OK;
    WEFT_TRY(weft_lane_copy(lane, load, routing->sums, experts * sizeof(float)));
    return groups->mesh.dp == 1 ? WEFT_OK
                                : weft_all_reduce(groups->by_axis[WEFT_AXIS_DP], lane, load,
                                                  experts, WEFT_F32, WEFT_REDUCE_SUM);
}

/* Runs the router's GEMM in fp32, the choice, and sums for the auxiliary losses. */
weft_status weft_moe_route(weft_moe *m, weft_pass *pass, weft_moe_routing *routing,
                           const weft_tensor *rows)
{
    const weft_moe_dims *d = &m->dims;
    const weft_model_options *o = &m->common.options;
    const weft_shape *shape = weft_pass_shape(pass);
    weft_lane *lane = weft_pass_lane(pass);
    size_t tokens = d->tokens, topk = (size_t)o->moe_router_topk;
    const size_t sequences = weft_moe_num_sequences(o, shape),
                 num_sums = sequences * (2 * d->experts + 1);
    const float *bias;
    void *sums;
    WEFT_TRY(bias_of(m, pass, &bias));
    WEFT_TRY(weft_pass_stash(pass, WEFT_F32, tokens, d->experts, &routing->logits));
    WEFT_TRY(weft_pass_stash(pass, WEFT_F32, tokens, d->experts, &routing->scores));
    WEFT_TRY(weft_pass_stash(pass, WEFT_I32, tokens, topk, &routing->index));
    WEFT_TRY(weft_pass_stash(pass, WEFT_F32, tokens, topk, &routing->prob));
    WEFT_TRY(weft_pass_host(pass, num_sums * sizeof(float), &sums));
    routing->sums = sums;
    WEFT_TRY(weft_lane_zero(lane, sums, num_sums * sizeof(float)));
    if (m->forced)
        WEFT_TRY(weft_lane_copy(lane, routing->logits.data, m->forced, forced_bytes(m)));
    WEFT_TRY(weft_gemm(
        lane, &WEFT_ARGS(weft_gemm_args, .m = tokens, .n = d->experts, .k = rows->dims[1],
                         .transpose_b = true, .dtype = rows->dtype, .c_dtype = WEFT_F32,
                         .a = rows->data, .b = m->router.weight->weight.data,
                         .c = routing->logits.data, .alpha = 1, .beta = m->forced ? 1.0f : 0.0f,
                         .bias = m->router.bias ? m->router.bias->weight.data : NULL)));
    WEFT_TRY(weft_route(
        lane,
        &WEFT_ARGS(weft_route_args, .num_tokens = tokens, .num_experts = d->experts, .topk = topk,
                   .pre_softmax = o->moe_router_pre_softmax, .logits = routing->logits.data,
                   .scores = routing->scores.data, .top_index = routing->index.data,
                   .top_prob = routing->prob.data, .counts = routing->sums,
                   .score_sums = routing->sums + sequences * d->experts,
                   .z_sum = routing->sums + 2 * sequences * d->experts, .num_sequences = sequences,
                   .sigmoid = is_sigmoid(o), .bias = bias,
                   .num_groups = (size_t)o->moe_router_num_groups,
                   .group_topk = (size_t)o->moe_router_group_topk, .scale = scale_of(o))));
    /* The losses cover the whole micro-batch, whichever ranks routed its rows. */
    if (!d->full && shape->tp > 1)
        WEFT_TRY(weft_all_reduce(weft_pass_groups(pass)->by_axis[WEFT_AXIS_TP], lane, sums,
                                 num_sums, WEFT_F32, WEFT_REDUCE_SUM));
    if (shape->cp > 1)
        WEFT_TRY(weft_all_reduce(weft_pass_groups(pass)->by_axis[WEFT_AXIS_CP], lane, sums,
                                 num_sums, WEFT_F32, WEFT_REDUCE_SUM));
    return spread_load(m, pass, routing);
}

/* The mean until this micro-batch takes the place of its load. */
static weft_status average_load(weft_moe *m, weft_pass *pass, weft_moe_routing *routing)
{
    const size_t experts = m->dims.experts;
    const double replicas = (double)weft_pass_groups(pass)->mesh.dp;
    if (!is_global(&m->common.options))
        return WEFT_OK;
    if (!m->load) /* in the first step */
        m->load = calloc(experts, sizeof *m->load);
    if (!m->load)
        return WEFT_ERROR(WEFT_MEMORY, "out of memory for the load of %zu experts", experts);
    if (weft_pass_overwrite(pass)) {
        m->num_loads = 0;
        memset(m->load, 0, experts * sizeof *m->load);
    }
    m->num_loads++;
    for (size_t e = 0; e < experts; e++) {
        m->load[e] += (double)routing->load[e];
        routing->load[e] = (float)(m->load[e] / (replicas * m->num_loads));
    }
    return WEFT_OK;
}

/* The losses of a micro-batch's sequences of `tokens` tokens each; of each expert's share of the
 * choices and mean score. */
static double loss_of(const weft_moe *m, const weft_moe_routing *routing, size_t sequences,
                      double tokens)
{
    const weft_model_options *o = &m->common.options;
    const size_t experts = m->dims.experts;
    const float *loads = is_global(o) ? routing->load : routing->sums,
                *scores = routing->sums + sequences * experts, *z = scores + sequences * experts;
    double balance = 0, z_sum = 0;
    for (size_t i = 0; i < sequences * experts; i++)
        balance +=
            (double)loads[i] / (tokens * (double)o->moe_router_topk) * ((double)scores[i] / tokens);
    for (size_t s = 0; s < sequences; s++)
        z_sum += (double)z[s];
    return (o->moe_aux_loss_coeff * (double)experts * balance +
            o->moe_z_loss_coeff * z_sum / tokens) /
           (double)sequences;
}

weft_status weft_moe_count(weft_moe *m, weft_pass *pass, weft_moe_state *state)
{
    weft_moe_routing *routing = &state->routing;
    const weft_shape *shape = weft_pass_shape(pass);
    weft_metrics *metrics = weft_pass_metrics(pass);
    const size_t sequences = weft_moe_num_sequences(&m->common.options, shape);
    /* Every TP and CP rank knows the losses, and one counts them. Drops count rows routed here. */
    const int *at = weft_pass_groups(pass)->coords.at;
    bool counts_losses = at[WEFT_AXIS_TP] == 0 && at[WEFT_AXIS_CP] == 0;
    WEFT_TRY(average_load(m, pass, routing));
    if (at[WEFT_AXIS_TP] == 0 || !m->dims.full)
        metrics->dropped += (double)state->sorted.counts[m->dims.experts];
    if (!counts_losses)
        return WEFT_OK;
    double most = 0, total = 0, *choices = pass->model->sums.expert_choices;
    if (choices)
        choices += (size_t)m->layer * m->dims.experts;
    for (size_t e = 0; e < m->dims.experts; e++) {
        double count = 0;
        for (size_t s = 0; s < sequences; s++)
            count += (double)routing->sums[s * m->dims.experts + e];
        if (choices)
            choices[e] += count;
        total += count;
        most = fmax(most, count);
    }
    metrics->aux_loss +=
        loss_of(m, routing, sequences, (double)(shape->seq * shape->batch) / (double)sequences);
    metrics->load_sum += total > 0 ? most * (double)m->dims.experts / total : 1;
    metrics->load_count += 1;
    return WEFT_OK;
}

/* The weight's gradient stays fp32 all through. */
static weft_status logits_backward_weights(weft_pass *pass, const weft_linear *router,
                                           const weft_tensor *rows, const weft_tensor *dlogits)
{
    weft_lane *lane = weft_pass_lane(pass);
    weft_tensor rows32 = *rows;
    if (rows->dtype != WEFT_F32) {
        WEFT_TRY(weft_pass_scratch(pass, WEFT_F32, rows->dims[0], rows->dims[1], &rows32));
        WEFT_TRY(weft_cast(lane, &WEFT_ARGS(weft_cast_args, .count = weft_tensor_count(rows),
                                            .from_dtype = rows->dtype, .to_dtype = WEFT_F32,
                                            .from = rows->data, .to = rows32.data)));
    }
    WEFT_TRY(weft_gemm(lane, &WEFT_ARGS(weft_gemm_args, .m = router->out, .n = rows->dims[1],
                                        .k = rows->dims[0], .transpose_a = true, .dtype = WEFT_F32,
                                        .c_dtype = WEFT_F32, .a = dlogits->data, .b = rows32.data,
                                        .c = router->weight->grad, .alpha = 1,
                                        .beta = weft_pass_overwrite(pass) ? 0.0f : 1.0f)));
    return router->bias
               ? weft_bias_gradient(lane, &WEFT_ARGS(weft_bias_gradient_args, .rows = rows->dims[0],
                                                     .cols = router->out, .dtype = WEFT_F32,
                                                     .dy = dlogits->data, .db = router->bias->grad,
                                                     .overwrite = weft_pass_overwrite(pass)))
               : WEFT_OK;
}

/* dx is of the activations' precision. */
static weft_status logits_backward_input(weft_pass *pass, const weft_linear *router,
                                         const weft_tensor *rows, const weft_tensor *dlogits,
                                         const weft_tensor *dx)
{
    weft_lane *lane = weft_pass_lane(pass);
    weft_tensor dlogits_act = *dlogits;
    if (rows->dtype != WEFT_F32) {
        WEFT_TRY(weft_pass_scratch(pass, rows->dtype, rows->dims[0], router->out, &dlogits_act));
        WEFT_TRY(weft_cast(lane, &WEFT_ARGS(weft_cast_args, .count = weft_tensor_count(dlogits),
                                            .from_dtype = WEFT_F32, .to_dtype = rows->dtype,
                                            .from = dlogits->data, .to = dlogits_act.data)));
    }
    return weft_gemm(
        lane, &WEFT_ARGS(weft_gemm_args, .m = rows->dims[0], .n = rows->dims[1], .k = router->out,
                         .dtype = rows->dtype, .c_dtype = rows->dtype, .a = dlogits_act.data,
                         .b = router->weight->weight.data, .c = dx->data, .alpha = 1, .beta = 1));
}

weft_status weft_moe_logits_backward(weft_pass *pass, const weft_linear *router,
                                     const weft_tensor *rows, const weft_tensor *dlogits,
                                     const weft_tensor *dx)
{
    WEFT_TRY(logits_backward_weights(pass, router, rows, dlogits));
    return logits_backward_input(pass, router, rows, dlogits, dx);
}

weft_status weft_moe_route_backward(weft_moe *m, weft_pass *pass, weft_moe_routing *routing,
                                    const weft_tensor *rows, const weft_tensor *dprob,
                                    const weft_tensor *dx)
{
    const weft_moe_dims *d = &m->dims;
    const weft_model_options *o = &m->common.options;
    const weft_shape *shape = weft_pass_shape(pass);
    weft_lane *lane = weft_pass_lane(pass);
    double total = (double)(shape->seq * shape->batch), topk = (double)o->moe_router_topk;
    double scale = weft_pass_loss_scale(pass) / (d->full && !d->summed ? (double)shape->tp : 1.0);
    const size_t sequences = weft_moe_num_sequences(o, shape);
    weft_tensor dlogits;
    WEFT_TRY((weft_pass_defers(pass) ? weft_pass_deferred : weft_pass_scratch)(
        pass, WEFT_F32, d->tokens, d->experts, &dlogits));
    WEFT_TRY(weft_route_backward(
        lane, &WEFT_ARGS(weft_route_backward_args, .num_tokens = d->tokens,
                         .num_experts = d->experts, .topk = (size_t)o->moe_router_topk,
                         .pre_softmax = o->moe_router_pre_softmax, .logits = routing->logits.data,
                         .scores = routing->scores.data, .top_index = routing->index.data,
                         .top_prob = routing->prob.data, .dtop_prob = dprob->data,
                         /* counts, which the scale turns into fractions */
                         .fraction = is_global(o) ? routing->load : routing->sums,
                         .num_sequences = sequences,
                         .aux_scale = (float)(o->moe_aux_loss_coeff * (double)d->experts / total /
                                              (total * topk) * scale * (double)sequences),
                         .z_scale = (float)(o->moe_z_loss_coeff / total * scale),
                         .dlogits = dlogits.data, .sigmoid = is_sigmoid(o),
                         .biased = m->expert_bias || o->moe_router_num_groups > 0,
                         .scale = scale_of(o))));
    WEFT_TRY(bias_backward(m, pass, routing));
    routing->dlogits = dlogits;
    if (!weft_pass_defers(pass))
        WEFT_TRY(weft_moe_route_weights(m, pass, routing, rows));
    return logits_backward_input(pass, &m->router, rows, &dlogits, dx);
}

weft_status weft_moe_route_weights(weft_moe *m, weft_pass *pass, const weft_moe_routing *routing,
                                   const weft_tensor *rows)
{
    return logits_backward_weights(pass, &m->router, rows, &routing->dlogits);
}
