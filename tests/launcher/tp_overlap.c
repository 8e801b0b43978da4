/* Tensor-parallel products in chunks (parallel.tp_comm_overlap): losses, gradients' norms and
 * parameters' steps of one rank, on every mesh and with all that works together with them; a run
 * again has the same bits.
 *
 * Runs under mpirun with 4 ranks. */
#include <stdio.h>
#include <string.h>

#include "tests/launcher/meshes.h"
#include "tests/world.h"

enum { STEPS = 3, BATCH = 4 };

#define GPT MESH_SIZES(2) ", \"num_query_groups\": 2, \"hidden_dropout\": 0.1}"
#define LLAMA                                                                                      \
    MESH_SIZES(2)                                                                                  \
    ", \"num_query_groups\": 2, \"normalization\": \"RMSNorm\", \"swiglu\": true, "                \
    "\"position_embedding_type\": \"rope\", \"disable_bias_linear\": true, \"qk_layernorm\": "     \
    "true}"
#define MOE                                                                                        \
    MESH_SIZES(2)                                                                                  \
    ", \"num_experts\": 4, \"moe_router_topk\": 2, \"moe_layer_freq\": [0, 1], \"swiglu\": true, " \
    "\"moe_shared_expert_intermediate_size\": 16}"
#define LATENTS                                                                                    \
    MESH_SIZES(2)                                                                                  \
    ", \"multi_latent_attention\": true, \"kv_lora_rank\": 12, \"qk_head_dim\": 6, "               \
    "\"qk_pos_emb_head_dim\": 4, \"v_head_dim\": 8, \"q_lora_rank\": 20, "                         \
    "\"position_embedding_type\": \"rope\"}"
static const char *const models[] = {GPT, LLAMA, MOE, LATENTS};
enum { NUM_MODELS = sizeof models / sizeof *models };

#define AGAIN(modules)                                                                             \
    ", \"recompute_granularity\": \"selective\", \"recompute_modules\": [" modules "]"
#define FULL ", \"recompute_granularity\": \"full\", \"recompute_method\": \"uniform\""
#define OUT(modules)                                                                               \
    ", \"fine_grained_activation_offloading\": true, \"offload_modules\": [" modules "]"
#define PAIRS "parallel.overlap_moe_expert_parallel_comm=true"

static const struct {
    int model;
    const char *mesh, *chunks, *train, *set;
} cases[] = {
    {0, "tp=2", "2", NULL, NULL},
    {0, "tp=2,sp=1", "2", NULL, NULL},
    {0, "tp=4", "4", NULL, NULL},
    {0, "tp=4,sp=1", "2", NULL, NULL},
    {1, "tp=2", "[2, 4]", NULL, NULL},
    {1, "tp=4,sp=1", "0", NULL, NULL},
    {0, "tp=2,pp=2,sp=1", "2", NULL, NULL},
    {1, "tp=2,pp=2,sp=1,schedule=zb_h1", "2", NULL, NULL},
    {0, "tp=2,pp=2,schedule=zb_h1", "2", NULL, NULL},
    {1, "tp=2,dp=2,sp=1,zero=1", "2", NULL, NULL},
    {0, "tp=2,dp=2,sp=1,zero=2", "2", NULL, NULL},
    {1, "tp=2,dp=2,sp=1,zero=3", "2", NULL, NULL},
    {1, "tp=2,cp=2,sp=1", "2", NULL, NULL},
    {0, "tp=2,sp=1", "2", FULL, NULL},
    {0, "tp=2,sp=1", "2", AGAIN("\"mlp\", \"core_attn\""), NULL},
    {1, "tp=2,pp=2,sp=1", "2", AGAIN("\"mlp\""), NULL},
    {1, "tp=2", "2", AGAIN("\"mlp\""), NULL},
    {1, "tp=2,sp=1", "2", OUT("\"block\""), NULL},
    {2, "tp=2,binding=tp,sp=1", "2", NULL, NULL},
    {2, "tp=2,dp=2,binding=dp,ep=4,sp=1", "2", NULL, NULL},
    {2, "tp=2,dp=2,binding=dp,ep=2,etp=2,sp=1", "2", NULL, NULL},
    {2, "tp=2,dp=2,binding=dp,ep=4,sp=1", "2", NULL, PAIRS},
    {3, "tp=2", "2", NULL, NULL},
    {3, "tp=2,pp=2,sp=1", "2", AGAIN("\"mla_up_proj\""), NULL},
};
enum { NUM_CASES = sizeof cases / sizeof *cases };

/* The first ranks of the world train. */
static void train(weft_comm *world, int ranks, int model, const char *mesh, const char *chunks,
                  const char *more, const char *set, weft_step_result *out)
{
    char cut[64];
    mesh_training what = {.name = "tp-overlap",
                          .model = models[model],
                          .mesh = mesh,
                          .batch = BATCH,
                          .steps = STEPS,
                          .train = more,
                          .set = {"train.micro_batch_size=2"}};
    snprintf(cut, sizeof cut, "parallel.tp_comm_overlap_chunks=%s", chunks ? chunks : "0");
    if (chunks)
        mesh_set(&what, (const char *const[]){"parallel.tp_comm_overlap=true", cut, NULL}, 2);
    if (set)
        mesh_set(&what, &set, 1);
    weft_comm *part = world_part(world, ranks);
    if (part)
        mesh_run(part, &what, out);
    weft_comm_destroy(part);
}

int main(void)
{
    weft_step_result reference[NUM_MODELS][STEPS], got[STEPS], again[STEPS];
    weft_comm *world = world_begin(4);
    world_make_folder(world);
    for (int m = 0; m < NUM_MODELS; m++)
        train(world, 1, m, "tp=1", NULL, NULL, NULL, reference[m]);
    for (int i = 0; i < NUM_CASES; i++) {
        const char *mesh = cases[i].mesh;
        const int ranks = strstr(mesh, "=4") || strstr(mesh, "=2,pp=2") || strstr(mesh, "dp=2") ||
                                  strstr(mesh, "cp=2")
                              ? 4
                              : 2;
        train(world, ranks, cases[i].model, mesh, cases[i].chunks, cases[i].train, cases[i].set,
              got);
        if (weft_comm_rank(world) == 0)
            mesh_compare(got, reference[cases[i].model], STEPS, 1e-5, "case %d, %s", i, mesh);
        if (i % 6 != 1)
            continue;
        train(world, ranks, cases[i].model, mesh, cases[i].chunks, cases[i].train, cases[i].set,
              again);
        if (weft_comm_rank(world) == 0)
            mesh_compare(again, got, STEPS, 0, "case %d again, %s", i, mesh);
    }
    return world_finish(world);
}
