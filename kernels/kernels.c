#include "kernels/kernels.h"

#include <string.h>

#include "core/sized.h"

static weft_kernel_watch watching;

void weft_kernels_watch(weft_kernel_watch watch)
{
    watching = watch;
}

/* What is wrong with a kernel's arguments, or NULL. Operands may be NULL where the work is empty:
 * a rank without tokens still calls its kernels. Values on the device are not looked at. */

/* NULL, or what is wrong with activations of `dtype` on this lane's device. */
static const char *wrong_dtype(const weft_lane *lane, weft_dtype dtype)
{
    if (dtype == WEFT_F32 || dtype == WEFT_BF16)
        return NULL;
    if (dtype != WEFT_F16)
        return "dtype must be fp32, bf16 or fp16";
    return strcmp(weft_device_name(weft_lane_device(lane)), "cpu")
               ? NULL
               : "dtype must be fp32 or bf16: only CUDA devices compute in fp16";
}

static const char *wrong_epilogue(const weft_gemm_args *a)
{
    if (a->epilogue == WEFT_GEMM_PLAIN)
        return NULL;
    if (a->epilogue != WEFT_GEMM_GELU && a->epilogue != WEFT_GEMM_GELU_BACKWARD)
        return "unknown epilogue";
    if (a->beta != 0)
        return "beta must be 0 with an epilogue";
    if (a->ldc && a->ldc != a->n)
        return "c must be dense with an epilogue";
    if (a->epilogue == WEFT_GEMM_GELU_BACKWARD && a->bias)
        return "GELU's backward takes no bias";
    if (a->m > 0 && a->n > 0 && (!a->pre || a->pre == a->c))
        return "an epilogue needs pre, apart from c";
    return NULL;
}

static const char *check_gemm(const weft_gemm_args *a)
{
    if (a->c_dtype != a->dtype && a->c_dtype != WEFT_F32)
        return "c_dtype must be dtype or fp32";
    const char *wrong = wrong_epilogue(a);
    if (wrong)
        return wrong;
    if (a->m == 0 || a->n == 0)
        return NULL;
    if (!a->c || (a->k > 0 && (!a->a || !a->b)))
        return "a, b and c are required";
    if (a->lda && a->lda < (a->transpose_a ? a->m : a->k))
        return "lda is shorter than a row of a";
    if (a->ldb && a->ldb < (a->transpose_b ? a->k : a->n))
        return "ldb is shorter than a row of b";
    if (a->ldc && a->ldc < a->n)
        return "ldc is shorter than a row of c";
    return NULL;
}

static const char *check_grouped_gemm(const weft_grouped_gemm_args *a)
{
    if (a->kind != WEFT_GROUPED_FORWARD && a->kind != WEFT_GROUPED_DGRAD &&
        a->kind != WEFT_GROUPED_WGRAD)
        return "unknown kind";
    if (a->num_groups == 0 || a->in == 0 || a->out == 0)
        return NULL;
    if (!a->row_offsets)
        return "row_offsets is required";
    if (a->stride && a->stride < a->in * a->out)
        return "stride is less than a group's matrix";
    const bool wgrad = a->kind == WEFT_GROUPED_WGRAD;
    if (wgrad ? !a->wgrad && !a->wgrad_of : !a->w && !a->w_of)
        return "the weight (or wgrad) is required";
    for (size_t g = 0;
         (wgrad ? (const void *)a->wgrad_of : (const void *)a->w_of) && g < a->num_groups; g++)
        if (a->row_offsets[g + 1] > a->row_offsets[g] &&
            !(wgrad ? (const void *)a->wgrad_of[g] : a->w_of[g]))
            return "the weight (or wgrad) of a group with rows is required";
    return NULL;
}

static const char *check_bias_gradient(const weft_bias_gradient_args *a)
{
    if (a->num_groups > 0 && !a->row_offsets)
        return "row_offsets is required with groups";
    if (a->cols > 0 && (!a->db || (a->rows > 0 && !a->dy)))
        return "dy and db are required";
    if (a->stride > 0 && a->stride < a->cols)
        return "rows of dy overlap";
    return NULL;
}

static const char *check_bias_add(const weft_bias_add_args *a)
{
    if (a->num_groups > 0 && !a->row_offsets)
        return "row_offsets are required";
    return a->num_groups > 0 && a->cols > 0 && (!a->bias || !a->y) ? "bias and y are required"
                                                                   : NULL;
}

