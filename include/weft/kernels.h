/* The kernels: everything that computes, behind one header.
 *
 * Each kernel is a plain struct of arguments and one function that enqueues it on a lane:
 *
 *     WEFT_TRY(weft_gemm(lane, &WEFT_ARGS(weft_gemm_args, .m = T, .n = N, .k = H, .a = x, ...)));
 *
 * The wrapper checks the arguments (WEFT_INTERNAL: the caller's mistake) and calls the slot of the
 * lane's device; an error while the kernel runs poisons the lane. The call copies the struct, not
 * what it points to. Once warm, kernels allocate nothing. Every struct of arguments begins with its
 * size (sized.h).
 *
 * All matrices are row-major. Legend: T tokens (rows), H hidden size, V vocabulary rows held here,
 * E experts, K experts a token (top-k), S sequence, B micro-batch, D head dimension. Tokens are
 * ordered sequence first: row t = s * B + b.
 *
 * Invariants: activations are of `dtype` (fp32 or bf16, on CUDA also fp16) and computed in fp32.
 * Kernels *write* gradients of activations unless a field says `accumulate`. They *add to*
 * gradients of parameters, always fp32, unless `overwrite` is set: the first micro-batch of a step
 * sets it, so that no gradient needs clearing. Fields marked optional may be NULL. Pointers are the
 * device's unless marked host.
 *
 * Adding a kernel: a row in a list below, a struct here, a check in kernels/kernels.c and a
 * function in each backend; in kernels/note what the kernel does, and which arguments are pointers.
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

/* Kernels whose `dtype` is that of activations. */
#define WEFT_ACTIVATION_KERNEL_LIST(X)                                                             \
    X(gemm)                                                                                        \
    X(grouped_gemm)                                                                                \
    X(bias_gradient)                                                                               \
    X(bias_add)                                                                                    \
    X(norm_forward)                                                                                \
    X(norm_backward)                                                                               \
    X(heads_norm_forward)                                                                          \
    X(heads_norm_backward)                                                                         \
    X(heads_sums)                                                                                  \
    X(heads_share)                                                                                 \
    X(activation_forward)                                                                          \
    X(activation_backward)                                                                         \
    X(rope)                                                                                        \
    X(attention_forward)                                                                           \
    X(attention_backward)                                                                          \
    X(attention_sinks)                                                                             \
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
    X(momentum)                                                                                    \
    X(matrix_copy)                                                                                 \
    X(split_master)                                                                                \
    X(join_master)                                                                                 \
    X(sum_squares)                                                                                 \
    X(find_not_finite)                                                                             \
    X(hash)                                                                                        \
    X(random_normal)
#define WEFT_KERNEL_LIST(X) WEFT_ACTIVATION_KERNEL_LIST(X) WEFT_OTHER_KERNEL_LIST(X)

/* What a GEMM does to its result before it writes it. GELU is its tanh form, as in
 * weft_activation_kind.
 *   GELU:          pre = alpha * op(A) * op(B) + bias, C = gelu(pre)
 *   GELU_BACKWARD: C = (alpha * op(A) * op(B)) * gelu'(pre); pre is read, there is no bias
 * The CPU's bits are those of the GEMM followed by the activation's kernel. A GPU may apply GELU to
 * sums before it rounds them to c_dtype. */
typedef enum weft_gemm_epilogue {
    WEFT_GEMM_PLAIN,
    WEFT_GEMM_GELU,
    WEFT_GEMM_GELU_BACKWARD,
} weft_gemm_epilogue;

/* C[m,n] = alpha * op(A)[m,k] * op(B)[k,n] + beta * C, plus bias[n] where given.
 * transpose_a: A is stored [k,m]; transpose_b: B is stored [n,k]. Leading dimensions are in
 * elements; 0 means dense. A, B and bias are of `dtype`, C of `c_dtype` (dtype or fp32). alpha 0
 * means 1; with beta 0 the kernel does not read C. With an epilogue beta is 0, and C is dense and
 * overlaps no other operand. */
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
    void *pre; /* with an epilogue: GELU's input, [m, n] of c_dtype, dense */
} weft_gemm_args;

