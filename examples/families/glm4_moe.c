/* GLM-4.5 (GLM-4.5 Team 2025): grouped queries of which half of each head rotates, a norm of heads
 * in the large one; the first layers dense and DeepSeek-V3's experts behind them, and its depths
 * that predict tokens further on. */
#include <weft/family_rows.h>
#include <weft/weft.h>

static weft_status build(weft_model *model, const weft_model_options *options)
{
    WEFT_TRY(weft_model_add_embedding(model, options));
    for (int64_t i = 0; i < options->num_layers; i++) {
        weft_layer *mlp = weft_model_is_moe_layer(options, i) ? weft_moe_create(options)
                                                              : weft_mlp_create(options);
        WEFT_TRY(weft_model_add_block(model, options, weft_attention_create(options), mlp));
    }
    WEFT_TRY(weft_model_add_head(model, options));
    for (int64_t d = 0; d < options->mtp_num_layers; d++)
        WEFT_TRY(weft_model_add_mtp(model, options, weft_attention_create(options),
                                    weft_moe_create(options)));
    return WEFT_OK;
}

static const weft_family_fixed fixed[] = {{"normalization", "\"RMSNorm\""},
                                          {"disable_bias_linear", "true"},
                                          {"position_embedding_type", "\"rope\""},
                                          {"swiglu", "true"},
                                          {"moe_router_score_function", "\"sigmoid\""},
                                          {"moe_router_enable_expert_bias", "true"}};

static const weft_family_key keys[] = {
    WEFT_BODY_KEYS,
    WEFT_TIED_KEY("false"),
    WEFT_SILU_KEY,
    WEFT_SAME("head_dim", "kv_channels", ""),
    WEFT_GROUPS_KEY("8"),
    WEFT_NORM_KEY("1e-5"),
    WEFT_SAME("attention_bias", "add_qkv_bias", "false"),
    WEFT_SAME("use_qk_norm", "qk_layernorm", "false"),
    WEFT_SAME("n_routed_experts", "num_experts", "128"),
    WEFT_SAME("num_experts_per_tok", "moe_router_topk", "8"),
    WEFT_SAME("moe_intermediate_size", "moe_ffn_hidden_size", "1408"),
    WEFT_SAME("routed_scaling_factor", "moe_router_topk_scaling_factor", "1.0"),
    WEFT_NOT("norm_topk_prob", "moe_router_pre_softmax", "true"),
    WEFT_OR_ONE("n_group", "moe_router_num_groups", "1"),
    WEFT_OR_ONE("topk_group", "moe_router_group_topk", "1"),
    {"n_shared_experts", WEFT_KEY_SHARED, "moe_shared_expert_intermediate_size", "1", NULL},
    {"first_k_dense_replace", WEFT_KEY_DENSE_FIRST, "moe_layer_freq", "1", NULL}};

static const weft_family_name names[] = {
    WEFT_END_NAMES,
    WEFT_MTP_NAMES,
    WEFT_NORM_NAMES,
    WEFT_QKV_NAMES("weight"),
    WEFT_QKV_NAMES("bias"),
    WEFT_QK_NORM_NAMES,
    WEFT_PROJECTION_NAME,
    WEFT_MLP_NAMES,
    WEFT_EXPERT_NAMES("mlp", "gate_proj", "up_proj", "down_proj"),
    WEFT_CHOICE_BIAS_NAME("mlp"),
    WEFT_GATED_NAMES("mlp.shared_experts.", "mlp.shared_experts.")};
static const char *const ignored[] = {WEFT_OLD_FREQUENCIES};

const weft_family weft_family_glm4_moe = {.name = "GLM-4.5",
                                          .architecture = "Glm4MoeForCausalLM",
                                          .model_type = "glm4_moe",
                                          .rope_theta = "1e4",
                                          .rotates_part = true,
                                          .next_layers = "num_nextn_predict_layers",
                                          .check = weft_family_check_router,
                                          .build = build,
                                          WEFT_ROWS(fixed, fixed),
                                          WEFT_ROWS(keys, keys),
                                          WEFT_ROWS(names, names),
                                          WEFT_ROWS(ignored, ignored)};
