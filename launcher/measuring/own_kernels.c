#include "launcher/measuring/own_kernels.h"

#include <math.h>
#include <string.h>

#include <weft/kernels.h>

#include "layers/layers.h"

typedef weft_own_rig rig;

static void *walk(weft_own_pool *pool, size_t bytes)
{
    if (pool->at + bytes > pool->bytes)
        pool->at = 0;
    char *at = pool->memory + pool->at;
    pool->at += (bytes + 63) / 64 * 64;
    return at;
}

static bool is(const weft_operation *o, const char *module)
{
    return strcmp(o->module, module) == 0;
}

static bool ends(const char *text, const char *end)
{
    const size_t length = strlen(text), part = strlen(end);
    return length >= part && strcmp(text + length - part, end) == 0;
}

static size_t act_bytes(const rig *r)
{
    return weft_dtype_bytes(r->shape->dtype);
}

static size_t row_bytes(const rig *r)
{
    return r->shape->hidden * act_bytes(r);
}

/* Whether gradients are written, not added to: in the first of a step's micro-batches. */
static bool overwrites(const rig *r, int number)
{
    return number % r->num_micro_batches == 0;
}

/* --- products ------------------------------------------------------------------------------ */

/* The head makes all three in forward. */
static weft_phase phase_of(const rig *r, const weft_operation *o)
{
    if (!is(o, "output_layer"))
        return o->phase;
    return o->m == r->dims.vocab_rows   ? WEFT_PHASE_WEIGHT_GRADIENT
           : o->k == r->dims.vocab_rows ? WEFT_PHASE_INPUT_GRADIENT
                                        : WEFT_PHASE_FORWARD;
}

static bool has_bias(const rig *r, const weft_operation *o)
{
    return strncmp(o->module, "linear_", 7) == 0 &&
           (!r->options->disable_bias_linear || (r->options->add_qkv_bias && is(o, "linear_qkv")));
}

static weft_status gemm(rig *r, const weft_operation *o, int number)
{
    const weft_phase phase = phase_of(r, o);
    const bool is_router = is(o, "router"), is_head = is(o, "output_layer");
    const size_t bytes = weft_dtype_bytes(o->dtype), c_count = o->m * o->n;
    weft_own_pool *stored = o->dtype == WEFT_F32 ? &r->stored_fp32 : &r->stored;
    const bool fp32 = o->dtype == WEFT_F32 && r->shape->dtype != WEFT_F32;
    weft_gemm_args args = WEFT_ARGS(weft_gemm_args, .m = o->m, .n = o->n, .k = o->k,
                                    .dtype = o->dtype, .c_dtype = o->dtype, .alpha = 1);
    args.a = fp32 ? (char *)r->fp32[0] : r->fresh[0];
    args.b = walk(stored, o->k * o->n * bytes);
    if (phase == WEFT_PHASE_WEIGHT_GRADIENT) {
        args.transpose_a = true;
        args.c_dtype = WEFT_F32;
        args.c = walk(&r->gradients, c_count * sizeof(float));
        args.beta = overwrites(r, number) ? 0.0f : 1.0f;
        return weft_gemm(r->lane, &args);
    }
    args.c = r->out;
    if (phase == WEFT_PHASE_INPUT_GRADIENT) {
        args.beta = is_router ? 1.0f : 0.0f;
        return weft_gemm(r->lane, &args);
    }
    args.transpose_b = true;
    args.c_dtype = is_router ? WEFT_F32 : o->dtype;
    if (has_bias(r, o))
        args.bias = r->fresh[1];
    if (!is_head)
        args.c = walk(&r->results, c_count * weft_dtype_bytes(args.c_dtype));
    return weft_gemm(r->lane, &args);
}

