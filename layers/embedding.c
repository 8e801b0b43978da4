/* Token and learned position embedding, vocabulary-parallel (Shoeybi et al. 2019, §3): every TP
 * rank looks up the rows it holds and the region's exit sums them. */
#include "core/device/device.h"
#include "layers/layers.h"

#include <math.h>
#include <string.h>

typedef struct embedding {
    weft_layer_common common;
    weft_parameter *words, *positions;
} embedding;

weft_status weft_vocabulary_declare(weft_build *build, const weft_model_options *options,
                                    const char *name, weft_parameter **out)
{
    return weft_build_global_parameter(
        build,
        &WEFT_ARGS(weft_parameter_spec, .name = name, .num_dims = 2,
                   .dims = {(size_t)options->vocab_size, (size_t)options->hidden_size},
                   .split = {WEFT_SPLIT_TP}, .init_std = (float)options->init_method_std,
                   .may_pad = true, .is_embedding = strcmp(name, WEFT_WORD_EMBEDDINGS) == 0,
                   .used_forward = strcmp(name, WEFT_WORD_EMBEDDINGS) != 0),
        out);
}

/* Of a backward in two halves, which is the second one's but for its input. */
typedef struct embedding_state {
    weft_tensor dy;
} embedding_state;

static weft_status embedding_init(weft_layer *layer, weft_build *build)
{
    embedding *e = (embedding *)layer;
    const weft_model_options *o = &e->common.options;
    weft_layer_set_splits(layer, true);
    WEFT_TRY(weft_vocabulary_declare(build, o, WEFT_WORD_EMBEDDINGS, &e->words));
    if (o->position_embedding_type == WEFT_POSITION_LEARNED) {
        const weft_parameter_spec spec = WEFT_ARGS(
            weft_parameter_spec, .name = "embedding.position_embeddings.weight", .num_dims = 2,
            .dims = {(size_t)o->max_position_embeddings, (size_t)o->hidden_size},
            .init_std = (float)o->init_method_std);
        WEFT_TRY(weft_build_global_parameter(build, &spec, &e->positions));
    }
    return WEFT_OK;
}

static weft_status drop(const embedding *e, weft_pass *pass, const weft_tensor *x, weft_tensor *y)
{
    int tp_rank = weft_pass_groups(pass)->coords.at[WEFT_AXIS_TP];
    bool shards = weft_pass_shape(pass)->sequence_parallel;
    return weft_dropout(
        weft_pass_lane(pass),
        &WEFT_ARGS(weft_dropout_args, .rows = x->dims[0], .cols = x->dims[1],
                   .first_row = shards ? (uint64_t)tp_rank * x->dims[0] : 0,
                   .index = weft_pass_index(pass), .batch = weft_pass_shape(pass)->batch,
                   .dtype = x->dtype, .x = x->data, .y = y->data,
                   .p = (float)e->common.options.hidden_dropout, .seed = weft_pass_seed(pass),
                   .stream = weft_pass_stream(pass, &e->common.base, 0)));
}

static bool drops(const embedding *e, const weft_pass *pass)
{
    return e->common.options.hidden_dropout > 0 && weft_pass_training(pass);
}

/* sqrt(hidden_size), rounded as Gemma's code rounds it. */
static float scale_of(const embedding *e, weft_dtype dtype)
{
    float scale = sqrtf((float)e->common.options.hidden_size);
    uint32_t bits;
    if (dtype != WEFT_BF16)
        return scale;
    memcpy(&bits, &scale, sizeof bits);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;
    memcpy(&scale, &bits, sizeof scale);
    return scale;
}

static weft_status scale(const embedding *e, weft_pass *pass, const weft_tensor *x)
{
    weft_lane *lane = weft_pass_lane(pass);
    WEFT_TRY_AS(lane, "embedding",
                weft_scale(lane, &WEFT_ARGS(weft_scale_args, .count = weft_tensor_count(x),
                                            .dtype = x->dtype, .x = x->data,
                                            .factor = scale_of(e, x->dtype))));
    return WEFT_OK;
}

/* The position of each token here; NULL: the whole sequence, in order. */
static const int32_t *index_of(const weft_pass *pass)
{
    const int32_t *positions = weft_pass_positions(pass);
    return positions ? positions : weft_pass_index(pass);
}

