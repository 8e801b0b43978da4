/* The backend of the device `note`: each kernel is what it reads, writes and computes. */
#include "kernels/note/note.h"

#include <string.h>

#include "core/device/device.h"
#include "kernels/flops.h"
#include "kernels/kernels.h"
#include "kernels/note/ranges.h"

typedef weft_kernel_operations operations;

static void add(operations *out, weft_operation o)
{
    out->all[out->count++] = o;
}

static void add_gemm(operations *out, weft_phase phase, weft_dtype dtype, size_t m, size_t n,
                     size_t k, size_t groups)
{
    add(out, (weft_operation){.kind = WEFT_OPERATION_GEMM,
                              .phase = phase,
                              .dtype = dtype,
                              .m = m,
                              .n = n,
                              .k = k,
                              .groups = groups,
                              .count = 1,
                              .flops = 2 * (uint64_t)m * n * k});
}

static void add_bytes(operations *out, weft_phase phase, const char *module, weft_dtype dtype,
                      size_t bytes)
{
    add(out, (weft_operation){.kind = WEFT_OPERATION_MEMORY,
                              .phase = phase,
                              .module = module,
                              .dtype = dtype,
                              .bytes = bytes,
                              .count = 1});
}

static void add_memory(operations *out, weft_phase phase, const char *module, weft_dtype dtype,
                       size_t elements)
{
    add_bytes(out, phase, module, dtype, elements * weft_dtype_bytes(dtype));
}

/* --- kernels -------------------------------------------------------------------------------- */

static void of_activation_forward(operations *out, const weft_activation_forward_args *a)
{
    add_memory(out, WEFT_PHASE_FORWARD, "activation", a->dtype,
               a->rows * a->cols * (weft_activation_is_gated(a->kind) ? 3 : 2));
}

static void of_activation_backward(operations *out, const weft_activation_backward_args *a)
{
    add_memory(out, WEFT_PHASE_INPUT_GRADIENT, "activation", a->dtype,
               a->rows * a->cols * (weft_activation_is_gated(a->kind) ? 5 : 3));
}

/* x W^T is forward's, dy^T x a weight's gradient, and dy W an input's. */
static void of_gemm(operations *out, const weft_gemm_args *a)
{
    const weft_phase phase = a->transpose_a   ? WEFT_PHASE_WEIGHT_GRADIENT
                             : a->transpose_b ? WEFT_PHASE_FORWARD
                                              : WEFT_PHASE_INPUT_GRADIENT;
    add_gemm(out, phase, a->dtype, a->m, a->n, a->k, 0);
    if (a->epilogue == WEFT_GEMM_GELU) {
        const weft_activation_forward_args gelu = weft_gemm_gelu(a);
        of_activation_forward(out, &gelu);
    } else if (a->epilogue == WEFT_GEMM_GELU_BACKWARD) {
        const weft_activation_backward_args gelu = weft_gemm_gelu_backward(a);
        of_activation_backward(out, &gelu);
    }
}

static void of_grouped_gemm(operations *out, const weft_grouped_gemm_args *a)
{
    if (a->num_groups == 0)
        return;
    const size_t rows = (size_t)(a->row_offsets[a->num_groups] - a->row_offsets[0]);
    if (a->kind == WEFT_GROUPED_WGRAD)
        add_gemm(out, WEFT_PHASE_WEIGHT_GRADIENT, a->dtype, a->out, a->in, rows, a->num_groups);
    else if (a->kind == WEFT_GROUPED_DGRAD)
        add_gemm(out, WEFT_PHASE_INPUT_GRADIENT, a->dtype, rows, a->in, a->out, a->num_groups);
    else
        add_gemm(out, WEFT_PHASE_FORWARD, a->dtype, rows, a->out, a->in, a->num_groups);
}

static void of_bias_gradient(operations *out, const weft_bias_gradient_args *a)
{
    add_memory(out, WEFT_PHASE_WEIGHT_GRADIENT, NULL, a->dtype, a->rows * a->cols);
}

