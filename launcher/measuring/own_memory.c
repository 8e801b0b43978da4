/* The kernels of the layers' modules that are bound by memory. */
#include <string.h>

#include "launcher/measuring/own_kernels.h"
#include "layers/layers.h"

typedef weft_own_rig rig;

static bool ends(const char *text, const char *end)
{
    const size_t length = strlen(text), part = strlen(end);
    return length >= part && strcmp(text + length - part, end) == 0;
}

static weft_status embedding(rig *r, const weft_operation *o, int number)
{
    const size_t tokens = r->dims.rows_full, hidden = r->shape->hidden;
    const bool positions = weft_own_is(o, "positions");
    const bool learned = r->options->position_embedding_type == WEFT_POSITION_LEARNED;
    const bool tied = !r->options->untie_embeddings_and_output_weights && r->shape->pp == 1;
    if (o->phase == WEFT_PHASE_FORWARD)
        return weft_embedding_forward(
            r->lane, &WEFT_ARGS(weft_embedding_forward_args, .num_tokens = tokens,
                                .batch = r->shape->batch, .cols = hidden, .tokens = r->tokens,
                                .num_rows = r->dims.vocab_rows, .dtype = r->shape->dtype,
                                .table = weft_own_walk(&r->stored,
                                                       r->dims.vocab_rows * weft_own_row_bytes(r)),
                                .positions = learned ? r->fresh[1] : NULL,
                                .y = weft_own_walk(&r->results, tokens * weft_own_row_bytes(r))));
    weft_embedding_backward_args args = WEFT_ARGS(
        weft_embedding_backward_args, .num_tokens = tokens, .batch = r->shape->batch,
        .cols = hidden, .tokens = r->tokens, .num_rows = r->dims.vocab_rows,
        .dtype = r->shape->dtype, .dy = r->fresh[0], .overwrite = weft_own_overwrites(r, number));
    if (positions) {
        args.num_positions =
            weft_or_else(r->options->max_position_embeddings, r->options->seq_length);
        args.dpositions = weft_own_walk(&r->gradients, args.num_positions * hidden * sizeof(float));
    } else {
        args.overwrite = args.overwrite && !tied;
        args.dtable = weft_own_walk(&r->gradients, args.num_rows * hidden * sizeof(float));
    }
    return weft_embedding_backward(r->lane, &args);
}

static weft_status norm(rig *r, const weft_operation *o, int number)
{
    const bool rms = r->options->normalization == WEFT_RMSNORM,
               last = weft_own_is(o, "final_layernorm");
    const bool sums = weft_own_is(o, "pre_mlp_layernorm") && o->phase == WEFT_PHASE_FORWARD;
    const bool backward = o->phase == WEFT_PHASE_INPUT_GRADIENT;
    const size_t times = backward ? (last ? 3 : 4) : sums ? 4 : 2;
    const size_t rows = o->bytes / times / weft_own_row_bytes(r),
                 bytes = rows * weft_own_row_bytes(r);
    const weft_norm_kind kind = rms ? WEFT_NORM_RMS : WEFT_NORM_LAYER;
    const weft_dtype dtype = r->shape->dtype;
    const size_t cols = r->shape->hidden;
    if (!backward)
        return weft_norm_forward(
            r->lane,
            &WEFT_ARGS(weft_norm_forward_args, .kind = kind, .rows = rows, .cols = cols,
                       .dtype = dtype,
                       .x = o->phase == WEFT_PHASE_FORWARD ? r->fresh[0]
                                                           : weft_own_walk(&r->stored, bytes),
                       .residual = sums ? weft_own_walk(&r->stored, bytes) : NULL,
                       .sum = sums ? weft_own_walk(&r->results, bytes) : NULL,
                       .weight = r->fresh[1], .bias = rms ? NULL : r->fresh[1], .y = r->out,
                       .mean = rms ? NULL : r->fp32[0], .rstd = r->fp32[1], .epsilon = 1e-5f));
    return weft_norm_backward(
        r->lane,
        &WEFT_ARGS(weft_norm_backward_args, .kind = kind, .rows = rows, .cols = cols,
                   .dtype = dtype, .dy = r->fresh[0], .x = weft_own_walk(&r->stored, bytes),
                   .weight = r->fresh[1], .mean = rms ? NULL : r->fp32[0], .rstd = r->fp32[1],
                   .dx = r->out, .accumulate = !last,
                   .dweight = weft_own_walk(&r->gradients, cols * sizeof(float)),
                   .dbias = rms ? NULL : weft_own_walk(&r->gradients, cols * sizeof(float)),
                   .overwrite = weft_own_overwrites(r, number)));
}

