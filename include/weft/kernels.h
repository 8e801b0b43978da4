/* The kernels: everything that computes, behind one header.
 *
 * Each kernel is a plain struct of arguments and one function that enqueues it on a lane:
 *
 *     WEFT_TRY(weft_gemm(lane, &WEFT_ARGS(weft_gemm_args, .m = T, .n = N, .k = H, .a = x, ...)));
 *
 * The wrapper checks the arguments (WEFT_INTERNAL: the caller's mistake, at once) and calls the
 * slot of the lane's device; what goes wrong later poisons the lane. The struct is copied at the
 * call, what it points to is not. Nothing allocates. Every struct of arguments begins with its size
 * (sized.h).
 *
 * All matrices are row-major. Legend: T tokens (rows), H hidden size, V vocabulary rows held here,
 * E experts, K experts a token (top-k), S sequence, B micro-batch, D head dimension. Tokens are
 * ordered sequence first: row t = s * B + b.
 *
 * Invariants: activations are of `dtype` (fp32 or bf16) and computed in fp32; gradients of
 * activations are *written* unless a field says `accumulate`; gradients of parameters are always
 * fp32 and *added to* unless `overwrite` is set, which the first micro-batch of a step uses so
 * that no gradient needs clearing. Fields marked optional may be NULL. Device pointers, unless
 * marked host.
 *
 * Adding a kernel: a row in a list below, a struct here, a function in each backend.
 */
#ifndef WEFT_KERNELS_H
#define WEFT_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "device.h"
#include "sized.h"
#include "status.h"
#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Those whose dtype is that of activations. */
#define WEFT_ACTIVATION_KERNEL_LIST(X)                                                             \
    X(gemm)                                                                                        \
    X(grouped_gemm)                                                                                \
    X(bias_gradient)                                                                               \
    X(norm_forward)                                                                                \
    X(norm_backward)                                                                               \
    X(activation_forward)                                                                          \
    X(activation_backward)                                                                         \
    X(rope)                                                                                        \
    X(attention_forward)                                                                           \
    X(attention_backward)                                                                          \
    X(embedding_forward)                                                                           \
    X(embedding_backward)                                                                          \
    X(cross_entropy_stats)                                                                         \
    X(cross_entropy_backward)                                                                      \
    X(dropout)                                                                                     \
    X(add)                                                                                         \
    X(permute)                                                                                     \
    X(permute_backward)                                                                            \
    X(combine)                                                                                     \
    X(combine_backward)                                                                            \
    X(scale)
#define WEFT_OTHER_KERNEL_LIST(X)                                                                  \
    X(cross_entropy_loss)                                                                          \
    X(cast)                                                                                        \
    X(route)                                                                                       \
    X(route_backward)                                                                              \
    X(dispatch_plan)                                                                               \
    X(adamw)                                                                                       \
    X(sum_squares)                                                                                 \
    X(random_normal)
#define WEFT_KERNEL_LIST(X) WEFT_ACTIVATION_KERNEL_LIST(X) WEFT_OTHER_KERNEL_LIST(X)

/* What a GEMM does to its result before it writes it. GELU is its tanh form, as in
 * weft_activation_kind.
 *   GELU:          pre = alpha * op(A) * op(B) + bias, C = gelu(pre)
 *   GELU_BACKWARD: C = (alpha * op(A) * op(B)) * gelu'(pre); pre is read, there is no bias
 * The CPU gives what the GEMM and the activation's kernel give one after the other, bit by bit. A
 * GPU may instead apply GELU to sums that were not rounded to c_dtype yet. */
typedef enum weft_gemm_epilogue {
    WEFT_GEMM_PLAIN,
    WEFT_GEMM_GELU,
    WEFT_GEMM_GELU_BACKWARD,
} weft_gemm_epilogue;

/* C[m,n] = alpha * op(A)[m,k] * op(B)[k,n] + beta * C, plus bias[n] where given.
 * transpose_a: A is stored [k,m]; transpose_b: B is stored [n,k]. Leading dimensions are in
 * elements; 0 means dense. A, B of `dtype`; C of `c_dtype` (dtype or fp32). bias is of `dtype`.
 * alpha is 1 unless set (0 is read as 1); with beta 0 C is not read. With an epilogue beta is 0, C
 * is dense and no other operand's memory. */
