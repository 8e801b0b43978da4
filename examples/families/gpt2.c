/* GPT-2 (Radford et al. 2019): learned positions, LayerNorm before attention and MLP, GELU, biases
 * everywhere, and a head that is the embedding. */
#include <weft/family_rows.h>
#include <weft/weft.h>

static weft_status build(weft_model *model, const weft_model_options *options)
{
    WEFT_TRY(weft_model_add_embedding(model, options));
    for (int64_t i = 0; i < options->num_layers; i++)
        WEFT_TRY(weft_model_add_block(model, options, weft_attention_create(options),
                                      weft_mlp_create(options)));
    return weft_model_add_head(model, options);
}

static const weft_family_fixed fixed[] = {{"normalization", "\"LayerNorm\""},
                                          {"position_embedding_type", "\"learned_absolute\""},
                                          {"swiglu", "false"},
                                          {"disable_bias_linear", "false"}};

static const weft_family_key keys[] = {
    WEFT_SAME("n_embd", "hidden_size", NULL),
    WEFT_SAME("n_layer", "num_layers", NULL),
    WEFT_SAME("n_head", "num_attention_heads", NULL),
    WEFT_SAME("n_positions", "max_position_embeddings", NULL),
    WEFT_SAME("n_inner", "ffn_hidden_size", ""),
    WEFT_SAME("vocab_size", "vocab_size", NULL),
    WEFT_SAME("layer_norm_epsilon", "norm_epsilon", "1e-5"),
    WEFT_SAME("resid_pdrop", "hidden_dropout", "0.1"),
    WEFT_SAME("attn_pdrop", "attention_dropout", "0.1"),
    WEFT_SAME("initializer_range", "init_method_std", "0.02"),
    WEFT_TIED_KEY("true"),
    WEFT_ONLY("activation_function", "\"gelu_new\"",
              "\"gelu_new\"|\"gelu_pytorch_tanh\"|\"gelu_fast\""),
    WEFT_ONLY("scale_attn_weights", "true", "true"),
    WEFT_ONLY("scale_attn_by_inverse_layer_idx", "false", "false"),
    WEFT_ONLY("add_cross_attention", "false", "false")};

#define THEIRS "transformer.h.{layer}."
#define ATTENTION WEFT_OURS "self_attention."
#define MLP WEFT_OURS "mlp."
static const weft_family_name names[] = {
    WEFT_WHOLE("transformer.wte.weight", WEFT_WORDS),
    WEFT_WHOLE("transformer.wpe.weight", "embedding.position_embeddings.weight"),
    WEFT_WHOLE("transformer.ln_f.weight", "decoder.final_layernorm.weight"),
    WEFT_WHOLE("transformer.ln_f.bias", "decoder.final_layernorm.bias"),
    WEFT_WHOLE("lm_head.weight", "output_layer.weight"),
    WEFT_PART("lm_head.weight", WEFT_WORDS, COPY),
    WEFT_WHOLE(THEIRS "ln_1.weight", WEFT_OURS "input_layernorm.weight"),
    WEFT_WHOLE(THEIRS "ln_1.bias", WEFT_OURS "input_layernorm.bias"),
    WEFT_WHOLE(THEIRS "ln_2.weight", WEFT_OURS "pre_mlp_layernorm.weight"),
    WEFT_WHOLE(THEIRS "ln_2.bias", WEFT_OURS "pre_mlp_layernorm.bias"),
    WEFT_TRANSPOSED(THEIRS "attn.c_attn.weight", ATTENTION "linear_qkv.weight", QKV),
    WEFT_PART(THEIRS "attn.c_attn.bias", ATTENTION "linear_qkv.bias", QKV),
    WEFT_TRANSPOSED(THEIRS "attn.c_proj.weight", ATTENTION "linear_proj.weight", WHOLE),
    WEFT_WHOLE(THEIRS "attn.c_proj.bias", ATTENTION "linear_proj.bias"),
    WEFT_TRANSPOSED(THEIRS "mlp.c_fc.weight", MLP "linear_fc1.weight", WHOLE),
    WEFT_WHOLE(THEIRS "mlp.c_fc.bias", MLP "linear_fc1.bias"),
    WEFT_TRANSPOSED(THEIRS "mlp.c_proj.weight", MLP "linear_fc2.weight", WHOLE),
    WEFT_WHOLE(THEIRS "mlp.c_proj.bias", MLP "linear_fc2.bias")};

static const char *const ignored[] = {THEIRS "attn.bias", THEIRS "attn.masked_bias"};

const weft_family weft_family_gpt2 = {.name = "GPT-2",
                                      .architecture = "GPT2LMHeadModel",
                                      .model_type = "gpt2",
                                      .root = "transformer.",
                                      .other_root = "",
                                      .build = build,
                                      WEFT_ROWS(fixed, fixed),
                                      WEFT_ROWS(keys, keys),
                                      WEFT_ROWS(names, names),
                                      WEFT_ROWS(ignored, ignored)};
