/* The tables. A family's config keys and names stand beside each other; what families share is said
 * once, as macros of rows. */
#include "launcher/models/families.h"

#define COUNT(rows) (sizeof(rows) / sizeof *(rows))

/* --- keys of config.json ------------------------------------------------------------------- */

#define SAME(key, weft, missing)                                                                   \
    {                                                                                              \
        key, WEFT_KEY_SAME, weft, missing, NULL                                                    \
    }
#define NOT(key, weft, missing)                                                                    \
    {                                                                                              \
        key, WEFT_KEY_NOT, weft, missing, NULL                                                     \
    }
#define ONLY(key, missing, values)                                                                 \
    {                                                                                              \
        key, WEFT_KEY_ONLY, NULL, missing, values                                                  \
    }
#define EACH(key, missing, values)                                                                 \
    {                                                                                              \
        key, WEFT_KEY_EACH, NULL, missing, values                                                  \
    }

#define LAYERS(every)                                                                              \
    {                                                                                              \
        "layer_types", WEFT_KEY_LAYERS, "window_attn_skip_freq", every, NULL                       \
    }
#define OR_NONE(key, weft, missing)                                                                \
    {                                                                                              \
        key, WEFT_KEY_OR_NONE, weft, missing, NULL                                                 \
    }
#define WINDOW(missing) OR_NONE("sliding_window", "window_size", missing)
#define ROOT(key, weft, missing)                                                                   \
    {                                                                                              \
        key, WEFT_KEY_ROOT, weft, missing, NULL                                                    \
    }
#define BODY_KEYS                                                                                  \
    SAME("hidden_size", "hidden_size", NULL), SAME("intermediate_size", "ffn_hidden_size", NULL),  \
        SAME("num_hidden_layers", "num_layers", NULL),                                             \
        SAME("num_attention_heads", "num_attention_heads", NULL),                                  \
        SAME("vocab_size", "vocab_size", NULL),                                                    \
        SAME("max_position_embeddings", "max_position_embeddings", NULL),                          \
        SAME("attention_dropout", "attention_dropout", "0"),                                       \
        SAME("initializer_range", "init_method_std", "0.02")
#define TIED(missing) NOT("tie_word_embeddings", "untie_embeddings_and_output_weights", missing)
#define SILU ONLY("hidden_act", "\"silu\"", "\"silu\"|\"swish\"")
#define ALL_FULL EACH("layer_types", "\"full_attention\"", "\"full_attention\"")
#define DECODER_KEYS BODY_KEYS, TIED("false"), SILU, ALL_FULL

#define HEAD_DIM(missing) SAME("head_dim", "kv_channels", missing)
#define RMS_NORM(missing) SAME("rms_norm_eps", "norm_epsilon", missing)
#define NO_BIAS ONLY("attention_bias", "false", "false"), ONLY("mlp_bias", "false", "false")
#define GROUPS(missing) SAME("num_key_value_heads", "num_query_groups", missing)
#define NO_WINDOW(missing) ONLY("sliding_window", missing, "null")
/* A window that is there and not used. */
#define UNUSED_WINDOW ONLY("use_sliding_window", "false", "false")

/* Of all but GPT-2. */
#define ROTARY_FIXED                                                                               \
    {"normalization", "\"RMSNorm\""}, {"disable_bias_linear", "true"},                             \
    {                                                                                              \
        "position_embedding_type", "\"rope\""                                                      \
    }
#define DECODER_FIXED                                                                              \
    ROTARY_FIXED,                                                                                  \
    {                                                                                              \
        "swiglu", "true"                                                                           \
    }
#define AFTER                                                                                      \
    {                                                                                              \
        "norm_placement", "\"after\""                                                              \
    }
#define QK_NORM                                                                                    \
    {                                                                                              \
        "qk_layernorm", "true"                                                                     \
    }

static const weft_family_fixed llama_fixed[] = {DECODER_FIXED};
static const weft_family_key llama_keys[] = {DECODER_KEYS, HEAD_DIM(""),
                                             GROUPS(""),   RMS_NORM("1e-6"),
                                             NO_BIAS,      ONLY("pretraining_tp", "1", "1")};
/* transformers takes one whose layers differ for its own Ministral. */
static const weft_family_key mistral_keys[] = {BODY_KEYS,      TIED("false"), SILU,
                                               HEAD_DIM(""),   GROUPS("8"),   RMS_NORM("1e-6"),
                                               WINDOW("4096"), LAYERS("")};

