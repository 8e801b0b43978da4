/* Self-attention, tensor-parallel over heads (Shoeybi et al. 2019, §3): QKV is column-parallel and
 * packed by query group as Megatron does ([q..., k, v] a group), the projection row-parallel. With
 * fewer groups than ranks, ranks that share a group deal its queries and each hold its k and v: QKV
 * is two layers then, which write beside each other, and gradients of k and v are summed over those
 * ranks as those of norms are over all (parallel/parameters/parameters.h, DENSE_SHARED). Over
 * context-parallel ranks layers/context/context.h takes the place of the kernel that sees all keys.
 * Multi-head latent attention makes the same packed rows in another way (layers/latent.h).
 *
 * Where a text comes token by token, each group's [k, v] of a row goes into a cache, and queries
 * see the cache's rows in place of their own pass's: positions, windows and masks are as without.
 */
#include "core/device/device.h"

#include "layers/context/context.h"
#include "layers/heads_norm.h"
#include "layers/latent.h"
#include "layers/layers.h"
#include "layers/pass/note.h"
#include "layers/pass/pass.h"
#include "layers/rotary.h"
#include "layers/tensor/ordered.h"

typedef struct attention {
    weft_layer_common common;
    weft_linear qkv, proj;
    weft_linear kv; /* where ranks share a group; qkv is q alone then */
    weft_heads_norms norms;
    weft_latent latent; /* with multi_latent_attention, in place of those */
    weft_rotary rotary;
    float scale; /* of scores; 0: the kernel's own */
    weft_dims dims;
    weft_parameter *sinks; /* NULL: none */
    weft_tensor cache;     /* [tokens * B, groups * (head_dim + value_dim)]; data NULL: none */
    weft_device *device;   /* of the cache */
} attention;

typedef struct attention_state {
    weft_tensor x;        /* borrowed: the normalised input */
    weft_tensor qkv, out; /* [S*B, qkv], [S*B, heads * value_dim] */
    weft_tensor ready;    /* what attention reads: qkv, or with norms of q and k another */
    weft_heads_squares sums;
    weft_latent_state latent;
    weft_tensor heads, heads_out; /* qkv and out by heads, if ranks exchange heads */
    float *lse;
    weft_tensor dy, dout, dqkv; /* of a backward */
    /* Between parts of a pass: the product in chunks at hand; scratch begins at start, behind what
     * is made again at mark; the timeline's slice. */
    weft_ordered product;
    weft_context_work context;
    size_t start, mark, note;
} attention_state;

static bool has_latent(const attention *a)
{
    return a->latent.kv_up.weight;
}

/* Whether backward makes packed rows of latents once more. */
static bool makes_latent_again(const attention *a, const weft_pass *pass)
{
    return has_latent(a) && weft_pass_shape(pass)->recompute & WEFT_RECOMPUTE_MODULE(MLA_UP_PROJ);
}

/* Of a group's rows, [q..., k, v], this rank's q. */
static weft_placed_rows rows_of_q(const weft_dims *d, size_t tp_rank)
{
    const size_t group = tp_rank / d->sharers * (d->heads * d->sharers + 2);
    return (weft_placed_rows){(group + tp_rank % d->sharers * d->heads) * d->head_dim,
                              d->heads * d->head_dim, 1};
}

/* And k and v, which those have that share the group. */
static weft_placed_rows rows_of_kv(const weft_dims *d, size_t tp_rank)
{
    const size_t q = d->heads * d->sharers, group = tp_rank / d->sharers * (q + 2);
    return (weft_placed_rows){(group + q) * d->head_dim, 2 * d->head_dim, (int)d->sharers};
}

static weft_status declare_sinks(attention *a, weft_build *build)
{
    if (a->common.options.softmax_type != WEFT_SOFTMAX_LEARNABLE)
        return WEFT_OK;
    return weft_build_parameter(build,
                                &WEFT_ARGS(weft_parameter_spec,
                                           .name = "core_attention.softmax_offset", .num_dims = 1,
                                           .dims = {a->dims.heads_all}, .split = {WEFT_SPLIT_TP},
                                           .init = WEFT_INIT_ZERO, .no_weight_decay = true),
                                &a->sinks);
}

static size_t cached_width(const weft_dims *d)
{
    return d->groups * (d->head_dim + d->value_dim);
}

static weft_status create_cache(attention *a, weft_build *build)
{
    const weft_shape *shape = weft_build_shape(build);
    if (shape->cached_tokens == 0)
        return WEFT_OK;
    weft_tensor cache = weft_tensor_2d(NULL, shape->dtype, shape->cached_tokens * shape->batch,
                                       cached_width(&a->dims));
    a->device = weft_build_device(build);
    WEFT_TRY(weft_device_alloc_for(a->device, WEFT_SPACE_DEVICE, WEFT_MEMORY_ACTIVATIONS,
                                   weft_tensor_bytes(&cache), "keys and values", &cache.data));
    a->cache = cache;
    return WEFT_OK;
}