static void of_bias_add(operations *out, const weft_bias_add_args *a)
{
    if (a->num_groups > 0)
        add_memory(out, WEFT_PHASE_FORWARD, NULL, a->dtype,
                   2 * (size_t)(a->row_offsets[a->num_groups] - a->row_offsets[0]) * a->cols);
}

static void of_norm_forward(operations *out, const weft_norm_forward_args *a)
{
    add_memory(out, WEFT_PHASE_FORWARD, NULL, a->dtype, (a->residual ? 4 : 2) * a->rows * a->cols);
}

static void of_norm_backward(operations *out, const weft_norm_backward_args *a)
{
    add_memory(out, WEFT_PHASE_INPUT_GRADIENT, NULL, a->dtype,
               (a->accumulate ? 4 : 3) * a->rows * a->cols);
}

static size_t heads_numbers(const weft_heads_shape *s)
{
    return s->tokens * s->groups * s->heads * s->head_dim;
}

static void of_heads_norm_forward(operations *out, const weft_heads_norm_forward_args *a)
{
    add_memory(out, WEFT_PHASE_FORWARD, NULL, a->dtype, 2 * heads_numbers(&a->shape));
}

static void of_heads_norm_backward(operations *out, const weft_heads_norm_backward_args *a)
{
    add_memory(out, WEFT_PHASE_INPUT_GRADIENT, NULL, a->dtype, 3 * heads_numbers(&a->shape));
}

static void of_heads_sums(operations *out, const weft_heads_sums_args *a)
{
    add_memory(out, a->weight ? WEFT_PHASE_INPUT_GRADIENT : WEFT_PHASE_FORWARD, NULL, a->dtype,
               (a->a == a->b ? 1 : 2) * heads_numbers(&a->shape));
}

static void of_heads_share(operations *out, const weft_heads_share_args *a)
{
    const weft_heads_shape *s = &a->shape;
    add_memory(out, a->inverse ? WEFT_PHASE_INPUT_GRADIENT : WEFT_PHASE_FORWARD, NULL, a->dtype,
               heads_numbers(s) + s->tokens * s->head_dim);
}

static void of_rope(operations *out, const weft_rope_args *a)
{
    add_memory(out, a->inverse ? WEFT_PHASE_INPUT_GRADIENT : WEFT_PHASE_FORWARD, "rotary", a->dtype,
               2 * a->seq * a->batch * a->heads * (a->groups ? a->groups : 1) * a->rotary_dim);
}

/* One of attention's calls. */
typedef struct attention_call {
    const weft_attention_shape *s;
    const weft_attention_variant *variant;
    size_t first_key, value; /* value: a value's width */
    weft_dtype dtype;
} attention_call;

/* Of a window or a chunk its length counts as the keys. */
static size_t keys_of(const attention_call *call)
{
    const weft_attention_variant *v = call->variant;
    const size_t most = v->chunk > 0 ? v->chunk : v->window;
    return most > 0 && most < call->s->seq_k ? most : call->s->seq_k;
}

/* `count` products of all heads, of rows of `dim` numbers, with a side of queries and one of keys.
 */
static void add_scores(operations *out, weft_phase phase, const attention_call *call, size_t dim,
                       bool by_keys, size_t count)
{
    const weft_attention_shape *s = call->s;
    const size_t keys = keys_of(call);
    const double flops = weft_attention_product_flops(s, call->first_key, call->variant, dim);
    add(out, (weft_operation){.kind = WEFT_OPERATION_GEMM,
                              .phase = phase,
                              .module = WEFT_MODULE_ATTENTION,
                              .dtype = call->dtype,
                              .m = s->seq_q,
                              .n = by_keys ? keys : dim,
                              .k = by_keys ? dim : keys,
                              .count = count * s->batch * s->heads,
                              .fused = true,
                              .flops = (uint64_t)((double)count * flops)});
}