static weft_status sum_of_two(rig *r, size_t bytes)
{
    return weft_add(r->lane, &WEFT_ARGS(weft_add_args, .count = bytes / weft_own_act_bytes(r),
                                        .dtype = r->shape->dtype, .a = r->fresh[0],
                                        .b = weft_own_walk(&r->stored, bytes),
                                        .y = weft_own_walk(&r->results, bytes)));
}

static weft_status dropout(rig *r, const weft_operation *o)
{
    const size_t rows = r->dims.rows, bytes = rows * weft_own_row_bytes(r);
    return weft_dropout(r->lane,
                        &WEFT_ARGS(weft_dropout_args, .rows = rows, .cols = r->shape->hidden,
                                   .dtype = r->shape->dtype, .x = r->fresh[0],
                                   .residual = o->bytes >= 3 * bytes ? r->fresh[1] : NULL,
                                   .y = weft_own_walk(&r->results, bytes),
                                   .p = (float)r->options->hidden_dropout));
}

static weft_status rotary(rig *r, const weft_operation *o)
{
    const weft_dims *d = &r->dims;
    const size_t in_group = d->heads / d->groups + 1;
    return weft_rope(
        r->lane, &WEFT_ARGS(weft_rope_args, .seq = weft_shape_local_seq(r->shape),
                            .batch = r->shape->batch, .heads = in_group, .head_dim = d->head_dim,
                            .token_stride = d->qkv, .head_stride = d->head_dim, .groups = d->groups,
                            .group_stride = (in_group + 1) * d->head_dim, .rotary_dim = d->rotary,
                            .base = (float)r->options->rotary_base, .dtype = r->shape->dtype,
                            .x = r->out, .inverse = o->phase != WEFT_PHASE_FORWARD));
}

static weft_status bias_gradient(rig *r, const weft_operation *o, int number)
{
    const size_t rows = r->dims.rows_full, cols = o->bytes / weft_own_act_bytes(r) / rows;
    return weft_bias_gradient(r->lane,
                              &WEFT_ARGS(weft_bias_gradient_args, .rows = rows, .cols = cols,
                                         .dtype = r->shape->dtype, .dy = r->fresh[0],
                                         .db = weft_own_walk(&r->gradients, cols * sizeof(float)),
                                         .overwrite = weft_own_overwrites(r, number)));
}

static weft_status activation(rig *r, const weft_operation *o)
{
    const weft_dims *d = &r->dims;
    const bool backward = o->phase == WEFT_PHASE_INPUT_GRADIENT;
    const size_t count = o->bytes / ((backward ? 2 : 1) * d->gates + 1) / weft_own_act_bytes(r);
    const size_t width =
        count == d->rows_full * d->ffn || r->moe.experts == 0 ? d->ffn : r->moe.ffn;
    const size_t rows = count / width ? count / width : 1;
    const weft_activation_kind kind = weft_activation_of(r->options);
    const weft_dtype dtype = r->shape->dtype;
    const size_t read = d->gates * count * weft_own_act_bytes(r);
    if (backward)
        return weft_activation_backward(
            r->lane, &WEFT_ARGS(weft_activation_backward_args, .kind = kind, .rows = rows,
                                .cols = width, .dtype = dtype, .x = weft_own_walk(&r->stored, read),
                                .dy = r->fresh[0], .dx = r->out));
    return weft_activation_forward(r->lane, &WEFT_ARGS(weft_activation_forward_args, .kind = kind,
                                                       .rows = rows, .cols = width, .dtype = dtype,
                                                       .x = o->phase == WEFT_PHASE_FORWARD
                                                                ? r->fresh[0]
                                                                : weft_own_walk(&r->stored, read),
                                                       .y = r->out));
}

