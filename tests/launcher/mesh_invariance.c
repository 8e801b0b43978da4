/* Mesh invariance: every mesh gives the single-rank losses over 4 steps, or as many as the argument
 * says (1e-5 relative), and every parameter after them (1e-4 relative), in fp32, auxiliary and
 * z-loss gradients included; so does every way for the tokens of MoE layers to travel, with packed
 * documents too. In bf16 the bounds are rounding's.
 *
 * Runs under mpirun with 8 ranks; a mesh of n ranks uses the first n, the others wait. Parameters
 * are compared through the checkpoints, as HDF5 sees them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "schedule/pipeline/order_text.h"
#include "tests/launcher/meshes.h"
#include "tests/launcher/weights.h"
#include "tests/world.h"

enum { MAX_STEPS = 20 };
static int num_steps = 4;

typedef struct model_case {
    const char *name, *json;
    const char *train;      /* more keys of section "train", each behind a comma; NULL: none */
    double losses, weights; /* how far off they may be, relative */
    bool documents;         /* packed, which token 3 ends */
} model_case;

#define FP32 NULL, 1e-5, 1e-4, false
#define COMMON                                                                                     \
    "\"num_attention_heads\": 4, \"seq_length\": 16, \"vocab_size\": 61, \"init_method_std\": 0.1"
#define MOE                                                                                        \
    "\"num_layers\": 4, \"hidden_size\": 24, \"ffn_hidden_size\": 32, \"num_experts\": 4, "        \
    "\"moe_aux_loss_coeff\": 0.02, \"moe_z_loss_coeff\": 0.005, " COMMON

#define LATENTS                                                                                    \
    "\"multi_latent_attention\": true, \"kv_lora_rank\": 12, \"qk_head_dim\": 6, "                 \
    "\"qk_pos_emb_head_dim\": 4, \"v_head_dim\": 8, "

