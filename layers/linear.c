/* Linear layers and norms, which several layers share. */
#include "core/device/device.h"
#include "layers/pass/pass.h"

#include <math.h>
#include <stdio.h>

/* Standard deviation of the projections that end a residual branch: init_method_std /
 * sqrt(2 num_layers), as GPT-2 and Megatron scale them. */
static float output_init_std(const weft_model_options *options)
{
    return (float)(options->init_method_std / sqrt(2.0 * (double)options->num_layers));
}

weft_linear weft_linear_of(weft_parameter *weight, const char *name)
{
    const weft_tensor *w = &weight->weight;
    const size_t in = w->dims[w->num_dims - 1];
    return (weft_linear){
        .weight = weight, .in = in, .out = weft_tensor_count(w) / in, .name = name};
}

static void add_dim(weft_parameter_spec *spec, size_t size, weft_split_axis axis)
{
    spec->dims[spec->num_dims] = size;
    spec->split[spec->num_dims++] = axis;
}

/* Query, key and value are matrices each. Where ranks share a group its k and v are declared apart
 * from q. */
static void set_matrices(const weft_model_options *o, const weft_linear_row *row,
                         const weft_placed_rows *rows, weft_parameter_spec *spec)
{
    const size_t heads = (size_t)o->num_attention_heads,
                 groups = o->num_query_groups ? (size_t)o->num_query_groups : heads,
                 head_dim = row->out / (heads + 2 * groups);
    spec->is_matrix = row->kind != WEFT_LINEAR_SCORES && row->kind != WEFT_LINEAR_SCORES_SUMMED;
    if (row->kind != WEFT_LINEAR_QKV || (rows->count > 0 && rows->sharers == 1))
        return;
    const size_t of_q = rows->count > 0 ? 0 : heads / groups * head_dim;
    for (size_t i = 0; i < WEFT_MAX_MATRIX_ROWS; i++)
        spec->matrix_rows[i] = i == 0 ? of_q : head_dim;
}

weft_status weft_linear_declare_rows(weft_build *build, const weft_model_options *o,
                                     const weft_linear_row *row, const weft_placed_rows *rows)
{
    char name[WEFT_MAX_NAME_BYTES];
    weft_parameter *weight;
    const bool by_inputs = row->kind == WEFT_LINEAR_ROW, gated = row->kind == WEFT_LINEAR_GATED;
    const bool by_outputs =
        gated || row->kind == WEFT_LINEAR_COLUMN || row->kind == WEFT_LINEAR_QKV;
    const weft_split_axis axis = row->num_experts ? WEFT_SPLIT_ETP : WEFT_SPLIT_TP;
    weft_parameter_spec spec =
        WEFT_ARGS(weft_parameter_spec, .name = name, .is_expert = row->num_experts > 0,
                  .by_expert = row->num_experts > 0,
                  .init_std = by_inputs ? output_init_std(o) : (float)o->init_method_std,
                  .sum_over_tp = row->kind == WEFT_LINEAR_WHOLE_SUMMED ||
                                 row->kind == WEFT_LINEAR_SCORES_SUMMED);
    if (row->num_experts)
        add_dim(&spec, row->num_experts, WEFT_SPLIT_EP);
    if (gated)
        add_dim(&spec, 2, WEFT_SPLIT_NONE);
    add_dim(&spec, row->out, by_outputs ? axis : WEFT_SPLIT_NONE);
    weft_parameter_spec bias = spec;
    bias.init = WEFT_INIT_ZERO;
    bias.no_weight_decay = true;
    add_dim(&spec, row->in, by_inputs ? axis : WEFT_SPLIT_NONE);
    set_matrices(o, row, rows, &spec);
    snprintf(name, sizeof name, "%s.weight", row->name);
    WEFT_TRY(weft_build_rows(build, &spec, rows, &weight));
    *row->linear = weft_linear_of(weight, row->name);
    snprintf(name, sizeof name, "%s.bias", row->name);
    return row->has_bias ? weft_build_rows(build, &bias, rows, &row->linear->bias) : WEFT_OK;
}

weft_status weft_linears_declare(weft_build *build, const weft_model_options *o,
                                 const weft_linear_row *rows, size_t num_rows)
{
    for (const weft_linear_row *row = rows; row < rows + num_rows; row++)
        WEFT_TRY(weft_linear_declare_rows(build, o, row, &(weft_placed_rows){0}));
    return WEFT_OK;
}