/* One GEMM a group (expert) over rows sorted by group, without padding. Group g has rows
 * row_offsets[g] .. row_offsets[g + 1]; groups may be empty. No group's bits depend on which others
 * are in the call (cuBLAS' grouped products: as far as cuBLAS keeps it so).
 *   FORWARD: y[rows, out] = x[rows, in] * w[g]^T          (w: [groups, out, in], of dtype)
 *   DGRAD:   x[rows, in]  = y[rows, out] * w[g]           (writes x)
 *   WGRAD:   wgrad[g]    (+)= y[rows]^T * x[rows]         (wgrad: fp32 [groups, out, in]; overwrite
 *            zeroes an empty group's)
 * The matrices of w and of wgrad, each dense, lie `stride` elements apart, or where w_of and
 * wgrad_of say. A group without rows may have none there (NULL): nothing is done for it. */
typedef enum weft_grouped_kind {
    WEFT_GROUPED_FORWARD,
    WEFT_GROUPED_DGRAD,
    WEFT_GROUPED_WGRAD,
} weft_grouped_kind;

typedef struct weft_grouped_gemm_args {
    size_t struct_bytes;
    weft_grouped_kind kind;
    size_t num_groups, in, out;
    const int64_t *row_offsets; /* host, [num_groups + 1], valid until the kernel has run */
    weft_dtype dtype;
    void *x, *w, *y; /* which one is written: see kind */
    float *wgrad;    /* WGRAD */
    bool overwrite;
    size_t stride;           /* from group to group; 0: out * in */
    const void *const *w_of; /* optional, host, [num_groups], valid as row_offsets: instead of w */
    float *const *wgrad_of;  /* the same instead of wgrad */
} weft_grouped_gemm_args;

/* db[cols] (+)= sum over rows of dy[rows, cols], whose rows lie `stride` elements apart (0: cols).
 * With num_groups > 0: db[g][cols] over each group's rows. */
typedef struct weft_bias_gradient_args {
    size_t struct_bytes;
    size_t rows, cols;
    weft_dtype dtype;
    const void *dy;
    float *db;
    bool overwrite;
    size_t num_groups;          /* 0: one group of all rows */
    const int64_t *row_offsets; /* host */
    size_t stride;
    size_t group_stride; /* of db; 0: cols */
} weft_bias_gradient_args;

/* y[row] += bias[g] for the rows of each group: y [rows, cols], bias [cols] each, `group_stride`
 * elements apart (0: cols). row_offsets: host, [num_groups + 1]. */
typedef struct weft_bias_add_args {
    size_t struct_bytes;
    size_t cols, num_groups, group_stride;
    const int64_t *row_offsets;
    weft_dtype dtype;
    const void *bias;
    void *y;
} weft_bias_add_args;

typedef enum weft_norm_kind { WEFT_NORM_LAYER, WEFT_NORM_RMS } weft_norm_kind;

/* LayerNorm (Ba et al. 2016) or RMSNorm (Zhang and Sennrich 2019) of each row:
 *   y = (x - mean) * rstd * weight + bias, rstd = 1 / sqrt(variance + epsilon)
 *   y = x * rstd * weight,                 rstd = 1 / sqrt(mean of x^2 + epsilon)
 * With residual the kernel writes x + residual to `sum` and normalises that instead of x. It writes
 * mean (LayerNorm) and rstd, fp32 [rows], for backward. */
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
    float weight_offset; /* added to the weight: 1 where models have 1 + w (Gemma) */
} weft_norm_forward_args;

/* dx from dy; dweight and dbias in fp32. x is what forward normalised: its input, or its `sum`. dy,
 * x, dx: [rows, cols]; mean and rstd as forward wrote them. */
typedef struct weft_norm_backward_args {
    size_t struct_bytes;
    weft_norm_kind kind;
    size_t rows, cols;
    weft_dtype dtype;
    const void *dy, *x;
    const void *weight;
    const float *mean, *rstd;
    void *dx;
    bool accumulate; /* dx +=: the residual's gradient is already there */
    float *dweight;  /* [cols] */
    float *dbias;    /* optional */
    bool overwrite;  /* of dweight, dbias */
    float weight_offset;
} weft_norm_backward_args;