static const model_case models[] = {
    {"gpt2-tied", "{\"num_layers\": 4, \"hidden_size\": 24, " COMMON "}", FP32},
    {"llama-untied",
     "{\"num_layers\": 4, \"hidden_size\": 24, \"num_query_groups\": 4, \"normalization\": "
     "\"RMSNorm\", \"swiglu\": true, \"position_embedding_type\": \"rope\", "
     "\"disable_bias_linear\": true, \"untie_embeddings_and_output_weights\": true, "
     "\"ffn_hidden_size\": 48, " COMMON "}",
     FP32},
    {"moe-top2-tied",
     "{\"moe_router_topk\": 2, \"swiglu\": true, \"normalization\": \"RMSNorm\", "
     "\"position_embedding_type\": \"rope\", " MOE "}",
     FP32},
    {"moe-top1-untied",
     "{\"moe_router_topk\": 1, \"moe_router_pre_softmax\": true, "
     "\"untie_embeddings_and_output_weights\": true, "
     "\"moe_layer_freq\": [0, 1, 0, 1], \"moe_shared_expert_intermediate_size\": 16, "
     "\"hidden_dropout\": 0.1, \"attention_dropout\": 0.1, " MOE "}",
     FP32},
    /* a value is rounded by 2^-9 of it, a loss is a mean over many; rounding alone moves key biases
     */
    {"gpt2-bf16",
     "{\"num_layers\": 4, \"hidden_size\": 24, \"hidden_dropout\": 0.1, "
     "\"attention_dropout\": 0.1, " COMMON "}",
     ", \"precision\": \"bf16\"", 1e-3, 0.25, false},
    {"two-groups",
     "{\"num_layers\": 4, \"hidden_size\": 24, \"num_query_groups\": 2, \"normalization\": "
     "\"RMSNorm\", \"swiglu\": true, \"position_embedding_type\": \"rope\", \"add_qkv_bias\": "
     "true, "
     "\"ffn_hidden_size\": 48, \"attention_dropout\": 0.1, " COMMON "}",
     FP32},
    {"one-group-bf16",
     "{\"num_layers\": 4, \"hidden_size\": 24, \"num_query_groups\": 1, "
     "\"disable_bias_linear\": true, " COMMON "}",
     ", \"precision\": \"bf16\"", 1e-3, 0.1, false},
    {"documents",
     "{\"num_layers\": 3, \"hidden_size\": 24, \"ffn_hidden_size\": 32, \"num_experts\": 4, "
     "\"moe_layer_freq\": [0, 1, 0], \"moe_router_topk\": 2, \"num_query_groups\": 4, "
     "\"position_embedding_type\": \"rope\", \"untie_embeddings_and_output_weights\": true, "
     "\"num_attention_heads\": 4, \"seq_length\": 16, \"vocab_size\": 7, "
     "\"init_method_std\": 0.1}",
     ", \"calculate_per_token_loss\": true", 1e-5, 1e-4, true},
    {"qk-norm",
     "{\"num_layers\": 2, \"hidden_size\": 24, \"num_query_groups\": 2, \"kv_channels\": 8, "
     "\"qk_layernorm\": true, \"add_qkv_bias\": true, \"add_proj_bias\": true, "
     "\"disable_bias_linear\": true, \"position_embedding_type\": \"rope\", "
     "\"rotary_interleaved\": true, " COMMON "}",
     FP32},
    {"qk-norm-across",
     "{\"num_layers\": 2, \"hidden_size\": 24, \"num_query_groups\": 2, \"kv_channels\": 8, "
     "\"normalization\": \"RMSNorm\", \"qk_layernorm\": true, "
     "\"qk_layernorm_across_heads\": true, \"position_embedding_type\": \"rope\", " COMMON "}",
     FP32},
    {"sigmoid-router",
     "{\"num_layers\": 2, \"hidden_size\": 24, \"ffn_hidden_size\": 32, \"num_experts\": 8, "
     "\"moe_router_topk\": 4, \"moe_router_score_function\": \"sigmoid\", "
     "\"moe_router_enable_expert_bias\": true, \"moe_router_bias_update_rate\": 0.01, "
     "\"moe_router_num_groups\": 4, \"moe_router_group_topk\": 2, "
     "\"moe_router_topk_scaling_factor\": 2.5, \"moe_aux_loss_coeff\": 0.02, "
     "\"moe_z_loss_coeff\": 0.005, \"moe_shared_expert_intermediate_size\": 16, "
     "\"moe_shared_expert_gate\": true, \"moe_router_bias\": true, \"swiglu\": true, "
     "\"normalization\": \"RMSNorm\", "
     "\"position_embedding_type\": \"rope\", " COMMON "}",
     FP32},
    {"windows",
     "{\"num_layers\": 4, \"hidden_size\": 24, \"num_query_groups\": 2, \"window_size\": 5, "
     "\"window_attn_skip_freq\": 2, \"rotary_base_local\": 100, \"position_embedding_type\": "
     "\"rope\", \"attention_dropout\": 0.1, " COMMON "}",
     FP32},
    {"sinks-chunks",
     "{\"num_layers\": 2, \"hidden_size\": 24, \"softmax_type\": \"learnable\", "
     "\"attention_chunk_size\": 6, \"window_attn_skip_freq\": [1, 0], \"no_rope_freq\": [0, 1], "
     "\"attn_logit_softcapping\": 2.0, \"position_embedding_type\": \"rope\", " COMMON "}",
     FP32},
    {"window-documents",
     "{\"num_layers\": 2, \"hidden_size\": 24, \"num_attention_heads\": 4, \"window_size\": 3, "
     "\"softmax_type\": \"learnable\", \"position_embedding_type\": \"rope\", "
     "\"seq_length\": 16, \"vocab_size\": 7, \"init_method_std\": 0.1}",
     ", \"calculate_per_token_loss\": true", 1e-5, 1e-4, true},
    {"gemma",
     "{\"num_layers\": 2, \"hidden_size\": 24, \"num_query_groups\": 2, \"normalization\": "
     "\"RMSNorm\", \"norm_placement\": \"sandwich\", \"apply_layernorm_1p\": true, "
     "\"qk_layernorm\": true, \"geglu\": true, \"scale_embeddings\": true, "
     "\"final_logit_softcapping\": 3.0, \"hidden_dropout\": 0.1, "
     "\"position_embedding_type\": \"rope\", \"ffn_hidden_size\": 48, " COMMON "}",
     FP32},
    {"norms-after",
     "{\"num_layers\": 2, \"hidden_size\": 24, \"normalization\": \"RMSNorm\", "
     "\"norm_placement\": \"after\", \"swiglu\": true, \"position_embedding_type\": \"rope\", "
     "\"ffn_hidden_size\": 48, " COMMON "}",
     FP32},
    {"gpt-oss",
     "{\"num_layers\": 2, \"hidden_size\": 24, \"ffn_hidden_size\": 32, \"num_experts\": 4, "
     "\"moe_router_topk\": 2, \"softmax_type\": \"learnable\", \"window_size\": 5, "
     "\"window_attn_skip_freq\": 2, \"add_qkv_bias\": true, \"add_proj_bias\": true, "
     "\"disable_bias_linear\": true, \"add_expert_bias\": true, \"moe_router_bias\": true, "
     "\"quick_geglu\": true, \"activation_func_clamp_value\": 0.5, \"glu_linear_offset\": 1.0, "
     "\"normalization\": \"RMSNorm\", \"position_embedding_type\": \"rope\", " COMMON "}",
     FP32},
    {"latents",
     "{\"num_layers\": 2, \"hidden_size\": 24, \"ffn_hidden_size\": 32, \"q_lora_rank\": 20, "
     "\"normalization\": \"RMSNorm\", \"position_embedding_type\": \"rope\", "
     "\"rotary_scaling_type\": \"yarn\", \"rotary_scaling_factor\": 4, "
     "\"original_max_position_embeddings\": 8, \"yarn_mscale_all_dim\": 1, "
     "\"attention_dropout\": 0.1, " LATENTS COMMON "}",
     FP32},
    {"latents-bf16",
     "{\"num_layers\": 2, \"hidden_size\": 24, \"disable_bias_linear\": true, "
     "\"position_embedding_type\": \"rope\", \"rotary_interleaved\": true, " LATENTS COMMON "}",
     ", \"precision\": \"bf16\"", 1e-3, 0.1, false},
    {"latents-windows",
     "{\"num_layers\": 2, \"hidden_size\": 24, \"ffn_hidden_size\": 32, \"q_lora_rank\": 20, "
     "\"normalization\": \"RMSNorm\", \"norm_placement\": \"sandwich\", \"apply_layernorm_1p\": "
     "true, \"position_embedding_type\": \"rope\", \"window_size\": 5, \"window_attn_skip_freq\": "
     "2, "
     "\"rotary_base_local\": 100, \"softmax_type\": \"learnable\", \"attn_logit_softcapping\": "
     "2.0, "
     "\"num_experts\": 4, \"moe_router_topk\": 2, " LATENTS COMMON "}",
     FP32},
    /* a gradient's directions that are rounding alone grow by 3.4^5 */
    {"muon-moe",
     "{\"num_layers\": 2, \"hidden_size\": 24, \"ffn_hidden_size\": 32, \"num_experts\": 4, "
     "\"moe_router_topk\": 2, \"num_query_groups\": 2, \"swiglu\": true, \"add_expert_bias\": "
     "true, \"normalization\": \"RMSNorm\", \"position_embedding_type\": \"rope\", " COMMON "}",
     ", \"optimizer\": \"muon\", \"muon_extra_scale_factor\": 0.2", 1e-5, 1e-4, false},
    {"muon-latents-bf16",
     "{\"num_layers\": 2, \"hidden_size\": 24, \"q_lora_rank\": 20, \"position_embedding_type\": "
     "\"rope\", " LATENTS COMMON "}",
     ", \"precision\": \"bf16\", \"optimizer\": \"muon\", \"muon_extra_scale_factor\": 0.2", 1e-3,
     0.25, false},
};