typedef struct weft_gemm_args {
    size_t struct_bytes;
    size_t m, n, k;
    bool transpose_a, transpose_b;
    weft_dtype dtype, c_dtype;
    const void *a, *b;
    void *c;
    size_t lda, ldb, ldc;
    float alpha, beta;
    const void *bias; /* optional, [n] */
    weft_gemm_epilogue epilogue;
    void *pre; /* [m, n] of c_dtype, dense: GELU's input, where there is an epilogue */
} weft_gemm_args;

/* One GEMM a group (expert) over rows sorted by group, without padding. Group g has rows
 * row_offsets[g] .. row_offsets[g + 1]; groups may be empty.
 *   FORWARD: y[rows, out] = x[rows, in] * w[g]^T          (w: [groups, out, in], of dtype)
 *   DGRAD:   x[rows, in]  = y[rows, out] * w[g]           (writes x)
 *   WGRAD:   wgrad[g]    (+)= y[rows]^T * x[rows]         (wgrad: fp32 [groups, out, in]; an empty
 *            group's is zeroed when overwrite) */
typedef enum weft_grouped_kind {
    WEFT_GROUPED_FORWARD,
    WEFT_GROUPED_DGRAD,
    WEFT_GROUPED_WGRAD,
} weft_grouped_kind;

typedef struct weft_grouped_gemm_args {
    size_t struct_bytes;
    weft_grouped_kind kind;
    size_t num_groups, in, out;
    const int64_t *row_offsets; /* host, [num_groups + 1], valid until the lane has passed */
    weft_dtype dtype;
    void *x, *w, *y; /* which one is written: see kind */
    float *wgrad;    /* WGRAD */
    bool overwrite;
} weft_grouped_gemm_args;

/* db[cols] (+)= sum over rows of dy[rows, cols]. With num_groups > 0: db[g][cols] over each
 * group's rows. */
typedef struct weft_bias_gradient_args {
    size_t struct_bytes;
    size_t rows, cols;
    weft_dtype dtype;
    const void *dy;
    float *db;
    bool overwrite;
    size_t num_groups;          /* 0: one group of all rows */
    const int64_t *row_offsets; /* host */
} weft_bias_gradient_args;

typedef enum weft_norm_kind { WEFT_NORM_LAYER, WEFT_NORM_RMS } weft_norm_kind;

/* LayerNorm (Ba et al. 2016) or RMSNorm (Zhang and Sennrich 2019) of each row:
 *   y = (x - mean) * rstd * weight + bias, rstd = 1 / sqrt(variance + epsilon)
 *   y = x * rstd * weight,                 rstd = 1 / sqrt(mean of x^2 + epsilon)
 * With residual: x is first replaced by sum = x + residual, written
 * to `sum`. mean (LayerNorm) and rstd are kept for backward, fp32 [rows]. */
typedef struct weft_norm_forward_args {
    size_t struct_bytes;
    weft_norm_kind kind;
    size_t rows, cols;
    weft_dtype dtype;
    const void *x;
    const void *residual; /* optional, [rows, cols] */
    void *sum;            /* where residual is given; may be x itself */
    const void *weight;   /* [cols] of dtype */
    const void *bias;     /* optional, LayerNorm only */
    void *y;              /* [rows, cols] */
    float *mean;          /* LayerNorm; optional */
    float *rstd;
    float epsilon;
} weft_norm_forward_args;

/* dx (or dx += where accumulate) from dy; dweight, dbias in fp32. x is what forward normalised: its
 * input, or its sum. dy, x, dx: [rows, cols]; mean, rstd as forward left them. */
typedef struct weft_norm_backward_args {
    size_t struct_bytes;
    weft_norm_kind kind;
    size_t rows, cols;
    weft_dtype dtype;
    const void *dy, *x;
    const void *weight;
    const float *mean, *rstd;
    void *dx;
    bool accumulate; /* dx += (the residual's gradient is already there) */
    float *dweight;  /* [cols] */
    float *dbias;    /* optional */
    bool overwrite;  /* of dweight, dbias */
} weft_norm_backward_args;

