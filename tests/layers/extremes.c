/* MoE layers, also those whose tokens go where nobody wants them, and stacks at the edge of what
 * the mesh allows. Each against its definition or one rank: PPMoE (binding tp) and DPMoE (binding
 * dp) are the same function, and where tokens travel so is every way in which they do, whatever the
 * partitions, the memory reuse and the form of the all-to-all. Runs with 4 ranks. */
#include <stdlib.h>

#include "tests/world.h"
#include "tests/layers/moe_case.h"
#include "tests/layers/training.h"

#define SHAPE                                                                                      \
    "\"hidden_size\": 12, \"ffn_hidden_size\": 16, \"seq_length\": 8, \"num_experts\": 4, "
#define TOP_1 "\"moe_router_topk\": 1, \"moe_router_pre_softmax\": true"
#define LOSSES ", \"moe_aux_loss_coeff\": 0.05, \"moe_z_loss_coeff\": 0.01"

#define SMOOTH "\"hidden_size\": 20, \"seq_length\": 8, \"num_experts\": 4, "

/* Meshes that a case does not divide by are left out; the first cases are ordinary, and take those
 * that extremes do without. */
enum { UNEVEN = 1, ONE_EXPERT = 2, EXTREME = 4, NUM_ORDINARY = 5 };

static const struct {
    moe_case c;
    int restrictions;
} cases[] = {
    {{"top-1", SMOOTH "\"ffn_hidden_size\": 24, " TOP_1 LOSSES, 3, MOE_SPREAD, MOE_TIGHT}, 0},
    {{"top-2 swiglu", SMOOTH "\"ffn_hidden_size\": 16, \"swiglu\": true" LOSSES, 2, MOE_SPREAD,
      MOE_TIGHT},
     0},
    {{"top-2 shared expert",
      SMOOTH "\"moe_ffn_hidden_size\": 12, \"ffn_hidden_size\": 24, "
             "\"moe_shared_expert_intermediate_size\": 8" LOSSES,
      2, MOE_SPREAD, MOE_TIGHT},
     0},
    {{"top-1 drops by position",
      SMOOTH TOP_1 ", \"moe_expert_capacity_factor\": 0.75, "
                   "\"moe_token_drop_policy\": \"position\"",
      3, MOE_SPREAD, MOE_TIGHT},
     0},
    {{"top-2 drops by likelihood",
      SMOOTH "\"moe_expert_capacity_factor\": 0.6, \"swiglu\": true, "
             "\"moe_token_drop_policy\": \"probs\"",
      3, MOE_SPREAD, MOE_TIGHT},
     0},
    {{"all to one, top-1", SHAPE TOP_1 LOSSES, 2, MOE_ALL_TO_ONE, MOE_CANCELS}, 0},
    {{"all to one, top-2", SHAPE "\"moe_router_topk\": 2" LOSSES, 2, MOE_ALL_TO_ONE, MOE_TIGHT}, 0},
    {{"all to one, room for one", SHAPE TOP_1 ", \"moe_expert_capacity_factor\": 1e-6", 2,
      MOE_ALL_TO_ONE, MOE_CANCELS},
     0},
    {{"room for one, position",
      SHAPE "\"moe_expert_capacity_factor\": 1e-6, "
            "\"moe_token_drop_policy\": \"position\"",
      2, MOE_SPREAD, MOE_TIGHT},
     0},
    {{"room beyond all rows", SHAPE "\"moe_expert_capacity_factor\": 1e6", 2, MOE_SPREAD,
      MOE_TIGHT},
     0},
    {{"an expert without tokens", SHAPE TOP_1 LOSSES, 2, MOE_LAST_STARVED, MOE_TIGHT}, 0},
    {{"top-k of all experts", SHAPE "\"moe_router_topk\": 4" LOSSES, 2, MOE_SPREAD, MOE_TIGHT}, 0},
    {{"the same token everywhere", SHAPE "\"moe_router_topk\": 2" LOSSES, 2, MOE_SAME_TOKENS,
      MOE_TIGHT},
     0},
    {{"zero tokens: all logits tie", SHAPE "\"moe_router_topk\": 2" LOSSES, 2, MOE_ZERO_TOKENS,
      MOE_TIGHT},
     0},
    {{"huge logits", SHAPE "\"moe_router_topk\": 2, \"moe_aux_loss_coeff\": 0.05", 2, MOE_HUGE,
      MOE_CANCELS},
     0},
    {{"fewer tokens than experts",
      "\"hidden_size\": 12, \"ffn_hidden_size\": 16, "
      "\"seq_length\": 4, \"num_experts\": 4, " TOP_1 LOSSES,
      1, MOE_SPREAD, MOE_TIGHT},
     0},
    {{"one token",
      "\"hidden_size\": 12, \"ffn_hidden_size\": 16, \"seq_length\": 1, "
      "\"num_experts\": 4, " TOP_1 LOSSES,
      1, MOE_SPREAD, MOE_TIGHT},
     UNEVEN},
    {{"odd sizes",
      "\"hidden_size\": 13, \"ffn_hidden_size\": 20, \"seq_length\": 7, "
      "\"num_experts\": 4, \"moe_router_topk\": 3" LOSSES,
      3, MOE_SPREAD, MOE_TIGHT},
     UNEVEN},
    {{"width 1",
      "\"hidden_size\": 1, \"ffn_hidden_size\": 4, "
      "\"seq_length\": 4, \"num_experts\": 4, \"moe_router_topk\": 2" LOSSES,
      1, MOE_SPREAD, MOE_TIGHT},
     0},
    {{"one expert",
      "\"hidden_size\": 12, \"ffn_hidden_size\": 16, \"seq_length\": 8, "
      "\"num_experts\": 1, " TOP_1 LOSSES,
      2, MOE_SPREAD, MOE_CANCELS},
     ONE_EXPERT},
};
enum { NUM_CASES = sizeof cases / sizeof *cases };