static void attention_destroy(weft_layer *layer)
{
    attention *a = (attention *)layer;
    if (a->cache.data)
        weft_device_free(a->device, WEFT_SPACE_DEVICE, a->cache.data, weft_tensor_bytes(&a->cache));
    weft_layer_free(layer);
}

static weft_status attention_init(weft_layer *layer, weft_build *build)
{
    attention *a = (attention *)layer;
    const weft_model_options *o = &a->common.options;
    a->dims = weft_dims_of(o, weft_build_shape(build));
    const weft_dims *d = &a->dims;
    a->rotary = weft_rotary_of(o, d->rotary);
    a->scale = weft_rotary_score_scale(o);
    size_t qkv_all = (d->heads_all + 2 * d->groups_all) * d->head_dim;
    size_t proj_all = d->heads_all * d->value_dim;
    const bool has_bias = !o->disable_bias_linear;
    const weft_linear_row rows[] = {
        {&a->qkv, "linear_qkv", WEFT_LINEAR_QKV, d->hidden, qkv_all, has_bias || o->add_qkv_bias,
         0},
        {&a->proj, "linear_proj", WEFT_LINEAR_ROW, proj_all, d->hidden,
         has_bias || o->add_proj_bias, 0},
    };
    WEFT_TRY(declare_sinks(a, build));
    WEFT_TRY(create_cache(a, build));
    if (o->multi_latent_attention) {
        weft_layer_set_splits(layer, !a->sinks);
        WEFT_TRY(weft_latent_init(build, o, d, &a->latent));
        return weft_linears_declare(build, o, &rows[1], 1);
    }
    WEFT_TRY(weft_heads_norms_init(build, o, d, &a->norms));
    weft_layer_set_splits(layer, !a->norms.of[0].weight && !a->sinks);
    if (d->sharers == 1)
        return weft_linears_declare(build, o, rows, 2);
    weft_linear_row kv = rows[0];
    kv.linear = &a->kv;
    const size_t tp_rank = (size_t)weft_build_coords(build)->tp.at;
    const weft_placed_rows parts[] = {rows_of_q(d, tp_rank), rows_of_kv(d, tp_rank)};
    WEFT_TRY(weft_linear_declare_rows(build, o, &rows[0], &parts[0]));
    WEFT_TRY(weft_linear_declare_rows(build, o, &kv, &parts[1]));
    a->qkv.stride = a->kv.stride = d->qkv;
    return weft_linears_declare(build, o, &rows[1], 1);
}

/* The layout of q, k and v in packed rows, and dropout's counters. */
static weft_attention_shape shape_of(const attention *a, weft_pass *pass)
{
    const weft_dims *d = &a->dims;
    const weft_shape *shape = weft_pass_shape(pass);
    size_t group_stride = (d->heads / d->groups + 1) * d->head_dim + d->value_dim;
    int tp_rank = weft_pass_groups(pass)->coords.at[WEFT_AXIS_TP];
    return (weft_attention_shape){
        .seq_q = shape->seq,
        .seq_k = shape->seq,
        .batch = shape->batch,
        .heads = d->heads,
        .groups = d->groups,
        .head_dim = d->head_dim,
        .q_token_stride = d->qkv,
        .q_group_stride = group_stride,
        .k_token_stride = d->qkv,
        .k_group_stride = group_stride,
        .causal = true,
        .scale = a->scale,
        .dropout = weft_pass_training(pass) ? (float)a->common.options.attention_dropout : 0.0f,
        .seed = weft_pass_seed(pass),
        .stream = weft_pass_stream(pass, &a->common.base, 0),
        .first_head = (size_t)tp_rank * d->heads,
        .total_heads = d->heads_all,
        .total_seq = shape->seq,
    };
}

static weft_attention_variant variant_of(const attention *a)
{
    const weft_model_options *o = &a->common.options;
    return (weft_attention_variant){.window = (size_t)o->window_size,
                                    .chunk = (size_t)o->attention_chunk_size,
                                    .softcap = (float)o->attn_logit_softcapping,
                                    .sinks = a->sinks ? a->sinks->weight.data : NULL};
}

/* The k and v of the first group, after its queries. */
static void *packed(const attention *a, const weft_tensor *qkv, size_t part)
{
    const weft_dims *d = &a->dims;
    size_t offset = part == 0 ? 0 : (d->heads / d->groups + part - 1) * d->head_dim;
    return (char *)qkv->data + offset * weft_dtype_bytes(qkv->dtype);
}

