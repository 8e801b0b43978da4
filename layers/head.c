/* The end of the model: final norm, output projection (tied to the word embedding or its own) and
 * vocabulary-parallel cross-entropy. The reductions over TP stand between the loss kernels, so that
 * no rank ever holds more than its share of the logits, and backward turns them into their gradient
 * in place. */
#include "layers/head.h"

typedef struct head {
    weft_layer_common common;
    weft_norm norm;
    weft_parameter *output; /* [V, H] */
} head;

typedef struct head_state {
    weft_tensor x; /* borrowed */
    weft_tensor normed, logits;
    weft_norm_stats stats;
    float *row_max, *row_sum;
} head_state;

static void head_describe(const weft_layer *layer, const weft_shape *shape, weft_layer_cost *out)
{
    weft_describe_head(&((const weft_layer_common *)layer)->options, shape, out);
}

static weft_status head_init(weft_layer *layer, weft_build *build)
{
    head *h = (head *)layer;
    const weft_model_options *o = &h->common.options;
    WEFT_TRY(weft_norm_init(build, o, "final_layernorm", &h->norm));
    bool tied = !o->untie_embeddings_and_output_weights;
    weft_parameter_spec spec = {.name = tied ? WEFT_WORD_EMBEDDINGS : "output_layer.weight",
                                .num_dims = 2,
                                .dims = {(size_t)o->vocab_size, (size_t)o->hidden_size},
                                .split = {WEFT_SPLIT_TP},
                                .init_std = (float)o->init_method_std,
                                .may_pad = true,
                                .is_embedding = tied};
    if (tied && weft_build_groups(build)->mesh.pp == 1) {
        h->output = weft_build_find(build, WEFT_WORD_EMBEDDINGS);
        if (!h->output)
            return WEFT_ERROR(WEFT_CONFIG,
                              "a tied output layer needs an embedding layer before it");
        return WEFT_OK;
    }
    WEFT_TRY(weft_build_global_parameter(build, &spec, &h->output));
    h->output->tied_copy = tied;
    return WEFT_OK;
}

static weft_linear linear_of(const head *h)
{
    return (weft_linear){.weight = h->output,
                         .in = (size_t)h->common.options.hidden_size,
                         .out = h->output->weight.dims[0]};
}

/* row_max, row_sum and target over the whole vocabulary. */
static weft_status reduce_stats(head *h, weft_pass *pass, const weft_tensor *logits,
                                weft_tensor *max, weft_tensor *sums)
{
    weft_lane *lane = weft_pass_lane(pass);
    const weft_groups *groups = weft_pass_groups(pass);
    weft_comm *tp = groups->by_axis[WEFT_AXIS_TP];
    size_t rows = logits->dims[0], cols = logits->dims[1];
    weft_cross_entropy_stats_args args = {
        .pass = WEFT_CROSS_ENTROPY_FUSED,
        .rows = rows,
        .cols = cols,
        .valid_cols = h->output->valid_rows,
        .first_col = (size_t)groups->coords.at[WEFT_AXIS_TP] * cols,
        .dtype = logits->dtype,
        .logits = logits->data,
        .labels = weft_pass_labels(pass),
        .row_max = max->data,
        .row_sum = sums->data,
        .target = (float *)sums->data + rows,
    };
    if (groups->mesh.tp == 1)
        return weft_cross_entropy_stats(lane, &args);
    args.pass = WEFT_CROSS_ENTROPY_MAX;
    WEFT_TRY(weft_cross_entropy_stats(lane, &args));
    WEFT_TRY(weft_all_reduce(tp, lane, max->data, rows, WEFT_F32, WEFT_REDUCE_MAX));
    args.pass = WEFT_CROSS_ENTROPY_SUM;
    WEFT_TRY(weft_cross_entropy_stats(lane, &args));
    return weft_all_reduce(tp, lane, sums->data, 2 * rows, WEFT_F32, WEFT_REDUCE_SUM);
}

