/* The transformer block: x + attention(norm(x)), then + mlp(norm(.)); norms may stand behind
 * attention and MLP instead (OLMo-2), or on both sides (Gemma 2). Dropout stands on both branches
 * before the residual is added. No block keeps the outputs of norms before: all blocks of a stage
 * write them to one place, and backward recomputes them there. It keeps the inputs of norms behind.
 */
#include <stdlib.h>

#include "core/device/device.h"
#include "layers/layers.h"
#include "layers/pass/parts.h"
#include "layers/pass/pass.h"

typedef struct block_state {
    weft_tensor x; /* borrowed: the block's input */
    weft_tensor middle;
    weft_norm_stats stats1, stats2;
    weft_tensor branch1, branch2; /* with norms behind: what attention and MLP made */
    weft_norm_stats after1, after2;
    weft_norm_deferred deferred1, deferred2; /* of a backward in two halves */
    /* Between parts of a backward: the gradients of a branch's output, of what a norm behind it
     * reads (or the same), and of its input, in scratch. */
    weft_tensor dropped, dnormed, branch;
    size_t mark;
} block_state;

static bool block_is_static(const weft_layer *layer)
{
    const weft_block *b = (const weft_block *)layer;
    return b->common.options.hidden_dropout == 0 && weft_layer_is_static(b->attention) &&
           weft_layer_is_static(b->mlp);
}

static weft_status block_init(weft_layer *layer, weft_build *build)
{
    weft_block *b = (weft_block *)layer;
    if (!b->attention || !b->mlp)
        return WEFT_ERROR(WEFT_MEMORY, "out of memory for a block's layers");
    const weft_model_options *o = &b->common.options;
    const bool before = o->norm_placement != WEFT_NORM_AFTER;
    const bool after = o->norm_placement != WEFT_NORM_BEFORE;
    if (before)
        WEFT_TRY(weft_norm_init(build, o, "input_layernorm", &b->norm1));
    WEFT_TRY(weft_build_child(build, "self_attention.", b->attention));
    if (after)
        WEFT_TRY(weft_norm_init(build, o, "post_self_attn_layernorm", &b->after1));
    if (before)
        WEFT_TRY(weft_norm_init(build, o, "pre_mlp_layernorm", &b->norm2));
    WEFT_TRY(weft_build_child(build, "mlp.", b->mlp));
    if (after)
        WEFT_TRY(weft_norm_init(build, o, "post_mlp_layernorm", &b->after2));
    weft_layer_set_splits(layer,
                          !after && weft_layer_splits(b->attention) && weft_layer_splits(b->mlp));
    return WEFT_OK;
}

/* to = residual + dropout(branch); to may be branch. The backward drops gradients alike. */
static weft_status drop(const weft_block *b, weft_pass *pass, int use, const weft_tensor *branch,
                        const weft_tensor *residual, weft_tensor *to)
{
    int tp_rank = weft_pass_groups(pass)->coords.at[WEFT_AXIS_TP];
    bool shards = weft_pass_shape(pass)->sequence_parallel;
    return weft_dropout(
        weft_pass_lane(pass),
        &WEFT_ARGS(weft_dropout_args, .rows = branch->dims[0], .cols = branch->dims[1],
                   .first_row = shards ? (uint64_t)tp_rank * branch->dims[0] : 0,
                   .index = weft_pass_index(pass), .batch = weft_pass_shape(pass)->batch,
                   .dtype = branch->dtype, .x = branch->data,
                   .residual = residual ? residual->data : NULL, .y = to->data,
                   .p = (float)b->common.options.hidden_dropout, .seed = weft_pass_seed(pass),
                   .stream = weft_pass_stream(pass, &b->common.base, use)));
}

static bool drops(const weft_block *b, const weft_pass *pass)
{
    return b->common.options.hidden_dropout > 0 && weft_pass_training(pass);
}