/* Balanced: as many rows for each expert. */
static weft_status grouped(rig *r, const weft_operation *o, int number)
{
    const bool weight = o->phase == WEFT_PHASE_WEIGHT_GRADIENT;
    const bool input = o->phase == WEFT_PHASE_INPUT_GRADIENT;
    const size_t rows = weight ? o->k : o->m, bytes = weft_dtype_bytes(o->dtype);
    const size_t in = weight || input ? o->n : o->k, out = weight ? o->m : input ? o->k : o->n;
    weft_grouped_gemm_args args = WEFT_ARGS(weft_grouped_gemm_args,
                                            .kind = weight  ? WEFT_GROUPED_WGRAD
                                                    : input ? WEFT_GROUPED_DGRAD
                                                            : WEFT_GROUPED_FORWARD,
                                            .num_groups = o->groups, .in = in, .out = out,
                                            .row_offsets = r->offsets, .dtype = o->dtype);
    for (size_t g = 0; g <= o->groups; g++)
        r->offsets[g] = (int64_t)(rows * g / o->groups);
    args.x = weight ? walk(&r->stored, rows * in * bytes) : input ? r->out : r->fresh[0];
    args.y = weight || input ? r->fresh[0] : walk(&r->results, rows * out * bytes);
    if (weight)
        args.wgrad = walk(&r->gradients, o->groups * in * out * sizeof(float));
    else
        args.w = walk(&r->stored, o->groups * in * out * bytes);
    args.overwrite = overwrites(r, number);
    return weft_grouped_gemm(r->lane, &args);
}

/* A direction's products are one launch: 2 of forward, 5 of backward. */
static weft_status attention(rig *r, const weft_operation *o, double *out_each)
{
    const weft_dims *d = &r->dims;
    const size_t token = d->qkv, stride = (d->heads / d->groups + 2) * d->head_dim;
    const size_t bytes = act_bytes(r), rows = d->rows_full,
                 key = d->heads / d->groups * d->head_dim;
    const size_t out_width = d->heads * d->head_dim;
    weft_attention_shape shape = {.seq_q = r->shape->seq,
                                  .seq_k = r->shape->seq,
                                  .batch = r->shape->batch,
                                  .heads = d->heads,
                                  .groups = d->groups,
                                  .head_dim = d->head_dim,
                                  .q_token_stride = token,
                                  .q_group_stride = stride,
                                  .k_token_stride = token,
                                  .k_group_stride = stride,
                                  .causal = true,
                                  .dropout = (float)r->options->attention_dropout,
                                  .total_heads = d->heads_all,
                                  .total_seq = r->shape->seq};
    *out_each = (o->phase == WEFT_PHASE_FORWARD ? 2 : 5) * (double)(shape.batch * d->heads);
    if (o->phase == WEFT_PHASE_FORWARD) {
        const char *q = r->fresh[0];
        return weft_attention_forward(
            r->lane,
            &WEFT_ARGS(weft_attention_forward_args, .shape = shape, .dtype = r->shape->dtype,
                       .q = q, .k = q + key * bytes, .v = q + (key + d->head_dim) * bytes,
                       .out = walk(&r->results, rows * out_width * bytes), .lse = r->fp32[1]));
    }
    const char *q = walk(&r->stored, rows * token * bytes);
    return weft_attention_backward(
        r->lane,
        &WEFT_ARGS(weft_attention_backward_args, .shape = shape, .dtype = r->shape->dtype, .q = q,
                   .k = q + key * bytes, .v = q + (key + d->head_dim) * bytes,
                   .out = walk(&r->stored, rows * out_width * bytes), .dout = r->fresh[1],
                   .lse = r->fp32[0], .delta = r->fp32[1], .dq = r->out, .dk = r->out + key * bytes,
                   .dv = r->out + (key + d->head_dim) * bytes));
}

/* --- bound by memory ----------------------------------------------------------------------- */

static weft_status embedding(rig *r, const weft_operation *o, int number)
{
    const size_t tokens = r->dims.rows_full, hidden = r->shape->hidden;
    const bool positions = is(o, "positions");
    const bool learned = r->options->position_embedding_type == WEFT_POSITION_LEARNED;
    const bool tied = !r->options->untie_embeddings_and_output_weights && r->shape->pp == 1;
    if (o->phase == WEFT_PHASE_FORWARD)
        return weft_embedding_forward(
            r->lane, &WEFT_ARGS(weft_embedding_forward_args, .num_tokens = tokens,
                                .batch = r->shape->batch, .cols = hidden, .tokens = r->tokens,
                                .num_rows = r->dims.vocab_rows, .dtype = r->shape->dtype,
                                .table = walk(&r->stored, r->dims.vocab_rows * row_bytes(r)),
                                .positions = learned ? r->fresh[1] : NULL,
                                .y = walk(&r->results, tokens * row_bytes(r))));
    weft_embedding_backward_args args =
        WEFT_ARGS(weft_embedding_backward_args, .num_tokens = tokens, .batch = r->shape->batch,
                  .cols = hidden, .tokens = r->tokens, .num_rows = r->dims.vocab_rows,
                  .dtype = r->shape->dtype, .dy = r->fresh[0], .overwrite = overwrites(r, number));
    if (positions) {
        args.num_positions =
            weft_or_else(r->options->max_position_embeddings, r->options->seq_length);
        args.dpositions = walk(&r->gradients, args.num_positions * hidden * sizeof(float));
    } else {
        args.overwrite = args.overwrite && !tied;
        args.dtable = walk(&r->gradients, args.num_rows * hidden * sizeof(float));
    }
    return weft_embedding_backward(r->lane, &args);
}

