/* Llama 2 and 3 (Touvron et al. 2023, Grattafiori et al. 2024): RMSNorm before attention and MLP,
 * rotary positions, grouped queries, SwiGLU, no biases. Mistral (Jiang et al. 2023) has a window in
 * all layers, or some; SmolLM3 (2025) leaves every fourth layer without positions. */
#include <weft/family_rows.h>
#include <weft/weft.h>

static weft_status build_llama(weft_model *model, const weft_model_options *options)
{
    WEFT_TRY(weft_model_add_embedding(model, options));
    for (int64_t i = 0; i < options->num_layers; i++)
        WEFT_TRY(weft_model_add_block(model, options, weft_attention_create(options),
                                      weft_mlp_create(options)));
    return weft_model_add_head(model, options);
}

static weft_status build_mistral(weft_model *model, const weft_model_options *options)
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

static weft_status build_smollm3(weft_model *model, const weft_model_options *options)
{
    WEFT_TRY(weft_model_add_embedding(model, options));
    for (int64_t i = 0; i < options->num_layers; i++) {
        weft_layer *attention = weft_model_is_roped_layer(options, i)
                                    ? weft_attention_create(options)
                                    : weft_attention_create_without_positions(options);
        WEFT_TRY(weft_model_add_block(model, options, attention, weft_mlp_create(options)));
    }
    return weft_model_add_head(model, options);
}

static const weft_family_fixed fixed[] = {{"normalization", "\"RMSNorm\""},
                                          {"disable_bias_linear", "true"},
                                          {"position_embedding_type", "\"rope\""},
                                          {"swiglu", "true"}};

static const weft_family_key llama_keys[] = {WEFT_DECODER_KEYS,
                                             WEFT_SAME("head_dim", "kv_channels", ""),
                                             WEFT_GROUPS_KEY(""),
                                             WEFT_NORM_KEY("1e-6"),
                                             WEFT_NO_QKV_BIAS_KEY,
                                             WEFT_ONLY("mlp_bias", "false", "false"),
                                             WEFT_ONLY("pretraining_tp", "1", "1")};
/* transformers takes one whose layers differ for its own Ministral. */
static const weft_family_key mistral_keys[] = {
    WEFT_BODY_KEYS,          WEFT_TIED_KEY("false"),
    WEFT_SILU_KEY,           WEFT_SAME("head_dim", "kv_channels", ""),
    WEFT_GROUPS_KEY("8"),    WEFT_NORM_KEY("1e-6"),
    WEFT_WINDOW_KEY("4096"), WEFT_WINDOWED_LAYERS_KEY("")};
static const weft_family_key smollm3_keys[] = {
    WEFT_BODY_KEYS,
    WEFT_TIED_KEY("true"),
    WEFT_SILU_KEY,
    WEFT_WHOLE_LAYERS_KEY,
    WEFT_SAME("head_dim", "kv_channels", ""),
    WEFT_GROUPS_KEY("4"),
    WEFT_NORM_KEY("1e-6"),
    WEFT_NO_QKV_BIAS_KEY,
    WEFT_ONLY("mlp_bias", "false", "false"),
    WEFT_UNUSED_WINDOW_KEY,
    {"no_rope_layers", WEFT_KEY_ROPED, "no_rope_freq", "4", NULL}};

static const weft_family_name names[] = {WEFT_END_NAMES, WEFT_NORM_NAMES, WEFT_QKV_NAMES("weight"),
                                         WEFT_PROJECTION_NAME, WEFT_MLP_NAMES};
static const char *const ignored[] = {WEFT_OLD_FREQUENCIES};

const weft_family weft_family_llama = {.name = "Llama",
                                       .architecture = "LlamaForCausalLM",
                                       .model_type = "llama",
                                       .rope_theta = "1e4",
                                       .build = build_llama,
                                       WEFT_ROWS(fixed, fixed),
                                       WEFT_ROWS(keys, llama_keys),
                                       WEFT_ROWS(names, names),
                                       WEFT_ROWS(ignored, ignored)};
const weft_family weft_family_mistral = {.name = "Mistral",
                                         .architecture = "MistralForCausalLM",
                                         .model_type = "mistral",
                                         .rope_theta = "1e4",
                                         .build = build_mistral,
                                         WEFT_ROWS(fixed, fixed),
                                         WEFT_ROWS(keys, mistral_keys),
                                         WEFT_ROWS(names, names),
                                         WEFT_ROWS(ignored, ignored)};
const weft_family weft_family_smollm3 = {.name = "SmolLM3",
                                         .architecture = "SmolLM3ForCausalLM",
                                         .model_type = "smollm3",
                                         .rope_theta = "2e6",
                                         .build = build_smollm3,
                                         WEFT_ROWS(fixed, fixed),
                                         WEFT_ROWS(keys, smollm3_keys),
                                         WEFT_ROWS(names, names),
                                         WEFT_ROWS(ignored, ignored)};
