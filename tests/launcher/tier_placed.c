/* Experts in host memory that compute, each micro-batch, on whichever rank of their node has time
 * for them train with the numbers of experts on the device: with one micro-batch a rank losses,
 * gradient norms and checkpoints are the same to the bit; with several to 1e-5, and to the bit
 * those of experts that stay at home; split over several ranks to 1e-5. Routing is skewed, so that
 * experts do move, and the fullest rank has fewer rows. Each goes on from the other's checkpoint.
 *
 * With "nodes" two ranks make a node: experts move inside it alone.
 *
 * Runs under mpirun with 4 ranks: [nodes | the number of a case]. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/mpi/mpi_comm.h"
#include "tests/launcher/meshes.h"
#include "tests/launcher/weights.h"
#include "tests/world.h"

enum { NUM_STEPS = 4, MAX_SET = 6 };

#define MOE(layers, experts)                                                                       \
    "{\"num_layers\": " #layers ", \"hidden_size\": 16, \"ffn_hidden_size\": 24, "                 \
    "\"num_attention_heads\": 4, \"seq_length\": 8, \"vocab_size\": 37, \"init_method_std\": "     \
    "0.3, "                                                                                        \
    "\"hidden_dropout\": 0.1, \"num_experts\": " #experts ", \"moe_router_topk\": 2, "             \
    "\"moe_aux_loss_coeff\": 0.02}"
#define FEW(layers)                                                                                \
    "{\"num_layers\": " #layers ", \"hidden_size\": 16, \"ffn_hidden_size\": 24, "                 \
    "\"num_attention_heads\": 4, \"seq_length\": 8, \"vocab_size\": 37, \"init_method_std\": "     \
    "0.3, "                                                                                        \
    "\"num_experts\": 4, \"moe_router_topk\": 1, \"moe_expert_capacity_factor\": 1.0, "            \
    "\"moe_layer_freq\": 2, \"swiglu\": true, \"moe_shared_expert_intermediate_size\": 16}"
#define RECOMPUTE_MOE ", \"recompute_granularity\": \"selective\", \"recompute_modules\": [\"moe\"]"
#define HOT(load) "model.moe_router_forced_load=" load
/* Rows take longer than uploads. */
#define SLOW "device.pace=2e8", "device.pace_work=all"
#define KEPT(share) "offload.kept=" share
#define REPLICAS(number) "offload.replicas=" number

typedef enum kind { SAME, SEVERAL, SPLIT } kind; /* to the bit; see above */

typedef struct placed_case {
    int world, batch; /* ranks; sequences a step, of which a rank takes one at a time */
    kind kind;
    const char *model, *mesh, *train, *set[MAX_SET];
} placed_case;