static const weft_family_key smollm3_keys[] = {
    BODY_KEYS,
    TIED("true"),
    SILU,
    ALL_FULL,
    HEAD_DIM(""),
    GROUPS("4"),
    RMS_NORM("1e-6"),
    NO_BIAS,
    UNUSED_WINDOW,
    {"no_rope_layers", WEFT_KEY_ROPED, "no_rope_freq", "4", NULL}};

static const weft_family_fixed olmo_fixed[] = {
    DECODER_FIXED, AFTER, QK_NORM, {"qk_layernorm_across_heads", "true"}};
static const weft_family_key olmo2_keys[] = {DECODER_KEYS, GROUPS(""), RMS_NORM("1e-5"),
                                             ONLY("attention_bias", "false", "false")};
static const weft_family_key olmo3_keys[] = {
    BODY_KEYS,        TIED("false"),  SILU,        GROUPS(""),
    RMS_NORM("1e-5"), WINDOW("4096"), LAYERS("4"), ONLY("attention_bias", "false", "false")};

#define GEMMA_FIXED                                                                                \
    ROTARY_FIXED, {"geglu", "true"}, {"norm_placement", "\"sandwich\""},                           \
        {"apply_layernorm_1p", "true"},                                                            \
    {                                                                                              \
        "scale_embeddings", "true"                                                                 \
    }
#define GEMMA_KEYS                                                                                 \
    BODY_KEYS, TIED("true"), HEAD_DIM("256"), GROUPS("4"), RMS_NORM("1e-6"), WINDOW("4096"),       \
        ROOT("query_pre_attn_scalar", "softmax_scale", "256"),                                     \
        ONLY("hidden_activation", "\"gelu_pytorch_tanh\"", "\"gelu_pytorch_tanh\""),               \
        ONLY("attention_bias", "false", "false"),                                                  \
        ONLY("use_bidirectional_attention", "false", "false|null")
static const weft_family_fixed gemma2_fixed[] = {GEMMA_FIXED};
static const weft_family_key gemma2_keys[] = {
    GEMMA_KEYS, LAYERS("2"), OR_NONE("attn_logit_softcapping", "attn_logit_softcapping", "50"),
    OR_NONE("final_logit_softcapping", "final_logit_softcapping", "30")};
static const weft_family_fixed gemma3_fixed[] = {GEMMA_FIXED, QK_NORM};
static const weft_family_key gemma3_keys[] = {
    GEMMA_KEYS, LAYERS("6"), OR_NONE("attn_logit_softcapping", "attn_logit_softcapping", "null"),
    OR_NONE("final_logit_softcapping", "final_logit_softcapping", "null")};
static const weft_family_fixed qwen2_fixed[] = {DECODER_FIXED, {"add_qkv_bias", "true"}};
static const weft_family_key qwen2_keys[] = {DECODER_KEYS, HEAD_DIM(""), GROUPS("32"),
                                             RMS_NORM("1e-6"), UNUSED_WINDOW};

static const weft_family_key mixtral_keys[] = {DECODER_KEYS,
                                               HEAD_DIM(""),
                                               GROUPS("8"),
                                               RMS_NORM("1e-5"),
                                               NO_WINDOW("null"),
                                               SAME("num_local_experts", "num_experts", "8"),
                                               SAME("num_experts_per_tok", "moe_router_topk", "2"),
                                               ONLY("router_jitter_noise", "0.0", "0.0")};

static const weft_family_fixed qwen3_fixed[] = {DECODER_FIXED, QK_NORM};
static const weft_family_key qwen3_keys[] = {
    DECODER_KEYS,     HEAD_DIM("128"), GROUPS("32"),
    RMS_NORM("1e-6"), UNUSED_WINDOW,   ONLY("attention_bias", "false", "false")};
static const weft_family_key qwen3_moe_keys[] = {
    DECODER_KEYS,
    HEAD_DIM(""),
    GROUPS("4"),
    RMS_NORM("1e-6"),
    UNUSED_WINDOW,
    ONLY("attention_bias", "false", "false"),
    SAME("num_experts|num_local_experts", "num_experts", NULL),
    SAME("num_experts_per_tok", "moe_router_topk", "8"),
    SAME("moe_intermediate_size", "moe_ffn_hidden_size", NULL),
    NOT("norm_topk_prob", "moe_router_pre_softmax", "false"),
    ONLY("decoder_sparse_step", "1", "1"),
    ONLY("mlp_only_layers", "[]", "[]|null")};