static const struct {
    int ranks;
    const char *mesh;
    int not_for;
} meshes[] = {
    {1, "tp=1,binding=tp", EXTREME},
    {1, "dp=1,binding=dp,ep=1", 0},
    {2, "tp=2,binding=tp", EXTREME},
    {2, "tp=2,binding=tp,sp=1", UNEVEN | ONE_EXPERT},
    {2, "tp=2,binding=dp,ep=1", EXTREME},
    {2, "tp=2,binding=dp,ep=2", EXTREME},
    {2, "tp=2,binding=dp,ep=2,sp=1", EXTREME},
    {2, "tp=2,binding=dp,ep=1,etp=2", 0},
    {2, "dp=2,binding=dp,ep=1", 0},
    {2, "dp=2,binding=dp,ep=2", EXTREME},
    {4, "tp=4,binding=tp", ONE_EXPERT}, /* an expert a rank */
    {4, "tp=4,binding=tp,sp=1", EXTREME},
    {4, "tp=2,dp=2,binding=tp", EXTREME},
    {4, "tp=2,dp=2,binding=dp,ep=2", EXTREME},
    {4, "tp=2,dp=2,binding=dp,ep=4", UNEVEN | ONE_EXPERT},
    {4, "tp=2,dp=2,binding=dp,ep=4,sp=1", EXTREME},
    {4, "tp=2,dp=2,binding=dp,ep=2,etp=2", ONE_EXPERT},
    {4, "tp=2,dp=2,binding=dp,ep=2,etp=2,sp=1", EXTREME},
    {4, "dp=4,binding=dp,ep=2", EXTREME},
    {4, "dp=4,binding=dp,ep=4", ONE_EXPERT},
};
enum { NUM_MESHES = sizeof meshes / sizeof *meshes };

/* How often tokens went in partitions by tokens, by peers, by experts; and in each form. */
static int num_ways[3], num_forms[WEFT_NUM_EXCHANGES], num_sharded;