static const placed_case cases[] = {
    {2, 2, SAME, MOE(3, 8), "dp=2,ep=2,binding=dp", "", {"offload.slots=2"}},
    {2, 2, SAME, MOE(3, 8), "dp=2,ep=2,binding=dp", BF16, {KEPT("0.25"), HOT("3"), SLOW}},
    {2, 2, SAME, MOE(3, 8), "dp=2,ep=2,binding=dp", UNCLIPPED, {"offload.order=demand"}},
    {2, 2, SAME, MOE(3, 8), "dp=2,ep=2,binding=dp", "", {"offload.optimizer=after", KEPT("0.5")}},
    {2, 2, SAME, MOE(3, 8), "dp=2,ep=2,binding=dp", RECOMPUTE_MOE, {"offload.slots=3"}},
    {2,
     2,
     SAME,
     MOE(3, 8),
     "dp=2,ep=2,binding=dp",
     ", \"recompute_granularity\": \"full\"",
     {KEPT("0.25")}},
    {2, 2, SAME, MOE(2, 8), "cp=2,ep=2,binding=dp", "", {"offload.slots=2"}},
    {4, 4, SAME, MOE(3, 8), "dp=4,ep=4,binding=dp", "", {HOT("3"), SLOW}},
    {4, 4, SAME, MOE(2, 32), "dp=4,ep=4,binding=dp", UNCLIPPED, {KEPT("0.25")}},
    {4, 4, SAME, MOE(3, 8), "dp=4,ep=2,binding=dp,zero=1", BF16, {"offload.order=demand"}},
    {4, 4, SAME, MOE(3, 8), "dp=4,ep=2,binding=dp,zero=3", UNCLIPPED, {KEPT("0.5"), HOT("2")}},
    {4, 4, SAME, MOE(3, 8), "dp=4,ep=2,binding=dp,zero=0", UNCLIPPED, {HOT("2")}},
    {4, 2, SAME, MOE(3, 8), "tp=2,dp=2,ep=2,etp=2,binding=dp", "", {KEPT("0.25")}},
    {4, 2, SAME, MOE(3, 8), "tp=2,dp=2,ep=4,binding=dp", "", {"offload.slots=2"}},
    {4, 2, SAME, FEW(4), "pp=2,dp=2,ep=2,binding=dp", BF16, {SLOW}},
    {2, 8, SEVERAL, MOE(3, 8), "dp=2,ep=2,binding=dp", "", {"offload.slots=2"}},
    {4, 16, SEVERAL, MOE(3, 8), "dp=4,ep=4,binding=dp", UNCLIPPED, {HOT("3"), KEPT("0.5")}},
    {4, 8, SEVERAL, MOE(4, 8), "pp=2,vp=2,dp=2,ep=2,binding=dp", BF16, {KEPT("0.25")}},
    {4, 8, SEVERAL, MOE(2, 8), "dp=4,ep=2,binding=dp", UNCLIPPED, {"offload.slots=2"}},
    {2, 2, SPLIT, MOE(3, 8), "dp=2,ep=2,binding=dp", "", {REPLICAS("2"), HOT("4"), SLOW}},
    {2, 1, SPLIT, MOE(3, 8), "tp=2,binding=tp", "", {HOT("3"), SLOW}},
    {2, 4, SPLIT, MOE(3, 8), "tp=2,binding=tp,sp=1", UNCLIPPED, {KEPT("0.25"), HOT("3")}},
    {4, 2, SPLIT, MOE(3, 8), "tp=2,dp=2,binding=tp", RECOMPUTE_MOE, {"offload.slots=3"}},
    {4, 4, SPLIT, MOE(4, 8), "tp=2,pp=2,binding=tp", UNCLIPPED, {REPLICAS("2"), HOT("4"), SLOW}},
    {4, 4, SPLIT, FEW(4), "tp=2,dp=2,binding=tp,zero=3", "", {SLOW}},
    {4, 4, SPLIT, MOE(2, 4), "dp=4,ep=4,binding=dp", UNCLIPPED, {REPLICAS("4"), HOT("2"), SLOW}},
    {4, 8, SPLIT, MOE(2, 8), "dp=4,ep=4,binding=dp", "", {REPLICAS("3"), HOT("4"), SLOW}},
};

static bool on_nodes; /* of two ranks */
static double num_away;

static const char *const ways[] = {"none", "home", "balanced"};
enum { NONE, HOME, BALANCED, NUM_WAYS };

static void set_way(const placed_case *c, int way, mesh_training *what)
{
    const char *const places[] = {"train.micro_batch_size=1",
                                  way == NONE ? NULL : "offload.experts=host",
                                  way == BALANCED ? "offload.placement=balanced" : NULL};
    memset(what->set, 0, sizeof what->set);
    mesh_set(what, places, 3);
    for (int k = 0; k < MAX_SET && c->set[k]; k++) {
        const bool others = strncmp(c->set[k], "offload.", 8) == 0 &&
                            (way == NONE || strstr(c->set[k], "replicas"));
        if (!others || way == BALANCED)
            mesh_set(what, &c->set[k], 1);
    }
}

