/* Experts in host memory that compute, each micro-batch, on whichever rank of their node has time
 * for them train with the numbers of experts on the device: with one micro-batch a rank losses,
 * gradient norms and checkpoints are the same to the bit; with several to 1e-5, and to the bit
 * those of experts that stay at home; split over several ranks to 1e-5. Routing is skewed, so that
 * experts do move, and the fullest rank has fewer rows. Each goes on from the other's checkpoint.
 *
 * With "nodes" two ranks make a node: experts move inside it alone.
 *
 * Runs under mpirun with 4 ranks: [nodes | the number of a case]. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/mpi/mpi_comm.h"
#include "tests/expect.h"
#include "tests/launcher/meshes.h"
#include "tests/launcher/weights.h"

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
#define BF16 ", \"precision\": \"bf16\""
#define UNCLIPPED ", \"clip_grad\": 0"
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

static char folder[64];
static bool on_nodes; /* of two ranks */
static double num_away;

static const char *const ways[] = {"none", "home", "balanced"};
enum { NONE, HOME, BALANCED, NUM_WAYS };

static void set_way(const placed_case *c, int way, mesh_training *what)
{
    int count = 0;
    memset(what->set, 0, sizeof what->set);
    what->set[count++] = "train.micro_batch_size=1";
    if (way != NONE)
        what->set[count++] = "offload.experts=host";
    if (way == BALANCED)
        what->set[count++] = "offload.placement=balanced";
    for (int k = 0; k < MAX_SET && c->set[k]; k++) {
        const bool others = strncmp(c->set[k], "offload.", 8) == 0 &&
                            (way == NONE || strstr(c->set[k], "replicas"));
        if (!others || way == BALANCED)
            what->set[count++] = c->set[k];
    }
}

static bool near(bool bits, double a, double b)
{
    return bits ? a == b : fabs(a - b) <= 1e-5 * fabs(b);
}

static void compare(const placed_case *c, int i, const char *what, bool bits,
                    const weft_step_result *got, const weft_step_result *wanted)
{
    for (int s = 0; s < NUM_STEPS; s++)
        EXPECT(near(bits, got[s].loss, wanted[s].loss) &&
                   near(bits, got[s].grad_norm, wanted[s].grad_norm) &&
                   got[s].dropped_tokens == wanted[s].dropped_tokens,
               "case %d, %s, beside %s: step %d: loss %.17g, not %.17g; gradient norm %.17g, not "
               "%.17g",
               i, c->mesh, what, s + 1, got[s].loss, wanted[s].loss, got[s].grad_norm,
               wanted[s].grad_norm);
}

/* Key biases have no gradient but rounding errors, which Adam makes steps of. */
static void compare_saved(int i, bool bits, const char *got, const char *wanted)
{
    const weights_difference d = weights_compare(got, wanted, "");
    EXPECT(d.count > 0 && (bits ? d.num_unequal == 0 : d.worst < 1e-3),
           "case %d: %d of %d datasets differ, %s most (%g)", i, d.num_unequal, d.count, d.where,
           d.worst);
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
    weft_step_result results[NUM_WAYS][NUM_STEPS], again[NUM_STEPS];
    char name[32], saved[NUM_WAYS][128], from[NUM_WAYS][160];
    snprintf(name, sizeof name, "case %d", i);
    mesh_training what = {.name = name,
                          .model = c->model,
                          .mesh = c->mesh,
                          .train = c->train,
                          .batch = c->batch,
                          .steps = NUM_STEPS};
    for (int way = 0; way < NUM_WAYS; way++) {
        snprintf(saved[way], sizeof saved[way], "%s/%d-%s", folder, i, ways[way]);
        snprintf(from[way], sizeof from[way], "%s/step-%d", saved[way], NUM_STEPS);
        set_way(c, way, &what);
        what.checkpoint = saved[way];
        mesh_run(part, &what, results[way]);
    }
    compare(c, i, "none", c->kind == SAME, results[BALANCED], results[NONE]);
    compare(c, i, "home", c->kind != SPLIT, results[BALANCED], results[HOME]);
    check_moved(c, i, results);
    if (weft_comm_rank(part) == 0) {
        compare_saved(i, c->kind == SAME, from[BALANCED], from[NONE]);
        compare_saved(i, c->kind != SPLIT, from[BALANCED], from[HOME]);
    }
    what.checkpoint = NULL;
    what.from = from[BALANCED];
    set_way(c, NONE, &what);
    mesh_run(part, &what, results[NONE]);
    what.from = from[NONE];
    set_way(c, BALANCED, &what);
    mesh_run(part, &what, again);
    compare(c, i, "none, each from the other's checkpoint", c->kind == SAME, again, results[NONE]);
}

int main(int argc, char **argv)
{
    weft_comm *world, *part;
    const int only = argc > 1 && argv[1][0] >= '0' && argv[1][0] <= '9' ? atoi(argv[1]) : -1;
    on_nodes = argc > 1 && only < 0;
    if (on_nodes)
        weft_mpi_set_limits(&(weft_mpi_limits){.ranks_per_node = 2});
    EXPECT_OK(weft_comm_create_world(&world));
    const int rank = weft_comm_rank(world);
    EXPECT(weft_comm_size(world) == 4, "run with 4 ranks");
    weft_comm_set_check(true); /* as all runs do, also those of some of the ranks */
    snprintf(folder, sizeof folder, "/tmp/weft-tier-placed-%d", (int)getppid());
    for (int i = 0; i < (int)(sizeof cases / sizeof *cases); i++) {
        if (only >= 0 && only != i)
            continue;
        EXPECT_OK(weft_comm_split(world, rank < cases[i].world ? 0 : -1, rank, "part",
                                  WEFT_PURPOSE_CONTROL, &part));
        if (part)
            check(part, &cases[i], i);
        weft_comm_destroy(part);
    }
    EXPECT_OK(weft_comm_barrier(world));
    EXPECT(num_away > 0 || only >= 0, "no expert moved");
    char command[96];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    EXPECT(rank > 0 || system(command) == 0, "%s", command);
    weft_comm_destroy(world);
    return expect_finish();
}
