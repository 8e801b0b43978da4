/* The end of the model: final norm, output projection (tied to the word embedding or its own) and
 * vocabulary-parallel cross-entropy. The reductions over TP stand between the loss kernels, so that
 * no rank ever has more than its share of the logits.
 *
 * Logits are the largest activation by far, so training never has them whole. Forward goes through
 * the rows in chunks: it turns a chunk's logits into their gradient in place, computes the
 * gradients of the weight and of the norm's output, and keeps only these. Backward has only the
 * norm left, and the depths of multi-token prediction (mtp.c), whose losses are computed alike.
 * These are in training alone; a label weighs as in the model's own loss. */
#include "core/device/device.h"
#include "layers/layers.h"

#include <stdio.h>

#include "layers/pass/note.h"

typedef struct head {
    weft_layer_common common;
    weft_norm norm;
    weft_linear output;                   /* W is [V, H] */
    weft_layer *mtp[WEFT_MAX_MTP_LAYERS]; /* owned: depths of multi-token prediction */
    weft_metric *mtp_losses[WEFT_MAX_MTP_LAYERS];
    int num_mtp;
} head;

typedef struct head_state {
    weft_tensor x; /* borrowed */
    weft_norm_stats stats;
    weft_tensor dnormed; /* training: the gradient of the norm's output */
    weft_tensor logits;  /* without training: [S*B, V local] */
    /* With mtp, in training: the hidden states behind each depth's norm, the model's first, and
     * their gradients by their own losses. */
    weft_tensor normed[WEFT_MAX_MTP_LAYERS + 1], dmtp[WEFT_MAX_MTP_LAYERS];
} head_state;

/* The embedding of the model's first stage, where this stage has it not. */
static weft_status take_words(weft_build *build, const weft_model_options *o, weft_parameter **out)
{
    return weft_mesh_parts_ends(&weft_build_groups(build)->mesh)
               ? weft_vocabulary_declare(build, o, WEFT_WORD_EMBEDDINGS, out)
               : weft_build_share(build, WEFT_WORD_EMBEDDINGS, out);
}

/* By which a depth's mean loss counts. */
static double share_of(const head *h)
{
    const weft_model_options *o = &h->common.options;
    return o->mtp_loss_scaling_factor / (double)o->mtp_num_layers;
}

/* The deepest is the first to reach the embedding, unless the output is the same weight. */
static weft_status init_mtp(head *h, weft_build *build, weft_parameter *words, bool tied)
{
    if (!tied && h->num_mtp > 0)
        WEFT_TRY(take_words(build, &h->common.options, &words));
    if (!words)
        return WEFT_ERROR(WEFT_CONFIG, "reads parameter %s, which no layer before it declares",
                          WEFT_WORD_EMBEDDINGS);
    for (int d = 0; d < h->num_mtp; d++) {
        char name[32];
        snprintf(name, sizeof name, "mtp.layers.%d.", d);
        weft_mtp_embed(h->mtp[d], words, !tied && d == h->num_mtp - 1);
        WEFT_TRY(weft_build_global_child(build, name, h->mtp[d]));
        snprintf(name, sizeof name, "mtp_%d_loss", d + 1);
        WEFT_TRY(weft_build_loss(build, name, share_of(h), &h->mtp_losses[d]));
    }
    return WEFT_OK;
}

static weft_status head_init(weft_layer *layer, weft_build *build)
{
    head *h = (head *)layer;
    const weft_model_options *o = &h->common.options;
    WEFT_TRY(weft_norm_init(build, o, "final_layernorm", &h->norm));
    bool tied = !o->untie_embeddings_and_output_weights;
    weft_parameter *words;
    WEFT_TRY(tied ? take_words(build, o, &words)
                  : weft_vocabulary_declare(build, o, "output_layer.weight", &words));
    if (!words)
        return WEFT_ERROR(WEFT_CONFIG, "ties parameter %s, which no layer before it declares",
                          WEFT_WORD_EMBEDDINGS);
    h->output = weft_linear_of(words, "output_layer");
    return init_mtp(h, build, words, tied);
}

/* Rows first..first + num of the head's input on their way to the loss and back. */
typedef struct chunk {
    size_t first, num;
    int depth;                     /* of whose prediction; 0: the model's own */
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

/* Its first row among the micro-batch's labels: a depth's are further on. */
static size_t label_of(const weft_pass *pass, const chunk *c)
{
    return c->first + (size_t)c->depth * weft_pass_shape(pass)->batch;
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
        .labels = weft_pass_labels(pass) + label_of(pass, c),
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
    return weights ? weights + label_of(pass, c) : NULL;
}

static float *losses_of(const weft_pass *pass, const chunk *c)
{
    float *losses = c->depth == 0 ? weft_pass_losses(pass) : NULL;
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
                   .loss_sum = c->depth == 0 ? &weft_pass_metrics(pass)->loss_sum
                                             : &h->mtp_losses[c->depth - 1]->sum));
}

