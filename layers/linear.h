/* Linear layers: y[rows, out] = x[rows, in] W^T + b. */
#ifndef WEFT_LAYERS_LINEAR_H
#define WEFT_LAYERS_LINEAR_H

#include <weft/kernels.h>
#include <weft/model.h>

/* W is [out..., in]; out is the product of W's other dimensions. */
typedef struct weft_linear {
    weft_parameter *weight, *bias; /* bias optional */
    size_t in, out;                /* local */
    size_t stride;                 /* from row to row of y and dy; 0: out */
    const char *name;              /* static: "linear_fc1" */
} weft_linear;
/* How W is split: over TP, and of experts over ETP. */
typedef enum weft_linear_kind {
    WEFT_LINEAR_WHOLE,         /* not at all */
    WEFT_LINEAR_WHOLE_SUMMED,  /* not at all; gradients are summed over TP: ranks see own rows */
    WEFT_LINEAR_COLUMN,        /* by outputs */
    WEFT_LINEAR_GATED,         /* by outputs, of gate and of up: W [2, out, in] */
    WEFT_LINEAR_ROW,           /* by inputs */
    WEFT_LINEAR_QKV,           /* by outputs: of each query group the rows of q, k and v */
    WEFT_LINEAR_SCORES,        /* as WHOLE, of a router or gate: to optimizers it is no matrix */
    WEFT_LINEAR_SCORES_SUMMED, /* as WHOLE_SUMMED, of these */
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
weft_linear weft_linear_of(weft_parameter *declared, const char *name);
/* Weights begin with deviation init_method_std, those split by inputs, which end a residual branch,
 * with init_method_std / sqrt(2 num_layers); biases with 0. Errors: weft_build_parameter's. */
weft_status weft_linears_declare(weft_build *build, const weft_model_options *options,
                                 const weft_linear_row *rows, size_t num_rows) WEFT_CHECKED;
weft_status weft_linear_forward(weft_pass *pass, const weft_linear *linear, const weft_tensor *x,
                                bool with_bias, weft_tensor *y) WEFT_CHECKED;
/* pre = x W^T + b, y = gelu(pre): one GEMM. */
weft_status weft_linear_gelu_forward(weft_pass *pass, const weft_linear *linear,
                                     const weft_tensor *x, weft_tensor *pre,
                                     weft_tensor *y) WEFT_CHECKED;
/* Adds weight and bias gradients (in a step's first micro-batch writes them), then writes dx[rows,
 * in] where given: it may take x's place. */
weft_status weft_linear_backward(weft_pass *pass, const weft_linear *linear, const weft_tensor *x,
                                 const weft_tensor *dy, weft_tensor *dx) WEFT_CHECKED;
/* Its two halves: the gradients of parameters; dx. */
weft_status weft_linear_backward_weights(weft_pass *pass, const weft_linear *linear,
                                         const weft_tensor *x, const weft_tensor *dy) WEFT_CHECKED;
weft_status weft_linear_backward_input(weft_pass *pass, const weft_linear *linear,
                                       const weft_tensor *dy, bool add,
                                       weft_tensor *dx) WEFT_CHECKED;
/* The second where x = gelu(pre), pre [rows, in]: dpre, its gradient, may be x, but not pre. */
weft_status weft_linear_gelu_backward_input(weft_pass *pass, const weft_linear *linear,
                                            const weft_tensor *dy, const weft_tensor *pre,
                                            weft_tensor *dpre) WEFT_CHECKED;
/* weft_linear_backward where the caller says whether it adds to the gradients and to dx. */
weft_status weft_linear_backward_to(weft_pass *pass, const weft_linear *linear,
                                    const weft_tensor *x, const weft_tensor *dy, bool overwrite,
                                    bool add, weft_tensor *dx) WEFT_CHECKED;

#endif
