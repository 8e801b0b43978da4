/* The rows of section "model" and the checks that a row cannot make. */
#include <math.h>
#include <stdio.h>

#include <weft/kernels.h>

#include "core/key_rows.h"
#include "core/text.h"
#include "layers/layers.h"
#include "layers/model/model.h"

#define T weft_model_options
#define SIZE(on_resume, field, value, low, of, ...)                                                \
    RANGE(on_resume, field, value, low, 1e12, of, __VA_ARGS__)

#define NO_QK_NORM "model.qk_layernorm is false"
#define NOT_ROPE "model.position_embedding_type is not rope"
#define NO_LATENT "model.multi_latent_attention is false"
#define SCALED(type) "model.rotary_scaling_type is " type
#define NOT_SCALED SCALED("none")
#define NOT_SCALED_AS(type) SCALED("not " type)

const weft_key weft_model_rows[] = {
    TEXT(FREE, family, NULL,
         "family that makes the layers, such as qwen3; null: the layers that the other keys "
         "describe"),
    RANGE(SHAPES, num_layers, "12", 1, 65533, NULL, "decoder layers"),
    SIZE(SHAPES, hidden_size, "768", 1, NULL, "width of the residual stream"),
    SIZE(SHAPES, ffn_hidden_size, "0", 0, NULL, "MLP width; 0: 4 * hidden_size"),
    SIZE(SHAPES, num_attention_heads, "12", 1, NULL, "query heads"),
    SIZE(SHAPES, num_query_groups, "0", 0, NULL, "key/value heads (GQA); 0: num_attention_heads"),
    SIZE(SHAPES, kv_channels, "0", 0, NULL, "head dimension; 0: hidden_size / num_attention_heads"),
    SIZE(TASK, seq_length, "1024", 1, "tokens", "sequence length"),
    SIZE(SHAPES, max_position_embeddings, "0", 0, "tokens", "learned positions; 0: seq_length"),
    RANGE(SHAPES, vocab_size, "0", 0, 1e9, "tokens", "vocabulary; 0: the tokenizer's"),
    CHOICE(SHAPES, normalization, "\"LayerNorm\"", "LayerNorm|RMSNorm", "kind of norm"),
    REAL(TASK, norm_epsilon, "1e-5", 1e-12, 1, "added to the variance"),
    CHOICE(SHAPES, norm_placement, "\"before\"", "before|after|sandwich",
           "a block's norms: before attention and MLP, behind them, or both"),
    FLAG(SHAPES, apply_layernorm_1p, "false", "norms multiply by 1 + their weight"),
    FLAG(SHAPES, swiglu, "false", "gated MLP: silu(gate) * up instead of GELU"),
    FLAG(SHAPES, geglu, "false", "gated MLP: gelu(gate) * up"),
    FLAG(SHAPES, quick_geglu, "false", "gated MLP: gate * sigmoid(1.702 gate) * up"),
    REAL(TASK, activation_func_clamp_value, "0", 0, 1e30,
         "bound of a gated MLP's gate, above, and up, on both sides; 0: none"),
    REAL(TASK, glu_linear_offset, "0", -1e6, 1e6, "added to a gated MLP's up"),
    FLAG(TASK, scale_embeddings, "false", "multiply embeddings by sqrt(hidden_size)"),
    REAL(TASK, final_logit_softcapping, "0", 0, 1e6,
         "c: the model's logits x become c tanh(x / c); 0: they stay"),
    FLAG(SHAPES, disable_bias_linear, "false", "no biases in linear layers"),
    FLAG(SHAPES, add_qkv_bias, "false", "a bias on QKV even without the others"),
    FLAG(SHAPES, add_proj_bias, "false",
         "a bias on attention's projection even without the others"),
    FLAG(SHAPES, qk_layernorm, "false",
         "norm each head of queries and keys before positions enter"),
    FLAG(SHAPES, qk_layernorm_across_heads, "false",
         "norm a token's queries together, and its keys: RMSNorm alone", .idle = NO_QK_NORM),
    FLAG(SHAPES, multi_latent_attention, "false",
         "make keys and values of a latent, a token's few numbers (MLA)"),
    SIZE(SHAPES, q_lora_rank, "0", 0, NULL, "width of the queries' latent; 0: they have none",
         .idle = NO_LATENT),
    SIZE(SHAPES, kv_lora_rank, "512", 1, NULL, "width of the keys' and values' latent",
         .idle = NO_LATENT),
    SIZE(SHAPES, qk_head_dim, "128", 1, NULL, "channels of a head without positions",
         .idle = NO_LATENT),
    SIZE(SHAPES, qk_pos_emb_head_dim, "64", 1, NULL,
         "channels with positions beside them; of keys all heads have the same", .idle = NO_LATENT),
    SIZE(SHAPES, v_head_dim, "128", 1, NULL, "a value's channels", .idle = NO_LATENT),
    REAL(TASK, latent_norm_epsilon, "0", 0, 1, "of the latents' norms; 0: norm_epsilon",
         .idle = NO_LATENT),
    CHOICE(SHAPES, position_embedding_type, "\"learned_absolute\"", "learned_absolute|rope|none",
           "how positions enter"),
    REAL(TASK, rotary_base, "10000", 1, 1e12, "base of the rotary frequencies"),
    REAL(TASK, rotary_percent, "1.0", 0.01, 1,
         "share of the head dimension that rotates: an even number of channels"),
    FLAG(TASK, rotary_interleaved, "false",
         "rotate neighbouring channels, not channels half a rotation apart", .idle = NOT_ROPE),
    ROW(TASK, "no_rope_freq", no_rope_freq, INT_LIST, "0", 0, 1e6, NULL,
        "every N-th layer has no rotary positions, 0: all have them; or a list of 1 (none) and 0, "
        "one a layer",
        .idle = NOT_ROPE),
    CHOICE(TASK, rotary_scaling_type, "\"none\"", "none|linear|llama3|yarn",
           "which rotary frequencies are divided for longer sequences", .idle = NOT_ROPE),
    REAL(TASK, rotary_scaling_factor, "1", 1, 1e6, "what frequencies are divided by",
         .idle = NOT_SCALED),
    SIZE(TASK, original_max_position_embeddings, "0", 0, "tokens",
         "sequences that the model saw before it was scaled",
         .idle = NOT_SCALED "; " SCALED("linear")),
    REAL(TASK, rotary_low_freq_factor, "1", 1e-6, 1e6,
         "turns in those tokens up to which all of a frequency is divided",
         .idle = NOT_SCALED_AS("llama3")),
    REAL(TASK, rotary_high_freq_factor, "4", 1e-6, 1e6, "turns from which none of it is",
         .idle = NOT_SCALED_AS("llama3")),
    REAL(TASK, yarn_beta_fast, "32", 1e-6, 1e6, "turns from which no frequency is divided",
         .idle = NOT_SCALED_AS("yarn")),
    REAL(TASK, yarn_beta_slow, "1", 1e-6, 1e6, "turns up to which all of it is",
         .idle = NOT_SCALED_AS("yarn")),
    REAL(TASK, yarn_mscale, "1", 0, 100,
         "m: rotated channels grow by (0.1 m ln factor + 1) / (0.1 n ln factor + 1)",
         .idle = NOT_SCALED_AS("yarn")),
    REAL(TASK, yarn_mscale_all_dim, "0", 0, 100, "n of the same", .idle = NOT_SCALED_AS("yarn")),
    FLAG(TASK, yarn_correction_range_round_to_int, "true", "whole pairs begin and end the range",
         .idle = NOT_SCALED_AS("yarn")),
    REAL(TASK, softmax_scale, "0", 0, 1e6, "of attention's scores; 0: 1 / sqrt(kv_channels)"),
    REAL(TASK, attn_logit_softcapping, "0", 0, 1e6,
         "c: attention's scores x become c tanh(x / c); 0: they stay"),
    CHOICE(SHAPES, softmax_type, "\"vanilla\"", "vanilla|learnable",
           "learnable: each head has a score of its own beside its keys', an attention sink"),
    SIZE(TASK, window_size, "0", 0, "tokens",
         "that a query sees in layers with a window, itself included; 0: none has one"),
    SIZE(TASK, attention_chunk_size, "0", 0, "tokens",
         "a query sees those of its chunk in layers with a window; 0: no chunks"),
    ROW(TASK, "window_attn_skip_freq", window_attn_skip_freq, INT_LIST, "0", 0, 1e6, NULL,
        "every N-th layer has no window, 0: none; or a list of 1 (a window) and 0, one a layer"),
    REAL(TASK, rotary_base_local, "0", 0, 1e12,
         "base of layers with a window, whose frequencies are not divided; 0: as all",
         .idle = NOT_ROPE),
    FLAG(SHAPES, untie_embeddings_and_output_weights, "false",
         "give the output layer weights of its own"),
    REAL(STEP, hidden_dropout, "0", 0, 0.999999, "dropout on residual branches and the embedding"),
    REAL(STEP, attention_dropout, "0", 0, 0.999999, "dropout of attention probabilities"),
    REAL(FREE, init_method_std, "0.02", 0, 10, "standard deviation of initial weights"),
    SIZE(SHAPES, num_experts, "0", 0, NULL, "experts an MoE layer; 0: a dense model"),
    SIZE(TASK, moe_router_topk, "2", 1, NULL, "experts a token goes to", .idle = NO_EXPERTS),
    ROW(SHAPES, "moe_layer_freq", moe_layer_freq, INT_LIST, "1", 0, 1e6, NULL,
        "every N-th layer is MoE, from the first; or a list of 0 and 1, one a layer",
        .idle = NO_EXPERTS),
    SIZE(SHAPES, moe_ffn_hidden_size, "0", 0, NULL, "an expert's width; 0: ffn_hidden_size",
         .idle = NO_EXPERTS),
    FLAG(TASK, moe_router_pre_softmax, "false",
         "softmax over all experts before the choice; sigmoids are not divided by the chosen "
         "ones' sum",
         .idle = NO_EXPERTS),
    CHOICE(TASK, moe_router_score_function, "\"softmax\"", "softmax|sigmoid",
           "what makes scores of the router's logits", .idle = NO_EXPERTS),
    FLAG(SHAPES, moe_router_bias, "false", "a bias on the router's logits", .idle = NO_EXPERTS),
    FLAG(SHAPES, add_expert_bias, "false", "biases on the experts' linear layers",
         .idle = NO_EXPERTS),
    FLAG(SHAPES, moe_router_enable_expert_bias, "false",
         "add a bias to the scores that the choice compares; the load moves it, no loss does",
         .idle = NO_EXPERTS),
    REAL(STEP, moe_router_bias_update_rate, "1e-3", 1e-12, 1e6, "by which a step moves that bias",
         .idle = NO_EXPERTS "; model.moe_router_enable_expert_bias is false"),
    SIZE(TASK, moe_router_num_groups, "0", 0, "groups",
         "of experts, of which a token goes to moe_router_group_topk; 0: no groups",
         .idle = NO_EXPERTS),
    SIZE(TASK, moe_router_group_topk, "0", 0, "groups", "that a token goes to",
         .idle = NO_EXPERTS "; model.moe_router_num_groups is 0"),
    REAL(TASK, moe_router_topk_scaling_factor, "1", 1e-6, 1e6,
         "what the chosen experts' weights are multiplied by", .idle = NO_EXPERTS),
    REAL(STEP, moe_aux_loss_coeff, "0", 0, 1e6, "weight of the load-balancing loss",
         .idle = NO_EXPERTS),
    CHOICE(STEP, moe_router_load_balancing_type, "\"aux_loss\"",
           "aux_loss|seq_aux_loss|global_aux_loss",
           "whose tokens that loss compares: a micro-batch's, each sequence's, or the global "
           "batch's so far",
           .idle = NO_EXPERTS "; model.moe_aux_loss_coeff is 0"),
    REAL(STEP, moe_z_loss_coeff, "0", 0, 1e6, "weight of the router's z-loss", .idle = NO_EXPERTS),
    REAL(TASK, moe_expert_capacity_factor, "0", 0, 1e6,
         "rows an expert keeps over the mean; 0: dropless", .idle = NO_EXPERTS),
    CHOICE(TASK, moe_token_drop_policy, "\"probs\"", "probs|position",
           "which choices beyond the capacity go: the least likely, or the last",
           .idle = NO_EXPERTS),
    SIZE(SHAPES, moe_shared_expert_intermediate_size, "0", 0, NULL,
         "width of the shared expert; 0: none", .idle = NO_EXPERTS),
    FLAG(SHAPES, moe_shared_expert_gate, "false",
         "multiply the shared expert's answer by a sigmoid of the token",
         .idle = NO_EXPERTS "; model.moe_shared_expert_intermediate_size is 0"),
    RANGE(SHAPES, mtp_num_layers, "0", 0, WEFT_MAX_MTP_LAYERS, "layers",
          "that predict tokens further on, one each; 0: none"),
    REAL(STEP, mtp_loss_scaling_factor, "0.1", 0, 1e6, "weight of the mean of their losses",
         .idle = "model.mtp_num_layers is 0"),
    REAL(TASK, moe_router_forced_load, "0", 0, 1024,
         "to measure: the first expert's load over the mean; 0: as routed", .idle = NO_EXPERTS),
};
const size_t weft_num_model_rows = sizeof weft_model_rows / sizeof *weft_model_rows;

