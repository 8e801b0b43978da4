/* Models: a list of layers, cut into pipeline stages; and the layers that Weft has.
 *
 * A model in C is a function that adds layers:
 *
 *     static weft_status build(weft_model *model, const weft_model_options *options)
 *     {
 *         WEFT_TRY(weft_model_add_embedding(model, options));
 *         for (int64_t i = 0; i < options->num_layers; i++)
 *             WEFT_TRY(weft_model_add_block(model, options, weft_attention_create(options),
 *                                           weft_mlp_create(options)));
 *         return weft_model_add_head(model, options);
 *     }
 *
 * The first layer is on the first stage and the last on the last; Weft divides the others evenly
 * over the stages. Every rank adds all layers and initialises those of its own stage. */
#ifndef WEFT_MODEL_H
#define WEFT_MODEL_H

#include "layer.h"
#include "list.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weft_model weft_model;

typedef enum weft_normalization { WEFT_LAYERNORM, WEFT_RMSNORM } weft_normalization;
typedef enum weft_position_embedding {
    WEFT_POSITION_LEARNED,
    WEFT_POSITION_ROPE,
    WEFT_POSITION_NONE,
} weft_position_embedding;

typedef enum weft_rotary_scaling {
    WEFT_ROTARY_UNSCALED,
    WEFT_ROTARY_LINEAR,
    WEFT_ROTARY_LLAMA3,
    WEFT_ROTARY_YARN,
} weft_rotary_scaling;

/* Learnable: each head has a score of its own beside its keys' (an attention sink). */
typedef enum weft_softmax_type { WEFT_SOFTMAX_VANILLA, WEFT_SOFTMAX_LEARNABLE } weft_softmax_type;

/* Of a block's attention and MLP: before them, behind them, or both. */
typedef enum weft_norm_placement {
    WEFT_NORM_BEFORE,
    WEFT_NORM_AFTER,
    WEFT_NORM_SANDWICH,
} weft_norm_placement;

/* Whose tokens the load-balancing loss compares: a micro-batch's, each sequence's alone, or the
 * global batch's so far. */
typedef enum weft_load_balancing {
    WEFT_BALANCE_MICRO_BATCH,
    WEFT_BALANCE_SEQUENCE,
    WEFT_BALANCE_GLOBAL_BATCH
} weft_load_balancing;

typedef enum weft_router_score { WEFT_ROUTER_SOFTMAX, WEFT_ROUTER_SIGMOID } weft_router_score;

/* Section "model" of a config, in Megatron's names. "0:" says what 0 means. */
typedef struct weft_model_options {
    size_t
        struct_bytes; /* the library sets it; of a copy that a program changes: the copy's size */
    int64_t num_layers, hidden_size;
    int64_t ffn_hidden_size; /* 0: 4 * hidden_size */
    int64_t num_attention_heads;
    int64_t num_query_groups; /* 0: num_attention_heads */
    int64_t kv_channels;      /* head dimension; 0: hidden_size / num_attention_heads */
    int64_t seq_length;
    int64_t max_position_embeddings; /* 0: seq_length */
    int64_t vocab_size;              /* 0: from the data's tokenizer */
    int normalization;               /* weft_normalization */
    double norm_epsilon;
    bool swiglu;
    bool disable_bias_linear;
    bool add_qkv_bias;
    int position_embedding_type; /* weft_position_embedding */
    double rotary_base, rotary_percent;
    bool untie_embeddings_and_output_weights;
    double hidden_dropout, attention_dropout;
    double init_method_std;
    int64_t num_experts; /* 0: dense */
    int64_t moe_router_topk;
    weft_int_list moe_layer_freq; /* N: every N-th layer, from the first; or a 0/1 a layer */
    int64_t moe_ffn_hidden_size;  /* 0: ffn_hidden_size */
    bool moe_router_pre_softmax;
    double moe_aux_loss_coeff, moe_z_loss_coeff;
    double moe_expert_capacity_factor;           /* 0: dropless */
    int moe_token_drop_policy;                   /* weft_drop_policy */
    int64_t moe_shared_expert_intermediate_size; /* 0: none */
    double moe_router_forced_load;               /* for measurements; 0: the router decides */
    bool add_proj_bias;
    bool qk_layernorm, qk_layernorm_across_heads;
    double softmax_scale; /* of attention's scores; 0: 1 / sqrt(kv_channels) */
    bool rotary_interleaved;
    weft_int_list no_rope_freq; /* N: every N-th decoder layer has no rotary positions (0: all have
                                   them), or a 0/1 a layer, 1: it has none */
    int rotary_scaling_type;    /* weft_rotary_scaling */
    double rotary_scaling_factor;
    int64_t original_max_position_embeddings; /* llama3, yarn: that the model was trained with */
    double rotary_low_freq_factor, rotary_high_freq_factor; /* llama3 */
    double yarn_beta_fast, yarn_beta_slow, yarn_mscale, yarn_mscale_all_dim;
    bool yarn_correction_range_round_to_int;
    int moe_router_score_function; /* weft_router_score */
    bool moe_router_enable_expert_bias;
    double moe_router_bias_update_rate;
    int64_t moe_router_num_groups, moe_router_group_topk; /* num_groups 0: no groups */
    double moe_router_topk_scaling_factor;
    bool moe_shared_expert_gate;
    bool moe_router_bias; /* of the logits */
    bool multi_latent_attention;
    int64_t q_lora_rank, kv_lora_rank; /* q_lora_rank 0: queries have no latent */
    int64_t qk_head_dim, qk_pos_emb_head_dim, v_head_dim;
    double latent_norm_epsilon; /* 0: norm_epsilon */
    int64_t window_size; /* tokens that a windowed layer's query sees, itself included; 0: none */
    weft_int_list window_attn_skip_freq; /* N: every N-th layer has no window (0: none), or a 0/1 a
                                            layer, 1: it has one */
    int64_t attention_chunk_size;        /* windowed layers see their chunk instead; 0: no chunks */
    double rotary_base_local; /* of windowed layers, which then have no scaling; 0: rotary_base */
    double attn_logit_softcapping; /* 0: none */
    int softmax_type;              /* weft_softmax_type */
    int norm_placement;            /* weft_norm_placement */
    bool apply_layernorm_1p;       /* norms multiply by 1 + their weight */
    bool scale_embeddings;         /* by sqrt(hidden_size), rounded to the precision */
    bool add_expert_bias;          /* on the experts' linear layers */
    bool geglu, quick_geglu;       /* instead of swiglu */
    double activation_func_clamp_value, glu_linear_offset; /* 0: none */
    double final_logit_softcapping;                        /* 0: none */
    int moe_router_load_balancing_type;                    /* weft_load_balancing */
    int64_t mtp_num_layers; /* depths of multi-token prediction; 0: none */
    double mtp_loss_scaling_factor;
    const char *family; /* whose function adds the layers (<weft/family.h>); NULL: there is none */
} weft_model_options;

