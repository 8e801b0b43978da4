/* The end of the model: final norm, output projection (tied to the word embedding or its own) and
 * vocabulary-parallel cross-entropy. The reductions over TP stand between the loss kernels, so that
 * no rank ever has more than its share of the logits.
 *
 * Logits are the largest activation by far, so training never has them whole. Forward goes through
 * the rows in chunks: it turns a chunk's logits into their gradient in place, computes the
 * gradients of the weight and of the norm's output, and keeps only these. Backward has only the
 * norm left. */
#include "core/device/device.h"
#include "layers/layers.h"

#include "layers/pass/note.h"

typedef struct head {
    weft_layer_common common;
    weft_norm norm;
    weft_linear output; /* W is [V, H] */
} head;

typedef struct head_state {
    weft_tensor x; /* borrowed */
    weft_norm_stats stats;
    weft_tensor dnormed; /* training: the gradient of the norm's output */
    weft_tensor logits;  /* without training: [S*B, V local] */
} head_state;

static weft_status head_init(weft_layer *layer, weft_build *build)
{
    head *h = (head *)layer;
    const weft_model_options *o = &h->common.options;
    WEFT_TRY(weft_norm_init(build, o, "final_layernorm", &h->norm));
    bool tied = !o->untie_embeddings_and_output_weights;
    weft_parameter *words;
    if (!tied || weft_mesh_parts_ends(&weft_build_groups(build)->mesh))
        WEFT_TRY(weft_vocabulary_declare(
            build, o, tied ? WEFT_WORD_EMBEDDINGS : "output_layer.weight", &words));
    else
        WEFT_TRY(weft_build_share(build, WEFT_WORD_EMBEDDINGS, &words));
    if (!words)
        return WEFT_ERROR(WEFT_CONFIG, "ties parameter %s, which no layer before it declares",
                          WEFT_WORD_EMBEDDINGS);
    h->output = weft_linear_of(words, "output_layer");
    return WEFT_OK;
}

/* Rows first..first + num of the head's input on their way to the loss and back. */
typedef struct chunk {
    size_t first, num;
    weft_tensor logits, max, sums; /* [num, V local], [num], [2, num] in fp32 */
} chunk;

static weft_status reduce_over_tp(weft_pass *pass, void *data, size_t count, weft_reduce reduce)
{
    weft_lane *lane = weft_pass_lane(pass);
    size_t note;
    WEFT_TRY(weft_note_begin(pass, lane, WEFT_NOTE_TENSOR, &note));
    WEFT_TRY_AS(lane, "loss",
                weft_all_reduce(weft_pass_groups(pass)->by_axis[WEFT_AXIS_TP], lane, data, count,
                                WEFT_F32, reduce));
    return weft_note_end(pass, lane, note);
}

/* row_max, row_sum and target over the whole vocabulary. */
static weft_status reduce_stats(head *h, weft_pass *pass, const chunk *c)
{
    weft_lane *lane = weft_pass_lane(pass);
    const weft_groups *groups = weft_pass_groups(pass);
    size_t cols = c->logits.dims[1];
    weft_cross_entropy_stats_args args = {
        .struct_bytes = sizeof args,
        .pass = WEFT_CROSS_ENTROPY_FUSED,
        .rows = c->num,
        .cols = cols,
        .valid_cols = h->output.weight->valid_rows,
        .first_col = (size_t)groups->coords.at[WEFT_AXIS_TP] * cols,
        .dtype = c->logits.dtype,
        .logits = c->logits.data,
        .labels = weft_pass_labels(pass) + c->first,
        .row_max = c->max.data,
        .row_sum = c->sums.data,
        .target = (float *)c->sums.data + c->num,
    };
    if (groups->mesh.tp == 1)
        return weft_cross_entropy_stats(lane, &args);
    args.pass = WEFT_CROSS_ENTROPY_MAX;
    WEFT_TRY(weft_cross_entropy_stats(lane, &args));
    WEFT_TRY(reduce_over_tp(pass, c->max.data, c->num, WEFT_REDUCE_MAX));
    args.pass = WEFT_CROSS_ENTROPY_SUM;
    WEFT_TRY(weft_cross_entropy_stats(lane, &args));
    return reduce_over_tp(pass, c->sums.data, 2 * c->num, WEFT_REDUCE_SUM);
}

static const float *weights_of(const weft_pass *pass, const chunk *c)
{
    const float *weights = weft_pass_label_weights(pass);
    return weights ? weights + c->first : NULL;
}

static float *losses_of(const weft_pass *pass, const chunk *c)
{
    float *losses = weft_pass_losses(pass);
    return losses ? losses + c->first : NULL;
}

static weft_status add_loss(head *h, weft_pass *pass, const chunk *c)
{
    WEFT_TRY(reduce_stats(h, pass, c));
    if (weft_pass_groups(pass)->coords.at[WEFT_AXIS_TP] != 0)
        return WEFT_OK;
    return weft_cross_entropy_loss(
        weft_pass_lane(pass),
        &WEFT_ARGS(weft_cross_entropy_loss_args, .rows = c->num, .row_max = c->max.data,
                   .row_sum = c->sums.data, .target = (float *)c->sums.data + c->num,
                   .mask = weights_of(pass, c), .loss = losses_of(pass, c),
                   .loss_sum = &weft_pass_metrics(pass)->loss_sum));
}