static void check_moved(const placed_case *c, int i, weft_step_result results[][NUM_STEPS])
{
    double away = 0, loads[NUM_WAYS] = {0};
    for (int s = 0; s < NUM_STEPS; s++) {
        away += results[BALANCED][s].tier.experts_away;
        for (int way = 0; way < NUM_WAYS; way++)
            loads[way] += results[way][s].rank_load / NUM_STEPS;
    }
    num_away += away;
    EXPECT((away > 0 || on_nodes) && results[BALANCED][0].tier.places &&
               !results[HOME][0].tier.places,
           "case %d, %s: no expert moved", i, c->mesh);
    for (int k = 0; k < MAX_SET && c->set[k] && !on_nodes; k++)
        EXPECT(strncmp(c->set[k], "device.pace=", 12) != 0 || loads[BALANCED] < loads[HOME],
               "case %d, %s: fullest over mean %g, at home %g", i, c->mesh, loads[BALANCED],
               loads[HOME]);
}

static void check(weft_comm *part, const placed_case *c, int i)
{
    /* Key biases have no gradient but rounding errors, which Adam makes steps of. */
    const double of_none[] = {c->kind == SAME ? 0 : 1e-5, c->kind == SAME ? 0 : 1e-3},
                 of_home[] = {c->kind != SPLIT ? 0 : 1e-5, c->kind != SPLIT ? 0 : 1e-3};
    weft_step_result results[NUM_WAYS][NUM_STEPS], again[NUM_STEPS];
    char name[NUM_WAYS][32];
    mesh_training what = {.model = c->model,
                          .mesh = c->mesh,
                          .train = c->train,
                          .batch = c->batch,
                          .steps = NUM_STEPS,
                          .saves = true};
    for (int way = 0; way < NUM_WAYS; way++) {
        snprintf(name[way], sizeof name[way], "case-%d-%s", i, ways[way]);
        what.name = name[way];
        set_way(c, way, &what);
        mesh_run(part, &what, results[way]);
    }
    mesh_compare(results[BALANCED], results[NONE], NUM_STEPS, of_none[0], "case %d, %s, none", i,
                 c->mesh);
    mesh_compare(results[BALANCED], results[HOME], NUM_STEPS, of_home[0], "case %d, %s, home", i,
                 c->mesh);
    check_moved(c, i, results);
    if (weft_comm_rank(part) == 0) {
        weights_expect(name[BALANCED], name[NONE], NUM_STEPS, "", of_none[1]);
        weights_expect(name[BALANCED], name[HOME], NUM_STEPS, "", of_home[1]);
    }
    what.saves = false;
    what.from = name[BALANCED];
    what.from_step = NUM_STEPS;
    set_way(c, NONE, &what);
    mesh_run(part, &what, results[NONE]);
    what.from = name[NONE];
    set_way(c, BALANCED, &what);
    mesh_run(part, &what, again);
    mesh_compare(again, results[NONE], NUM_STEPS, of_none[0],
                 "case %d, %s, none, each from the other's checkpoint", i, c->mesh);
}

int main(int argc, char **argv)
{
    const int only = argc > 1 && argv[1][0] >= '0' && argv[1][0] <= '9' ? atoi(argv[1]) : -1;
    on_nodes = argc > 1 && only < 0;
    if (on_nodes)
        weft_mpi_set_limits(&(weft_mpi_limits){.ranks_per_node = 2});
    weft_comm *world = world_begin(4);
    weft_comm_set_check(true); /* as all runs do, also those of some of the ranks */
    world_make_folder(world);
    for (int i = 0; i < (int)(sizeof cases / sizeof *cases); i++) {
        if (only >= 0 && only != i)
            continue;
        weft_comm *part = world_part(world, cases[i].world);
        if (part)
            check(part, &cases[i], i);
        weft_comm_destroy(part);
    }
    EXPECT(num_away > 0 || only >= 0, "no expert moved");
    return world_finish(world);
}