static const char *check_norm_forward(const weft_norm_forward_args *a)
{
    if (a->kind != WEFT_NORM_LAYER && a->kind != WEFT_NORM_RMS)
        return "unknown kind";
    if (a->kind == WEFT_NORM_RMS && a->bias)
        return "RMSNorm has no bias";
    if (a->rows == 0 || a->cols == 0)
        return NULL;
    if (!a->x || !a->weight || !a->y || !a->rstd)
        return "x, weight, y and rstd are required";
    if (a->residual && !a->sum)
        return "sum is required with a residual";
    return NULL;
}

static const char *check_norm_backward(const weft_norm_backward_args *a)
{
    if (a->kind != WEFT_NORM_LAYER && a->kind != WEFT_NORM_RMS)
        return "unknown kind";
    if (a->kind == WEFT_NORM_RMS && a->dbias)
        return "RMSNorm has no bias";
    if (a->cols == 0)
        return NULL;
    if (!a->weight || !a->dweight)
        return "weight and dweight are required";
    if (a->rows > 0 && (!a->dy || !a->x || !a->rstd || !a->dx))
        return "dy, x, rstd and dx are required";
    if (a->rows > 0 && a->kind == WEFT_NORM_LAYER && !a->mean)
        return "LayerNorm's backward needs the mean";
    return NULL;
}

static const char *check_heads_norm(const weft_heads_shape *s, weft_norm_kind kind,
                                    const float *sums, size_t whole)
{
    if (kind != WEFT_NORM_LAYER && kind != WEFT_NORM_RMS)
        return "unknown kind";
    if (s->head_dim > WEFT_MAX_NORMED_HEAD_DIM)
        return "head_dim is above WEFT_MAX_NORMED_HEAD_DIM";
    if (sums && (kind != WEFT_NORM_RMS || whole == 0))
        return "sums are RMSNorm's, of a whole that is not 0";
    return NULL;
}

static const char *check_heads_norm_forward(const weft_heads_norm_forward_args *a)
{
    const char *wrong = check_heads_norm(&a->shape, a->kind, a->sums, a->whole);
    if (wrong)
        return wrong;
    if (a->kind == WEFT_NORM_RMS && a->bias)
        return "RMSNorm has no bias";
    if (a->shape.tokens > 0 && (!a->x || !a->weight || !a->y))
        return "x, weight and y are required";
    return NULL;
}

static const char *check_heads_norm_backward(const weft_heads_norm_backward_args *a)
{
    const char *wrong = check_heads_norm(&a->shape, a->kind, a->sums, a->whole);
    if (wrong)
        return wrong;
    if (a->kind == WEFT_NORM_RMS && a->dbias)
        return "RMSNorm has no bias";
    if (!a->weight || !a->dweight)
        return "weight and dweight are required";
    if (a->shape.tokens > 0 && (!a->x || !a->dx || (a->sums && !a->along)))
        return "x, dx and, with sums, along are required";
    return NULL;
}

static const char *check_heads_sums(const weft_heads_sums_args *a)
{
    return a->shape.tokens > 0 && (!a->a || !a->b || !a->sums) ? "a, b and sums are required"
                                                               : NULL;
}

static const char *check_heads_share(const weft_heads_share_args *a)
{
    return a->shape.tokens > 0 && (!a->one || !a->heads) ? "one and heads are required" : NULL;
}

static bool is_activation_kind(weft_activation_kind kind)
{
    switch (kind) {
    case WEFT_ACTIVATION_GELU:
    case WEFT_ACTIVATION_SWIGLU:
    case WEFT_ACTIVATION_SILU:
    case WEFT_ACTIVATION_RELU:
    case WEFT_ACTIVATION_GEGLU:
    case WEFT_ACTIVATION_QUICK_GEGLU:
        return true;
    case WEFT_ACTIVATION_CAP: /* forward alone */
        return false;
    }
    return false;
}

static const char *check_activation_forward(const weft_activation_forward_args *a)
{
    if (!is_activation_kind(a->kind) && a->kind != WEFT_ACTIVATION_CAP)
        return "unknown kind";
    if (a->kind == WEFT_ACTIVATION_CAP && !(a->limit > 0))
        return "a cap needs a limit above 0";
    if (a->rows > 0 && a->cols > 0 && (!a->x || !a->y))
        return "x and y are required";
    return NULL;
}

