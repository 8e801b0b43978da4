/* What is offloaded changes no bit: losses and gradient norms of a mesh are those of the same mesh
 * that keeps everything on the device, with dropout, in bf16, with experts that drop tokens, in
 * every form that MoE layers and attention run in, under every schedule and every sharding.
 *
 * Runs under mpirun with 4 ranks. */
#include <stdio.h>
#include <string.h>

#include "tests/expect.h"
#include "tests/launcher/meshes.h"

enum { NUM_STEPS = 3 };

#define SIZES                                                                                      \
    "{\"num_layers\": 6, \"hidden_size\": 16, \"ffn_hidden_size\": 24, "                           \
    "\"num_attention_heads\": 4, \"seq_length\": 8, \"vocab_size\": 37, \"init_method_std\": 0.1"
#define DROPOUT ", \"hidden_dropout\": 0.1, \"attention_dropout\": 0.1"
#define GPT2 SIZES DROPOUT "}"
#define LLAMA                                                                                      \
    SIZES ", \"normalization\": \"RMSNorm\", \"swiglu\": true, \"num_query_groups\": 2, "          \
          "\"position_embedding_type\": \"rope\", \"disable_bias_linear\": true}"
#define MOE                                                                                        \
    SIZES DROPOUT                                                                                  \
        ", \"num_experts\": 4, \"moe_aux_loss_coeff\": 0.02, \"moe_z_loss_coeff\": 0.005, "        \
        "\"moe_expert_capacity_factor\": 1.0, \"moe_layer_freq\": [1, 0, 1, 1, 0, 1], "            \
        "\"moe_shared_expert_intermediate_size\": 16}"
#define OFFLOAD(modules)                                                                           \
    ", \"fine_grained_activation_offloading\": true, \"offload_modules\": [" modules "]"
#define BLOCK OFFLOAD("\"block\"")
#define ALL OFFLOAD("\"core_attn\", \"mlp\", \"moe\"")
#define SELECTIVE(modules)                                                                         \
    ", \"recompute_granularity\": \"selective\", \"recompute_modules\": [" modules "]"
#define BF16 ", \"precision\": \"bf16\""
#define PARTS(n, reuse) ", \"moe_num_partitions\": " #n ", \"moe_memory_reuse\": \"" #reuse "\""
#define FORM(form, chunks)                                                                         \
    ", \"moe_all_to_all\": \"" #form "\", \"moe_all_to_all_chunks\": " #chunks
#define CONTEXT(form) ", \"cp_comm_type\": \"" form "\""