/* A group's queries and its key lie back to back, its value between them and the next group's. */
static weft_status rotate(const attention *a, weft_pass *pass, const weft_tensor *qkv, bool inverse)
{
    const weft_model_options *o = &a->common.options;
    const weft_dims *d = &a->dims;
    if (d->rotary == 0)
        return WEFT_OK;
    const int32_t *positions = weft_pass_positions(pass);
    size_t in_group = d->heads / d->groups + 1;
    return weft_rope(weft_pass_lane(pass),
                     &WEFT_ARGS(weft_rope_args, .seq = weft_shape_local_seq(weft_pass_shape(pass)),
                                .batch = weft_pass_shape(pass)->batch, .heads = in_group,
                                .head_dim = d->head_dim, .token_stride = d->qkv,
                                .head_stride = d->head_dim, .groups = d->groups,
                                .group_stride = (in_group + 1) * d->head_dim,
                                .rotary_dim = d->rotary, .base = (float)o->rotary_base,
                                .dtype = qkv->dtype, .x = qkv->data, .inverse = inverse,
                                .index = positions ? positions : weft_pass_index(pass),
                                .index_by_sample = positions, .interleaved = o->rotary_interleaved,
                                .magnitude = a->rotary.magnitude, .scaling = a->rotary.scaling));
}

/* --- over context-parallel ranks ------------------------------------------------------------ */

static weft_context_call call_of(const attention *a, weft_pass *pass, const attention_state *state)
{
    return (weft_context_call){
        .shape = weft_context_shape_of(weft_pass_shape(pass), &a->dims),
        .attention = shape_of(a, pass),
        .variant = variant_of(a),
        .cut = weft_pass_cut(pass),
        .first_seen = weft_pass_first_seen(pass),
        .qkv = state->ready.data,
        .heads = state->heads.data,
        .heads_out = state->heads_out.data,
        .out = state->out.data,
        .lse = state->lse,
    };
}

static weft_status take_scratch(weft_pass *pass, weft_context_call *call, bool backward)
{
    weft_tensor scratch;
    WEFT_TRY(weft_pass_scratch(pass, WEFT_U8, weft_context_scratch_bytes(&call->shape, backward), 1,
                               &scratch));
    call->scratch = scratch.data;
    return WEFT_OK;
}

static weft_status context_forward(const attention *a, weft_pass *pass, attention_state *state)
{
    weft_context_call call = call_of(a, pass, state);
    WEFT_TRY(take_scratch(pass, &call, false));
    weft_context_begin(&state->context, weft_pass_context(pass), &call, false, pass->backward);
    return WEFT_OK;
}

static weft_status context_backward(const attention *a, weft_pass *pass, attention_state *state,
                                    const weft_tensor *dout, const weft_tensor *dqkv)
{
    weft_context_call call = call_of(a, pass, state);
    call.dout = dout->data;
    call.dqkv = dqkv->data;
    call.dsinks = a->sinks ? a->sinks->grad : NULL;
    call.overwrite = weft_pass_overwrite(pass);
    WEFT_TRY(take_scratch(pass, &call, true));
    weft_context_begin(&state->context, weft_pass_context(pass), &call, true, true);
    return WEFT_OK;
}

/* Exchanges run on the compute lane, too. */
static weft_status run_context_task(weft_pass *pass, attention_state *state,
                                    const weft_body_part *at, weft_lane *lane)
{
    static const int tracks[WEFT_NUM_LANES] = {[WEFT_LANE_COMPUTE] = WEFT_TRACK_CONTEXT,
                                               [WEFT_LANE_EXPERT] = WEFT_TRACK_CONTEXT,
                                               [WEFT_LANE_GATHER] = WEFT_TRACK_CONTEXT,
                                               [WEFT_LANE_SEND] = WEFT_TRACK_KEYS,
                                               [WEFT_LANE_REDUCE] = WEFT_TRACK_KEYS_GRADIENTS};
    const weft_task *task = &at->program->tasks[at->task];
    size_t note;
    WEFT_TRY(weft_note_task_begin(pass, lane, task, tracks[task->lane], &note));
    WEFT_TRY(weft_context_run_task(&state->context, task, lane));
    return weft_note_task_end(pass, lane, tracks[task->lane], note);
}

/* --- from the cache ------------------------------------------------------------------------- */

/* Each group's [k, v] of the pass's rows, which stand at one distance in all of them. */
static weft_status fill_cache(const attention *a, weft_pass *pass, const weft_tensor *ready)
{
    const weft_dims *d = &a->dims;
    const size_t first = weft_pass_first_token(pass) * weft_pass_shape(pass)->batch;
    const size_t each = d->head_dim + d->value_dim;
    return weft_cast(weft_pass_lane(pass),
                     &WEFT_ARGS(weft_cast_args, .count = each, .from_dtype = ready->dtype,
                                .to_dtype = ready->dtype, .from = packed(a, ready, 1),
                                .to = (char *)a->cache.data +
                                      first * cached_width(d) * weft_dtype_bytes(ready->dtype),
                                .rows = d->rows_full * d->groups, .from_stride = d->qkv / d->groups,
                                .to_stride = each));
}