bool weft_model_is_moe_layer(const weft_model_options *o, int64_t index)
{
    const weft_int_list *freq = &o->moe_layer_freq;
    if (o->num_experts == 0)
        return false;
    if (freq->is_array)
        return freq->values[index] != 0;
    int64_t every = freq->count ? freq->values[0] : 1;
    return index % every == 0;
}

bool weft_model_is_windowed_layer(const weft_model_options *o, int64_t index)
{
    const weft_int_list *skip = &o->window_attn_skip_freq;
    if (o->window_size == 0 && o->attention_chunk_size == 0)
        return false;
    if (skip->is_array)
        return skip->values[index] != 0;
    const int64_t every = skip->count ? skip->values[0] : 0;
    return every == 0 || (index + 1) % every != 0;
}

static weft_status check_gates(const weft_model_options *o)
{
    if (o->swiglu + o->geglu + o->quick_geglu > 1)
        return WEFT_KEY_ERROR(o->quick_geglu ? "model.quick_geglu" : "model.geglu",
                              "of swiglu, geglu and quick_geglu one can be true");
    if (!weft_is_gated(o) && (o->activation_func_clamp_value > 0 || o->glu_linear_offset != 0))
        return WEFT_KEY_ERROR(o->glu_linear_offset != 0 ? "model.glu_linear_offset"
                                                        : "model.activation_func_clamp_value",
                              "is of gated MLPs: set model.swiglu, geglu or quick_geglu to true");
    return WEFT_OK;
}

