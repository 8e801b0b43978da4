/* The backend of the device `note`: each kernel is what it reads, writes and computes. */
#include "kernels/note/note.h"

#include <string.h>

#include "core/device/device.h"
#include "kernels/flops.h"
#include "kernels/kernels.h"

/* --- what kernels read and write ------------------------------------------------------------ */

/* A table: each kernel's operands, one a line. A kernel that reads rows by an index reads, as far
 * as is known, all of them. */

/* Noted in parts where a kernel has more. */
enum { MOST = 16 };
typedef struct touched {
    weft_lane *lane;
    const char *kernel;
    weft_status status;
    size_t count;
    weft_range all[MOST];
} touched;

static void note_touched(touched *t)
{
    if (t->status == WEFT_OK && t->count > 0)
        t->status = weft_note_ranges(t->lane, t->kernel, t->all, t->count);
    t->count = 0;
}

static void touch(touched *t, const char *name, const void *base, bool writes, size_t bytes,
                  size_t rows, size_t stride)
{
    if (!base || bytes == 0)
        return;
    if (t->count == MOST)
        note_touched(t);
    t->all[t->count++] = (weft_range){.name = name,
                                      .base = base,
                                      .bytes = bytes,
                                      .rows = rows,
                                      .stride = stride,
                                      .writes = writes};
}

/* An operand of `count` elements of its pointer's type, or of a dtype; or rows of `width` elements,
 * `stride` apart (0: dense). */
