/* What is minimised beside the loss of the next token: losses by sequence and by global batch of
 * routers, and of tokens further on. On every mesh, with what is recomputed too, these and the
 * gradient's norm are those of one rank. Runs under mpirun with 4 ranks. */
#include <math.h>
#include <stdio.h>

#include "tests/launcher/meshes.h"
#include "tests/world.h"

enum { STEPS = 4, BATCH = 4 };

#define COMMON                                                                                     \
    "\"num_attention_heads\": 4, \"seq_length\": 16, \"vocab_size\": 61, \"init_method_std\": 0.1" \
    ", \"normalization\": \"RMSNorm\", \"swiglu\": true, \"position_embedding_type\": \"rope\", "  \
    "\"hidden_size\": 24, \"ffn_hidden_size\": 32"
#define EXPERTS                                                                                    \
    "\"num_layers\": 2, \"num_experts\": 4, \"moe_aux_loss_coeff\": 0.05, \"moe_z_loss_coeff\": "  \
    "0.005, \"moe_router_load_balancing_type\": "
#define UNTIED ", \"untie_embeddings_and_output_weights\": true"
#define RECOMPUTE(modules)                                                                         \
    ", \"recompute_granularity\": \"selective\", \"recompute_modules\": [\"" modules "\"]"
#define RECOMPUTE_ALL ", \"recompute_granularity\": \"full\""

typedef struct run {
    const char *mesh;
    int world;
    const char *train; /* NULL: nothing */
    const char *set;   /* NULL: as the reference */
} run;

enum { MOST = 16 };
static const struct {
    const char *name;
    int further; /* tokens that have a loss of their own */
    const char *model;
    run alone, runs[MOST]; /* up to the first without a world */
} cases[] = {
    {"two tokens further on",
     2,
     "{\"num_layers\": 4, \"mtp_num_layers\": 2, \"mtp_loss_scaling_factor\": 0.5, "
     "\"hidden_dropout\": 0.1" UNTIED ", " COMMON "}",
     {"dp=1", 1, NULL, NULL},
     {{"tp=2", 2, NULL, NULL},
      {"tp=4,sp=1", 4, NULL, NULL},
      {"pp=2", 2, NULL, NULL},
      {"pp=2,dp=2,zero=2", 4, NULL, NULL},
      {"dp=4,zero=3", 4, NULL, NULL},
      {"tp=2,pp=2,sp=1,zero=1", 4, RECOMPUTE_ALL, NULL},
      {"pp=2,vp=2", 2, RECOMPUTE("core_attn"), NULL},
      {"pp=2,schedule=zb_h1", 2, NULL, NULL},
      {"pp=2,schedule=zbv", 2, NULL, NULL},
      {"pp=2,dp=2,schedule=auto,layout=auto", 4, NULL, NULL}}},
    {"one with experts",
     1,
     "{\"mtp_num_layers\": 1, \"multi_latent_attention\": true, \"kv_lora_rank\": 12, "
     "\"qk_head_dim\": 6, \"qk_pos_emb_head_dim\": 4, \"v_head_dim\": 8, \"moe_layer_freq\": [0, "
     "1], \"moe_shared_expert_intermediate_size\": 16, " EXPERTS "\"aux_loss\", " COMMON "}",
     {"dp=1", 1, NULL, NULL},
     {{"dp=4,binding=dp,ep=4,zero=3", 4, NULL, NULL},
      {"pp=2,dp=2,binding=dp,ep=2", 4, NULL, NULL},
      {"tp=2,pp=2,binding=tp,sp=1", 4, NULL, NULL},
      {"tp=2,dp=2,binding=dp,ep=2,etp=2,sp=1", 4, RECOMPUTE("moe"), NULL},
      {"pp=2,dp=2,binding=dp,ep=2,schedule=zb_h1,zero=1", 4, RECOMPUTE_ALL, NULL}}},
    {"seq_aux_loss",
     0,
     "{" EXPERTS "\"seq_aux_loss\", \"moe_router_enable_expert_bias\": true, " COMMON "}",
     {"dp=1", 1, NULL, "train.micro_batch_size=4"},
     {{"dp=1", 1, NULL, "train.micro_batch_size=1"},
      {"tp=2,dp=2,binding=dp,ep=4,sp=1,zero=1", 4, NULL, "train.micro_batch_size=2"},
      {"tp=2,dp=2,binding=dp,ep=2", 4, NULL, "train.micro_batch_size=2"},
      {"cp=2,dp=2,binding=dp,ep=2", 4, NULL, "train.micro_batch_size=2"},
      {"tp=2,pp=2,binding=tp", 4, RECOMPUTE_ALL, "train.micro_batch_size=2"},
      {"dp=2,binding=dp,ep=2", 2, RECOMPUTE("moe"), "train.micro_batch_size=2"}}},
    {"global_aux_loss",
     0,
     "{" EXPERTS "\"global_aux_loss\", \"moe_router_score_function\": \"sigmoid\", " COMMON "}",
     {"dp=1", 1, NULL, NULL},
     {{"pp=2", 2, NULL, NULL},
      {"pp=2,schedule=gpipe", 2, NULL, NULL},
      {"pp=2,schedule=zb_h1", 2, NULL, NULL},
      {"tp=2,pp=2,binding=tp,sp=1", 4, RECOMPUTE_ALL, NULL},
      {"cp=2,binding=dp,ep=2", 2, RECOMPUTE("moe"), NULL},
      {"dp=1", 1, RECOMPUTE("moe"), NULL},
      {"pp=2,schedule=gpipe", 2, RECOMPUTE_ALL, NULL}}},
    /* all of a global batch at once: its load is that of one large micro-batch */
    {"a whole batch",
     0,
     "{" EXPERTS "\"aux_loss\", " COMMON "}",
     {"dp=1", 1, NULL, "train.micro_batch_size=4"},
     {{"dp=4,binding=dp,ep=2,zero=1", 4, NULL,
       "model.moe_router_load_balancing_type=global_aux_loss"},
      {"dp=4,binding=dp,ep=4,zero=3", 4, RECOMPUTE("moe"),
       "model.moe_router_load_balancing_type=global_aux_loss"}}},
};