static weft_status norm(rig *r, const weft_operation *o, int number)
{
    const bool rms = r->options->normalization == WEFT_RMSNORM, last = is(o, "final_layernorm");
    const bool sums = is(o, "pre_mlp_layernorm") && o->phase == WEFT_PHASE_FORWARD;
    const bool backward = o->phase == WEFT_PHASE_INPUT_GRADIENT;
    const size_t times = backward ? (last ? 3 : 4) : sums ? 4 : 2;
    const size_t rows = o->bytes / times / row_bytes(r), bytes = rows * row_bytes(r);
    const weft_norm_kind kind = rms ? WEFT_NORM_RMS : WEFT_NORM_LAYER;
    const weft_dtype dtype = r->shape->dtype;
    const size_t cols = r->shape->hidden;
    if (!backward)
        return weft_norm_forward(
            r->lane,
            &WEFT_ARGS(weft_norm_forward_args, .kind = kind, .rows = rows, .cols = cols,
                       .dtype = dtype,
                       .x = o->phase == WEFT_PHASE_FORWARD ? r->fresh[0] : walk(&r->stored, bytes),
                       .residual = sums ? walk(&r->stored, bytes) : NULL,
                       .sum = sums ? walk(&r->results, bytes) : NULL, .weight = r->fresh[1],
                       .bias = rms ? NULL : r->fresh[1], .y = r->out,
                       .mean = rms ? NULL : r->fp32[0], .rstd = r->fp32[1], .epsilon = 1e-5f));
    return weft_norm_backward(
        r->lane, &WEFT_ARGS(weft_norm_backward_args, .kind = kind, .rows = rows, .cols = cols,
                            .dtype = dtype, .dy = r->fresh[0], .x = walk(&r->stored, bytes),
                            .weight = r->fresh[1], .mean = rms ? NULL : r->fp32[0],
                            .rstd = r->fp32[1], .dx = r->out, .accumulate = !last,
                            .dweight = walk(&r->gradients, cols * sizeof(float)),
                            .dbias = rms ? NULL : walk(&r->gradients, cols * sizeof(float)),
                            .overwrite = overwrites(r, number)));
}

static weft_status sum_of_two(rig *r, size_t bytes)
{
    return weft_add(r->lane,
                    &WEFT_ARGS(weft_add_args, .count = bytes / act_bytes(r),
                               .dtype = r->shape->dtype, .a = r->fresh[0],
                               .b = walk(&r->stored, bytes), .y = walk(&r->results, bytes)));
}

static weft_status dropout(rig *r, const weft_operation *o)
{
    const size_t rows = r->dims.rows, bytes = rows * row_bytes(r);
    return weft_dropout(
        r->lane, &WEFT_ARGS(weft_dropout_args, .rows = rows, .cols = r->shape->hidden,
                            .dtype = r->shape->dtype, .x = r->fresh[0],
                            .residual = o->bytes >= 3 * bytes ? r->fresh[1] : NULL,
                            .y = walk(&r->results, bytes), .p = (float)r->options->hidden_dropout));
}

static weft_status rotary(rig *r, const weft_operation *o)
{
    const weft_dims *d = &r->dims;
    const size_t in_group = d->heads / d->groups + 1;
    return weft_rope(
        r->lane, &WEFT_ARGS(weft_rope_args, .seq = r->shape->seq, .batch = r->shape->batch,
                            .heads = in_group, .head_dim = d->head_dim, .token_stride = d->qkv,
                            .head_stride = d->head_dim, .groups = d->groups,
                            .group_stride = (in_group + 1) * d->head_dim, .rotary_dim = d->rotary,
                            .base = (float)r->options->rotary_base, .dtype = r->shape->dtype,
                            .x = r->out, .inverse = o->phase != WEFT_PHASE_FORWARD));
}

