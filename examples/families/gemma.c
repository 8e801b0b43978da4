/* Gemma 2 (Gemma Team 2024) and 3 (2025): norms that multiply by 1 + their weight stand before and
 * behind attention and MLP; GEGLU; embeddings are scaled. Of Gemma 2 every second layer has a
 * window, and scores are capped; of Gemma 3 five of six, with rotary positions of their own, and
 * queries and keys of each head are normed. */
#include <weft/family_rows.h>
#include <weft/weft.h>

static weft_status build(weft_model *model, const weft_model_options *options)
{
    WEFT_TRY(weft_model_add_embedding(model, options));
    for (int64_t i = 0; i < options->num_layers; i++) {
        weft_layer *attention = weft_model_is_windowed_layer(options, i)
                                    ? weft_attention_create_windowed(options)
                                    : weft_attention_create_whole(options);
        WEFT_TRY(weft_model_add_block(model, options, attention, weft_mlp_create(options)));
    }
    return weft_model_add_head(model, options);
}

#define FIXED                                                                                      \
    {"normalization", "\"RMSNorm\""}, {"apply_layernorm_1p", "true"},                              \
        {"norm_placement", "\"sandwich\""}, {"disable_bias_linear", "true"},                       \
        {"position_embedding_type", "\"rope\""}, {"geglu", "true"},                                \
    {                                                                                              \
        "scale_embeddings", "true"                                                                 \
    }
static const weft_family_fixed gemma2_fixed[] = {FIXED};
static const weft_family_fixed gemma3_fixed[] = {FIXED, {"qk_layernorm", "true"}};

#define KEYS                                                                                       \
    WEFT_BODY_KEYS, WEFT_TIED_KEY("true"), WEFT_SAME("head_dim", "kv_channels", "256"),            \
        WEFT_GROUPS_KEY("4"), WEFT_NORM_KEY("1e-6"), WEFT_WINDOW_KEY("4096"),                      \
        {"query_pre_attn_scalar", WEFT_KEY_ROOT, "softmax_scale", "256", NULL},                    \
        WEFT_ONLY("hidden_activation", "\"gelu_pytorch_tanh\"", "\"gelu_pytorch_tanh\""),          \
        WEFT_NO_QKV_BIAS_KEY, WEFT_ONLY("use_bidirectional_attention", "false", "false|null")
#define CAP_KEYS(scores, logits)                                                                   \
    WEFT_OR_NONE("attn_logit_softcapping", "attn_logit_softcapping", scores),                      \
        WEFT_OR_NONE("final_logit_softcapping", "final_logit_softcapping", logits)
static const weft_family_key gemma2_keys[] = {KEYS, WEFT_WINDOWED_LAYERS_KEY("2"),
                                              CAP_KEYS("50", "30")};
static const weft_family_key gemma3_keys[] = {KEYS, WEFT_WINDOWED_LAYERS_KEY("6"),
                                              CAP_KEYS("null", "null")};

static const weft_family_name names[] = {
    WEFT_END_NAMES,
    WEFT_WHOLE(WEFT_THEIRS "input_layernorm.weight", WEFT_OURS "input_layernorm.weight"),
    WEFT_WHOLE(WEFT_THEIRS "pre_feedforward_layernorm.weight",
               WEFT_OURS "pre_mlp_layernorm.weight"),
    WEFT_NORM_AFTER_NAMES,
    WEFT_QKV_NAMES("weight"),
    WEFT_QK_NORM_NAMES,
    WEFT_PROJECTION_NAME,
    WEFT_MLP_NAMES};
static const char *const ignored[] = {WEFT_OLD_FREQUENCIES};

const weft_family weft_family_gemma2 = {.name = "Gemma 2",
                                        .architecture = "Gemma2ForCausalLM",
                                        .model_type = "gemma2",
                                        .rope_theta = "1e4",
                                        .build = build,
                                        WEFT_ROWS(fixed, gemma2_fixed),
                                        WEFT_ROWS(keys, gemma2_keys),
                                        WEFT_ROWS(names, names),
                                        WEFT_ROWS(ignored, ignored)};
const weft_family weft_family_gemma3 = {.name = "Gemma 3",
                                        .architecture = "Gemma3ForCausalLM",
                                        .model_type = "gemma3_text",
                                        .rope_theta = "1e6",
                                        .rope_local = "1e4",
                                        .build = build,
                                        WEFT_ROWS(fixed, gemma3_fixed),
                                        WEFT_ROWS(keys, gemma3_keys),
                                        WEFT_ROWS(names, names),
                                        WEFT_ROWS(ignored, ignored)};
