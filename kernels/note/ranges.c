/* A table: each kernel's operands, one a line. A kernel that reads rows by an index reads, as far
 * as is known, all of them. */
#include "kernels/note/ranges.h"

#include <string.h>

#include "core/device/device.h"
#include "kernels/flops.h"

/* Noted in parts where a kernel has more. */
enum { MOST = 16 };
typedef struct touched {
    weft_lane *lane;
    const char *kernel;
    weft_status status;
    size_t count;
    weft_range all[MOST];
} touched;

static void note(touched *t)
{
    if (t->status == WEFT_OK && t->count > 0)
        t->status = weft_note_ranges(t->lane, t->kernel, t->all, t->count);
    t->count = 0;
}

static void add(touched *t, const char *name, const void *base, bool writes, size_t bytes,
                size_t rows, size_t stride)
{
    if (!base || bytes == 0)
        return;
    if (t->count == MOST)
        note(t);
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
    add(t, #operand, a->operand, false, (count) * sizeof *a->operand, 0, 0)
#define WRITES(operand, count)                                                                     \
    add(t, #operand, a->operand, true, (count) * sizeof *a->operand, 0, 0)
#define READS_OF(dtype, operand, count)                                                            \
    add(t, #operand, a->operand, false, (count)*weft_dtype_bytes(dtype), 0, 0)
#define WRITES_OF(dtype, operand, count)                                                           \
    add(t, #operand, a->operand, true, (count)*weft_dtype_bytes(dtype), 0, 0)
#define READS_ROWS(dtype, operand, rows, width, stride)                                            \
    add_rows(t, #operand, a->operand, false, dtype, rows, width, stride)
#define WRITES_ROWS(dtype, operand, rows, width, stride)                                           \
    add_rows(t, #operand, a->operand, true, dtype, rows, width, stride)

static void add_rows(touched *t, const char *name, const void *base, bool writes, weft_dtype dtype,
                     size_t rows, size_t width, size_t stride)
{
    const size_t each = weft_dtype_bytes(dtype);
    if (rows > 0)
        add(t, name, base, writes, width * each, rows, (stride ? stride : width) * each);
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
static void add_groups(touched *t, const weft_grouped_gemm_args *a)
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
            add(t, is_gradient ? "wgrad" : "w", at, is_gradient, count * each, 0, 0);
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
    add(t, "x", x ? x + first * a->in * each : x, a->kind == WEFT_GROUPED_DGRAD,
        rows * a->in * each, 0, 0);
    add(t, "y", y ? y + first * a->out * each : y, a->kind == WEFT_GROUPED_FORWARD,
        rows * a->out * each, 0, 0);
    READS(row_offsets, a->num_groups + 1);
    READS(w_of, a->num_groups);
    READS(wgrad_of, a->num_groups);
    add_groups(t, a);
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
    add(t, "y", y ? y + first * a->cols * weft_dtype_bytes(a->dtype) : y, true,
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
static void add_heads(touched *t, const char *name, const void *base, bool writes, weft_dtype dtype,
                      const weft_heads_shape *s)
{
    for (size_t g = 0; g < s->groups && base; g++)
        add_rows(t, name, (const char *)base + g * s->group_stride * weft_dtype_bytes(dtype),
                 writes, dtype, s->tokens, s->heads * s->head_dim, s->token_stride);
}

static size_t heads_weights(const weft_heads_shape *s, const float *sums)
{
    return (sums ? s->groups * s->heads : 1) * s->head_dim;
}

KERNEL(heads_norm_forward)
{
    add_heads(t, "x", a->x, false, a->dtype, &a->shape);
    READS_OF(a->dtype, weight, heads_weights(&a->shape, a->sums));
    READS_OF(a->dtype, bias, a->shape.head_dim);
    READS(sums, a->shape.tokens);
    add_heads(t, "y", a->y, true, a->dtype, &a->shape);
}

KERNEL(heads_norm_backward)
{
    add_heads(t, "x", a->x, false, a->dtype, &a->shape);
    READS_OF(a->dtype, weight, heads_weights(&a->shape, a->sums));
    READS(sums, a->shape.tokens);
    READS(along, a->shape.tokens);
    add_heads(t, "dx", a->dx, true, a->dtype, &a->shape);
    WRITES(dweight, heads_weights(&a->shape, a->sums));
    WRITES(dbias, a->shape.head_dim);
}

KERNEL(heads_sums)
{
    add_heads(t, "a", a->a, false, a->dtype, &a->shape);
    add_heads(t, "b", a->b, false, a->dtype, &a->shape);
    READS_OF(a->dtype, weight, a->shape.groups * a->shape.heads * a->shape.head_dim);
    WRITES(sums, a->shape.tokens);
}

KERNEL(heads_share)
{
    add_heads(t, "heads", a->heads, !a->inverse, a->dtype, &a->shape);
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
    add(t, "row_max", a->row_max, first, a->rows * sizeof(float), 0, 0);
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
    add(t, "x", a->x, false, a->count * a->element_bytes, 0, 0);
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

#define NOTE(name)                                                                                 \
    weft_status weft_kernel_note_##name(weft_lane *lane, const weft_##name##_args *args)           \
    {                                                                                              \
        touched t = {.lane = lane, .kernel = #name};                                               \
        if (weft_lane_keeps_ranges(lane)) {                                                        \
            name##_touches(&t, args);                                                              \
            note(&t);                                                                              \
        }                                                                                          \
        return t.status;                                                                           \
    }
WEFT_KERNEL_LIST(NOTE)
#undef NOTE