/* Heads in packed rows: head h of group g of token t has its head_dim numbers at t * token_stride +
 * g
 * * group_stride + h * head_dim. Fixed: it stands in other structs. */
typedef struct weft_heads_shape {
    size_t tokens, groups, heads, head_dim; /* heads: of a group */
    size_t token_stride, group_stride;
} weft_heads_shape;

enum { WEFT_MAX_NORMED_HEAD_DIM = 1024 };

/* Norms of queries or keys (Henry et al. 2020, with learned weights as in Dehghani et al. 2023): of
 * each head, with weight and bias [head_dim]; or, where `sums` is given, RMSNorm of all of a
 * token's heads together, with weight [groups * heads * head_dim]: sums[t] is the sum of the
 * squares of `whole` numbers, which heads on other ranks are part of. x and y lie alike. */
typedef struct weft_heads_norm_forward_args {
    size_t struct_bytes;
    weft_norm_kind kind;
    weft_heads_shape shape;
    weft_dtype dtype;
    const void *x;
    const void *weight, *bias; /* bias: optional, LayerNorm only */
    void *y;
    const float *sums; /* optional, [tokens] */
    size_t whole;      /* with sums */
    float epsilon;
    float weight_offset; /* as of weft_norm_forward_args */
} weft_heads_norm_forward_args;

/* dx, in dy's place. `along` goes with sums: along[t] is the sum of dy * x * weight over the same
 * `whole` numbers. */
typedef struct weft_heads_norm_backward_args {
    size_t struct_bytes;
    weft_norm_kind kind;
    weft_heads_shape shape;
    weft_dtype dtype;
    const void *x, *weight;
    void *dx; /* dy before */
    const float *sums, *along;
    size_t whole;
    float epsilon;
    float *dweight, *dbias; /* dbias optional */
    bool overwrite;         /* of dweight, dbias */
    float weight_offset;    /* as of weft_norm_forward_args */
} weft_heads_norm_backward_args;

/* sums[t] = the sum over all heads' numbers of a * b * weight. */
typedef struct weft_heads_sums_args {
    size_t struct_bytes;
    weft_heads_shape shape;
    weft_dtype dtype;
    const void *a, *b;  /* they lie alike */
    const void *weight; /* optional, [groups * heads * head_dim] */
    float *sums;        /* [tokens] */
    float weight_offset;
} weft_heads_sums_args;

/* Every head of a token gets the token's `one`; inverse: one is the sum over the heads, of fp32. */
typedef struct weft_heads_share_args {
    size_t struct_bytes;
    weft_heads_shape shape;
    weft_dtype dtype;
    void *one; /* [tokens, head_dim] */
    void *heads;
    bool inverse;
} weft_heads_share_args;

/* GELU (Hendrycks and Gimpel 2016, its tanh form), SiLU and ReLU take x[rows, cols]; SwiGLU
 * (Shazeer 2020) takes x[rows, 2 cols] = [gate | up] and gives silu(gate) * up, GEGLU gelu(gate) *
 * up, quick GEGLU gate * sigmoid(1.702 gate) * up (GPT-OSS). A gated one with a `limit` above 0
 * takes min(gate, limit) and up between -limit and limit, and with an `offset` up + offset. CAP is
 * limit * tanh(x / limit) and has no backward of its own (weft_cross_entropy_backward). */
typedef enum weft_activation_kind {
    WEFT_ACTIVATION_GELU,
    WEFT_ACTIVATION_SWIGLU,
    WEFT_ACTIVATION_SILU,
    WEFT_ACTIVATION_RELU,
    WEFT_ACTIVATION_GEGLU,
    WEFT_ACTIVATION_QUICK_GEGLU,
    WEFT_ACTIVATION_CAP,
} weft_activation_kind;