static void train(weft_comm *world, size_t which, const run *r, weft_step_result *out)
{
    const mesh_training what = {.name = cases[which].name,
                                .model = cases[which].model,
                                .mesh = r->mesh,
                                .train = r->train,
                                .batch = BATCH,
                                .steps = STEPS,
                                .set = {r->set}};
    mesh_run(world, &what, out);
}

static void compare(size_t which, const run *r, const weft_step_result *is,
                    const weft_step_result *was)
{
    for (int i = 0; i < STEPS; i++) {
        EXPECT(fabs(is[i].loss / was[i].loss - 1) <= 1e-5 &&
                   fabs(is[i].aux_loss - was[i].aux_loss) <= 1e-5 * was[i].aux_loss &&
                   fabs(is[i].grad_norm / was[i].grad_norm - 1) <= 1e-4,
               "%s on %s, step %d: loss %.9g, aux %.9g, norm %.9g against %.9g, %.9g, %.9g",
               cases[which].name, r->mesh, i + 1, is[i].loss, is[i].aux_loss, is[i].grad_norm,
               was[i].loss, was[i].aux_loss, was[i].grad_norm);
        for (int k = 0; k < cases[which].further; k++)
            EXPECT(fabs(is[i].own.values[k] / was[i].own.values[k] - 1) <= 1e-5,
                   "%s on %s, step %d: mtp_%d_loss %.9g against %.9g", cases[which].name, r->mesh,
                   i + 1, k + 1, is[i].own.values[k], was[i].own.values[k]);
    }
}

/* A token's next labels lie on other ranks, and have no learned position. */
static void check_refusals(void)
{
    static const char text[] = "{\"model\": {" COMMON ", \"num_layers\": 2, \"mtp_num_layers\": "
                               "1}, \"data\": {\"mock_data\": true}}";
    const char *const set[] = {"position_embedding_type=learned_absolute"};
    weft_config_source source = {.file = "further", .text = text, .mesh = "cp=2,dp=2"};
    weft_arena arena = {0};
    weft_config config;
    weft_mesh mesh;
    EXPECT_OK(weft_config_load(&source, &arena, &config));
    EXPECT_ERROR(weft_config_mesh(&config, &source, 4, &mesh), WEFT_CONFIG,
                 "model.mtp_num_layers: a token's next labels lie on other ranks of "
                 "context_parallel_size 2");
    source.set = set;
    source.num_set = 1;
    EXPECT_ERROR(
        weft_config_load(&source, &arena, &config), WEFT_CONFIG,
        "model.mtp_num_layers: takes no position_embedding_type learned_absolute: leave one out");
    weft_arena_release(&arena);
}

int main(void)
{
    weft_step_result alone[STEPS], result[STEPS];
    weft_comm *world = world_begin(4);
    check_refusals();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (const run *r = &cases[i].alone; r->world > 0;
             r = r == &cases[i].alone ? cases[i].runs : r + 1) {
            weft_comm *part = world_part(world, r->world);
            const bool is_alone = r == &cases[i].alone;
            if (part)
                train(part, i, r, is_alone ? alone : result);
            if (weft_comm_rank(world) == 0 && !is_alone)
                compare(i, r, result, alone);
            weft_comm_destroy(part);
        }
    return world_finish(world);
}