/* GELU (Hendrycks and Gimpel 2016, its tanh form), SiLU and ReLU take x[rows, cols]; SwiGLU
 * (Shazeer 2020) takes x[rows, 2 cols] = [gate | up] and gives silu(gate) * up. */
typedef enum weft_activation_kind {
    WEFT_ACTIVATION_GELU,
    WEFT_ACTIVATION_SWIGLU,
    WEFT_ACTIVATION_SILU,
    WEFT_ACTIVATION_RELU,
} weft_activation_kind;

typedef struct weft_activation_forward_args {
    size_t struct_bytes;
    weft_activation_kind kind;
    size_t rows, cols;
    weft_dtype dtype;
    const void *x;
    void *y; /* [rows, cols] */
} weft_activation_forward_args;

typedef struct weft_activation_backward_args {
    size_t struct_bytes;
    weft_activation_kind kind;
    size_t rows, cols;
    weft_dtype dtype;
    const void *x;  /* forward's input */
    const void *dy; /* [rows, cols] */
    void *dx;       /* like x; may be x itself or, but for SwiGLU, dy */
} weft_activation_backward_args;

/* Rotary positions (Su et al. 2021; half-rotation form, as Llama and Megatron) in place on `heads`
 * heads of `head_dim` in each of `groups` groups, at x + t * token_stride + g * group_stride + h *
 * head_stride (elements) for tokens t = s * batch + b, position first_position + s. No two heads
 * overlap. inverse: the backward. */
typedef struct weft_rope_args {
    size_t struct_bytes;
    size_t seq, batch, heads, head_dim;
    size_t token_stride, head_stride;
    size_t groups, group_stride; /* of packed q, k and v, where values lie between; 0: one group */
    size_t rotary_dim; /* the first channels of a head, which rotate: even, <= head_dim; 0: none */
    size_t first_position;
    float base; /* 10000 */
    weft_dtype dtype;
    void *x;
    bool inverse;
} weft_rope_args;

enum { WEFT_CUDA_MAX_HEAD_DIM = 256 }; /* of attention on a GPU; a CPU has no limit */

/* Flash-style attention (Dao et al. 2022): blocks with a running softmax, never an S x S matrix.
 * Query head h of group g = h / (heads / groups) uses that group's key and value.
 *   q at q + (s*batch + b) * q_token_stride + g * q_group_stride + (h % (heads/groups)) * head_dim
 *   k at k + (s*batch + b) * k_token_stride + g * k_group_stride   (v alike, same strides)
 * so the packed QKV of Megatron ([group: q..., k, v] a token) and separate tensors both fit.
 * out: [seq_q * batch, heads * head_dim]. lse: fp32 [batch, heads, seq_q], log-sum-exp of the
 * scaled scores. Query s has position first_query + s; causal hides keys beyond it.
 * Dropout of probabilities: element (sample first_sample + b, head first_head + h, query position,
 * key position) of the stream, so that any layout drops the same. Fixed: it stands in others. */
typedef struct weft_attention_shape {
    size_t seq_q, seq_k, batch, heads, groups, head_dim;
    size_t q_token_stride, q_group_stride, k_token_stride, k_group_stride;
    size_t first_query;
    bool causal;
    float scale; /* 0: 1 / sqrt(head_dim) */
    float dropout;
    uint64_t seed, stream;
    size_t first_sample, first_head, total_heads, total_seq; /* for dropout's counters */
} weft_attention_shape;

typedef struct weft_attention_forward_args {
    size_t struct_bytes;
    weft_attention_shape shape;
    weft_dtype dtype;
    const void *q, *k, *v;
    void *out;
    float *lse;
} weft_attention_forward_args;

/* dq, dk, dv have q's, k's, v's strides and are written. delta: fp32 scratch [batch, heads,
 * seq_q]. Recomputes the probabilities from lse (FlashAttention, Algorithm 4). */
typedef struct weft_attention_backward_args {
    size_t struct_bytes;
    weft_attention_shape shape;
    weft_dtype dtype;
    const void *q, *k, *v, *out, *dout;
    const float *lse;
    float *delta;
    void *dq, *dk, *dv;
} weft_attention_backward_args;