static const weft_family_fixed gpt_oss_fixed[] = {ROTARY_FIXED,
                                                  {"quick_geglu", "true"},
                                                  {"glu_linear_offset", "1"},
                                                  {"softmax_type", "\"learnable\""},
                                                  {"add_qkv_bias", "true"},
                                                  {"add_proj_bias", "true"},
                                                  {"add_expert_bias", "true"},
                                                  {"moe_router_bias", "true"}};
static const weft_family_key gpt_oss_keys[] = {
    BODY_KEYS,
    TIED("false"),
    SILU,
    HEAD_DIM("64"),
    GROUPS("8"),
    RMS_NORM("1e-5"),
    WINDOW("128"),
    LAYERS("2"),
    SAME("num_local_experts|num_experts", "num_experts", "128"),
    SAME("num_experts_per_tok|experts_per_token", "moe_router_topk", "4"),
    SAME("swiglu_limit", "activation_func_clamp_value", "7.0"),
    ONLY("swiglu_alpha", "1.702", "1.702"),
    ONLY("attention_bias", "true", "true")};

/* Sigmoid scores, a bias that chooses. */
#define SIGMOID_FIXED                                                                              \
    {"moe_router_score_function", "\"sigmoid\""},                                                  \
    {                                                                                              \
        "moe_router_enable_expert_bias", "true"                                                    \
    }
#define SHARED_EXPERTS                                                                             \
    {                                                                                              \
        "n_shared_experts", WEFT_KEY_SHARED, "moe_shared_expert_intermediate_size", "1", NULL      \
    }
#define DENSE_FIRST(missing)                                                                       \
    {                                                                                              \
        "first_k_dense_replace", WEFT_KEY_DENSE_FIRST, "moe_layer_freq", missing, NULL             \
    }
static const weft_family_fixed deepseek_fixed[] = {DECODER_FIXED,
                                                   SIGMOID_FIXED,
                                                   {"multi_latent_attention", "true"},
                                                   {"latent_norm_epsilon", "1e-6"}};
static const weft_family_fixed glm4_moe_fixed[] = {DECODER_FIXED, SIGMOID_FIXED};
static const weft_family_key deepseek_keys[] = {
    DECODER_KEYS,
    GROUPS(""),
    RMS_NORM("1e-6"),
    {"q_lora_rank", WEFT_KEY_SAME, "q_lora_rank", "0", "null"},
    SAME("kv_lora_rank", "kv_lora_rank", "512"),
    SAME("qk_nope_head_dim", "qk_head_dim", "128"),
    SAME("qk_rope_head_dim", "qk_pos_emb_head_dim", "64"),
    SAME("v_head_dim", "v_head_dim", "128"),
    SAME("rope_interleave", "rotary_interleaved", "true"),
    SAME("n_routed_experts|num_local_experts", "num_experts", NULL),
    SAME("num_experts_per_tok", "moe_router_topk", "8"),
    SAME("moe_intermediate_size", "moe_ffn_hidden_size", NULL),
    SAME("n_group", "moe_router_num_groups", "8"),
    SAME("topk_group", "moe_router_group_topk", "4"),
    SAME("routed_scaling_factor", "moe_router_topk_scaling_factor", "2.5"),
    NOT("norm_topk_prob", "moe_router_pre_softmax", "true"),
    DENSE_FIRST("3"),
    SHARED_EXPERTS,
    ONLY("scoring_func", "\"sigmoid\"", "\"sigmoid\""),
    ONLY("topk_method", "\"noaux_tc\"", "\"noaux_tc\""),
    ONLY("moe_layer_freq", "1", "1"),
    ONLY("attention_bias", "false", "false"),
    ONLY("pretraining_tp", "1", "1")};
static const weft_family_key glm4_moe_keys[] = {
    BODY_KEYS,
    TIED("false"),
    SILU,
    HEAD_DIM(""),
    GROUPS("8"),
    RMS_NORM("1e-5"),
    SAME("attention_bias", "add_qkv_bias", "false"),
    SAME("use_qk_norm", "qk_layernorm", "false"),
    SAME("n_routed_experts", "num_experts", "128"),
    SAME("num_experts_per_tok", "moe_router_topk", "8"),
    SAME("moe_intermediate_size", "moe_ffn_hidden_size", "1408"),
    SAME("routed_scaling_factor", "moe_router_topk_scaling_factor", "1.0"),
    NOT("norm_topk_prob", "moe_router_pre_softmax", "true"),
    SAME("n_group", "moe_router_num_groups", "1"),
    SAME("topk_group", "moe_router_group_topk", "1"),
    SHARED_EXPERTS,
    DENSE_FIRST("1")};