static const char *check_activation_backward(const weft_activation_backward_args *a)
{
    if (!is_activation_kind(a->kind))
        return "unknown kind";
    if (a->rows > 0 && a->cols > 0 && (!a->x || !a->dy || !a->dx))
        return "x, dy and dx are required";
    return NULL;
}

static const char *check_rope(const weft_rope_args *a)
{
    if (a->rotary_dim > a->head_dim || a->rotary_dim % 2)
        return "rotary_dim must be even and within head_dim";
    if (!(a->base > 0))
        return "base must be positive";
    if (a->magnitude < 0 || a->scaling.factor < 0)
        return "magnitude and the scaling's factor must not be negative";
    if (a->scaling.factor > 0 && a->scaling.begin == a->scaling.end)
        return "the scaling's begin and end must differ";
    if (a->groups > 1 && a->group_stride == 0)
        return "several groups need a group_stride";
    if (a->seq > 0 && a->batch > 0 && a->heads > 0 && !a->x)
        return "x is required";
    return NULL;
}

static const char *check_variant(const weft_attention_variant *v, bool causal)
{
    if ((v->window > 0 || v->chunk > 0) && !causal)
        return "a window and chunks are of causal attention";
    return v->softcap >= 0 ? NULL : "softcap must not be negative";
}

static const char *check_attention_shape(const weft_attention_shape *s, size_t first_key, int piece)
{
    if (piece < WEFT_ATTENTION_WHOLE || piece > WEFT_ATTENTION_NEXT)
        return "piece must be whole, first or next";
    if (s->heads == 0 || s->groups == 0 || s->heads % s->groups)
        return "heads must be a multiple of groups";
    if (s->head_dim == 0)
        return "head_dim must be positive";
    if (!(s->dropout >= 0 && s->dropout < 1))
        return "dropout must be in [0, 1)";
    if (s->seq_k == 0 && s->seq_q > 0)
        return "queries need keys";
    if (s->q_token_stride < s->heads / s->groups * s->head_dim || s->k_token_stride < s->head_dim)
        return "a token stride is shorter than what a token holds";
    if (s->dropout > 0 &&
        (s->total_heads < s->first_head + s->heads || s->total_seq < first_key + s->seq_k ||
         s->total_seq < s->first_query + s->seq_q))
        return "total_heads or total_seq is smaller than what is computed here";
    return NULL;
}

static const char *check_attention_forward(const weft_attention_forward_args *a)
{
    const char *wrong = check_attention_shape(&a->shape, a->first_key, (int)a->piece);
    if (!wrong)
        wrong = check_variant(&a->variant, a->shape.causal);
    if (wrong)
        return wrong;
    if (a->shape.seq_q > 0 && a->shape.batch > 0 && (!a->q || !a->k || !a->v || !a->out || !a->lse))
        return "q, k, v, out and lse are required";
    return NULL;
}

static const char *check_attention_backward(const weft_attention_backward_args *a)
{
    const char *wrong = check_attention_shape(&a->shape, a->first_key, (int)a->piece);
    if (!wrong)
        wrong = check_variant(&a->variant, a->shape.causal);
    if (wrong)
        return wrong;
    if (a->shape.seq_q == 0 || a->shape.batch == 0)
        return NULL;
    if (!a->q || !a->k || !a->v || !a->out || !a->dout || !a->lse || !a->delta)
        return "q, k, v, out, dout, lse and delta are required";
    if (!a->dq || !a->dk || !a->dv)
        return "dq, dk and dv are required";
    if (a->piece != WEFT_ATTENTION_WHOLE &&
        (a->dq_token_stride < a->shape.heads / a->shape.groups * a->shape.head_dim ||
         a->dk_token_stride < a->shape.head_dim))
        return "a gradient's token stride is shorter than what a token holds";
    return NULL;
}

static const char *check_attention_sinks(const weft_attention_sinks_args *a)
{
    if (a->heads > 0 && (!a->sinks || !a->dsinks))
        return "sinks and dsinks are required";
    return a->seq * a->batch > 0 && (!a->lse || !a->delta) ? "lse and delta are required" : NULL;
}

