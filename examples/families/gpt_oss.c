/* GPT-OSS (OpenAI 2025): layers with a window and whole ones in turn, each head with an attention
 * sink; experts in all layers, whose gate is clamped and multiplied by up + 1; biases everywhere.
 */
#include <weft/family_rows.h>
#include <weft/weft.h>

static weft_status build(weft_model *model, const weft_model_options *options)
{
    WEFT_TRY(weft_model_add_embedding(model, options));
    for (int64_t i = 0; i < options->num_layers; i++) {
        weft_layer *attention = weft_model_is_windowed_layer(options, i)
                                    ? weft_attention_create_windowed(options)
                                    : weft_attention_create_whole(options);
        WEFT_TRY(weft_model_add_block(model, options, attention, weft_moe_create(options)));
    }
    return weft_model_add_head(model, options);
}

static const weft_family_fixed fixed[] = {{"normalization", "\"RMSNorm\""},
                                          {"disable_bias_linear", "true"},
                                          {"position_embedding_type", "\"rope\""},
                                          {"quick_geglu", "true"},
                                          {"glu_linear_offset", "1"},
                                          {"softmax_type", "\"learnable\""},
                                          {"add_qkv_bias", "true"},
                                          {"add_proj_bias", "true"},
                                          {"add_expert_bias", "true"},
                                          {"moe_router_bias", "true"}};

static const weft_family_key keys[] = {
    WEFT_BODY_KEYS,
    WEFT_TIED_KEY("false"),
    WEFT_SILU_KEY,
    WEFT_SAME("head_dim", "kv_channels", "64"),
    WEFT_GROUPS_KEY("8"),
    WEFT_NORM_KEY("1e-5"),
    {"sliding_window", WEFT_KEY_OR_NONE, "window_size", "128", "128"}, /* null does not run there */
    WEFT_WINDOWED_LAYERS_KEY("2"),
    WEFT_SAME("num_local_experts|num_experts", "num_experts", "128"),
    WEFT_SAME("num_experts_per_tok|experts_per_token", "moe_router_topk", "4"),
    {"swiglu_limit", WEFT_KEY_BOUND, "activation_func_clamp_value", "7.0", NULL},
    WEFT_ONLY("swiglu_alpha", "1.702", "1.702"),
    WEFT_ONLY("attention_bias", "true", "true")};

/* Blocks of MXFP4 have [out, in], what transformers makes of them [in, out]. */
#define THEIRS WEFT_THEIRS "mlp."
#define OURS WEFT_OURS "mlp."
static const weft_family_name names[] = {
    WEFT_END_NAMES,
    WEFT_NORM_NAMES,
    WEFT_QKV_NAMES("weight"),
    WEFT_QKV_NAMES("bias"),
    WEFT_PROJECTION_NAME,
    WEFT_WHOLE(WEFT_THEIRS "self_attn.o_proj.bias", WEFT_OURS "self_attention.linear_proj.bias"),
    WEFT_WHOLE(WEFT_THEIRS "self_attn.sinks",
               WEFT_OURS "self_attention.core_attention.softmax_offset"),
    WEFT_WHOLE(THEIRS "router.weight", OURS "router.weight"),
    WEFT_WHOLE(THEIRS "router.bias", OURS "router.bias"),
    WEFT_TRANSPOSED(THEIRS "experts.gate_up_proj", OURS "experts.linear_fc1.weight", PAIRS),
    WEFT_PART(THEIRS "experts.gate_up_proj_blocks", OURS "experts.linear_fc1.weight", PAIRS),
    WEFT_PART(THEIRS "experts.gate_up_proj_bias", OURS "experts.linear_fc1.bias", PAIRS),
    WEFT_TRANSPOSED(THEIRS "experts.down_proj", OURS "experts.linear_fc2.weight", WHOLE),
    WEFT_WHOLE(THEIRS "experts.down_proj_blocks", OURS "experts.linear_fc2.weight"),
    WEFT_WHOLE(THEIRS "experts.down_proj_bias", OURS "experts.linear_fc2.bias")};
static const char *const ignored[] = {WEFT_OLD_FREQUENCIES};

const weft_family weft_family_gpt_oss = {.name = "GPT-OSS",
                                         .architecture = "GptOssForCausalLM",
                                         .model_type = "gpt_oss",
                                         .rope_theta = "1.5e5",
                                         .must_scale = true,
                                         .build = build,
                                         WEFT_ROWS(fixed, fixed),
                                         WEFT_ROWS(keys, keys),
                                         WEFT_ROWS(names, names),
                                         WEFT_ROWS(ignored, ignored)};