typedef struct mesh_case {
    int model, world;
    const char *mesh;
    const char *parallel; /* more keys of section "parallel"; NULL: none */
} mesh_case;

#define PIPELINE(n, reuse) "\"moe_num_partitions\": " #n ", \"moe_memory_reuse\": \"" #reuse "\""
#define FORM(form, chunks) "\"moe_all_to_all\": \"" #form "\", \"moe_all_to_all_chunks\": " #chunks

#define PAIRS "\"overlap_moe_expert_parallel_comm\": true"
#define CONTEXT(type) "\"cp_comm_type\": \"" type "\""
#define DEALT "\"context_parallel_load_balancer\": \"documents\""

/* As PyTorch wrote it: tests/oracle/make_schedules.py. */
#define ORDER(name) "\"pipeline_schedule_file\": \"tests/oracle/golden/interleaved_" #name ".csv\""

/* Orders as other dialects write them, which the test does. */
static char zero_bubble[320], v_order[320], zero_bubble_pairs[400];

/* n is chosen, from the costs of two emulated nodes on which partitions by peers win. */
static char chosen_peers[400];

/* Each axis, binding and option alone and together. */
static const mesh_case meshes[] = {
    {0, 2, "cp=2", NULL},
    {0, 4, "cp=4", NULL},
    {0, 4, "cp=4", CONTEXT("all_gather")},
    {0, 4, "cp=4", CONTEXT("a2a")},
    {0, 4, "cp=4", CONTEXT("a2a+p2p") ", \"hierarchical_context_parallel_sizes\": [2, 2]"},
    {1, 4, "cp=2,tp=2,sp=1", CONTEXT("p2p")},
    {1, 4, "cp=2,pp=2,vp=2", CONTEXT("a2a")},
    {3, 2, "cp=2", CONTEXT("p2p")},
    {3, 2, "cp=2,binding=dp,ep=2", CONTEXT("a2a")},
    {0, 2, "dp=2,zero=1", NULL},
    {1, 4, "dp=4,zero=2", NULL},
    {0, 4, "dp=4,zero=3", NULL},
    {1, 4, "tp=2,dp=2,sp=1,zero=3", "\"overlap_grad_reduce\": false"},
    {1, 4, "pp=2,dp=2,vp=2,zero=3", NULL},
    {3, 4, "pp=2,dp=2,vp=2,binding=dp,ep=2,zero=2,schedule=gpipe", NULL},
    {0, 4, "tp=2,sp=1,pp=2", NULL},
    {0, 2, "pp=2,layout=E|ttttL", NULL},
    {0, 1, "pp=1,vp=4", NULL},
    {0, 2, "pp=2,vp=2", NULL},
    {0, 4, "pp=4,layout=E|t|||t|t|t|L", NULL},
    {0, 4, "pp=2,dp=2,vp=2,schedule=gpipe,zero=1", NULL},
    {0, 4, "pp=4,layout=Et||(t)*2|tL", NULL},
    {0, 8, "tp=2,pp=2,dp=2,sp=1,zero=1", NULL},
    {0, 2, "pp=2,vp=2", ORDER(p2_v2_m8)},
    {0, 4, "pp=4,layout=E|t|||t|t|t|L", ORDER(p4_v2_m8)},
    {1, 4, "pp=2,dp=2,layout=Et||t|t||tL", ORDER(p2_v3_m4)},
    {0, 2, "pp=2,vp=2", zero_bubble},
    {1, 2, "pp=2,vp=2", v_order},
    {3, 4, "pp=2,dp=2,binding=dp,ep=2", zero_bubble_pairs},
    /* backwards in two halves, stages in a V */
    {0, 2, "pp=2,schedule=zb_h1", NULL},
    {1, 4, "pp=2,dp=2,vp=2,schedule=zb_h1,zero=1", NULL},
    {1, 4, "pp=2,dp=2,schedule=zb_h1,zero=2", "\"overlap_grad_reduce\": false"},
    {0, 4, "pp=4,schedule=zbv,layout=E|t|t||t||t|L", NULL},
    {4, 4, "tp=2,pp=2,sp=1,schedule=zbv", NULL},
    {1, 4, "cp=2,pp=2,schedule=v_half", NULL},
    {0, 2, "pp=2,schedule=v_min", NULL},
    {0, 4, "pp=2,dp=2,schedule=dualpipev,zero=3", NULL},
    {3, 4, "pp=2,dp=2,binding=dp,ep=2,schedule=zb_h1,zero=1", NULL},
    {2, 4, "pp=2,dp=2,binding=dp,ep=2,schedule=zbv,zero=3", PIPELINE(2, none)},
    {3, 4, "tp=2,pp=2,binding=tp,sp=1,schedule=dualpipev", NULL},
    {2, 4, "pp=2,dp=2,binding=dp,ep=2,schedule=zb_h1", PIPELINE(2, s1)},
    {7, 4, "cp=2,pp=2,schedule=zb_h1", DEALT},
    {1, 2, "pp=2,schedule=auto", NULL},
    {0, 4, "pp=2,dp=2,vp=2,schedule=auto,zero=1", NULL},
    {1, 4, "pp=2,cp=2,vp=2,schedule=auto,zero=0", NULL},
    {3, 4, "pp=2,dp=2,binding=dp,ep=2,vp=2,schedule=auto", NULL},
    {1, 4, "tp=4", NULL},
    {1, 4, "pp=2,dp=2,zero=1", NULL},
    {1, 4, "pp=4,schedule=gpipe,layout=auto", NULL},
    {1, 2, "pp=2,layout=E|t|t|t|t|L", "\"microbatch_group_size_per_virtual_pipeline_stage\": 3"},
    {1, 4, "tp=2,pp=2,layout=Et||t|t||tL,sp=1", NULL},
    {1, 8, "tp=4,pp=2,sp=1", NULL},
    {2, 2, "dp=2,binding=dp,ep=2", NULL},
    {2, 2, "dp=2,binding=dp,ep=1,zero=1", NULL},
    {2, 4, "tp=2,pp=2,binding=tp", NULL},
    {3, 8, "pp=4,dp=2,zero=1,layout=E|ttt||tL", NULL},
    {3, 4, "pp=2,dp=2,vp=2,binding=dp,ep=2", NULL},
    {2, 8, "tp=2,pp=2,dp=2,vp=2,binding=dp,ep=2,etp=2,sp=1,zero=1", NULL},
    {2, 4, "tp=2,dp=2,binding=dp,ep=2,etp=2", NULL},
    {2, 4, "tp=2,dp=2,binding=dp,ep=4,sp=1,zero=1", NULL},
    {2, 4, "tp=4,binding=tp,sp=1", NULL},
    {2, 8, "pp=2,dp=4,binding=dp,ep=4,schedule=gpipe", NULL},
    {3, 4, "dp=4,binding=dp,ep=2,zero=1", NULL},
    {3, 4, "dp=4,binding=dp,ep=2,zero=3", PIPELINE(2, s1)},
    {2, 4, "dp=4,binding=dp,ep=4,zero=3", NULL},
    {3, 4, "tp=2,dp=2,binding=dp,ep=2", NULL},
    {3, 4, "tp=2,pp=2,binding=tp,schedule=gpipe", NULL},
    {3, 8, "tp=2,pp=2,dp=2,binding=tp,sp=1,zero=1", NULL},
    {3, 8, "tp=2,dp=4,binding=dp,ep=4,etp=2,zero=1", NULL},
    {2, 2, "dp=2,binding=dp,ep=2", PIPELINE(3, s1)},
    {2, 4, "tp=2,dp=2,binding=dp,ep=4", PIPELINE(2, none)},
    {2, 4, "tp=2,dp=2,binding=dp,ep=2,etp=2,sp=1", PIPELINE(4, s4) ", " FORM(o2, 3)},
    {2, 8, "pp=2,dp=4,binding=dp,ep=4", PIPELINE(8, s2)},
    {3, 4, "dp=4,binding=dp,ep=2,zero=1", "\"moe_partition_by\": \"peers\""},
    {3, 4, "dp=4,binding=dp,ep=4", chosen_peers},
    {3, 4, "dp=4,binding=dp,ep=2,zero=2", PIPELINE(2, s1) ", \"moe_partition_by\": \"experts\""},
    {3, 8, "tp=2,dp=4,binding=dp,ep=4,etp=2", PIPELINE(4, s3) ", " FORM(direct, 2)},
    /* pairs of a forward and a backward: of other models in tests/launcher/same_bits.c */
    {10, 4, "cp=2,dp=2,binding=dp,ep=2", PAIRS},
    {1, 4, "cp=2,dp=2,zero=1", NULL},
    {2, 4, "cp=2,dp=2,binding=dp,ep=2", NULL},
    {2, 4, "cp=2,dp=2,binding=dp,ep=2,order=tp-ep-dp-cp-pp", NULL},
    {2, 8, "tp=2,cp=2,dp=2,binding=dp,ep=4,etp=2,sp=1,zero=1", PIPELINE(2, s4) ", " FORM(o2, 3)},
    {3, 4, "cp=4,binding=dp,ep=4", "\"moe_partition_by\": \"peers\""},
    {3, 8, "tp=2,cp=2,pp=2,binding=tp,sp=1,zero=1", NULL},
    {1, 4, "cp=2,dp=2,zero=3", NULL},
    {3, 4, "cp=4,binding=dp,ep=2,zero=2", CONTEXT("a2a")},
    {7, 4, "cp=4,binding=dp,ep=4,zero=3", NULL},
    {7, 4, "cp=4,binding=dp,ep=2,zero=2", DEALT ", " CONTEXT("all_gather")},
    {7, 4, "cp=2,dp=2,binding=dp,ep=2,order=tp-ep-dp-cp-pp", DEALT},
    {7, 4, "tp=2,cp=2,binding=tp,sp=1", DEALT ", " CONTEXT("p2p")},
    {7, 4, "pp=2,dp=2,binding=dp,ep=2,zero=3", NULL},
    /* key/value heads of fewer groups than ranks */
    {5, 4, "tp=4", NULL},
    {5, 8, "tp=4,dp=2,sp=1,zero=1", NULL},
    {5, 8, "tp=4,dp=2,sp=1,zero=2", NULL},
    {5, 8, "tp=4,dp=2,zero=3", NULL},
    {5, 8, "tp=4,pp=2,sp=1,vp=2", "\"overlap_grad_reduce\": false"},
    {5, 8, "tp=4,cp=2,sp=1", CONTEXT("p2p")},
    {5, 8, "tp=4,cp=2", CONTEXT("all_gather")},
    {6, 2, "tp=2,sp=1", NULL},
    {6, 4, "tp=4", NULL},
    /* norms of queries and keys */
    {8, 4, "tp=4", NULL},
    {8, 4, "tp=2,cp=2,sp=1", CONTEXT("p2p")},
    {8, 4, "cp=2,pp=2", CONTEXT("a2a")},
    {8, 4, "tp=2,dp=2,sp=1,zero=3", NULL},
    {9, 4, "tp=4,sp=1", NULL},
    {9, 8, "tp=4,cp=2", CONTEXT("all_gather")},
    {9, 4, "tp=2,pp=2,sp=1", NULL},
    {9, 8, "tp=4,dp=2,zero=2", NULL},
    /* sigmoids, groups, and a bias that the load moves */
    {10, 4, "tp=2,dp=2,binding=dp,ep=4,sp=1,zero=1", NULL},
    {10, 4, "tp=2,pp=2,binding=tp", NULL},
    {10, 4, "cp=2,dp=2,binding=dp,ep=2,zero=3", PIPELINE(2, s1)},
    {10, 8, "tp=2,dp=4,binding=dp,ep=4,etp=2,zero=2", NULL},
    /* windows, chunks and sinks */
    {11, 4, "tp=4,sp=1", NULL},
    {11, 4, "cp=4", CONTEXT("p2p")},
    {11, 4, "tp=2,cp=2,sp=1", CONTEXT("all_gather")},
    {11, 4, "pp=2,cp=2,schedule=zb_h1", CONTEXT("a2a")},
    {12, 4, "tp=2,dp=2,zero=3", NULL},
    {12, 4, "cp=4", CONTEXT("p2p")},
    {12, 4, "tp=2,cp=2", CONTEXT("all_gather")},
    {12, 4, "cp=4", CONTEXT("a2a+p2p") ", \"hierarchical_context_parallel_sizes\": [2, 2]"},
    {12, 2, "pp=2,schedule=zb_h1", NULL},
    {13, 4, "cp=2,dp=2", DEALT},
    /* Muon */
    {20, 2, "tp=2,sp=1,binding=tp", NULL},
    {20, 2, "dp=2,zero=1", NULL},
    {20, 4, "pp=2,dp=2,binding=dp,ep=2,zero=0", NULL},
    {20, 4, "tp=4,sp=1,binding=tp", NULL},
    {20, 4, "tp=2,dp=2,binding=dp,ep=2,etp=2,zero=1", NULL},
    {20, 4, "cp=2,dp=2,binding=dp,ep=2,zero=1", "\"overlap_grad_reduce\": false"},
    {21, 4, "tp=2,dp=2,sp=1,zero=1", NULL},
    /* norms behind, caps and scales; biases of experts */
    {14, 4, "tp=2,pp=2,sp=1", NULL},
    {14, 4, "cp=2,dp=2,zero=3", NULL},
    {14, 2, "pp=2,schedule=zb_h1", NULL},
    {15, 4, "tp=4,sp=1", NULL},
    {15, 4, "pp=2,dp=2,zero=2", NULL},
    {16, 4, "tp=2,dp=2,binding=dp,ep=4,sp=1,zero=1", NULL},
    {16, 4, "tp=2,dp=2,binding=dp,ep=2,etp=2,sp=1", PIPELINE(2, s1)},
    {16, 4, "tp=2,pp=2,binding=tp", NULL},
    {16, 4, "cp=2,dp=2,binding=dp,ep=2,zero=3", NULL},
    {16, 4, "pp=2,dp=2,binding=dp,ep=2,schedule=zb_h1", NULL},
    {4, 4, "cp=4", NULL},
    {4, 4, "tp=2,cp=2,sp=1", NULL},
    /* keys and values of latents */
    {17, 2, "tp=2", NULL},
    {17, 4, "tp=2,cp=2,sp=1", CONTEXT("p2p")},
    {17, 4, "cp=2,pp=2", CONTEXT("a2a")},
    {17, 4, "cp=4", CONTEXT("all_gather")},
    {17, 4, "tp=2,dp=2,sp=1,zero=3", NULL},
    {17, 4, "pp=2,dp=2,schedule=zb_h1,zero=2", NULL},
    {18, 4, "tp=2,pp=2,sp=1,schedule=zb_h1", NULL},
    {18, 4, "tp=4,sp=1", NULL},
    {18, 4, "cp=2,tp=2", CONTEXT("a2a")},
    {19, 4, "tp=2,cp=2,sp=1", CONTEXT("p2p")},
    {19, 4, "cp=4", CONTEXT("all_gather")},
    {19, 4, "cp=2,tp=2", CONTEXT("a2a")},
    {19, 4, "pp=2,dp=2,binding=dp,ep=2,zero=0", PAIRS},
};