static inline bool weft_activation_is_gated(weft_activation_kind kind)
{
    return kind == WEFT_ACTIVATION_SWIGLU || kind == WEFT_ACTIVATION_GEGLU ||
           kind == WEFT_ACTIVATION_QUICK_GEGLU;
}

typedef struct weft_activation_forward_args {
    size_t struct_bytes;
    weft_activation_kind kind;
    size_t rows, cols;
    weft_dtype dtype;
    const void *x;
    void *y; /* [rows, cols] */
    float limit, offset;
} weft_activation_forward_args;

typedef struct weft_activation_backward_args {
    size_t struct_bytes;
    weft_activation_kind kind;
    size_t rows, cols;
    weft_dtype dtype;
    const void *x;  /* forward's input */
    const void *dy; /* [rows, cols] */
    void *dx;       /* like x; may be x itself or, but for gated ones, dy */
    float limit, offset;
} weft_activation_backward_args;

/* How far a pair's angle a position is divided by `factor`: share s of the way, from 0 where the
 * pair stands at `begin` to 1 at `end` and beyond. It stands at its index i, or by_turns at the
 * turns that it makes in `length` positions (Peng et al. 2023, YaRN; Llama 3.1). */
typedef struct weft_rope_scaling {
    double factor; /* 0: nothing is divided */
    double begin, end;
    bool by_turns;
    double length;
} weft_rope_scaling;

/* Rotary positions (Su et al. 2021; half-rotation form, as Llama and Megatron), in place. Head h of
 * group g of token t = s * batch + b stands at x + t * token_stride + g * group_stride + h *
 * head_stride (elements) and has position first_position + s or, where `index` is given, index[s],
 * with index_by_sample index[t]. Heads do not overlap. inverse: the backward. */
typedef struct weft_rope_args {
    size_t struct_bytes;
    size_t seq, batch, heads, head_dim;
    size_t token_stride, head_stride;
    size_t groups, group_stride; /* of packed q, k and v, where values lie between; 0: one group */
    size_t rotary_dim; /* how many of a head's first channels rotate: even, <= head_dim; 0: none */
    size_t first_position;
    float base; /* 10000 */
    weft_dtype dtype;
    void *x;
    bool inverse;
    bool index_by_sample;
    const int32_t *index; /* optional */
    bool interleaved; /* pair i is channels 2 i and 2 i + 1 (GPT-J), not i and i + rotary_dim / 2 */
    float magnitude;  /* of sines and cosines (YaRN's attention factor); 0: 1 */
    weft_rope_scaling scaling;
} weft_rope_args;

enum { WEFT_CUDA_MAX_HEAD_DIM = 256 }; /* of attention on a GPU; the CPU has no limit */

/* Flash-style attention (Dao et al. 2022): blocks with a running softmax, never an S x S matrix.
 * Query head h of group g = h / (heads / groups) uses that group's key and value.
 *   q at q + (s*batch + b) * q_token_stride + g * q_group_stride + (h % (heads/groups)) * head_dim
 *   k at k + (s*batch + b) * k_token_stride + g * k_group_stride   (v alike, same strides)
 * so Megatron's packed QKV ([group: q..., k, v] a token) and separate tensors both fit. A value,
 * and a head's row of out, has value_dim numbers. out: [seq_q * batch, heads * value_dim]. lse:
 * fp32 [batch, heads, seq_q], log-sum-exp of the scaled scores. Query s has position first_query +
 * s; causal hides keys beyond it. Dropout of probabilities draws element (sample first_sample + b,
 * head first_head + h, query position, key position) of the stream, so any layout drops the same
 * ones. Fixed: it stands in other structs. */
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

/* What families change in attention; zeros change nothing. Fixed, too. */
typedef struct weft_attention_variant {
    size_t window; /* a query sees so many positions, the last of them its own; 0: all; causal */
    size_t chunk;  /* and none before its chunk of so many positions; 0: one chunk; causal */
    float softcap; /* c: a scaled score x becomes c * tanh(x / c); 0: stays */
    const void *sinks; /* optional, [heads] of the dtype: a score in each of a head's softmaxes that
                          belongs to no key */
} weft_attention_variant;

