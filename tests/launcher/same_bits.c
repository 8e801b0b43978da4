/* What must not change a bit: losses, gradient norms and dropped tokens of a mesh, with dropout, in
 * bf16, with experts that drop tokens, in every form that MoE layers and attention run in, under
 * every schedule and every sharding.
 *   recompute  what is recomputed, beside what is kept
 *   offload    what is offloaded, beside what stays on the device
 *   pairs      pairs of a forward and a backward, whole or in two halves, beside the same schedule
 *              without; their memory is the planned one (tests/launcher/meshes.h)
 *   forms      how tokens come to tensor-sharded experts, and runs of experts, beside the baseline
 *
 * Runs under mpirun with 4 ranks: test_same_bits recompute|offload|pairs|forms. */
#include <stdio.h>
#include <string.h>

#include "tests/launcher/meshes.h"
#include "tests/world.h"

enum { NUM_STEPS = 3 };

#define DROPOUT ", \"hidden_dropout\": 0.1, \"attention_dropout\": 0.1"
#define GPT2_OF(layers) MESH_SIZES(layers) DROPOUT "}"
#define LLAMA_OF(layers)                                                                           \
    MESH_SIZES(layers)                                                                             \
    ", \"normalization\": \"RMSNorm\", \"swiglu\": true, \"num_query_groups\": 2, "                \
    "\"position_embedding_type\": \"rope\", \"disable_bias_linear\": true}"
/* Experts that drop tokens; freq: moe_layer_freq of the layers. */
#define MOE_OF(layers, freq)                                                                       \
    MESH_SIZES(layers)                                                                             \
    DROPOUT ", \"num_experts\": 4, \"moe_aux_loss_coeff\": 0.02, \"moe_z_loss_coeff\": "           \
            "0.005, \"moe_expert_capacity_factor\": 1.0, \"moe_layer_freq\": [" freq "], "         \
            "\"moe_shared_expert_intermediate_size\": 16}"
#define GPT2 GPT2_OF(4)
#define LLAMA LLAMA_OF(4)
#define MOE MOE_OF(4, "1, 0, 1, 1")
#define UNEVEN MOE_OF(4, "1, 1, 1, 0") /* in virtual stages of a rank */
#define UNTIED                                                                                     \
    MESH_SIZES(4)                                                                                  \
    DROPOUT ", \"num_experts\": 4, \"moe_aux_loss_coeff\": 0.02, \"moe_router_topk\": 2, "         \
            "\"moe_layer_freq\": [0, 1, 1, 1], \"moe_shared_expert_intermediate_size\": 16, "      \
            "\"untie_embeddings_and_output_weights\": true}"
#define DEEP_GPT2 GPT2_OF(6)
#define DEEP_LLAMA LLAMA_OF(6)
#define DEEP_MOE MOE_OF(6, "1, 0, 1, 1, 0, 1")

/* Keys of section "train", each behind a comma. */
#define FULL(method, num)                                                                          \
    ", \"recompute_granularity\": \"full\", \"recompute_method\": \"" method                       \
    "\", \"recompute_num_layers\": " #num
#define SELECTIVE(modules)                                                                         \
    ", \"recompute_granularity\": \"selective\", \"recompute_modules\": [" modules "]"
#define OFFLOAD(modules)                                                                           \
    ", \"fine_grained_activation_offloading\": true, \"offload_modules\": [" modules "]"
#define BLOCK OFFLOAD("\"block\"")
#define ALL OFFLOAD("\"core_attn\", \"mlp\", \"moe\"")
/* And of section "parallel". */
#define PARTS(n, reuse) ", \"moe_num_partitions\": " #n ", \"moe_memory_reuse\": \"" #reuse "\""
#define FORM(form, chunks)                                                                         \
    ", \"moe_all_to_all\": \"" #form "\", \"moe_all_to_all_chunks\": " #chunks
#define CONTEXT(form) ", \"cp_comm_type\": \"" form "\""
#define CHUNKS ", \"tp_comm_overlap\": true, \"tp_comm_overlap_chunks\": 2"
#define PAIRS ", \"overlap_moe_expert_parallel_comm\": true"
#define BY_EXPERTS ", \"moe_partition_by\": \"experts\""
#define SHARDED "tp=2,dp=2,binding=dp,ep=2,etp=2"