/* y[num_tokens, cols]: y[t] = table[tokens[t] - first_row], table [num_rows, cols] (zero where that
 * row is held elsewhere), plus positions[first_position + t / batch] where given. */
typedef struct weft_embedding_forward_args {
    size_t struct_bytes;
    size_t num_tokens, batch, cols;
    const int32_t *tokens;
    size_t first_row, num_rows;
    weft_dtype dtype;
    const void *table;     /* optional: NULL adds positions alone */
    const void *positions; /* optional, [max positions, cols] */
    size_t first_position;
    void *y;
} weft_embedding_forward_args;

/* From dy[num_tokens, cols]: dtable[num_rows, cols] += and dpositions[num_positions, cols] +=
 * (always), both fp32; overwrite zeroes them first. The order of additions is fixed, so results are
 * bit-reproducible at any thread count. */
typedef struct weft_embedding_backward_args {
    size_t struct_bytes;
    size_t num_tokens, batch, cols;
    const int32_t *tokens;
    size_t first_row, num_rows, num_positions;
    weft_dtype dtype;
    const void *dy;
    float *dtable;     /* optional */
    float *dpositions; /* optional */
    size_t first_position;
    bool overwrite;
} weft_embedding_backward_args;

/* Vocabulary-parallel cross-entropy in three kernels (Megatron-LM §3 of Shoeybi et al.), so that
 * the reductions over the tensor-parallel group stand between them:
 *   stats:    row_max[t] = max over the valid local columns; with `sum_pass`: row_sum[t] = sum of
 *             exp(logit - row_max) and target[t] = the label's logit where it is held here, else 0
 *             (row_max is then an input, the global one). `fused` does both at once with the
 *             local maximum, for a vocabulary that is whole here.
 *   loss:     loss[t] = (log(row_sum) + row_max - target) * mask[t];
 *             *loss_sum += their sum over t (fp64)
 *   backward: logits become (softmax - onehot) * mask[t] * scale, in place.
 * logits [rows, cols]; labels [rows], global ids, of which this rank holds first_col to first_col +
 * valid_cols; row_max, row_sum, target, mask fp32 [rows]. Columns from valid_cols on are padding:
 * excluded, and their gradient is 0. */
typedef enum weft_cross_entropy_pass {
    WEFT_CROSS_ENTROPY_MAX,
    WEFT_CROSS_ENTROPY_SUM,
    WEFT_CROSS_ENTROPY_FUSED,
} weft_cross_entropy_pass;

typedef struct weft_cross_entropy_stats_args {
    size_t struct_bytes;
    weft_cross_entropy_pass pass;
    size_t rows, cols, valid_cols, first_col;
    weft_dtype dtype;
    const void *logits; /* [rows, cols] */
    const int32_t *labels;
    float *row_max, *row_sum, *target;
} weft_cross_entropy_stats_args;

typedef struct weft_cross_entropy_loss_args {
    size_t struct_bytes;
    size_t rows;
    const float *row_max, *row_sum, *target;
    const float *mask; /* optional: all ones */
    float *loss;       /* optional, [rows] */
    double *loss_sum;
} weft_cross_entropy_loss_args;

typedef struct weft_cross_entropy_backward_args {
    size_t struct_bytes;
    size_t rows, cols, valid_cols, first_col;
    weft_dtype dtype;
    void *logits; /* in: logits, out: their gradient */
    const int32_t *labels;
    const float *row_max, *row_sum;
    const float *mask; /* optional */
    float scale;
} weft_cross_entropy_backward_args;

/* y = keep ? x / (1 - p) : 0, plus residual where given. Element (row, col) uses counter
 * (first_row + row) * cols + col of (seed, stream); the backward is the same call on gradients. */
typedef struct weft_dropout_args {
    size_t struct_bytes;
    size_t rows, cols;
    uint64_t first_row; /* global */
    weft_dtype dtype;
    const void *x;
    const void *residual; /* optional */
    void *y;              /* may be x or residual */
    float p;
    uint64_t seed, stream;
} weft_dropout_args;

/* y = a + b; y may be either. */
typedef struct weft_add_args {
    size_t struct_bytes;
    size_t count;
    weft_dtype dtype;
    const void *a, *b;
    void *y;
} weft_add_args;

