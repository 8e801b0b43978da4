/* A depth of multi-token prediction (DeepSeek-V3 Technical Report, 2024, §2.2): of the hidden state
 * of a token, as the depth before left it, and the embedding of a later token, norms of both, their
 * concatenation's projection, a transformer block and a norm make the hidden state that predicts
 * the token behind that one. As in Megatron-LM, the main model's state is the one behind its final
 * norm, and the embedding is the model's. The head has the depths, and their losses (head.c).
 *
 * Labels are the tokens one further, so depth k reads token s + k, which is label s + k - 1. The
 * last k - 1 tokens of a sequence have none; causal attention keeps them from the others. The
 * projection's weight is whole on each TP rank, which under sequence parallelism has rows of its
 * own. */
#include "core/device/device.h"
#include "layers/layers.h"

#include <stdlib.h>

typedef struct mtp {
    weft_layer_common common;
    weft_norm enorm, hnorm, final;
    weft_linear projection; /* W is [H, 2H] */
    weft_layer *block;      /* owned */
    size_t depth;           /* from 1 */
    weft_parameter *words;  /* the model's embedding */
    bool writes;            /* its backward is the first that reaches the embedding */
} mtp;

typedef struct mtp_state {
    weft_tensor x;                             /* borrowed: the depth before */
    weft_tensor words, both, projected, block; /* both: [rows, 2H] */
    weft_norm_stats enorm, hnorm, final;
} mtp_state;

void weft_mtp_embed(weft_layer *layer, weft_parameter *words, bool writes)
{
    ((mtp *)layer)->words = words;
    ((mtp *)layer)->writes = writes;
}

static weft_status mtp_init(weft_layer *layer, weft_build *build)
{
    mtp *m = (mtp *)layer;
    const weft_model_options *o = &m->common.options;
    const weft_shape *shape = weft_build_shape(build);
    const size_t hidden = (size_t)o->hidden_size;
    const weft_linear_row projection = {&m->projection,
                                        "eh_proj",
                                        shape->sequence_parallel ? WEFT_LINEAR_WHOLE_SUMMED
                                                                 : WEFT_LINEAR_WHOLE,
                                        2 * hidden,
                                        hidden,
                                        false,
                                        0};
    WEFT_TRY(weft_norm_init(build, o, "enorm", &m->enorm));
    WEFT_TRY(weft_norm_init(build, o, "hnorm", &m->hnorm));
    WEFT_TRY(weft_linears_declare(build, o, &projection, 1));
    WEFT_TRY(weft_build_child(build, "transformer_layer.", m->block));
    return weft_norm_init(build, o, "final_layernorm", &m->final);
}

/* The tokens that this depth reads, and how many there are. */
static size_t tokens_of(const mtp *m, const weft_pass *pass, const int32_t **out)
{
    const weft_shape *shape = weft_pass_shape(pass);
    const size_t before = (m->depth - 1) * shape->batch;
    *out = weft_pass_labels(pass) + before;
    return shape->seq * shape->batch - before;
}

static weft_status embed(const mtp *m, weft_pass *pass, weft_tensor *y)
{
    const weft_shape *shape = weft_pass_shape(pass);
    weft_lane *lane = weft_pass_lane(pass);
    const size_t rows = m->words->weight.dims[0];
    weft_tensor partial;
    const int32_t *tokens;
    const size_t num = tokens_of(m, pass, &tokens);
    WEFT_TRY(weft_pass_partial(pass, y, &partial));
    if (m->depth > 1)
        WEFT_TRY(weft_lane_zero(lane, partial.data, weft_tensor_bytes(&partial)));
    WEFT_TRY(weft_embedding_forward(
        lane,
        &WEFT_ARGS(weft_embedding_forward_args, .num_tokens = num, .batch = shape->batch,
                   .cols = shape->hidden, .tokens = tokens,
                   .first_row = (size_t)weft_pass_groups(pass)->coords.at[WEFT_AXIS_TP] * rows,
                   .num_rows = rows, .dtype = y->dtype, .table = m->words->weight.data,
                   .y = partial.data)));
    return weft_pass_exit(pass, &partial, y);
}

/* Between rows of H and a half of rows of 2H; half 0: the left one. */
static weft_status copy_half(weft_pass *pass, const weft_tensor *both, int half,
                             const weft_tensor *one, bool out)
{
    const size_t cols = one->dims[1];
    void *at = (char *)both->data + (size_t)half * cols * weft_dtype_bytes(one->dtype);
    return weft_cast(
        weft_pass_lane(pass),
        &WEFT_ARGS(weft_cast_args, .count = cols, .from_dtype = one->dtype, .to_dtype = one->dtype,
                   .from = out ? at : one->data, .to = out ? one->data : at, .rows = one->dims[0],
                   .from_stride = out ? 2 * cols : cols, .to_stride = out ? cols : 2 * cols));
}

static weft_status stash(weft_pass *pass, const weft_tensor *like, size_t times, weft_tensor *out)
{
    WEFT_TRY_AS(weft_pass_lane(pass), "mtp",
                weft_pass_stash(pass, like->dtype, like->dims[0], times * like->dims[1], out));
    return WEFT_OK;
}

