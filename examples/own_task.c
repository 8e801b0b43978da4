/* A task of one's own: data, loss, metric and config keys beside a stack of Weft's layers.
 *
 * The data is made by a function: random tokens, and as labels what the tokens so far sum to,
 * modulo task.modulus. The model's last layer predicts label / modulus by one number a token,
 *
 *     v_t = w . x_t,    loss = task.loss_weight * mean over t of (v_t - label_t / modulus)^2,
 *
 * and reports as metrics the mean of |v_t - label_t / modulus| and how many are above a half. A
 * config such as
 *
 *     {"model": {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "seq_length": 32,
 *                "vocab_size": 16},
 *      "train": {"train_iters": 200, "parameter_rules": ["embedding.* frozen"]},
 *      "task": {"modulus": 5}}
 *
 * trains it on any mesh: example_own_task train task.json --out run --mesh tp=2,pp=2 */
#include <math.h>
#include <stdlib.h>

#include <weft/weft.h>

/* --- keys of the config ---------------------------------------------------------------------- */

typedef struct task_options {
    int64_t modulus;
    double loss_weight;
} task_options;

static const weft_option_row task_rows[] = {
    {"modulus", WEFT_OPTION_INT, offsetof(task_options, modulus), "7", 2, 1000, NULL, NULL,
     "what the labels count to"},
    {"loss_weight", WEFT_OPTION_DOUBLE, offsetof(task_options, loss_weight), "1", 0, 1e6, NULL,
     NULL, "what the squared error is multiplied by"},
};

/* --- data ------------------------------------------------------------------------------------ */