static void of_attention_forward(operations *out, const weft_attention_forward_args *a)
{
    const attention_call call = {&a->shape, &a->variant, a->first_key,
                                 weft_value_dim(&a->shape, a->value_dim), a->dtype};
    add_scores(out, WEFT_PHASE_FORWARD, &call, a->shape.head_dim, true, 1);
    add_scores(out, WEFT_PHASE_FORWARD, &call, call.value, false, 1);
}

static void of_attention_backward(operations *out, const weft_attention_backward_args *a)
{
    const attention_call call = {&a->shape, &a->variant, a->first_key,
                                 weft_value_dim(&a->shape, a->value_dim), a->dtype};
    const size_t dim = a->shape.head_dim;
    /* dV has the width of dP, and stands with it where others have another */
    const size_t apart = call.value != dim;
    add_scores(out, WEFT_PHASE_RECOMPUTE, &call, dim, true, 1);
    add_scores(out, WEFT_PHASE_INPUT_GRADIENT, &call, call.value, true, 1 + apart);
    add_scores(out, WEFT_PHASE_INPUT_GRADIENT, &call, dim, false, 3 - apart);
}

static void of_attention_sinks(operations *out, const weft_attention_sinks_args *a)
{
    add_memory(out, WEFT_PHASE_WEIGHT_GRADIENT, WEFT_MODULE_ATTENTION, WEFT_F32,
               2 * a->batch * a->heads * a->seq);
}

static void of_embedding_forward(operations *out, const weft_embedding_forward_args *a)
{
    add_memory(out, WEFT_PHASE_FORWARD, "embedding", a->dtype,
               (a->positions ? 3 : 2) * a->num_tokens * a->cols);
}

static void of_embedding_backward(operations *out, const weft_embedding_backward_args *a)
{
    const size_t bytes = a->num_tokens * a->cols * weft_dtype_bytes(a->dtype);
    const size_t added = a->dtable ? a->num_tokens : a->num_tokens / a->batch;
    add_bytes(out, WEFT_PHASE_WEIGHT_GRADIENT, a->dtable ? "embedding" : "positions", a->dtype,
              bytes + 2 * added * a->cols * sizeof(float));
}

static void of_cross_entropy_stats(operations *out, const weft_cross_entropy_stats_args *a)
{
    add_memory(out, WEFT_PHASE_FORWARD, "loss", a->dtype, a->rows * a->cols);
}

static void of_cross_entropy_loss(operations *out, const weft_cross_entropy_loss_args *a)
{
    add_memory(out, WEFT_PHASE_FORWARD, "loss", WEFT_F32, 3 * a->rows);
}

static void of_cross_entropy_backward(operations *out, const weft_cross_entropy_backward_args *a)
{
    add_memory(out, WEFT_PHASE_INPUT_GRADIENT, "loss", a->dtype, 2 * a->rows * a->cols);
}

static void of_dropout(operations *out, const weft_dropout_args *a)
{
    add_memory(out, WEFT_PHASE_INPUT_GRADIENT, "dropout", a->dtype,
               (a->residual ? 3 : 2) * a->rows * a->cols);
}

static void of_add(operations *out, const weft_add_args *a)
{
    add_memory(out, WEFT_PHASE_INPUT_GRADIENT, NULL, a->dtype, 3 * a->count);
}

static void of_scale(operations *out, const weft_scale_args *a)
{
    add_memory(out, WEFT_PHASE_INPUT_GRADIENT, NULL, a->dtype, 2 * a->count);
}

static void of_cast(operations *out, const weft_cast_args *a)
{
    add_bytes(out, WEFT_PHASE_INPUT_GRADIENT, NULL, a->from_dtype,
              (a->rows ? a->rows : 1) * a->count *
                  (weft_dtype_bytes(a->from_dtype) + weft_dtype_bytes(a->to_dtype)));
}