static weft_status loss_of(rig *r, size_t rows, bool backward)
{
    const size_t cols = r->dims.vocab_rows, all = (size_t)r->options->vocab_size;
    const size_t valid = cols < all ? cols : all;
    float *max = r->fp32[0], *sum = r->fp32[1];
    if (backward)
        return weft_cross_entropy_backward(
            r->lane,
            &WEFT_ARGS(weft_cross_entropy_backward_args, .rows = rows, .cols = cols,
                       .valid_cols = valid, .dtype = r->shape->dtype, .logits = r->out,
                       .labels = r->tokens, .row_max = max, .row_sum = sum, .scale = 1e-3f));
    return weft_cross_entropy_stats(
        r->lane,
        &WEFT_ARGS(weft_cross_entropy_stats_args,
                   .pass = r->shape->tp > 1 ? WEFT_CROSS_ENTROPY_SUM : WEFT_CROSS_ENTROPY_FUSED,
                   .rows = rows, .cols = cols, .valid_cols = valid, .dtype = r->shape->dtype,
                   .logits = r->fresh[0], .labels = r->tokens, .row_max = max, .row_sum = sum,
                   .target = sum + rows));
}

/* The statistics, the loss itself, or their gradient, of the rows of a chunk or of those that are
 * left for the last one. */
static weft_status loss(rig *r, const weft_operation *o, double *out_each)
{
    const size_t chunk = weft_head_chunk_rows(r->shape), left = r->dims.rows_full % chunk;
    const size_t sizes[] = {chunk, left};
    for (int i = 0; i < 2; i++) {
        const size_t rows = sizes[i], bytes = rows * r->dims.vocab_rows * weft_own_act_bytes(r);
        if (bytes > 0 && (o->bytes == bytes || o->bytes == 2 * bytes))
            return loss_of(r, rows, o->bytes == 2 * bytes);
        if (o->bytes == 3 * rows * sizeof(float))
            return weft_cross_entropy_loss(
                r->lane, &WEFT_ARGS(weft_cross_entropy_loss_args, .rows = rows,
                                    .row_max = r->fp32[0], .row_sum = r->fp32[1],
                                    .target = r->fp32[1] + rows, .loss_sum = (double *)r->counts));
    }
    *out_each = 0;
    return WEFT_OK;
}

static weft_status cast(rig *r, size_t count, bool to_fp32)
{
    return weft_cast(r->lane,
                     &WEFT_ARGS(weft_cast_args, .count = count,
                                .from_dtype = to_fp32 ? r->shape->dtype : WEFT_F32,
                                .to_dtype = to_fp32 ? WEFT_F32 : r->shape->dtype,
                                .from = to_fp32 ? r->fresh[0] : (char *)r->fp32[0], .to = r->out));
}

static weft_status sort(rig *r)
{
    const weft_moe_dims *d = &r->moe;
    return weft_dispatch_plan(
        r->lane,
        &WEFT_ARGS(weft_dispatch_plan_args, .num_tokens = d->tokens, .num_experts = d->experts,
                   .topk = (size_t)r->options->moe_router_topk,
                   .num_local = d->exchange ? d->experts : d->local_experts,
                   .capacity = d->capacity,
                   .policy = (weft_drop_policy)r->options->moe_token_drop_policy,
                   .top_index = r->choices, .top_prob = r->probabilities, .counts = r->counts,
                   .row_of = r->row_of, .token_of = r->token_of, .dropped = r->counts + d->experts,
                   .wrong = r->wrong, .scratch = r->sort));
}

static weft_status router(rig *r, const weft_operation *o, double *out_each)
{
    const weft_moe_dims *d = &r->moe;
    const size_t topk = (size_t)r->options->moe_router_topk, scores = d->tokens * d->experts;
    const bool pre_softmax = r->options->moe_router_pre_softmax;
    float *gradient = (float *)r->out;
    if (o->bytes == d->tokens * r->shape->hidden * (weft_own_act_bytes(r) + sizeof(float)) &&
        r->shape->dtype != WEFT_F32)
        return cast(r, d->tokens * r->shape->hidden, true);
    if (o->phase == WEFT_PHASE_FORWARD && o->bytes == 3 * d->tokens * topk * sizeof(int32_t))
        return sort(r);
    if (o->phase == WEFT_PHASE_FORWARD)
        return weft_route(r->lane, &WEFT_ARGS(weft_route_args, .num_tokens = d->tokens,
                                              .num_experts = d->experts, .topk = topk,
                                              .pre_softmax = pre_softmax, .logits = r->fp32[0],
                                              .scores = (float *)r->out, .top_index = r->sort,
                                              .top_prob = r->probabilities, .counts = r->fp32[1],
                                              .score_sums = r->fp32[1] + d->experts,
                                              .z_sum = r->fp32[1] + 2 * d->experts));
    if (o->bytes == scores * (weft_own_act_bytes(r) + sizeof(float)) && r->shape->dtype != WEFT_F32)
        return cast(r, scores, false);
    if (o->bytes != 3 * scores * sizeof(float))
        *out_each = 0;
    return weft_route_backward(
        r->lane,
        &WEFT_ARGS(weft_route_backward_args, .num_tokens = d->tokens, .num_experts = d->experts,
                   .topk = topk, .pre_softmax = pre_softmax, .logits = r->fp32[0],
                   .scores = r->fp32[0], .top_index = r->choices, .top_prob = r->probabilities,
                   .dtop_prob = r->fp32[1], .fraction = r->fp32[1], .aux_scale = 1e-6f,
                   .z_scale = 1e-6f, .dlogits = gradient));
}