static weft_status embedding_forward(weft_layer *layer, weft_pass *pass, const weft_tensor *x,
                                     weft_tensor *y)
{
    (void)x;
    embedding *e = (embedding *)layer;
    const weft_shape *shape = weft_pass_shape(pass);
    int tp_rank = weft_pass_groups(pass)->coords.at[WEFT_AXIS_TP];
    size_t mark = weft_pass_mark(pass), rows = e->words->weight.dims[0];
    weft_tensor partial;
    WEFT_TRY(weft_pass_partial(pass, y, &partial));
    WEFT_TRY(weft_embedding_forward(
        weft_pass_lane(pass),
        &WEFT_ARGS(weft_embedding_forward_args, .num_tokens = weft_shape_local_tokens(shape),
                   .batch = shape->batch, .cols = shape->hidden, .tokens = weft_pass_tokens(pass),
                   .first_row = (size_t)tp_rank * rows, .num_rows = rows, .dtype = y->dtype,
                   .table = e->words->weight.data,
                   .positions = e->positions && tp_rank == 0 ? e->positions->weight.data : NULL,
                   .num_positions = e->positions ? e->positions->weight.dims[0] : 0,
                   .index = index_of(pass), .index_by_sample = weft_pass_positions(pass),
                   .y = partial.data)));
    WEFT_TRY(weft_pass_exit(pass, &partial, y));
    weft_pass_release(pass, mark);
    if (e->common.options.scale_embeddings)
        WEFT_TRY(scale(e, pass, y));
    return drops(e, pass) ? drop(e, pass, y, y) : WEFT_OK;
}

static weft_status add_gradients(const embedding *e, weft_pass *pass, const weft_tensor *dy)
{
    const weft_shape *shape = weft_pass_shape(pass);
    int tp_rank = weft_pass_groups(pass)->coords.at[WEFT_AXIS_TP];
    size_t mark = weft_pass_mark(pass), rows = e->words->weight.dims[0];
    weft_tensor dropped = *dy, full;
    const bool scales = e->common.options.scale_embeddings;
    if (drops(e, pass) || scales)
        WEFT_TRY(weft_pass_scratch(pass, dy->dtype, dy->dims[0], dy->dims[1], &dropped));
    if (drops(e, pass))
        WEFT_TRY(drop(e, pass, dy, &dropped));
    else if (scales)
        WEFT_TRY(
            weft_lane_copy(weft_pass_lane(pass), dropped.data, dy->data, weft_tensor_bytes(dy)));
    if (scales)
        WEFT_TRY(scale(e, pass, &dropped));
    WEFT_TRY(weft_pass_enter(pass, &dropped, &full));
    weft_embedding_backward_args args = {.struct_bytes = sizeof args,
                                         .num_tokens = weft_shape_local_tokens(shape),
                                         .batch = shape->batch,
                                         .cols = shape->hidden,
                                         .tokens = weft_pass_tokens(pass),
                                         .first_row = (size_t)tp_rank * rows,
                                         .num_rows = rows,
                                         .dtype = dy->dtype,
                                         .dy = full.data,
                                         .dtable = e->words->grad,
                                         .overwrite =
                                             weft_pass_overwrite(pass) && !e->words->shared};
    WEFT_TRY(weft_embedding_backward(weft_pass_lane(pass), &args));
    if (e->positions) {
        args.dtable = NULL;
        args.dpositions = e->positions->grad;
        args.num_positions = e->positions->weight.dims[0];
        args.index = index_of(pass);
        args.index_by_sample = weft_pass_positions(pass);
        args.overwrite = weft_pass_overwrite(pass);
        WEFT_TRY(weft_embedding_backward(weft_pass_lane(pass), &args));
    }
    weft_pass_release(pass, mark);
    return WEFT_OK;
}

static weft_status embedding_weights(weft_layer *layer, weft_pass *pass)
{
    const embedding_state *state = weft_pass_state(pass, layer);
    return add_gradients((embedding *)layer, pass, &state->dy);
}

static weft_status embedding_backward(weft_layer *layer, weft_pass *pass, const weft_tensor *dy,
                                      weft_tensor *dx)
{
    (void)dx;
    embedding_state *state = weft_pass_state(pass, layer);
    if (!weft_pass_defers(pass))
        return add_gradients((embedding *)layer, pass, dy);
    WEFT_TRY(weft_pass_deferred(pass, dy->dtype, dy->dims[0], dy->dims[1], &state->dy));
    WEFT_TRY(weft_lane_copy(weft_pass_lane(pass), state->dy.data, dy->data, weft_tensor_bytes(dy)));
    return weft_pass_defer(pass, layer, embedding_weights);
}

static bool embedding_is_static(const weft_layer *layer)
{
    return ((const embedding *)layer)->common.options.hidden_dropout == 0;
}

static const weft_layer_ops embedding_ops = {
    .struct_bytes = sizeof embedding_ops,
    .kind = "embedding",
    .state_bytes = sizeof(embedding_state),
    .init = embedding_init,
    .forward = embedding_forward,
    .backward = embedding_backward,
    .destroy = weft_layer_free,
    .is_static = embedding_is_static,
    .reads_tokens = true,
    .width = weft_layer_width,
    .by_token = true,
};

weft_layer *weft_embedding_create(const weft_model_options *options)
{
    return weft_layer_new(&embedding_ops, sizeof(embedding), options);
}