#define READS(operand, count)                                                                      \
    touch(t, #operand, a->operand, false, (count) * sizeof *a->operand, 0, 0)
#define WRITES(operand, count)                                                                     \
    touch(t, #operand, a->operand, true, (count) * sizeof *a->operand, 0, 0)
#define READS_OF(dtype, operand, count)                                                            \
    touch(t, #operand, a->operand, false, (count)*weft_dtype_bytes(dtype), 0, 0)
#define WRITES_OF(dtype, operand, count)                                                           \
    touch(t, #operand, a->operand, true, (count)*weft_dtype_bytes(dtype), 0, 0)
#define READS_ROWS(dtype, operand, rows, width, stride)                                            \
    touch_rows(t, #operand, a->operand, false, dtype, rows, width, stride)
#define WRITES_ROWS(dtype, operand, rows, width, stride)                                           \
    touch_rows(t, #operand, a->operand, true, dtype, rows, width, stride)

static void touch_rows(touched *t, const char *name, const void *base, bool writes,
                       weft_dtype dtype, size_t rows, size_t width, size_t stride)
{
    const size_t each = weft_dtype_bytes(dtype);
    if (rows > 0)
        touch(t, name, base, writes, width * each, rows, (stride ? stride : width) * each);
}

#define KERNEL(name) static void name##_touches(touched *t, const weft_##name##_args *a)

/* --- products ------------------------------------------------------------------------------- */

KERNEL(gemm)
{
    const size_t a_rows = a->transpose_a ? a->k : a->m, a_width = a->transpose_a ? a->m : a->k;
    const size_t b_rows = a->transpose_b ? a->n : a->k, b_width = a->transpose_b ? a->k : a->n;
    READS_ROWS(a->dtype, a, a_rows, a_width, a->lda);
    READS_ROWS(a->dtype, b, b_rows, b_width, a->ldb);
    READS_OF(a->dtype, bias, a->n);
    WRITES_ROWS(a->c_dtype, c, a->m, a->n, a->ldc);
    if (a->epilogue == WEFT_GEMM_GELU)
        WRITES_OF(a->c_dtype, pre, a->m * a->n);
    else if (a->epilogue == WEFT_GEMM_GELU_BACKWARD)
        READS_OF(a->c_dtype, pre, a->m * a->n);
}

/* The matrices of weights, or of their gradients, that the groups use. */
static void touch_groups(touched *t, const weft_grouped_gemm_args *a)
{
    const bool is_gradient = a->kind == WEFT_GROUPED_WGRAD;
    const size_t count = a->out * a->in, stride = a->stride ? a->stride : count;
    const size_t each = is_gradient ? sizeof(float) : weft_dtype_bytes(a->dtype);
    for (size_t g = 0; g < a->num_groups; g++) {
        const void *listed = is_gradient ? (a->wgrad_of ? (const void *)a->wgrad_of[g] : NULL)
                                         : (a->w_of ? a->w_of[g] : NULL);
        const char *base = is_gradient ? (const char *)a->wgrad : a->w;
        const void *at = (is_gradient ? a->wgrad_of != NULL : a->w_of != NULL) ? listed
                         : base ? base + g * stride * each
                                : NULL;
        if (a->row_offsets[g + 1] > a->row_offsets[g] || (is_gradient && a->overwrite))
            touch(t, is_gradient ? "wgrad" : "w", at, is_gradient, count * each, 0, 0);
    }
}

KERNEL(grouped_gemm)
{
    if (a->num_groups == 0)
        return;
    const size_t first = (size_t)a->row_offsets[0];
    const size_t rows = (size_t)a->row_offsets[a->num_groups] - first;
    const size_t each = weft_dtype_bytes(a->dtype);
    const char *x = a->x, *y = a->y;
    touch(t, "x", x ? x + first * a->in * each : x, a->kind == WEFT_GROUPED_DGRAD,
          rows * a->in * each, 0, 0);
    touch(t, "y", y ? y + first * a->out * each : y, a->kind == WEFT_GROUPED_FORWARD,
          rows * a->out * each, 0, 0);
    READS(row_offsets, a->num_groups + 1);
    READS(w_of, a->num_groups);
    READS(wgrad_of, a->num_groups);
    touch_groups(t, a);
}

KERNEL(bias_gradient)
{
    READS_ROWS(a->dtype, dy, a->rows, a->cols, a->stride);
    WRITES_ROWS(WEFT_F32, db, a->num_groups ? a->num_groups : 1, a->cols, a->group_stride);
    READS(row_offsets, a->num_groups ? a->num_groups + 1 : 0);
}

KERNEL(bias_add)
{
    const size_t num = a->num_groups;
    const size_t first = num > 0 ? (size_t)a->row_offsets[0] : 0;
    const size_t rows = num > 0 ? (size_t)a->row_offsets[num] - first : 0;
    char *y = a->y;
    touch(t, "y", y ? y + first * a->cols * weft_dtype_bytes(a->dtype) : y, true,
          rows * a->cols * weft_dtype_bytes(a->dtype), 0, 0);
    READS_ROWS(a->dtype, bias, num, a->cols, a->group_stride);
    READS(row_offsets, num > 0 ? num + 1 : 0);
}

/* --- rows ----------------------------------------------------------------------------------- */

KERNEL(norm_forward)
{
    READS_OF(a->dtype, x, a->rows * a->cols);
    READS_OF(a->dtype, residual, a->rows * a->cols);
    WRITES_OF(a->dtype, sum, a->residual ? a->rows * a->cols : 0);
    READS_OF(a->dtype, weight, a->cols);
    READS_OF(a->dtype, bias, a->cols);
    WRITES_OF(a->dtype, y, a->rows * a->cols);
    WRITES(mean, a->rows);
    WRITES(rstd, a->rows);
}

KERNEL(norm_backward)
{
    READS_OF(a->dtype, dy, a->rows * a->cols);
    READS_OF(a->dtype, x, a->rows * a->cols);
    READS_OF(a->dtype, weight, a->cols);
    READS(mean, a->rows);
    READS(rstd, a->rows);
    WRITES_OF(a->dtype, dx, a->rows * a->cols);
    WRITES(dweight, a->cols);
    WRITES(dbias, a->cols);
}

/* One range a group: other numbers lie between. */
static void touch_heads(touched *t, const char *name, const void *base, bool writes,
                        weft_dtype dtype, const weft_heads_shape *s)
{
    for (size_t g = 0; g < s->groups && base; g++)
        touch_rows(t, name, (const char *)base + g * s->group_stride * weft_dtype_bytes(dtype),
                   writes, dtype, s->tokens, s->heads * s->head_dim, s->token_stride);
}

static size_t heads_weights(const weft_heads_shape *s, const float *sums)
{
    return (sums ? s->groups * s->heads : 1) * s->head_dim;
}

KERNEL(heads_norm_forward)
{
    touch_heads(t, "x", a->x, false, a->dtype, &a->shape);
    READS_OF(a->dtype, weight, heads_weights(&a->shape, a->sums));
    READS_OF(a->dtype, bias, a->shape.head_dim);
    READS(sums, a->shape.tokens);
    touch_heads(t, "y", a->y, true, a->dtype, &a->shape);
}

KERNEL(heads_norm_backward)
{
    touch_heads(t, "x", a->x, false, a->dtype, &a->shape);
    READS_OF(a->dtype, weight, heads_weights(&a->shape, a->sums));
    READS(sums, a->shape.tokens);
    READS(along, a->shape.tokens);
    touch_heads(t, "dx", a->dx, true, a->dtype, &a->shape);
    WRITES(dweight, heads_weights(&a->shape, a->sums));
    WRITES(dbias, a->shape.head_dim);
}

KERNEL(heads_sums)
{
    touch_heads(t, "a", a->a, false, a->dtype, &a->shape);
    touch_heads(t, "b", a->b, false, a->dtype, &a->shape);
    READS_OF(a->dtype, weight, a->shape.groups * a->shape.heads * a->shape.head_dim);
    WRITES(sums, a->shape.tokens);
}

KERNEL(heads_share)
{
    touch_heads(t, "heads", a->heads, !a->inverse, a->dtype, &a->shape);
    if (a->inverse)
        WRITES_OF(a->dtype, one, a->shape.tokens * a->shape.head_dim);
    else
        READS_OF(a->dtype, one, a->shape.tokens * a->shape.head_dim);
}

static size_t inputs(weft_activation_kind kind)
{
    return weft_activation_is_gated(kind) ? 2 : 1;
}

KERNEL(activation_forward)
{
    READS_OF(a->dtype, x, a->rows * a->cols * inputs(a->kind));
    WRITES_OF(a->dtype, y, a->rows * a->cols);
}

KERNEL(activation_backward)
{
    READS_OF(a->dtype, x, a->rows * a->cols * inputs(a->kind));
    READS_OF(a->dtype, dy, a->rows * a->cols);
    WRITES_OF(a->dtype, dx, a->rows * a->cols * inputs(a->kind));
}

KERNEL(rope)
{
    const size_t groups = a->groups ? a->groups : 1;
    const size_t width =
        (groups - 1) * a->group_stride + (a->heads - 1) * a->head_stride + a->head_dim;
    WRITES_ROWS(a->dtype, x, a->seq * a->batch, width, a->token_stride);
    READS(index, a->seq * (a->index_by_sample ? a->batch : 1));
}

KERNEL(dropout)
{
    READS_OF(a->dtype, x, a->rows * a->cols);
    READS_OF(a->dtype, residual, a->rows * a->cols);
    WRITES_OF(a->dtype, y, a->rows * a->cols);
    READS(index, a->batch ? (a->first_row + a->rows + a->batch - 1) / a->batch : 0);
}

KERNEL(add)
{
    READS_OF(a->dtype, a, a->count);
    READS_OF(a->dtype, b, a->count);
    WRITES_OF(a->dtype, y, a->count);
}

KERNEL(cast)
{
    const size_t rows = a->rows ? a->rows : 1;
    READS_ROWS(a->from_dtype, from, rows, a->count, a->rows ? a->from_stride : 0);
    WRITES_ROWS(a->to_dtype, to, rows, a->count, a->rows ? a->to_stride : 0);
}

/* --- attention ------------------------------------------------------------------------------ */

/* A token's queries, keys or values, from the first group's to the last group's. */
static size_t query_width(const weft_attention_shape *s, size_t group_stride)
{
    return (s->groups - 1) * group_stride + s->heads / s->groups * s->head_dim;
}

static size_t key_width(const weft_attention_shape *s, size_t group_stride, size_t dim)
{
    return (s->groups - 1) * group_stride + dim;
}

KERNEL(attention_forward)
{
    const weft_attention_shape *s = &a->shape;
    const size_t value = weft_value_dim(s, a->value_dim);
    const size_t queries = s->seq_q * s->batch, keys = s->seq_k * s->batch;
    const weft_dtype result = a->piece == WEFT_ATTENTION_WHOLE ? a->dtype : WEFT_F32;
    READS_ROWS(a->dtype, q, queries, query_width(s, s->q_group_stride), s->q_token_stride);
    READS_ROWS(a->dtype, k, keys, key_width(s, s->k_group_stride, s->head_dim), s->k_token_stride);
    READS_ROWS(a->dtype, v, keys, key_width(s, s->k_group_stride, value), s->k_token_stride);
    WRITES_OF(result, out, queries * s->heads * value);
    WRITES(lse, queries * s->heads);
    READS(first_seen, queries);
    READS_OF(a->dtype, variant.sinks, s->heads);
}

KERNEL(attention_sinks)
{
    READS_OF(a->dtype, sinks, a->heads);
    READS(lse, a->batch * a->heads * a->seq);
    READS(delta, a->batch * a->heads * a->seq);
    WRITES(dsinks, a->heads);
}

KERNEL(attention_backward)
{
    const weft_attention_shape *s = &a->shape;
    const size_t value = weft_value_dim(s, a->value_dim);
    const size_t queries = s->seq_q * s->batch, keys = s->seq_k * s->batch;
    const bool whole = a->piece == WEFT_ATTENTION_WHOLE;
    const weft_dtype dtype = whole ? a->dtype : WEFT_F32;
    const size_t q_token = whole ? s->q_token_stride : a->dq_token_stride;
    const size_t q_group = whole ? s->q_group_stride : a->dq_group_stride;
    const size_t k_token = whole ? s->k_token_stride : a->dk_token_stride;
    const size_t k_group = whole ? s->k_group_stride : a->dk_group_stride;
    READS_ROWS(a->dtype, q, queries, query_width(s, s->q_group_stride), s->q_token_stride);
    READS_ROWS(a->dtype, k, keys, key_width(s, s->k_group_stride, s->head_dim), s->k_token_stride);
    READS_ROWS(a->dtype, v, keys, key_width(s, s->k_group_stride, value), s->k_token_stride);
    READS_OF(a->dtype, out, queries * s->heads * value);
    READS_OF(a->dtype, dout, queries * s->heads * value);
    READS(lse, queries * s->heads);
    WRITES(delta, queries * s->heads);
    WRITES_ROWS(dtype, dq, queries, query_width(s, q_group), q_token);
    WRITES_ROWS(dtype, dk, keys, key_width(s, k_group, s->head_dim), k_token);
    WRITES_ROWS(dtype, dv, keys, key_width(s, k_group, value), k_token);
    READS(first_seen, queries);
}

/* --- the ends of a model -------------------------------------------------------------------- */

/* Of a batch that the last tokens may not fill. */
static size_t index_count(size_t num_tokens, size_t batch, bool by_sample)
{
    return by_sample || batch == 0 ? num_tokens : (num_tokens + batch - 1) / batch;
}

KERNEL(embedding_forward)
{
    READS(tokens, a->num_tokens);
    READS_OF(a->dtype, table, a->num_rows * a->cols);
    READS_OF(a->dtype, positions, a->num_positions * a->cols);
    WRITES_OF(a->dtype, y, a->num_tokens * a->cols);
    READS(index, index_count(a->num_tokens, a->batch, a->index_by_sample));
}

KERNEL(embedding_backward)
{
    READS(tokens, a->num_tokens);
    READS_OF(a->dtype, dy, a->num_tokens * a->cols);
    WRITES(dtable, a->num_rows * a->cols);
    WRITES(dpositions, a->num_positions * a->cols);
    READS(index, index_count(a->num_tokens, a->batch, a->index_by_sample));
}

KERNEL(cross_entropy_stats)
{
    const bool first = a->pass != WEFT_CROSS_ENTROPY_SUM, last = a->pass != WEFT_CROSS_ENTROPY_MAX;
    READS_OF(a->dtype, logits, a->rows * a->cols);
    READS(labels, a->rows);
    touch(t, "row_max", a->row_max, first, a->rows * sizeof(float), 0, 0);
    WRITES(row_sum, last ? a->rows : 0);
    WRITES(target, last ? a->rows : 0);
}

KERNEL(cross_entropy_loss)
{
    READS(row_max, a->rows);
    READS(row_sum, a->rows);
    READS(target, a->rows);
    READS(mask, a->rows);
    WRITES(loss, a->rows);
    WRITES(loss_sum, 1);
}

KERNEL(cross_entropy_backward)
{
    WRITES_OF(a->dtype, logits, a->rows * a->cols);
    READS(labels, a->rows);
    READS(row_max, a->rows);
    READS(row_sum, a->rows);
    READS(mask, a->rows);
}

/* --- experts -------------------------------------------------------------------------------- */

KERNEL(route)
{
    READS(logits, a->num_tokens * a->num_experts);
    WRITES(scores, a->num_tokens * a->num_experts);
    WRITES(top_index, a->num_tokens * a->topk);
    WRITES(top_prob, a->num_tokens * a->topk);
    const size_t sequences = a->num_sequences > 0 ? a->num_sequences : 1;
    WRITES(counts, sequences * a->num_experts);
    WRITES(score_sums, sequences * a->num_experts);
    WRITES(z_sum, sequences);
    READS(bias, a->num_experts);
}

KERNEL(route_backward)
{
    READS(logits, a->num_tokens * a->num_experts);
    READS(scores, a->num_tokens * a->num_experts);
    READS(top_index, a->num_tokens * a->topk);
    READS(top_prob, a->num_tokens * a->topk);
    READS(dtop_prob, a->num_tokens * a->topk);
    READS(fraction, (a->num_sequences > 0 ? a->num_sequences : 1) * a->num_experts);
    WRITES(dlogits, a->num_tokens * a->num_experts);
}

KERNEL(dispatch_plan)
{
    const size_t choices = a->num_tokens * a->topk;
    READS(top_index, choices);
    READS(top_prob, choices);
    WRITES(counts, a->num_experts);
    WRITES(partition_counts, a->num_partitions > 1 ? a->num_partitions * a->num_experts : 0);
    WRITES(row_of, choices);
    WRITES(token_of, choices);
    WRITES(dropped, 1);
    WRITES(wrong, 1);
    WRITES(scratch, choices);
}

KERNEL(permute)
{
    READS_OF(a->dtype, x, (a->num_tokens ? a->num_tokens : 1) * a->cols);
    READS(token_of, a->num_rows);
    WRITES_OF(a->dtype, rows, a->num_rows * a->cols);
}

KERNEL(permute_backward)
{
    READS_OF(a->dtype, drows, a->num_rows * a->cols);
    READS(row_of, a->num_tokens * a->topk);
    WRITES_OF(a->dtype, dx, a->num_tokens * a->cols);
}

KERNEL(combine)
{
    READS_OF(a->dtype, rows, a->num_rows * a->cols);
    READS(row_of, a->num_tokens * a->topk);
    READS(top_prob, a->num_tokens * a->topk);
    WRITES_OF(a->dtype, y, a->num_tokens * a->cols);
}

KERNEL(combine_backward)
{
    READS_OF(a->dtype, dy, a->num_tokens * a->cols);
    READS_OF(a->dtype, rows, a->num_rows * a->cols);
    READS(row_of, a->num_tokens * a->topk);
    READS(top_prob, a->num_tokens * a->topk);
    WRITES_OF(a->dtype, drows, a->num_rows * a->cols);
    WRITES(dtop_prob, a->num_tokens * a->topk);
}

/* --- parameters ----------------------------------------------------------------------------- */

KERNEL(adamw)
{
    WRITES(master, a->count);
    WRITES(m, a->count);
    WRITES(v, a->count);
    WRITES(low, a->count);
    READS(grad, a->count);
    READS(grad_scale, 1);
    WRITES_OF(a->dtype, weight, a->count);
}

KERNEL(momentum)
{
    WRITES(m, a->count);
    WRITES(grad, a->count);
    READS(grad_scale, 1);
}

KERNEL(matrix_copy)
{
    READS_ROWS(WEFT_F32, from, a->rows, a->cols, a->ld_from);
    WRITES_ROWS(WEFT_F32, to, a->rows, a->cols, a->ld_to);
    READS(squares, 1);
}

KERNEL(split_master)
{
    READS(master, a->count);
    WRITES_OF(WEFT_BF16, weight, a->count);
    WRITES(low, a->count);
}

KERNEL(join_master)
{
    READS_OF(WEFT_BF16, weight, a->count);
    READS(low, a->count);
    WRITES(master, a->count);
}

KERNEL(sum_squares)
{
    READS(x, a->count);
    WRITES(sum, 1);
}

KERNEL(find_not_finite)
{
    READS(x, a->count);
    READS(ends, a->num_parts);
    WRITES(found, a->num_parts);
}

KERNEL(hash)
{
    touch(t, "x", a->x, false, a->count * a->element_bytes, 0, 0);
    READS(ends, a->num_parts);
    WRITES(hashes, a->num_parts);
}

KERNEL(scale)
{
    WRITES_OF(a->dtype, x, a->count);
}

KERNEL(random_normal)
{
    size_t count = 1;
    for (int d = 0; d < a->num_dims; d++)
        count *= a->local_dims[d];
    WRITES_OF(a->dtype, x, count);
}

/* --- all ------------------------------------------------------------------------------------ */

/* Notes the ranges of a call on a lane whose device keeps ranges; else it does nothing. */
#define NOTE(name)                                                                                 \
    static weft_status note_##name##_ranges(weft_lane *lane, const weft_##name##_args *args)       \
    {                                                                                              \
        touched t = {.lane = lane, .kernel = #name};                                               \
        if (weft_lane_keeps_ranges(lane)) {                                                        \
            name##_touches(&t, args);                                                              \
            note_touched(&t);                                                                      \
        }                                                                                          \
        return t.status;                                                                           \
    }
WEFT_KERNEL_LIST(NOTE)
#undef NOTE

#define NOTE_HOST(name)                                                                            \
    weft_status weft_note_host_##name(weft_lane *lane, const weft_##name##_args *args)             \
    {                                                                                              \
        return note_##name##_ranges(lane, args);                                                   \
    }
NOTE_HOST(adamw)
NOTE_HOST(add)
NOTE_HOST(sum_squares)
NOTE_HOST(find_not_finite)
#undef NOTE_HOST

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
        WEFT_TRY(note_##name##_ranges(lane, args));                                                \
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
