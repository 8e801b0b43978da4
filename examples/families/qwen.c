/* Qwen2 (Qwen 2024): Llama with biases on queries, keys and values. Qwen3 (Qwen 2025): without
 * them, and with a norm of each head of queries and keys. Qwen3-MoE: with experts in all layers. */
#include <weft/family_rows.h>
#include <weft/weft.h>

static weft_status build_dense(weft_model *model, const weft_model_options *options)
{
    WEFT_TRY(weft_model_add_embedding(model, options));
    for (int64_t i = 0; i < options->num_layers; i++)
        WEFT_TRY(weft_model_add_block(model, options, weft_attention_create(options),
                                      weft_mlp_create(options)));
    return weft_model_add_head(model, options);
}

static weft_status build_moe(weft_model *model, const weft_model_options *options)
{
    WEFT_TRY(weft_model_add_embedding(model, options));
    for (int64_t i = 0; i < options->num_layers; i++)
        WEFT_TRY(weft_model_add_block(model, options, weft_attention_create(options),
                                      weft_moe_create(options)));
    return weft_model_add_head(model, options);
}

static const weft_family_fixed qwen2_fixed[] = {{"normalization", "\"RMSNorm\""},
                                                {"disable_bias_linear", "true"},
                                                {"add_qkv_bias", "true"},
                                                {"position_embedding_type", "\"rope\""},
                                                {"swiglu", "true"}};
static const weft_family_fixed qwen3_fixed[] = {{"normalization", "\"RMSNorm\""},
                                                {"qk_layernorm", "true"},
                                                {"disable_bias_linear", "true"},
                                                {"position_embedding_type", "\"rope\""},
                                                {"swiglu", "true"}};

static const weft_family_key qwen2_keys[] = {
    WEFT_DECODER_KEYS, WEFT_SAME("head_dim", "kv_channels", ""), WEFT_GROUPS_KEY("32"),
    WEFT_NORM_KEY("1e-6"), WEFT_UNUSED_WINDOW_KEY};
static const weft_family_key qwen3_keys[] = {
    WEFT_DECODER_KEYS,      WEFT_SAME("head_dim", "kv_channels", "128"),
    WEFT_GROUPS_KEY("32"),  WEFT_NORM_KEY("1e-6"),
    WEFT_UNUSED_WINDOW_KEY, WEFT_NO_QKV_BIAS_KEY};
static const weft_family_key qwen3_moe_keys[] = {
    WEFT_DECODER_KEYS,
    WEFT_SAME("head_dim", "kv_channels", ""),
    WEFT_GROUPS_KEY("4"),
    WEFT_NORM_KEY("1e-6"),
    WEFT_UNUSED_WINDOW_KEY,
    WEFT_NO_QKV_BIAS_KEY,
    WEFT_SAME("num_experts|num_local_experts", "num_experts", NULL),
    WEFT_SAME("num_experts_per_tok", "moe_router_topk", "8"),
    WEFT_SAME("moe_intermediate_size", "moe_ffn_hidden_size", NULL),
    WEFT_NOT("norm_topk_prob", "moe_router_pre_softmax", "false"),
    WEFT_ONLY("decoder_sparse_step", "1", "1"),
    WEFT_ONLY("mlp_only_layers", "[]", "[]|null")};

static const weft_family_name qwen2_names[] = {WEFT_END_NAMES,           WEFT_NORM_NAMES,
                                               WEFT_QKV_NAMES("weight"), WEFT_QKV_NAMES("bias"),
                                               WEFT_PROJECTION_NAME,     WEFT_MLP_NAMES};
static const weft_family_name qwen3_names[] = {WEFT_END_NAMES,           WEFT_NORM_NAMES,
                                               WEFT_QKV_NAMES("weight"), WEFT_QK_NORM_NAMES,
                                               WEFT_PROJECTION_NAME,     WEFT_MLP_NAMES};
static const weft_family_name qwen3_moe_names[] = {
    WEFT_END_NAMES,           WEFT_NORM_NAMES,
    WEFT_QKV_NAMES("weight"), WEFT_QK_NORM_NAMES,
    WEFT_PROJECTION_NAME,     WEFT_EXPERT_NAMES("mlp", "gate_proj", "up_proj", "down_proj")};
static const char *const ignored[] = {WEFT_OLD_FREQUENCIES};

const weft_family weft_family_qwen2 = {.name = "Qwen2",
                                       .architecture = "Qwen2ForCausalLM",
                                       .model_type = "qwen2",
                                       .rope_theta = "1e4",
                                       .build = build_dense,
                                       WEFT_ROWS(fixed, qwen2_fixed),
                                       WEFT_ROWS(keys, qwen2_keys),
                                       WEFT_ROWS(names, qwen2_names),
                                       WEFT_ROWS(ignored, ignored)};
const weft_family weft_family_qwen3 = {.name = "Qwen3",
                                       .architecture = "Qwen3ForCausalLM",
                                       .model_type = "qwen3",
                                       .rope_theta = "1e4",
                                       .build = build_dense,
                                       WEFT_ROWS(fixed, qwen3_fixed),
                                       WEFT_ROWS(keys, qwen3_keys),
                                       WEFT_ROWS(names, qwen3_names),
                                       WEFT_ROWS(ignored, ignored)};
const weft_family weft_family_qwen3_moe = {.name = "Qwen3-MoE",
                                           .architecture = "Qwen3MoeForCausalLM",
                                           .model_type = "qwen3_moe",
                                           .rope_theta = "1e4",
                                           .build = build_moe,
                                           WEFT_ROWS(fixed, qwen3_fixed),
                                           WEFT_ROWS(keys, qwen3_moe_keys),
                                           WEFT_ROWS(names, qwen3_moe_names),
                                           WEFT_ROWS(ignored, ignored)};