/* Corners of what is kept otherwise than on one rank: more in same_bits.c. */
#define OFFLOAD(modules)                                                                           \
    ", \"fine_grained_activation_offloading\": true, \"offload_modules\": [" modules "]"
#define RECOMPUTE(modules)                                                                         \
    ", \"recompute_granularity\": \"selective\", \"recompute_modules\": [" modules "]"
static const struct {
    mesh_case mesh;
    const char *train;
} kept[] = {
    {{3, 4, "dp=4,binding=dp,ep=4,zero=3", NULL}, OFFLOAD("\"block\"") RECOMPUTE("\"moe\"")},
    {{0, 2, "pp=2,schedule=zb_h1", NULL}, OFFLOAD("\"mlp\"")},
    {{1, 2, "pp=2,schedule=zbv", NULL}, RECOMPUTE("\"core_attn\"")},
    {{0, 2, "pp=2,schedule=zbv", NULL},
     ", \"recompute_granularity\": \"full\", \"recompute_method\": \"uniform\""},
    {{3, 4, "pp=2,dp=2,binding=dp,ep=2,schedule=zb_h1", NULL}, RECOMPUTE("\"moe\"")},
    {{8, 4, "cp=2,pp=2", CONTEXT("a2a")}, RECOMPUTE("\"core_attn\"")},
    {{9, 4, "tp=2,pp=2,sp=1", NULL}, OFFLOAD("\"core_attn\"") RECOMPUTE("\"mlp\"")},
    {{10, 4, "dp=4,binding=dp,ep=4,zero=1", NULL}, RECOMPUTE("\"moe\"")},
    {{9, 4, "tp=4", NULL}, ", \"recompute_granularity\": \"full\""},
    {{11, 4, "cp=2,pp=2", NULL}, RECOMPUTE("\"core_attn\"")},
    {{12, 2, "cp=2", CONTEXT("a2a")}, OFFLOAD("\"core_attn\"")},
    {{14, 4, "tp=2,pp=2,sp=1", NULL}, RECOMPUTE("\"mlp\", \"core_attn\"")},
    {{15, 2, "tp=2", NULL}, ", \"recompute_granularity\": \"full\""},
    {{16, 4, "dp=4,binding=dp,ep=4,zero=1", NULL}, RECOMPUTE("\"moe\"")},
    {{17, 4, "tp=2,pp=2,sp=1", NULL}, OFFLOAD("\"core_attn\"") RECOMPUTE("\"mlp\"")},
    {{17, 2, "cp=2", CONTEXT("p2p")}, RECOMPUTE("\"core_attn\"")},
    {{17, 2, "tp=2,sp=1", NULL}, ", \"recompute_granularity\": \"full\""},
    {{17, 4, "tp=2,pp=2,sp=1", NULL}, RECOMPUTE("\"mla_up_proj\"")},
    {{17, 4, "cp=2,tp=2", CONTEXT("a2a")}, RECOMPUTE("\"core_attn\", \"mla_up_proj\"")},
};
enum {
    NUM_MESHES = sizeof meshes / sizeof *meshes,
    NUM_KEPT = sizeof kept / sizeof *kept,
    NUM_MODELS = sizeof models / sizeof *models
};