/* All layers are of experts. rotary_dim says half of the published head_dim. */
static const weft_family_fixed minimax_fixed[] = {
    DECODER_FIXED, SIGMOID_FIXED, QK_NORM, {"qk_layernorm_across_heads", "true"}};
static const weft_family_key minimax_keys[] = {
    BODY_KEYS,
    TIED("false"),
    SILU,
    HEAD_DIM("128"),
    GROUPS("8"),
    RMS_NORM("1e-6"),
    SAME("num_local_experts", "num_experts", "256"),
    SAME("num_experts_per_tok", "moe_router_topk", "8"),
    ONLY("rotary_dim", "64", "64"),
    ONLY("use_qk_norm", "true", "true"),
    ONLY("qk_norm_type", "\"per_layer\"", "\"per_layer\""),
    ONLY("use_routing_bias", "true", "true"),
    ONLY("scoring_func", "\"sigmoid\"", "\"sigmoid\""),
    ONLY("sliding_window", "null", "null"),
    ONLY("shared_intermediate_size", "0", "0"),
    ONLY("router_jitter_noise", "0.0", "0.0|0")};

static const weft_family_fixed gpt2_fixed[] = {
    {"normalization", "\"LayerNorm\""},
    {"swiglu", "false"},
    {"disable_bias_linear", "false"},
    {"position_embedding_type", "\"learned_absolute\""},
};
static const weft_family_key gpt2_keys[] = {
    SAME("n_embd", "hidden_size", NULL),
    SAME("n_layer", "num_layers", NULL),
    SAME("n_head", "num_attention_heads", NULL),
    SAME("n_positions", "max_position_embeddings", NULL),
    SAME("n_inner", "ffn_hidden_size", ""),
    SAME("vocab_size", "vocab_size", NULL),
    SAME("layer_norm_epsilon", "norm_epsilon", "1e-5"),
    SAME("resid_pdrop", "hidden_dropout", "0.1"),
    SAME("attn_pdrop", "attention_dropout", "0.1"),
    SAME("initializer_range", "init_method_std", "0.02"),
    NOT("tie_word_embeddings", "untie_embeddings_and_output_weights", "true"),
    ONLY("activation_function", "\"gelu_new\"", "\"gelu_new\"|\"gelu_pytorch_tanh\"|\"gelu_fast\""),
    ONLY("scale_attn_weights", "true", "true"),
    ONLY("scale_attn_by_inverse_layer_idx", "false", "false"),
    ONLY("add_cross_attention", "false", "false")};

/* --- names of tensors ---------------------------------------------------------------------- */

#define LAYER "model.layers.{layer}."
#define OURS "decoder.layers.{layer}."
#define WORDS "embedding.word_embeddings.weight"
#define ROW(file, parameter)                                                                       \
    {                                                                                              \
        file, parameter, WEFT_NAME_WHOLE, false                                                    \
    }
#define PART(file, parameter, layout)                                                              \
    {                                                                                              \
        file, parameter, WEFT_NAME_##layout, false                                                 \
    }
#define TURNED(file, parameter, layout)                                                            \
    {                                                                                              \
        file, parameter, WEFT_NAME_##layout, true                                                  \
    }

#define ENDS                                                                                       \
    ROW("model.embed_tokens.weight", WORDS),                                                       \
        ROW("model.norm.weight", "decoder.final_layernorm.weight"),                                \
        ROW("lm_head.weight", "output_layer.weight"), PART("lm_head.weight", WORDS, COPY)
#define NORMS                                                                                      \
    ROW(LAYER "input_layernorm.weight", OURS "input_layernorm.weight"),                            \
        ROW(LAYER "post_attention_layernorm.weight", OURS "pre_mlp_layernorm.weight")
#define ATTENTION(what)                                                                            \
    PART(LAYER "self_attn.q_proj." what, OURS "self_attention.linear_qkv." what, QUERY),           \
        PART(LAYER "self_attn.k_proj." what, OURS "self_attention.linear_qkv." what, KEY),         \
        PART(LAYER "self_attn.v_proj." what, OURS "self_attention.linear_qkv." what, VALUE)
#define QK_NORMS                                                                                   \
    ROW(LAYER "self_attn.q_norm.weight", OURS "self_attention.q_layernorm.weight"),                \
        ROW(LAYER "self_attn.k_norm.weight", OURS "self_attention.k_layernorm.weight")