/* A pure function of the sample's number, so that every mesh trains on the same. */
static weft_status fill(const weft_sample *sample)
{
    const task_options *task = sample->own_options;
    uint64_t state = sample->seed + 4 * sample->index + (uint64_t)sample->use;
    int64_t sum = 0;
    for (size_t i = 0; i < sample->seq_length; i++) {
        state = (state + 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;
        state ^= state >> 31;
        sample->tokens[i] = (int32_t)(state % (uint64_t)sample->vocab_size);
        sum += sample->tokens[i];
        sample->labels[i] = (int32_t)(sum % task->modulus);
    }
    return WEFT_OK;
}

/* --- the last layer -------------------------------------------------------------------------- */

/* Sums over the rows of a micro-batch on this rank. */
enum { SQUARES, ABSOLUTE, ROWS, LARGE, NUM_SUMS };

typedef struct value_head {
    weft_layer base;
    size_t hidden;
    double init_std;
    task_options task;
    weft_parameter *weight; /* [H] */
    weft_metric *error, *large;
} value_head;

typedef struct value_state {
    weft_tensor x;      /* borrowed */
    weft_tensor values; /* [rows, 1], fp32: v, then the loss' gradient by v */
} value_state;

static void value_describe(const weft_layer *layer, const weft_shape *shape, weft_layer_cost *out)
{
    const value_head *h = (const value_head *)layer;
    size_t rows =
        weft_shape_local_tokens(shape) / (size_t)(shape->sequence_parallel ? shape->tp : 1);
    size_t sums = shape->sequence_parallel ? NUM_SUMS * sizeof(float) : 0;
    *out = (weft_layer_cost){.num_params = h->hidden,
                             .local_params = h->hidden,
                             .param_bytes = h->hidden * sizeof(float),
                             .activation_bytes = (rows * sizeof(float) + 63) / 64 * 64,
                             .scratch_bytes = 64,
                             .forward_flops = 2 * rows * h->hidden,
                             .backward_flops = 4 * rows * h->hidden,
                             .tp_forward_bytes = sums};
}

static weft_status value_init(weft_layer *layer, weft_build *build)
{
    value_head *h = (value_head *)layer;
    const weft_shape *shape = weft_build_shape(build);
    if (shape->dtype != WEFT_F32)
        return WEFT_KEY_ERROR("train.precision", "the value head computes in fp32");
    WEFT_TRY(weft_build_metric(build, "mean_abs_error", WEFT_METRIC_MEAN, &h->error));
    WEFT_TRY(weft_build_metric(build, "large_errors", WEFT_METRIC_SUM, &h->large));
    return weft_build_parameter(build,
                                &WEFT_ARGS(weft_parameter_spec, .name = "value_head.weight",
                                           .num_dims = 1, .dims = {h->hidden},
                                           .init_std = (float)h->init_std,
                                           .sum_over_tp = shape->sequence_parallel),
                                &h->weight);
}

typedef struct loss_args {
    size_t rows;
    const int32_t *labels;
    float *values, *sums; /* sums: [NUM_SUMS] */
    float modulus, gradient;
} loss_args;

/* On the lane: sums up the errors and leaves the loss' gradient in their place. */
static weft_status measure(const void *raw)
{
    const loss_args *a = raw;
    double squares = 0, absolute = 0;
    size_t large = 0;
    for (size_t t = 0; t < a->rows; t++) {
        float error = a->values[t] - (float)a->labels[t] / a->modulus;
        squares += error * error;
        absolute += fabsf(error);
        large += fabsf(error) > 0.5f;
        a->values[t] = a->gradient * error;
    }
    a->sums[SQUARES] = (float)squares;
    a->sums[ABSOLUTE] = (float)absolute;
    a->sums[ROWS] = (float)a->rows;
    a->sums[LARGE] = (float)large;
    return WEFT_OK;
}

typedef struct count_args {
    const float *sums;
    double weight;
    double *loss; /* NULL: another rank counts it */
    weft_metric *error, *large;
} count_args;

static weft_status count(const void *raw)
{
    const count_args *a = raw;
    if (a->loss)
        *a->loss += a->weight * a->sums[SQUARES];
    a->error->sum += a->sums[ABSOLUTE];
    a->error->count += a->sums[ROWS];
    a->large->sum += a->sums[LARGE];
    return WEFT_OK;
}

/* Under sequence parallelism a TP rank has a part of the rows, so the ranks' sums are summed over
 * tp. Then all TP ranks hold the same: one counts the loss, and Weft takes metrics from one. */
static weft_status add_loss(value_head *h, weft_pass *pass, const weft_tensor *values)
{
    const weft_shape *shape = weft_pass_shape(pass);
    const weft_place *at = weft_pass_coords(pass);
    weft_lane *lane = weft_pass_lane(pass);
    size_t rows = values->dims[0], first = shape->sequence_parallel ? (size_t)at->tp.at * rows : 0;
    double scale = weft_pass_loss_scale(pass) / (double)(shape->seq * shape->batch);
    weft_tensor sums;
    WEFT_TRY(weft_pass_scratch(pass, WEFT_F32, NUM_SUMS, 1, &sums));
    loss_args loss = {
        rows,      weft_pass_labels(pass) + first, values->data,
        sums.data, (float)h->task.modulus,         (float)(2 * h->task.loss_weight * scale)};
    WEFT_TRY(weft_lane_submit(lane, "value loss", measure, &loss, sizeof loss));
    if (shape->sequence_parallel)
        WEFT_TRY(weft_pass_all_reduce(pass, WEFT_AXIS_TP, sums.data, NUM_SUMS, WEFT_F32));
    count_args counts = {sums.data, h->task.loss_weight,
                         at->tp.at == 0 ? &weft_pass_metrics(pass)->loss_sum : NULL, h->error,
                         h->large};
    return weft_lane_submit(lane, "value sums", count, &counts, sizeof counts);
}

static weft_status value_forward(weft_layer *layer, weft_pass *pass, const weft_tensor *x,
                                 weft_tensor *y)
{
    (void)y; /* the last layer has none */
    value_head *h = (value_head *)layer;
    value_state *state = weft_pass_state(pass, layer);
    size_t mark = weft_pass_mark(pass);
    state->x = *x;
    WEFT_TRY(weft_pass_stash(pass, WEFT_F32, x->dims[0], 1, &state->values));
    WEFT_TRY(weft_gemm(weft_pass_lane(pass),
                       &WEFT_ARGS(weft_gemm_args, .m = x->dims[0], .n = 1, .k = h->hidden,
                                  .transpose_b = true, .a = x->data, .b = h->weight->weight.data,
                                  .c = state->values.data)));
    if (weft_pass_labels(pass))
        WEFT_TRY(add_loss(h, pass, &state->values));
    weft_pass_release(pass, mark);
    return WEFT_OK;
}

static weft_status value_backward(weft_layer *layer, weft_pass *pass, const weft_tensor *dy,
                                  weft_tensor *dx)
{
    (void)dy; /* the loss is this layer's own */
    value_head *h = (value_head *)layer;
    value_state *state = weft_pass_state(pass, layer);
    size_t rows = state->x.dims[0];
    WEFT_TRY(
        weft_gemm(weft_pass_lane(pass),
                  &WEFT_ARGS(weft_gemm_args, .m = 1, .n = h->hidden, .k = rows, .transpose_a = true,
                             .a = state->values.data, .b = state->x.data, .c = h->weight->grad,
                             .beta = weft_pass_overwrite(pass) ? 0.0f : 1.0f)));
    return weft_gemm(weft_pass_lane(pass), &WEFT_ARGS(weft_gemm_args, .m = rows, .n = h->hidden,
                                                      .k = 1, .a = state->values.data,
                                                      .b = h->weight->weight.data, .c = dx->data));
}

static void value_destroy(weft_layer *layer)
{
    free(layer);
}

static const weft_layer_ops value_ops = {
    .struct_bytes = sizeof(weft_layer_ops),
    .kind = "value head",
    .state_bytes = sizeof(value_state),
    .describe = value_describe,
    .init = value_init,
    .forward = value_forward,
    .backward = value_backward,
    .destroy = value_destroy,
    .makes_loss = true,
    .by_token = true,
};

static weft_layer *value_create(const weft_model_options *options, const task_options *task)
{
    value_head *h = calloc(1, sizeof *h);
    if (!h)
        return NULL;
    h->base.ops = &value_ops;
    h->hidden = (size_t)options->hidden_size;
    h->init_std = options->init_method_std;
    h->task = *task;
    return &h->base;
}

/* --- the program ----------------------------------------------------------------------------- */

static weft_status build(weft_model *model, const weft_model_options *options)
{
    WEFT_TRY(weft_model_add_embedding(model, options));
    for (int64_t i = 0; i < options->num_layers; i++)
        WEFT_TRY(weft_model_add_block(model, options, weft_attention_create(options),
                                      weft_mlp_create(options)));
    return weft_model_add(model, value_create(options, weft_model_own_options(model)));
}

int main(int argc, char **argv)
{
    weft_application application = WEFT_ARGS(
        weft_application, .build = build, .section = "task", .section_help = "sums of tokens",
        .rows = task_rows, .num_rows = 2, .options_bytes = sizeof(task_options), .sample = fill);
    return weft_application_main(argc, argv, &application);
}
