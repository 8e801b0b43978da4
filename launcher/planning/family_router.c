/* DeepSeek's router, which other families have as well. */
#include <weft/family.h>

const char *weft_family_check_router(const weft_model_options *o)
{
    const int64_t shared = o->moe_shared_expert_intermediate_size;
    bool is_moe = false;
    for (int64_t i = 0; i < o->num_layers; i++) {
        if (is_moe && !weft_model_is_moe_layer(o, i))
            return "a dense layer stands behind an MoE layer";
        is_moe = weft_model_is_moe_layer(o, i);
    }
    if (!is_moe)
        return "no layer has experts";
    if (o->moe_router_num_groups > 1 && o->moe_router_topk != 2 * o->moe_router_group_topk)
        return "num_experts_per_tok is not 2 topk_group: Weft's groups count num_experts_per_tok / "
               "topk_group experts, DeepSeek's two";
    if (o->moe_router_topk == 1 && !o->moe_router_pre_softmax)
        return "num_experts_per_tok is 1, which Weft does not divide by itself (norm_topk_prob)";
    if (o->yarn_mscale == 0 && o->yarn_mscale_all_dim != 0)
        return "mscale_all_dim stands without mscale";
    if (shared == 0)
        return "no expert is shared";
    if (shared % o->moe_ffn_hidden_size != 0)
        return "the shared experts are no multiple of moe_intermediate_size";
    return NULL;
}