bool weft_model_is_roped_layer(const weft_model_options *o, int64_t index)
{
    const weft_int_list *freq = &o->no_rope_freq;
    if (freq->is_array)
        return freq->values[index] == 0;
    const int64_t every = freq->count ? freq->values[0] : 0;
    return every == 0 || (index + 1) % every != 0;
}

/* A period, or a list of 0 and 1, one a layer. */
static weft_status check_list(const weft_model_options *o, const weft_int_list *list,
                              const char *key)
{
    if (list->is_array && (int64_t)list->count != o->num_layers)
        return WEFT_KEY_ERROR(key, "%zu entries for %lld layers", list->count,
                              (long long)o->num_layers);
    for (size_t i = 0; list->is_array && i < list->count; i++)
        if (list->values[i] != 0 && list->values[i] != 1)
            return WEFT_KEY_ERROR(key, "%lld in a list is not 0 or 1", (long long)list->values[i]);
    return WEFT_OK;
}

static weft_status check_windows(const weft_model_options *o)
{
    if (o->window_size > 0 && o->attention_chunk_size > 0)
        return WEFT_KEY_ERROR("model.attention_chunk_size",
                              "layers have a window or chunks: set this or model.window_size to 0");
    WEFT_TRY(check_list(o, &o->window_attn_skip_freq, "model.window_attn_skip_freq"));
    WEFT_TRY(check_list(o, &o->no_rope_freq, "model.no_rope_freq"));
    if (o->rotary_base_local > 0 && o->rotary_base_local < 1)
        return WEFT_KEY_ERROR("model.rotary_base_local", "%g is below 1, and not 0",
                              o->rotary_base_local);
    return WEFT_OK;
}