static weft_status bias_gradient(rig *r, const weft_operation *o, int number)
{
    const size_t rows = r->dims.rows_full, cols = o->bytes / act_bytes(r) / rows;
    return weft_bias_gradient(r->lane,
                              &WEFT_ARGS(weft_bias_gradient_args, .rows = rows, .cols = cols,
                                         .dtype = r->shape->dtype, .dy = r->fresh[0],
                                         .db = walk(&r->gradients, cols * sizeof(float)),
                                         .overwrite = overwrites(r, number)));
}

static weft_status activation(rig *r, const weft_operation *o)
{
    const weft_dims *d = &r->dims;
    const bool backward = o->phase == WEFT_PHASE_INPUT_GRADIENT;
    const size_t count = o->bytes / ((backward ? 2 : 1) * d->gates + 1) / act_bytes(r);
    const size_t width =
        count == d->rows_full * d->ffn || r->moe.experts == 0 ? d->ffn : r->moe.ffn;
    const size_t rows = count / width ? count / width : 1;
    const weft_activation_kind kind = weft_activation_of(r->options);
    const weft_dtype dtype = r->shape->dtype;
    const size_t read = d->gates * count * act_bytes(r);
    if (backward)
        return weft_activation_backward(
            r->lane, &WEFT_ARGS(weft_activation_backward_args, .kind = kind, .rows = rows,
                                .cols = width, .dtype = dtype, .x = walk(&r->stored, read),
                                .dy = r->fresh[0], .dx = r->out));
    return weft_activation_forward(
        r->lane,
        &WEFT_ARGS(weft_activation_forward_args, .kind = kind, .rows = rows, .cols = width,
                   .dtype = dtype,
                   .x = o->phase == WEFT_PHASE_FORWARD ? r->fresh[0] : walk(&r->stored, read),
                   .y = r->out));
}

static weft_status loss_of(rig *r, size_t rows, bool backward)
{
    const size_t cols = r->dims.vocab_rows, valid = (size_t)r->options->vocab_size;
    float *max = r->fp32[0], *sum = r->fp32[1];
    weft_cross_entropy_stats_args stats = WEFT_ARGS(
        weft_cross_entropy_stats_args, .pass = WEFT_CROSS_ENTROPY_FUSED, .rows = rows, .cols = cols,
        .valid_cols = cols < valid ? cols : valid, .dtype = r->shape->dtype, .logits = r->fresh[0],
        .labels = r->tokens, .row_max = max, .row_sum = sum, .target = sum + rows);
    if (backward)
        return weft_cross_entropy_backward(
            r->lane,
            &WEFT_ARGS(weft_cross_entropy_backward_args, .rows = rows, .cols = cols,
                       .valid_cols = stats.valid_cols, .dtype = r->shape->dtype, .logits = r->out,
                       .labels = r->tokens, .row_max = max, .row_sum = sum, .scale = 1e-3f));
    if (r->shape->tp > 1) {
        stats.pass = WEFT_CROSS_ENTROPY_MAX;
        WEFT_TRY(weft_cross_entropy_stats(r->lane, &stats));
        stats.pass = WEFT_CROSS_ENTROPY_SUM;
    }
    WEFT_TRY(weft_cross_entropy_stats(r->lane, &stats));
    return weft_cross_entropy_loss(
        r->lane, &WEFT_ARGS(weft_cross_entropy_loss_args, .rows = rows, .row_max = max,
                            .row_sum = sum, .target = sum + rows, .loss_sum = (double *)r->counts));
}

/* The statistics with the loss itself, or their gradient, of the rows of a chunk or of those that
 * are left for the last one. */