/* Forward attention's, then the MLP's; backward the MLP's first. */
static int block_inside(const weft_layer *layer, const weft_model *model, weft_pass *pass,
                        weft_way way, weft_inside out[WEFT_MAX_INSIDE])
{
    const weft_block *b = (const weft_block *)layer;
    const int count = weft_layer_inside(way ? b->mlp : b->attention, model, pass, way, out);
    return count + weft_layer_inside(way ? b->attention : b->mlp, model, pass, way, out + count);
}

/* The number of the last part of what comes first, which is the first of what comes then. */
static int turn_of(const weft_layer *first, weft_pass *pass, weft_way way)
{
    return weft_layer_count_parts(first, pass->model, pass, way) - 1;
}

/* What a norm behind a branch will read, if there is one. */
static weft_status take_branch(weft_pass *pass, const weft_norm *after, const weft_tensor *x,
                               weft_tensor *branch)
{
    if (after->weight)
        WEFT_TRY_AS(weft_pass_lane(pass), after->name,
                    weft_pass_stash(pass, x->dtype, x->dims[0], x->dims[1], branch));
    return WEFT_OK;
}

/* What MLP reads. */
static const weft_tensor *mlp_input(const weft_block *b, const weft_pass *pass,
                                    const block_state *state)
{
    return b->norm2.weight ? weft_pass_normed(pass) : &state->middle;
}

/* y = a + b */
static weft_status add(weft_pass *pass, const weft_tensor *a, const weft_tensor *b,
                       const weft_tensor *y)
{
    weft_lane *lane = weft_pass_lane(pass);
    WEFT_TRY_AS(
        lane, "residual",
        weft_add(lane, &WEFT_ARGS(weft_add_args, .count = weft_tensor_count(y), .dtype = y->dtype,
                                  .a = a->data, .b = b->data, .y = y->data)));
    return WEFT_OK;
}

static weft_status begin_forward(weft_block *b, weft_pass *pass, block_state *state,
                                 const weft_tensor *x)
{
    state->x = *x;
    WEFT_TRY_AS(weft_pass_lane(pass), "middle",
                weft_pass_stash(pass, x->dtype, x->dims[0], x->dims[1], &state->middle));
    if (b->norm1.weight)
        WEFT_TRY(
            weft_norm_run(pass, &b->norm1, x, NULL, NULL, weft_pass_normed(pass), &state->stats1));
    return take_branch(pass, &b->after1, x, &state->branch1);
}

static weft_status attend(weft_block *b, weft_pass *pass, block_state *state, int part,
                          weft_lane *lane, const weft_tensor *x)
{
    return weft_part_forward(b->attention, pass, part, lane,
                             b->norm1.weight ? weft_pass_normed(pass) : x,
                             b->after1.weight ? &state->branch1 : &state->middle);
}

/* Between attention and MLP. */
static weft_status end_attention(weft_block *b, weft_pass *pass, block_state *state,
                                 const weft_tensor *x)
{
    if (b->after1.weight)
        WEFT_TRY(weft_norm_run(pass, &b->after1, &state->branch1, NULL, NULL, &state->middle,
                               &state->after1));
    if (drops(b, pass))
        WEFT_TRY(drop(b, pass, 0, &state->middle, NULL, &state->middle));
    if (b->norm1.weight)
        WEFT_TRY(weft_norm_run(pass, &b->norm2, &state->middle, x, &state->middle,
                               weft_pass_normed(pass), &state->stats2));
    else
        WEFT_TRY(add(pass, &state->middle, x, &state->middle));
    return take_branch(pass, &b->after2, x, &state->branch2);
}

static weft_status add_residual(weft_block *b, weft_pass *pass, block_state *state, weft_tensor *y)
{
    if (b->after2.weight)
        WEFT_TRY(weft_norm_run(pass, &b->after2, &state->branch2, NULL, NULL, y, &state->after2));
    return drops(b, pass) ? drop(b, pass, 1, y, &state->middle, y)
                          : add(pass, y, &state->middle, y);
}