/* Labels that a depth predicts: those whose sequence is long enough. */
static size_t num_labels(const weft_pass *pass, int depth)
{
    const weft_shape *shape = weft_pass_shape(pass);
    return (shape->seq - (size_t)depth) * shape->batch;
}

/* By which the sum of a depth's losses counts. */
static float scale_of(const head *h, const weft_pass *pass, int depth)
{
    const double weight = depth == 0 ? 1 : share_of(h);
    return (float)((double)weft_pass_loss_scale(pass) * weight / (double)num_labels(pass, depth));
}

/* Turns the chunk's logits into their gradient, and computes the weight's gradient and dx. */
static weft_status differentiate(head *h, weft_pass *pass, const chunk *c, const weft_tensor *x,
                                 weft_tensor *dx)
{
    size_t cols = c->logits.dims[1];
    WEFT_TRY(weft_cross_entropy_backward(
        weft_pass_lane(pass),
        &WEFT_ARGS(weft_cross_entropy_backward_args, .rows = c->num, .cols = cols,
                   .valid_cols = h->output.weight->valid_rows,
                   .first_col = (size_t)weft_pass_groups(pass)->coords.at[WEFT_AXIS_TP] * cols,
                   .dtype = c->logits.dtype, .logits = c->logits.data,
                   .labels = weft_pass_labels(pass) + label_of(pass, c), .row_max = c->max.data,
                   .row_sum = c->sums.data, .mask = weights_of(pass, c),
                   .scale = scale_of(h, pass, c->depth),
                   .softcap = (float)h->common.options.final_logit_softcapping)));
    bool overwrite = weft_pass_overwrite(pass) && c->first == 0 && c->depth == 0;
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

/* Losses of the depth's hidden states, behind their norm, and in training their gradients, for
 * which dnormed is there. */
static weft_status predict(head *h, weft_pass *pass, const weft_tensor *normed, chunk *c,
                           weft_tensor *dnormed)
{
    const bool training = weft_pass_training(pass);
    const size_t most = weft_head_chunk_rows(weft_pass_shape(pass));
    weft_tensor full, partial;
    WEFT_TRY(weft_pass_enter(pass, normed, &full));
    if (training)
        WEFT_TRY(weft_pass_partial(pass, dnormed, &partial));
    const size_t rows = c->depth == 0 ? full.dims[0] : num_labels(pass, c->depth);
    WEFT_TRY(allocate(h, pass, most, normed->dtype, c));
    for (c->first = 0; c->first < rows; c->first += c->num) {
        c->num = rows - c->first < most ? rows - c->first : most;
        c->logits.dims[0] = c->num;
        weft_tensor in = rows_of(&full, c);
        WEFT_TRY(weft_linear_forward(pass, &h->output, &in, false, &c->logits));
        if (h->common.options.final_logit_softcapping > 0)
            WEFT_TRY(cap(h, pass, &c->logits));
        if (weft_pass_labels(pass))
            WEFT_TRY(add_loss(h, pass, c));
        if (training) {
            weft_tensor din = rows_of(&partial, c);
            WEFT_TRY(differentiate(h, pass, c, &in, &din));
        }
    }
    if (!training)
        return WEFT_OK;
    *c = (chunk){.first = rows, .num = full.dims[0] - rows, .depth = c->depth};
    const weft_tensor rest = rows_of(&partial, c); /* which predict nothing */
    if (c->num > 0)
        WEFT_TRY(weft_lane_zero(weft_pass_lane(pass), rest.data, weft_tensor_bytes(&rest)));
    return weft_pass_exit(pass, &partial, dnormed);
}

static weft_status stash(const head *h, weft_pass *pass, const weft_tensor *like, weft_tensor *out)
{
    WEFT_TRY_AS(weft_pass_lane(pass), h->output.name,
                weft_pass_stash(pass, like->dtype, like->dims[0], like->dims[1], out));
    return WEFT_OK;
}

/* The depths in turn, each of the states of the one before. */
static weft_status predict_further(head *h, weft_pass *pass, head_state *state)
{
    for (int d = 0; d < h->num_mtp; d++) {
        const weft_tensor *before = &state->normed[d];
        chunk c = {.depth = d + 1};
        WEFT_TRY(stash(h, pass, before, &state->normed[d + 1]));
        WEFT_TRY(stash(h, pass, before, &state->dmtp[d]));
        WEFT_TRY(weft_layer_forward(h->mtp[d], pass, before, &state->normed[d + 1]));
        const size_t mark = weft_pass_mark(pass);
        WEFT_TRY(predict(h, pass, &state->normed[d + 1], &c, &state->dmtp[d]));
        weft_pass_release(pass, mark);
        if (weft_pass_groups(pass)->coords.at[WEFT_AXIS_TP] == 0)
            h->mtp_losses[d]->count += (double)num_labels(pass, d + 1);
    }
    return WEFT_OK;
}

static weft_status head_forward(weft_layer *layer, weft_pass *pass, const weft_tensor *x,
                                weft_tensor *y)
{
    (void)y;
    head *h = (head *)layer;
    head_state *state = weft_pass_state(pass, layer);
    const size_t mark = weft_pass_mark(pass);
    const bool training = weft_pass_training(pass), further = training && h->num_mtp > 0;
    chunk c = {0};
    state->x = *x;
    state->normed[0] = *weft_pass_normed(pass); /* where the depths' blocks write, too */
    if (further)
        WEFT_TRY(stash(h, pass, x, &state->normed[0]));
    WEFT_TRY(weft_norm_run(pass, &h->norm, x, NULL, NULL, &state->normed[0], &state->stats));
    if (training)
        WEFT_TRY(stash(h, pass, x, &state->dnormed));
    WEFT_TRY(predict(h, pass, &state->normed[0], &c, &state->dnormed));
    weft_pass_release(pass, mark);
    return further ? predict_further(h, pass, state) : WEFT_OK;
}

/* Through the depths, the deepest first: state->dnormed becomes the gradient by all losses. */
static weft_status further_backward(head *h, weft_pass *pass, head_state *state)
{
    const size_t mark = weft_pass_mark(pass);
    weft_lane *lane = weft_pass_lane(pass);
    weft_tensor dx;
    if (h->num_mtp > 0)
        WEFT_TRY(weft_pass_scratch(pass, state->x.dtype, state->x.dims[0], state->x.dims[1], &dx));
    for (int d = h->num_mtp - 1; d >= 0; d--) {
        weft_tensor *before = d > 0 ? &state->dmtp[d - 1] : &state->dnormed;
        WEFT_TRY(weft_layer_backward(h->mtp[d], pass, &state->dmtp[d], &dx));
        WEFT_TRY_AS(lane, "mtp",
                    weft_add(lane, &WEFT_ARGS(weft_add_args, .count = weft_tensor_count(before),
                                              .dtype = before->dtype, .a = before->data,
                                              .b = dx.data, .y = before->data)));
    }
    weft_pass_release(pass, mark);
    return WEFT_OK;
}

static weft_status head_backward(weft_layer *layer, weft_pass *pass, const weft_tensor *dy,
                                 weft_tensor *dx)
{
    (void)dy;
    head *h = (head *)layer;
    head_state *state = weft_pass_state(pass, layer);
    WEFT_TRY(further_backward(h, pass, state));
    return weft_norm_run_backward(pass, &h->norm, &state->dnormed, &state->x, &state->stats, false,
                                  dx);
}

static const weft_tensor *head_logits(const weft_layer *layer, weft_pass *pass)
{
    return &((head_state *)weft_pass_state(pass, layer))->logits;
}

/* A depth's block may have experts, whose routes the host waits for. */
static bool head_is_static(const weft_layer *layer)
{
    return ((const head *)layer)->num_mtp == 0;
}

static void head_destroy(weft_layer *layer)
{
    head *h = (head *)layer;
    for (int d = 0; d < h->num_mtp; d++)
        weft_layer_destroy(h->mtp[d]);
    weft_layer_free(layer);
}

static const weft_layer_ops head_ops = {
    .struct_bytes = sizeof head_ops,
    .kind = "head",
    .state_bytes = sizeof(head_state),
    .init = head_init,
    .forward = head_forward,
    .backward = head_backward,
    .destroy = head_destroy,
    .is_static = head_is_static,
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

weft_status weft_head_add_mtp(weft_layer *layer, const weft_model_options *options,
                              weft_layer *block)
{
    head *h = (head *)layer;
    weft_status status = WEFT_OK;
    if (!layer || layer->ops != &head_ops)
        status = WEFT_ERROR(WEFT_CONFIG, "a depth of multi-token prediction stands behind no head");
    else if (h->num_mtp == WEFT_MAX_MTP_LAYERS)
        status = WEFT_ERROR(WEFT_CONFIG, "a head has at most %d depths of multi-token prediction",
                            WEFT_MAX_MTP_LAYERS);
    if (status != WEFT_OK) {
        weft_layer_destroy(block);
        return status;
    }
    weft_layer *mtp = weft_mtp_create(options, block, h->num_mtp + 1);
    if (!mtp)
        return WEFT_ERROR(WEFT_MEMORY, "out of memory for the head's predictions");
    h->mtp[h->num_mtp++] = mtp;
    return weft_layer_take(mtp);
}

const weft_layer *weft_head_mtp_block(const weft_layer *layer, int depth)
{
    const head *h = (const head *)layer;
    return depth < h->num_mtp ? weft_mtp_block(h->mtp[depth]) : NULL;
}