static weft_status check_groups(const weft_model_options *o)
{
    const int64_t groups = o->moe_router_num_groups, chosen = o->moe_router_group_topk;
    if (groups == 0)
        return WEFT_OK;
    if (groups > WEFT_MAX_EXPERT_GROUPS || o->num_experts % groups != 0)
        return WEFT_KEY_ERROR("model.moe_router_num_groups",
                              "%lld groups do not divide %lld experts, or are above %d",
                              (long long)groups, (long long)o->num_experts, WEFT_MAX_EXPERT_GROUPS);
    if (chosen < 1 || chosen > groups || chosen * (o->num_experts / groups) < o->moe_router_topk)
        return WEFT_KEY_ERROR("model.moe_router_group_topk",
                              "%lld of %lld groups do not hold %lld experts for a token",
                              (long long)chosen, (long long)groups, (long long)o->moe_router_topk);
    return WEFT_OK;
}

static weft_status check_moe(const weft_model_options *o)
{
    const weft_int_list *freq = &o->moe_layer_freq;
    if (o->num_experts == 0)
        return WEFT_OK;
    if (o->moe_router_topk > o->num_experts)
        return WEFT_KEY_ERROR("model.moe_router_topk",
                              "%lld experts a token, but there are only %lld",
                              (long long)o->moe_router_topk, (long long)o->num_experts);
    if (o->moe_router_topk > 16 || o->num_experts > 1024)
        return WEFT_KEY_ERROR("model.num_experts", "at most 1024 experts and moe_router_topk 16");
    if (freq->is_array && (int64_t)freq->count != o->num_layers)
        return WEFT_KEY_ERROR("model.moe_layer_freq", "%zu entries for %lld layers", freq->count,
                              (long long)o->num_layers);
    for (size_t i = 0; i < freq->count; i++)
        if (freq->is_array ? freq->values[i] != 0 && freq->values[i] != 1 : freq->values[i] < 1)
            return WEFT_KEY_ERROR("model.moe_layer_freq",
                                  "%lld is neither a period nor 0 or 1 in a list",
                                  (long long)freq->values[i]);
    return check_groups(o);
}