typedef struct same_case {
    int world; /* ranks */
    const char *model, *mesh;
    const char *parallel; /* more keys of section "parallel"; NULL: none */
    const char *train;    /* more keys of section "train" */
    const char *change;   /* more keys, with which bits stay the same */
} same_case;

static const same_case recompute[] = {
    {1, GPT2, "tp=1", NULL, "", FULL("uniform", 1)},
    {1, LLAMA, "tp=1", NULL, BF16, FULL("uniform", 3)},
    {1, MOE, "pp=1,vp=4", NULL, BF16, FULL("block", 1)},
    {2, GPT2, "pp=2", NULL, BF16, FULL("uniform", 2)},
    {2, GPT2, "pp=2,schedule=gpipe", NULL, "", FULL("uniform", 1)},
    {2, GPT2, "pp=2,vp=2", NULL, "", FULL("uniform", 1)},
    {2, LLAMA, "pp=2", NULL, "", FULL("block", 1)},
    {4, LLAMA, "tp=2,pp=2,sp=1", NULL, "", FULL("uniform", 1)},
    {4, GPT2, "pp=4,layout=E|t|||t|t|t|L", NULL, "", FULL("uniform", 2)},
    {2, MOE, "pp=2", NULL, "", FULL("uniform", 2)},
    {2, MOE, "tp=2,binding=tp,sp=1", NULL, "", FULL("uniform", 1)},
    {2, MOE, "dp=2,binding=dp,ep=2,zero=1", NULL, BF16, FULL("uniform", 4)},
    {4, MOE, "pp=2,dp=2,binding=dp,ep=2", PARTS(3, s1), "", FULL("uniform", 1)},
    {2, MOE, "dp=2,binding=dp,ep=2", PARTS(4, s2), "", FULL("uniform", 1)},
    {2, MOE, "dp=2,binding=dp,ep=2", PARTS(2, s3), "", FULL("block", 3)},
    {4, MOE, "pp=2,vp=2,dp=2,binding=dp,ep=2", PARTS(2, s4), "", FULL("uniform", 1)},
    {4, MOE, "dp=4,binding=dp,ep=4", ", \"moe_partition_by\": \"peers\"", "", FULL("uniform", 1)},
    {4, MOE, "tp=2,dp=2,binding=dp,ep=2,etp=2", PARTS(4, s4) FORM(o2, 3), "", FULL("block", 1)},
    {4, MOE, "tp=2,dp=2,binding=dp,ep=2,etp=2", PARTS(2, none) FORM(o1, 1), "", FULL("uniform", 1)},
    {1, GPT2, "tp=1", NULL, BF16, SELECTIVE("\"core_attn\", \"mlp\"")},
    {2, LLAMA, "tp=2,sp=1", NULL, "", SELECTIVE("\"mlp\", \"layernorm\"")},
    {2, GPT2, "pp=2,schedule=gpipe", NULL, "", SELECTIVE("\"mlp\"")},
    {2, LLAMA, "pp=2,vp=2", NULL, BF16, SELECTIVE("\"core_attn\"")},
    {1, MOE, "tp=1", NULL, "", SELECTIVE("\"shared_experts\", \"mlp\"")},
    {2, MOE, "pp=2", NULL, BF16, SELECTIVE("\"moe\", \"core_attn\"")},
    {4, MOE, "tp=2,dp=2,binding=tp,sp=1", NULL, "", SELECTIVE("\"moe\", \"shared_experts\"")},
    {4, MOE, "tp=2,dp=2,binding=dp,ep=4", PARTS(3, s4), "", SELECTIVE("\"moe\"")},
    {2, MOE, "dp=2,binding=dp,ep=2", PARTS(4, none), "", SELECTIVE("\"moe\", \"mlp\"")},
    {4, MOE, "tp=2,dp=2,binding=dp,ep=2,etp=2", PARTS(2, s2) FORM(o2, 2), "",
     SELECTIVE("\"moe\", \"moe_act\"")},
    /* pairs of a forward and a backward */
    {2, MOE, "dp=2,binding=dp,ep=2", PAIRS, "", FULL("uniform", 1)},
    {4, MOE, "pp=2,dp=2,vp=2,binding=dp,ep=2", PAIRS, BF16, FULL("uniform", 2)},
    {4, MOE, "pp=2,dp=2,binding=dp,ep=2", PAIRS, "", SELECTIVE("\"moe\", \"mlp\"")},
    {4, MOE, "dp=4,binding=dp,ep=2,zero=3", PAIRS, "", FULL("block", 3)},
    {4, MOE, "tp=2,dp=2,binding=dp,ep=4,sp=1,zero=2", PAIRS, BF16,
     SELECTIVE("\"core_attn\", \"shared_experts\"")},
    /* packed documents */
    {4, LLAMA, "cp=4", ", \"context_parallel_load_balancer\": \"documents\"", "",
     SELECTIVE("\"core_attn\"")},
    {4, GPT2, "cp=2,pp=2", NULL, BF16, FULL("uniform", 1)},
};

