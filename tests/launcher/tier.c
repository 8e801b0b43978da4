/* Experts beyond device memory train with the numbers of experts on the device: with one
 * micro-batch a rank losses and gradient norms are the same to the bit, in every order, with slots
 * for few or more than all, experts kept, with and without clipping, in every precision, binding
 * and sharding; with several they differ by the order of their sums.
 *
 * With "file" all of them train from a file, with places for a quarter of the experts, which leave
 * them by program or, in every second case, as least used.
 *
 * Runs under mpirun with 4 ranks: [file]. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/expect.h"
#include "tests/launcher/meshes.h"
#include "tests/launcher/weights.h"

enum { NUM_STEPS = 4, MAX_SET = 6 };

#define SIZES(layers)                                                                              \
    "{\"num_layers\": " #layers ", \"hidden_size\": 16, \"ffn_hidden_size\": 24, "                 \
    "\"num_attention_heads\": 4, \"seq_length\": 8, \"vocab_size\": 37, \"init_method_std\": 0.1"
/* More experts than tokens choose, so that some have no rows; tokens that are dropped. */
#define MOE(layers, experts)                                                                       \
    SIZES(layers)                                                                                  \
    ", \"hidden_dropout\": 0.1, \"num_experts\": " #experts ", \"moe_router_topk\": 2, "           \
    "\"moe_aux_loss_coeff\": 0.02}"
#define FEW(layers)                                                                                \
    SIZES(layers)                                                                                  \
    ", \"num_experts\": 4, \"moe_router_topk\": 1, \"moe_expert_capacity_factor\": 1.0, "          \
    "\"moe_layer_freq\": 2, \"swiglu\": true, \"moe_shared_expert_intermediate_size\": 16}"
#define BF16 ", \"precision\": \"bf16\""
#define UNCLIPPED ", \"clip_grad\": 0"

typedef struct tier_case {
    int world, batch; /* ranks; sequences a step, of which a rank takes one at a time */
    bool adds;        /* several micro-batches a rank: 1e-5, not bits */
    const char *model, *mesh, *train, *offload[MAX_SET];
} tier_case;

static const tier_case cases[] = {
    {1, 1, false, MOE(3, 8), "tp=1", "", {"offload.slots=2"}},
    {1, 1, false, MOE(3, 8), "tp=1", BF16, {"offload.slots=3", "offload.order=demand"}},
    {1, 1, false, MOE(3, 8), "tp=1", UNCLIPPED, {"offload.order=layer"}},
    {1, 1, false, MOE(3, 8), "tp=1", BF16 UNCLIPPED, {"offload.kept=0.25"}},
    {1, 1, false, MOE(3, 8), "tp=1", "", {"offload.kept=0.5", "offload.optimizer=after"}},
    {1, 1, false, MOE(3, 8), "tp=1", "", {"offload.kept=1"}},
    {1, 1, false, FEW(4), "tp=1", ", \"split_master\": false" BF16, {"offload.slots=16"}},
    {1, 4, true, MOE(3, 8), "tp=1", "", {"offload.slots=2"}},
    {1, 4, true, MOE(3, 8), "tp=1", BF16 UNCLIPPED, {"offload.kept=0.25"}},
    {2, 2, false, MOE(3, 8), "tp=2,binding=tp", "", {"offload.slots=2"}},
    {2, 2, false, MOE(3, 8), "tp=2,binding=tp,sp=1", BF16, {"offload.kept=0.5"}},
    {2, 2, false, MOE(3, 8), "dp=2,ep=2,binding=dp", "", {"offload.slots=2"}},
    {2, 2, false, MOE(3, 8), "dp=2,ep=1,binding=dp", "", {"offload.slots=3"}},
    {2, 2, false, MOE(3, 8), "dp=2,ep=1,binding=dp,zero=0", UNCLIPPED, {"offload.kept=0.25"}},
    {2, 2, false, MOE(4, 8), "pp=2", BF16, {"offload.slots=2"}},
    {2, 8, true, MOE(4, 8), "pp=2,vp=2", "", {"offload.kept=0.25"}},
    {4, 4, false, MOE(3, 8), "dp=4,ep=2,binding=dp,zero=1", BF16, {"offload.order=demand"}},
    {4, 4, false, MOE(3, 8), "dp=4,ep=2,binding=dp,zero=3", UNCLIPPED, {"offload.slots=2"}},
    {4, 4, false, MOE(3, 8), "tp=2,dp=2,ep=2,etp=2,binding=dp", "", {"offload.kept=0.25"}},
    {4, 2, false, FEW(4), "pp=2,dp=2,ep=2,binding=dp", BF16, {"offload.slots=2"}},
    {4, 8, true, FEW(4), "pp=2,tp=2,binding=tp", UNCLIPPED, {"offload.order=layer"}},
    {1,
     1,
     false,
     MOE(3, 8),
     "tp=1",
     ", \"recompute_granularity\": \"selective\", \"recompute_modules\": [\"moe\"]",
     {"offload.slots=2"}},
    {1,
     1,
     false,
     MOE(3, 8),
     "tp=1",
     ", \"recompute_granularity\": \"full\"",
     {"offload.kept=0.25"}},
    {2, 2, false, MOE(3, 8), "cp=2", "", {"offload.slots=2"}},
};