#define PROJECTION ROW(LAYER "self_attn.o_proj.weight", OURS "self_attention.linear_proj.weight")
#define MLP                                                                                        \
    PART(LAYER "mlp.gate_proj.weight", OURS "mlp.linear_fc1.weight", GATE),                        \
        PART(LAYER "mlp.up_proj.weight", OURS "mlp.linear_fc1.weight", UP),                        \
        ROW(LAYER "mlp.down_proj.weight", OURS "mlp.linear_fc2.weight")
/* `moe`: the module's name; g, u, d: what an expert's matrices are called. The other form is what
 * transformers 5 has in memory, and writes where it is told not to convert back. */
#define EXPERTS(moe, g, u, d)                                                                      \
    ROW(LAYER moe ".gate.weight", OURS "mlp.router.weight"),                                       \
        PART(LAYER moe ".experts.{expert}." g ".weight", OURS "mlp.experts.linear_fc1.weight",     \
             GATE),                                                                                \
        PART(LAYER moe ".experts.{expert}." u ".weight", OURS "mlp.experts.linear_fc1.weight",     \
             UP),                                                                                  \
        ROW(LAYER moe ".experts.{expert}." d ".weight", OURS "mlp.experts.linear_fc2.weight"),     \
        PART(LAYER "mlp.experts.gate_up_proj", OURS "mlp.experts.linear_fc1.weight", GATE_UP),     \
        ROW(LAYER "mlp.experts.down_proj", OURS "mlp.experts.linear_fc2.weight")

#define BEHIND                                                                                     \
    ROW(LAYER "post_attention_layernorm.weight", OURS "post_self_attn_layernorm.weight"),          \
        ROW(LAYER "post_feedforward_layernorm.weight", OURS "post_mlp_layernorm.weight")
static const weft_family_name olmo2_names[] = {ENDS,     BEHIND,     ATTENTION("weight"),
                                               QK_NORMS, PROJECTION, MLP};
static const weft_family_name gemma_names[] = {
    ENDS,
    ROW(LAYER "input_layernorm.weight", OURS "input_layernorm.weight"),
    ROW(LAYER "pre_feedforward_layernorm.weight", OURS "pre_mlp_layernorm.weight"),
    BEHIND,
    ATTENTION("weight"),
    QK_NORMS,
    PROJECTION,
    MLP};
/* Blocks of MXFP4 have [out, in], what transformers makes of them [in, out]. */
static const weft_family_name gpt_oss_names[] = {
    ENDS,
    NORMS,
    ATTENTION("weight"),
    ATTENTION("bias"),
    PROJECTION,
    ROW(LAYER "self_attn.o_proj.bias", OURS "self_attention.linear_proj.bias"),
    ROW(LAYER "self_attn.sinks", OURS "self_attention.core_attention.softmax_offset"),
    ROW(LAYER "mlp.router.weight", OURS "mlp.router.weight"),
    ROW(LAYER "mlp.router.bias", OURS "mlp.router.bias"),
    TURNED(LAYER "mlp.experts.gate_up_proj", OURS "mlp.experts.linear_fc1.weight", PAIRS),
    PART(LAYER "mlp.experts.gate_up_proj_blocks", OURS "mlp.experts.linear_fc1.weight", PAIRS),
    PART(LAYER "mlp.experts.gate_up_proj_bias", OURS "mlp.experts.linear_fc1.bias", PAIRS),
    TURNED(LAYER "mlp.experts.down_proj", OURS "mlp.experts.linear_fc2.weight", WHOLE),
    ROW(LAYER "mlp.experts.down_proj_blocks", OURS "mlp.experts.linear_fc2.weight"),
    ROW(LAYER "mlp.experts.down_proj_bias", OURS "mlp.experts.linear_fc2.bias")};
/* Of layers behind the last one, whose block is as another's. */
#define DEEP "mtp.layers.{layer}."
#define NEXT_LAYERS                                                                                \
    ROW(LAYER "enorm.weight", DEEP "enorm.weight"),                                                \
        ROW(LAYER "hnorm.weight", DEEP "hnorm.weight"),                                            \
        ROW(LAYER "eh_proj.weight", DEEP "eh_proj.weight"),                                        \
        ROW(LAYER "shared_head.norm.weight", DEEP "final_layernorm.weight"),                       \
        PART(LAYER "embed_tokens.weight", "embedding.word_embeddings.weight", COPY),               \
        PART(LAYER "shared_head.head.weight", "output_layer.weight", COPY)
