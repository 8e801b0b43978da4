/* Whether a model fits its mesh. Pure. */
#include <stdio.h>

#include "core/text.h"
#include "layers/context/context.h"
#include "layers/describe/describe.h"
#include "layers/model/model.h"

static weft_status check_divides(const char *key, const char *what, int64_t value, int parts)
{
    if (value % parts == 0)
        return WEFT_OK;
    return WEFT_KEY_ERROR(key, "%s %lld does not divide by %d", what, (long long)value, parts);
}

/* Each rank has whole query groups, or a group is shared by whole ranks. */
static weft_status check_query_groups(int64_t groups, int tp)
{
    if (groups % tp == 0 || tp % groups == 0)
        return WEFT_OK;
    return WEFT_KEY_ERROR("parallel.tensor_model_parallel_size",
                          "num_query_groups %lld neither divides by %d nor divides it",
                          (long long)groups, tp);
}

/* Context parallelism cuts runs, and sequence parallelism a rank's rows over TP. */
static weft_status check_sequence(int64_t seq, const weft_mesh *mesh)
{
    const int runs = (int)weft_sequence_multiple(mesh->cp);
    const int parts = runs * (mesh->sequence_parallel ? mesh->tp : 1);
    weft_fits fits = weft_fits_multiples_near(parts, seq);
    char text[WEFT_FITS_TEXT_BYTES], what[80] = "", tensor[48] = "";
    if (seq % parts == 0)
        return WEFT_OK;
    if (mesh->sequence_parallel)
        snprintf(tensor, sizeof tensor, " x tensor_model_parallel_size %d", mesh->tp);
    if (mesh->cp > 1)
        snprintf(what, sizeof what, " = 2 x %d%s", mesh->cp, tensor);
    return WEFT_KEY_ERROR(mesh->cp > 1 ? "parallel.context_parallel_size"
                                       : "parallel.sequence_parallel",
                          "seq_length %lld does not divide by %d%s; seq_length %s would",
                          (long long)seq, parts, what, weft_fits_text(&fits, text));
}

/* Exchanging heads for sequence sends whole query groups to each of `inner` ranks. */
static weft_status check_heads(const weft_model_options *o, const weft_mesh *mesh,
                               int64_t micro_batch_size)
{
    weft_shape shape = weft_model_shape(o, mesh, micro_batch_size, WEFT_F32, true);
    if (!weft_context_deals(&shape))
        return WEFT_OK;
    const weft_context_plan plan = weft_context_plan_of(&shape);
    const int parts = plan.inner * mesh->tp;
    if (o->num_query_groups % parts == 0)
        return WEFT_OK;
    return WEFT_KEY_ERROR("parallel.cp_comm_type",
                          "%s deals num_query_groups %lld to %d ranks x "
                          "tensor_model_parallel_size %d, which does not come out even; p2p or "
                          "all_gather would do",
                          weft_context_form_text((int)plan.form), (long long)o->num_query_groups,
                          plan.inner, mesh->tp);
}

/* Byte counts of the whole model have to stay below 2^63, with room for gradients, moments and both
 * directions of a pass. */
static weft_status check_countable(const weft_model_options *o, int64_t num_layers,
                                   int64_t micro_batch_size)
{
    const double widths[] = {
        (double)o->hidden_size,
        (double)o->num_attention_heads * (double)o->kv_channels * 3,
        (double)o->num_attention_heads * (double)o->v_head_dim * 3,
        (double)o->q_lora_rank,
        (double)o->kv_lora_rank,
        (double)o->ffn_hidden_size * 2,
        (double)o->moe_ffn_hidden_size * 2 * (double)(o->num_experts + 1),
        (double)o->moe_shared_expert_intermediate_size * 2,
        (double)o->vocab_size,
        (double)o->max_position_embeddings,
    };
    double widest = 1, rows = (double)o->seq_length * (double)micro_batch_size;
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        widest = widths[i] > widest ? widths[i] : widest;
    double elements = (rows + (double)o->hidden_size) * widest * (double)(num_layers + 2);
    if (elements * 256 < 9e18)
        return WEFT_OK;
    return WEFT_KEY_ERROR(rows >= widest ? "model.seq_length" : "model.hidden_size",
                          "%g elements of weights and activations are more than any memory",
                          elements);
}

/* Checks MoE layers on the experts' mesh. */
static weft_status check_moe_mesh(const weft_model_options *o, const weft_mesh *mesh,
                                  int64_t micro_batch_size)
{
    weft_shape shape = weft_model_shape(o, mesh, micro_batch_size, WEFT_F32, true);
    WEFT_TRY(check_divides("parallel.expert_tensor_parallel_size", "moe_ffn_hidden_size",
                           o->moe_ffn_hidden_size, mesh->etp));
    WEFT_TRY(check_divides("parallel.tensor_model_parallel_size",
                           "moe_shared_expert_intermediate_size",
                           o->moe_shared_expert_intermediate_size, mesh->tp));
    weft_moe_dims dims = weft_moe_dims_of(o, &shape);
    if (!dims.full) /* each rank routes its share of the rows */
        WEFT_TRY(check_divides("parallel.tensor_model_parallel_size",
                               mesh->cp > 1
                                   ? "seq_length / context_parallel_size x micro_batch_size"
                                   : "seq_length x micro_batch_size",
                               (int64_t)weft_shape_local_tokens(&shape), mesh->tp));
    if (dims.tokens > (size_t)(INT32_MAX / o->moe_router_topk))
        return WEFT_KEY_ERROR("model.seq_length",
                              "%zu tokens a micro-batch with %lld experts each; a rank routes at "
                              "most %d choices",
                              dims.tokens, (long long)o->moe_router_topk, INT32_MAX);
    return WEFT_OK;
}

