/* Rows for the tables of families (<weft/family.h>), and groups of rows that many families have. A
 * family's file includes this header itself; <weft/weft.h> does not. */
#ifndef WEFT_FAMILY_ROWS_H
#define WEFT_FAMILY_ROWS_H

#include "family.h"

/* WEFT_ROWS(keys, qwen3_keys): .keys, and how many there are. */
#define WEFT_ROWS(field, table) .field = table, .num_##field = sizeof(table) / sizeof *(table)

/* --- keys: config.json's, Weft's, and what it means that the file lacks it ------------------- */

#define WEFT_SAME(key, weft, missing)                                                              \
    {                                                                                              \
        key, WEFT_KEY_SAME, weft, missing, NULL                                                    \
    }
#define WEFT_NOT(key, weft, missing)                                                               \
    {                                                                                              \
        key, WEFT_KEY_NOT, weft, missing, NULL                                                     \
    }
#define WEFT_OR_NONE(key, weft, missing)                                                           \
    {                                                                                              \
        key, WEFT_KEY_OR_NONE, weft, missing, NULL                                                 \
    }
#define WEFT_OR_ONE(key, weft, missing)                                                            \
    {                                                                                              \
        key, WEFT_KEY_OR_ONE, weft, missing, NULL                                                  \
    }
/* What Weft has alone; other values are refused. */
#define WEFT_ONLY(key, missing, values)                                                            \
    {                                                                                              \
        key, WEFT_KEY_ONLY, NULL, missing, values                                                  \
    }

#define WEFT_BODY_KEYS                                                                             \
    WEFT_SAME("hidden_size", "hidden_size", NULL),                                                 \
        WEFT_SAME("intermediate_size", "ffn_hidden_size", NULL),                                   \
        WEFT_SAME("num_hidden_layers", "num_layers", NULL),                                        \
        WEFT_SAME("num_attention_heads", "num_attention_heads", NULL),                             \
        WEFT_SAME("vocab_size", "vocab_size", NULL),                                               \
        WEFT_SAME("max_position_embeddings", "max_position_embeddings", NULL),                     \
        WEFT_SAME("attention_dropout", "attention_dropout", "0"),                                  \
        WEFT_SAME("initializer_range", "init_method_std", "0.02")
#define WEFT_TIED_KEY(missing)                                                                     \
    WEFT_NOT("tie_word_embeddings", "untie_embeddings_and_output_weights", missing)
#define WEFT_SILU_KEY WEFT_ONLY("hidden_act", "\"silu\"", "\"silu\"|\"swish\"")
/* Grouped queries, and the norms' epsilon. */
#define WEFT_GROUPS_KEY(missing) WEFT_SAME("num_key_value_heads", "num_query_groups", missing)
#define WEFT_NORM_KEY(missing) WEFT_SAME("rms_norm_eps", "norm_epsilon", missing)
#define WEFT_NO_QKV_BIAS_KEY WEFT_ONLY("attention_bias", "false", "false")
/* Layers with a window: its tokens, and which layers see all; or each layer sees all. */
#define WEFT_WINDOW_KEY(missing) WEFT_OR_NONE("sliding_window", "window_size", missing)
#define WEFT_WINDOWED_LAYERS_KEY(every)                                                            \
    {                                                                                              \
        "layer_types", WEFT_KEY_LAYERS, "window_attn_skip_freq", every, NULL                       \
    }
#define WEFT_WHOLE_LAYERS_KEY                                                                      \
    {                                                                                              \
        "layer_types", WEFT_KEY_EACH, NULL, "\"full_attention\"", "\"full_attention\""             \
    }
#define WEFT_UNUSED_WINDOW_KEY WEFT_ONLY("use_sliding_window", "false", "false")
/* Of Llama and many others. */
#define WEFT_DECODER_KEYS                                                                          \
    WEFT_BODY_KEYS, WEFT_TIED_KEY("false"), WEFT_SILU_KEY, WEFT_WHOLE_LAYERS_KEY

/* --- names: the files' tensor, the model's parameter, and what of it the tensor is ------------ */

#define WEFT_WHOLE(file, parameter)                                                                \
    {                                                                                              \
        file, parameter, WEFT_NAME_WHOLE, false                                                    \
    }
#define WEFT_PART(file, parameter, layout)                                                         \
    {                                                                                              \
        file, parameter, WEFT_NAME_##layout, false                                                 \
    }
/* The file has [in, out]. */
#define WEFT_TRANSPOSED(file, parameter, layout)                                                   \
    {                                                                                              \
        file, parameter, WEFT_NAME_##layout, true                                                  \
    }

#define WEFT_THEIRS "model.layers.{layer}."
#define WEFT_OURS "decoder.layers.{layer}."
#define WEFT_WORDS "embedding.word_embeddings.weight"
#define WEFT_END_NAMES                                                                             \
    WEFT_WHOLE("model.embed_tokens.weight", WEFT_WORDS),                                           \
        WEFT_WHOLE("model.norm.weight", "decoder.final_layernorm.weight"),                         \
        WEFT_WHOLE("lm_head.weight", "output_layer.weight"),                                       \
        WEFT_PART("lm_head.weight", WEFT_WORDS, COPY)