/* Trains and leaves losses and a checkpoint; the world's ranks alone. */
static void train(weft_comm *world, const model_case *model, const mesh_case *mesh,
                  const char *more_train, const char *name, double losses[MAX_STEPS])
{
    char more[1024] = "", all[512];
    weft_step_result results[MAX_STEPS];
    if (mesh->parallel)
        snprintf(more, sizeof more, ", %s", mesh->parallel);
    snprintf(all, sizeof all, "%s%s", model->train ? model->train : "", more_train);
    mesh_training what = {.name = name,
                          .model = model->json,
                          .mesh = mesh->mesh,
                          .parallel = more,
                          .batch = 8,
                          .steps = num_steps,
                          .train = all,
                          .saves = true};
    if (model->documents)
        mesh_set_documents(&what, 3);
    mesh_run(world, &what, results);
    for (int i = 0; i < num_steps; i++)
        losses[i] = results[i].loss;
    EXPECT(mesh->parallel != chosen_peers || results[0].moe.pipeline.peer_group > 0,
           "%s: chosen %s", name, weft_moe_pipeline_text(&results[0].moe.pipeline).text);
}

static weights_difference compare(const char *name, const model_case *model)
{
    char steps[2][512];
    snprintf(steps[0], sizeof steps[0], "%s/%s/step-%d", world_folder, name, num_steps);
    snprintf(steps[1], sizeof steps[1], "%s/%s/step-%d", world_folder, model->name, num_steps);
    const weights_difference d = weights_compare(steps[0], steps[1], "model/");
    EXPECT(d.count > 0 && d.worst <= model->weights, "%s: %s of %d datasets is off by %.3g", name,
           d.where, d.count, d.worst);
    if (strstr(model->json, "enable_expert_bias")) { /* its moments are a step's load */
        const weights_difference load = weights_compare(
            steps[0], steps[1], "optimizer/exp_avg/decoder.layers.1.mlp.router.expert_bias");
        EXPECT(load.count == 1 && load.worst <= model->weights, "%s: %d loads, off by %.3g", name,
               load.count, load.worst);
    }
    return d;
}