static weft_status head_forward(weft_layer *layer, weft_pass *pass, const weft_tensor *x,
                                weft_tensor *y)
{
    (void)y;
    head *h = (head *)layer;
    head_state *state = weft_pass_state(pass, layer);
    const weft_shape *shape = weft_pass_shape(pass);
    size_t rows = shape->seq * shape->batch, mark = weft_pass_mark(pass);
    weft_linear linear = linear_of(h);
    weft_tensor full, max, sums;
    state->x = *x;
    WEFT_TRY(weft_pass_stash(pass, x->dtype, x->dims[0], x->dims[1], &state->normed));
    WEFT_TRY(weft_norm_run(pass, &h->norm, x, NULL, NULL, &state->normed, &state->stats));
    WEFT_TRY(weft_pass_enter(pass, &state->normed, &full));
    WEFT_TRY(weft_pass_stash(pass, x->dtype, rows, linear.out, &state->logits));
    WEFT_TRY(weft_linear_forward(pass, &linear, &full, false, &state->logits));
    WEFT_TRY(weft_pass_stash(pass, WEFT_F32, rows, 1, &max));
    WEFT_TRY(weft_pass_stash(pass, WEFT_F32, 2, rows, &sums));
    state->row_max = max.data;
    state->row_sum = sums.data;
    weft_pass_release(pass, mark);
    if (!weft_pass_labels(pass))
        return WEFT_OK;
    WEFT_TRY(reduce_stats(h, pass, &state->logits, &max, &sums));
    if (weft_pass_groups(pass)->coords.at[WEFT_AXIS_TP] != 0)
        return WEFT_OK;
    return weft_cross_entropy_loss(
        weft_pass_lane(pass),
        &(weft_cross_entropy_loss_args){.rows = rows,
                                        .row_max = state->row_max,
                                        .row_sum = state->row_sum,
                                        .target = state->row_sum + rows,
                                        .loss_sum = &weft_pass_metrics(pass)->loss_sum});
}

static weft_status head_backward(weft_layer *layer, weft_pass *pass, const weft_tensor *dy,
                                 weft_tensor *dx)
{
    (void)dy;
    head *h = (head *)layer;
    head_state *state = weft_pass_state(pass, layer);
    size_t rows = state->logits.dims[0], cols = state->logits.dims[1];
    size_t mark = weft_pass_mark(pass);
    weft_linear linear = linear_of(h);
    weft_tensor full, dnormed, partial;
    WEFT_TRY(weft_cross_entropy_backward(
        weft_pass_lane(pass),
        &(weft_cross_entropy_backward_args){
            .rows = rows,
            .cols = cols,
            .valid_cols = h->output->valid_rows,
            .first_col = (size_t)weft_pass_groups(pass)->coords.at[WEFT_AXIS_TP] * cols,
            .dtype = state->logits.dtype,
            .logits = state->logits.data,
            .labels = weft_pass_labels(pass),
            .row_max = state->row_max,
            .row_sum = state->row_sum,
            .scale = weft_pass_loss_scale(pass) / (float)rows}));
    WEFT_TRY(weft_pass_enter(pass, &state->normed, &full));
    WEFT_TRY(weft_pass_scratch(pass, dx->dtype, dx->dims[0], dx->dims[1], &dnormed));
    WEFT_TRY(weft_pass_partial(pass, &dnormed, &partial));
    WEFT_TRY(weft_linear_backward(pass, &linear, &full, &state->logits, &partial));
    WEFT_TRY(weft_pass_exit(pass, &partial, &dnormed));
    WEFT_TRY(weft_norm_run_backward(pass, &h->norm, &dnormed, &state->x, &state->stats, false, dx));
    weft_pass_release(pass, mark);
    return WEFT_OK;
}

const weft_layer_ops weft_head_ops = {
    .kind = "head",
    .state_bytes = sizeof(head_state),
    .describe = head_describe,
    .init = head_init,
    .forward = head_forward,
    .backward = head_backward,
    .destroy = weft_layer_free,
};

weft_layer *weft_head_create(const weft_model_options *options)
{
    return weft_layer_new(&weft_head_ops, sizeof(head), options);
}

const weft_tensor *weft_head_logits(weft_pass *pass, const weft_layer *layer)
{
    return &((head_state *)weft_pass_state(pass, layer))->logits;
}