static weft_status cached_forward(const attention *a, weft_pass *pass, attention_state *state)
{
    const weft_dims *d = &a->dims;
    weft_attention_shape shape = shape_of(a, pass);
    shape.first_query = weft_pass_first_token(pass);
    shape.seq_k = shape.total_seq = shape.first_query + shape.seq_q;
    shape.k_token_stride = cached_width(d);
    shape.k_group_stride = d->head_dim + d->value_dim;
    WEFT_TRY(fill_cache(a, pass, &state->ready));
    return weft_attention_forward(
        weft_pass_lane(pass),
        &WEFT_ARGS(weft_attention_forward_args, .shape = shape, .dtype = state->ready.dtype,
                   .q = packed(a, &state->ready, 0), .k = a->cache.data,
                   .v = (char *)a->cache.data + d->head_dim * weft_dtype_bytes(state->ready.dtype),
                   .out = state->out.data, .lse = state->lse, .value_dim = d->value_dim,
                   .variant = variant_of(a)));
}

/* --- all rows here -------------------------------------------------------------------------- */

static weft_status whole_forward(const attention *a, weft_pass *pass, attention_state *state)
{
    return weft_attention_forward(
        weft_pass_lane(pass),
        &WEFT_ARGS(weft_attention_forward_args, .shape = shape_of(a, pass),
                   .dtype = state->ready.dtype, .q = packed(a, &state->ready, 0),
                   .k = packed(a, &state->ready, 1), .v = packed(a, &state->ready, 2),
                   .out = state->out.data, .lse = state->lse,
                   .first_seen = weft_pass_first_seen(pass), .value_dim = a->dims.value_dim,
                   .variant = variant_of(a)));
}

static weft_status whole_backward(const attention *a, weft_pass *pass, attention_state *state,
                                  const weft_tensor *dout, const weft_tensor *dqkv)
{
    weft_tensor delta;
    WEFT_TRY(weft_pass_scratch(pass, WEFT_F32, a->dims.heads, a->dims.rows_full, &delta));
    WEFT_TRY(weft_attention_backward(
        weft_pass_lane(pass),
        &WEFT_ARGS(weft_attention_backward_args, .shape = shape_of(a, pass), .dtype = dout->dtype,
                   .q = packed(a, &state->ready, 0), .k = packed(a, &state->ready, 1),
                   .v = packed(a, &state->ready, 2), .out = state->out.data, .dout = dout->data,
                   .lse = state->lse, .delta = delta.data, .dq = packed(a, dqkv, 0),
                   .dk = packed(a, dqkv, 1), .dv = packed(a, dqkv, 2),
                   .first_seen = weft_pass_first_seen(pass), .value_dim = a->dims.value_dim,
                   .variant = variant_of(a))));
    if (!a->sinks)
        return WEFT_OK;
    const weft_shape *shape = weft_pass_shape(pass);
    return weft_attention_sinks(
        weft_pass_lane(pass),
        &WEFT_ARGS(weft_attention_sinks_args, .seq = shape->seq, .batch = shape->batch,
                   .heads = a->dims.heads, .dtype = dout->dtype, .sinks = a->sinks->weight.data,
                   .lse = state->lse, .delta = delta.data, .dsinks = a->sinks->grad,
                   .overwrite = weft_pass_overwrite(pass)));
}

/* --- both ----------------------------------------------------------------------------------- */

/* Computes out and lse from q, k and v, or over context-parallel ranks readies the program that
 * does. A recomputed core does not keep them. */
static weft_status core_forward(const attention *a, weft_pass *pass, attention_state *state)
{
    const weft_dims *d = &a->dims;
    const weft_dtype dtype = state->qkv.dtype;
    weft_lane *lane = weft_pass_lane(pass);
    weft_tensor lse;
    const char *outer = weft_note_module(lane, WEFT_MODULE_ATTENTION);
    if (makes_latent_again(a, pass))
        weft_pass_leave_out_beside(pass, WEFT_RECOMPUTE_MODULE(CORE_ATTN));
    else
        weft_pass_leave_out(pass, WEFT_RECOMPUTE_MODULE(CORE_ATTN));
    WEFT_TRY(weft_pass_stash(pass, dtype, d->rows_full, a->proj.in, &state->out));
    WEFT_TRY(weft_pass_stash(pass, WEFT_F32, d->heads, d->rows_full, &lse));
    if (weft_context_deals(weft_pass_shape(pass))) {
        WEFT_TRY(weft_pass_stash(pass, dtype, d->rows_full, d->qkv, &state->heads));
        WEFT_TRY(weft_pass_stash(pass, dtype, d->rows_full, a->proj.in, &state->heads_out));
    }
    weft_pass_keep(pass);
    weft_note_module(lane, outer);
    state->lse = lse.data;
    WEFT_TRY(weft_note_begin(pass, lane, WEFT_NOTE_ATTENTION, &state->note));
    return (a->cache.data             ? cached_forward
            : weft_pass_context(pass) ? context_forward
                                      : whole_forward)(a, pass, state);
}

/* Likewise dqkv from dout. */
static weft_status core_backward(const attention *a, weft_pass *pass, attention_state *state)
{
    WEFT_TRY(weft_note_begin(pass, weft_pass_lane(pass), WEFT_NOTE_ATTENTION, &state->note));
    return (weft_pass_context(pass) ? context_backward
                                    : whole_backward)(a, pass, state, &state->dout, &state->dqkv);
}