static weft_status block_forward(weft_layer *layer, weft_pass *pass, int part, weft_lane *lane,
                                 const weft_tensor *x, weft_tensor *y)
{
    weft_block *b = (weft_block *)layer;
    block_state *state = weft_pass_state(pass, layer);
    const int turn = turn_of(b->attention, pass, WEFT_WAY_FORWARD),
              last = turn + turn_of(b->mlp, pass, WEFT_WAY_FORWARD);
    if (part == 0)
        WEFT_TRY(begin_forward(b, pass, state, x));
    if (part <= turn)
        WEFT_TRY(attend(b, pass, state, part, lane, x));
    if (part == turn)
        WEFT_TRY(end_attention(b, pass, state, x));
    if (part >= turn)
        WEFT_TRY(weft_part_forward(b->mlp, pass, part - turn, lane, mlp_input(b, pass, state),
                                   b->after2.weight ? &state->branch2 : y));
    return part == last ? add_residual(b, pass, state, y) : WEFT_OK;
}

/* --- the second half of a backward in two: before the MLP's, and before attention's ---------- */

static weft_status rerun_norm2(weft_layer *layer, weft_pass *pass)
{
    const weft_block *b = (const weft_block *)layer;
    const block_state *state = weft_pass_state(pass, layer);
    WEFT_TRY(weft_norm_end_deferred(pass, &b->norm2, &state->deferred2));
    return weft_norm_rerun_deferred(pass, &b->norm2, &state->middle, &state->stats2,
                                    &state->deferred2, weft_pass_normed(pass));
}

static weft_status rerun_norm1(weft_layer *layer, weft_pass *pass)
{
    const weft_block *b = (const weft_block *)layer;
    const block_state *state = weft_pass_state(pass, layer);
    WEFT_TRY(weft_norm_end_deferred(pass, &b->norm1, &state->deferred1));
    return weft_norm_rerun_deferred(pass, &b->norm1, &state->x, &state->stats1, &state->deferred1,
                                    weft_pass_normed(pass));
}

static weft_status defer_norms(weft_layer *layer, weft_pass *pass)
{
    const weft_block *b = (const weft_block *)layer;
    block_state *state = weft_pass_state(pass, layer);
    WEFT_TRY(weft_norm_defer(pass, &b->norm2, &state->deferred2));
    return weft_norm_defer(pass, &b->norm1, &state->deferred1);
}

/* Through the norm behind a branch, if there is one. */
static weft_status behind_backward(weft_pass *pass, const weft_norm *after,
                                   const weft_tensor *branch, const weft_norm_stats *stats,
                                   block_state *state)
{
    if (after->weight)
        return weft_norm_run_backward(pass, after, &state->dropped, branch, stats, false,
                                      &state->dnormed);
    state->dnormed = state->dropped;
    return WEFT_OK;
}

static weft_status begin_backward(weft_layer *layer, weft_pass *pass, const weft_tensor *dy)
{
    weft_block *b = (weft_block *)layer;
    block_state *state = weft_pass_state(pass, layer);
    size_t rows = state->x.dims[0], cols = state->x.dims[1];
    state->mark = weft_pass_mark(pass);
    WEFT_TRY(weft_pass_scratch(pass, dy->dtype, rows, cols, &state->branch));
    if (b->after2.weight)
        WEFT_TRY(weft_pass_scratch(pass, dy->dtype, rows, cols, &state->dnormed));

    state->dropped = *dy;
    if (drops(b, pass)) {
        WEFT_TRY(weft_pass_scratch(pass, dy->dtype, rows, cols, &state->dropped));
        WEFT_TRY(drop(b, pass, 1, dy, NULL, &state->dropped));
    }
    const bool defers = weft_pass_defers(pass);
    if (defers)
        WEFT_TRY(defer_norms(layer, pass));
    if (b->norm2.weight)
        WEFT_TRY(defers ? weft_pass_defer(pass, layer, rerun_norm2)
                        : weft_norm_rerun(pass, &b->norm2, &state->middle, &state->stats2));
    return behind_backward(pass, &b->after2, &state->branch2, &state->after2, state);
}

/* Between MLP and attention. dx collects dy (the residual) and both norms' gradients; dx and dy may
 * be one place. */