static bool equal(const tier_case *c, double with, double without)
{
    return c->adds ? fabs(with - without) <= 1e-5 * fabs(without) : with == without;
}

static char folder[64];

/* Both trained on from the checkpoint `from`, and left one in folder/name: the same numbers. */
static void compare(const tier_case *c, int i, const char *what, const weft_step_result *with,
                    const weft_step_result *without)
{
    for (int s = 0; s < NUM_STEPS; s++)
        EXPECT(equal(c, with[s].loss, without[s].loss) &&
                   equal(c, with[s].grad_norm, without[s].grad_norm) &&
                   without[s].dropped_tokens == with[s].dropped_tokens,
               "case %d, %s, %s%s: step %d: loss %.17g, not %.17g; gradient norm %.17g, not %.17g",
               i, c->mesh, c->offload[0], what, s + 1, with[s].loss, without[s].loss,
               with[s].grad_norm, without[s].grad_norm);
}

static bool in_file;

static void set_offload(const tier_case *c, int i, bool on, mesh_training *what)
{
    int count = 0;
    memset(what->set, 0, sizeof what->set);
    what->set[count++] = "train.micro_batch_size=1";
    if (!on)
        return;
    what->set[count++] = in_file ? "offload.experts=file" : "offload.experts=host";
    if (in_file && i % 2)
        what->set[count++] = "offload.eviction=lru";
    for (int k = 0; k < MAX_SET && c->offload[k]; k++)
        what->set[count++] = c->offload[k];
}

/* Trains without and with, compares, and lets each go on from the other's checkpoint. */
static void check(weft_comm *part, const tier_case *c, int i)
{
    weft_step_result results[2][NUM_STEPS];
    char name[32], saved[2][128], from[2][160];
    snprintf(name, sizeof name, "case %d", i);
    mesh_training what = {.name = name,
                          .model = c->model,
                          .mesh = c->mesh,
                          .train = c->train,
                          .batch = c->batch,
                          .steps = NUM_STEPS};
    for (int on = 0; on < 2; on++) {
        snprintf(saved[on], sizeof saved[on], "%s/%d-%d", folder, i, on);
        snprintf(from[on], sizeof from[on], "%s/step-%d", saved[on], NUM_STEPS);
        set_offload(c, i, on, &what);
        what.checkpoint = saved[on];
        mesh_run(part, &what, results[on]);
    }
    compare(c, i, "", results[1], results[0]);
    if (weft_comm_rank(part) == 0) {
        const weights_difference d = weights_compare(from[1], from[0], "");
        EXPECT(d.count > 0 && (c->adds ? d.worst < 1e-4 : d.num_unequal == 0),
               "case %d: %d of %d datasets differ, %s most (%g)", i, d.num_unequal, d.count,
               d.where, d.worst);
    }
    what.checkpoint = NULL;
    for (int on = 0; on < 2; on++) {
        set_offload(c, i, on, &what);
        what.from = from[!on];
        mesh_run(part, &what, results[on]);
    }
    compare(c, i, ", from the other's checkpoint", results[1], results[0]);
}

int main(int argc, char **argv)
{
    weft_comm *world, *part;
    in_file = argc > 1 && strcmp(argv[1], "file") == 0;
    EXPECT_OK(weft_comm_create_world(&world));
    const int rank = weft_comm_rank(world);
    EXPECT(weft_comm_size(world) == 4, "run with 4 ranks");
    snprintf(folder, sizeof folder, "/tmp/weft-tier-%s%d", in_file ? "file-" : "", (int)getppid());
    for (int i = 0; i < (int)(sizeof cases / sizeof *cases); i++) {
        EXPECT_OK(weft_comm_split(world, rank < cases[i].world ? 0 : -1, rank, "part",
                                  WEFT_PURPOSE_CONTROL, &part));
        if (part)
            check(part, &cases[i], i);
        weft_comm_destroy(part);
    }
    EXPECT_OK(weft_comm_barrier(world));
    char command[96];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    EXPECT(rank > 0 || system(command) == 0, "%s", command);
    weft_comm_destroy(world);
    return expect_finish();
}