/* Behind either. */
static weft_status end_core(weft_pass *pass, const attention_state *state)
{
    weft_lane *lane = weft_pass_lane(pass);
    if (weft_pass_context(pass))
        WEFT_TRY(weft_context_end(&state->context, lane));
    return weft_note_end(pass, lane, state->note);
}

static weft_tensor columns_from(const weft_tensor *qkv, size_t first)
{
    weft_tensor columns = *qkv;
    columns.data = (char *)qkv->data + first * weft_dtype_bytes(qkv->dtype);
    return columns;
}

static weft_status qkv_forward(const attention *a, weft_pass *pass, const weft_tensor *x,
                               weft_tensor *qkv)
{
    weft_tensor kv = columns_from(qkv, a->qkv.out);
    WEFT_TRY(weft_linear_forward(pass, &a->qkv, x, true, qkv));
    return a->kv.weight ? weft_linear_forward(pass, &a->kv, x, true, &kv) : WEFT_OK;
}

/* Makes `ready`, which scratch holds where q and k have norms: backward norms them again. */
static weft_status make_ready(const attention *a, weft_pass *pass, attention_state *state)
{
    const weft_dims *d = &a->dims;
    if (!a->norms.of[0].weight)
        return WEFT_OK;
    WEFT_TRY(weft_pass_scratch(pass, state->qkv.dtype, d->rows_full, d->qkv, &state->ready));
    WEFT_TRY(weft_heads_norms_run(&a->norms, pass, &state->qkv, &state->sums, &state->ready));
    return rotate(a, pass, &state->ready, false);
}

static weft_status make_ready_again(const attention *a, weft_pass *pass, attention_state *state)
{
    weft_note_redoes(weft_pass_lane(pass), WEFT_NOTE_AGAIN);
    WEFT_TRY(make_ready(a, pass, state));
    weft_note_redoes(weft_pass_lane(pass), WEFT_NOTE_NEW);
    return WEFT_OK;
}

static weft_status qkv_backward_input(const attention *a, weft_pass *pass, const weft_tensor *dqkv,
                                      weft_tensor *dx)
{
    const weft_tensor dkv = columns_from(dqkv, a->qkv.out);
    WEFT_TRY(weft_linear_backward_input(pass, &a->qkv, dqkv, false, dx));
    return a->kv.weight ? weft_linear_backward_input(pass, &a->kv, &dkv, true, dx) : WEFT_OK;
}

static weft_status qkv_backward_weights(const attention *a, weft_pass *pass, const weft_tensor *x,
                                        const weft_tensor *dqkv)
{
    const weft_tensor dkv = columns_from(dqkv, a->qkv.out);
    WEFT_TRY(weft_linear_backward_weights(pass, &a->qkv, x, dqkv));
    return a->kv.weight ? weft_linear_backward_weights(pass, &a->kv, x, &dkv) : WEFT_OK;
}

/* --- in chunks: attention itself needs tokens' order ------------------------------------------ */

static weft_chunks chunks_of(const weft_model *model)
{
    return weft_chunks_of(&model->shape, model->shape.attention_chunks);
}

/* Whether rows are gathered in chunks; those of latents come whole. */
static bool gathers_chunks(const weft_model *model)
{
    const weft_chunks chunks = chunks_of(model);
    return chunks.count > 1 && chunks.pieces > 1;
}

static void begin_product(weft_pass *pass, attention_state *state, const weft_linear *first,
                          const weft_linear *second)
{
    const weft_chunks chunks = chunks_of(pass->model);
    weft_ordered_begin(&state->product, &chunks, first, second);
}

static bool makes_core_again(const weft_model *model)
{
    return model->shape.recompute & WEFT_RECOMPUTE_MODULE(CORE_ATTN);
}

/* The places of programs inside: qkv is gathered for, the core over context-parallel ranks,
 * projections are reduced; backward the core may come again, the projection is gathered for, qkv is
 * reduced. Before each stands a stage of the layer's own, and one behind the last. */
enum { INSIDE_QKV, INSIDE_CORE, INSIDE_PROJ, BEHIND_FORWARD };
enum { INSIDE_AGAIN, INSIDE_PROJ_BACK, INSIDE_CORE_BACK, INSIDE_QKV_BACK, BEHIND_BACKWARD };

static int forward_inside(const attention *a, const weft_model *model,
                          weft_inside out[WEFT_MAX_INSIDE])
{
    const weft_tensor_runtime *r = model->tensor;
    const weft_chunks c = chunks_of(model);
    int count = 0;
    if (gathers_chunks(model) && !has_latent(a))
        out[count++] = weft_tensor_inside(r, WEFT_CUT_ENTER, &c, INSIDE_QKV);
    if (model->context)
        out[count++] = weft_context_inside(model->context, false, INSIDE_CORE);
    if (c.count > 1)
        out[count++] = weft_tensor_inside(r, WEFT_CUT_EXIT, &c, INSIDE_PROJ);
    return count;
}