/* Rows to and from the order of experts, after `sort`. */
static weft_status permute(rig *r, const weft_operation *o)
{
    const size_t rows = o->bytes / 2 / weft_own_row_bytes(r);
    return weft_permute(r->lane, &WEFT_ARGS(weft_permute_args, .num_rows = rows,
                                            .cols = r->shape->hidden, .dtype = r->shape->dtype,
                                            .x = r->fresh[0], .token_of = r->token_of,
                                            .rows = weft_own_walk(&r->results, o->bytes / 2)));
}

static weft_status unpermute(rig *r)
{
    return weft_permute_backward(
        r->lane, &WEFT_ARGS(weft_permute_backward_args, .num_tokens = r->moe.tokens,
                            .topk = (size_t)r->options->moe_router_topk, .cols = r->shape->hidden,
                            .dtype = r->shape->dtype, .drows = r->fresh[0], .row_of = r->row_of,
                            .dx = r->out));
}

static weft_status combine(rig *r, const weft_operation *o)
{
    const size_t topk = (size_t)r->options->moe_router_topk, cols = r->shape->hidden;
    const size_t bytes = r->moe.tokens * topk * weft_own_row_bytes(r);
    if (o->phase == WEFT_PHASE_FORWARD)
        return weft_combine(
            r->lane,
            &WEFT_ARGS(weft_combine_args, .num_tokens = r->moe.tokens, .topk = topk, .cols = cols,
                       .dtype = r->shape->dtype, .rows = r->fresh[0], .row_of = r->row_of,
                       .top_prob = r->probabilities,
                       .y = weft_own_walk(&r->results, r->moe.tokens * weft_own_row_bytes(r))));
    return weft_combine_backward(
        r->lane,
        &WEFT_ARGS(weft_combine_backward_args, .num_tokens = r->moe.tokens, .topk = topk,
                   .cols = cols, .dtype = r->shape->dtype, .dy = r->fresh[0],
                   .rows = weft_own_walk(&r->stored, bytes), .row_of = r->row_of,
                   .top_prob = r->probabilities, .drows = r->out, .dtop_prob = r->fp32[1]));
}

weft_status weft_own_submit_memory(rig *r, const weft_operation *o, int number, double *out_each)
{
    if (weft_own_is(o, "embedding") || weft_own_is(o, "positions"))
        return embedding(r, o, number);
    if (ends(o->module, "layernorm"))
        return norm(r, o, number);
    if (weft_own_is(o, "residual") || weft_own_is(o, "shared_experts"))
        return sum_of_two(r, o->bytes / 3);
    if (weft_own_is(o, "dropout"))
        return dropout(r, o);
    if (weft_own_is(o, "rotary"))
        return rotary(r, o);
    if (strncmp(o->module, "linear_", 7) == 0)
        return bias_gradient(r, o, number);
    if (weft_own_is(o, "activation"))
        return activation(r, o);
    if (weft_own_is(o, "loss"))
        return loss(r, o, out_each);
    if (weft_own_is(o, "router"))
        return router(r, o, out_each);
    if (weft_own_is(o, "experts") ||
        (weft_own_is(o, "dispatch") && o->phase != WEFT_PHASE_INPUT_GRADIENT))
        return permute(r, o);
    if (weft_own_is(o, "dispatch"))
        return unpermute(r);
    if (weft_own_is(o, "combine"))
        return combine(r, o);
    *out_each = 0;
    return WEFT_OK;
}