/* Where tokens travel they take every way by turns. */
static weft_moe_options way_of(const char *mesh, int turn)
{
    static const int partitions[] = {1, 2, 3, 4, 8, 30};
    const char *over = strstr(mesh, ",ep=");
    const int ep = over ? atoi(over + 4) : 1;
    const bool sharded = strstr(mesh, "etp=2");
    int cut = turn % 3;
    weft_moe_options way = {.pipeline = {.num_partitions = partitions[turn % 6],
                                         .reuse = (weft_reuse)(turn / 6 % WEFT_NUM_REUSES)}};
    if (ep == 1)
        return (weft_moe_options){0};
    if (cut == 1 && !sharded) {
        way.pipeline = weft_moe_by_peers(ep, 1 + turn / 3 % 2);
    } else if (cut == 2 && ep == 2) {
        way.pipeline.num_partitions = 2;
        way.pipeline.by_experts = 1;
        way.form = sharded ? WEFT_EXCHANGE_DIRECT : WEFT_EXCHANGE_BASELINE;
    } else {
        cut = 0;
        way.form = sharded ? (weft_exchange_form)(num_sharded % WEFT_NUM_EXCHANGES) : way.form;
        way.num_chunks = way.form <= WEFT_EXCHANGE_O1 ? 1 : num_sharded / 4 % 4;
        num_sharded += sharded;
    }
    num_ways[cut]++;
    num_forms[way.form]++;
    return way;
}

static void check_ways(void)
{
    for (int cut = 0; cut < 3; cut++)
        EXPECT(num_ways[cut] > 5, "way %d is taken %d times", cut, num_ways[cut]);
    for (int form = 0; form < WEFT_NUM_EXCHANGES; form++)
        EXPECT(num_forms[form] > 1, "form %s is taken %d times", weft_exchange_text(form),
               num_forms[form]);
}

/* Tokens that TP cannot slice are refused, not rounded. */
static void check_refusal(weft_comm *world)
{
    weft_arena arena = {0};
    weft_model_options options = {0};
    weft_comm *part = world_part(world, 2);
    if (!part)
        return;
    EXPECT_OK(harness_options("{\"model\": {\"num_layers\": 1, \"hidden_size\": 12, "
                              "\"num_attention_heads\": 4, \"seq_length\": 7, \"vocab_size\": 8, "
                              "\"num_experts\": 4}}",
                              &arena, &options));
    rig r;
    EXPECT_ERROR(
        rig_create(&r, part, &options, "tp=2,binding=dp,ep=2", 3, WEFT_F32, weft_moe_create),
        WEFT_CONFIG, "divide by");
    rig_release(&r);
    weft_arena_release(&arena);
    weft_comm_destroy(part);
}

#define STACK                                                                                      \
    "\"hidden_size\": 16, \"ffn_hidden_size\": 24, \"num_attention_heads\": 4, "                   \
    "\"init_method_std\": 0.1, "
#define MOE "\"num_experts\": 4, \"moe_router_topk\": 2" LOSSES ", "
enum { STEPS = 4 };

static const struct {
    const char *name, *json;
    int ranks;
    const char *mesh;
} stacks[] = {
    {"a stage without MoE",
     STACK MOE "\"num_layers\": 2, \"seq_length\": 8, \"vocab_size\": 31, "
               "\"moe_layer_freq\": [1, 0]",
     2, "pp=2"},
    {"MoE in the last of 4 stages",
     STACK MOE "\"num_layers\": 4, \"seq_length\": 8, "
               "\"vocab_size\": 31, \"moe_layer_freq\": [0,0,0,1]",
     4, "pp=4"},
    {"MoE nowhere",
     STACK MOE "\"num_layers\": 2, \"seq_length\": 8, \"vocab_size\": 31, "
               "\"moe_layer_freq\": [0, 0]",
     4, "tp=2,pp=2,binding=tp"},
    {"stages of 2, 1 and 1 layers",
     STACK "\"num_layers\": 4, \"seq_length\": 8, "
           "\"vocab_size\": 31",
     3, "pp=3"},
    {"vocabulary 31 over 2", STACK "\"num_layers\": 1, \"seq_length\": 8, \"vocab_size\": 31", 2,
     "tp=2,sp=1"},
    {"vocabulary 5 over 4", STACK "\"num_layers\": 1, \"seq_length\": 8, \"vocab_size\": 5", 4,
     "tp=4"}, /* 2 + 2 + 1 + 0 rows */
    {"vocabulary 5 over 4, untied",
     STACK "\"num_layers\": 1, \"seq_length\": 8, "
           "\"vocab_size\": 5, "
           "\"untie_embeddings_and_output_weights\": true",
     4, "tp=4,sp=1"},
    {"vocabulary 2, two stages", STACK "\"num_layers\": 2, \"seq_length\": 8, \"vocab_size\": 2", 4,
     "tp=2,pp=2"},
    {"sequences of one token",
     STACK MOE "\"num_layers\": 2, \"seq_length\": 1, "
               "\"vocab_size\": 31",
     4, "pp=2,dp=2,binding=dp,ep=2"},
    {"one head of width 2",
     "\"hidden_size\": 2, \"num_attention_heads\": 1, \"num_layers\": 1, "
     "\"ffn_hidden_size\": 3, \"seq_length\": 5, \"vocab_size\": 7, "
     "\"position_embedding_type\": \"rope\", \"init_method_std\": 0.5",
     4, "dp=4,zero=1"},
};
enum { NUM_STACKS = sizeof stacks / sizeof *stacks };

