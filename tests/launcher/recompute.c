/* What is recomputed changes no bit: losses and gradient norms of a mesh are those of the same mesh
 * that keeps everything, with dropout, in bf16, with experts that drop tokens, in every form that
 * MoE layers run in, under every schedule.
 *
 * Runs under mpirun with 4 ranks. */
#include <stdio.h>
#include <string.h>

#include "tests/expect.h"
#include "tests/launcher/meshes.h"

enum { NUM_STEPS = 3 };

#define SIZES                                                                                      \
    "{\"num_layers\": 4, \"hidden_size\": 16, \"ffn_hidden_size\": 24, "                           \
    "\"num_attention_heads\": 4, \"seq_length\": 8, \"vocab_size\": 37, \"init_method_std\": 0.1"
#define DROPOUT ", \"hidden_dropout\": 0.1, \"attention_dropout\": 0.1"
#define GPT2 SIZES DROPOUT "}"
#define LLAMA                                                                                      \
    SIZES ", \"normalization\": \"RMSNorm\", \"swiglu\": true, \"num_query_groups\": 2, "          \
          "\"position_embedding_type\": \"rope\", \"disable_bias_linear\": true}"
#define MOE                                                                                        \
    SIZES DROPOUT                                                                                  \
        ", \"num_experts\": 4, \"moe_aux_loss_coeff\": 0.02, \"moe_z_loss_coeff\": 0.005, "        \
        "\"moe_expert_capacity_factor\": 1.0, \"moe_layer_freq\": [1, 0, 1, 1], "                  \
        "\"moe_shared_expert_intermediate_size\": 16}"
#define FULL(method, num)                                                                          \
    ", \"recompute_granularity\": \"full\", \"recompute_method\": \"" method                       \
    "\", \"recompute_num_layers\": " #num
#define SELECTIVE(modules)                                                                         \
    ", \"recompute_granularity\": \"selective\", \"recompute_modules\": [" modules "]"
#define BF16 ", \"precision\": \"bf16\""
#define PARTS(n, reuse) ", \"moe_num_partitions\": " #n ", \"moe_memory_reuse\": \"" #reuse "\""
#define FORM(form, chunks)                                                                         \
    ", \"moe_all_to_all\": \"" #form "\", \"moe_all_to_all_chunks\": " #chunks

static const struct {
    int world;
    const char *model, *mesh, *parallel, *train, *recompute;
} cases[] = {
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
};
enum { NUM_CASES = sizeof cases / sizeof *cases };

static void check(weft_comm *part, int i)
{
    weft_step_result kept[NUM_STEPS], again[NUM_STEPS];
    char train[256], name[32];
    snprintf(name, sizeof name, "case %d", i);
    mesh_training what = {.name = name,
                          .model = cases[i].model,
                          .mesh = cases[i].mesh,
                          .parallel = cases[i].parallel,
                          .train = cases[i].train,
                          .batch = 12,
                          .steps = NUM_STEPS};
    mesh_run(part, &what, kept);
    snprintf(train, sizeof train, "%s%s", cases[i].train, cases[i].recompute);
    what.train = train;
    mesh_run(part, &what, again);
    for (int s = 0; s < NUM_STEPS; s++)
        EXPECT(kept[s].loss == again[s].loss && kept[s].grad_norm == again[s].grad_norm &&
                   kept[s].dropped_tokens == again[s].dropped_tokens,
               "%s with %s: step %d: loss %.17g, not %.17g; gradient norm %.17g, not %.17g",
               cases[i].mesh, train, s + 1, again[s].loss, kept[s].loss, again[s].grad_norm,
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