/* Where the keys of a sequence come block by block, a call sees one block, and calls over the same
 * queries join their results in fp32, so that the last rounds nothing twice (Liu et al. 2023, Ring
 * Attention; Dao 2023, §3.1: the running softmax goes on where the block before ended). */
typedef enum weft_attention_piece {
    WEFT_ATTENTION_WHOLE, /* these are all keys: results have the dtype and are written */
    WEFT_ATTENTION_FIRST, /* the first block: out is fp32 */
    WEFT_ATTENTION_NEXT,  /* another: out and lse hold the result for the blocks before */
} weft_attention_piece;

/* Key j has position first_key + j. first_seen: optional, int32 [seq_q * batch], the position of
 * the first key that a query sees (its document's first), which never falls along a sample's
 * queries. A query that sees no key has an out of 0 and an lse of minus infinity, or its sink. */
typedef struct weft_attention_forward_args {
    size_t struct_bytes;
    weft_attention_shape shape;
    weft_dtype dtype;
    const void *q, *k, *v;
    void *out;
    float *lse;
    const int32_t *first_seen;
    size_t first_key;
    weft_attention_piece piece;
    size_t value_dim; /* 0: head_dim */
    weft_attention_variant variant;
} weft_attention_forward_args;

/* delta: fp32 scratch [batch, heads, seq_q]. Recomputes the probabilities from lse, that of all
 * keys (FlashAttention, Algorithm 4). WHOLE: dq, dk, dv have q's, k's, v's strides and are written.
 * Else they are fp32 with strides of their own and are added to; FIRST computes delta from out and
 * dout, NEXT takes it as it is. */
typedef struct weft_attention_backward_args {
    size_t struct_bytes;
    weft_attention_shape shape;
    weft_dtype dtype;
    const void *q, *k, *v, *out, *dout;
    const float *lse;
    float *delta;
    void *dq, *dk, *dv;
    const int32_t *first_seen;
    size_t first_key;
    size_t dq_token_stride, dq_group_stride, dk_token_stride, dk_group_stride;
    weft_attention_piece piece;
    size_t value_dim;               /* 0: head_dim */
    weft_attention_variant variant; /* lse has the sinks, which are not read */
} weft_attention_backward_args;

/* dsinks[h] (+)= - the sum over a head's queries of exp(sink - lse) * delta, which
 * weft_attention_backward left. lse, delta: fp32 [batch, heads, seq]. */
typedef struct weft_attention_sinks_args {
    size_t struct_bytes;
    size_t seq, batch, heads;
    weft_dtype dtype;
    const void *sinks;
    const float *lse, *delta;
    float *dsinks; /* [heads] */
    bool overwrite;
} weft_attention_sinks_args;

/* y[num_tokens, cols]: y[t] = table[tokens[t] - first_row] (zero where another rank holds that
 * row), table [num_rows, cols], plus where given positions[p]. p is first_position + t / batch or,
 * where `index` is given, index[t / batch], with index_by_sample index[t]. */
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
    const int32_t *index; /* optional */
    bool index_by_sample;
    size_t num_positions; /* optional: rows of positions, for the device that runs nothing */
} weft_embedding_forward_args;

/* Adds dy[num_tokens, cols] into dtable[num_rows, cols] and dpositions[num_positions, cols], both
 * fp32; overwrite zeroes them first. The order of additions is fixed: results have the same bits at
 * any number of threads. index and index_by_sample as in forward; without index_by_sample no number
 * stands in `index` twice. */
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
    bool index_by_sample;
    const int32_t *index; /* optional */
} weft_embedding_backward_args;