static weft_status mtp_forward(weft_layer *layer, weft_pass *pass, const weft_tensor *x,
                               weft_tensor *y)
{
    mtp *m = (mtp *)layer;
    mtp_state *state = weft_pass_state(pass, layer);
    weft_tensor normed;
    state->x = *x;
    WEFT_TRY(stash(pass, x, 1, &state->words));
    WEFT_TRY(stash(pass, x, 2, &state->both));
    WEFT_TRY(stash(pass, x, 1, &state->projected));
    WEFT_TRY(stash(pass, x, 1, &state->block));
    const size_t mark = weft_pass_mark(pass);
    WEFT_TRY(weft_pass_scratch(pass, x->dtype, x->dims[0], x->dims[1], &normed));
    WEFT_TRY(embed(m, pass, &state->words));
    WEFT_TRY(weft_norm_run(pass, &m->enorm, &state->words, NULL, NULL, &normed, &state->enorm));
    WEFT_TRY(copy_half(pass, &state->both, 0, &normed, false));
    WEFT_TRY(weft_norm_run(pass, &m->hnorm, x, NULL, NULL, &normed, &state->hnorm));
    WEFT_TRY(copy_half(pass, &state->both, 1, &normed, false));
    weft_pass_release(pass, mark);
    WEFT_TRY(weft_linear_forward(pass, &m->projection, &state->both, false, &state->projected));
    WEFT_TRY(weft_layer_forward(m->block, pass, &state->projected, &state->block));
    return weft_norm_run(pass, &m->final, &state->block, NULL, NULL, y, &state->final);
}

static weft_status add_word_gradients(const mtp *m, weft_pass *pass, const weft_tensor *dy)
{
    const weft_shape *shape = weft_pass_shape(pass);
    const size_t rows = m->words->weight.dims[0];
    const int32_t *tokens;
    const size_t num = tokens_of(m, pass, &tokens);
    weft_tensor full;
    WEFT_TRY(weft_pass_enter(pass, dy, &full));
    return weft_embedding_backward(
        weft_pass_lane(pass),
        &WEFT_ARGS(weft_embedding_backward_args, .num_tokens = num, .batch = shape->batch,
                   .cols = shape->hidden, .tokens = tokens,
                   .first_row = (size_t)weft_pass_groups(pass)->coords.at[WEFT_AXIS_TP] * rows,
                   .num_rows = rows, .dtype = dy->dtype, .dy = full.data, .dtable = m->words->grad,
                   .overwrite = m->writes && weft_pass_overwrite(pass)));
}

static weft_status mtp_backward(weft_layer *layer, weft_pass *pass, const weft_tensor *dy,
                                weft_tensor *dx)
{
    mtp *m = (mtp *)layer;
    mtp_state *state = weft_pass_state(pass, layer);
    const size_t mark = weft_pass_mark(pass), rows = dy->dims[0], cols = dy->dims[1];
    weft_tensor dblock, dprojected, both, half, dwords;
    WEFT_TRY(weft_pass_scratch(pass, dy->dtype, rows, cols, &dblock));
    WEFT_TRY(weft_pass_scratch(pass, dy->dtype, rows, cols, &dprojected));
    WEFT_TRY(weft_pass_scratch(pass, dy->dtype, rows, 2 * cols, &both));
    WEFT_TRY(
        weft_norm_run_backward(pass, &m->final, dy, &state->block, &state->final, false, &dblock));
    WEFT_TRY(weft_layer_backward(m->block, pass, &dblock, &dprojected));
    WEFT_TRY(weft_linear_backward(pass, &m->projection, &state->both, &dprojected, &both));
    half = dblock;
    dwords = dprojected;
    WEFT_TRY(copy_half(pass, &both, 1, &half, true));
    WEFT_TRY(weft_norm_run_backward(pass, &m->hnorm, &half, &state->x, &state->hnorm, false, dx));
    WEFT_TRY(copy_half(pass, &both, 0, &half, true));
    WEFT_TRY(weft_norm_run_backward(pass, &m->enorm, &half, &state->words, &state->enorm, false,
                                    &dwords));
    WEFT_TRY(add_word_gradients(m, pass, &dwords));
    weft_pass_release(pass, mark);
    return WEFT_OK;
}

static void mtp_destroy(weft_layer *layer)
{
    weft_layer_destroy(((mtp *)layer)->block);
    free(layer);
}

static const weft_layer_ops mtp_ops = {
    .struct_bytes = sizeof mtp_ops,
    .kind = "mtp",
    .state_bytes = sizeof(mtp_state),
    .init = mtp_init,
    .forward = mtp_forward,
    .backward = mtp_backward,
    .destroy = mtp_destroy,
    .width = weft_layer_width,
    .by_token = true, /* in training alone it runs */
};

weft_layer *weft_mtp_create(const weft_model_options *options, weft_layer *block, int depth)
{
    mtp *m = NULL;
    const bool takes = block && weft_layer_take(block) == WEFT_OK;
    if (takes)
        m = (mtp *)weft_layer_new(&mtp_ops, sizeof *m, options);
    if (!m) {
        weft_layer_destroy(takes ? block : NULL);
        return NULL;
    }
    m->block = block;
    m->depth = (size_t)depth;
    return &m->common.base;
}

const weft_layer *weft_mtp_block(const weft_layer *layer)
{
    return ((const mtp *)layer)->block;
}