static int backward_inside(const attention *a, const weft_model *model, bool defers,
                           weft_inside out[WEFT_MAX_INSIDE])
{
    const weft_tensor_runtime *r = model->tensor;
    const weft_chunks c = chunks_of(model);
    const bool gathers = gathers_chunks(model);
    int count = 0;
    if (model->context && makes_core_again(model))
        out[count++] = weft_context_inside(model->context, false, INSIDE_AGAIN);
    if (gathers)
        out[count++] = weft_tensor_inside(
            r, defers ? WEFT_CUT_ENTER_BACK : WEFT_CUT_ENTER_BACK_MAKING, &c, INSIDE_PROJ_BACK);
    if (model->context)
        out[count++] = weft_context_inside(model->context, true, INSIDE_CORE_BACK);
    if (c.count > 1 && !has_latent(a))
        out[count++] = weft_tensor_inside(r,
                                          defers    ? WEFT_CUT_EXIT_BACK
                                          : gathers ? WEFT_CUT_EXIT_BACK_GATHERING
                                                    : WEFT_CUT_EXIT_BACK_MAKING,
                                          &c, INSIDE_QKV_BACK);
    return count;
}

static int attention_inside(const weft_layer *layer, const weft_model *model, weft_pass *pass,
                            weft_way way, weft_inside out[WEFT_MAX_INSIDE])
{
    const attention *a = (const attention *)layer;
    (void)pass;
    return way == WEFT_WAY_FORWARD ? forward_inside(a, model, out)
                                   : backward_inside(a, model, way == WEFT_WAY_INPUT, out);
}

/* --- a backward in two halves ---------------------------------------------------------------- */

static weft_status attention_weights(weft_layer *layer, weft_pass *pass)
{
    attention *a = (attention *)layer;
    attention_state *state = weft_pass_state(pass, layer);
    size_t mark = weft_pass_mark(pass);
    weft_tensor x_full;
    WEFT_TRY(weft_linear_backward_weights(pass, &a->proj, &state->out, &state->dy));
    if (has_latent(a))
        return weft_latent_weights(&a->latent, pass, &state->x, &state->latent);
    WEFT_TRY(weft_pass_enter(pass, &state->x, &x_full));
    WEFT_TRY(qkv_backward_weights(a, pass, &x_full, &state->dqkv));
    weft_pass_release(pass, mark);
    return WEFT_OK;
}

/* Takes what the first half leaves. */
static weft_status take_input(const attention *a, weft_pass *pass, attention_state *state,
                              const weft_tensor *dy)
{
    const size_t rows = a->dims.rows_full;
    WEFT_TRY(gathers_chunks(pass->model)
                 ? weft_pass_deferred(pass, dy->dtype, rows, dy->dims[1], &state->dy)
                 : weft_pass_enter_deferred(pass, dy, &state->dy));
    WEFT_TRY((has_latent(a) ? weft_pass_scratch : weft_pass_deferred)(pass, dy->dtype, rows,
                                                                      a->dims.qkv, &state->dqkv));
    return weft_pass_scratch(pass, dy->dtype, rows, a->proj.in, &state->dout);
}

/* --- whole ----------------------------------------------------------------------------------- */

static weft_status stash_qkv(const attention *a, weft_pass *pass, attention_state *state)
{
    const char *name = has_latent(a) ? a->latent.kv_up.name : a->qkv.name;
    if (makes_latent_again(a, pass))
        weft_pass_leave_out(pass, WEFT_RECOMPUTE_MODULE(MLA_UP_PROJ));
    else
        weft_pass_send_out(pass, WEFT_RECOMPUTE_MODULE(CORE_ATTN));
    WEFT_TRY_AS(weft_pass_lane(pass), name,
                weft_pass_stash(pass, state->x.dtype, a->dims.rows_full, a->dims.qkv, &state->qkv));
    weft_pass_keep(pass);
    return WEFT_OK;
}

static weft_status make_qkv(const attention *a, weft_pass *pass, attention_state *state)
{
    weft_tensor full;
    if (gathers_chunks(pass->model)) {
        WEFT_TRY(stash_qkv(a, pass, state));
        begin_product(pass, state, &a->qkv, &a->kv);
        return weft_ordered_enter_forward(&state->product, pass, &state->x, &state->qkv);
    }
    WEFT_TRY(weft_pass_enter(pass, &state->x, &full));
    WEFT_TRY(stash_qkv(a, pass, state));
    return qkv_forward(a, pass, &full, &state->qkv);
}

/* What attention reads. */
static weft_status end_qkv(const attention *a, weft_pass *pass, attention_state *state)
{
    state->ready = state->qkv;
    if (has_latent(a))
        return WEFT_OK;
    WEFT_TRY(weft_heads_norms_sum(&a->norms, pass, &state->qkv, &state->sums));
    WEFT_TRY(make_ready(a, pass, state));
    return a->norms.of[0].weight ? WEFT_OK : rotate(a, pass, &state->ready, false);
}