/* The least rotary_percent for so many channels; six digits read back as the same number. */
static double share_of(int64_t channels, int64_t all)
{
    return ceil((double)channels / (double)all * 1e6 - 1e-6) / 1e6;
}

static weft_status check_rotary(const weft_model_options *o)
{
    int64_t all = o->multi_latent_attention ? o->qk_pos_emb_head_dim : o->kv_channels;
    int64_t channels = (int64_t)weft_rotary_channels((size_t)all, o->rotary_percent);
    if (o->position_embedding_type != WEFT_POSITION_ROPE || (channels >= 2 && channels % 2 == 0))
        return WEFT_OK;
    char below[32] = "";
    if (channels > 2)
        snprintf(below, sizeof below, "%.6g or ", share_of(channels - 1, all));
    return WEFT_KEY_ERROR("model.rotary_percent",
                          "%g of a head dimension of %lld is %lld channel%s, and an even number "
                          "rotates; %s%.6g would",
                          o->rotary_percent, (long long)all, (long long)channels,
                          channels == 1 ? "" : "s", below, share_of(channels / 2 * 2 + 2, all));
}

static weft_status check_scaling(const weft_model_options *o)
{
    const weft_rotary_scaling type = (weft_rotary_scaling)o->rotary_scaling_type;
    if (o->position_embedding_type != WEFT_POSITION_ROPE || type == WEFT_ROTARY_UNSCALED ||
        type == WEFT_ROTARY_LINEAR)
        return WEFT_OK;
    if (o->original_max_position_embeddings == 0)
        return WEFT_KEY_ERROR("model.original_max_position_embeddings",
                              "is needed: the tokens of the sequences before scaling");
    if (type == WEFT_ROTARY_LLAMA3 && o->rotary_high_freq_factor <= o->rotary_low_freq_factor)
        return WEFT_KEY_ERROR("model.rotary_high_freq_factor",
                              "%g is not above "
                              "rotary_low_freq_factor %g",
                              o->rotary_high_freq_factor, o->rotary_low_freq_factor);
    if (type == WEFT_ROTARY_YARN && o->yarn_beta_fast < o->yarn_beta_slow)
        return WEFT_KEY_ERROR("model.yarn_beta_fast", "%g is below yarn_beta_slow %g",
                              o->yarn_beta_fast, o->yarn_beta_slow);
    if (type == WEFT_ROTARY_YARN && o->rotary_base <= 1)
        return WEFT_KEY_ERROR("model.rotary_base", "%g: YaRN needs one above 1", o->rotary_base);
    return WEFT_OK;
}