static const char *check_embedding_forward(const weft_embedding_forward_args *a)
{
    if (a->batch == 0)
        return "batch must be positive";
    if (!a->table && !a->positions)
        return "table or positions is required";
    if (a->num_tokens > 0 && a->cols > 0 && (!a->y || (a->table && !a->tokens)))
        return "tokens and y are required";
    return NULL;
}

static const char *check_embedding_backward(const weft_embedding_backward_args *a)
{
    if (a->batch == 0)
        return "batch must be positive";
    if (a->num_tokens > 0 && a->cols > 0 && (!a->dy || (a->dtable && !a->tokens)))
        return "tokens and dy are required";
    return NULL;
}

static const char *check_cross_entropy_stats(const weft_cross_entropy_stats_args *a)
{
    if (a->pass != WEFT_CROSS_ENTROPY_MAX && a->pass != WEFT_CROSS_ENTROPY_SUM &&
        a->pass != WEFT_CROSS_ENTROPY_FUSED)
        return "unknown pass";
    if (a->valid_cols > a->cols)
        return "valid_cols exceeds cols";
    if (a->rows == 0)
        return NULL;
    if ((!a->logits && a->cols > 0) || !a->row_max)
        return "logits and row_max are required";
    if (a->pass != WEFT_CROSS_ENTROPY_MAX && (!a->labels || !a->row_sum || !a->target))
        return "labels, row_sum and target are required";
    return NULL;
}

static const char *check_cross_entropy_loss(const weft_cross_entropy_loss_args *a)
{
    if (!a->loss_sum)
        return "loss_sum is required";
    if (a->rows > 0 && (!a->row_max || !a->row_sum || !a->target))
        return "row_max, row_sum and target are required";
    return NULL;
}

static const char *check_cross_entropy_backward(const weft_cross_entropy_backward_args *a)
{
    if (a->valid_cols > a->cols)
        return "valid_cols exceeds cols";
    if (a->rows > 0 && a->cols > 0 && (!a->logits || !a->labels || !a->row_max || !a->row_sum))
        return "logits, labels, row_max and row_sum are required";
    return NULL;
}

static const char *check_dropout(const weft_dropout_args *a)
{
    if (!(a->p >= 0 && a->p < 1))
        return "p must be in [0, 1)";
    if (a->rows > 0 && a->cols > 0 && (!a->x || !a->y))
        return "x and y are required";
    if (a->index && a->batch == 0)
        return "batch must be positive with index";
    return NULL;
}

static const char *check_add(const weft_add_args *a)
{
    if (a->count > 0 && (!a->a || !a->b || !a->y))
        return "a, b and y are required";
    return NULL;
}

static bool is_castable(weft_dtype dtype)
{
    return dtype == WEFT_F32 || dtype == WEFT_BF16 || dtype == WEFT_F16;
}

static const char *check_cast(const weft_cast_args *a)
{
    if (!is_castable(a->from_dtype) || !is_castable(a->to_dtype))
        return "casts are between fp32, bf16 and fp16";
    if (a->count > 0 && (!a->from || !a->to))
        return "from and to are required";
    if (a->rows > 1 && (a->from_stride < a->count || a->to_stride < a->count))
        return "a stride is shorter than a row";
    return NULL;
}

static const char *check_route(const weft_route_args *a)
{
    if (a->topk == 0 || a->topk > a->num_experts)
        return "topk must be from 1 to num_experts";
    if (!a->counts || !a->score_sums || !a->z_sum)
        return "counts, score_sums and z_sum are required";
    if (a->num_groups > 0 &&
        (a->num_experts % a->num_groups != 0 || a->group_topk == 0 ||
         a->group_topk > a->num_groups || a->num_groups > WEFT_MAX_EXPERT_GROUPS ||
         a->group_topk * (a->num_experts / a->num_groups) < a->topk))
        return "num_groups must divide the experts, and group_topk of them hold topk";
    if (a->num_tokens > 0 && (!a->logits || !a->scores || !a->top_index || !a->top_prob))
        return "logits, scores, top_index and top_prob are required";
    if (a->num_sequences > 0 && a->num_tokens % a->num_sequences != 0)
        return "num_sequences must divide num_tokens";
    return NULL;
}

