#include "layers/describe.h"

#include <string.h>

size_t weft_piece_bytes(weft_dtype dtype, size_t d0, size_t d1)
{
    size_t bytes = d0 * d1 * weft_dtype_bytes(dtype);
    return (bytes + WEFT_PIECE_BYTES - 1) / WEFT_PIECE_BYTES * WEFT_PIECE_BYTES;
}

static size_t or_else(int64_t value, int64_t otherwise)
{
    return (size_t)(value > 0 ? value : otherwise);
}

size_t weft_rotary_channels(size_t head_dim, double percent)
{
    return (size_t)((double)head_dim * percent * (1 + 1e-12));
}

weft_dims weft_dims_of(const weft_model_options *o, const weft_shape *shape)
{
    weft_dims d = {0};
    size_t tp = (size_t)shape->tp;
    d.rows_full = shape->seq * shape->batch;
    d.rows = d.rows_full / (shape->sequence_parallel ? tp : 1);
    d.hidden = shape->hidden;
    d.heads_all = (size_t)o->num_attention_heads;
    d.groups_all = or_else(o->num_query_groups, o->num_attention_heads);
    d.head_dim = or_else(o->kv_channels, o->hidden_size / o->num_attention_heads);
    if (o->position_embedding_type == WEFT_POSITION_ROPE)
        d.rotary = weft_rotary_channels(d.head_dim, o->rotary_percent);
    d.heads = d.heads_all / tp;
    d.groups = d.groups_all / tp;
    d.qkv = (d.heads + 2 * d.groups) * d.head_dim;
    d.gates = o->swiglu ? 2 : 1;
    d.ffn_all = or_else(o->ffn_hidden_size, 4 * o->hidden_size);
    d.ffn = d.ffn_all / tp;
    d.vocab_rows = (shape->vocab + tp - 1) / tp;
    return d;
}

weft_moe_dims weft_moe_dims_of(const weft_model_options *o, const weft_shape *shape)
{
    weft_moe_dims d = {0};
    bool by_tp = shape->binding == 0;
    size_t all = shape->seq * shape->batch;
    d.full = by_tp || shape->etp > 1 || shape->tp == 1;
    d.exchange = !by_tp && shape->ep > 1;
    d.summed = d.exchange && shape->etp > 1;
    d.tokens = d.full ? all : all / (size_t)shape->tp;
    d.experts = (size_t)o->num_experts;
    d.local_experts = d.experts / (size_t)shape->ep;
    d.gates = o->swiglu ? 2 : 1;
    d.ffn_all =
        or_else(o->moe_ffn_hidden_size, (int64_t)or_else(o->ffn_hidden_size, 4 * o->hidden_size));
    d.ffn = d.ffn_all / (size_t)shape->etp;
    if (shape->training && o->moe_expert_capacity_factor > 0) {
        double share = (double)d.tokens * (double)o->moe_router_topk / (double)d.experts *
                       o->moe_expert_capacity_factor;
        d.capacity = (size_t)share;
        if ((double)d.capacity < share)
            d.capacity++;
    }
    return d;
}

void weft_layer_describe(const weft_layer *layer, const weft_shape *shape, weft_layer_cost *out)
{
    memset(out, 0, sizeof *out);
    if (layer && layer->ops && layer->ops->describe)
        layer->ops->describe(layer, shape, out);
}

void weft_cost_add(weft_layer_cost *sum, const weft_layer_cost *other)
{
    sum->num_params += other->num_params;
    sum->local_params += other->local_params;
    sum->param_bytes += other->param_bytes;
    sum->activation_bytes += other->activation_bytes;
    sum->forward_flops += other->forward_flops;
    sum->backward_flops += other->backward_flops;
    sum->tp_forward_bytes += other->tp_forward_bytes;
    sum->tp_backward_bytes += other->tp_backward_bytes;
    sum->ep_forward_bytes += other->ep_forward_bytes;
    sum->ep_backward_bytes += other->ep_backward_bytes;
    if (other->scratch_bytes > sum->scratch_bytes)
        sum->scratch_bytes = other->scratch_bytes;
}

static void add_params(weft_layer_cost *cost, const weft_shape *shape, size_t global, size_t local)
{
    cost->num_params += global;
    cost->local_params += local;
    cost->param_bytes += local * weft_dtype_bytes(shape->dtype);
}

/* One direction of a region's boundary: all-reduce of the whole, or one reduce-scatter. */
static size_t exit_bytes(const weft_shape *shape)
{
    if (shape->tp == 1)
        return 0;
    return shape->seq * shape->batch * shape->hidden * weft_dtype_bytes(shape->dtype);
}

