/* A GPT with a layer of its own: the squared-ReLU MLP of Primer (So et al. 2021),
 *
 *     y = W2 max(0, W1 x)^2,    W1 [ffn, hidden], W2 [hidden, ffn], no biases,
 *
 * column- and row-parallel over the tensor-parallel group (Shoeybi et al. 2019, §3), with or
 * without sequence parallelism, in fp32 or bf16. Weft has no kernel for the square, so the layer
 * brings its own as a function on the lane.
 *
 *     example_own_layer train examples/llama-small.json --out run --set data.data_path=corpus
 *
 * R: rows of the region, S * B; H: hidden; F: this rank's share of ffn. */
#include <stdlib.h>

#include <weft/weft.h>

typedef struct primer {
    weft_layer base; /* first, so that a weft_layer * is a primer * */
    size_t hidden, ffn_all;
    double init_std;
    weft_parameter *w1, *w2;
} primer;

/* What one micro-batch's backward needs of its forward. */
typedef struct primer_state {
    weft_tensor x;   /* borrowed: valid until the backward */
    weft_tensor pre; /* W1 x, [R, F], fp32 */
    weft_tensor act; /* max(0, pre)^2, [R, F] */
} primer_state;

/* --- costs --------------------------------------------------------------------------------- */

/* Pure: shapes in, a list out. The model reserves memory by it, and plans are priced by it. */
static void primer_describe(const weft_layer *layer, const weft_shape *shape, weft_layer_cost *out)
{
    const primer *p = (const primer *)layer;
    size_t rows = weft_shape_local_tokens(shape), ffn = p->ffn_all / (size_t)shape->tp;
    size_t wide = rows * ffn * sizeof(float), act = rows * ffn * weft_dtype_bytes(shape->dtype);
    for (int i = 0; i < 2; i++)
        weft_cost_parameter(out, shape, WEFT_GRADIENT_DENSE, p->hidden * p->ffn_all,
                            p->hidden * ffn);
    weft_cost_linear(out, shape, "w1", rows, p->hidden, ffn);
    weft_cost_linear(out, shape, "w2", rows, ffn, p->hidden);
    weft_cost_stash(out, "w1", WEFT_F32, rows, ffn, WEFT_PHASE_INPUT_GRADIENT);
    weft_cost_stash(out, "square", shape->dtype, rows, ffn, WEFT_PHASE_WEIGHT_GRADIENT);

    weft_cost_enter(out, shape, WEFT_PHASE_FORWARD);
    weft_cost_memory(out, WEFT_PHASE_FORWARD, "square", wide + act, 1);
    weft_cost_exit(out, shape, WEFT_PHASE_FORWARD);

    weft_cost_enter(out, shape, WEFT_PHASE_INPUT_GRADIENT);
    weft_cost_scratch(out, shape, WEFT_PHASE_INPUT_GRADIENT, shape->dtype, rows, ffn);
    weft_cost_memory(out, WEFT_PHASE_INPUT_GRADIENT, "square", 2 * wide + act, 1);
    weft_cost_enter(out, shape, WEFT_PHASE_WEIGHT_GRADIENT);
    weft_cost_exit(out, shape, WEFT_PHASE_INPUT_GRADIENT);
    for (int half = 0; half < 2 && shape->dtype != WEFT_F32; half++) /* fp32_for */
        weft_cost_scratch(out, shape, half ? WEFT_PHASE_INPUT_GRADIENT : WEFT_PHASE_FORWARD,
                          WEFT_F32, rows, ffn);
}

/* --- parameters ---------------------------------------------------------------------------- */

static weft_status primer_init(weft_layer *layer, weft_build *build)
{
    primer *p = (primer *)layer;
    weft_parameter_spec w1 = {.struct_bytes = sizeof w1,
                              .name = "w1",
                              .num_dims = 2,
                              .dims = {p->ffn_all, p->hidden},
                              .split = {WEFT_SPLIT_TP, WEFT_SPLIT_NONE},
                              .init_std = (float)p->init_std};
    weft_parameter_spec w2 = {.struct_bytes = sizeof w2,
                              .name = "w2",
                              .num_dims = 2,
                              .dims = {p->hidden, p->ffn_all},
                              .split = {WEFT_SPLIT_NONE, WEFT_SPLIT_TP},
                              .init_std = (float)p->init_std};
    WEFT_TRY(weft_build_parameter(build, &w1, &p->w1));
    return weft_build_parameter(build, &w2, &p->w2);
}

/* --- the kernel ---------------------------------------------------------------------------- */

typedef struct square_args {
    size_t count;
    const float *pre;
    float *value; /* forward: max(0, pre)^2 is written; backward: becomes its gradient, in place */
    bool backward;
} square_args;

/* Runs on the lane's thread. d/dx max(0, x)^2 = 2 max(0, x). */
static weft_status square(const void *raw)
{
    const square_args *a = raw;
    for (size_t i = 0; i < a->count; i++) {
        float positive = a->pre[i] > 0 ? a->pre[i] : 0;
        a->value[i] = a->backward ? 2 * positive * a->value[i] : positive * positive;
    }
    return WEFT_OK;
}

/* In fp32; `to` gets the result in the activations' precision and may be `value` itself. */
static weft_status run_square(weft_pass *pass, const weft_tensor *pre, const weft_tensor *value,
                              bool backward, const weft_tensor *to)
{
    weft_lane *lane = weft_pass_lane(pass);
    square_args args = {weft_tensor_count(pre), pre->data, value->data, backward};
    WEFT_TRY(weft_lane_submit(lane, "square", square, &args, sizeof args));
    if (to->data == value->data)
        return WEFT_OK;
    return weft_cast(lane, &WEFT_ARGS(weft_cast_args, .count = args.count, .from_dtype = WEFT_F32,
                                      .to_dtype = to->dtype, .from = value->data, .to = to->data));
}

