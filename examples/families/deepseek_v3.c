/* DeepSeek-V3 (DeepSeek-AI 2024), and what has its files: Kimi-K2, Moonlight. Keys and values are
 * made of a latent; the first layers are dense, the others have experts beside a shared one, chosen
 * by sigmoids and a bias that no loss moves; further depths predict tokens further on. */
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
                                          {"moe_router_enable_expert_bias", "true"},
                                          {"multi_latent_attention", "true"},
                                          {"latent_norm_epsilon", "1e-6"}};

static const weft_family_key keys[] = {
    WEFT_DECODER_KEYS,
    WEFT_GROUPS_KEY(""),
    WEFT_NORM_KEY("1e-6"),
    {"q_lora_rank", WEFT_KEY_SAME, "q_lora_rank", "0", "null"},
    WEFT_SAME("kv_lora_rank", "kv_lora_rank", "512"),
    WEFT_SAME("qk_nope_head_dim", "qk_head_dim", "128"),
    WEFT_SAME("qk_rope_head_dim", "qk_pos_emb_head_dim", "64"),
    WEFT_SAME("v_head_dim", "v_head_dim", "128"),
    WEFT_SAME("rope_interleave", "rotary_interleaved", "true"),
    WEFT_SAME("n_routed_experts|num_local_experts", "num_experts", NULL),
    WEFT_SAME("num_experts_per_tok", "moe_router_topk", "8"),
    WEFT_SAME("moe_intermediate_size", "moe_ffn_hidden_size", NULL),
    WEFT_OR_ONE("n_group", "moe_router_num_groups", "8"),
    WEFT_OR_ONE("topk_group", "moe_router_group_topk", "4"),
    WEFT_SAME("routed_scaling_factor", "moe_router_topk_scaling_factor", "2.5"),
    WEFT_NOT("norm_topk_prob", "moe_router_pre_softmax", "true"),
    {"first_k_dense_replace", WEFT_KEY_DENSE_FIRST, "moe_layer_freq", "3", NULL},
    {"n_shared_experts", WEFT_KEY_SHARED, "moe_shared_expert_intermediate_size", "1", NULL},
    WEFT_ONLY("scoring_func", "\"sigmoid\"", "\"sigmoid\""),
    WEFT_ONLY("topk_method", "\"noaux_tc\"", "\"noaux_tc\""),
    WEFT_ONLY("moe_layer_freq", "1", "1"),
    WEFT_NO_QKV_BIAS_KEY,
    WEFT_ONLY("pretraining_tp", "1", "1")};

#define THEIRS WEFT_THEIRS "self_attn."
#define OURS WEFT_OURS "self_attention."
static const weft_family_name names[] = {
    WEFT_END_NAMES,
    WEFT_MTP_NAMES,
    WEFT_NORM_NAMES,
    WEFT_PROJECTION_NAME,
    WEFT_MLP_NAMES,
    WEFT_EXPERT_NAMES("mlp", "gate_proj", "up_proj", "down_proj"),
    WEFT_CHOICE_BIAS_NAME("mlp"),
    WEFT_GATED_NAMES("mlp.shared_experts.", "mlp.shared_experts."),
    WEFT_WHOLE(THEIRS "q_proj.weight", OURS "linear_q_proj.weight"),
    WEFT_WHOLE(THEIRS "q_a_proj.weight", OURS "linear_q_down_proj.weight"),
    WEFT_WHOLE(THEIRS "q_a_layernorm.weight", OURS "q_layernorm.weight"),
    WEFT_WHOLE(THEIRS "q_b_proj.weight", OURS "linear_q_up_proj.weight"),
    WEFT_WHOLE(THEIRS "kv_a_proj_with_mqa.weight", OURS "linear_kv_down_proj.weight"),
    WEFT_WHOLE(THEIRS "kv_a_layernorm.weight", OURS "kv_layernorm.weight"),
    WEFT_WHOLE(THEIRS "kv_b_proj.weight", OURS "linear_kv_up_proj.weight")};
static const char *const ignored[] = {WEFT_OLD_FREQUENCIES};

const weft_family weft_family_deepseek_v3 = {.name = "DeepSeek-V3",
                                             .architecture = "DeepseekV3ForCausalLM",
                                             .model_type = "deepseek_v3",
                                             .rope_theta = "1e4",
                                             .next_layers =
                                                 "num_nextn_predict_layers|num_mtp_layers",
                                             .scales_scores = true,
                                             .check = weft_family_check_router,
                                             .build = build,
                                             WEFT_ROWS(fixed, fixed),
                                             WEFT_ROWS(keys, keys),
                                             WEFT_ROWS(names, names),
                                             WEFT_ROWS(ignored, ignored)};
