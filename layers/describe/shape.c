/* Shapes, and the local sizes that layers and their descriptions share. */
#include "layers/describe/describe.h"
#include "layers/model/model.h"
#include "layers/outline/outline.h"

size_t weft_shape_local_seq(const weft_shape *shape)
{
    return shape->seq / (shape->cp > 1 ? (size_t)shape->cp : 1);
}

size_t weft_shape_local_tokens(const weft_shape *shape)
{
    return weft_shape_local_seq(shape) * shape->batch;
}

size_t weft_shape_boundary_rows(const weft_shape *shape)
{
    return weft_shape_local_tokens(shape) / (shape->sequence_parallel ? (size_t)shape->tp : 1);
}

size_t weft_shape_boundary_bytes(const weft_shape *shape)
{
    return weft_shape_boundary_rows(shape) * shape->hidden * weft_dtype_bytes(shape->dtype);
}

weft_shape weft_model_shape(const weft_model_options *o, const weft_mesh *mesh,
                            int64_t micro_batch_size, weft_dtype dtype, bool training)
{
    return (weft_shape){.seq = (size_t)o->seq_length,
                        .batch = (size_t)micro_batch_size,
                        .hidden = (size_t)o->hidden_size,
                        .vocab = (size_t)o->vocab_size,
                        .tp = mesh->tp,
                        .cp = mesh->cp,
                        .cp_comm_type = mesh->cp_comm_type,
                        .cp_inner = mesh->cp_inner,
                        .ep = mesh->ep,
                        .etp = mesh->etp,
                        .pp = mesh->pp,
                        .sequence_parallel = mesh->sequence_parallel,
                        .attention_chunks = mesh->attention_chunks,
                        .mlp_chunks = mesh->mlp_chunks,
                        .binding = mesh->binding == WEFT_BINDING_TP ? 0 : 1,
                        .dtype = dtype,
                        .training = training};
}

weft_moe_pipeline weft_shape_pipeline(const weft_shape *shape)
{
    return (weft_moe_pipeline){shape->moe_partitions > 0 ? shape->moe_partitions : 1,
                               (weft_reuse)shape->moe_reuse, shape->moe_peer_group,
                               shape->moe_by_experts, 0};
}

void weft_shape_exchange(const weft_moe_options *moe, weft_shape *shape)
{
    const bool matters = shape->etp > 1 && moe->form != WEFT_EXCHANGE_BASELINE;
    shape->moe_exchange = matters ? (int)moe->form : 0;
    shape->moe_exchange_chunks = matters ? moe->num_chunks : 0;
}

size_t weft_rotary_channels(size_t head_dim, double percent)
{
    return (size_t)((double)head_dim * percent * (1 + 1e-12));
}

weft_activation_kind weft_activation_of(const weft_model_options *options)
{
    return options->swiglu        ? WEFT_ACTIVATION_SWIGLU
           : options->geglu       ? WEFT_ACTIVATION_GEGLU
           : options->quick_geglu ? WEFT_ACTIVATION_QUICK_GEGLU
                                  : WEFT_ACTIVATION_GELU;
}

bool weft_is_gated(const weft_model_options *options)
{
    return weft_activation_is_gated(weft_activation_of(options));
}

weft_dims weft_dims_of(const weft_model_options *o, const weft_shape *shape)
{
    weft_dims d = {0};
    size_t tp = (size_t)shape->tp;
    d.rows_full = weft_shape_local_tokens(shape);
    d.rows = d.rows_full / (shape->sequence_parallel ? tp : 1);
    d.hidden = shape->hidden;
    d.heads_all = (size_t)o->num_attention_heads;
    d.groups_all = weft_or_else(o->num_query_groups, o->num_attention_heads);
    d.head_dim = weft_or_else(o->kv_channels, o->hidden_size / o->num_attention_heads);
    d.value_dim = o->multi_latent_attention ? (size_t)o->v_head_dim : d.head_dim;
    if (o->position_embedding_type == WEFT_POSITION_ROPE)
        d.rotary = weft_rotary_channels(o->multi_latent_attention ? (size_t)o->qk_pos_emb_head_dim
                                                                  : d.head_dim,
                                        o->rotary_percent);
    d.heads = d.heads_all / tp;
    d.sharers = d.groups_all < tp ? tp / d.groups_all : 1;
    d.groups = d.groups_all * d.sharers / tp;
    d.qkv = (d.heads + d.groups) * d.head_dim + d.groups * d.value_dim;
    d.gates = weft_is_gated(o) ? 2 : 1;
    d.ffn_all = weft_or_else(o->ffn_hidden_size, 4 * o->hidden_size);
    d.ffn = d.ffn_all / tp;
    d.vocab_rows = (shape->vocab + tp - 1) / tp;
    return d;
}

/* Each chunk of rows reads the whole output matrix twice and adds to its fp32 gradient. On a GPU
 * only products of thousands of rows hide this addition; a CPU's GEMMs run at full rate with
 * fewer. */
size_t weft_logit_rows(bool gpu)
{
    enum { CPU_ROWS = 256, GPU_ROWS = 8192 };
    return gpu ? GPU_ROWS : CPU_ROWS;
}

size_t weft_head_chunk_rows(const weft_shape *shape)
{
    size_t rows = weft_shape_local_tokens(shape);
    size_t most = shape->logit_rows ? shape->logit_rows : weft_logit_rows(false);
    return shape->training && rows > most ? most : rows;
}

weft_moe_dims weft_moe_dims_of(const weft_model_options *o, const weft_shape *shape)
{
    weft_moe_dims d = {0};
    bool by_tp = shape->binding == 0;
    size_t all = weft_shape_local_tokens(shape);
    d.full = by_tp || shape->etp > 1 || shape->tp == 1;
    d.exchange = !by_tp && shape->ep > 1;
    d.summed = d.exchange && shape->etp > 1;
    d.tokens = d.full ? all : all / (size_t)shape->tp;
    d.experts = (size_t)o->num_experts;
    d.local_experts = d.experts / (size_t)shape->ep;
    d.gates = weft_is_gated(o) ? 2 : 1;
    d.ffn_all = weft_or_else(o->moe_ffn_hidden_size,
                             (int64_t)weft_or_else(o->ffn_hidden_size, 4 * o->hidden_size));
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

size_t weft_moe_balanced_rows(const weft_moe_dims *d, size_t topk, size_t ep)
{
    size_t choices = d->tokens * topk;
    if (d->capacity > 0 && d->experts * d->capacity < choices)
        choices = d->experts * d->capacity;
    return d->exchange ? choices : choices / ep;
}

size_t weft_moe_order_room(size_t balanced, size_t ep, size_t parts)
{
    return (ep < 4 ? ep : 4) * ((balanced + parts - 1) / parts);
}