/* Turns the chunk's logits into their gradient, and computes the weight's gradient and dx. */
static weft_status differentiate(head *h, weft_pass *pass, const chunk *c, const weft_tensor *x,
                                 weft_tensor *dx)
{
    const weft_shape *shape = weft_pass_shape(pass);
    size_t cols = c->logits.dims[1];
    WEFT_TRY(weft_cross_entropy_backward(
        weft_pass_lane(pass),
        &WEFT_ARGS(weft_cross_entropy_backward_args, .rows = c->num, .cols = cols,
                   .valid_cols = h->output.weight->valid_rows,
                   .first_col = (size_t)weft_pass_groups(pass)->coords.at[WEFT_AXIS_TP] * cols,
                   .dtype = c->logits.dtype, .logits = c->logits.data,
                   .labels = weft_pass_labels(pass) + c->first, .row_max = c->max.data,
                   .row_sum = c->sums.data, .mask = weights_of(pass, c),
                   .scale = weft_pass_loss_scale(pass) / (float)(shape->seq * shape->batch),
                   .softcap = (float)h->common.options.final_logit_softcapping)));
    bool overwrite = weft_pass_overwrite(pass) && c->first == 0;
    return weft_linear_backward_to(pass, &h->output, x, &c->logits, overwrite, false, dx);
}

static weft_tensor rows_of(const weft_tensor *x, const chunk *c)
{
    weft_tensor rows = *x;
    rows.dims[0] = c->num;
    rows.data = (char *)x->data + c->first * x->dims[1] * weft_dtype_bytes(x->dtype);
    return rows;
}

/* Allocates for chunks of `rows` rows. Without training logits are stashed. */
static weft_status allocate(head *h, weft_pass *pass, size_t rows, weft_dtype dtype, chunk *c)
{
    head_state *state = weft_pass_state(pass, &h->common.base);
    size_t cols = h->output.out;
    if (weft_pass_shape(pass)->training) {
        WEFT_TRY(weft_pass_scratch(pass, dtype, rows, cols, &c->logits));
    } else {
        WEFT_TRY_AS(weft_pass_lane(pass), h->output.name,
                    weft_pass_stash(pass, dtype, rows, cols, &c->logits));
        state->logits = c->logits;
    }
    WEFT_TRY(weft_pass_scratch(pass, WEFT_F32, rows, 1, &c->max));
    return weft_pass_scratch(pass, WEFT_F32, 2, rows, &c->sums);
}

static weft_status cap(const head *h, weft_pass *pass, const weft_tensor *logits)
{
    weft_lane *lane = weft_pass_lane(pass);
    WEFT_TRY_AS(lane, h->output.name,
                weft_activation_forward(
                    lane, &WEFT_ARGS(weft_activation_forward_args, .kind = WEFT_ACTIVATION_CAP,
                                     .rows = logits->dims[0], .cols = logits->dims[1],
                                     .dtype = logits->dtype, .x = logits->data, .y = logits->data,
                                     .limit = (float)h->common.options.final_logit_softcapping)));
    return WEFT_OK;
}

static weft_status head_forward(weft_layer *layer, weft_pass *pass, const weft_tensor *x,
                                weft_tensor *y)
{
    (void)y;
    head *h = (head *)layer;
    head_state *state = weft_pass_state(pass, layer);
    size_t mark = weft_pass_mark(pass);
    bool training = weft_pass_training(pass);
    weft_tensor full, partial;
    chunk c = {0};
    state->x = *x;
    WEFT_TRY(weft_norm_run(pass, &h->norm, x, NULL, NULL, weft_pass_normed(pass), &state->stats));
    WEFT_TRY(weft_pass_enter(pass, weft_pass_normed(pass), &full));
    if (training) {
        WEFT_TRY_AS(weft_pass_lane(pass), h->output.name,
                    weft_pass_stash(pass, x->dtype, x->dims[0], x->dims[1], &state->dnormed));
        WEFT_TRY(weft_pass_partial(pass, &state->dnormed, &partial));
    }
    size_t rows = full.dims[0], most = weft_head_chunk_rows(weft_pass_shape(pass));
    WEFT_TRY(allocate(h, pass, most, x->dtype, &c));
    for (; c.first < rows; c.first += c.num) {
        c.num = rows - c.first < most ? rows - c.first : most;
        c.logits.dims[0] = c.num;
        weft_tensor in = rows_of(&full, &c);
        WEFT_TRY(weft_linear_forward(pass, &h->output, &in, false, &c.logits));
        if (h->common.options.final_logit_softcapping > 0)
            WEFT_TRY(cap(h, pass, &c.logits));
        if (weft_pass_labels(pass))
            WEFT_TRY(add_loss(h, pass, &c));
        if (training) {
            weft_tensor din = rows_of(&partial, &c);
            WEFT_TRY(differentiate(h, pass, &c, &in, &din));
        }
    }
    if (training)
        WEFT_TRY(weft_pass_exit(pass, &partial, &state->dnormed));
    weft_pass_release(pass, mark);
    return WEFT_OK;
}

static weft_status head_backward(weft_layer *layer, weft_pass *pass, const weft_tensor *dy,
                                 weft_tensor *dx)
{
    (void)dy;
    head *h = (head *)layer;
    head_state *state = weft_pass_state(pass, layer);
    return weft_norm_run_backward(pass, &h->norm, &state->dnormed, &state->x, &state->stats, false,
                                  dx);
}

static const weft_tensor *head_logits(const weft_layer *layer, weft_pass *pass)
{
    return &((head_state *)weft_pass_state(pass, layer))->logits;
}

static const weft_layer_ops head_ops = {
    .struct_bytes = sizeof head_ops,
    .kind = "head",
    .state_bytes = sizeof(head_state),
    .init = head_init,
    .forward = head_forward,
    .backward = head_backward,
    .destroy = weft_layer_free,
    .is_static = weft_layer_always_static,
    .makes_loss = true,
    .labels_are_tokens = true,
    .logits = head_logits,
    .width = weft_layer_width,
    .by_token = true,
};

weft_layer *weft_head_create(const weft_model_options *options)
{
    return weft_layer_new(&head_ops, sizeof(head), options);
}