/* Layers copy the options, whose hidden_size must be the model's. The caller owns a layer until a
 * block or a model takes it; a second taker is refused. The create functions return NULL after an
 * error. weft_block_create and weft_model_add accept that NULL, and weft_model_add returns the
 * error. docs/layers.md has shapes and formulas. */

/* Tokens to hidden states: the vocabulary's table, and learned positions where the options ask. */
weft_layer *weft_embedding_create(const weft_model_options *options);
/* Causal self-attention, with grouped queries or multi-head latent; rotary positions where the
 * options ask. */
weft_layer *weft_attention_create(const weft_model_options *options);
/* Of a model some of whose layers have the window or the chunks: one with it, and rotary_base_local
 * where that is set; one that sees all tokens. */
weft_layer *weft_attention_create_windowed(const weft_model_options *options);
weft_layer *weft_attention_create_whole(const weft_model_options *options);
/* Of a model some of whose layers have no rotary positions: one of those. */
weft_layer *weft_attention_create_without_positions(const weft_model_options *options);
/* GELU or, gated, SwiGLU or GEGLU, of width ffn_hidden_size. */
weft_layer *weft_mlp_create(const weft_model_options *options);
/* Router, experts and, where the options ask, a shared expert. num_experts > 0. */
weft_layer *weft_moe_create(const weft_model_options *options);
/* h = x + attention(norm(x)), y = h + mlp(norm(h)), or with norms elsewhere (norm_placement). The
 * block owns both layers. `mlp` is any layer
 * that maps [rows, H] to [rows, H]: the MLP, an MoE layer or one of the user's own. */
weft_layer *weft_block_create(const weft_model_options *options, weft_layer *attention,
                              weft_layer *mlp);
/* Final norm, output projection (tied or not), vocabulary-parallel cross-entropy. */
weft_layer *weft_head_create(const weft_model_options *options);
/* Frees a layer that no model owns. NULL is legal. */
void weft_layer_destroy(weft_layer *layer);

/* Adds a layer; the model owns it from here on, also on failure. Errors: WEFT_MEMORY;
 * WEFT_CONFIG: a block or a model has it already. */
weft_status weft_model_add(weft_model *model, weft_layer *layer) WEFT_CHECKED;
weft_status weft_model_add_embedding(weft_model *model,
                                     const weft_model_options *options) WEFT_CHECKED;
weft_status weft_model_add_block(weft_model *model, const weft_model_options *options,
                                 weft_layer *attention, weft_layer *mlp) WEFT_CHECKED;
weft_status weft_model_add_head(weft_model *model, const weft_model_options *options) WEFT_CHECKED;
/* Adds to the model's head, its last layer so far, a depth of multi-token prediction with a block
 * of these layers, whose owner it is from here on. WEFT_CONFIG: the last layer is no head. */
weft_status weft_model_add_mtp(weft_model *model, const weft_model_options *options,
                               weft_layer *attention, weft_layer *mlp) WEFT_CHECKED;
/* Whether moe_layer_freq makes decoder layer `index` an MoE layer. */
bool weft_model_is_moe_layer(const weft_model_options *options, int64_t index);
/* Whether attention of decoder layer `index` has the window, or the chunks. */
bool weft_model_is_windowed_layer(const weft_model_options *options, int64_t index);
/* Whether no_rope_freq leaves decoder layer `index` its rotary positions, where the model has any.
 */
bool weft_model_is_roped_layer(const weft_model_options *options, int64_t index);

/* Adds all layers of a model, the same on every rank. Its errors end the job before a step. */
typedef weft_status (*weft_model_function)(weft_model *model, const weft_model_options *options);
/* The struct that the application's own section filled (<weft/application.h>); NULL: it has none.
 * Borrowed; lives as long as the model. */
const void *weft_model_own_options(const weft_model *model);
/* The model that the options describe, whose config names no family. */
weft_status weft_model_build_gpt(weft_model *model, const weft_model_options *options) WEFT_CHECKED;

#ifdef __cplusplus
}
#endif
#endif