static weft_status loss(rig *r, const weft_operation *o, double *out_each)
{
    const size_t chunk = weft_head_chunk_rows(r->shape), left = r->dims.rows_full % chunk;
    const size_t reads = r->shape->tp > 1 ? 2 : 1, sizes[] = {chunk, left};
    for (int i = 0; i < 2; i++) {
        const size_t bytes = sizes[i] * r->dims.vocab_rows * act_bytes(r);
        const bool backward = o->bytes == 2 * bytes;
        if (bytes == 0 || (!backward && o->bytes != reads * bytes / (reads + 1)))
            continue;
        *out_each = backward ? 1 : (double)reads + 1;
        return loss_of(r, sizes[i], backward);
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
    if (o->phase == WEFT_PHASE_WEIGHT_GRADIENT)
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
    if (o->bytes == scores * (act_bytes(r) + sizeof(float)) && r->shape->dtype != WEFT_F32)
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
    const size_t rows = o->bytes / 2 / row_bytes(r);
    return weft_permute(r->lane, &WEFT_ARGS(weft_permute_args, .num_rows = rows,
                                            .cols = r->shape->hidden, .dtype = r->shape->dtype,
                                            .x = r->fresh[0], .token_of = r->token_of,
                                            .rows = walk(&r->results, o->bytes / 2)));
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
    const size_t bytes = r->moe.tokens * topk * row_bytes(r);
    if (o->phase == WEFT_PHASE_FORWARD)
        return weft_combine(r->lane,
                            &WEFT_ARGS(weft_combine_args, .num_tokens = r->moe.tokens, .topk = topk,
                                       .cols = cols, .dtype = r->shape->dtype, .rows = r->fresh[0],
                                       .row_of = r->row_of, .top_prob = r->probabilities,
                                       .y = walk(&r->results, r->moe.tokens * row_bytes(r))));
    return weft_combine_backward(r->lane,
                                 &WEFT_ARGS(weft_combine_backward_args, .num_tokens = r->moe.tokens,
                                            .topk = topk, .cols = cols, .dtype = r->shape->dtype,
                                            .dy = r->fresh[0], .rows = walk(&r->stored, bytes),
                                            .row_of = r->row_of, .top_prob = r->probabilities,
                                            .drows = r->out, .dtop_prob = r->fp32[1]));
}

static weft_status memory(rig *r, const weft_operation *o, int number, double *out_each)
{
    if (is(o, "embedding") || is(o, "positions"))
        return embedding(r, o, number);
    if (ends(o->module, "layernorm"))
        return norm(r, o, number);
    if (is(o, "residual") || is(o, "shared_experts"))
        return sum_of_two(r, o->bytes / 3);
    if (is(o, "dropout"))
        return dropout(r, o);
    if (is(o, "rotary"))
        return rotary(r, o);
    if (strncmp(o->module, "linear_", 7) == 0)
        return bias_gradient(r, o, number);
    if (is(o, "activation"))
        return activation(r, o);
    if (is(o, "loss"))
        return loss(r, o, out_each);
    if (is(o, "router"))
        return router(r, o, out_each);
    if (is(o, "experts") || (is(o, "dispatch") && o->phase != WEFT_PHASE_INPUT_GRADIENT))
        return permute(r, o);
    if (is(o, "dispatch"))
        return unpermute(r);
    if (is(o, "combine"))
        return combine(r, o);
    *out_each = 0;
    return WEFT_OK;
}

size_t weft_own_operand_bytes(const rig *r, const weft_operation *o)
{
    const weft_dims *d = &r->dims;
    const size_t groups = o->groups ? o->groups : 1;
    if (o->kind == WEFT_OPERATION_MEMORY) {
        const bool whole = is(o, "embedding");
        const size_t table = whole ? d->vocab_rows * r->shape->hidden * sizeof(float) : 0;
        return 2 * o->bytes + 4096 > table ? 2 * o->bytes + 4096 : table;
    }
    if (is(o, WEFT_MODULE_ATTENTION))
        return d->rows_full * (d->qkv + d->heads * sizeof(float)) * sizeof(float);
    const size_t a = o->m * o->k, b = o->k * o->n, c = o->m * o->n;
    size_t most = a > b ? a : b;
    return groups * sizeof(float) * (most > c ? most : c);
}

weft_status weft_own_submit(rig *r, const weft_operation *o, int number, double *out_each)
{
    *out_each = 1;
    if (o->kind == WEFT_OPERATION_MEMORY)
        return memory(r, o, number, out_each);
    if (is(o, WEFT_MODULE_ATTENTION))
        return attention(r, o, out_each);
    return o->groups > 0 ? grouped(r, o, number) : gemm(r, o, number);
}