/* Converts between fp32, bf16 (and fp16 where the device has it), round to nearest even. */
typedef struct weft_cast_args {
    size_t struct_bytes;
    size_t count;
    weft_dtype from_dtype, to_dtype;
    const void *from;
    void *to;
} weft_cast_args;

/* The router's selection, fp32 (PPMoE §3.3.3; GShard; ST-MoE's z-loss).
 *   scores = softmax(logits) over all E (always written: the aux loss needs them)
 *   top_index[t] = the k largest logits, ties to the lower index, largest first
 *   top_prob: pre_softmax ? scores at them : softmax over the k chosen logits
 *   counts[e] += tokens that chose e; score_sums[e] += sum of scores; z_sum += sum of
 *   logsumexp(logits)^2. All three start at zero by the caller's clearing (they are reduced over
 *   groups before use, in fixed order). */
typedef struct weft_route_args {
    size_t struct_bytes;
    size_t num_tokens, num_experts, topk;
    bool pre_softmax;
    const float *logits; /* [T, E] */
    float *scores;       /* [T, E] */
    int32_t *top_index;  /* [T, K] */
    float *top_prob;     /* [T, K] */
    float *counts;       /* [E] */
    float *score_sums;   /* [E] */
    float *z_sum;        /* [1] */
} weft_route_args;

/* dlogits = Jacobian of top_prob times dtop_prob
 *         + aux_scale * d/dlogits sum_e fraction[e] * mean-score[e]  (fraction: given, constant)
 *         + z_scale * d/dlogits sum_t logsumexp^2.
 * For the aux loss L = coeff * E * sum_e f_e * P_e with f_e = counts[e] / (T K), P_e =
 * score_sums[e] / T, pass fraction = f and aux_scale = coeff * E / T * loss scale: dL/dscores[t,e]
 * = aux_scale * fraction[e]. For z: z_scale = coeff / T * loss scale. */
typedef struct weft_route_backward_args {
    size_t struct_bytes;
    size_t num_tokens, num_experts, topk;
    bool pre_softmax;
    const float *logits, *scores;
    const int32_t *top_index;
    const float *top_prob, *dtop_prob;
    const float *fraction; /* [E]; optional when aux_scale is 0 */
    float aux_scale, z_scale;
    float *dlogits; /* [T, E] written */
} weft_route_backward_args;

/* Counting sort of the (token, k) choices by partition and expert, stable in token order; k = 0
 * choices of a token come before its k = 1 ones only through the token order. Of n partitions,
 * number p has tokens p T / n up to (p + 1) T / n.
 *   counts[e]: choices kept for expert e, all E experts, on the host
 *   row_of[t,k]: row of the choice in the sorted order of experts first_expert ..
 *     first_expert + num_local, or -1 (another rank's expert, or dropped)
 *   token_of[row]: t. num_rows = sum of the local counts.
 * capacity > 0: an expert keeps at most that many choices; drop policy "position" keeps the
 * earliest tokens, "probs" those of largest probability (ties: earliest). dropped = their
 * number over all E.
 *   wrong: the first choice of an expert that there is not. It fails a CPU's lane. A GPU's kernels
 *     cannot, and go on as if it were not there (row -1): whoever has waited for the counts asks
 *     weft_dispatch_plan_check() before using them. */
typedef enum weft_drop_policy { WEFT_DROP_PROBS, WEFT_DROP_POSITION } weft_drop_policy;

typedef struct weft_wrong_choice {
    int64_t choice, expert; /* t * K + k, or -1: none is wrong */
} weft_wrong_choice;

typedef struct weft_dispatch_plan_args {
    size_t struct_bytes;
    size_t num_tokens, num_experts, topk;
    size_t first_expert, num_local;
    size_t capacity; /* 0: dropless */
    weft_drop_policy policy;
    const int32_t *top_index;
    const float *top_prob;
    int64_t *counts;           /* host-readable (pinned), [E] written */
    size_t num_partitions;     /* 0: 1 */
    int64_t *partition_counts; /* host-readable, [n, E] written: counts of each partition; optional
                                  where n is 1 */
    int32_t *row_of;           /* [T, K] */
    int32_t *token_of;         /* [rows]; capacity T * K */
    int64_t *dropped;          /* host-readable, written; optional where capacity is 0 */
    weft_wrong_choice *wrong;  /* host-readable, written */
    int32_t *scratch;          /* [T * K] */
} weft_dispatch_plan_args;