#define SHARED "mlp.shared_experts."
static const weft_family_name glm4_moe_names[] = {
    ENDS,
    NEXT_LAYERS,
    NORMS,
    ATTENTION("weight"),
    ATTENTION("bias"),
    QK_NORMS,
    PROJECTION,
    MLP,
    EXPERTS("mlp", "gate_proj", "up_proj", "down_proj"),
    ROW(LAYER "mlp.gate.e_score_correction_bias", OURS "mlp.router.expert_bias"),
    PART(LAYER SHARED "gate_proj.weight", OURS SHARED "linear_fc1.weight", GATE),
    PART(LAYER SHARED "up_proj.weight", OURS SHARED "linear_fc1.weight", UP),
    ROW(LAYER SHARED "down_proj.weight", OURS SHARED "linear_fc2.weight")};

static const weft_family_name llama_names[] = {ENDS, NORMS, ATTENTION("weight"), PROJECTION, MLP};
static const weft_family_name qwen2_names[] = {
    ENDS, NORMS, ATTENTION("weight"), ATTENTION("bias"), PROJECTION, MLP};
static const weft_family_name qwen3_names[] = {ENDS,     NORMS,      ATTENTION("weight"),
                                               QK_NORMS, PROJECTION, MLP};
static const weft_family_name qwen3_moe_names[] = {
    ENDS,     NORMS,      ATTENTION("weight"),
    QK_NORMS, PROJECTION, EXPERTS("mlp", "gate_proj", "up_proj", "down_proj")};
static const weft_family_name mixtral_names[] = {
    ENDS,
    NORMS,
    ATTENTION("weight"),
    PROJECTION,
    EXPERTS("block_sparse_moe", "w1", "w3", "w2"),
    ROW(LAYER "mlp.gate.weight", OURS "mlp.router.weight")};
static const weft_family_name minimax_names[] = {
    ENDS,
    NORMS,
    ATTENTION("weight"),
    QK_NORMS,
    PROJECTION,
    EXPERTS("block_sparse_moe", "w1", "w3", "w2"),
    ROW(LAYER "mlp.gate.weight", OURS "mlp.router.weight"),
    ROW(LAYER "block_sparse_moe.e_score_correction_bias", OURS "mlp.router.expert_bias"),
    ROW(LAYER "mlp.gate.e_score_correction_bias", OURS "mlp.router.expert_bias")};
static const weft_family_name deepseek_names[] = {
    ENDS,
    NEXT_LAYERS,
    NORMS,
    PROJECTION,
    MLP,
    EXPERTS("mlp", "gate_proj", "up_proj", "down_proj"),
    ROW(LAYER "mlp.gate.e_score_correction_bias", OURS "mlp.router.expert_bias"),
    PART(LAYER "mlp.shared_experts.gate_proj.weight", OURS "mlp.shared_experts.linear_fc1.weight",
         GATE),
    PART(LAYER "mlp.shared_experts.up_proj.weight", OURS "mlp.shared_experts.linear_fc1.weight",
         UP),
    ROW(LAYER "mlp.shared_experts.down_proj.weight", OURS "mlp.shared_experts.linear_fc2.weight"),
    ROW(LAYER "self_attn.q_proj.weight", OURS "self_attention.linear_q_proj.weight"),
    ROW(LAYER "self_attn.q_a_proj.weight", OURS "self_attention.linear_q_down_proj.weight"),
    ROW(LAYER "self_attn.q_a_layernorm.weight", OURS "self_attention.q_layernorm.weight"),
    ROW(LAYER "self_attn.q_b_proj.weight", OURS "self_attention.linear_q_up_proj.weight"),
    ROW(LAYER "self_attn.kv_a_proj_with_mqa.weight",
        OURS "self_attention.linear_kv_down_proj.weight"),
    ROW(LAYER "self_attn.kv_a_layernorm.weight", OURS "self_attention.kv_layernorm.weight"),
    ROW(LAYER "self_attn.kv_b_proj.weight", OURS "self_attention.linear_kv_up_proj.weight")};
static const char *const llama_ignored[] = {LAYER "self_attn.rotary_emb.inv_freq"};