static weft_status check_qk_norm(const weft_model_options *o)
{
    if (o->qk_layernorm && o->kv_channels > WEFT_MAX_NORMED_HEAD_DIM)
        return WEFT_KEY_ERROR("model.qk_layernorm", "of a head dimension of at most %d, not %lld",
                              WEFT_MAX_NORMED_HEAD_DIM, (long long)o->kv_channels);
    if (o->qk_layernorm && o->qk_layernorm_across_heads && o->normalization != WEFT_RMSNORM)
        return WEFT_KEY_ERROR("model.qk_layernorm_across_heads",
                              "is RMSNorm's: set model.normalization to RMSNorm, or this to false");
    return WEFT_OK;
}

/* Sets what follows from the latents' options. */
static weft_status check_mtp(const weft_model_options *o)
{
    if (o->mtp_num_layers == 0)
        return WEFT_OK;
    if (o->mtp_num_layers >= o->seq_length)
        return WEFT_KEY_ERROR("model.mtp_num_layers", "%lld; there are fewer than seq_length %lld",
                              (long long)o->mtp_num_layers, (long long)o->seq_length);
    if (o->position_embedding_type == WEFT_POSITION_LEARNED || o->scale_embeddings)
        return WEFT_KEY_ERROR("model.mtp_num_layers", "takes no %s: leave one out",
                              o->scale_embeddings ? "scale_embeddings"
                                                  : "position_embedding_type learned_absolute");
    return WEFT_OK;
}