static const same_case offload[] = {
    {1, DEEP_GPT2, "tp=1", NULL, "", BLOCK},
    {1, DEEP_GPT2, "tp=1", NULL, BF16, OFFLOAD("\"core_attn\"")},
    {1, DEEP_LLAMA, "tp=1", NULL, "", OFFLOAD("\"mlp\"")},
    {1, DEEP_LLAMA, "pp=1,vp=3", NULL, BF16, BLOCK},
    {1, DEEP_MOE, "tp=1", NULL, "", OFFLOAD("\"moe\"")},
    {1, DEEP_MOE, "tp=1", NULL, BF16, BLOCK},
    {2, DEEP_GPT2, "pp=2", NULL, BF16, BLOCK},
    {2, DEEP_GPT2, "pp=2,schedule=gpipe", NULL, "", BLOCK},
    {2, DEEP_GPT2, "pp=2,vp=2", NULL, "", BLOCK},
    {2, DEEP_LLAMA, "pp=2", NULL, "", ALL},
    {2, DEEP_LLAMA, "pp=2,vp=2", NULL, BF16, OFFLOAD("\"core_attn\"")},
    {2, DEEP_GPT2, "pp=2,schedule=gpipe", NULL, BF16, OFFLOAD("\"mlp\"")},
    {4, DEEP_GPT2, "pp=4,layout=E|tttt||ttL", NULL, "", BLOCK},
    {4, DEEP_LLAMA, "tp=2,pp=2,sp=1", NULL, "", BLOCK},
    {4, DEEP_LLAMA, "tp=2,pp=2,vp=3,sp=1", NULL, "", ALL},
    {2, DEEP_GPT2, "dp=2,zero=1", NULL, BF16, BLOCK},
    {4, DEEP_GPT2, "dp=4,zero=2", NULL, "", BLOCK},
    {4, DEEP_LLAMA, "dp=4,zero=3", NULL, BF16, BLOCK},
    {4, DEEP_GPT2, "pp=2,dp=2,vp=2,zero=3", NULL, "", BLOCK},
    {4, DEEP_GPT2, "pp=2,dp=2,zero=3,schedule=gpipe", NULL, "", ALL},
    {2, DEEP_GPT2, "cp=2", NULL, "", BLOCK},
    {2, DEEP_LLAMA, "cp=2", NULL, BF16, OFFLOAD("\"core_attn\"")},
    {4, DEEP_GPT2, "cp=4", CONTEXT("a2a"), "", OFFLOAD("\"core_attn\"")},
    {4, DEEP_GPT2, "cp=2,pp=2", CONTEXT("all_gather"), "", BLOCK},
    {4, DEEP_GPT2, "cp=4", CONTEXT("a2a+p2p") ", \"hierarchical_context_parallel_sizes\": [2, 2]",
     BF16, BLOCK},
    {2, DEEP_MOE, "pp=2", NULL, "", ALL},
    {2, DEEP_MOE, "tp=2,binding=tp,sp=1", NULL, BF16, OFFLOAD("\"moe\"")},
    {2, DEEP_MOE, "dp=2,binding=dp,ep=2,zero=1", NULL, "", BLOCK},
    {4, DEEP_MOE, "dp=4,binding=dp,ep=2,zero=3", PARTS(2, s1), "", BLOCK},
    {4, DEEP_MOE, "pp=2,dp=2,binding=dp,ep=2", PARTS(3, none), "", OFFLOAD("\"moe\", \"mlp\"")},
    {4, DEEP_MOE, "pp=2,vp=3,dp=2,binding=dp,ep=2", PARTS(2, s4), "", OFFLOAD("\"moe\"")},
    {2, UNEVEN, "pp=2,vp=2", NULL, "", ALL},
    {2, UNEVEN, "pp=2,schedule=zbv", NULL, BF16, OFFLOAD("\"core_attn\"")},
    {4, UNEVEN, "pp=2,dp=2,vp=2,binding=dp,ep=2", NULL, "", BLOCK},
    {4, DEEP_MOE, "dp=4,binding=dp,ep=4", ", \"moe_partition_by\": \"peers\"", "", BLOCK},
    {4, DEEP_MOE, "tp=2,dp=2,binding=dp,ep=2,etp=2", PARTS(2, s2) FORM(o2, 2), "", ALL},
    {4, DEEP_MOE, "tp=2,cp=2,binding=tp,sp=1", NULL, BF16, BLOCK},
    {2, DEEP_GPT2, "pp=2", NULL, "", BLOCK SELECTIVE("\"core_attn\", \"mlp\"")},
    {2, DEEP_LLAMA, "pp=2,vp=2", NULL, BF16, OFFLOAD("\"mlp\"") SELECTIVE("\"core_attn\"")},
    {2, DEEP_MOE, "dp=2,binding=dp,ep=2", PARTS(2, none), "", BLOCK SELECTIVE("\"moe\"")},
    {1, DEEP_MOE, "tp=1", NULL, "", OFFLOAD("\"moe\"") SELECTIVE("\"shared_experts\"")},
    {4, DEEP_GPT2, "cp=4", CONTEXT("p2p") ", \"context_parallel_load_balancer\": \"documents\"",
     BF16, OFFLOAD("\"core_attn\"")},
    {4, DEEP_LLAMA, "cp=2,pp=2", CONTEXT("a2a"), "", BLOCK},
};