#define WEFT_NORM_NAMES                                                                            \
    WEFT_WHOLE(WEFT_THEIRS "input_layernorm.weight", WEFT_OURS "input_layernorm.weight"),          \
        WEFT_WHOLE(WEFT_THEIRS "post_attention_layernorm.weight",                                  \
                   WEFT_OURS "pre_mlp_layernorm.weight")
/* Of norms behind attention and MLP. */
#define WEFT_NORM_AFTER_NAMES                                                                      \
    WEFT_WHOLE(WEFT_THEIRS "post_attention_layernorm.weight",                                      \
               WEFT_OURS "post_self_attn_layernorm.weight"),                                       \
        WEFT_WHOLE(WEFT_THEIRS "post_feedforward_layernorm.weight",                                \
                   WEFT_OURS "post_mlp_layernorm.weight")
/* what: weight or bias. */
#define WEFT_QKV_NAMES(what)                                                                       \
    WEFT_PART(WEFT_THEIRS "self_attn.q_proj." what, WEFT_OURS "self_attention.linear_qkv." what,   \
              QUERY),                                                                              \
        WEFT_PART(WEFT_THEIRS "self_attn.k_proj." what,                                            \
                  WEFT_OURS "self_attention.linear_qkv." what, KEY),                               \
        WEFT_PART(WEFT_THEIRS "self_attn.v_proj." what,                                            \
                  WEFT_OURS "self_attention.linear_qkv." what, VALUE)
#define WEFT_QK_NORM_NAMES                                                                         \
    WEFT_WHOLE(WEFT_THEIRS "self_attn.q_norm.weight",                                              \
               WEFT_OURS "self_attention.q_layernorm.weight"),                                     \
        WEFT_WHOLE(WEFT_THEIRS "self_attn.k_norm.weight",                                          \
                   WEFT_OURS "self_attention.k_layernorm.weight")
#define WEFT_PROJECTION_NAME                                                                       \
    WEFT_WHOLE(WEFT_THEIRS "self_attn.o_proj.weight", WEFT_OURS "self_attention.linear_proj."      \
                                                                "weight")
/* A gated MLP `theirs`, such as "mlp.", that is `ours` here. */
#define WEFT_GATED_NAMES(theirs, ours)                                                             \
    WEFT_PART(WEFT_THEIRS theirs "gate_proj.weight", WEFT_OURS ours "linear_fc1.weight", GATE),    \
        WEFT_PART(WEFT_THEIRS theirs "up_proj.weight", WEFT_OURS ours "linear_fc1.weight", UP),    \
        WEFT_WHOLE(WEFT_THEIRS theirs "down_proj.weight", WEFT_OURS ours "linear_fc2.weight")
#define WEFT_MLP_NAMES WEFT_GATED_NAMES("mlp.", "mlp.")
/* moe: the module's name; g, u, d: what an expert's matrices are called. The last two are what
 * transformers 5 has in memory, and writes where it is told not to convert back. */
#define WEFT_EXPERT_NAMES(moe, g, u, d)                                                            \
    WEFT_WHOLE(WEFT_THEIRS moe ".gate.weight", WEFT_OURS "mlp.router.weight"),                     \
        WEFT_PART(WEFT_THEIRS moe ".experts.{expert}." g ".weight",                                \
                  WEFT_OURS "mlp.experts.linear_fc1.weight", GATE),                                \
        WEFT_PART(WEFT_THEIRS moe ".experts.{expert}." u ".weight",                                \
                  WEFT_OURS "mlp.experts.linear_fc1.weight", UP),                                  \
        WEFT_WHOLE(WEFT_THEIRS moe ".experts.{expert}." d ".weight",                               \
                   WEFT_OURS "mlp.experts.linear_fc2.weight"),                                     \
        WEFT_PART(WEFT_THEIRS "mlp.experts.gate_up_proj",                                          \
                  WEFT_OURS "mlp.experts.linear_fc1.weight", GATE_UP),                             \
        WEFT_WHOLE(WEFT_THEIRS "mlp.experts.down_proj", WEFT_OURS "mlp.experts.linear_fc2.weight")
/* Of a router whose bias chooses. */
#define WEFT_CHOICE_BIAS_NAME(moe)                                                                 \
    WEFT_WHOLE(WEFT_THEIRS moe ".gate.e_score_correction_bias", WEFT_OURS "mlp.router.expert_"     \
                                                                          "bias")
/* Of layers behind the last one, whose block is as another's. */
#define WEFT_MTP_NAMES                                                                             \
    WEFT_WHOLE(WEFT_THEIRS "enorm.weight", "mtp.layers.{layer}.enorm.weight"),                     \
        WEFT_WHOLE(WEFT_THEIRS "hnorm.weight", "mtp.layers.{layer}.hnorm.weight"),                 \
        WEFT_WHOLE(WEFT_THEIRS "eh_proj.weight", "mtp.layers.{layer}.eh_proj.weight"),             \
        WEFT_WHOLE(WEFT_THEIRS "shared_head.norm.weight",                                          \
                   "mtp.layers.{layer}.final_layernorm.weight"),                                   \
        WEFT_PART(WEFT_THEIRS "embed_tokens.weight", WEFT_WORDS, COPY),                            \
        WEFT_PART(WEFT_THEIRS "shared_head.head.weight", "output_layer.weight", COPY)

/* What old files have, and is no parameter. */
#define WEFT_OLD_FREQUENCIES WEFT_THEIRS "self_attn.rotary_emb.inv_freq"

#endif