/* Vocabulary-parallel cross-entropy (Megatron-LM, §3 of Shoeybi et al.) in three kernels; the
 * reductions over the tensor-parallel group stand between them:
 *   stats:    MAX writes row_max[t] = max over the valid local columns. SUM reads the global
 *             row_max and writes row_sum[t] = sum of exp(logit - row_max) and target[t] = the
 *             label's logit, 0 where another rank holds it. FUSED does both at once with the local
 *             maximum, for a vocabulary that is whole here.
 *   loss:     loss[t] = (log(row_sum) + row_max - target) * mask[t];
 *             *loss_sum += their sum over t (fp64)
 *   backward: logits become (softmax - onehot) * mask[t] * scale, in place.
 * logits [rows, cols]; labels [rows], global ids; this rank holds first_col .. first_col +
 * valid_cols; row_max, row_sum, target, mask fp32 [rows]. Columns from valid_cols on are padding:
 * no sum counts them and their gradient is 0. */
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
    float softcap; /* c: logits are c * tanh(x / c), and their gradients x's; 0: x themselves */
} weft_cross_entropy_backward_args;

/* y = keep ? x / (1 - p) : 0, plus residual where given. Element (row, col) uses counter
 * r * cols + col of (seed, stream), r = first_row + row or, where `index` is given, for t =
 * first_row + row, index[t / batch] * batch + t % batch: the row that the token has in a sequence
 * of which a rank holds pieces. The backward is the same call on gradients. */
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
    const int32_t *index; /* optional */
    size_t batch;         /* with index */
} weft_dropout_args;

/* y = a + b; y may be either. */
typedef struct weft_add_args {
    size_t struct_bytes;
    size_t count;
    weft_dtype dtype;
    const void *a, *b;
    void *y;
} weft_add_args;

/* Converts between fp32, bf16 and fp16, rounding to nearest even; between equal types it copies.
 * rows > 0: so many rows of `count` numbers, which begin from_stride and to_stride elements apart.
 */
typedef struct weft_cast_args {
    size_t struct_bytes;
    size_t count;
    weft_dtype from_dtype, to_dtype;
    const void *from;
    void *to;
    size_t rows, from_stride, to_stride;
} weft_cast_args;

/* The router's selection, fp32 (PPMoE §3.3.3; GShard; ST-MoE's z-loss; DeepSeek-V3 §2.1.2).
 *   scores = softmax(logits) over all E, or sigmoids (always written: the aux loss needs them)
 *   top_index[t] = the k largest scores + bias, ties to the lower index, largest first; with
 *     num_groups, of the group_topk groups whose k / group_topk largest have the largest sums
 *   top_prob = scale * (pre_softmax ? scores at them : scores at them over their sum); of sigmoids,
 *     pre_softmax says the same, and a single one is never divided
 *   counts[e] += tokens that chose e; score_sums[e] += sum of scores, of sigmoids each over its
 *   token's sum; z_sum += sum of logsumexp(logits)^2. The caller zeroes these three first, and
 *   reduces them over its groups before use. With num_sequences S they are of each sequence
 *   alone; token t is of sequence t % S. */
enum { WEFT_MAX_EXPERT_GROUPS = 32 };

typedef struct weft_route_args {
    size_t struct_bytes;
    size_t num_tokens, num_experts, topk;
    bool pre_softmax;
    const float *logits; /* [T, E] */
    float *scores;       /* [T, E] */
    int32_t *top_index;  /* [T, K] */
    float *top_prob;     /* [T, K] */
    float *counts;       /* [S, E] */
    float *score_sums;   /* [S, E] */
    float *z_sum;        /* [S] */
    bool sigmoid;
    const float *bias;             /* optional, [E] */
    size_t num_groups, group_topk; /* num_groups 0: no groups; else it divides E */
    float scale;                   /* 0: 1 */
    size_t num_sequences;          /* S; 0: 1; else it divides T */
} weft_route_args;

/* dlogits = Jacobian of top_prob times dtop_prob
 *         + aux_scale * d/dlogits sum_t sum_e fraction[e] * scores[t,e]  (fraction: a constant)
 *         + z_scale * d/dlogits sum_t logsumexp^2.
 * For the aux loss L = coeff * E * sum_e f_e * P_e with f_e = counts[e] / (T K), P_e =
 * score_sums[e] / T, pass fraction = f and aux_scale = coeff * E / T * loss scale: dL/dscores[t,e]
 * = aux_scale * fraction[e]. For z: z_scale = coeff / T * loss scale. With num_sequences S each
 * sequence has fractions of its own. */