static weft_status end_mlp(weft_layer *layer, weft_pass *pass, const weft_tensor *dy,
                           weft_tensor *dx)
{
    weft_block *b = (weft_block *)layer;
    block_state *state = weft_pass_state(pass, layer);
    const bool before = b->norm1.weight;
    if (dx->data != dy->data)
        WEFT_TRY(weft_lane_copy(weft_pass_lane(pass), dx->data, dy->data, weft_tensor_bytes(dy)));
    WEFT_TRY(before ? weft_norm_backward_deferring(pass, &b->norm2, &state->branch, &state->middle,
                                                   &state->stats2, true, &state->deferred2, dx)
                    : add(pass, dx, &state->branch, dx));
    if (drops(b, pass))
        WEFT_TRY(drop(b, pass, 0, dx, NULL, &state->dropped));
    else
        state->dropped = *dx;
    if (before)
        WEFT_TRY(weft_pass_defers(pass)
                     ? weft_pass_defer(pass, layer, rerun_norm1)
                     : weft_norm_rerun(pass, &b->norm1, &state->x, &state->stats1));
    return behind_backward(pass, &b->after1, &state->branch1, &state->after1, state);
}

static weft_status end_backward(const weft_block *b, weft_pass *pass, block_state *state,
                                weft_tensor *dx)
{
    WEFT_TRY(b->norm1.weight
                 ? weft_norm_backward_deferring(pass, &b->norm1, &state->branch, &state->x,
                                                &state->stats1, true, &state->deferred1, dx)
                 : add(pass, dx, &state->branch, dx));
    weft_pass_release(pass, state->mark);
    return WEFT_OK;
}

static weft_status block_backward(weft_layer *layer, weft_pass *pass, int part, weft_lane *lane,
                                  const weft_tensor *dy, weft_tensor *dx)
{
    weft_block *b = (weft_block *)layer;
    block_state *state = weft_pass_state(pass, layer);
    const weft_way way = weft_way_back(pass);
    const int turn = turn_of(b->mlp, pass, way), last = turn + turn_of(b->attention, pass, way);
    if (part == 0)
        WEFT_TRY(begin_backward(layer, pass, dy));
    if (part <= turn)
        WEFT_TRY(weft_part_backward(b->mlp, pass, part, lane, &state->dnormed, &state->branch));
    if (part == turn)
        WEFT_TRY(end_mlp(layer, pass, dy, dx));
    if (part >= turn)
        WEFT_TRY(weft_part_backward(b->attention, pass, part - turn, lane, &state->dnormed,
                                    &state->branch));
    return part == last ? end_backward(b, pass, state, dx) : WEFT_OK;
}

static void block_destroy(weft_layer *layer)
{
    weft_block *b = (weft_block *)layer;
    weft_layer_destroy(b->attention);
    weft_layer_destroy(b->mlp);
    free(layer);
}

static const weft_layer_parts block_parts = {block_inside, block_forward, block_backward};

static const weft_layer_ops block_ops = {
    .struct_bytes = sizeof block_ops,
    .kind = "block",
    .state_bytes = sizeof(block_state),
    .init = block_init,
    .forward = weft_parts_forward,
    .backward = weft_parts_backward,
    .destroy = block_destroy,
    .is_static = block_is_static,
    .in_place = true,
    .width = weft_layer_width,
    .parts = &block_parts,
    .by_token = true,
};

weft_layer *weft_block_create(const weft_model_options *options, weft_layer *attention,
                              weft_layer *mlp)
{
    weft_block *b = NULL;
    /* a layer with an owner is not freed here */
    bool takes_attention = attention && weft_layer_take(attention) == WEFT_OK;
    bool takes_mlp = mlp && weft_layer_take(mlp) == WEFT_OK;
    if (takes_attention && takes_mlp)
        b = (weft_block *)weft_layer_new(&block_ops, sizeof *b, options);
    if (!b) {
        weft_layer_destroy(takes_attention ? attention : NULL);
        weft_layer_destroy(takes_mlp ? mlp : NULL);
        return NULL;
    }
    b->attention = attention;
    b->mlp = mlp;
    return &b->common.base;
}