static void of_route(operations *out, const weft_route_args *a)
{
    add_memory(out, WEFT_PHASE_FORWARD, "router", WEFT_F32, 2 * a->num_tokens * a->num_experts);
}

static void of_route_backward(operations *out, const weft_route_backward_args *a)
{
    add_memory(out, WEFT_PHASE_INPUT_GRADIENT, "router", WEFT_F32,
               3 * a->num_tokens * a->num_experts);
}

/* The experts chosen, and both directions of the order. */
static void of_dispatch_plan(operations *out, const weft_dispatch_plan_args *a)
{
    add_memory(out, WEFT_PHASE_FORWARD, "router", WEFT_I32, 3 * a->num_tokens * a->topk);
}

static void of_permute(operations *out, const weft_permute_args *a)
{
    add_memory(out, WEFT_PHASE_INPUT_GRADIENT, NULL, a->dtype, 2 * a->num_rows * a->cols);
}

static void of_permute_backward(operations *out, const weft_permute_backward_args *a)
{
    add_memory(out, WEFT_PHASE_INPUT_GRADIENT, "dispatch", a->dtype,
               (a->num_rows + a->num_tokens) * a->cols);
}

static void of_combine(operations *out, const weft_combine_args *a)
{
    add_memory(out, WEFT_PHASE_FORWARD, "combine", a->dtype,
               (a->num_rows + a->num_tokens) * a->cols);
}

static void of_combine_backward(operations *out, const weft_combine_backward_args *a)
{
    add_memory(out, WEFT_PHASE_INPUT_GRADIENT, "combine", a->dtype,
               (2 * a->num_rows + a->num_tokens) * a->cols);
}

/* No pass calls these. */
#define NONE(kernel)                                                                               \
    static void of_##kernel(operations *out, const weft_##kernel##_args *a)                        \
    {                                                                                              \
        (void)out, (void)a;                                                                        \
    }
NONE(adamw)
NONE(momentum)
NONE(matrix_copy)
NONE(split_master)
NONE(join_master)
NONE(sum_squares)
NONE(find_not_finite)
NONE(hash)
NONE(random_normal)
#undef NONE

weft_kernel_operations weft_kernel_operations_of(const char *kernel, const void *args)
{
    operations out = {0};
#define OF(name)                                                                                   \
    if (strcmp(kernel, #name) == 0)                                                                \
        of_##name(&out, args);
    WEFT_KERNEL_LIST(OF)
#undef OF
    return out;
}

#define NOTE(name)                                                                                 \
    static weft_status note_##name(weft_lane *lane, const weft_##name##_args *args)                \
    {                                                                                              \
        operations all = {0};                                                                      \
        of_##name(&all, args);                                                                     \
        WEFT_TRY(weft_kernel_note_##name(lane, args));                                             \
        return weft_note_call(lane, #name, args, sizeof *args, all.all, all.count);                \
    }
WEFT_KERNEL_LIST(NOTE)
#undef NOTE

/* One with an epilogue as the product and the activation's kernel after it. */
static weft_status note_product(weft_lane *lane, const weft_gemm_args *args)
{
    const weft_gemm_args product = weft_gemm_without_epilogue(args);
    if (args->epilogue == WEFT_GEMM_PLAIN)
        return note_gemm(lane, args);
    WEFT_TRY(note_gemm(lane, &product));
    if (args->epilogue == WEFT_GEMM_GELU) {
        const weft_activation_forward_args gelu = weft_gemm_gelu(args);
        return note_activation_forward(lane, &gelu);
    }
    const weft_activation_backward_args gelu = weft_gemm_gelu_backward(args);
    return note_activation_backward(lane, &gelu);
}

/* A slot's initializer; of gemm's row it is note_product. */
#define note_gemm note_product
const weft_kernel_ops weft_kernel_ops_note = {.name = "note",
#define SLOT(kernel) .kernel = note_##kernel,
                                              WEFT_KERNEL_LIST(SLOT)
#undef SLOT
};
#undef note_gemm