static weft_status make_latent(const attention *a, weft_pass *pass, attention_state *state)
{
    WEFT_TRY(stash_qkv(a, pass, state));
    return weft_latent_forward(&a->latent, pass, &state->x, &state->latent, &state->qkv);
}

static weft_status make_latent_again(const attention *a, weft_pass *pass, attention_state *state)
{
    if (!makes_latent_again(a, pass))
        return WEFT_OK;
    weft_note_redoes(weft_pass_lane(pass), WEFT_NOTE_REPEATED);
    WEFT_TRY(stash_qkv(a, pass, state));
    WEFT_TRY(weft_latent_again(&a->latent, pass, &state->x, &state->latent, &state->qkv));
    weft_note_redoes(weft_pass_lane(pass), WEFT_NOTE_NEW);
    state->ready = state->qkv;
    return WEFT_OK;
}

static weft_status begin_forward(attention *a, weft_pass *pass, attention_state *state,
                                 const weft_tensor *x)
{
    state->start = weft_pass_mark(pass);
    if (a->cache.data) /* passes bring more tokens or fewer */
        a->dims = weft_dims_of(&a->common.options, weft_pass_shape(pass));
    state->x = *x;
    return (has_latent(a) ? make_latent : make_qkv)(a, pass, state);
}

static weft_status project(const attention *a, weft_pass *pass, attention_state *state,
                           weft_tensor *y)
{
    weft_tensor partial;
    if (chunks_of(pass->model).count > 1) {
        begin_product(pass, state, &a->proj, NULL);
        return weft_ordered_exit_forward(&state->product, pass, &state->out, y);
    }
    WEFT_TRY(weft_pass_partial(pass, y, &partial));
    /* One rank's partial sum carries the bias, so that the sum has it once. */
    bool with_bias = weft_pass_groups(pass)->coords.at[WEFT_AXIS_TP] == 0;
    WEFT_TRY(weft_linear_forward(pass, &a->proj, &state->out, with_bias, &partial));
    return weft_pass_exit(pass, &partial, y);
}

static weft_status forward_stage(attention *a, weft_pass *pass, attention_state *state, int stage,
                                 const weft_tensor *x, weft_tensor *y)
{
    switch (stage) {
    case INSIDE_QKV:
        return begin_forward(a, pass, state, x);
    case INSIDE_CORE:
        WEFT_TRY(end_qkv(a, pass, state));
        return core_forward(a, pass, state);
    case INSIDE_PROJ:
        WEFT_TRY(end_core(pass, state));
        return project(a, pass, state, y);
    default:
        weft_pass_release(pass, state->start);
        return WEFT_OK;
    }
}

static weft_status attention_forward(weft_layer *layer, weft_pass *pass, int part, weft_lane *lane,
                                     const weft_tensor *x, weft_tensor *y)
{
    attention_state *state = weft_pass_state(pass, layer);
    weft_body_part at;
    (void)weft_part_at(layer, pass->model, pass, WEFT_WAY_FORWARD, part, &at);
    if (at.program)
        return at.place == INSIDE_CORE
                   ? run_context_task(pass, state, &at, lane)
                   : weft_tensor_run_part(pass, &state->product.call, &at, lane);
    for (int i = at.from; i <= at.to && i <= BEHIND_FORWARD; i++)
        WEFT_TRY(forward_stage((attention *)layer, pass, state, i, x, y));
    return WEFT_OK;
}

/* dx from dqkv, which it changes; a first half leaves the weights' gradients. */
static weft_status input_backward(const attention *a, weft_pass *pass, attention_state *state,
                                  weft_tensor *dx)
{
    const weft_tensor *dqkv = &state->dqkv;
    const bool defers = weft_pass_defers(pass);
    weft_tensor x_full, partial;
    WEFT_TRY(rotate(a, pass, dqkv, true));
    if (a->norms.of[0].weight)
        WEFT_TRY(weft_heads_norms_backward(&a->norms, pass, &state->qkv, &state->sums, dqkv));
    if (chunks_of(pass->model).count > 1) {
        begin_product(pass, state, &a->qkv, &a->kv);
        return weft_ordered_exit_backward(&state->product, pass, defers ? NULL : &state->x, dqkv,
                                          dx);
    }
    if (!defers) {
        WEFT_TRY(weft_pass_enter(pass, &state->x, &x_full));
        WEFT_TRY(qkv_backward_weights(a, pass, &x_full, dqkv));
    }
    WEFT_TRY(weft_pass_partial(pass, dx, &partial));
    WEFT_TRY(qkv_backward_input(a, pass, dqkv, &partial));
    return weft_pass_exit(pass, &partial, dx);
}

/* dout from dy, and unless they are left the weights' gradients. */
static weft_status proj_backward(const attention *a, weft_pass *pass, attention_state *state,
                                 const weft_tensor *dy)
{
    const bool defers = weft_pass_defers(pass);
    if (gathers_chunks(pass->model)) {
        begin_product(pass, state, &a->proj, NULL);
        return weft_ordered_enter_backward(&state->product, pass, defers ? NULL : &state->out, dy,
                                           &state->dout);
    }
    if (!defers) {
        WEFT_TRY(weft_pass_enter(pass, dy, &state->dy));
        WEFT_TRY(weft_linear_backward_weights(pass, &a->proj, &state->out, &state->dy));
    }
    return weft_linear_backward_input(pass, &a->proj, &state->dy, false, &state->dout);
}

