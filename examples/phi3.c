/* Phi-3, a family that weft does not know: what examples/families has of others, and a main. The
 * program has weft's verbs, with the family:
 *
 *     example_phi3 import Phi-3-mini-4k-instruct --out phi
 *     example_phi3 train phi/config.json --out run --set data.data_path=corpus
 *     example_phi3 export run --out trained
 *
 * Phi-3 is Llama with queries, keys and values in one matrix, and gate and up in another. */
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

/* What every model of the family has. */
static const weft_family_fixed phi3_fixed[] = {{"normalization", "\"RMSNorm\""},
                                               {"swiglu", "true"},
                                               {"disable_bias_linear", "true"},
                                               {"position_embedding_type", "\"rope\""}};

/* config.json's key, Weft's key, what it means that the file lacks it; and values that the model
 * above is for. */
static const weft_family_key phi3_keys[] = {
    WEFT_SAME("hidden_size", "hidden_size", NULL),
    WEFT_SAME("intermediate_size", "ffn_hidden_size", NULL),
    WEFT_SAME("num_hidden_layers", "num_layers", NULL),
    WEFT_SAME("num_attention_heads", "num_attention_heads", NULL),
    WEFT_SAME("num_key_value_heads", "num_query_groups", ""),
    WEFT_SAME("vocab_size", "vocab_size", NULL),
    WEFT_SAME("max_position_embeddings", "max_position_embeddings", NULL),
    WEFT_SAME("rms_norm_eps", "norm_epsilon", "1e-5"),
    WEFT_SAME("attention_dropout", "attention_dropout", "0"),
    WEFT_SAME("resid_pdrop", "hidden_dropout", "0"),
    WEFT_SAME("initializer_range", "init_method_std", "0.02"),
    WEFT_NOT("tie_word_embeddings", "untie_embeddings_and_output_weights", "false"),
    WEFT_ONLY("hidden_act", "\"silu\"", "\"silu\""),
    WEFT_ONLY("embd_pdrop", "0.0", "0.0|0"),
    WEFT_ONLY("sliding_window", "null", "null")};

/* The files' tensor, the model's parameter, and what of the parameter the tensor is. */
#define THEIRS "model.layers.{layer}."
#define OURS "decoder.layers.{layer}."
static const weft_family_name phi3_names[] = {
    WEFT_WHOLE("model.embed_tokens.weight", "embedding.word_embeddings.weight"),
    WEFT_WHOLE("model.norm.weight", "decoder.final_layernorm.weight"),
    WEFT_WHOLE("lm_head.weight", "output_layer.weight"),
    WEFT_WHOLE(THEIRS "input_layernorm.weight", OURS "input_layernorm.weight"),
    WEFT_WHOLE(THEIRS "post_attention_layernorm.weight", OURS "pre_mlp_layernorm.weight"),
    WEFT_PART(THEIRS "self_attn.qkv_proj.weight", OURS "self_attention.linear_qkv.weight", QKV),
    WEFT_WHOLE(THEIRS "self_attn.o_proj.weight", OURS "self_attention.linear_proj.weight"),
    WEFT_PART(THEIRS "mlp.gate_up_proj.weight", OURS "mlp.linear_fc1.weight", GATE_UP),
    WEFT_WHOLE(THEIRS "mlp.down_proj.weight", OURS "mlp.linear_fc2.weight")};

static const weft_family phi3 = {.name = "Phi-3",
                                 .architecture = "Phi3ForCausalLM",
                                 .model_type = "phi3",
                                 .rope_theta = "1e4",
                                 .build = build,
                                 WEFT_ROWS(fixed, phi3_fixed),
                                 WEFT_ROWS(keys, phi3_keys),
                                 WEFT_ROWS(names, phi3_names)};

static const weft_family *const families[] = {&phi3};
static const weft_application application = {.struct_bytes = sizeof application,
                                             WEFT_ROWS(families, families)};

int main(int argc, char **argv)
{
    return weft_application_main(argc, argv, &application);
}