weft_status weft_model_check_mesh(const weft_model_options *o, const weft_mesh *mesh,
                                  int64_t num_layers, int64_t micro_batch_size)
{
    bool has_dense = false, has_moe = false;
    WEFT_TRY(check_countable(o, num_layers, micro_batch_size));
    if (o->mtp_num_layers > 0 && mesh->cp > 1)
        return WEFT_KEY_ERROR("model.mtp_num_layers",
                              "a token's next labels lie on other ranks of context_parallel_size "
                              "%d; leave one out",
                              mesh->cp);
    for (int64_t i = 0; i < o->num_layers; i++) {
        has_moe |= weft_model_is_moe_layer(o, i);
        has_dense |= !weft_model_is_moe_layer(o, i);
    }
    WEFT_TRY(check_divides("parallel.tensor_model_parallel_size", "num_attention_heads",
                           o->num_attention_heads, mesh->tp));
    WEFT_TRY(check_query_groups(o->num_query_groups, mesh->tp));
    WEFT_TRY(check_sequence(o->seq_length, mesh));
    WEFT_TRY(check_heads(o, mesh, micro_batch_size));
    if (has_dense)
        WEFT_TRY(check_divides("parallel.tensor_model_parallel_size", "ffn_hidden_size",
                               o->ffn_hidden_size, mesh->tp));
    return has_moe ? check_moe_mesh(o, mesh, micro_batch_size) : WEFT_OK;
}

/* With partitions by peers the group's size gives their number, and memory reuse is none. */
static weft_status check_peers(const weft_schedule_options *p, int ep)
{
    weft_fits fits = weft_fits_divisors(ep);
    char text[WEFT_FITS_TEXT_BYTES];
    if (p->moe_num_partitions != 1)
        return WEFT_KEY_ERROR(
            "parallel.moe_num_partitions",
            "%lld, but moe_partition_by peers has one for every moe_peer_group_size ranks; 1 "
            "would, or moe_partition_by tokens",
            (long long)p->moe_num_partitions);
    if (p->moe_memory_reuse != WEFT_REUSE_NONE)
        return WEFT_KEY_ERROR("parallel.moe_memory_reuse",
                              "moe_partition_by peers reuses no memory; none would, or "
                              "moe_partition_by tokens");
    if (ep > 1 && ep % p->moe_peer_group_size != 0)
        return WEFT_KEY_ERROR("parallel.moe_peer_group_size",
                              "groups of %lld do not divide %d ranks of expert parallelism; %s "
                              "would",
                              (long long)p->moe_peer_group_size, ep, weft_fits_text(&fits, text));
    return WEFT_OK;
}

/* Each partition has an expert at least. */
static weft_status check_runs(const weft_schedule_options *p, const weft_moe_dims *d)
{
    if (d->exchange && p->moe_num_partitions > (int64_t)d->local_experts)
        return WEFT_KEY_ERROR(
            "parallel.moe_num_partitions",
            "%lld, but moe_partition_by experts cuts a rank's experts of a layer, "
            "which are %zu; at most that many would",
            (long long)p->moe_num_partitions, d->local_experts);
    return WEFT_OK;
}

weft_status weft_model_check_moe(const weft_model_options *o, const weft_schedule_options *p,
                                 const weft_mesh *mesh)
{
    if (o->num_experts == 0)
        return WEFT_OK;
    weft_shape shape = weft_model_shape(o, mesh, 1, WEFT_F32, true);
    const weft_moe_dims dims = weft_moe_dims_of(o, &shape);
    bool by_peers = p->moe_partition_by == WEFT_MOE_PARTITION_BY_PEERS;
    if (p->moe_partition_by == WEFT_MOE_PARTITION_BY_EXPERTS)
        WEFT_TRY(check_runs(p, &dims));
    if (by_peers)
        WEFT_TRY(check_peers(p, dims.exchange ? mesh->ep : 1));
    else if (p->moe_peer_group_size != 1)
        return WEFT_KEY_ERROR("parallel.moe_peer_group_size",
                              "%lld, but partitions are cut by %s; 1 would, or "
                              "moe_partition_by peers",
                              (long long)p->moe_peer_group_size,
                              p->moe_partition_by == WEFT_MOE_PARTITION_BY_EXPERTS ? "experts"
                                                                                   : "tokens");
    if (p->moe_all_to_all == WEFT_NUM_EXCHANGES)
        return WEFT_OK; /* the chosen number will fit */
    weft_exchange_form form = (weft_exchange_form)p->moe_all_to_all;
    if (p->moe_all_to_all_chunks > weft_exchange_max_chunks(form))
        return WEFT_KEY_ERROR("parallel.moe_all_to_all_chunks",
                              "%lld, but %s sends all at once; 0 or 1 would, or moe_all_to_all o2, "
                              "o3 or direct",
                              (long long)p->moe_all_to_all_chunks, weft_exchange_text((int)form));
    return WEFT_OK;
}
