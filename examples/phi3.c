/* Phi-3, a family that weft does not know: a model in C, and beside it the tables by which its
 * files at Hugging Face's are read and written. The program has weft's verbs, with the family:
 *
 *     example_phi3 import Phi-3-mini-4k-instruct --out phi
 *     example_phi3 train phi/config.json --out run --set data.data_path=corpus
 *     example_phi3 export run --out trained
 *
 * Phi-3 is Llama with queries, keys and values in one matrix, and gate and up in another. */
#include <weft/weft.h>

#define COUNT(rows) (sizeof(rows) / sizeof *(rows))

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

/* config.json's key, what it becomes, Weft's key, what it means that the file lacks it, and the
 * values that the model above is for. */
static const weft_family_key phi3_keys[] = {
    {"hidden_size", WEFT_KEY_SAME, "hidden_size", NULL, NULL},
    {"intermediate_size", WEFT_KEY_SAME, "ffn_hidden_size", NULL, NULL},
    {"num_hidden_layers", WEFT_KEY_SAME, "num_layers", NULL, NULL},
    {"num_attention_heads", WEFT_KEY_SAME, "num_attention_heads", NULL, NULL},
    {"num_key_value_heads", WEFT_KEY_SAME, "num_query_groups", "", NULL},
    {"vocab_size", WEFT_KEY_SAME, "vocab_size", NULL, NULL},
    {"max_position_embeddings", WEFT_KEY_SAME, "max_position_embeddings", NULL, NULL},
    {"rms_norm_eps", WEFT_KEY_SAME, "norm_epsilon", "1e-5", NULL},
    {"attention_dropout", WEFT_KEY_SAME, "attention_dropout", "0", NULL},
    {"resid_pdrop", WEFT_KEY_SAME, "hidden_dropout", "0", NULL},
    {"initializer_range", WEFT_KEY_SAME, "init_method_std", "0.02", NULL},
    {"tie_word_embeddings", WEFT_KEY_NOT, "untie_embeddings_and_output_weights", "false", NULL},
    {"hidden_act", WEFT_KEY_ONLY, NULL, "\"silu\"", "\"silu\""},
    {"embd_pdrop", WEFT_KEY_ONLY, NULL, "0.0", "0.0|0"},
    {"sliding_window", WEFT_KEY_ONLY, NULL, "null", "null"}};

/* The files' tensor, the model's parameter, and what of the parameter the tensor is. */
#define THEIRS "model.layers.{layer}."
#define OURS "decoder.layers.{layer}."
static const weft_family_name phi3_names[] = {
    {"model.embed_tokens.weight", "embedding.word_embeddings.weight", WEFT_NAME_WHOLE, false},
    {"model.norm.weight", "decoder.final_layernorm.weight", WEFT_NAME_WHOLE, false},
    {"lm_head.weight", "output_layer.weight", WEFT_NAME_WHOLE, false},
    {THEIRS "input_layernorm.weight", OURS "input_layernorm.weight", WEFT_NAME_WHOLE, false},
    {THEIRS "post_attention_layernorm.weight", OURS "pre_mlp_layernorm.weight", WEFT_NAME_WHOLE,
     false},
    {THEIRS "self_attn.qkv_proj.weight", OURS "self_attention.linear_qkv.weight", WEFT_NAME_QKV,
     false},
    {THEIRS "self_attn.o_proj.weight", OURS "self_attention.linear_proj.weight", WEFT_NAME_WHOLE,
     false},
    {THEIRS "mlp.gate_up_proj.weight", OURS "mlp.linear_fc1.weight", WEFT_NAME_GATE_UP, false},
    {THEIRS "mlp.down_proj.weight", OURS "mlp.linear_fc2.weight", WEFT_NAME_WHOLE, false}};

static const weft_family phi3 = {.name = "Phi-3",
                                 .architecture = "Phi3ForCausalLM",
                                 .model_type = "phi3",
                                 .rope_theta = "1e4",
                                 .fixed = phi3_fixed,
                                 .num_fixed = COUNT(phi3_fixed),
                                 .keys = phi3_keys,
                                 .num_keys = COUNT(phi3_keys),
                                 .names = phi3_names,
                                 .num_names = COUNT(phi3_names)};

static const weft_family *const families[] = {&phi3};
static const weft_application application = {.struct_bytes = sizeof application,
                                             .build = build,
                                             .families = families,
                                             .num_families = COUNT(families)};

int main(int argc, char **argv)
{
    return weft_application_main(argc, argv, &application);
}
