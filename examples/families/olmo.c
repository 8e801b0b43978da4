/* OLMo-2 (OLMo et al. 2024): norms behind attention and MLP, and of a token's queries and keys over
 * all heads. OLMo-3 (2025): three layers of four with a window, whose positions are not scaled. */
#include <weft/family_rows.h>
#include <weft/weft.h>

static weft_status build_olmo2(weft_model *model, const weft_model_options *options)
{
    WEFT_TRY(weft_model_add_embedding(model, options));
    for (int64_t i = 0; i < options->num_layers; i++)
        WEFT_TRY(weft_model_add_block(model, options, weft_attention_create(options),
                                      weft_mlp_create(options)));
    return weft_model_add_head(model, options);
}

static weft_status build_olmo3(weft_model *model, const weft_model_options *options)
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

static const weft_family_fixed fixed[] = {{"normalization", "\"RMSNorm\""},
                                          {"norm_placement", "\"after\""},
                                          {"qk_layernorm", "true"},
                                          {"qk_layernorm_across_heads", "true"},
                                          {"disable_bias_linear", "true"},
                                          {"position_embedding_type", "\"rope\""},
                                          {"swiglu", "true"}};

static const weft_family_key olmo2_keys[] = {WEFT_DECODER_KEYS, WEFT_GROUPS_KEY(""),
                                             WEFT_NORM_KEY("1e-5"), WEFT_NO_QKV_BIAS_KEY};
static const weft_family_key olmo3_keys[] = {WEFT_BODY_KEYS,
                                             WEFT_TIED_KEY("false"),
                                             WEFT_SILU_KEY,
                                             WEFT_GROUPS_KEY(""),
                                             WEFT_NORM_KEY("1e-5"),
                                             WEFT_WINDOW_KEY("4096"),
                                             WEFT_WINDOWED_LAYERS_KEY("4"),
                                             WEFT_NO_QKV_BIAS_KEY};

static const weft_family_name names[] = {WEFT_END_NAMES,           WEFT_NORM_AFTER_NAMES,
                                         WEFT_QKV_NAMES("weight"), WEFT_QK_NORM_NAMES,
                                         WEFT_PROJECTION_NAME,     WEFT_MLP_NAMES};
static const char *const ignored[] = {WEFT_OLD_FREQUENCIES};

const weft_family weft_family_olmo2 = {.name = "OLMo-2",
                                       .architecture = "Olmo2ForCausalLM",
                                       .model_type = "olmo2",
                                       .rope_theta = "5e5",
                                       .build = build_olmo2,
                                       WEFT_ROWS(fixed, fixed),
                                       WEFT_ROWS(keys, olmo2_keys),
                                       WEFT_ROWS(names, names),
                                       WEFT_ROWS(ignored, ignored)};
const weft_family weft_family_olmo3 = {.name = "OLMo-3",
                                       .architecture = "Olmo3ForCausalLM",
                                       .model_type = "olmo3",
                                       .rope_theta = "5e5",
                                       .rope_local = "",
                                       .build = build_olmo3,
                                       WEFT_ROWS(fixed, fixed),
                                       WEFT_ROWS(keys, olmo3_keys),
                                       WEFT_ROWS(names, names),
                                       WEFT_ROWS(ignored, ignored)};