static void check_stack(weft_comm *world, int i)
{
    double single[STEPS], losses[STEPS], worst = 0;
    int rank = weft_comm_rank(world), ranks = stacks[i].ranks;
    weft_comm *part = world_part(world, ranks);
    if (!part)
        return;
    training_case c = {.name = stacks[i].name, .model = stacks[i].json, .global_batch = 4};
    if (rank == 0) {
        weft_comm *self;
        EXPECT_OK(weft_comm_create_self(&self));
        c.mesh = "tp=1,pp=1,dp=1,ep=1,etp=1";
        EXPECT(training_losses(&c, self, STEPS, single), "%s alone", c.name);
        weft_comm_destroy(self);
    }
    c.mesh = stacks[i].mesh;
    EXPECT(training_losses(&c, part, STEPS, losses), "%s on %s", c.name, c.mesh);
    for (int s = 0; s < STEPS && rank == 0; s++) {
        double relative = fabs(losses[s] - single[s]) / single[s];
        EXPECT(isfinite(losses[s]) && relative <= 1e-5, "%s on %s: step %d loss %.9g against %.9g",
               c.name, c.mesh, s + 1, losses[s], single[s]);
        worst = fmax(worst, relative);
    }
    if (rank == 0)
        printf("%-28s %d ranks %-28s %.1e\n", c.name, ranks, c.mesh, worst);
    weft_comm_destroy(part);
}

/* Keys of layers' kinds that do not fit each other. */
static void check_kinds(void)
{
    static const char *const wrong[][2] = {
        {"\"window_size\": 4, \"attention_chunk_size\": 4", "layers have a window or chunks"},
        {"\"window_size\": 4, \"window_attn_skip_freq\": [1, 0, 1]", "3 entries for 2 layers"},
        {"\"window_size\": 4, \"window_attn_skip_freq\": [1, 2]", "2 in a list is not 0 or 1"},
        {"\"no_rope_freq\": [1]", "1 entries for 2 layers"},
        {"\"no_rope_freq\": [0, 2]", "2 in a list is not 0 or 1"},
        {"\"rotary_base_local\": 0.5", "0.5 is below 1, and not 0"},
        {"\"swiglu\": true, \"geglu\": true", "one can be true"},
        {"\"glu_linear_offset\": 1.0", "is of gated MLPs"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        weft_arena arena = {0};
        weft_model_options options;
        char json[400];
        snprintf(json, sizeof json,
                 "{\"model\": {\"num_layers\": 2, \"hidden_size\": 12, \"num_attention_heads\": 4, "
                 "\"seq_length\": 8, \"vocab_size\": 8, %s}}",
                 wrong[i][0]);
        EXPECT_ERROR(harness_options(json, &arena, &options), WEFT_CONFIG, wrong[i][1]);
        weft_arena_release(&arena);
    }
}

int main(void)
{
    weft_comm *world = world_begin(4);
    int turn = 0;
    weft_comm_set_check(true);
    for (int c = 0; c < NUM_CASES; c++) {
        if (weft_comm_rank(world) == 0)
            moe_case_check_definition(&cases[c].c);
        for (int m = 0; m < NUM_MESHES; m++) {
            if ((cases[c].restrictions | (c < NUM_ORDINARY ? 0 : EXTREME)) & meshes[m].not_for)
                continue;
            harness_moe = way_of(meshes[m].mesh, turn++);
            moe_case_check_mesh(&cases[c].c, world, meshes[m].ranks, meshes[m].mesh);
        }
        harness_moe = (weft_moe_options){0};
    }
    check_ways();
    check_refusal(world);
    check_kinds();
    for (int i = 0; i < NUM_STACKS; i++)
        check_stack(world, i);
    return world_finish(world);
}