#define BLOCK "transformer.h.{layer}."
static const weft_family_name gpt2_names[] = {
    ROW("transformer.wte.weight", WORDS),
    ROW("transformer.wpe.weight", "embedding.position_embeddings.weight"),
    ROW("transformer.ln_f.weight", "decoder.final_layernorm.weight"),
    ROW("transformer.ln_f.bias", "decoder.final_layernorm.bias"),
    ROW("lm_head.weight", "output_layer.weight"),
    PART("lm_head.weight", WORDS, COPY),
    ROW(BLOCK "ln_1.weight", OURS "input_layernorm.weight"),
    ROW(BLOCK "ln_1.bias", OURS "input_layernorm.bias"),
    ROW(BLOCK "ln_2.weight", OURS "pre_mlp_layernorm.weight"),
    ROW(BLOCK "ln_2.bias", OURS "pre_mlp_layernorm.bias"),
    TURNED(BLOCK "attn.c_attn.weight", OURS "self_attention.linear_qkv.weight", QKV),
    PART(BLOCK "attn.c_attn.bias", OURS "self_attention.linear_qkv.bias", QKV),
    TURNED(BLOCK "attn.c_proj.weight", OURS "self_attention.linear_proj.weight", WHOLE),
    ROW(BLOCK "attn.c_proj.bias", OURS "self_attention.linear_proj.bias"),
    TURNED(BLOCK "mlp.c_fc.weight", OURS "mlp.linear_fc1.weight", WHOLE),
    ROW(BLOCK "mlp.c_fc.bias", OURS "mlp.linear_fc1.bias"),
    TURNED(BLOCK "mlp.c_proj.weight", OURS "mlp.linear_fc2.weight", WHOLE),
    ROW(BLOCK "mlp.c_proj.bias", OURS "mlp.linear_fc2.bias")};
static const char *const gpt2_ignored[] = {BLOCK "attn.bias", BLOCK "attn.masked_bias"};

/* --- families ------------------------------------------------------------------------------ */

#define TABLES(of_fixed, of_keys, of_names, of_ignored)                                            \
    .fixed = of_fixed, .num_fixed = COUNT(of_fixed), .keys = of_keys, .num_keys = COUNT(of_keys),  \
    .names = of_names, .num_names = COUNT(of_names), .ignored = of_ignored,                        \
    .num_ignored = COUNT(of_ignored)

static const weft_family gpt2 = {.name = "GPT-2",
                                 .architecture = "GPT2LMHeadModel",
                                 .model_type = "gpt2",
                                 .root = "transformer.",
                                 .other_root = "",
                                 TABLES(gpt2_fixed, gpt2_keys, gpt2_names, gpt2_ignored)};
static const weft_family llama = {.name = "Llama",
                                  .architecture = "LlamaForCausalLM",
                                  .model_type = "llama",
                                  .rope_theta = "1e4",
                                  TABLES(llama_fixed, llama_keys, llama_names, llama_ignored)};
static const weft_family smollm3 = {.name = "SmolLM3",
                                    .architecture = "SmolLM3ForCausalLM",
                                    .model_type = "smollm3",
                                    .rope_theta = "2e6",
                                    TABLES(llama_fixed, smollm3_keys, llama_names, llama_ignored)};
static const weft_family mistral = {.name = "Mistral",
                                    .architecture = "MistralForCausalLM",
                                    .model_type = "mistral",
                                    .rope_theta = "1e4",
                                    TABLES(llama_fixed, mistral_keys, llama_names, llama_ignored)};
static const weft_family qwen2 = {.name = "Qwen2",
                                  .architecture = "Qwen2ForCausalLM",
                                  .model_type = "qwen2",
                                  .rope_theta = "1e4",
                                  TABLES(qwen2_fixed, qwen2_keys, qwen2_names, llama_ignored)};
static const weft_family qwen3 = {.name = "Qwen3",
                                  .architecture = "Qwen3ForCausalLM",
                                  .model_type = "qwen3",
                                  .rope_theta = "1e4",
                                  TABLES(qwen3_fixed, qwen3_keys, qwen3_names, llama_ignored)};
static const weft_family qwen3_moe = {
    .name = "Qwen3-MoE",
    .architecture = "Qwen3MoeForCausalLM",
    .model_type = "qwen3_moe",
    .rope_theta = "1e4",
    TABLES(qwen3_fixed, qwen3_moe_keys, qwen3_moe_names, llama_ignored)};
static const weft_family mixtral = {
    .name = "Mixtral",
    .architecture = "MixtralForCausalLM",
    .model_type = "mixtral",
    .rope_theta = "1e6",
    TABLES(llama_fixed, mixtral_keys, mixtral_names, llama_ignored)};