/* A linear layer's product. */
static weft_status multiply(weft_pass *pass, const weft_linear *linear, const weft_gemm_args *args)
{
    weft_lane *lane = weft_pass_lane(pass);
    WEFT_TRY_AS(lane, linear->name, weft_gemm(lane, args));
    return WEFT_OK;
}

static weft_gemm_args forward_of(const weft_linear *linear, const weft_tensor *x, bool with_bias,
                                 const weft_tensor *y)
{
    return WEFT_ARGS(weft_gemm_args, .m = x->dims[0], .n = linear->out, .k = linear->in,
                     .transpose_b = true, .dtype = x->dtype, .c_dtype = y->dtype, .a = x->data,
                     .ldc = linear->stride, .b = linear->weight->weight.data, .c = y->data,
                     .alpha = 1,
                     .bias = with_bias && linear->bias ? linear->bias->weight.data : NULL);
}

weft_status weft_linear_forward(weft_pass *pass, const weft_linear *linear, const weft_tensor *x,
                                bool with_bias, weft_tensor *y)
{
    const weft_gemm_args args = forward_of(linear, x, with_bias, y);
    return multiply(pass, linear, &args);
}

weft_status weft_linear_gelu_forward(weft_pass *pass, const weft_linear *linear,
                                     const weft_tensor *x, weft_tensor *pre, weft_tensor *y)
{
    weft_gemm_args args = forward_of(linear, x, true, y);
    args.epilogue = WEFT_GEMM_GELU;
    args.pre = pre->data;
    return multiply(pass, linear, &args);
}

static weft_status parameters_backward(weft_pass *pass, const weft_linear *linear,
                                       const weft_tensor *x, const weft_tensor *dy, bool overwrite)
{
    weft_lane *lane = weft_pass_lane(pass);
    size_t rows = dy->dims[0];
    WEFT_TRY(multiply(pass, linear,
                      &WEFT_ARGS(weft_gemm_args, .m = linear->out, .n = linear->in, .k = rows,
                                 .transpose_a = true, .dtype = dy->dtype, .c_dtype = WEFT_F32,
                                 .a = dy->data, .lda = linear->stride, .b = x->data,
                                 .c = linear->weight->grad, .alpha = 1,
                                 .beta = overwrite ? 0.0f : 1.0f)));
    if (!linear->bias)
        return WEFT_OK;
    WEFT_TRY_AS(lane, linear->name,
                weft_bias_gradient(
                    lane, &WEFT_ARGS(weft_bias_gradient_args, .rows = rows, .cols = linear->out,
                                     .dtype = dy->dtype, .dy = dy->data, .db = linear->bias->grad,
                                     .overwrite = overwrite, .stride = linear->stride)));
    return WEFT_OK;
}

static weft_gemm_args input_backward_of(const weft_linear *linear, const weft_tensor *dy,
                                        const weft_tensor *dx)
{
    return WEFT_ARGS(weft_gemm_args, .m = dy->dims[0], .n = linear->in, .k = linear->out,
                     .dtype = dy->dtype, .c_dtype = dx->dtype, .a = dy->data, .lda = linear->stride,
                     .b = linear->weight->weight.data, .c = dx->data, .alpha = 1);
}

weft_status weft_linear_backward_weights(weft_pass *pass, const weft_linear *linear,
                                         const weft_tensor *x, const weft_tensor *dy)
{
    return parameters_backward(pass, linear, x, dy, weft_pass_overwrite(pass));
}

weft_status weft_linear_backward_input(weft_pass *pass, const weft_linear *linear,
                                       const weft_tensor *dy, bool add, weft_tensor *dx)
{
    weft_gemm_args args = input_backward_of(linear, dy, dx);
    args.beta = add ? 1 : 0;
    return multiply(pass, linear, &args);
}

weft_status weft_linear_backward(weft_pass *pass, const weft_linear *linear, const weft_tensor *x,
                                 const weft_tensor *dy, weft_tensor *dx)
{
    return weft_linear_backward_to(pass, linear, x, dy, weft_pass_overwrite(pass), false, dx);
}

weft_status weft_linear_backward_to(weft_pass *pass, const weft_linear *linear,
                                    const weft_tensor *x, const weft_tensor *dy, bool overwrite,
                                    bool add, weft_tensor *dx)
{
    WEFT_TRY(parameters_backward(pass, linear, x, dy, overwrite));
    return dx ? weft_linear_backward_input(pass, linear, dy, add, dx) : WEFT_OK;
}