/* An exchange's start takes as long as a tenth of the experts: own rows first hide it. */
static void write_cluster(int rank)
{
    char path[300];
    weft_cluster c = {.name = "made up", .num_nodes = 2, .ranks_per_node = 2};
    c.interference = weft_interference_none();
    for (int kind = 0; kind < WEFT_NUM_COSTS; kind++) {
        bool computes = strcmp(weft_cost_unit((weft_cost_kind)kind), "FLOPs") == 0;
        bool travels = kind == WEFT_COST_ALL_TO_ALL || kind == WEFT_COST_ALL_TO_ALL_INSIDE;
        c.costs[kind].curve = weft_curve_linear(travels ? 1000 : 1, computes ? 5 : 1e6);
        c.costs[kind].peak = 1e12;
    }
    snprintf(path, sizeof path, "%s/cluster.json", world_folder);
    snprintf(chosen_peers, sizeof chosen_peers, "\"moe_num_partitions\": 0, \"cluster\": \"%s\"",
             path);
    if (rank == 0)
        EXPECT_OK(weft_cluster_write(&c, path));
}

/* A kind's order as a file: behind a byte-order mark, B for the input's half, cells idle. */
static void write_order(int rank, weft_pipeline_kind kind, const weft_order_shape *shape,
                        const char *more, char *key, size_t bytes)
{
    weft_arena arena = {0};
    weft_order orders[2];
    char path[300], *text = NULL;
    size_t length = 0;
    snprintf(path, sizeof path, "%s/order-%d-%d.csv", world_folder, (int)kind, (int)shape->pairs);
    snprintf(key, bytes, "\"pipeline_schedule_file\": \"%s\"%s", path, more);
    FILE *memory = open_memstream(&text, &length), *file = rank == 0 ? fopen(path, "w") : NULL;
    EXPECT(memory && (file || rank > 0), "%s", path);
    EXPECT_OK(weft_order_make(kind, shape, &arena, orders));
    EXPECT_OK(weft_order_print(shape, orders, memory));
    fclose(memory);
    if (file)
        fputs("\xef\xbb\xbf", file);
    for (size_t i = 0; file && i < length; i++)
        fputs(text[i] == 'I' && kind == WEFT_PIPELINE_ZB_H1 ? "B"
              : text[i] == ',' && i % 3 == 0                ? ", ,"
                                                            : (char[]){text[i], '\0'},
              file);
    EXPECT(!file || fclose(file) == 0, "%s", path);
    free(text);
    weft_arena_release(&arena);
}

