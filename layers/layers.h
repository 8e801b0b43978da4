/* The structs of Weft's own layers and what they share. Private to layers/. */
#ifndef WEFT_LAYERS_LAYERS_H
#define WEFT_LAYERS_LAYERS_H

#include <weft/kernels.h>
#include <weft/model.h>

#include "layers/describe.h"
#include "parallel/groups.h"

/* y[rows, out] = x[rows, in] W^T + b. W is [out..., in]; out is what W's other dimensions hold. */
typedef struct weft_linear {
    weft_parameter *weight, *bias; /* bias optional */
    size_t in, out;                /* local */
} weft_linear;
/* How W is split: over TP, and of experts over ETP. */
typedef enum weft_linear_kind {
    WEFT_LINEAR_WHOLE,        /* not at all */
    WEFT_LINEAR_WHOLE_SUMMED, /* nor here, but gradients are summed over TP: ranks see own rows */
    WEFT_LINEAR_COLUMN,       /* by outputs */
    WEFT_LINEAR_GATED,        /* by outputs of each of two in one, gate and up: W [2, out, in] */
    WEFT_LINEAR_ROW,          /* by inputs */
} weft_linear_kind;
/* A linear layer as it is declared: NAME.weight and, where it has one, NAME.bias. */
typedef struct weft_linear_row {
    weft_linear *linear; /* filled in */
    const char *name;
    weft_linear_kind kind;
    size_t in, out; /* global; gated: of each of the two */
    bool has_bias;
    size_t num_experts; /* W is [num_experts, ...], cut over EP; 0: no experts */
} weft_linear_row;
/* The layer of a weight that is declared already. */
weft_linear weft_linear_of(weft_parameter *weight);
/* Weights begin with init_method_std, those split by inputs, which end a residual branch, with
 * weft_output_init_std; biases with 0. Errors: weft_build_parameter's. */
weft_status weft_linears_declare(weft_build *build, const weft_model_options *options,
                                 const weft_linear_row *rows, size_t num_rows) WEFT_CHECKED;
weft_status weft_linear_forward(weft_pass *pass, const weft_linear *linear, const weft_tensor *x,
                                bool with_bias, weft_tensor *y) WEFT_CHECKED;
/* pre = x W^T + b, y = gelu(pre): one GEMM. */
weft_status weft_linear_gelu_forward(weft_pass *pass, const weft_linear *linear,
                                     const weft_tensor *x, weft_tensor *pre,
                                     weft_tensor *y) WEFT_CHECKED;
/* dx[rows, in] is written where given, last, and may take x's place; weight and bias gradients are
 * added. */
weft_status weft_linear_backward(weft_pass *pass, const weft_linear *linear, const weft_tensor *x,
                                 const weft_tensor *dy, weft_tensor *dx) WEFT_CHECKED;
/* The same where x = gelu(pre), pre [rows, in]: dpre, pre's gradient, may take x's place, not
 * pre's. */
weft_status weft_linear_gelu_backward(weft_pass *pass, const weft_linear *linear,
                                      const weft_tensor *x, const weft_tensor *dy,
                                      const weft_tensor *pre, weft_tensor *dpre) WEFT_CHECKED;
/* weft_linear_backward(), where the caller knows whether the weight's gradients are the first of
 * the step. */
weft_status weft_linear_backward_to(weft_pass *pass, const weft_linear *linear,
                                    const weft_tensor *x, const weft_tensor *dy, bool overwrite,
                                    weft_tensor *dx) WEFT_CHECKED;

typedef struct weft_norm {
    weft_norm_kind kind;
    float epsilon;
    weft_parameter *weight, *bias; /* bias: LayerNorm */
} weft_norm;
weft_status weft_norm_init(weft_build *build, const weft_model_options *options, const char *name,
                           weft_norm *out) WEFT_CHECKED;
/* Statistics, kept for backward. */
typedef struct weft_norm_stats {
    float *mean, *rstd;
} weft_norm_stats;
/* y = norm(x), or norm(sum = x + residual). Stashes y's statistics. */
weft_status weft_norm_run(weft_pass *pass, const weft_norm *norm, const weft_tensor *x,
                          const weft_tensor *residual, weft_tensor *sum, const weft_tensor *y,
                          weft_norm_stats *stats) WEFT_CHECKED;
/* Where blocks keep the norms' outputs: rows [S*B, H] (its TP shard under sequence parallelism) at
 * an address that all blocks of the stage share. It holds the norm that ran last. */
const weft_tensor *weft_pass_normed(const weft_pass *pass);
/* Makes weft_pass_normed what the norm's forward run with x made it, to the bit. */
weft_status weft_norm_rerun(weft_pass *pass, const weft_norm *norm, const weft_tensor *x,
                            const weft_norm_stats *stats) WEFT_CHECKED;
weft_status weft_norm_run_backward(weft_pass *pass, const weft_norm *norm, const weft_tensor *dy,
                                   const weft_tensor *x, const weft_norm_stats *stats,
                                   bool accumulate, weft_tensor *dx) WEFT_CHECKED;

/* Communicators and coordinates of the mesh the model runs on. */
const weft_groups *weft_build_groups(const weft_build *build);
const weft_groups *weft_pass_groups(const weft_pass *pass);
/* A parameter that an earlier layer of this stage declared, by global name, to use it too: backward
 * of this layer runs first and writes its gradient, the other then adds. *out NULL: not here. */
weft_status weft_build_share(weft_build *build, const char *name,
                             weft_parameter **out) WEFT_CHECKED;
/* Declares under the name as it stands, without the layer's prefix. */
weft_status weft_build_global_parameter(weft_build *build, const weft_parameter_spec *spec,
                                        weft_parameter **out) WEFT_CHECKED;

#define WEFT_WORD_EMBEDDINGS "embedding.word_embeddings.weight"
/* A parameter [V, H], split over TP by vocabulary: the word embeddings, which first and last stage
 * share, or under another global name the head's own. */
weft_status weft_vocabulary_declare(weft_build *build, const weft_model_options *options,
                                    const char *name, weft_parameter **out) WEFT_CHECKED;

/* Standard deviation of the projections that end a residual branch: init_method_std /
 * sqrt(2 num_layers), as GPT-2 and Megatron scale them. */
float weft_output_init_std(const weft_model_options *options);
weft_activation_kind weft_activation_of(const weft_model_options *options);

/* Allocates a zeroed layer whose first member is the base and second the options. */
weft_layer *weft_layer_new(const weft_layer_ops *ops, size_t bytes,
                           const weft_model_options *options);
void weft_layer_free(weft_layer *layer);
/* Notes that a block or a model owns the layer now. Errors: WEFT_CONFIG: one did before. */
weft_status weft_layer_take(weft_layer *layer) WEFT_CHECKED;
/* Whether a model has initialised it. */
bool weft_layer_is_placed(const weft_layer *layer);
/* The layer's table as this library knows it, of whatever version the program is. */
weft_layer_ops weft_layer_table(const weft_layer *layer);
/* "of no kind" where the table says none; the name of a function that the table lacks, or NULL. */
const char *weft_layer_kind(const weft_layer *layer);
const char *weft_layer_missing(const weft_layer *layer);
/* ops->width of layers of ours: options.hidden_size. */
int64_t weft_layer_width(const weft_layer *layer);
/* ops->is_static, which may be NULL; and one that is always true. */
bool weft_layer_is_static(const weft_layer *layer);
bool weft_layer_always_static(const weft_layer *layer);

typedef struct weft_layer_common { /* the head of every layer of ours */
    weft_layer base;
    weft_model_options options;
} weft_layer_common;

#endif