weft_status weft_linear_gelu_backward_input(weft_pass *pass, const weft_linear *linear,
                                            const weft_tensor *dy, const weft_tensor *pre,
                                            weft_tensor *dpre)
{
    weft_gemm_args args = input_backward_of(linear, dy, dpre);
    args.epilogue = WEFT_GEMM_GELU_BACKWARD;
    args.pre = pre->data;
    return multiply(pass, linear, &args);
}

weft_status weft_norm_init(weft_build *build, const weft_model_options *options, const char *name,
                           weft_norm *out)
{
    return weft_norm_init_wide(build, options, name, (size_t)options->hidden_size, out);
}

weft_status weft_norm_init_wide(weft_build *build, const weft_model_options *options,
                                const char *name, size_t cols, weft_norm *out)
{
    out->kind = options->normalization == WEFT_RMSNORM ? WEFT_NORM_RMS : WEFT_NORM_LAYER;
    out->epsilon = (float)options->norm_epsilon;
    out->name = name;
    out->weight_offset = options->apply_layernorm_1p ? 1.0f : 0.0f;
    /* Under sequence parallelism every TP rank sees its own rows only. */
    bool sum = weft_build_shape(build)->sequence_parallel;
    char text[WEFT_MAX_NAME_BYTES];
    snprintf(text, sizeof text, "%s.weight", name);
    weft_parameter_spec spec = {.struct_bytes = sizeof spec,
                                .name = text,
                                .num_dims = 1,
                                .dims = {cols},
                                .init =
                                    options->apply_layernorm_1p ? WEFT_INIT_ZERO : WEFT_INIT_ONE,
                                .no_weight_decay = true,
                                .sum_over_tp = sum};
    WEFT_TRY(weft_build_parameter(build, &spec, &out->weight));
    out->bias = NULL;
    if (out->kind == WEFT_NORM_LAYER) {
        snprintf(text, sizeof text, "%s.bias", name);
        spec.init = WEFT_INIT_ZERO;
        WEFT_TRY(weft_build_parameter(build, &spec, &out->bias));
    }
    return WEFT_OK;
}

/* weight, bias: where the norm's lie now; bias NULL: it has none. */
static weft_status run(weft_pass *pass, const weft_norm *norm, const void *weight, const void *bias,
                       const weft_tensor *x, const weft_tensor *residual, weft_tensor *sum,
                       const weft_tensor *y, const weft_norm_stats *stats)
{
    weft_lane *lane = weft_pass_lane(pass);
    WEFT_TRY_AS(
        lane, norm->name,
        weft_norm_forward(
            lane, &WEFT_ARGS(weft_norm_forward_args, .kind = norm->kind, .rows = x->dims[0],
                             .cols = x->dims[1], .dtype = x->dtype, .x = x->data,
                             .residual = residual ? residual->data : NULL,
                             .sum = residual ? sum->data : NULL, .weight = weight, .bias = bias,
                             .y = y->data, .mean = stats->mean, .rstd = stats->rstd,
                             .epsilon = norm->epsilon, .weight_offset = norm->weight_offset)));
    return WEFT_OK;
}

static const void *bias_of(const weft_norm *norm)
{
    return norm->bias ? norm->bias->weight.data : NULL;
}

weft_status weft_norm_run(weft_pass *pass, const weft_norm *norm, const weft_tensor *x,
                          const weft_tensor *residual, weft_tensor *sum, const weft_tensor *y,
                          weft_norm_stats *stats)
{
    weft_tensor mean = {0}, rstd;
    weft_lane *lane = weft_pass_lane(pass);
    if (norm->kind == WEFT_NORM_LAYER)
        WEFT_TRY_AS(lane, norm->name, weft_pass_stash(pass, WEFT_F32, x->dims[0], 1, &mean));
    WEFT_TRY_AS(lane, norm->name, weft_pass_stash(pass, WEFT_F32, x->dims[0], 1, &rstd));
    stats->mean = mean.data;
    stats->rstd = rstd.data;
    return run(pass, norm, norm->weight->weight.data, bias_of(norm), x, residual, sum, y, stats);
}

weft_status weft_norm_rerun(weft_pass *pass, const weft_norm *norm, const weft_tensor *x,
                            const weft_norm_stats *stats)
{
    return weft_norm_rerun_to(pass, norm, x, stats, weft_pass_normed(pass));
}

