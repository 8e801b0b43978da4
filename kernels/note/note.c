/* The backend of the device `note`: each kernel is what it reads, writes and computes. */
#include "kernels/note/note.h"

#include <string.h>

#include "core/device/device.h"
#include "kernels/flops.h"
#include "kernels/kernels.h"

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
               a->rows * a->cols * (a->kind == WEFT_ACTIVATION_SWIGLU ? 3 : 2));
}

static void of_activation_backward(operations *out, const weft_activation_backward_args *a)
{
    add_memory(out, WEFT_PHASE_INPUT_GRADIENT, "activation", a->dtype,
               a->rows * a->cols * (a->kind == WEFT_ACTIVATION_SWIGLU ? 5 : 3));
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

static void of_norm_forward(operations *out, const weft_norm_forward_args *a)
{
    add_memory(out, WEFT_PHASE_FORWARD, NULL, a->dtype, (a->residual ? 4 : 2) * a->rows * a->cols);
}

static void of_norm_backward(operations *out, const weft_norm_backward_args *a)
{
    add_memory(out, WEFT_PHASE_INPUT_GRADIENT, NULL, a->dtype,
               (a->accumulate ? 4 : 3) * a->rows * a->cols);
}

static void of_rope(operations *out, const weft_rope_args *a)
{
    add_memory(out, a->inverse ? WEFT_PHASE_INPUT_GRADIENT : WEFT_PHASE_FORWARD, "rotary", a->dtype,
               2 * a->seq * a->batch * a->heads * (a->groups ? a->groups : 1) * a->rotary_dim);
}

/* `count` products of all heads with a side of queries and one of keys. */
static void add_scores(operations *out, weft_phase phase, const weft_attention_shape *s,
                       weft_dtype dtype, bool by_keys, size_t count, double flops)
{
    add(out, (weft_operation){.kind = WEFT_OPERATION_GEMM,
                              .phase = phase,
                              .module = WEFT_MODULE_ATTENTION,
                              .dtype = dtype,
                              .m = s->seq_q,
                              .n = by_keys ? s->seq_k : s->head_dim,
                              .k = by_keys ? s->head_dim : s->seq_k,
                              .count = count * s->batch * s->heads,
                              .flops = (uint64_t)((double)count * flops)});
}

static void of_attention_forward(operations *out, const weft_attention_forward_args *a)
{
    const double each = weft_attention_forward_args_flops(a) / 2;
    add_scores(out, WEFT_PHASE_FORWARD, &a->shape, a->dtype, true, 1, each);
    add_scores(out, WEFT_PHASE_FORWARD, &a->shape, a->dtype, false, 1, each);
}

static void of_attention_backward(operations *out, const weft_attention_backward_args *a)
{
    const double each = weft_attention_backward_args_flops(a) / 5;
    add_scores(out, WEFT_PHASE_RECOMPUTE, &a->shape, a->dtype, true, 1, each);
    add_scores(out, WEFT_PHASE_INPUT_GRADIENT, &a->shape, a->dtype, true, 1, each);
    add_scores(out, WEFT_PHASE_INPUT_GRADIENT, &a->shape, a->dtype, false, 3, each);
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
NONE(split_master)
NONE(join_master)
NONE(sum_squares)
NONE(find_not_finite)
NONE(hash)
NONE(scale)
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

/* --- calls ---------------------------------------------------------------------------------- */

#define RUN(name)                                                                                  \
    static weft_status run_##name(weft_lane *lane, const void *args)                               \
    {                                                                                              \
        return weft_##name(lane, args);                                                            \
    }                                                                                              \
    static const weft_kernel_noted noted_##name = {#name, sizeof(weft_##name##_args), run_##name};
WEFT_KERNEL_LIST(RUN)
#undef RUN

#define AT(kernel, field)                                                                                  \
    {                                                                                                      \
        &noted_##kernel,                                                                                   \
        {                                                                                                  \
            offsetof(weft_##kernel##_args, field),                                                       \
      _Generic(((weft_##kernel##_args *)0)->field, const int32_t *: WEFT_POINTER_INDEX,            \
               int32_t *: WEFT_POINTER_MADE_INDEX, const void *const *: WEFT_POINTER_ADDRESSES,    \
               float *const *: WEFT_POINTER_ADDRESSES, default: WEFT_POINTER_NUMBERS) \
        }                                                                                                  \
    }
#define AT2(kernel, field, other) AT(kernel, field), AT(kernel, other)
#define AT3(kernel, field, ...) AT(kernel, field), AT2(kernel, __VA_ARGS__)
#define AT4(kernel, field, ...) AT(kernel, field), AT3(kernel, __VA_ARGS__)
#define AT5(kernel, field, ...) AT(kernel, field), AT4(kernel, __VA_ARGS__)
#define AT6(kernel, field, ...) AT(kernel, field), AT5(kernel, __VA_ARGS__)
#define AT7(kernel, field, ...) AT(kernel, field), AT6(kernel, __VA_ARGS__)
#define AT8(kernel, field, ...) AT(kernel, field), AT7(kernel, __VA_ARGS__)
#define AT9(kernel, field, ...) AT(kernel, field), AT8(kernel, __VA_ARGS__)
#define AT10(kernel, field, ...) AT(kernel, field), AT9(kernel, __VA_ARGS__)
#define AT11(kernel, field, ...) AT(kernel, field), AT10(kernel, __VA_ARGS__)
/* Of kernels that a pass calls. */
static const struct {
    const weft_kernel_noted *kernel;
    weft_kernel_operand operand;
} operands_of_all[] = {
    AT5(gemm, a, b, c, bias, pre),
    AT7(grouped_gemm, row_offsets, x, w, y, wgrad, w_of, wgrad_of),
    AT3(bias_gradient, dy, db, row_offsets),
    AT8(norm_forward, x, residual, sum, weight, bias, y, mean, rstd),
    AT8(norm_backward, dy, x, weight, mean, rstd, dx, dweight, dbias),
    AT2(activation_forward, x, y),
    AT3(activation_backward, x, dy, dx),
    AT2(rope, x, index),
    AT6(attention_forward, q, k, v, out, lse, first_seen),
    AT11(attention_backward, q, k, v, out, dout, lse, delta, dq, dk, dv, first_seen),
    AT5(embedding_forward, tokens, table, positions, y, index),
    AT5(embedding_backward, tokens, dy, dtable, dpositions, index),
    AT5(cross_entropy_stats, logits, labels, row_max, row_sum, target),
    AT6(cross_entropy_loss, row_max, row_sum, target, mask, loss, loss_sum),
    AT5(cross_entropy_backward, logits, labels, row_max, row_sum, mask),
    AT4(dropout, x, residual, y, index),
    AT3(add, a, b, y),
    AT2(cast, from, to),
    AT7(route, logits, scores, top_index, top_prob, counts, score_sums, z_sum),
    AT7(route_backward, logits, scores, top_index, top_prob, dtop_prob, fraction, dlogits),
    AT9(dispatch_plan, top_index, top_prob, counts, partition_counts, row_of, token_of, dropped,
        wrong, scratch),
    AT3(permute, x, token_of, rows),
    AT3(permute_backward, drows, row_of, dx),
    AT4(combine, rows, row_of, top_prob, y),
    AT6(combine_backward, dy, rows, row_of, top_prob, drows, dtop_prob)};
#undef AT

int weft_kernel_operands(const weft_kernel_noted *kernel,
                         weft_kernel_operand out[WEFT_KERNEL_MAX_OPERANDS])
{
    int count = 0;
    for (size_t i = 0; i < sizeof operands_of_all / sizeof *operands_of_all; i++)
        if (operands_of_all[i].kernel == kernel)
            out[count++] = operands_of_all[i].operand;
    return count;
}

/* As the product and the activation's kernel after it. */
static weft_status note_fused(weft_lane *lane, const weft_gemm_args *a)
{
    const weft_gemm_args product = weft_gemm_without_epilogue(a);
    WEFT_TRY(weft_gemm(lane, &product));
    if (a->epilogue == WEFT_GEMM_GELU) {
        const weft_activation_forward_args gelu = weft_gemm_gelu(a);
        return weft_activation_forward(lane, &gelu);
    }
    const weft_activation_backward_args gelu = weft_gemm_gelu_backward(a);
    return weft_activation_backward(lane, &gelu);
}

static weft_status note(weft_lane *lane, const weft_kernel_noted *kernel, const void *args,
                        const operations *all)
{
    if (kernel == &noted_gemm && ((const weft_gemm_args *)args)->epilogue != WEFT_GEMM_PLAIN)
        return note_fused(lane, args);
    return weft_note_call(lane, kernel, args, kernel->args_bytes, all->all, all->count);
}

#define NOTE(name)                                                                                 \
    static weft_status note_##name(weft_lane *lane, const weft_##name##_args *args)                \
    {                                                                                              \
        operations all = {0};                                                                      \
        of_##name(&all, args);                                                                     \
        return note(lane, &noted_##name, args, &all);                                              \
    }
WEFT_KERNEL_LIST(NOTE)
#undef NOTE

const weft_kernel_ops weft_kernel_ops_note = {.name = "note",
#define SLOT(kernel) .kernel = note_##kernel,
                                              WEFT_KERNEL_LIST(SLOT)
#undef SLOT
};