typedef struct weft_route_backward_args {
    size_t struct_bytes;
    size_t num_tokens, num_experts, topk;
    bool pre_softmax;
    const float *logits, *scores;
    const int32_t *top_index;
    const float *top_prob, *dtop_prob;
    const float *fraction; /* [S, E]; optional when aux_scale is 0 */
    float aux_scale, z_scale;
    float *dlogits; /* [T, E] written */
    bool sigmoid;
    bool biased; /* a bias or groups: the first choice need not have the largest score */
    float scale;
    size_t num_sequences; /* S; 0: 1; else it divides T */
} weft_route_backward_args;

/* Sorts the (token, k) choices by partition, then expert, then token. Partition p of n has tokens
 * p T / n up to (p + 1) T / n.
 *   counts[e]: choices kept for expert e, for all E experts
 *   row_of[t,k]: row of the choice among those of experts first_expert .. first_expert + num_local,
 *     or -1 (another rank's expert, or dropped)
 *   token_of[row]: t. num_rows = sum of the local counts.
 * capacity > 0: an expert keeps at most that many choices. Policy POSITION keeps those of the
 * earliest tokens, PROBS those of largest probability (ties: the earliest). dropped: how many
 * choices all E experts dropped.
 *   wrong: the first choice of an expert that does not exist. On the CPU it fails the lane. A GPU's
 *     kernels cannot fail and give it row -1: the caller waits for the counts and calls
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
    int64_t *partition_counts; /* host-readable, [n, E], written where n > 1: each partition's
                                  counts; optional where n is 1 */
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
    size_t num_tokens; /* optional: rows of x, for the device that runs nothing */
} weft_permute_args;

/* dx[t] = (accumulate: +=) sum over k of drows[row_of[t,k]]; -1 adds nothing. */
typedef struct weft_permute_backward_args {
    size_t struct_bytes;
    size_t num_tokens, topk, cols;
    weft_dtype dtype;
    const void *drows;
    const int32_t *row_of;
    void *dx;
    bool accumulate;
    size_t num_rows; /* optional: that row_of names, for the device that runs nothing */
} weft_permute_backward_args;

/* y[t] = sum over k of top_prob[t,k] * rows[row_of[t,k]]; -1 adds nothing. */
typedef struct weft_combine_args {
    size_t struct_bytes;
    size_t num_tokens, topk, cols;
    weft_dtype dtype;
    const void *rows;
    const int32_t *row_of;
    const float *top_prob;
    void *y;
    size_t num_rows; /* optional: that row_of names, for the device that runs nothing */
} weft_combine_args;

/* drows[row_of[t,k]] = top_prob[t,k] * dy[t]; dtop_prob[t,k] = <rows[row_of[t,k]], dy[t]>, 0 for
 * -1. Exactly one (t,k) writes each row. */
typedef struct weft_combine_backward_args {
    size_t struct_bytes;
    size_t num_tokens, topk, cols;
    weft_dtype dtype;
    const void *dy, *rows;
    const int32_t *row_of;
    const float *top_prob;
    void *drows; /* may be rows itself */
    float *dtop_prob;
    size_t num_rows; /* optional: that row_of names, for the device that runs nothing */
} weft_combine_backward_args;

/* AdamW (Loshchilov and Hutter) on fp32 master weights: g = grad * *grad_scale;
 * m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2;
 * master -= lr * (m / (1-b1^step) / (sqrt(v / (1-b2^step)) + eps) + weight_decay * master);
 * weight = master, rounded to `dtype` (bf16 as by weft_split_master); NULL or the master itself:
 * not written. A split master is `weight` and `low` and gets the same bits; `master` is NULL then.
 * Without m and v: master -= lr * (g + weight_decay * master). */
