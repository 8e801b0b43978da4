/* What is shared out changes no bit. no_shard and optim train alike, and so do optim_grads and
 * optim_grads_params, with losses equal to the bit (norms are summed over ranks in fp64, in another
 * order); with one micro-batch a rank all four do, and else the two pairs within rounding. In fp32
 * and bf16, beside recomputation, long contexts, packed documents and experts, under each schedule.
 *
 * Runs under mpirun with 4 ranks. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/launcher/meshes.h"
#include "tests/world.h"

enum { NUM_STEPS = 3, NUM_STRATEGIES = 4 };

#define SIZES                                                                                      \
    "{\"num_layers\": 4, \"hidden_size\": 16, \"ffn_hidden_size\": 24, "                           \
    "\"num_attention_heads\": 4, \"seq_length\": 16, \"vocab_size\": 13, \"init_method_std\": 0.1"
#define GPT2 SIZES ", \"hidden_dropout\": 0.1, \"attention_dropout\": 0.1}"
#define LLAMA                                                                                      \
    SIZES ", \"normalization\": \"RMSNorm\", \"swiglu\": true, \"num_query_groups\": 2, "          \
          "\"position_embedding_type\": \"rope\", \"disable_bias_linear\": true, "                 \
          "\"untie_embeddings_and_output_weights\": true}"
#define MOE                                                                                        \
    SIZES ", \"untie_embeddings_and_output_weights\": true, \"num_experts\": 4, "                  \
          "\"moe_aux_loss_coeff\": 0.02, \"moe_layer_freq\": [1, 0, 1, 1]}"
#define AGAIN ", \"recompute_granularity\": \"full\", \"recompute_num_layers\": 2"
#define PARTS                                                                                      \
    ", \"recompute_granularity\": \"selective\", \"recompute_modules\": [\"core_attn\", \"moe\"]"
#define DEALT ", \"context_parallel_load_balancer\": \"documents\""

static const struct {
    const char *model, *mesh, *parallel, *train;
    int batch; /* micro-batches of one sample */
    bool one;  /* micro-batch a rank and step */
    bool documents;
} cases[] = {
    {GPT2, "dp=4", NULL, "", 4, true, false},
    {LLAMA, "dp=4", NULL, BF16, 4, true, false},
    {LLAMA, "dp=4", NULL, BF16, 12, false, false},
    {LLAMA, "tp=2,dp=2,sp=1", ", \"overlap_grad_reduce\": false", AGAIN, 2, true, false},
    {LLAMA, "pp=2,dp=2", NULL, BF16 AGAIN, 2, true, false},
    {LLAMA, "pp=2,dp=2,vp=2", NULL, "", 12, false, false},
    {MOE, "pp=2,dp=2,vp=2,binding=dp,ep=2,schedule=gpipe", NULL, PARTS, 8, false, false},
    {MOE, "dp=4,binding=dp,ep=2", NULL, BF16 PARTS, 4, true, false},
    {MOE, "dp=4,binding=dp,ep=4", NULL, AGAIN, 4, true, false},
    {LLAMA, "cp=4", NULL, BF16, 1, true, true},
    {LLAMA, "cp=4", DEALT, AGAIN, 3, false, true},
    {MOE, "cp=2,dp=2,binding=dp,ep=2,order=tp-ep-dp-cp-pp", DEALT, PARTS, 2, true, true},
};
enum { NUM_CASES = sizeof cases / sizeof *cases };

static bool is_same(const weft_step_result *a, const weft_step_result *b)
{
    bool same = true;
    for (int s = 0; s < NUM_STEPS; s++)
        same &= a[s].loss == b[s].loss && fabs(a[s].grad_norm / b[s].grad_norm - 1) < 1e-12;
    return same;
}

static double farthest(const weft_step_result *a, const weft_step_result *b)
{
    double most = 0;
    for (int s = 0; s < NUM_STEPS; s++)
        most = fmax(most, fabs(a[s].loss / b[s].loss - 1));
    return most;
}

static void check(weft_comm *world, int i)
{
    weft_step_result results[NUM_STRATEGIES][NUM_STEPS];
    for (int zero = 0; zero < NUM_STRATEGIES; zero++) {
        char mesh[96];
        snprintf(mesh, sizeof mesh, "%s,zero=%d", cases[i].mesh, zero);
        mesh_training what = {.name = "sharded",
                              .model = cases[i].model,
                              .mesh = mesh,
                              .parallel = cases[i].parallel,
                              .train = cases[i].train,
                              .batch = cases[i].batch,
                              .steps = NUM_STEPS};
        if (cases[i].documents)
            mesh_set_documents(&what, 3);
        mesh_run(world, &what, results[zero]);
    }
    EXPECT(is_same(results[1], results[0]), "%s: optim has other bits than no_shard",
           cases[i].mesh);
    EXPECT(is_same(results[3], results[2]),
           "%s: optim_grads_params has other bits than optim_grads", cases[i].mesh);
    EXPECT(!cases[i].one || is_same(results[2], results[0]),
           "%s: optim_grads has other bits than no_shard", cases[i].mesh);
    EXPECT(farthest(results[2], results[0]) < (strstr(cases[i].train, "bf16") ? 1e-3 : 1e-5),
           "%s: optim_grads is off by %.3g", cases[i].mesh, farthest(results[2], results[0]));
    EXPECT(results[0][NUM_STEPS - 1].loss != results[0][0].loss, "%s: the losses stand still",
           cases[i].mesh);
}

int main(void)
{
    weft_comm *world = world_begin(4);
    for (int i = 0; i < NUM_CASES; i++)
        check(world, i);
    return world_finish(world);
}