static const struct {
    int world;
    const char *model, *mesh, *parallel, *train, *offload;
} cases[] = {
    {1, GPT2, "tp=1", NULL, "", BLOCK},
    {1, GPT2, "tp=1", NULL, BF16, OFFLOAD("\"core_attn\"")},
    {1, LLAMA, "tp=1", NULL, "", OFFLOAD("\"mlp\"")},
    {1, LLAMA, "pp=1,vp=3", NULL, BF16, BLOCK},
    {1, MOE, "tp=1", NULL, "", OFFLOAD("\"moe\"")},
    {1, MOE, "tp=1", NULL, BF16, BLOCK},
    {2, GPT2, "pp=2", NULL, BF16, BLOCK},
    {2, GPT2, "pp=2,schedule=gpipe", NULL, "", BLOCK},
    {2, GPT2, "pp=2,vp=2", NULL, "", BLOCK},
    {2, LLAMA, "pp=2", NULL, "", ALL},
    {2, LLAMA, "pp=2,vp=2", NULL, BF16, OFFLOAD("\"core_attn\"")},
    {2, GPT2, "pp=2,schedule=gpipe", NULL, BF16, OFFLOAD("\"mlp\"")},
    {4, GPT2, "pp=4,layout=E|tttt||ttL", NULL, "", BLOCK},
    {4, LLAMA, "tp=2,pp=2,sp=1", NULL, "", BLOCK},
    {4, LLAMA, "tp=2,pp=2,vp=3,sp=1", NULL, "", ALL},
    {2, GPT2, "dp=2,zero=1", NULL, BF16, BLOCK},
    {4, GPT2, "dp=4,zero=2", NULL, "", BLOCK},
    {4, LLAMA, "dp=4,zero=3", NULL, BF16, BLOCK},
    {4, GPT2, "pp=2,dp=2,vp=2,zero=3", NULL, "", BLOCK},
    {4, GPT2, "pp=2,dp=2,zero=3,schedule=gpipe", NULL, "", ALL},
    {2, GPT2, "cp=2", NULL, "", BLOCK},
    {2, LLAMA, "cp=2", NULL, BF16, OFFLOAD("\"core_attn\"")},
    {4, GPT2, "cp=4", CONTEXT("a2a"), "", OFFLOAD("\"core_attn\"")},
    {4, GPT2, "cp=2,pp=2", CONTEXT("all_gather"), "", BLOCK},
    {4, GPT2, "cp=4", CONTEXT("a2a+p2p") ", \"hierarchical_context_parallel_sizes\": [2, 2]", BF16,
     BLOCK},
    {2, MOE, "pp=2", NULL, "", ALL},
    {2, MOE, "tp=2,binding=tp,sp=1", NULL, BF16, OFFLOAD("\"moe\"")},
    {2, MOE, "dp=2,binding=dp,ep=2,zero=1", NULL, "", BLOCK},
    {4, MOE, "dp=4,binding=dp,ep=2,zero=3", PARTS(2, s1), "", BLOCK},
    {4, MOE, "pp=2,dp=2,binding=dp,ep=2", PARTS(3, none), "", OFFLOAD("\"moe\", \"mlp\"")},
    {4, MOE, "pp=2,vp=3,dp=2,binding=dp,ep=2", PARTS(2, s4), "", OFFLOAD("\"moe\"")},
    {4, MOE, "dp=4,binding=dp,ep=4", ", \"moe_partition_by\": \"peers\"", "", BLOCK},
    {4, MOE, "tp=2,dp=2,binding=dp,ep=2,etp=2", PARTS(2, s2) FORM(o2, 2), "", ALL},
    {4, MOE, "tp=2,cp=2,binding=tp,sp=1", NULL, BF16, BLOCK},
    {2, GPT2, "pp=2", NULL, "", BLOCK SELECTIVE("\"core_attn\", \"mlp\"")},
    {2, LLAMA, "pp=2,vp=2", NULL, BF16, OFFLOAD("\"mlp\"") SELECTIVE("\"core_attn\"")},
    {2, MOE, "dp=2,binding=dp,ep=2", PARTS(2, none), "", BLOCK SELECTIVE("\"moe\"")},
    {1, MOE, "tp=1", NULL, "", OFFLOAD("\"moe\"") SELECTIVE("\"shared_experts\"")},
};
enum { NUM_CASES = sizeof cases / sizeof *cases };

static void check(weft_comm *part, int i)
{
    weft_step_result kept[NUM_STEPS], back[NUM_STEPS];
    char train[320], name[32];
    snprintf(name, sizeof name, "case %d", i);
    mesh_training what = {.name = name,
                          .model = cases[i].model,
                          .mesh = cases[i].mesh,
                          .parallel = cases[i].parallel,
                          .train = cases[i].train,
                          .batch = 12,
                          .steps = NUM_STEPS};
    mesh_run(part, &what, kept);
    snprintf(train, sizeof train, "%s%s", cases[i].train, cases[i].offload);
    what.train = train;
    mesh_run(part, &what, back);
    for (int s = 0; s < NUM_STEPS; s++)
        EXPECT(kept[s].loss == back[s].loss && kept[s].grad_norm == back[s].grad_norm &&
                   kept[s].dropped_tokens == back[s].dropped_tokens,
               "%s with %s: step %d: loss %.17g, not %.17g; gradient norm %.17g, not %.17g",
               cases[i].mesh, train, s + 1, back[s].loss, kept[s].loss, back[s].grad_norm,
               kept[s].grad_norm);
}

int main(void)
{
    weft_comm *world, *part;
    EXPECT_OK(weft_comm_create_world(&world));
    const int rank = weft_comm_rank(world);
    EXPECT(weft_comm_size(world) == 4, "run with 4 ranks");
    for (int i = 0; i < NUM_CASES; i++) {
        EXPECT_OK(weft_comm_split(world, rank < cases[i].world ? 0 : -1, rank, "part",
                                  WEFT_PURPOSE_CONTROL, &part));
        if (part)
            check(part, i);
        weft_comm_destroy(part);
    }
    EXPECT_OK(weft_comm_barrier(world));
    weft_comm_destroy(world);
    return expect_finish();
}