static const same_case pairs[] = {
    {2, MOE, "dp=2,binding=dp,ep=2", NULL, "", PAIRS},
    {4, MOE, "pp=2,dp=2,vp=2,binding=dp,ep=2", NULL, BF16, PAIRS},
    {4, UNTIED, "pp=2,dp=2,binding=dp,ep=2,schedule=dualpipev", NULL, "", PAIRS},
    {4, MOE, "pp=2,dp=2,binding=dp,ep=2,schedule=zb_h1", NULL, "", PAIRS},
    {4, UNTIED, "pp=2,dp=2,vp=2,binding=dp,ep=2,schedule=zb_h1,zero=1", NULL, BF16, PAIRS},
    {4, UNTIED, "pp=2,dp=2,binding=dp,ep=2,schedule=zb_h1,zero=3", NULL, "", PAIRS},
    {4, UNTIED, "pp=2,dp=2,binding=dp,ep=2,schedule=zb_h1", NULL, SELECTIVE("\"moe\""), PAIRS},
    {4, UNTIED, "pp=2,dp=2,binding=dp,ep=2,schedule=zbv", NULL, "", PAIRS},
    {4, UNTIED, "pp=2,dp=2,binding=dp,ep=2,schedule=zbv,zero=2", NULL, BF16, PAIRS},
    /* sharded gradients are reduced behind what layers leave, if they are beside backwards */
    {4, UNTIED, "dp=4,binding=dp,ep=2,zero=3", NULL, "", PAIRS},
    {2, MOE, "dp=2,binding=dp,ep=2,zero=3", NULL, BF16, PAIRS},
    {2, UNTIED, "dp=2,binding=dp,ep=2,zero=2", ", \"overlap_grad_reduce\": false", "", PAIRS},
    /* partitions, and memory that they reuse */
    {2, UNTIED, "dp=2,binding=dp,ep=2", PARTS(3, none), "", PAIRS},
    {4, UNTIED, "dp=4,binding=dp,ep=4", PARTS(4, s1), "", PAIRS},
    {2, MOE, "dp=2,binding=dp,ep=2", PARTS(2, s2), BF16, PAIRS},
    {4, UNTIED, "pp=2,dp=2,binding=dp,ep=2,schedule=zb_h1", PARTS(3, s3), "", PAIRS},
    {4, UNTIED, "dp=4,binding=dp,ep=2,zero=3", PARTS(2, s4), "", PAIRS},
    {4, UNTIED, "dp=4,binding=dp,ep=4", ", \"moe_partition_by\": \"peers\"", "", PAIRS},
    /* products in chunks */
    {4, UNTIED, "tp=2,dp=2,binding=dp,ep=2", CHUNKS, "", PAIRS},
    {4, UNTIED, "tp=2,pp=2,sp=1,binding=dp,ep=2,schedule=zb_h1", CHUNKS, "", PAIRS},
    {2, UNTIED, "dp=2,binding=dp,ep=2", PARTS(2, s1) BY_EXPERTS, "", PAIRS},
    /* tensor-sharded experts, by each form of their exchange */
    {4, UNTIED, SHARDED, FORM(baseline, 1), "", PAIRS},
    {4, UNTIED, SHARDED ",sp=1", FORM(o1_paper, 1), BF16, PAIRS},
    {4, UNTIED, SHARDED, FORM(o2, 3) PARTS(2, none), "", PAIRS},
    {4, MOE, SHARDED ",sp=1", FORM(o3, 2), "", PAIRS},
    {4, UNTIED, SHARDED ",sp=1", FORM(o3, 4) PARTS(2, s1), SELECTIVE("\"moe\""), PAIRS},
    {4, UNTIED, SHARDED, FORM(direct, 2), "", PAIRS},
};

