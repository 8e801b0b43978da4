/* Mixtral (Jiang et al. 2024): Llama with experts in all layers; a softmax over the experts that
 * the router chose. */
#include <weft/family_rows.h>
#include <weft/weft.h>

static weft_status build(weft_model *model, const weft_model_options *options)
{
    WEFT_TRY(weft_model_add_embedding(model, options));
    for (int64_t i = 0; i < options->num_layers; i++)
        WEFT_TRY(weft_model_add_block(model, options, weft_attention_create(options),
                                      weft_moe_create(options)));
    return weft_model_add_head(model, options);
}

static const weft_family_fixed fixed[] = {{"normalization", "\"RMSNorm\""},
                                          {"disable_bias_linear", "true"},
                                          {"position_embedding_type", "\"rope\""},
                                          {"swiglu", "true"}};

static const weft_family_key keys[] = {WEFT_DECODER_KEYS,
                                       WEFT_SAME("head_dim", "kv_channels", ""),
                                       WEFT_GROUPS_KEY("8"),
                                       WEFT_NORM_KEY("1e-5"),
                                       WEFT_ONLY("sliding_window", "null", "null"),
                                       WEFT_SAME("num_local_experts", "num_experts", "8"),
                                       WEFT_SAME("num_experts_per_tok", "moe_router_topk", "2"),
                                       WEFT_ONLY("router_jitter_noise", "0.0", "0.0")};

static const weft_family_name names[] = {
    WEFT_END_NAMES,
    WEFT_NORM_NAMES,
    WEFT_QKV_NAMES("weight"),
    WEFT_PROJECTION_NAME,
    WEFT_EXPERT_NAMES("block_sparse_moe", "w1", "w3", "w2"),
    WEFT_WHOLE(WEFT_THEIRS "mlp.gate.weight", WEFT_OURS "mlp.router.weight")};
static const char *const ignored[] = {WEFT_OLD_FREQUENCIES};

const weft_family weft_family_mixtral = {.name = "Mixtral",
                                         .architecture = "MixtralForCausalLM",
                                         .model_type = "mixtral",
                                         .rope_theta = "1e6",
                                         .build = build,
                                         WEFT_ROWS(fixed, fixed),
                                         WEFT_ROWS(keys, keys),
                                         WEFT_ROWS(names, names),
                                         WEFT_ROWS(ignored, ignored)};