weft_status weft_norm_rerun_to(weft_pass *pass, const weft_norm *norm, const weft_tensor *x,
                               const weft_norm_stats *stats, const weft_tensor *y)
{
    return run(pass, norm, norm->weight->weight.data, bias_of(norm), x, NULL, NULL, y, stats);
}

weft_status weft_norm_run_backward(weft_pass *pass, const weft_norm *norm, const weft_tensor *dy,
                                   const weft_tensor *x, const weft_norm_stats *stats,
                                   bool accumulate, weft_tensor *dx)
{
    return weft_norm_backward_deferring(pass, norm, dy, x, stats, accumulate, NULL, dx);
}

/* --- a norm in two halves -------------------------------------------------------------------- */

/* A rehearsal has no rings. */
static bool uses_ring(const weft_pass *pass, const weft_norm *norm, bool weights)
{
    const weft_parameters *parameters = pass->model->memory.rings.parameters;
    return parameters && weft_parameters_uses_ring(parameters, norm->weight, weights);
}

/* Row 0 of [2, H] is the weight's, row 1 the bias'. */
static void *row_of(const weft_tensor *t, size_t row)
{
    return (char *)t->data + row * t->dims[1] * weft_dtype_bytes(t->dtype);
}

weft_status weft_norm_defer(weft_pass *pass, const weft_norm *norm, weft_norm_deferred *out)
{
    const weft_parameter *of[] = {norm->weight, norm->bias};
    const size_t cols = norm->weight->weight.dims[0];
    WEFT_TRY(weft_pass_deferred(pass, norm->weight->weight.dtype, 2, cols, &out->weights));
    WEFT_TRY(weft_pass_deferred(pass, WEFT_F32, 2, cols, &out->gradients));
    out->later = uses_ring(pass, norm, false) && !pass->leaves;
    for (size_t i = 0; i < 2 && uses_ring(pass, norm, true); i++)
        if (of[i])
            WEFT_TRY(weft_lane_copy(weft_pass_lane(pass), row_of(&out->weights, i),
                                    of[i]->weight.data, weft_tensor_bytes(&of[i]->weight)));
    return WEFT_OK;
}

weft_status weft_norm_rerun_deferred(weft_pass *pass, const weft_norm *norm, const weft_tensor *x,
                                     const weft_norm_stats *stats, const weft_norm_deferred *d,
                                     const weft_tensor *y)
{
    if (!uses_ring(pass, norm, true))
        return weft_norm_rerun_to(pass, norm, x, stats, y);
    return run(pass, norm, row_of(&d->weights, 0), norm->bias ? row_of(&d->weights, 1) : NULL, x,
               NULL, NULL, y, stats);
}

weft_status weft_norm_backward_deferring(weft_pass *pass, const weft_norm *norm,
                                         const weft_tensor *dy, const weft_tensor *x,
                                         const weft_norm_stats *stats, bool accumulate,
                                         const weft_norm_deferred *d, weft_tensor *dx)
{
    weft_lane *lane = weft_pass_lane(pass);
    const bool later = d && weft_pass_defers(pass) && d->later;
    float *dbias = norm->bias ? norm->bias->grad : NULL;
    if (later)
        dbias = norm->bias ? row_of(&d->gradients, 1) : NULL;
    WEFT_TRY_AS(
        lane, norm->name,
        weft_norm_backward(
            lane, &WEFT_ARGS(weft_norm_backward_args, .kind = norm->kind, .rows = x->dims[0],
                             .cols = x->dims[1], .dtype = x->dtype, .dy = dy->data, .x = x->data,
                             .weight = norm->weight->weight.data, .mean = stats->mean,
                             .rstd = stats->rstd, .dx = dx->data, .accumulate = accumulate,
                             .dweight = later ? row_of(&d->gradients, 0) : norm->weight->grad,
                             .dbias = dbias, .overwrite = later || weft_pass_overwrite(pass),
                             .weight_offset = norm->weight_offset)));
    return WEFT_OK;
}

/* The slot was cleared, so that one sum added to it has the bits of its parts added in turn. */
weft_status weft_norm_end_deferred(weft_pass *pass, const weft_norm *norm,
                                   const weft_norm_deferred *d)
{
    const weft_parameter *of[] = {norm->weight, norm->bias};
    for (size_t i = 0; i < 2 && d->later; i++)
        if (of[i])
            WEFT_TRY(weft_lane_copy(weft_pass_lane(pass), of[i]->grad, row_of(&d->gradients, i),
                                    d->gradients.dims[1] * sizeof(float)));
    return WEFT_OK;
}