/* What a recomputation enqueues is forward's, and noted so. */
static weft_status run_core_again(weft_pass *pass, attention_state *state, const weft_body_part *at,
                                  weft_lane *lane)
{
    const weft_note_again outer = weft_note_redoes(lane, WEFT_NOTE_REPEATED);
    const weft_status status = run_context_task(pass, state, at, lane);
    weft_note_redoes(lane, outer);
    return status;
}

static weft_status make_again(const attention *a, weft_pass *pass, attention_state *state)
{
    state->start = weft_pass_mark(pass);
    WEFT_TRY(make_ready_again(a, pass, state));
    WEFT_TRY(make_latent_again(a, pass, state));
    state->mark = weft_pass_mark(pass);
    if (!makes_core_again(pass->model))
        return WEFT_OK;
    weft_note_redoes(weft_pass_lane(pass), WEFT_NOTE_REPEATED);
    WEFT_TRY(core_forward(a, pass, state));
    weft_note_redoes(weft_pass_lane(pass), WEFT_NOTE_NEW);
    return WEFT_OK;
}

static weft_status begin_backward(const attention *a, weft_pass *pass, attention_state *state,
                                  const weft_tensor *dy)
{
    const weft_dims *d = &a->dims;
    if (makes_core_again(pass->model)) {
        WEFT_TRY(end_core(pass, state));
        weft_pass_release(pass, state->mark);
    }
    if (weft_pass_defers(pass)) {
        WEFT_TRY(take_input(a, pass, state, dy));
    } else {
        WEFT_TRY(weft_pass_scratch(pass, dy->dtype, d->rows_full, a->proj.in, &state->dout));
        WEFT_TRY(weft_pass_scratch(pass, dy->dtype, d->rows_full, d->qkv, &state->dqkv));
    }
    return proj_backward(a, pass, state, dy);
}

static weft_status backward_stage(attention *a, weft_pass *pass, attention_state *state, int stage,
                                  const weft_tensor *dy, weft_tensor *dx)
{
    const bool defers = weft_pass_defers(pass);
    switch (stage) {
    case INSIDE_AGAIN:
        return make_again(a, pass, state);
    case INSIDE_PROJ_BACK:
        return begin_backward(a, pass, state, dy);
    case INSIDE_CORE_BACK:
        if (defers && gathers_chunks(pass->model))
            WEFT_TRY(weft_ordered_keep(&state->product, pass, &state->dy));
        return core_backward(a, pass, state);
    case INSIDE_QKV_BACK:
        WEFT_TRY(end_core(pass, state));
        return has_latent(a) ? weft_latent_backward(&a->latent, pass, &state->x, &state->latent,
                                                    &state->dqkv, dx)
                             : input_backward(a, pass, state, dx);
    default:
        weft_pass_release(pass, state->start);
        return defers ? weft_pass_defer(pass, &a->common.base, attention_weights) : WEFT_OK;
    }
}

static weft_status attention_backward(weft_layer *layer, weft_pass *pass, int part, weft_lane *lane,
                                      const weft_tensor *dy, weft_tensor *dx)
{
    attention_state *state = weft_pass_state(pass, layer);
    weft_body_part at;
    (void)weft_part_at(layer, pass->model, pass, weft_way_back(pass), part, &at);
    if (at.program && at.place == INSIDE_AGAIN)
        return run_core_again(pass, state, &at, lane);
    if (at.program)
        return at.place == INSIDE_CORE_BACK
                   ? run_context_task(pass, state, &at, lane)
                   : weft_tensor_run_part(pass, &state->product.call, &at, lane);
    for (int i = at.from; i <= at.to && i <= BEHIND_BACKWARD; i++)
        WEFT_TRY(backward_stage((attention *)layer, pass, state, i, dy, dx));
    return WEFT_OK;
}

static bool attention_is_static(const weft_layer *layer)
{
    return ((const attention *)layer)->common.options.attention_dropout == 0;
}

static const weft_layer_parts attention_parts = {attention_inside, attention_forward,
                                                 attention_backward};

static const weft_layer_ops attention_ops = {
    .struct_bytes = sizeof attention_ops,
    .kind = "attention",
    .state_bytes = sizeof(attention_state),
    .init = attention_init,
    .forward = weft_parts_forward,
    .backward = weft_parts_backward,
    .destroy = attention_destroy,
    .is_static = attention_is_static,
    .width = weft_layer_width,
    .parts = &attention_parts,
    .by_token = true, /* but for what its cache holds */
};

weft_layer *weft_attention_create(const weft_model_options *options)
{
    return weft_layer_new(&attention_ops, sizeof(attention), options);
}