/* rows[i] = x[token_of[i]]. */
typedef struct weft_permute_args {
    size_t struct_bytes;
    size_t num_rows, cols;
    weft_dtype dtype;
    const void *x;
    const int32_t *token_of;
    void *rows;
} weft_permute_args;

/* dx[t] = (accumulate: +=) sum over k of drows[row_of[t,k]], rows -1 skipped. */
typedef struct weft_permute_backward_args {
    size_t struct_bytes;
    size_t num_tokens, topk, cols;
    weft_dtype dtype;
    const void *drows;
    const int32_t *row_of;
    void *dx;
    bool accumulate;
} weft_permute_backward_args;

/* y[t] = sum over k of top_prob[t,k] * rows[row_of[t,k]], rows -1 skipped. */
typedef struct weft_combine_args {
    size_t struct_bytes;
    size_t num_tokens, topk, cols;
    weft_dtype dtype;
    const void *rows;
    const int32_t *row_of;
    const float *top_prob;
    void *y;
} weft_combine_args;

/* drows[row_of[t,k]] = top_prob[t,k] * dy[t]; dtop_prob[t,k] = <rows[row_of[t,k]], dy[t]>, 0 for
 * -1. Every row below num_rows is written by exactly one (t,k). */
typedef struct weft_combine_backward_args {
    size_t struct_bytes;
    size_t num_tokens, topk, cols;
    weft_dtype dtype;
    const void *dy, *rows;
    const int32_t *row_of;
    const float *top_prob;
    void *drows; /* may be rows itself */
    float *dtop_prob;
} weft_combine_backward_args;

/* AdamW (Loshchilov and Hutter) on fp32 master weights: g = grad * *grad_scale;
 * m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2;
 * master -= lr * (m / (1-b1^step) / (sqrt(v / (1-b2^step)) + eps) + weight_decay * master);
 * weight = master in `dtype` where given (NULL or the master itself: none). */
typedef struct weft_adamw_args {
    size_t struct_bytes;
    size_t count;
    float *master, *m, *v;
    const float *grad;
    const float *grad_scale; /* device, [1]; clipping; optional: 1 */
    void *weight;
    weft_dtype dtype;
    float lr, beta1, beta2, epsilon, weight_decay;
    int64_t step; /* from 1 */
} weft_adamw_args;

/* *sum += sum of x^2 over fp32 x, in fp64 and in fixed order. */
typedef struct weft_sum_squares_args {
    size_t struct_bytes;
    size_t count;
    const float *x;
    double *sum;
} weft_sum_squares_args;

/* x *= factor. */
typedef struct weft_scale_args {
    size_t struct_bytes;
    size_t count;
    weft_dtype dtype;
    void *x;
    float factor;
} weft_scale_args;

/* Fills the local hyperslab of a global tensor: element with global row-major index i gets
 * mean + std * weft_rng_normal(seed, stream, i), so that every mesh starts bit-identical. Local
 * elements beyond the global shape (padding) get 0. */
typedef struct weft_random_normal_args {
    size_t struct_bytes;
    int num_dims;
    size_t global_dims[WEFT_MAX_DIMS], start[WEFT_MAX_DIMS], local_dims[WEFT_MAX_DIMS];
    uint64_t seed, stream;
    float mean, std;
    weft_dtype dtype;
    void *x;
} weft_random_normal_args;

#define WEFT_KERNEL_DECLARE(name)                                                                  \
    weft_status weft_##name(weft_lane *lane, const weft_##name##_args *args) WEFT_CHECKED;
WEFT_KERNEL_LIST(WEFT_KERNEL_DECLARE)
#undef WEFT_KERNEL_DECLARE

/* On the host, after waiting for a plan: WEFT_INTERNAL with the first wrong choice, if any. */
weft_status weft_dispatch_plan_check(const weft_dispatch_plan_args *args) WEFT_CHECKED;

#ifdef __cplusplus
}
#endif
#endif