/* --- passes -------------------------------------------------------------------------------- */

/* to[m, n] = a b^T, or a b. The shapes come from the tensors. */
static weft_status multiply(weft_pass *pass, const weft_tensor *a, const weft_tensor *b,
                            bool transpose_b, weft_tensor *to)
{
    return weft_gemm(weft_pass_lane(pass),
                     &WEFT_ARGS(weft_gemm_args, .m = to->dims[0], .n = to->dims[1], .k = a->dims[1],
                                .transpose_b = transpose_b, .dtype = a->dtype, .c_dtype = to->dtype,
                                .a = a->data, .b = b->data, .c = to->data));
}

/* w's gradient (+)= dy^T x: the step's first micro-batch writes it, so nothing clears gradients. */
static weft_status add_gradient(weft_pass *pass, const weft_parameter *w, const weft_tensor *dy,
                                const weft_tensor *x)
{
    return weft_gemm(weft_pass_lane(pass),
                     &WEFT_ARGS(weft_gemm_args, .m = dy->dims[1], .n = x->dims[1], .k = x->dims[0],
                                .transpose_a = true, .dtype = x->dtype, .c_dtype = WEFT_F32,
                                .a = dy->data, .b = x->data, .c = w->grad,
                                .beta = weft_pass_overwrite(pass) ? 0.0f : 1.0f));
}

/* Scratch for fp32 values that end as `to`: none where `to` is fp32 itself. */
static weft_status fp32_for(weft_pass *pass, const weft_tensor *to, weft_tensor *out)
{
    *out = *to;
    return to->dtype == WEFT_F32 ? WEFT_OK
                                 : weft_pass_scratch(pass, WEFT_F32, to->dims[0], to->dims[1], out);
}

static weft_status primer_forward(weft_layer *layer, weft_pass *pass, const weft_tensor *x,
                                  weft_tensor *y)
{
    primer *p = (primer *)layer;
    primer_state *state = weft_pass_state(pass, layer);
    size_t mark = weft_pass_mark(pass), ffn = p->w1->weight.dims[0];
    weft_tensor full, value, partial;
    state->x = *x;
    WEFT_TRY(weft_pass_enter(pass, x, &full));
    WEFT_TRY(weft_pass_stash(pass, WEFT_F32, full.dims[0], ffn, &state->pre));
    WEFT_TRY(weft_pass_stash(pass, x->dtype, full.dims[0], ffn, &state->act));
    WEFT_TRY(fp32_for(pass, &state->act, &value));
    WEFT_TRY(multiply(pass, &full, &p->w1->weight, true, &state->pre));
    WEFT_TRY(run_square(pass, &state->pre, &value, false, &state->act));
    WEFT_TRY(weft_pass_partial(pass, y, &partial));
    WEFT_TRY(multiply(pass, &state->act, &p->w2->weight, true, &partial));
    WEFT_TRY(weft_pass_exit(pass, &partial, y));
    weft_pass_release(pass, mark);
    return WEFT_OK;
}

static weft_status primer_backward(weft_layer *layer, weft_pass *pass, const weft_tensor *dy,
                                   weft_tensor *dx)
{
    primer *p = (primer *)layer;
    primer_state *state = weft_pass_state(pass, layer);
    size_t mark = weft_pass_mark(pass), rows = state->pre.dims[0], ffn = state->pre.dims[1];
    weft_tensor dy_full, x_full, dact, dpre, partial;
    WEFT_TRY(weft_pass_enter(pass, dy, &dy_full));
    WEFT_TRY(weft_pass_scratch(pass, dy->dtype, rows, ffn, &dpre));
    WEFT_TRY(fp32_for(pass, &dpre, &dact));
    WEFT_TRY(add_gradient(pass, p->w2, &dy_full, &state->act));
    WEFT_TRY(multiply(pass, &dy_full, &p->w2->weight, false, &dact));
    WEFT_TRY(run_square(pass, &state->pre, &dact, true, &dpre));
    WEFT_TRY(weft_pass_enter(pass, &state->x, &x_full));
    WEFT_TRY(add_gradient(pass, p->w1, &dpre, &x_full));
    WEFT_TRY(weft_pass_partial(pass, dx, &partial));
    WEFT_TRY(multiply(pass, &dpre, &p->w1->weight, false, &partial));
    WEFT_TRY(weft_pass_exit(pass, &partial, dx));
    weft_pass_release(pass, mark);
    return WEFT_OK;
}

static void primer_destroy(weft_layer *layer)
{
    free(layer);
}

static const weft_layer_ops primer_ops = {
    .struct_bytes = sizeof primer_ops,
    .kind = "primer",
    .state_bytes = sizeof(primer_state),
    .describe = primer_describe,
    .init = primer_init,
    .forward = primer_forward,
    .backward = primer_backward,
    .destroy = primer_destroy,
    .by_token = true,
};

static weft_layer *primer_create(const weft_model_options *options)
{
    primer *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    p->base.ops = &primer_ops;
    p->hidden = (size_t)options->hidden_size;
    p->ffn_all = (size_t)options->ffn_hidden_size;
    p->init_std = options->init_method_std;
    return &p->base;
}

/* --- the model ----------------------------------------------------------------------------- */

static weft_status build(weft_model *model, const weft_model_options *options)
{
    WEFT_TRY(weft_model_add_embedding(model, options));
    for (int64_t i = 0; i < options->num_layers; i++)
        WEFT_TRY(weft_model_add_block(model, options, weft_attention_create(options),
                                      primer_create(options)));
    return weft_model_add_head(model, options);
}

int main(int argc, char **argv)
{
    return weft_main(argc, argv, build);
}