typedef struct weft_adamw_args {
    size_t struct_bytes;
    size_t count;
    float *master, *m, *v; /* m and v: both or none */
    uint16_t *low;         /* optional; dtype bf16 */
    const float *grad;
    const float *grad_scale; /* device, [1]; clipping; optional: 1 */
    void *weight;
    weft_dtype dtype;
    float lr, beta1, beta2, epsilon, weight_decay;
    int64_t step; /* from 1 */
} weft_adamw_args;

/* g = grad * *grad_scale; m = momentum m + (1-momentum) g; grad = m, or with nesterov what the next
 * step's m would be for the same g: momentum m + (1-momentum) g. */
typedef struct weft_momentum_args {
    size_t struct_bytes;
    size_t count;
    float *m, *grad;
    const float *grad_scale; /* device, [1]; optional: 1 */
    float momentum;
    bool nesterov;
} weft_momentum_args;

/* to[rows, cols] = factor * from, and divided by max(sqrt(*squares), 1e-7) where `squares` is
 * given; fp32. Leading dimensions are in elements. The two do not overlap. */
typedef struct weft_matrix_copy_args {
    size_t struct_bytes;
    size_t rows, cols;
    const float *from;
    float *to;
    size_t ld_from, ld_to;
    float factor;
    const double *squares; /* device, [1]; optional */
} weft_matrix_copy_args;

/* Splits an fp32 master weight: weight, bf16, is the master rounded to nearest, ties away from
 * zero, and low the master's lower 16 bits. Both together are the master's bits again, which is
 * (weight << 16) + low with low as a signed number: low is at least 2^15 exactly where the weight
 * was rounded away from zero. That holds for infinities and for masters whose weight is rounded to
 * one; a NaN stays a NaN, of weight 0x7fc0 and low 0. */
typedef struct weft_split_master_args {
    size_t struct_bytes;
    size_t count;
    const float *master;
    void *weight;  /* optional */
    uint16_t *low; /* optional */
} weft_split_master_args;

/* The master of a weight and its low bits. */
typedef struct weft_join_master_args {
    size_t struct_bytes;
    size_t count;
    const void *weight;
    const uint16_t *low;
    float *master;
} weft_join_master_args;

/* *sum += sum of x^2 over fp32 x, in fp64 and in fixed order. */
typedef struct weft_sum_squares_args {
    size_t struct_bytes;
    size_t count;
    const float *x;
    double *sum;
} weft_sum_squares_args;

/* Marks the parts of fp32 x that hold an infinity or a NaN: found[p] = 1, of others it stays. Part
 * p goes from the end of the one before to ends[p], in elements, rising; what lies behind the last
 * is the last one's. `ends` and `found`: [num_parts], from 1, on the device. */
typedef struct weft_find_not_finite_args {
    size_t struct_bytes;
    size_t count;
    const float *x;
    size_t num_parts;
    const uint64_t *ends;
    int32_t *found;
} weft_find_not_finite_args;

/* hashes[p] += the hash of part p of x, whose elements have 2 or 4 bytes. The hash is the sum mod
 * 2^64 of each element's bits times (2 i + 1) 0x9e3779b1 mod 2^32, where element i is counted from
 * x: a change of one element always changes it, and its bits do not depend on the device or the
 * order of additions. Parts as in weft_find_not_finite_args; all memory is on the device. */
typedef struct weft_hash_args {
    size_t struct_bytes;
    size_t count;
    const void *x;
    size_t element_bytes;
    size_t num_parts;
    const uint64_t *ends;
    uint64_t *hashes; /* [num_parts] */
} weft_hash_args;

/* x *= factor. */
typedef struct weft_scale_args {
    size_t struct_bytes;
    size_t count;
    weft_dtype dtype;
    void *x;
    float factor;
} weft_scale_args;

/* Fills the local part of a global tensor: the element with global row-major index i gets
 * mean + std * weft_rng_normal(seed, stream, i), so every mesh starts from the same bits. Local
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

/* On the host, after waiting for a plan. Errors: WEFT_INTERNAL, with the first wrong choice. */
weft_status weft_dispatch_plan_check(const weft_dispatch_plan_args *args) WEFT_CHECKED;

#ifdef __cplusplus
}
#endif
#endif