/* The all-gather of rows that sequence parallelism enters with. */
static size_t enter_bytes(const weft_shape *shape)
{
    return shape->sequence_parallel ? exit_bytes(shape) : 0;
}

/* The whole rows that sequence parallelism gathers into scratch, or a partial sum of them. */
static size_t region_bytes(const weft_shape *shape)
{
    if (!shape->sequence_parallel)
        return 0;
    return weft_piece_bytes(shape->dtype, shape->seq * shape->batch, shape->hidden);
}

static size_t norm_params(const weft_model_options *o)
{
    return (size_t)o->hidden_size * (o->normalization == WEFT_RMSNORM ? 1 : 2);
}

static size_t norm_stats_bytes(const weft_model_options *o, size_t rows)
{
    return weft_piece_bytes(WEFT_F32, rows, 1) * (o->normalization == WEFT_RMSNORM ? 1 : 2);
}

void weft_describe_embedding(const weft_model_options *o, const weft_shape *shape,
                             weft_layer_cost *out)
{
    memset(out, 0, sizeof *out);
    weft_dims d = weft_dims_of(o, shape);
    add_params(out, shape, shape->vocab * d.hidden, d.vocab_rows * d.hidden);
    if (o->position_embedding_type == WEFT_POSITION_LEARNED) {
        size_t positions = or_else(o->max_position_embeddings, o->seq_length) * d.hidden;
        add_params(out, shape, positions, positions);
    }
    out->activation_bytes = weft_piece_bytes(shape->dtype, d.rows, d.hidden);
    out->scratch_bytes = region_bytes(shape);
    if (shape->training && o->hidden_dropout > 0)
        out->scratch_bytes += weft_piece_bytes(shape->dtype, d.rows, d.hidden);
    out->tp_forward_bytes = exit_bytes(shape);
    out->tp_backward_bytes = enter_bytes(shape);
}

void weft_describe_attention(const weft_model_options *o, const weft_shape *shape,
                             weft_layer_cost *out)
{
    memset(out, 0, sizeof *out);
    weft_dims d = weft_dims_of(o, shape);
    size_t tp = (size_t)shape->tp, proj_in = d.heads * d.head_dim;
    bool qkv_bias = !o->disable_bias_linear || o->add_qkv_bias;
    add_params(out, shape, d.qkv * tp * (d.hidden + qkv_bias), d.qkv * (d.hidden + qkv_bias));
    add_params(out, shape, d.hidden * proj_in * tp, d.hidden * proj_in);
    if (!o->disable_bias_linear)
        add_params(out, shape, d.hidden, d.hidden);
    out->activation_bytes = weft_piece_bytes(shape->dtype, d.rows_full, d.qkv) +
                            weft_piece_bytes(shape->dtype, d.rows_full, proj_in) +
                            weft_piece_bytes(WEFT_F32, d.heads, d.rows_full);
    out->scratch_bytes = (shape->training ? 3 : 2) * region_bytes(shape);
    if (shape->training) /* the stashed pieces' gradients */
        out->scratch_bytes += out->activation_bytes;
    /* Scores and values count whole, causal or not, as model FLOPs usually do. */
    out->forward_flops = 2 * d.rows_full * d.hidden * (d.qkv + proj_in) +
                         4 * shape->batch * shape->seq * shape->seq * proj_in;
    out->backward_flops = 2 * out->forward_flops;
    out->tp_forward_bytes = enter_bytes(shape) + exit_bytes(shape);
    out->tp_backward_bytes = 2 * enter_bytes(shape) + exit_bytes(shape);
}

void weft_describe_mlp(const weft_model_options *o, const weft_shape *shape, size_t ffn_all,
                       weft_layer_cost *out)
{
    memset(out, 0, sizeof *out);
    weft_dims d = weft_dims_of(o, shape);
    size_t bias = o->disable_bias_linear ? 0 : 1, ffn = ffn_all / (size_t)shape->tp;
    add_params(out, shape, d.gates * ffn_all * (d.hidden + bias),
               d.gates * ffn * (d.hidden + bias));
    add_params(out, shape, d.hidden * (ffn_all + bias), d.hidden * (ffn + bias));
    out->activation_bytes = weft_piece_bytes(shape->dtype, d.rows_full, d.gates * ffn);
    out->scratch_bytes = (shape->training ? 3 : 2) * region_bytes(shape) +
                         weft_piece_bytes(shape->dtype, d.rows_full, ffn);
    out->forward_flops = 2 * d.rows_full * d.hidden * ffn * (d.gates + 1);
    out->backward_flops = 2 * out->forward_flops;
    out->tp_forward_bytes = enter_bytes(shape) + exit_bytes(shape);
    out->tp_backward_bytes = 2 * enter_bytes(shape) + exit_bytes(shape);
}

