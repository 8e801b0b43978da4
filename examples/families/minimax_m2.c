/* MiniMax-M2 (MiniMax 2025): a norm of a token's queries and keys over all heads, half of each head
 * rotates; experts in all layers, chosen by sigmoids and a bias that no loss moves. */
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
                                          {"qk_layernorm", "true"},
                                          {"qk_layernorm_across_heads", "true"},
                                          {"disable_bias_linear", "true"},
                                          {"position_embedding_type", "\"rope\""},
                                          {"swiglu", "true"},
                                          {"moe_router_score_function", "\"sigmoid\""},
                                          {"moe_router_enable_expert_bias", "true"}};

/* rotary_dim says half of the published head_dim. */
static const weft_family_key keys[] = {WEFT_BODY_KEYS,
                                       WEFT_TIED_KEY("false"),
                                       WEFT_SILU_KEY,
                                       WEFT_SAME("head_dim", "kv_channels", "128"),
                                       WEFT_GROUPS_KEY("8"),
                                       WEFT_NORM_KEY("1e-6"),
                                       WEFT_SAME("num_local_experts", "num_experts", "256"),
                                       WEFT_SAME("num_experts_per_tok", "moe_router_topk", "8"),
                                       WEFT_ONLY("rotary_dim", "64", "64"),
                                       WEFT_ONLY("use_qk_norm", "true", "true"),
                                       WEFT_ONLY("qk_norm_type", "\"per_layer\"", "\"per_layer\""),
                                       WEFT_ONLY("use_routing_bias", "true", "true"),
                                       WEFT_ONLY("scoring_func", "\"sigmoid\"", "\"sigmoid\""),
                                       WEFT_ONLY("sliding_window", "null", "null"),
                                       WEFT_ONLY("shared_intermediate_size", "0", "0"),
                                       WEFT_ONLY("router_jitter_noise", "0.0", "0.0|0")};

static const weft_family_name names[] = {
    WEFT_END_NAMES,
    WEFT_NORM_NAMES,
    WEFT_QKV_NAMES("weight"),
    WEFT_QK_NORM_NAMES,
    WEFT_PROJECTION_NAME,
    WEFT_EXPERT_NAMES("block_sparse_moe", "w1", "w3", "w2"),
    WEFT_WHOLE(WEFT_THEIRS "mlp.gate.weight", WEFT_OURS "mlp.router.weight"),
    WEFT_WHOLE(WEFT_THEIRS "block_sparse_moe.e_score_correction_bias",
               WEFT_OURS "mlp.router.expert_bias"),
    WEFT_CHOICE_BIAS_NAME("mlp")};
static const char *const ignored[] = {WEFT_OLD_FREQUENCIES};

const weft_family weft_family_minimax_m2 = {.name = "MiniMax-M2",
                                            .architecture = "MiniMaxM2ForCausalLM",
                                            .model_type = "minimax_m2",
                                            .rope_theta = "5e6",
                                            .rotates_part = true,
                                            .build = build,
                                            WEFT_ROWS(fixed, fixed),
                                            WEFT_ROWS(keys, keys),
                                            WEFT_ROWS(names, names),
                                            WEFT_ROWS(ignored, ignored)};