static weft_status resolve_latent(weft_model_options *o)
{
    const int64_t channels = o->qk_head_dim + o->qk_pos_emb_head_dim;
    if (!o->multi_latent_attention)
        return WEFT_OK;
    if (o->num_query_groups != 0 && o->num_query_groups != o->num_attention_heads)
        return WEFT_KEY_ERROR("model.num_query_groups",
                              "%lld, and with multi_latent_attention each head has keys of its "
                              "own: leave it out",
                              (long long)o->num_query_groups);
    if (o->kv_channels != 0 && o->kv_channels != channels)
        return WEFT_KEY_ERROR("model.kv_channels",
                              "%lld, and with multi_latent_attention a head has qk_head_dim + "
                              "qk_pos_emb_head_dim %lld: leave it out",
                              (long long)o->kv_channels, (long long)channels);
    if (o->qk_layernorm)
        return WEFT_KEY_ERROR("model.qk_layernorm",
                              "multi_latent_attention norms its latents, and no heads: set it to "
                              "false");
    if (o->add_qkv_bias)
        return WEFT_KEY_ERROR("model.add_qkv_bias",
                              "multi_latent_attention has no QKV: set it to false");
    if (o->position_embedding_type == WEFT_POSITION_ROPE && o->qk_pos_emb_head_dim % 2 != 0)
        return WEFT_KEY_ERROR("model.qk_pos_emb_head_dim",
                              "rotary positions need an even number of channels, not %lld",
                              (long long)o->qk_pos_emb_head_dim);
    o->kv_channels = channels;
    return WEFT_OK;
}

weft_status weft_model_options_resolve(weft_model_options *o)
{
    weft_fits fits;
    char text[WEFT_FITS_TEXT_BYTES];
    o->struct_bytes = sizeof *o;
    if (o->ffn_hidden_size == 0)
        o->ffn_hidden_size = 4 * o->hidden_size;
    if (o->moe_ffn_hidden_size == 0)
        o->moe_ffn_hidden_size = o->ffn_hidden_size;
    WEFT_TRY(resolve_latent(o));
    if (o->num_query_groups == 0)
        o->num_query_groups = o->num_attention_heads;
    if (o->kv_channels == 0) {
        fits = weft_fits_divisors_near(o->hidden_size, o->num_attention_heads);
        if (o->hidden_size % o->num_attention_heads != 0)
            return WEFT_KEY_ERROR("model.num_attention_heads",
                                  "hidden_size %lld does not divide by %lld heads; %s would, or "
                                  "kv_channels",
                                  (long long)o->hidden_size, (long long)o->num_attention_heads,
                                  weft_fits_text(&fits, text));
        o->kv_channels = o->hidden_size / o->num_attention_heads;
    }
    fits = weft_fits_divisors(o->num_attention_heads);
    if (o->num_attention_heads % o->num_query_groups != 0)
        return WEFT_KEY_ERROR("model.num_query_groups",
                              "%lld heads do not divide by %lld query groups; %s would",
                              (long long)o->num_attention_heads, (long long)o->num_query_groups,
                              weft_fits_text(&fits, text));
    if (o->max_position_embeddings == 0)
        o->max_position_embeddings = o->seq_length;
    if (o->position_embedding_type == WEFT_POSITION_LEARNED &&
        o->max_position_embeddings < o->seq_length)
        return WEFT_KEY_ERROR("model.max_position_embeddings", "%lld positions for seq_length %lld",
                              (long long)o->max_position_embeddings, (long long)o->seq_length);
    if (o->position_embedding_type == WEFT_POSITION_ROPE && !o->multi_latent_attention &&
        o->kv_channels % 2 != 0)
        return WEFT_KEY_ERROR("model.kv_channels",
                              "rotary positions need an even head dimension, not %lld",
                              (long long)o->kv_channels);
    WEFT_TRY(check_rotary(o));
    WEFT_TRY(check_scaling(o));
    WEFT_TRY(check_qk_norm(o));
    WEFT_TRY(check_windows(o));
    WEFT_TRY(check_gates(o));
    WEFT_TRY(check_mtp(o));
    return check_moe(o);
}

double weft_model_forced_load(const weft_model_options *o, int ep)
{
    const double experts = (double)o->num_experts, local = experts / ep;
    const double first = fmin(o->moe_router_forced_load, experts / (double)o->moe_router_topk);
    if (o->num_experts < 2 || !(first > 0))
        return 0;
    const double others = (experts - first) / (experts - 1);
    return fmax((first + (local - 1) * others) / local, ep > 1 ? others : 0);
}