/* How the rows of one rank lie in the rings of an MoE layer's program (schedule/moe_layer.h). */
typedef struct moe_rings {
    size_t all, most;           /* rows of all partitions, of the largest */
    size_t input, middle, home; /* rows of T_DI's ring, which dT_DO's and dT_DI's equal, of T_M's,
                                   of the rows being sent */
    size_t kept;                /* rows of T_DI and T_M that stay from forward to backward */
    bool resent;                /* backward sends the rows again */
} moe_rings;

static moe_rings moe_rings_of(const weft_moe_dims *d, const weft_shape *shape, size_t rows)
{
    size_t n = d->exchange && shape->moe_partitions > 1 ? (size_t)shape->moe_partitions : 1;
    bool reuse = d->exchange && shape->moe_reuse > 0;
    moe_rings r = {.all = rows, .most = (rows + n - 1) / n};
    r.input = reuse && n > 2 ? 2 * r.most : rows;
    r.middle = reuse ? r.most : rows;
    r.home = d->exchange ? r.input : 0;
    r.kept = reuse ? 0 : rows;
    r.resent = reuse && (shape->moe_reuse == 2 || shape->moe_reuse == 4);
    return r;
}

/* Scratch of the pass's larger half. */
static size_t moe_scratch_bytes(const weft_model_options *o, const weft_shape *shape,
                                const weft_moe_dims *d, const moe_rings *r)
{
    bool reorder = d->exchange && d->local_experts > 1;
    size_t hidden = shape->hidden;
    size_t input = weft_piece_bytes(shape->dtype, r->input, hidden);
    size_t home = weft_piece_bytes(shape->dtype, r->home, hidden);
    size_t ordered = reorder ? weft_piece_bytes(shape->dtype, r->most, hidden) : 0;
    size_t bytes = weft_piece_bytes(shape->dtype, r->most, d->ffn) + ordered;
    if (r->kept == 0)
        bytes += input + weft_piece_bytes(shape->dtype, r->middle, d->gates * d->ffn);
    size_t forward = home + (d->exchange ? input : 0);
    size_t backward = (d->exchange ? 2 * input : 0) + ordered + (r->resent ? home : 0);
    bytes += shape->training && backward > forward ? backward : forward;
    if (d->full)
        bytes += (shape->training ? 3 : 2) * region_bytes(shape);
    if (shape->training) {
        bytes += weft_piece_bytes(WEFT_F32, d->tokens, (size_t)o->moe_router_topk) +
                 weft_piece_bytes(WEFT_F32, d->tokens, d->experts);
        if (shape->dtype != WEFT_F32)
            bytes += weft_piece_bytes(WEFT_F32, d->tokens, shape->hidden) +
                     weft_piece_bytes(shape->dtype, d->tokens, d->experts);
    }
    if (o->moe_shared_expert_intermediate_size > 0) {
        weft_layer_cost shared;
        weft_describe_mlp(o, shape, (size_t)o->moe_shared_expert_intermediate_size, &shared);
        bytes += shared.scratch_bytes +
                 weft_piece_bytes(shape->dtype, weft_dims_of(o, shape).rows, shape->hidden);
    }
    return bytes;
}