/* What the router's kernel has where transformers has another number. */
static const char *check_router(const weft_model_options *o)
{
    const int64_t shared = o->moe_shared_expert_intermediate_size;
    bool is_moe = false;
    for (int64_t i = 0; i < o->num_layers; i++) {
        if (is_moe && !weft_model_is_moe_layer(o, i))
            return "a dense layer stands behind an MoE layer";
        is_moe = weft_model_is_moe_layer(o, i);
    }
    if (!is_moe)
        return "no layer has experts";
    if (o->moe_router_num_groups > 1 && o->moe_router_topk != 2 * o->moe_router_group_topk)
        return "num_experts_per_tok is not 2 topk_group: Weft's groups count num_experts_per_tok / "
               "topk_group experts, DeepSeek's two";
    if (o->moe_router_topk == 1 && !o->moe_router_pre_softmax)
        return "num_experts_per_tok is 1, which Weft does not divide by itself (norm_topk_prob)";
    if (o->yarn_mscale == 0 && o->yarn_mscale_all_dim != 0)
        return "mscale_all_dim stands without mscale";
    if (shared == 0 || shared % o->moe_ffn_hidden_size != 0)
        return "the shared experts are no multiple of moe_intermediate_size";
    return NULL;
}

static const weft_family deepseek_v3 = {
    .name = "DeepSeek-V3",
    .architecture = "DeepseekV3ForCausalLM",
    .model_type = "deepseek_v3",
    .rope_theta = "1e4",
    .next_layers = "num_nextn_predict_layers|num_mtp_layers",
    .scales_scores = true,
    .check = check_router,
    TABLES(deepseek_fixed, deepseek_keys, deepseek_names, llama_ignored)};

static const weft_family olmo2 = {.name = "OLMo-2",
                                  .architecture = "Olmo2ForCausalLM",
                                  .model_type = "olmo2",
                                  .rope_theta = "5e5",
                                  TABLES(olmo_fixed, olmo2_keys, olmo2_names, llama_ignored)};
static const weft_family olmo3 = {.name = "OLMo-3",
                                  .architecture = "Olmo3ForCausalLM",
                                  .model_type = "olmo3",
                                  .rope_theta = "5e5",
                                  .rope_local = "",
                                  TABLES(olmo_fixed, olmo3_keys, olmo2_names, llama_ignored)};
static const weft_family gemma2 = {.name = "Gemma 2",
                                   .architecture = "Gemma2ForCausalLM",
                                   .model_type = "gemma2",
                                   .rope_theta = "1e4",
                                   TABLES(gemma2_fixed, gemma2_keys, gemma_names, llama_ignored)};
static const weft_family gemma3 = {.name = "Gemma 3",
                                   .architecture = "Gemma3ForCausalLM",
                                   .model_type = "gemma3_text",
                                   .rope_theta = "1e6",
                                   .rope_local = "1e4",
                                   TABLES(gemma3_fixed, gemma3_keys, gemma_names, llama_ignored)};
static const weft_family gpt_oss = {
    .name = "GPT-OSS",
    .architecture = "GptOssForCausalLM",
    .model_type = "gpt_oss",
    .rope_theta = "1.5e5",
    TABLES(gpt_oss_fixed, gpt_oss_keys, gpt_oss_names, llama_ignored)};
static const weft_family glm4_moe = {
    .name = "GLM-4.5",
    .architecture = "Glm4MoeForCausalLM",
    .model_type = "glm4_moe",
    .rope_theta = "1e4",
    .rotates_part = true,
    .next_layers = "num_nextn_predict_layers",
    .check = check_router,
    TABLES(glm4_moe_fixed, glm4_moe_keys, glm4_moe_names, llama_ignored)};

static const weft_family minimax_m2 = {
    .name = "MiniMax-M2",
    .architecture = "MiniMaxM2ForCausalLM",
    .model_type = "minimax_m2",
    .rope_theta = "5e6",
    .rotates_part = true,
    TABLES(minimax_fixed, minimax_keys, minimax_names, llama_ignored)};

static const weft_family *const families[] = {
    &gpt2,  &llama,  &mistral, &qwen2,   &qwen3,    &mixtral,     &qwen3_moe,  &olmo2,
    &olmo3, &gemma2, &gemma3,  &gpt_oss, &glm4_moe, &deepseek_v3, &minimax_m2, &smollm3};

const weft_family *weft_family_at(const weft_application *application, size_t index)
{
    const size_t own = application ? application->num_families : 0;
    if (index < own)
        return application->families[index];
    return index - own < COUNT(families) ? families[index - own] : NULL;
}