static const same_case forms[] = {
    {4, UNTIED, SHARDED, NULL, "", FORM(o1_paper, 1)},
    {4, UNTIED, SHARDED, NULL, "", FORM(o1, 1)},
    {4, UNTIED, SHARDED, NULL, "", FORM(o2, 3)},
    {4, UNTIED, SHARDED, NULL, "", FORM(o3, 3)},
    {4, UNTIED, SHARDED, NULL, "", FORM(direct, 3)},
    {4, UNTIED, SHARDED, NULL, "", FORM(direct, 1) PARTS(2, none) BY_EXPERTS},
    {2, UNTIED, "dp=2,binding=dp,ep=2", NULL, "", PARTS(2, s4) BY_EXPERTS},
};

/* packed: so many of the last ones have packed documents. */
static const struct group {
    const char *name;
    const same_case *cases;
    int count, packed;
    bool of_parallel; /* the change is in section "parallel" */
} groups[] = {
#define GROUP(name, packed, of_parallel)                                                           \
    {                                                                                              \
#name, name, sizeof name / sizeof *name, packed, of_parallel                               \
    }
    GROUP(recompute, 2, false),
    GROUP(offload, 2, false),
    GROUP(pairs, 1, true),
    GROUP(forms, 0, true),
};

static void check(weft_comm *part, const struct group *group, int i)
{
    const same_case *c = &group->cases[i];
    weft_step_result without[NUM_STEPS], with[NUM_STEPS];
    char changed[512], name[32];
    snprintf(name, sizeof name, "%s %d", group->name, i);
    mesh_training what = {.name = name,
                          .model = c->model,
                          .mesh = c->mesh,
                          .parallel = c->parallel,
                          .train = c->train,
                          .batch = 12,
                          .steps = NUM_STEPS};
    if (i >= group->count - group->packed)
        mesh_set_documents(&what, 5);
    mesh_run(part, &what, without);
    const char **section = group->of_parallel ? &what.parallel : &what.train;
    snprintf(changed, sizeof changed, "%s%s", *section ? *section : "", c->change);
    *section = changed;
    mesh_run(part, &what, with);
    mesh_compare(with, without, NUM_STEPS, 0, "%s with%s", c->mesh, c->change);
}

int main(int argc, char **argv)
{
    weft_comm *world = world_begin(4);
    for (size_t g = 0; g < sizeof groups / sizeof *groups; g++)
        for (int i = 0; i < groups[g].count; i++) {
            if (argc > 1 && strcmp(argv[1], groups[g].name) != 0)
                continue;
            weft_comm *part = world_part(world, groups[g].cases[i].world);
            if (part)
                check(part, &groups[g], i);
            weft_comm_destroy(part);
        }
    return world_finish(world);
}