void weft_describe_moe(const weft_model_options *o, const weft_shape *shape, weft_layer_cost *out)
{
    memset(out, 0, sizeof *out);
    weft_moe_dims d = weft_moe_dims_of(o, shape);
    size_t hidden = shape->hidden, topk = (size_t)o->moe_router_topk;
    size_t bytes = weft_dtype_bytes(shape->dtype);
    size_t choices = d.tokens * topk;
    if (d.capacity > 0 && d.experts * d.capacity < choices)
        choices = d.experts * d.capacity;
    /* Balanced: an exchange brings as many rows as it takes away; without one this rank keeps its
     * experts' share of the choices. */
    size_t rows = d.exchange ? choices : choices / (size_t)shape->ep;
    moe_rings rings = moe_rings_of(&d, shape, rows);
    add_params(out, shape, d.experts * hidden, d.experts * hidden);
    add_params(out, shape, d.experts * hidden * d.ffn_all * (d.gates + 1),
               d.local_experts * hidden * d.ffn * (d.gates + 1));
    out->activation_bytes = 2 * weft_piece_bytes(WEFT_F32, d.tokens, d.experts) +
                            4 * weft_piece_bytes(WEFT_F32, d.tokens, topk) +
                            weft_piece_bytes(shape->dtype, rows, hidden) +
                            weft_piece_bytes(shape->dtype, rings.kept, hidden) +
                            weft_piece_bytes(shape->dtype, rings.kept, d.gates * d.ffn);
    out->scratch_bytes = moe_scratch_bytes(o, shape, &d, &rings);
    out->forward_flops =
        2 * d.tokens * d.experts * hidden + 2 * rows * hidden * d.ffn * (d.gates + 1);
    out->backward_flops = 2 * out->forward_flops;
    if (d.exchange) {
        size_t n = shape->moe_partitions > 1 ? (size_t)shape->moe_partitions : 1;
        size_t times = d.summed ? 3 : 2; /* the sum over ETP is one more */
        out->ep_forward_bytes = times * rows * hidden * bytes + n * d.experts * sizeof(int64_t);
        out->ep_backward_bytes = (times + rings.resent) * rows * hidden * bytes;
    }
    if (shape->moe_reuse >= 3 && d.exchange) /* the first linear layer again */
        out->backward_flops += 2 * rows * hidden * d.ffn * d.gates;
    if (d.summed) {
        out->tp_forward_bytes = enter_bytes(shape);
        out->tp_backward_bytes = 2 * enter_bytes(shape);
    } else if (d.full) {
        out->tp_forward_bytes = enter_bytes(shape) + exit_bytes(shape);
        out->tp_backward_bytes = 2 * enter_bytes(shape) + exit_bytes(shape);
    } else if (shape->tp > 1) {
        size_t slices = shape->sequence_parallel ? 0 : exit_bytes(shape);
        out->tp_forward_bytes = (2 * d.experts + 1) * sizeof(float) + slices;
        out->tp_backward_bytes = slices;
    }
}

void weft_describe_block(const weft_model_options *o, const weft_shape *shape, weft_layer_cost *out)
{
    memset(out, 0, sizeof *out);
    weft_dims d = weft_dims_of(o, shape);
    add_params(out, shape, 2 * norm_params(o), 2 * norm_params(o));
    /* the sum between attention and MLP, and the block's own output */
    out->activation_bytes =
        2 * weft_piece_bytes(shape->dtype, d.rows, d.hidden) + 2 * norm_stats_bytes(o, d.rows);
    if (shape->training)
        out->scratch_bytes =
            (o->hidden_dropout > 0 ? 2 : 1) * weft_piece_bytes(shape->dtype, d.rows, d.hidden);
}

size_t weft_head_chunk_rows(const weft_shape *shape)
{
    enum { CPU_ROWS = 256 }; /* enough for a CPU's GEMMs to run at their full rate */
    size_t rows = shape->seq * shape->batch;
    size_t most = shape->logit_rows ? shape->logit_rows : CPU_ROWS;
    return shape->training && rows > most ? most : rows;
}

void weft_describe_head(const weft_model_options *o, const weft_shape *shape, weft_layer_cost *out)
{
    memset(out, 0, sizeof *out);
    weft_dims d = weft_dims_of(o, shape);
    add_params(out, shape, norm_params(o), norm_params(o));
    if (o->untie_embeddings_and_output_weights)
        add_params(out, shape, shape->vocab * d.hidden, d.vocab_rows * d.hidden);
    else if (shape->pp > 1) /* a copy of the first stage's */
        add_params(out, shape, 0, d.vocab_rows * d.hidden);
    size_t chunk = weft_head_chunk_rows(shape);
    size_t logits_bytes = weft_piece_bytes(shape->dtype, chunk, d.vocab_rows);
    out->activation_bytes = norm_stats_bytes(o, d.rows);
    out->scratch_bytes =
        weft_piece_bytes(WEFT_F32, chunk, 1) + weft_piece_bytes(WEFT_F32, 2, chunk);
    out->forward_flops = 2 * d.rows_full * d.hidden * d.vocab_rows;
    out->tp_forward_bytes = enter_bytes(shape);
    if (shape->tp > 1)
        out->tp_forward_bytes += 3 * d.rows_full * sizeof(float);
    if (!shape->training) {
        out->activation_bytes += logits_bytes;
        out->scratch_bytes += region_bytes(shape);
        return;
    }
    /* Forward makes the gradients too. */
    out->activation_bytes += weft_piece_bytes(shape->dtype, d.rows, d.hidden);
    out->scratch_bytes += logits_bytes + 2 * region_bytes(shape);
    out->forward_flops *= 3;
    out->tp_forward_bytes += exit_bytes(shape);
}