static const char *check_route_backward(const weft_route_backward_args *a)
{
    if (a->topk == 0 || a->topk > a->num_experts)
        return "topk must be from 1 to num_experts";
    if (a->aux_scale != 0 && !a->fraction)
        return "fraction is required with aux_scale";
    if (a->num_sequences > 0 && a->num_tokens % a->num_sequences != 0)
        return "num_sequences must divide num_tokens";
    if (a->num_tokens == 0)
        return NULL;
    if (!a->logits || !a->scores || !a->top_index || !a->top_prob || !a->dtop_prob || !a->dlogits)
        return "logits, scores, top_index, top_prob, dtop_prob and dlogits are required";
    return NULL;
}

static const char *check_dispatch_plan(const weft_dispatch_plan_args *a)
{
    if (a->topk == 0 || a->topk > a->num_experts)
        return "topk must be from 1 to num_experts";
    if (a->first_expert + a->num_local > a->num_experts)
        return "the local experts reach beyond num_experts";
    if (a->policy != WEFT_DROP_PROBS && a->policy != WEFT_DROP_POSITION)
        return "unknown policy";
    if (!a->counts || (a->capacity > 0 && !a->dropped))
        return "counts (and dropped, with a capacity) are required";
    if (!a->wrong)
        return "wrong is required";
    if (a->num_partitions > 1 && !a->partition_counts)
        return "partition_counts are required with partitions";
    if (a->num_tokens == 0)
        return NULL;
    if (!a->top_index || !a->row_of || !a->token_of || !a->scratch)
        return "top_index, row_of, token_of and scratch are required";
    if (a->capacity > 0 && a->policy == WEFT_DROP_PROBS && !a->top_prob)
        return "top_prob is required to drop by it";
    return NULL;
}

static const char *check_permute(const weft_permute_args *a)
{
    if (a->num_rows > 0 && a->cols > 0 && (!a->x || !a->token_of || !a->rows))
        return "x, token_of and rows are required";
    return NULL;
}

/* drows may be NULL: a rank that no token chose has no rows. */
static const char *check_permute_backward(const weft_permute_backward_args *a)
{
    if (a->num_tokens > 0 && a->cols > 0 && (!a->row_of || !a->dx))
        return "row_of and dx are required";
    return NULL;
}

static const char *check_combine(const weft_combine_args *a)
{
    if (a->num_tokens > 0 && a->cols > 0 && (!a->row_of || !a->top_prob || !a->y))
        return "row_of, top_prob and y are required";
    return NULL;
}

static const char *check_combine_backward(const weft_combine_backward_args *a)
{
    if (a->num_tokens > 0 && (!a->row_of || !a->top_prob || !a->dtop_prob))
        return "row_of, top_prob and dtop_prob are required";
    if (a->num_tokens > 0 && a->cols > 0 && !a->dy)
        return "dy is required";
    return NULL;
}

static const char *check_adamw(const weft_adamw_args *a)
{
    if (a->step < 1)
        return "steps count from 1";
    if (a->weight && !is_castable(a->dtype))
        return "weight must be fp32, bf16 or fp16";
    if (a->low && (a->master || !a->weight || a->dtype != WEFT_BF16))
        return "a split master is a bf16 weight and low, without master";
    if (a->count > 0 && ((!a->master && !a->low) || !a->m != !a->v || !a->grad))
        return "master, grad and both or none of m and v are required";
    return NULL;
}

static const char *check_momentum(const weft_momentum_args *a)
{
    return a->count > 0 && (!a->m || !a->grad) ? "m and grad are required" : NULL;
}

static const char *check_matrix_copy(const weft_matrix_copy_args *a)
{
    if (a->rows == 0 || a->cols == 0)
        return NULL;
    if (a->ld_from < a->cols || a->ld_to < a->cols)
        return "rows overlap";
    return !a->from || !a->to ? "from and to are required" : NULL;
}

static const char *check_split_master(const weft_split_master_args *a)
{
    return a->count > 0 && !a->master ? "master is required" : NULL;
}

static const char *check_join_master(const weft_join_master_args *a)
{
    return a->count > 0 && (!a->weight || !a->low || !a->master)
               ? "weight, low and master are required"
               : NULL;
}

static const char *check_sum_squares(const weft_sum_squares_args *a)
{
    return !a->sum || (a->count > 0 && !a->x) ? "x and sum are required" : NULL;
}

static const char *check_find_not_finite(const weft_find_not_finite_args *a)
{
    if (a->count == 0)
        return NULL;
    return !a->x || !a->ends || !a->found || a->num_parts == 0
               ? "x, parts, ends and found are required"
               : NULL;
}