static void write_orders(int rank)
{
    const weft_order_shape loop = {.num_ranks = 2, .num_chunks = 2, .num_micro_batches = 8};
    const weft_order_shape in_v = {
        .num_ranks = 2, .num_chunks = 2, .num_micro_batches = 8, .is_v = true};
    const weft_order_shape pairs = {
        .num_ranks = 2, .num_chunks = 1, .num_micro_batches = 4, .pairs = true};
    write_order(rank, WEFT_PIPELINE_ZB_H1, &loop, "", zero_bubble, sizeof zero_bubble);
    write_order(rank, WEFT_PIPELINE_DUALPIPEV, &in_v, "", v_order, sizeof v_order);
    write_order(rank, WEFT_PIPELINE_ZB_H1, &pairs, ", " PAIRS, zero_bubble_pairs,
                sizeof zero_bubble_pairs);
}

/* The ranks that a mesh leaves out sleep until rank 0 is through with it: in a collective call they
 * would take the processor from those that train. */
static void await(int rank, bool trains, int i)
{
    char path[300];
    snprintf(path, sizeof path, "%s/trained-%d", world_folder, i);
    FILE *file = rank == 0 ? fopen(path, "w") : NULL;
    EXPECT(rank != 0 || (file && fclose(file) == 0), "%s", path);
    while (!trains && access(path, F_OK) != 0)
        usleep(2000);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        num_steps = atoi(argv[1]);
    double reference[NUM_MODELS][MAX_STEPS], losses[MAX_STEPS];
    EXPECT(chdir(getenv("WEFT_SOURCE_DIR")) == 0, "no WEFT_SOURCE_DIR");
    weft_comm *world = world_begin(8);
    const int rank = weft_comm_rank(world);
    world_make_folder(world);
    write_cluster(rank);
    write_orders(rank);
    EXPECT_OK(weft_comm_barrier(world));

    weft_comm *part = world_part(world, 1);
    static const mesh_case single = {0, 1, "tp=1,pp=1,dp=1,ep=1,etp=1", NULL};
    for (int m = 0; m < NUM_MODELS && part; m++)
        train(part, &models[m], &single, "", models[m].name, reference[m]);
    await(rank, part != NULL, NUM_MESHES + NUM_KEPT);
    weft_comm_destroy(part);

    for (int i = 0; i < NUM_MESHES + NUM_KEPT; i++) {
        const mesh_case *c = i < NUM_MESHES ? &meshes[i] : &kept[i - NUM_MESHES].mesh;
        char name[32];
        snprintf(name, sizeof name, "mesh-%d", i);
        part = world_part(world, c->world);
        if (part)
            train(part, &models[c->model], c, i < NUM_MESHES ? "" : kept[i - NUM_MESHES].train,
                  name, losses);
        await(rank, part != NULL, i);
        weft_comm_destroy(part);
        if (rank != 0)
            continue;
        const model_case *model = &models[c->model];
        double worst_loss = 0;
        for (int s = 0; s < num_steps; s++) {
            double r = reference[c->model][s], relative = fabs(losses[s] - r) / r;
            EXPECT(relative <= model->losses, "%s on %s: step %d loss %.9g against %.9g",
                   models[c->model].name, c->mesh, s + 1, losses[s], r);
            worst_loss = relative > worst_loss ? relative : worst_loss;
        }
        const weights_difference weights = compare(name, model);
        printf("%-16s %d ranks %-48s loss %.1e  %d tensors %.1e\n", models[c->model].name, c->world,
               c->mesh, worst_loss, weights.count, weights.worst);
        fflush(stdout);
    }
    return world_finish(world);
}
