#include "launcher/measuring/own_kernels.h"

#include <string.h>

typedef weft_own_rig rig;

/* --- products ------------------------------------------------------------------------------ */

/* The head makes all three in forward. */
static weft_phase phase_of(const rig *r, const weft_operation *o)
{
    if (!weft_own_is(o, "output_layer"))
        return o->phase;
    return o->m == r->dims.vocab_rows   ? WEFT_PHASE_WEIGHT_GRADIENT
           : o->k == r->dims.vocab_rows ? WEFT_PHASE_INPUT_GRADIENT
                                        : WEFT_PHASE_FORWARD;
}

static bool has_bias(const rig *r, const weft_operation *o)
{
    return strncmp(o->module, "linear_", 7) == 0 &&
           (!r->options->disable_bias_linear ||
            (r->options->add_qkv_bias && weft_own_is(o, "linear_qkv")));
}

static weft_status gemm(rig *r, const weft_operation *o, int number)
{
    const weft_phase phase = phase_of(r, o);
    const bool is_router = weft_own_is(o, "router"), is_head = weft_own_is(o, "output_layer");
    const size_t bytes = weft_dtype_bytes(o->dtype), c_count = o->m * o->n;
    weft_own_pool *stored = o->dtype == WEFT_F32 ? &r->stored_fp32 : &r->stored;
    const bool fp32 = o->dtype == WEFT_F32 && r->shape->dtype != WEFT_F32;
    weft_gemm_args args = WEFT_ARGS(weft_gemm_args, .m = o->m, .n = o->n, .k = o->k,
                                    .dtype = o->dtype, .c_dtype = o->dtype, .alpha = 1);
    args.a = fp32 ? (char *)r->fp32[0] : r->fresh[0];
    args.b = weft_own_walk(stored, o->k * o->n * bytes);
    if (phase == WEFT_PHASE_WEIGHT_GRADIENT) {
        args.transpose_a = true;
        args.c_dtype = WEFT_F32;
        args.c = weft_own_walk(&r->gradients, c_count * sizeof(float));
        args.beta = weft_own_overwrites(r, number) ? 0.0f : 1.0f;
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
        args.c = weft_own_walk(&r->results, c_count * weft_dtype_bytes(args.c_dtype));
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
    args.x = weight ? weft_own_walk(&r->stored, rows * in * bytes) : input ? r->out : r->fresh[0];
    args.y = weight || input ? r->fresh[0] : weft_own_walk(&r->results, rows * out * bytes);
    if (weight)
        args.wgrad = weft_own_walk(&r->gradients, o->groups * in * out * sizeof(float));
    else
        args.w = weft_own_walk(&r->stored, o->groups * in * out * bytes);
    args.overwrite = weft_own_overwrites(r, number);
    return weft_grouped_gemm(r->lane, &args);
}

/* A direction's products are one launch: 2 of forward, 5 of backward. Under context parallelism the
 * tokens that are here see cp times as many keys. */
static weft_status attention(rig *r, const weft_operation *o, double *out_each)
{
    const weft_dims *d = &r->dims;
    const size_t token = d->qkv, stride = (d->heads / d->groups + 2) * d->head_dim;
    const size_t bytes = weft_own_act_bytes(r), rows = d->rows_full,
                 key = d->heads / d->groups * d->head_dim;
    const size_t out_width = d->heads * d->head_dim;
    weft_attention_shape shape = {.seq_q = weft_shape_local_seq(r->shape),
                                  .seq_k = weft_shape_local_seq(r->shape),
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
    *out_each =
        (o->phase == WEFT_PHASE_FORWARD ? 2 : 5) * (double)(shape.batch * d->heads) / r->shape->cp;
    if (o->phase == WEFT_PHASE_FORWARD) {
        const char *q = r->fresh[0];
        return weft_attention_forward(
            r->lane,
            &WEFT_ARGS(weft_attention_forward_args, .shape = shape, .dtype = r->shape->dtype,
                       .q = q, .k = q + key * bytes, .v = q + (key + d->head_dim) * bytes,
                       .out = weft_own_walk(&r->results, rows * out_width * bytes),
                       .lse = r->fp32[1]));
    }
    const char *q = weft_own_walk(&r->stored, rows * token * bytes);
    return weft_attention_backward(
        r->lane,
        &WEFT_ARGS(weft_attention_backward_args, .shape = shape, .dtype = r->shape->dtype, .q = q,
                   .k = q + key * bytes, .v = q + (key + d->head_dim) * bytes,
                   .out = weft_own_walk(&r->stored, rows * out_width * bytes), .dout = r->fresh[1],
                   .lse = r->fp32[0], .delta = r->fp32[1], .dq = r->out, .dk = r->out + key * bytes,
                   .dv = r->out + (key + d->head_dim) * bytes));
}

size_t weft_own_operand_bytes(const rig *r, const weft_operation *o)
{
    const weft_dims *d = &r->dims;
    const size_t groups = o->groups ? o->groups : 1;
    if (o->kind == WEFT_OPERATION_MEMORY) {
        const bool whole = weft_own_is(o, "embedding");
        const size_t table = whole ? d->vocab_rows * r->shape->hidden * sizeof(float) : 0;
        return 2 * o->bytes + 4096 > table ? 2 * o->bytes + 4096 : table;
    }
    if (weft_own_is(o, WEFT_MODULE_ATTENTION))
        return d->rows_full * (d->qkv + d->heads * sizeof(float)) * sizeof(float);
    const size_t a = o->m * o->k, b = o->k * o->n, c = o->m * o->n;
    size_t most = a > b ? a : b;
    return groups * sizeof(float) * (most > c ? most : c);
}

weft_status weft_own_submit(rig *r, const weft_operation *o, int number, double *out_each)
{
    *out_each = 1;
    if (o->kind == WEFT_OPERATION_MEMORY)
        return weft_own_submit_memory(r, o, number, out_each);
    if (weft_own_is(o, WEFT_MODULE_ATTENTION))
        return attention(r, o, out_each);
    return o->groups > 0 ? grouped(r, o, number) : gemm(r, o, number);
}