static const char *check_hash(const weft_hash_args *a)
{
    if (a->count == 0)
        return NULL;
    if (a->element_bytes != 2 && a->element_bytes != 4)
        return "elements must have 2 or 4 bytes";
    return !a->x || !a->ends || !a->hashes || a->num_parts == 0
               ? "x, parts, ends and hashes are required"
               : NULL;
}

static const char *check_scale(const weft_scale_args *a)
{
    return a->count > 0 && !a->x ? "x is required" : NULL;
}

static const char *check_random_normal(const weft_random_normal_args *a)
{
    if (a->num_dims < 0 || a->num_dims > WEFT_MAX_DIMS)
        return "too many dims";
    if (!is_castable(a->dtype))
        return "dtype must be fp32, bf16 or fp16";
    size_t count = 1;
    for (int d = 0; d < a->num_dims; d++)
        count *= a->local_dims[d];
    return count > 0 && !a->x ? "x is required" : NULL;
}

/* Backends by the name of their devices. */
static const weft_kernel_ops *const backends[] = {
    &weft_kernel_ops_cpu,
    &weft_kernel_ops_note,
#ifdef WEFT_HAS_CUDA
    &weft_kernel_ops_cuda,
#endif
};

static const weft_kernel_ops *backend_of(const weft_lane *lane)
{
    const char *name = weft_device_name(weft_lane_device(lane));
    for (size_t i = 0; i < sizeof backends / sizeof backends[0]; i++)
        if (!strcmp(name, backends[i]->name))
            return backends[i];
    return NULL;
}

/* wrong_activations: of what is no activation, NULL. */
#define WRAPPER(kernel, wrong_activations)                                                         \
    weft_status weft_##kernel(weft_lane *lane, const weft_##kernel##_args *args)                   \
    {                                                                                              \
        weft_##kernel##_args whole;                                                                \
        WEFT_TRY(WEFT_GIVEN(lane));                                                                \
        if (!args || args->struct_bytes != sizeof whole) {                                         \
            WEFT_TRY(weft_sized_copy("weft_" #kernel "_args", args, &whole, sizeof whole));        \
            args = &whole;                                                                         \
        }                                                                                          \
        const char *wrong = wrong_activations;                                                     \
        if (!wrong)                                                                                \
            wrong = check_##kernel(args);                                                          \
        if (wrong)                                                                                 \
            return WEFT_ERROR(WEFT_INTERNAL, #kernel ": %s", wrong);                               \
        const weft_kernel_ops *ops = backend_of(lane);                                             \
        if (!ops)                                                                                  \
            return WEFT_ERROR(WEFT_DEVICE, #kernel ": no kernels for device %s",                   \
                              weft_device_name(weft_lane_device(lane)));                           \
        if (watching)                                                                              \
            watching(#kernel, args);                                                               \
        return ops->kernel(lane, args);                                                            \
    }
#define OF_ACTIVATIONS(kernel) WRAPPER(kernel, wrong_dtype(lane, args->dtype))
#define OF_OTHERS(kernel) WRAPPER(kernel, NULL)
WEFT_ACTIVATION_KERNEL_LIST(OF_ACTIVATIONS)
WEFT_OTHER_KERNEL_LIST(OF_OTHERS)
#undef WRAPPER

#define ACCEPT(kernel, wrong_type)                                                                 \
    weft_status weft_kernel_accept_##kernel(const weft_##kernel##_args *args,                      \
                                            weft_##kernel##_args *out)                             \
    {                                                                                              \
        WEFT_TRY(weft_sized_copy("weft_" #kernel "_args", args, out, sizeof *out));                \
        const char *wrong = wrong_type;                                                            \
        if (!wrong)                                                                                \
            wrong = check_##kernel(out);                                                           \
        return wrong ? WEFT_ERROR(WEFT_INTERNAL, "host " #kernel ": %s", wrong) : WEFT_OK;         \
    }
#define NO_TYPE(kernel) ACCEPT(kernel, NULL)
NO_TYPE(adamw)
NO_TYPE(split_master)
NO_TYPE(join_master)
NO_TYPE(sum_squares)
NO_TYPE(find_not_finite)
NO_TYPE(cast)
ACCEPT(add, out->dtype == WEFT_F32 || out->dtype == WEFT_BF16 ? NULL : "dtype must be fp32 or bf16")
#undef NO_TYPE
#undef ACCEPT
